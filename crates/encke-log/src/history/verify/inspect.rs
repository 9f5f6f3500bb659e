//! Compares the directory of history with the statement, before the storage engine opens anything.
//!
//! The engine deletes files that it does not know, and makes missing ones again. So it opens only a history that holds
//! everything that was stated. Nothing here changes a byte.

use crate::history::error::HistoryError;
use crate::history::generations;
use crate::history::verify::fingerprints::Fingerprints;
use crate::history::verify::lists::{CurrentFile, List, TableEntry, damaged, named};
use crate::superblock::statement::{StatedHistory, StatedKeyspace};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

/// Which tables an inspection reads whole, to compare their checksums. The engine reads the tables of [`META`] whole when it opens;
/// they are small, and are always compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadWhole {
    /// Those without a fingerprint. Of the others, a flipped byte is found when something reads it.
    Unknown,
    All,
}

/// The content of a history's directory, compared with the statement.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    /// The problems of the directory itself.
    pub(crate) problems: Vec<HistoryError>,
    pub(crate) keyspaces: Vec<InspectedKeyspace>,
    /// Fingerprints of the sound tables.
    pub(crate) fingerprints: Fingerprints,
}

/// How much of a history is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HistoryHealth {
    /// All of it, or there is no history.
    Sound,
    /// The state store and the floors are sound. Records may be missing.
    RecordsDamaged,
    /// The state store, the floors or the marks are damaged.
    Unusable,
}

/// The content of a keyspace's directory.
#[derive(Debug)]
pub(crate) struct InspectedKeyspace {
    pub(crate) stated: StatedKeyspace,
    pub(crate) directory: PathBuf,
    /// The newest list that can be read; `None` without a sound one.
    pub(crate) list: Option<List>,
    /// Tables of the list that are missing, or were replaced by other files.
    pub(crate) unsound: Vec<TableEntry>,
    /// Tables of the list whose checksum does not match: parts of them may be sound.
    pub(crate) suspect: Vec<TableEntry>,
    /// All problems.
    pub(crate) problems: Vec<HistoryError>,
}

impl Inspection {
    /// Inspects everything; a problem does not end the inspection.
    pub(crate) fn of(
        history: &Path,
        stated: &StatedHistory,
        log_id: u64,
        read_whole: ReadWhole,
    ) -> Inspection {
        let known = Fingerprints::read(history);
        let mut inspection = Inspection::default();
        let mut general = |problem: Result<(), HistoryError>| {
            inspection.problems.extend(problem.err());
        };
        general(check_identity(history, &history_label(log_id, stated.id)));
        general(check_version(history));
        general(check_files(history, |name| {
            name == "lock" || Path::new(name).extension() == Some(OsStr::new("jnl"))
        }));
        general(check_keyspaces(&keyspaces(history)));
        for keyspace in &stated.keyspaces {
            let label = keyspace_label(log_id, stated.id, keyspace.id);
            let directory = keyspaces(history).join(keyspace.id.to_string());
            let mut inspected = InspectedKeyspace {
                stated: keyspace.clone(),
                directory,
                list: None,
                unsound: Vec::new(),
                suspect: Vec::new(),
                problems: Vec::new(),
            };
            let fingerprints = &mut inspection.fingerprints;
            inspected.inspect(&label, &known, fingerprints, read_whole);
            inspection.keyspaces.push(inspected);
        }
        inspection
    }

    /// How much of the history is sound.
    pub(crate) fn health(&self) -> HistoryHealth {
        let of_keyspace = |inspected: &InspectedKeyspace| {
            let whole = inspected.is_whole();
            let of_records = generations::has_records(&inspected.stated.name);
            // A repair makes the keyspaces of the format and of the names again.
            let replaceable = matches!(&*inspected.stated.name, "" | "marks");
            match (inspected.problems.is_empty(), whole) {
                (true, _) => HistoryHealth::Sound,
                (false, true) => HistoryHealth::RecordsDamaged,
                (false, false) if of_records || replaceable => HistoryHealth::RecordsDamaged,
                (false, false) => HistoryHealth::Unusable,
            }
        };
        let general = match self.problems.is_empty() {
            true => HistoryHealth::Sound,
            false => HistoryHealth::RecordsDamaged,
        };
        let worst = self.keyspaces.iter().map(of_keyspace).max();
        worst.map_or(general, |worst| worst.max(general))
    }

    /// All problems.
    pub(crate) fn into_problems(self) -> Vec<HistoryError> {
        let of_keyspaces = self.keyspaces.into_iter().flat_map(|one| one.problems);
        self.problems.into_iter().chain(of_keyspaces).collect()
    }
}

impl InspectedKeyspace {
    /// Whether its list and all tables are sound.
    pub(crate) fn is_whole(&self) -> bool {
        self.list.is_some() && self.unsound.is_empty() && self.suspect.is_empty()
    }

