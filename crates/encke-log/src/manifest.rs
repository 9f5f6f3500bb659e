//! The tree's lists of its own files, verified before the tree reads them.
//!
//! Each keyspace of history has a file `current`, little-endian: the number of the newest list (8 bytes), the XXH3 checksum
//! of that list (16) and the kind of the checksum (1). The tree writes the checksum and does not look at it when it opens:
//! it reads counts from the list and makes room for as many entries, so that one flipped bit can end the process for want of
//! memory. Here the checksum is looked at first.

use crate::history::HistoryError;
use std::io;
use std::path::Path;

/// Verifies the newest list of every keyspace of a tree. There need not be any.
pub(crate) fn verify(history: &Path) -> Result<(), HistoryError> {
    let keyspaces = match std::fs::read_dir(history.join("keyspaces")) {
        Ok(keyspaces) => keyspaces,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    for keyspace in keyspaces {
        verify_keyspace(&keyspace?.path())?;
    }
    Ok(())
}

fn verify_keyspace(keyspace: &Path) -> Result<(), HistoryError> {
    let path = keyspace.join("current");
    let damaged =
        |path: &Path, what: &str| HistoryError::from(format!("{} {what}", path.display()));
    let current = match std::fs::read(&path) {
        Ok(current) => current,
        // A keyspace that was being made or removed when the process ended; the tree knows what to do.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let parts = current.split_first_chunk::<8>();
    let parts = parts.and_then(|(number, rest)| Some((number, rest.split_first_chunk::<16>()?)));
    let Some((number, (checksum, &[KIND_XXH3]))) = parts else {
        return Err(damaged(
            &path,
            "is damaged: it has another length or another kind of checksum",
        ));
    };
    let list = keyspace.join(format!("v{}", u64::from_le_bytes(*number)));
    let bytes = match std::fs::read(&list) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(damaged(
                &path,
                "is damaged: the list of files it names is not there",
            ));
        }
        Err(e) => return Err(e.into()),
    };
    if xxhash_rust::xxh3::xxh3_128(&bytes) != u128::from_le_bytes(*checksum) {
        return Err(damaged(&list, "is damaged: its checksum does not match"));
    }
    Ok(())
}

const KIND_XXH3: u8 = 0;
