//! Writes the files of a backup into an empty directory.

use std::path::Path;

use encke_log::{LogCopy, MayHold, UnfinishedDirectory};

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

/// Writes a backup into a directory that is empty, missing or left by an interrupted restore, which then is a data directory. `progress` gets
/// the bytes that are done, of all.
///
/// # Errors
/// The directory is not empty, a piece is missing or damaged, or a file cannot be written. Servers and commands refuse the directory until another
/// restore into it has ended.
pub fn restore(
    repository: &Repository,
    manifest: &Manifest,
    directory: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RestoreReport, BackupError> {
    let mut unfinished = UnfinishedDirectory::begin(directory, RESTORE, MayHold::Nothing)?;
    let bytes = manifest.bytes();
    let directories = unfinished.make_logs(manifest.logs.len())?;
    let mut done = 0;
    for (log, directory) in manifest.logs.iter().zip(&directories) {
        restore_log(repository, log, directory, &mut |more| {
            done += more;
            progress(done, bytes);
        })?;
    }
    unfinished.finish()?;
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

/// The command that an interrupted restore names.
const RESTORE: &str = "log restore";
