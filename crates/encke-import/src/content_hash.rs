//! The hash of a stream's contents.

use std::fmt::Write;

use aws_lc_rs::digest::{Context, SHA256};

/// The SHA-256 of the messages of a JSON stream, each with its length before it, or of the bytes of another stream.
#[derive(Clone)]
pub(crate) struct ContentHash {
    context: Context,
    units: u64,
    bytes: u64,
}

impl ContentHash {
    pub(crate) fn new() -> Self {
        ContentHash {
            context: Context::new(&SHA256),
            units: 0,
            bytes: 0,
        }
    }

    /// Adds a message of a JSON stream.
    pub(crate) fn message(&mut self, text: &str) {
        self.context.update(&(text.len() as u64).to_le_bytes());
        self.context.update(text.as_bytes());
        self.units += 1;
        self.bytes += text.len() as u64;
    }

    /// Adds bytes of another stream.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.units += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
    }

    /// Messages, or bytes.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Bytes of data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.bytes
    }

    /// The hash of what was added so far, in hexadecimal digits.
    pub(crate) fn hex(&self) -> String {
        let digest = self.context.clone().finish();
        digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string does not fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

impl std::fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = self.units;
        f.debug_struct("ContentHash")
            .field("units", &units)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_message_ends_is_part_of_the_hash() {
        let of = |messages: &[&str]| {
            let mut fingerprint = ContentHash::new();
            for message in messages {
                fingerprint.message(message);
            }
            (
                fingerprint.units(),
                fingerprint.data_bytes(),
                fingerprint.hex(),
            )
        };
        assert_eq!(of(&["1", "23"]), of(&["1", "23"]));
        assert_ne!(of(&["1", "23"]).2, of(&["12", "3"]).2);
        assert_eq!(of(&["1", "23"]).1, 3);
    }

    #[test]
    fn where_bytes_are_cut_is_not() {
        let mut whole = ContentHash::new();
        whole.bytes(b"abc");
        let mut parts = ContentHash::new();
        parts.bytes(b"a");
        parts.bytes(b"bc");
        assert_eq!(whole.hex(), parts.hex());
        // As `printf abc | sha256sum` has it, so that users can compare.
        assert!(whole.hex().starts_with("ba7816bf8f01cfea"));
    }
}