    fn inspect(
        &mut self,
        label: &str,
        known: &Fingerprints,
        fingerprints: &mut Fingerprints,
        read_whole: ReadWhole,
    ) {
        let identified = check_identity(&self.directory, label);
        let foreign = identified.is_err() && self.directory.join(IDENTITY).exists();
        self.problems.extend(identified.err());
        let stated = CurrentFile {
            version: self.stated.version,
            checksum: self.stated.checksum,
        };
        let newest = match CurrentFile::read(&self.directory) {
            Ok(current) => check_not_older(&self.directory, current, stated)
                .and_then(|()| current.list(&self.directory)),
            Err(error) => Err(error),
        };
        self.list = match newest {
            _ if foreign => None,
            Ok(list) => Some(list),
            Err(error) => {
                self.problems.push(error);
                let cached = known.list(self.stated.id).cloned();
                let cached = cached.filter(|list| list.current == stated);
                stated.list(&self.directory).ok().or(cached)
            }
        };
        self.problems.extend(check_tables(&self.directory).err());
        if let Some(list) = self.list.take() {
            let whole = self.stated.id == META || read_whole == ReadWhole::All;
            self.inspect_tables(&list, known, fingerprints, whole);
            self.list = Some(list);
        }
    }

    fn inspect_tables(
        &mut self,
        list: &List,
        known: &Fingerprints,
        fingerprints: &mut Fingerprints,
        whole: bool,
    ) {
        let keyspace = self.stated.id;
        let mut sound = HashMap::with_capacity(list.tables.len());
        for table in &list.tables {
            let key = (table.id, table.checksum);
            let found = match table.fingerprint(&self.directory) {
                Ok(found) => found,
                Err(error) => {
                    self.problems.push(error);
                    self.unsound.push(*table);
                    continue;
                }
            };
            match known.of(keyspace, key) {
                Some(known) if known == found && !whole => {
                    sound.insert(key, found);
                }
                Some(known) if known != found => {
                    let path = table.path(&self.directory);
                    let problem = damaged(&path, "it is not the file that was written");
                    self.problems.push(problem);
                    self.unsound.push(*table);
                }
                _ => match table.verify(&self.directory) {
                    Ok(()) => {
                        sound.insert(key, found);
                    }
                    Err(error) => {
                        self.problems.push(error);
                        self.suspect.push(*table);
                    }
                },
            }
        }
        fingerprints.set(keyspace, list.clone(), sound);
    }
}

/// Inspects a history without a statement: the tables in its lists must be there.
pub(crate) fn verify_without_statement(history: &Path) -> Result<(), HistoryError> {
    check_version(history)?;
    check_keyspaces(&keyspaces(history))?;
    for keyspace in entries(&keyspaces(history))? {
        let (directory, _) = keyspace?;
        if !directory
            .join(crate::history::verify::lists::CURRENT)
            .try_exists()?
        {
            // The process ended while the engine made or removed the keyspace.
            continue;
        }
        let list = List::newest(&directory)?;
        check_tables(&directory)?;
        for table in &list.tables {
            table.fingerprint(&directory)?;
        }
    }
    Ok(())
}

/// The identity of a history that was made for this log and is not stated yet.
///
/// # Errors
/// The history belongs to another log.
pub(crate) fn id_without_statement(history: &Path, log_id: u64) -> Result<u64, HistoryError> {
    let label = std::fs::read_to_string(history.join(IDENTITY)).unwrap_or_default();
    let id = label.strip_prefix("encke 1: history ");
    let id = id.and_then(|rest| u64::from_str_radix(rest.get(..16)?, 16).ok());
    match id.filter(|id| history_label(log_id, *id) == label) {
        Some(id) => Ok(id),
        None => Err(damaged(
            history,
            "the superblock states no history, and this one is not of this log",
        )),
    }
}

/// The log in the identity of a history.
pub(crate) fn log_id(history: &Path) -> Option<u64> {
    let label = std::fs::read_to_string(history.join(IDENTITY)).ok()?;
    let (_, id) = label.strip_suffix('\n')?.rsplit_once(" of log ")?;
    u64::from_str_radix(id, 16).ok()
}

/// Writes the identity of a history into its directory, durably.
pub(crate) fn identify_history(path: &Path, log_id: u64, history_id: u64) -> io::Result<()> {
    identify(path, &history_label(log_id, history_id))
}

/// Writes the identity of a keyspace into its directory, durably.
pub(crate) fn identify_keyspace(
    history: &Path,
    log_id: u64,
    history_id: u64,
    id: u64,
) -> io::Result<()> {
    let label = keyspace_label(log_id, history_id, id);
    let keyspaces = keyspaces(history);
    identify(&keyspaces.join(id.to_string()), &label)?;
    // The engine does not make the name of the directory durable.
    std::fs::File::open(keyspaces)?.sync_all()
}

