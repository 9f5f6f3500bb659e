//! Getting out of a damaged history what can be read, and making a sound one of it.
//!
//! A block whose checksum does not match can't be read, and neither can what other tables have between its first and its
//! last key. The first key behind it is found by trying. What is missing then and still in a segment is taken from there.

use crate::Sequence;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::generations::{self, Generations};
use crate::history::{History, HistoryError, Put};
use crate::ingest::ingest_into;
use crate::retention::Class;
use crate::sort::Sorted;
use crate::stored::of_record_key;
use crate::survey::Surveyed;
use crate::tree::sync_parent;
use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

/// What can't be read of one keyspace: everything behind the one key, and before the other. Empty keys are the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) keyspace: String,
    pub(crate) after: Vec<u8>,
    pub(crate) before: Vec<u8>,
    pub(crate) reason: String,
}

impl Gap {
    /// Which records or entries may be in it.
    pub(crate) fn text(&self) -> String {
        let end = |key: &[u8], none: &str| match of_record_key(key) {
            Some((stream, sequence)) if self.is_of_records() => {
                format!("stream {stream}, record {sequence}")
            }
            _ if key.is_empty() => none.to_owned(),
            _ => format!("the key {}", key.escape_ascii()),
        };
        format!(
            "history can't be read behind {} and before {} ({}: {})",
            end(&self.after, "its beginning"),
            end(&self.before, "its end"),
            self.keyspace,
            self.reason
        )
    }

    pub(crate) fn is_of_records(&self) -> bool {
        generations::of_name(&self.keyspace).is_some()
    }
}

/// Takes the key and the value of an entry.
type Each<'e> = &'e mut dyn FnMut(&[u8], &[u8]) -> Result<(), HistoryError>;

/// What can't be read of a history.
pub(crate) fn gaps(history: &History) -> Result<Vec<Gap>, HistoryError> {
    let mut gaps = Vec::new();
    for keyspace in history.keyspaces()? {
        gaps.extend(read_through(&keyspace, &mut |_, _| Ok(()))?);
    }
    Ok(gaps)
}

/// Makes a sound history of what can be read of a damaged one and of what sound segments have, and puts it in its place;
/// the damaged one stays beside it under the name `aside`.
pub(crate) fn rebuild<D: Disk>(
    history: History,
    history_upto: Sequence,
    surveyed: &[Surveyed<D::File>],
    aside: &Path,
) -> Result<(), OpenError> {
    let path = history.path().to_owned();
    let beside = path.with_extension("repaired");
    let failed = |e: HistoryError| e.on_open(&beside, "write to");
    if beside.exists() {
        std::fs::remove_dir_all(&beside).map_err(|e| failed(e.into()))?;
    }
    let rebuilt = History::open(beside.clone(), CACHE_BYTES)?;
    let copied = history.keyspaces().and_then(|keyspaces| {
        for keyspace in keyspaces {
            copy(&keyspace, &rebuilt)?;
        }
        rebuilt.open_generations()
    });
    copied.map_err(failed)?;
    for (i, found) in surveyed.iter().enumerate() {
        let next = surveyed.get(i + 1).map_or(found.end, |next| next.first);
        let sound = found.problem.is_none() && next - 1 <= history_upto;
        if let Some(segment) = found
            .segment
            .as_ref()
            .filter(|_| sound && next > found.first)
        {
            let mut sorted = Sorted::of(segment, next).map_err(failed)?;
            for class in sorted.classes() {
                rebuilt
                    .ingest_again(class, segment.first, |put| sorted.put(class, put))
                    .map_err(failed)?;
            }
        }
    }
    rebuilt.persist().map_err(failed)?;
    rebuilt.close();
    history.close();
    // The damaged one goes first: if this ends in between, there is none, and opening is refused until it is repaired again.
    std::fs::rename(&path, aside)
        .and_then(|()| std::fs::rename(&beside, &path))
        .and_then(|()| sync_parent(&path))
        .map_err(|e| OpenError::io(&path, "rename", e))
}

/// Ends a rebuild that was interrupted when it was all but done.
pub(crate) fn finish_interrupted(path: &Path) -> std::io::Result<()> {
    let beside = path.with_extension("repaired");
    if path.exists() || !beside.exists() {
        return Ok(());
    }
    std::fs::rename(&beside, path)?;
    sync_parent(path)
}

/// Copies what can be read of a keyspace, a bounded part at a time.
fn copy(from: &Keyspace, to: &History) -> Result<(), HistoryError> {
    let mut part: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut bytes = 0;
    read_through(from, &mut |key, value| {
        part.push((key.to_vec(), value.to_vec()));
        bytes += key.len() + value.len();
        if bytes >= PART_BYTES {
            to.put_all(from.name(), &std::mem::take(&mut part))?;
            bytes = 0;
        }
        Ok(())
    })?;
    to.put_all(from.name(), &part)
}

