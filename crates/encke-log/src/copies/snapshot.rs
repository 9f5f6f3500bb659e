//! A snapshot of an open log: the files of a copy that opens as the log of that moment would.
//!
//! Nothing waits for a snapshot but the background work, for the milliseconds in which it is taken. It relies on three
//! properties of the files:
//!
//! - A segment only grows, and an open segment can be read after it is removed. So the copy gets its first bytes, up to the
//!   end of the last published record. An open continues in a new segment, as behind a torn tail.
//! - Tables of history never change. The snapshot links them, so that compaction cannot remove them meanwhile.
//! - A directory may always hold more than its superblock states. The superblock is read first, then the lists of tables,
//!   then the end of the log. The background work waits, so what the superblock states is all there.

use crate::disk::file_name;
use crate::disk::files::Files;
use crate::disk::{Disk, DiskFile};
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::verify::inspect;
use crate::history::verify::lists::{CURRENT, CurrentFile, List};
use crate::ids::Sequence;
use crate::segments::scan::{Scan, Step, WINDOW_BYTES};
use crate::segments::segment::Segment;
use crate::shared::Shared;
use crate::superblock;
use crate::superblock::statement::{LastSegment, StatedKeyspace, Statement};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tempfile::TempDir;

/// The files of a copy of a log, as they were at one moment. Dropping it releases the space of what the log has removed
/// since.
#[derive(Debug)]
pub struct LogSnapshot<D: Disk = Files> {
    files: Vec<Entry<D::File>>,
    directories: Vec<String>,
    log_id: u64,
    upto: Sequence,
    /// Links to the tables of history.
    _links: Option<TempDir>,
}

/// The snapshot of a log cannot be taken. The log is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The disk could not be read, or the links to tables could not be made.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// History could not be read.
    #[error("cannot read the history in {}: {reason}", path.display())]
    History {
        /// Where history is.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A published record is not in its segment.
    #[error("{} is damaged: there is no sound frame of record {sequence}", file.display())]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// The record.
        sequence: Sequence,
    },
}

/// A file of the copy.
#[derive(Debug)]
struct Entry<F> {
    name: String,
    bytes: u64,
    content: Content<F>,
}

#[derive(Debug)]
enum Content<F> {
    Segment(Arc<Segment<F>>),
    /// The link to a table.
    Table(PathBuf),
    Bytes(Vec<u8>),
}

impl<D: Disk> LogSnapshot<D> {
    pub(crate) fn take(shared: &Shared<D>) -> Result<LogSnapshot<D>, SnapshotError> {
        let background = shared.background.lock();
        shared
            .state_history(|_| {})
            .map_err(|error| of_history(shared, error))?;
        let mut statement = shared.superblock.statement();
        let mut files = Vec::new();
        let mut directories = Vec::new();
        let mut links = None;
        if let (Some(history), Some(stated)) = (&shared.history, &mut statement.history) {
            let linked = link_history(history, &mut stated.keyspaces, &mut files, &mut directories);
            links = Some(linked.map_err(|error| of_history(shared, error))?);
        }
        let (segments, upto) = {
            let index = shared.index.read();
            let done = index.done.iter().map(|done| &done.segment);
            let waiting = index.segments.iter().map(|waiting| &waiting.segment);
            let segments: Vec<_> = done.chain(waiting).cloned().collect();
            (segments, index.published)
        };
        drop(background);
        let last = segments.last().cloned();
        for segment in segments {
            files.push(Entry {
                name: segment.name.clone(),
                bytes: segment.bytes,
                content: Content::Segment(segment),
            });
        }
        if let (Some(last), Some(entry)) = (last, files.last_mut()) {
            entry.bytes = end_of(&last, upto, &shared.directory)?;
            statement.last = Some(LastSegment {
                number: last.number,
                first: last.first,
                bytes: entry.bytes,
            });
        }
        statement.durable_upto = upto;
        files.extend(superblocks(&statement));
        Ok(LogSnapshot {
            files,
            directories,
            log_id: statement.log_id,
            upto,
            _links: links,
        })
    }

    /// The identity of the log, which each copy of it has.
    pub fn log_id(&self) -> u64 {
        self.log_id
    }

