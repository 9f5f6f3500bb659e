//! The storage engine's lists of its tables, read before the engine reads them.
//!
//! Each keyspace has a directory `keyspaces/N`. In it, the file `current`, little-endian, holds the version of the
//! newest list (8 bytes), the XXH3 checksum of that list (16) and the kind of the checksum (1). The list `vVERSION`
//! names the tables of the keyspace, which are files in `tables`, with the XXH3 checksum of each. The engine writes
//! these checksums and does not compare them when it opens. It reserves memory for the number of entries in a list
//! unchecked, deletes files that it does not know, and makes missing ones again.

use crate::history::error::HistoryError;
use crate::segments::frame::{u32_at, u64_at};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The content of `current`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurrentFile {
    /// Version of the newest list.
    pub(crate) version: u64,
    /// Checksum of that list.
    pub(crate) checksum: u128,
}

/// A list of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) current: CurrentFile,
    pub(crate) tables: Vec<TableEntry>,
    /// The content of its file.
    pub(crate) content: Vec<u8>,
}

/// One table in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    /// The name of its file.
    pub(crate) id: u64,
    /// The checksum of its file.
    pub(crate) checksum: u128,
}

impl CurrentFile {
    pub(crate) fn read(keyspace: &Path) -> Result<CurrentFile, HistoryError> {
        let path = keyspace.join(CURRENT);
        let content = read(&path)?;
        let parts = content.split_first_chunk::<8>();
        let parts =
            parts.and_then(|(version, rest)| Some((version, rest.split_first_chunk::<16>()?)));
        let Some((version, (checksum, &[KIND_XXH3]))) = parts else {
            return Err(damaged(
                &path,
                "it has another length or another kind of checksum",
            ));
        };
        Ok(CurrentFile {
            version: u64::from_le_bytes(*version),
            checksum: u128::from_le_bytes(*checksum),
        })
    }

    /// The bytes of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut content = self.version.to_le_bytes().to_vec();
        content.extend(self.checksum.to_le_bytes());
        content.push(KIND_XXH3);
        content
    }

    /// The file of the list.
    pub(crate) fn list_path(&self, keyspace: &Path) -> PathBuf {
        keyspace.join(format!("v{}", self.version))
    }

    /// Reads the list with this version and this checksum.
    pub(crate) fn list(self, keyspace: &Path) -> Result<List, HistoryError> {
        let path = self.list_path(keyspace);
        let content = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let (current, version) =
                    (keyspace.join(CURRENT).display().to_string(), self.version);
                return Err(HistoryError::from(format!(
                    "{current} names the list v{version}, and {} is missing",
                    path.display()
                )));
            }
            content => content.map_err(|e| named(&path, &e))?,
        };
        List::parse(self, content).map_err(|what| damaged(&path, what))
    }
}

impl List {
    /// The newest list of a keyspace.
    pub(crate) fn newest(keyspace: &Path) -> Result<List, HistoryError> {
        CurrentFile::read(keyspace)?.list(keyspace)
    }

    /// Reads a list from its content, whose checksum must be the one in `current`.
    pub(crate) fn parse(current: CurrentFile, content: Vec<u8>) -> Result<List, &'static str> {
        if xxhash_rust::xxh3::xxh3_128(&content) != current.checksum {
            return Err("its checksum does not match");
        }
        let tables = tables(&content).ok_or("it is not a list of tables")?;
        Ok(List {
            current,
            tables,
            content,
        })
    }

    /// The list with only the tables that `keep` accepts, under the same version.
    pub(crate) fn without(&self, keep: impl Fn(&TableEntry) -> bool) -> Result<List, HistoryError> {
        let failed = |_| HistoryError::from("a list of tables can't be rewritten".to_owned());
        let mut out = io::Cursor::new(Vec::new());
        let mut writer = sfa::Writer::from_writer(&mut out);
        let sections = sections(&self.content).unwrap_or_default();
        for (name, section) in sections {
            let section = match &*name {
                TABLES => filter_tables(&section, &keep),
                _ => Some(section),
            };
            writer.start(name)?;
            io::Write::write_all(&mut writer, &section.unwrap_or_default())?;
        }
        writer.finish().map_err(failed)?;
        let content = out.into_inner();
        let current = CurrentFile {
            version: self.current.version,
            checksum: xxhash_rust::xxh3::xxh3_128(&content),
        };
        List::parse(current, content).map_err(|what| HistoryError::from(what.to_owned()))
    }
}

impl TableEntry {
    pub(crate) fn path(&self, keyspace: &Path) -> PathBuf {
        keyspace.join("tables").join(self.id.to_string())
    }