/// Gives `each` every entry that can be read, in the order of keys; says what can't.
fn read_through(keyspace: &Keyspace, each: Each<'_>) -> Result<Vec<Gap>, HistoryError> {
    let mut gaps = Vec::new();
    let mut from = Vec::new();
    let mut last = Vec::new();
    loop {
        let mut failed = None;
        for pair in keyspace.range(from.clone()..) {
            match pair.into_inner() {
                Ok((key, value)) => {
                    each(&key, &value)?;
                    last = key.to_vec();
                }
                Err(error) => {
                    failed = Some(error.to_string());
                    break;
                }
            }
        }
        let Some(reason) = failed else {
            return Ok(gaps);
        };
        let next = first_behind(keyspace, &last.clone().max(from));
        gaps.push(Gap {
            keyspace: keyspace.name().to_string(),
            after: last.clone(),
            before: next.clone().unwrap_or_default(),
            reason,
        });
        match next {
            Some(next) => from = next,
            None => return Ok(gaps),
        }
    }
}

/// The first key behind a damaged place that begins somewhere behind `after`, if there is one.
fn first_behind(keyspace: &Keyspace, after: &[u8]) -> Option<Vec<u8>> {
    let from = number(after);
    let probe = |at: u128| {
        keyspace
            .range(at.to_be_bytes()..)
            .next()
            .map(|pair| pair.key())
    };
    // Steps that grow, until something can be read or there is nothing more.
    let (mut unreadable, mut step) = (from, 1_u128);
    let mut found = loop {
        let at = from.checked_add(step)?;
        match probe(at) {
            None => break (at, None),
            Some(Ok(key)) => break (at, Some(key)),
            Some(Err(_)) => unreadable = at,
        }
        step = step.checked_mul(2)?;
    };
    // Then back to where it begins.
    while found.0 - unreadable > 1 {
        let at = unreadable + (found.0 - unreadable) / 2;
        match probe(at) {
            None => found = (at, None),
            Some(Ok(key)) => found = (at, Some(key)),
            Some(Err(_)) => unreadable = at,
        }
    }
    found.1.map(|key| key.to_vec())
}

/// The first bytes of a key as a number.
fn number(key: &[u8]) -> u128 {
    let mut first = [0; 16];
    let bytes = key.len().min(16);
    first[..bytes].copy_from_slice(&key[..bytes]);
    u128::from_be_bytes(first)
}

impl History {
    /// All keyspaces, for reading what can be read of a history that is damaged.
    fn keyspaces(&self) -> Result<Vec<Keyspace>, HistoryError> {
        self.with(|open| {
            let generations = open.records.read().clone();
            let records = generations.all().map(|one| one.keyspace.clone());
            let others = [&open.states, &open.floors, &open.marks];
            Ok(records.chain(others.into_iter().cloned()).collect())
        })
    }

    /// Puts entries, in the order of their keys, into a keyspace by its name; it is made if it is not there.
    fn put_all(&self, keyspace: &str, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), HistoryError> {
        self.with(|open| {
            let keyspace = match generations::of_name(keyspace) {
                Some(_) => open.records_keyspace(keyspace)?,
                None => open
                    .database
                    .keyspace(keyspace, KeyspaceCreateOptions::default)?,
            };
            if keyspace == open.marks {
                for (key, value) in entries {
                    open.marks.insert(key.as_slice(), value.as_slice())?;
                }
                return Ok(());
            }
            if entries.is_empty() {
                return Ok(());
            }
            ingest_into(&keyspace, |put| {
                let mut entries = entries.iter();
                entries.try_for_each(|(key, value)| put(key, Some(value)))
            })
        })
    }

    /// Makes durable what [`History::put_all`] has put.
    fn persist(&self) -> Result<(), HistoryError> {
        self.with(|open| Ok(open.database.persist(PersistMode::SyncAll)?))
    }

    /// Finds the generations that there are.
    fn open_generations(&self) -> Result<(), HistoryError> {
        self.with(|open| {
            *open.records.write() = Generations::default();
            Ok(open.open_generations()?)
        })
    }

    /// Ingests records again that belong to the generation in which record `first` is, or to none any more.
    fn ingest_again(
        &self,
        class: Class,
        first: Sequence,
        all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            let generations = open.records.read().clone();
            let mut of_class = generations.of(class).iter().rev();
            match of_class.find(|generation| generation.first <= first) {
                Some(generation) => ingest_into(&generation.keyspace, all),
                None => Ok(all(&mut |_, _| Ok(()))?),
            }
        })
    }
}

/// How much is copied at once.
const PART_BYTES: usize = 16 << 20;
const CACHE_BYTES: u64 = 16 << 20;
