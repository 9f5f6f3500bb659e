//! Salvages the readable parts of a damaged history, and makes a sound history from them.
//!
//! A block whose checksum does not match can't be read, nor can the entries of other tables between its first and its
//! last key. The first readable key behind it is found by a search. Missing records that a segment still has are taken
//! from there.

use crate::diagnosis::ranges::Range;
use crate::diagnosis::survey::{self, Surveyed};
use crate::disk::Disk;
use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::generations;
use crate::history::ingest::Put;
use crate::history::ingest::ingest_into;
use crate::history::sort::Sorted;
use crate::history::stored::of_record_key;
use crate::history::tree::sync_parent;
use crate::ids::Sequence;
use crate::superblock::statement::{StatedHistory, Statement};
use fjall::Keyspace;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// A part of a keyspace that can't be read: all entries between two keys. An empty key means the beginning or the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableRange {
    pub(crate) keyspace: String,
    pub(crate) after: Vec<u8>,
    pub(crate) before: Vec<u8>,
    pub(crate) reason: String,
}

impl UnreadableRange {
    /// The records or entries that may be in it.
    pub(crate) fn text(&self) -> String {
        let end = |key: &[u8], none: &str| match of_record_key(key) {
            Some((stream, sequence)) if self.is_of_records() => {
                format!("stream {stream}, record {sequence}")
            }
            _ if key.is_empty() => none.to_owned(),
            _ => format!("the key {}", key.escape_ascii()),
        };
        format!(
            "history can't be read between {} and {} ({}: {})",
            end(&self.after, "its beginning"),
            end(&self.before, "its end"),
            self.keyspace,
            self.reason
        )
    }

    pub(crate) fn is_of_records(&self) -> bool {
        generations::has_records(&self.keyspace)
    }
}

/// Takes the key and the value of an entry.
type Each<'e> = &'e mut dyn FnMut(&[u8], &[u8]) -> Result<(), HistoryError>;

/// The parts of a history that can't be read.
pub(crate) fn gaps(history: &History) -> Result<Vec<UnreadableRange>, HistoryError> {
    let mut gaps = Vec::new();
    for keyspace in keyspaces(history)? {
        gaps.extend(read_through(&keyspace, &mut |_, _| Ok(()))?);
    }
    Ok(gaps)
}

/// The records up to `history_upto` that neither history nor a segment has, including those that were removed and
/// reclaimed before.
pub(crate) fn absent<F>(
    history: &History,
    surveyed: &[Surveyed<F>],
    history_upto: Sequence,
) -> Result<Vec<Range>, HistoryError> {
    let mut present = vec![0_u64; (history_upto / 64 + 1) as usize];
    let mut note = |sequence: Sequence| {
        if let Some(word) = present.get_mut((sequence / 64) as usize) {
            *word |= 1 << (sequence % 64);
        }
    };
    for keyspace in keyspaces(history)? {
        if generations::has_records(keyspace.name()) {
            read_through(&keyspace, &mut |key, _| {
                of_record_key(key).into_iter().for_each(|(_, at)| note(at));
                Ok(())
            })?;
        }
    }
    for (first, last) in survey::available(surveyed) {
        (first..=last.min(history_upto)).for_each(&mut note);
    }
    let is_present = |at: Sequence| present[(at / 64) as usize] & 1 << (at % 64) != 0;
    let mut absent: Vec<Range> = Vec::new();
    for at in (1..=history_upto).filter(|at| !is_present(*at)) {
        match absent.last_mut() {
            Some((_, last)) if *last + 1 == at => *last = at,
            _ => absent.push((at, at)),
        }
    }
    Ok(absent)
}

/// Makes a sound history beside the damaged one, from its readable parts and from sound segments. Returns its
/// statement. [`put_in_place`] replaces the damaged one by it.
pub(crate) fn rebuild<D: Disk>(
    path: &Path,
    log_id: u64,
    salvaged: Salvaged<'_>,
    surveyed: &[Surveyed<D::File>],
) -> Result<StatedHistory, OpenError> {
    let beside = beside(path);
    let failed = |e: HistoryError| e.on_open(&beside, "write to");
    if beside.exists() {
        std::fs::remove_dir_all(&beside).map_err(|e| failed(e.into()))?;
    }
    let Salvaged { history, stated } = salvaged;
    History::make(&beside, (log_id, stated.id))?;
    let rebuilt = History::open(beside.clone(), CACHE_BYTES, stated.times())?;
    let copied = keyspaces(history).and_then(|keyspaces| {
        let names: Vec<_> = keyspaces.iter().map(|one| one.name().to_string()).collect();
        rebuilt.make_generations(names.iter().map(String::as_str))?;
        for keyspace in keyspaces.iter().filter(|one| &**one.name() != "marks") {
            copy(keyspace, &rebuilt)?;
        }
        Ok(())
    });
    copied.map_err(failed)?;
    for found in surveyed {
        let end = found.end.min(stated.history_upto + 1);
        if let Some(segment) = found.segment.as_ref().filter(|_| end > found.first) {
            let mut sorted = Sorted::of(segment, end).map_err(failed)?;
            if !sorted.is_empty() {
                ingest_again(&rebuilt, segment.first, |put| sorted.put(put)).map_err(failed)?;
            }
        }
    }
    let keyspaces = rebuilt.stated_keyspaces((log_id, stated.id), &BTreeSet::new());
    let keyspaces = keyspaces.map_err(failed)?;
    rebuilt.close();
    Ok(StatedHistory {
        keyspaces,
        ..stated
    })
}