    /// Reads the whole table and compares its checksum.
    pub(crate) fn verify(&self, keyspace: &Path) -> Result<(), HistoryError> {
        let path = self.path(keyspace);
        let mut file = std::fs::File::open(&path).map_err(|e| named(&path, &e))?;
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let mut buffer = vec![0; WINDOW_BYTES];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => hasher.update(&buffer[..bytes]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(named(&path, &e)),
            }
        }
        if hasher.digest128() != self.checksum {
            return Err(damaged(&path, "its checksum does not match"));
        }
        Ok(())
    }

    /// The length of the file and the hash of its end, where a table has its metadata.
    pub(crate) fn fingerprint(&self, keyspace: &Path) -> Result<Fingerprint, HistoryError> {
        let path = self.path(keyspace);
        let look = || {
            let file = std::fs::File::open(&path)?;
            let bytes = file.metadata()?.len();
            let mut end = vec![0; bytes.min(END_BYTES) as usize];
            let from = bytes - end.len() as u64;
            file.read_exact_at(&mut end, from)?;
            Ok(Fingerprint {
                bytes,
                end_hash: xxhash_rust::xxh3::xxh3_64(&end),
            })
        };
        look().map_err(|e| named(&path, &e))
    }
}

/// What identifies the content of a table without reading it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Length of the file.
    pub(crate) bytes: u64,
    /// XXH3 of its last 4 KiB.
    pub(crate) end_hash: u64,
}

/// The sections of a list, in order.
fn sections(content: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut cursor = io::Cursor::new(content);
    let reader = sfa::Reader::from_reader(&mut cursor).ok()?;
    let mut sections = Vec::new();
    for entry in reader.toc().iter() {
        cursor.seek(SeekFrom::Start(entry.pos())).ok()?;
        let mut section = vec![0; usize::try_from(entry.len()).ok()?.min(content.len())];
        cursor.read_exact(&mut section).ok()?;
        sections.push((entry.name().to_vec(), section));
    }
    Some(sections)
}

/// The tables of a list.
fn tables(content: &[u8]) -> Option<Vec<TableEntry>> {
    let sections = sections(content)?;
    let (_, section) = sections.iter().find(|(name, _)| name == TABLES)?;
    let mut tables = Vec::new();
    walk_tables(section, &mut |step| {
        if let Step::Table(entry, _) = step {
            tables.push(entry);
        }
    })?;
    Some(tables)
}

/// The section of the tables with only those that `keep` accepts.
fn filter_tables(section: &[u8], keep: &impl Fn(&TableEntry) -> bool) -> Option<Vec<u8>> {
    let mut levels: Vec<Vec<Vec<&[u8]>>> = Vec::new();
    walk_tables(section, &mut |step| match step {
        Step::Level => levels.push(Vec::new()),
        Step::Run => levels
            .last_mut()
            .into_iter()
            .for_each(|level| level.push(Vec::new())),
        Step::Table(entry, bytes) => {
            let run = levels.last_mut().and_then(|level| level.last_mut());
            run.into_iter()
                .filter(|_| keep(&entry))
                .for_each(|run| run.push(bytes));
        }
    })?;
    let mut out = vec![levels.len() as u8];
    for mut level in levels {
        level.retain(|run| !run.is_empty());
        out.push(level.len() as u8);
        for run in level {
            out.extend((run.len() as u32).to_le_bytes());
            out.extend(run.concat());
        }
    }
    Some(out)
}

/// One step through the section of the tables.
enum Step<'s> {
    Level,
    Run,
    /// A table, and its bytes in the section.
    Table(TableEntry, &'s [u8]),
}

/// Walks through the section of the tables: the number of levels (1 byte); for each the number of its runs (1); for each the number of
/// its tables (4); for each its id (8), the kind of its checksum (1), the checksum (16) and a sequence number of the engine (8).
fn walk_tables<'s>(mut section: &'s [u8], each: &mut dyn FnMut(Step<'s>)) -> Option<()> {
    let mut take = |bytes: usize| {
        let (taken, rest) = section.split_at_checked(bytes)?;
        section = rest;
        Some(taken)
    };
    for _ in 0..take(1)?[0] {
        each(Step::Level);
        for _ in 0..take(1)?[0] {
            each(Step::Run);
            for _ in 0..u32_at(take(4)?, 0) {
                let bytes = take(8 + 1 + 16 + 8)?;
                let (id, kind) = (u64_at(bytes, 0), bytes[8]);
                if kind != KIND_XXH3 {
                    return None;
                }
                let checksum = u128::from_le_bytes(*bytes[9..].first_chunk()?);
                each(Step::Table(TableEntry { id, checksum }, bytes));
            }
        }
    }
    Some(())
}

fn read(path: &Path) -> Result<Vec<u8>, HistoryError> {
    std::fs::read(path).map_err(|e| named(path, &e))
}

/// Adds the path to an error of the operating system.
pub(crate) fn named(path: &Path, error: &io::Error) -> HistoryError {
    match error.kind() {
        io::ErrorKind::NotFound => HistoryError::from(format!("{} is missing", path.display())),
        kind => HistoryError::from(io::Error::new(kind, format!("{}: {error}", path.display()))),
    }
}

pub(crate) fn damaged(path: &Path, what: &str) -> HistoryError {
    HistoryError::from(format!("{} is damaged: {what}", path.display()))
}

/// The file that names the newest list.
pub(crate) const CURRENT: &str = "current";
const TABLES: &[u8] = b"tables";
const KIND_XXH3: u8 = 0;
/// How much of the end of a table is hashed.
const END_BYTES: u64 = 4 << 10;
const WINDOW_BYTES: usize = 1 << 20;
