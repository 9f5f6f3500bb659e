//! Writes the files of a backup into an empty directory.

use std::path::Path;

use encke_log::LogCopy;

use crate::error::BackupError;
use crate::manifest::{Manifest, SavedLog};
use crate::repository::Repository;

/// What a restore has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// Logs, each with its last record.
    pub upto: Vec<u64>,
    /// Bytes of their files.
    pub bytes: u64,
}

/// Writes a backup into a directory that is empty or missing, which then is a data directory. `progress` gets the bytes that are done, of all.
///
/// # Errors
/// The directory is not empty, a piece is missing or damaged, or a file cannot be written. A part that was written is not taken for a
/// log.
pub fn restore(
    repository: &Repository,
    manifest: &Manifest,
    directory: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RestoreReport, BackupError> {
    let is_empty = match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(BackupError::io(directory, "list")(error)),
    };
    if !is_empty {
        let directory = directory.to_owned();
        return Err(BackupError::NotEmpty { directory });
    }
    let bytes = manifest.bytes();
    let directories = encke_log::arrange(directory, manifest.logs.len())?;
    let mut done = 0;
    for (log, directory) in manifest.logs.iter().zip(&directories) {
        restore_log(repository, log, directory, &mut |more| {
            done += more;
            progress(done, bytes);
        })?;
    }
    Ok(RestoreReport {
        upto: manifest.upto().collect(),
        bytes,
    })
}

fn restore_log(
    repository: &Repository,
    log: &SavedLog,
    directory: &Path,
    wrote: &mut dyn FnMut(u64),
) -> Result<(), BackupError> {
    let copy = LogCopy::begin(directory)?;
    for name in &log.directories {
        copy.make_directory(name)?;
    }
    for saved in &log.files {
        let mut file = copy.make_file(&saved.name)?;
        for (hash, bytes) in saved.pieces() {
            file.append(&repository.piece(hash, bytes)?)?;
            wrote(bytes as u64);
        }
        file.finish()?;
    }
    copy.complete()?;
    Ok(())
}
