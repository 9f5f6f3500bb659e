//! Fingerprints of tables: a start compares the length and the end of each table instead of reading history whole.
//!
//! The file `history/fingerprints` is a cache. The checksum of a table in its list is decisive; a table without a
//! fingerprint is read whole and compared with it. The cache also has a copy of each list, which a repair uses when the
//! list itself is damaged.

use crate::history::error::HistoryError;
use crate::history::verify::lists::{CurrentFile, Fingerprint, List, named};
use crate::segments::frame::{u32_at, u64_at};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The known tables of a history, by the number of their keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprints(BTreeMap<u64, KnownTables>);

/// The known tables of a keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownTables {
    list: List,
    /// By the id and the checksum of the table.
    tables: HashMap<(u64, u128), Fingerprint>,
}

impl Fingerprints {
    /// Reads the cache of a history. A missing or unsound cache is empty.
    pub(crate) fn read(history: &Path) -> Fingerprints {
        let content = std::fs::read(history.join(FILE)).unwrap_or_default();
        Fingerprints::decode(&content).unwrap_or_default()
    }

    /// Writes the cache. It is not synced: after a crash it may be missing.
    ///
    /// # Errors
    /// It could not be written; the old one is still there.
    pub(crate) fn write(&self, history: &Path) -> std::io::Result<()> {
        let new = history.join(format!("{FILE}.new"));
        std::fs::write(&new, self.encode())?;
        std::fs::rename(new, history.join(FILE))
    }

    /// The fingerprint of a table, if it is known.
    pub(crate) fn of(&self, keyspace: u64, (id, checksum): (u64, u128)) -> Option<Fingerprint> {
        self.0.get(&keyspace)?.tables.get(&(id, checksum)).copied()
    }

    /// The list of a keyspace at the last update.
    pub(crate) fn list(&self, keyspace: u64) -> Option<&List> {
        self.0.get(&keyspace).map(|known| &known.list)
    }

    /// Sets the fingerprints of all tables of a list.
    pub(crate) fn set(
        &mut self,
        keyspace: u64,
        list: List,
        tables: HashMap<(u64, u128), Fingerprint>,
    ) {
        self.0.insert(keyspace, KnownTables { list, tables });
    }

    /// Updates a keyspace whose list may be newer than the known one. Returns the content of its `current`, and whether
    /// that is new.
    ///
    /// # Errors
    /// The list or a new table could not be read.
    pub(crate) fn update(
        &mut self,
        keyspace: u64,
        directory: &Path,
    ) -> Result<(CurrentFile, bool), HistoryError> {
        loop {
            let current = CurrentFile::read(directory)?;
            if self
                .list(keyspace)
                .is_some_and(|list| list.current == current)
            {
                return Ok((current, false));
            }
            match self.note(keyspace, directory, current) {
                Ok(()) => {
                    // The engine renames the file before it makes its name durable.
                    let synced = std::fs::File::open(directory).and_then(|at| at.sync_all());
                    synced.map_err(|e| named(directory, &e))?;
                    return Ok((current, true));
                }
                // Compaction replaces lists and tables while they are read.
                Err(_) if CurrentFile::read(directory)? != current => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn note(
        &mut self,
        keyspace: u64,
        directory: &Path,
        current: CurrentFile,
    ) -> Result<(), HistoryError> {
        let list = current.list(directory)?;
        let mut tables = HashMap::with_capacity(list.tables.len());
        for table in &list.tables {
            let key = (table.id, table.checksum);
            let fingerprint = match self.of(keyspace, key) {
                Some(known) => known,
                None => table.fingerprint(directory)?,
            };
            tables.insert(key, fingerprint);
        }
        self.set(keyspace, list, tables);
        Ok(())
    }

    /// Drops keyspaces that `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.0.retain(|keyspace, _| keep(*keyspace));
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for (keyspace, KnownTables { list, tables }) in &self.0 {
            out.extend(keyspace.to_le_bytes());
            out.extend(list.current.version.to_le_bytes());
            out.extend(list.current.checksum.to_le_bytes());
            out.extend((list.content.len() as u32).to_le_bytes());
            out.extend(&list.content);
            out.extend((tables.len() as u32).to_le_bytes());
            let mut tables: Vec<_> = tables.iter().collect();
            tables.sort_unstable_by_key(|(key, _)| **key);
            for ((id, checksum), fingerprint) in tables {
                out.extend(id.to_le_bytes());
                out.extend(checksum.to_le_bytes());
                out.extend(fingerprint.bytes.to_le_bytes());
                out.extend(fingerprint.end_hash.to_le_bytes());
            }
        }
        let checksum = crc32c::crc32c(&out);
        out.extend(checksum.to_le_bytes());
        out
    }

    fn decode(content: &[u8]) -> Option<Fingerprints> {
        let (content, checksum) = content.split_at_checked(content.len().checked_sub(4)?)?;
        if crc32c::crc32c(content) != u32_at(checksum, 0) {
            return None;
        }
        let mut rest = content.strip_prefix(&MAGIC)?;
        let mut take = |bytes: usize| {
            let (taken, left) = rest.split_at_checked(bytes)?;
            rest = left;
            Some(taken)
        };
        let mut fingerprints = Fingerprints::default();
        while let Some(keyspace) = take(8) {
            let current = CurrentFile {
                version: u64_at(take(8)?, 0),
                checksum: u128::from_le_bytes(*take(16)?.first_chunk()?),
            };
            let bytes = u32_at(take(4)?, 0) as usize;
            let list = List::parse(current, take(bytes)?.to_vec()).ok()?;
            let mut tables = HashMap::new();
            for _ in 0..u32_at(take(4)?, 0) {
                let id = u64_at(take(8)?, 0);
                let checksum = u128::from_le_bytes(*take(16)?.first_chunk()?);
                let fingerprint = Fingerprint {
                    bytes: u64_at(take(8)?, 0),
                    end_hash: u64_at(take(8)?, 0),
                };
                tables.insert((id, checksum), fingerprint);
            }
            fingerprints.set(u64_at(keyspace, 0), list, tables);
        }
        Some(fingerprints)
    }
}

/// The name of the cache in the directory of history.
const FILE: &str = "fingerprints";
const MAGIC: [u8; 8] = *b"ENCKEFPR";
