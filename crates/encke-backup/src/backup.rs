//! Makes a backup.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::client::ServerSnapshot;
use crate::error::BackupError;
use crate::manifest::{BackupName, FORMAT, Hash, Manifest, PIECE_BYTES, SavedFile, SavedLog};
use crate::repository::Repository;
use crate::wire::FileListed;

/// What a backup has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// Its name.
    pub name: BackupName,
    /// Bytes of all files.
    pub bytes: u64,
    /// How many of the last backups before it are damaged, or of another version.
    pub damaged: usize,
    /// Bytes that were read from the server; the others are known from the backup before.
    pub bytes_read: u64,
    /// Bytes that were stored; the others were there.
    pub bytes_stored: u64,
}

/// Copies a snapshot of a running server, and gives it back. `progress` gets the bytes that are done, of all.
///
/// # Errors
/// The server or the storage fails. Then there is no new backup.
pub fn back_up(
    mut snapshot: ServerSnapshot,
    repository: &Repository,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupReport, BackupError> {
    let names = repository.backups()?;
    let name = BackupName::behind(&names, Timestamp::now());
    let bytes = snapshot.bytes();
    // It only saves reads.
    let (before, damaged) = repository.last_whole(&names)?;
    let mut report = BackupReport {
        name,
        bytes,
        damaged,
        bytes_read: 0,
        bytes_stored: 0,
    };
    let mut done = 0;
    let mut logs = Vec::new();
    let start = snapshot.list.start;
    let mut buffer = Vec::new();
    for (log, listed) in std::mem::take(&mut snapshot.list.logs)
        .into_iter()
        .enumerate()
    {
        let known = Known::of(before.as_ref(), log, listed.log_id, start);
        let mut files = Vec::with_capacity(listed.files.len());
        for (index, file) in listed.files.into_iter().enumerate() {
            let mut pieces = known.pieces(&file);
            loop {
                let at = pieces.len() as u64 * PIECE_BYTES;
                progress(done + at.min(file.bytes), bytes);
                if at >= file.bytes {
                    break;
                }
                buffer.resize((file.bytes - at).min(PIECE_BYTES) as usize, 0);
                let read = snapshot.read((log, index), at, &mut buffer)?;
                if read < buffer.len() {
                    let why = format!("{} has become shorter", file.name);
                    return Err(BackupError::Server(why));
                }
                report.bytes_read += read as u64;
                let hash = Hash::of(&buffer);
                if repository.add_piece(hash, &buffer)? {
                    report.bytes_stored += read as u64;
                }
                pieces.push(hash);
            }
            done += file.bytes;
            files.push(SavedFile {
                name: file.name,
                bytes: file.bytes,
                written_ns: file.written_ns,
                grows: file.grows,
                pieces,
            });
        }
        logs.push(SavedLog {
            log_id: listed.log_id,
            upto: listed.upto,
            directories: listed.directories,
            files,
        });
    }
    let manifest = Manifest {
        format: FORMAT,
        start,
        logs,
    };
    repository.add_manifest(name, &manifest)?;
    Ok(report)
}

/// The files of a log in the backup before.
struct Known<'m> {
    files: BTreeMap<&'m str, &'m SavedFile>,
    same_start: bool,
}

impl<'m> Known<'m> {
    fn of(before: Option<&'m Manifest>, log: usize, log_id: u64, start: u64) -> Known<'m> {
        let log = before.and_then(|before| before.logs.get(log));
        let files = log.filter(|log| log.log_id == log_id).map(|log| &log.files);
        let files = files.into_iter().flatten();
        Known {
            files: files.map(|file| (&*file.name, file)).collect(),
            same_start: before.is_some_and(|before| before.start == start),
        }
    }

    /// The pieces at the beginning of a file that are as they were.
    fn pieces(&self, file: &FileListed) -> Vec<Hash> {
        let Some(known) = self.files.get(&*file.name) else {
            return Vec::new();
        };
        let is_same = |known: &SavedFile| {
            known.written_ns.is_some()
                && (known.written_ns, known.bytes) == (file.written_ns, file.bytes)
        };
        match known.grows {
            false if is_same(known) => known.pieces.clone(),
            // What a segment had while it was the last one of this run of the server. A restart could have repaired it.
            true if self.same_start && known.bytes <= file.bytes => {
                let whole = (known.bytes / PIECE_BYTES) as usize;
                known.pieces[..whole].to_vec()
            }
            _ => Vec::new(),
        }
    }
}