fn identify(directory: &Path, label: &str) -> io::Result<()> {
    let (path, new) = (directory.join(IDENTITY), directory.join("identity.new"));
    if std::fs::read_to_string(&path).is_ok_and(|there| there == label) {
        // The name may be visible and not durable yet.
        std::fs::File::open(&path)?.sync_all()?;
        return std::fs::File::open(directory)?.sync_all();
    }
    std::fs::write(&new, label)?;
    std::fs::File::open(&new)?.sync_all()?;
    std::fs::rename(&new, &path)?;
    std::fs::File::open(directory)?.sync_all()
}

fn check_identity(directory: &Path, label: &str) -> Result<(), HistoryError> {
    let path = directory.join(IDENTITY);
    let there = std::fs::read(&path).map_err(|e| named(&path, &e))?;
    if there != label.as_bytes() {
        return Err(damaged(&path, "it is not the directory that is stated"));
    }
    Ok(())
}

fn check_version(history: &Path) -> Result<(), HistoryError> {
    let path = history.join("version");
    let there = std::fs::read(&path).map_err(|e| named(&path, &e))?;
    if there != ENGINE_VERSION {
        return Err(damaged(
            &path,
            "it names no known version of the storage engine",
        ));
    }
    Ok(())
}

fn check_not_older(
    directory: &Path,
    found: CurrentFile,
    stated: CurrentFile,
) -> Result<(), HistoryError> {
    let (path, found_at, stated_at) = (
        directory.join(crate::history::verify::lists::CURRENT),
        found.version,
        stated.version,
    );
    if found_at < stated_at {
        let what = format!(
            "it names version {found_at} of the list of tables, and version {stated_at} is stated"
        );
        return Err(damaged(&path, &what));
    }
    if found_at == stated_at && found != stated {
        return Err(damaged(
            &path,
            "it names another list of tables than the stated one",
        ));
    }
    Ok(())
}

/// The tables of a keyspace must be files with numbers for names, or the engine ends the process.
fn check_tables(keyspace: &Path) -> Result<(), HistoryError> {
    let tables = keyspace.join("tables");
    check_numbered(&tables, "file", FileType::is_file)
}

fn check_keyspaces(keyspaces: &Path) -> Result<(), HistoryError> {
    check_numbered(keyspaces, "directory", FileType::is_dir)
}

fn check_numbered(
    directory: &Path,
    kind: &str,
    is_kind: impl Fn(&FileType) -> bool,
) -> Result<(), HistoryError> {
    for entry in entries(directory)? {
        let (path, found) = entry?;
        let name = path.file_name().and_then(OsStr::to_str);
        if !is_kind(&found) || name.is_none_or(|name| name.parse::<u64>().is_err()) {
            return Err(damaged(
                &path,
                &format!("it is not a {kind} of the storage engine"),
            ));
        }
    }
    Ok(())
}

/// Entries with a matching name must be files.
fn check_files(directory: &Path, is_meant: impl Fn(&OsStr) -> bool) -> Result<(), HistoryError> {
    for entry in entries(directory)? {
        let (path, found) = entry?;
        if path.file_name().is_some_and(&is_meant) && !found.is_file() {
            return Err(damaged(&path, "it is not a file"));
        }
    }
    Ok(())
}

type Entry = Result<(PathBuf, FileType), HistoryError>;

/// The entries of a directory with their types; links are not followed.
fn entries(directory: &Path) -> Result<impl Iterator<Item = Entry>, HistoryError> {
    let entries = std::fs::read_dir(directory).map_err(|e| named(directory, &e))?;
    let directory = directory.to_owned();
    Ok(entries.map(move |entry| {
        let entry = entry.map_err(|e| named(&directory, &e))?;
        let kind = entry.file_type().map_err(|e| named(&entry.path(), &e))?;
        Ok((entry.path(), kind))
    }))
}

pub(crate) fn keyspaces(history: &Path) -> PathBuf {
    history.join("keyspaces")
}

pub(crate) fn history_label(log_id: u64, history_id: u64) -> String {
    format!("encke 1: history {history_id:016x} of log {log_id:016x}\n")
}

fn keyspace_label(log_id: u64, history_id: u64, id: u64) -> String {
    format!("encke 1: keyspace {id} of history {history_id:016x} of log {log_id:016x}\n")
}

/// The number of the keyspace in which the engine keeps the names of all others.
pub(crate) const META: u64 = 0;
/// The file with the identity of a history, and of each of its keyspaces.
const IDENTITY: &str = "identity";
/// The content of the engine's file `version`.
pub(crate) const ENGINE_VERSION: [u8; 4] = *b"FJL\x03";
