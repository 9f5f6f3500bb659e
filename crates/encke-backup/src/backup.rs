//! Makes a backup.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;

use crate::client::{Patience, ServerSnapshot};
use crate::error::BackupError;
use crate::manifest::{BackupName, FORMAT, Hash, Manifest, PIECE_BYTES, SavedFile, SavedLog};
use crate::pieces::StoredPieces;
use crate::wire::FileListed;

/// The report of a backup.
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

/// Copies a snapshot of the server that runs on a data directory, and gives it back. Waits while the server is upgraded. `progress` gets the
/// bytes that are done, of all.
///
/// # Errors
/// The server or the storage fails, or the last backup is of another server. Then there is no new backup.
pub fn back_up(
    directory: &Path,
    pieces: &mut StoredPieces<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupReport, BackupError> {
    let repository = pieces.repository;
    let names = pieces.backups()?;
    let (before, damaged) = repository.last_whole(&names)?;
    // Before there is a snapshot, for which the server keeps what it removes.
    if let Some(before) = &before {
        pieces.has_all_of(before)?;
    }
    let mut report = BackupReport {
        name: BackupName::behind(&names, Timestamp::now()),
        bytes: 0,
        damaged,
        bytes_read: 0,
        bytes_stored: 0,
    };
    let mut patience = Patience::NotRunning;
    for attempt in 1.. {
        let snapshot = ServerSnapshot::take(directory, patience)?;
        report.name = BackupName::behind(&names, Timestamp::now());
        report.bytes = snapshot.bytes();
        if let Some(before) = &before
            && !before.is_of_server(&snapshot.log_ids())
        {
            return Err(BackupError::Place(OTHER_SERVER.to_owned()));
        }
        match store(snapshot, before.as_ref(), pieces, &mut report, progress) {
            Ok(manifest) => {
                pieces.settle()?;
                repository.add_manifest(report.name, &manifest)?;
                break;
            }
            // Pieces that are stored are not stored again.
            Err(BackupError::Gone { .. }) if attempt < ATTEMPTS_MAX => {
                patience = Patience::Returns;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

/// Stores what a snapshot has and the storage has not.
fn store(
    mut snapshot: ServerSnapshot,
    before: Option<&Manifest>,
    pieces: &mut StoredPieces<'_>,
    report: &mut BackupReport,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Manifest, BackupError> {
    let mut done = 0;
    let mut logs = Vec::new();
    let start = snapshot.list.start;
    let mut buffer = Vec::new();
    for (log, listed) in std::mem::take(&mut snapshot.list.logs)
        .into_iter()
        .enumerate()
    {
        let known = Known::of(before, log, listed.log_id, start);
        let mut files = Vec::with_capacity(listed.files.len());
        for (index, file) in listed.files.into_iter().enumerate() {
            let known = known.pieces(&file);
            let mut of_file = Vec::new();
            loop {
                let at = of_file.len() as u64 * PIECE_BYTES;
                progress(done + at.min(file.bytes), report.bytes);
                if at >= file.bytes {
                    break;
                }
                let bytes = (file.bytes - at).min(PIECE_BYTES);
                if let Some(hash) = known.get(of_file.len())
                    && pieces.is_sound(*hash, bytes)?
                {
                    of_file.push(*hash);
                    continue;
                }
                buffer.resize(bytes as usize, 0);
                let read = snapshot.read((log, index), at, &mut buffer)?;
                if read < buffer.len() {
                    let why = format!("{} has become shorter", file.name);
                    return Err(BackupError::Server(why));
                }
                report.bytes_read += bytes;
                let hash = Hash::of(&buffer);
                if pieces.add(hash, &buffer)? {
                    report.bytes_stored += bytes;
                }
                of_file.push(hash);
            }
            done += file.bytes;
            files.push(SavedFile {
                name: file.name,
                bytes: file.bytes,
                written_ns: file.written_ns,
                grows: file.grows,
                pieces: of_file,
            });
        }
        logs.push(SavedLog {
            log_id: listed.log_id,
            upto: listed.upto,
            directories: listed.directories,
            files,
        });
    }
    Ok(Manifest {
        format: FORMAT,
        start,
        logs,
    })
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

/// The error when the last backup is of another server.
const OTHER_SERVER: &str = "the backups there are of another server: use another directory or prefix for those of this one";

/// How often a snapshot is taken, while servers go away.
const ATTEMPTS_MAX: usize = 5;
