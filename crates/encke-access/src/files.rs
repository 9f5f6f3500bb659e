//! Files that the configuration names; how they are read is up to the server.

use std::fmt;
use std::io;
use std::path::Path;

use crate::config::AccessConfigError;

/// Reads files, and names the key of the configuration when it can't.
pub(crate) struct KeyFiles<'f>(pub(crate) &'f dyn Fn(&Path) -> io::Result<Vec<u8>>);

impl KeyFiles<'_> {
    pub(crate) fn read(&self, key: &str, path: &Path) -> Result<Vec<u8>, AccessConfigError> {
        (self.0)(path).map_err(|error| {
            let path = path.display();
            AccessConfigError::new(
                key,
                format!("names the file {path}, which can't be read: {error}"),
            )
        })
    }

    /// A secret: the file's content without the line end behind it.
    pub(crate) fn secret(&self, key: &str, path: &Path) -> Result<Vec<u8>, AccessConfigError> {
        let mut bytes = self.read(key, path)?;
        if bytes.ends_with(b"\n") {
            bytes.pop();
        }
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
        Ok(bytes)
    }
}

impl fmt::Debug for KeyFiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFiles")
    }
}