/// The sound parts of a history, and its statement with a new identity.
pub(crate) struct Salvaged<'h> {
    pub(crate) history: &'h History,
    pub(crate) stated: StatedHistory,
}

/// Replaces the damaged history by the new one. The damaged one is kept under the name `aside`. Until the superblock
/// states the new one, a start is refused, and a repair continues here.
pub(crate) fn put_in_place(path: &Path, statement: &Statement, aside: &Path) -> io::Result<()> {
    let beside = beside(path);
    let pending = beside.join(PENDING);
    std::fs::write(&pending, statement.encode(0))?;
    std::fs::File::open(&pending)?.sync_all()?;
    std::fs::File::open(&beside)?.sync_all()?;
    if path.symlink_metadata().is_ok() {
        std::fs::rename(path, aside)?;
    }
    std::fs::rename(&beside, path)?;
    sync_parent(path)
}

/// A new history and its statement, if a repair was interrupted before the superblock stated it.
pub(crate) fn interrupted(path: &Path) -> Option<(PathBuf, Statement)> {
    let places = [path.to_owned(), beside(path)];
    let made = places.into_iter().find(|place| {
        let of_path = place == path;
        // Beside an existing history, a new one may be incomplete.
        place.join(PENDING).exists() && (of_path || path.symlink_metadata().is_err())
    })?;
    let content = std::fs::read(made.join(PENDING)).ok()?;
    let (_, statement) = Statement::decode(&content).ok()?;
    Some((made, statement))
}

/// Removes the mark of an interrupted repair.
pub(crate) fn finish(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path.join(PENDING)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(()) => std::fs::File::open(path)?.sync_all(),
    }
}

/// The directory in which a new history is made.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("repaired")
}

/// Copies the readable entries of a keyspace, in bounded parts.
fn copy(from: &Keyspace, to: &History) -> Result<(), HistoryError> {
    let mut part: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut bytes = 0;
    read_through(from, &mut |key, value| {
        part.push((key.to_vec(), value.to_vec()));
        bytes += key.len() + value.len();
        if bytes >= PART_BYTES {
            put_all(to, from.name(), &std::mem::take(&mut part))?;
            bytes = 0;
        }
        Ok(())
    })?;
    put_all(to, from.name(), &part)
}

/// Gives `each` every readable entry, in the order of keys. Returns the parts that can't be read.
fn read_through(keyspace: &Keyspace, each: Each<'_>) -> Result<Vec<UnreadableRange>, HistoryError> {
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
        gaps.push(UnreadableRange {
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

/// The first readable key after `after`, where a damaged place begins, if there is one.
fn first_behind(keyspace: &Keyspace, after: &[u8]) -> Option<Vec<u8>> {
    let from = number(after);
    let probe = |at: u128| {
        keyspace
            .range(at.to_be_bytes()..)
            .next()
            .map(|pair| pair.key())
    };
    // Exponential steps, until a key can be read or there are no more.
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
    // Then a binary search for the first one.
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

/// All keyspaces.
fn keyspaces(history: &History) -> Result<Vec<Keyspace>, HistoryError> {
    history.with(|open| {
        let generations = open.records.read().clone();
        let others = [&open.states, &open.floors, &open.marks];
        Ok(generations.keyspaces().chain(others).cloned().collect())
    })
}

/// Ingests entries, in the order of their keys, into a keyspace by its name.
fn put_all(
    history: &History,
    keyspace: &str,
    entries: &[(Vec<u8>, Vec<u8>)],
) -> Result<(), HistoryError> {
    if entries.is_empty() {
        return Ok(());
    }
    history.with(|open| {
        let keyspace = match keyspace {
            records if generations::has_records(records) => open.records_keyspace(records)?,
            "states" => open.states.clone(),
            _ => open.floors.clone(),
        };
        ingest_into(&keyspace, |put| {
            let mut entries = entries.iter();
            entries.try_for_each(|(key, value)| put(key, Some(value)))
        })
    })
}

/// Ingests records of the segment that begins with record `first` into their generation. If it is removed, the kept records get them,
/// or they are dropped where nothing is kept.
fn ingest_again(
    history: &History,
    first: Sequence,
    all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
) -> Result<(), HistoryError> {
    history.with(|open| {
        let generations = open.records.read().clone();
        let mut newest_first = generations.all().iter().rev();
        let generation = newest_first.find(|generation| generation.first <= first);
        let keyspace = generation.map(|generation| &generation.keyspace);
        match keyspace.or(generations.kept()) {
            Some(keyspace) => ingest_into(keyspace, all),
            None => Ok(all(&mut |_, _| Ok(()))?),
        }
    })
}

/// How much is copied at once.
const PART_BYTES: usize = 16 << 20;
const CACHE_BYTES: u64 = 16 << 20;
/// The statement of a new history, in its directory until the superblock has it.
const PENDING: &str = "repaired";