    /// The last record of the copy.
    pub fn upto(&self) -> Sequence {
        self.upto
    }

    /// The directories of the copy, outer ones first: some hold no file.
    pub fn directories(&self) -> &[String] {
        &self.directories
    }

    /// The names of the files, relative to the directory of the log, and their sizes in bytes.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.files.iter().map(|file| (&*file.name, file.bytes))
    }

    /// When a file was last written to, by its index in [`LogSnapshot::files`], if the log has it as a file. A file of the same log, name,
    /// size and time is the same one, unless it is the last segment, which grows.
    pub fn written_at(&self, file: usize) -> Option<SystemTime> {
        match &self.files.get(file)?.content {
            Content::Segment(segment) => segment.file.written_at().ok(),
            Content::Table(link) => link.metadata().and_then(|table| table.modified()).ok(),
            Content::Bytes(_) => None,
        }
    }

    /// The index of the last segment, which grows, in [`LogSnapshot::files`].
    pub fn last_segment(&self) -> Option<usize> {
        let is_segment = |file: &Entry<_>| matches!(file.content, Content::Segment(_));
        self.files.iter().rposition(is_segment)
    }

    /// Reads a file, by its index in [`LogSnapshot::files`], from `offset` until `buffer` is full or the file ends. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// There is no such file, or it could not be read.
    pub fn read(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let entry = self.files.get(file).ok_or(io::ErrorKind::NotFound)?;
        let left = entry.bytes.saturating_sub(offset);
        let bytes = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..bytes];
        let read = match &entry.content {
            Content::Segment(segment) => segment.file.read_at(buffer, offset)?,
            Content::Table(link) => {
                FileExt::read_exact_at(&File::open(link)?, buffer, offset)?;
                bytes
            }
            Content::Bytes(content) => {
                // Empty behind the end.
                let content = content.get(offset as usize..).unwrap_or_default();
                buffer.copy_from_slice(&content[..bytes]);
                bytes
            }
        };
        match read == bytes {
            true => Ok(bytes),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Adds the files of history. Returns the directory of the links to its tables.
fn link_history<F>(
    history: &History,
    keyspaces: &mut [StatedKeyspace],
    files: &mut Vec<Entry<F>>,
    directories: &mut Vec<String>,
) -> Result<TempDir, HistoryError> {
    let place = history.path().parent().unwrap_or(history.path());
    let links = tempfile::Builder::new().prefix(LINKS).tempdir_in(place)?;
    let bytes = |name: String, content: Vec<u8>| Entry {
        name,
        bytes: content.len() as u64,
        content: Content::Bytes(content),
    };
    directories.extend(["history".to_owned(), "history/keyspaces".to_owned()]);
    for name in ["identity", "version"] {
        let content = std::fs::read(history.path().join(name))?;
        files.push(bytes(format!("history/{name}"), content));
    }
    for keyspace in keyspaces {
        let of_keyspace = format!("history/keyspaces/{}", keyspace.id);
        let directory = inspect::keyspaces(history.path()).join(keyspace.id.to_string());
        let copies = links.path().join(keyspace.id.to_string());
        std::fs::create_dir(&copies)?;
        directories.extend([of_keyspace.clone(), format!("{of_keyspace}/tables")]);
        let list = link_tables(&directory, &copies)?;
        (keyspace.version, keyspace.checksum) = (list.current.version, list.current.checksum);
        let identity = std::fs::read(directory.join("identity"))?;
        files.push(bytes(format!("{of_keyspace}/identity"), identity));
        let current = list.current.encode();
        files.push(bytes(format!("{of_keyspace}/{CURRENT}"), current));
        let version = format!("{of_keyspace}/v{}", list.current.version);
        files.push(bytes(version, list.content));
        for table in &list.tables {
            let link = copies.join(table.id.to_string());
            files.push(Entry {
                name: format!("{of_keyspace}/tables/{}", table.id),
                bytes: link.metadata()?.len(),
                content: Content::Table(link),
            });
        }
    }
    Ok(links)
}

/// Links the tables of a keyspace's newest list.
fn link_tables(keyspace: &Path, copies: &Path) -> Result<List, HistoryError> {
    loop {
        let current = CurrentFile::read(keyspace)?;
        let linked = current.list(keyspace).and_then(|list| {
            for table in &list.tables {
                let copy = copies.join(table.id.to_string());
                match std::fs::hard_link(table.path(keyspace), copy) {
                    // From the list before.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    linked => linked?,
                }
            }
            Ok(list)
        });
        match linked {
            // Compaction has replaced the list and its tables meanwhile.
            Err(_) if CurrentFile::read(keyspace)? != current => {}
            linked => return linked,
        }
    }
}

/// The end of the record `upto` in the segment that is written to.
fn end_of<F: DiskFile>(
    segment: &Segment<F>,
    upto: Sequence,
    directory: &Path,
) -> Result<u64, SnapshotError> {
    let file = || directory.join(&segment.name);
    let mut scan = Scan::new(segment, WINDOW_BYTES);
    while scan.due() <= upto {
        let sequence = scan.due();
        let step = scan.next().map_err(|source| SnapshotError::Io {
            path: file(),
            action: "read",
            source,
        })?;
        if let Step::End(..) = step {
            return Err(SnapshotError::Damaged {
                file: file(),
                sequence,
            });
        }
    }
    Ok(scan.position())
}

/// Both copies of the superblock.
fn superblocks<F>(statement: &Statement) -> impl Iterator<Item = Entry<F>> {
    let copies = superblock::NAMES.into_iter().zip(1..);
    copies.map(|(name, generation)| {
        let content = superblock::content_of(statement, generation);
        Entry {
            name: name.to_owned(),
            bytes: content.len() as u64,
            content: Content::Bytes(content),
        }
    })
}

fn of_history<D: Disk>(shared: &Shared<D>, error: HistoryError) -> SnapshotError {
    let path = shared.history.as_ref().map(History::path);
    SnapshotError::History {
        path: path.unwrap_or(&shared.directory).to_owned(),
        reason: error.reason,
    }
}

/// Whether the copy of a log may have a file or a directory of this name. A name from elsewhere must be checked before it
/// is used.
pub fn is_name_in_copy(name: &str) -> bool {
    let is_number = |text: &str| text.parse::<u64>().is_ok_and(|no| no.to_string() == text);
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        [file] => {
            file == "history"
                || superblock::NAMES.contains(&file)
                || file_name::first_of(file).is_some()
        }
        ["history", file] => ["identity", "version", "keyspaces"].contains(&file),
        ["history", "keyspaces", keyspace] => is_number(keyspace),
        ["history", "keyspaces", keyspace, file] => {
            let is_list = file.strip_prefix('v').is_some_and(is_number);
            is_number(keyspace) && (is_list || ["identity", CURRENT, "tables"].contains(&file))
        }
        ["history", "keyspaces", keyspace, "tables", table] => {
            is_number(keyspace) && is_number(table)
        }
        _ => false,
    }
}

/// Removes the links of snapshots that a process has left. The log must be locked.
pub(crate) fn remove_left(history: &Path) -> io::Result<()> {
    let Some(place) = history.parent() else {
        return Ok(());
    };
    let entries = match std::fs::read_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(LINKS) && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The first part of the name of a directory with links to tables. It lies beside history, on the same disk.
const LINKS: &str = "copy.links-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_directory_are_no_names_of_a_copy() {
        for name in [
            "superblock-0",
            "00000000000000000001.segment",
            "history",
            "history/identity",
            "history/keyspaces/12/v3",
            "history/keyspaces/12/current",
            "history/keyspaces/12/tables",
            "history/keyspaces/12/tables/7",
        ] {
            assert!(is_name_in_copy(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "lock",
            "/etc/passwd",
            "../superblock-0",
            "superblock-2",
            "1.segment",
            "history/..",
            "history/keyspaces/../v3",
            "history/keyspaces/+1/v3",
            "history/keyspaces/1/tables/../7",
            "history/keyspaces/1/tables/7/8",
        ] {
            assert!(!is_name_in_copy(name), "{name}");
        }
    }
}
