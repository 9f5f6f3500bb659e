//! Comparing the directory of history with the statement, before the storage engine opens anything.
//!
//! The engine deletes what it takes for left over and makes anew what is missing. So it opens only a history in which everything that
//! was stated is there. Nothing here changes a byte.

use crate::fingerprints::Fingerprints;
use crate::history::HistoryError;
use crate::lists::{Current, List, TableEntry, damaged, named};
use crate::statement::{StatedHistory, StatedKeyspace};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

/// What a history's directory holds, compared with what was stated of it.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    /// What is wrong with the directory itself.
    pub(crate) problems: Vec<HistoryError>,
    pub(crate) keyspaces: Vec<InspectedKeyspace>,
    /// Of every table that is as it should be.
    pub(crate) fingerprints: Fingerprints,
}

/// What the directory of one keyspace holds.
#[derive(Debug)]
pub(crate) struct InspectedKeyspace {
    pub(crate) stated: StatedKeyspace,
    pub(crate) directory: PathBuf,
    /// The newest list that can be found; `None` when there is no sound one.
    pub(crate) list: Option<List>,
    /// The tables in the list that are missing, or are not the files that were written.
    pub(crate) unsound: Vec<TableEntry>,
    /// The tables in the list whose checksum does not match: parts of them may be sound.
    pub(crate) suspect: Vec<TableEntry>,
    /// Everything that is wrong.
    pub(crate) problems: Vec<HistoryError>,
}

impl Inspection {
    /// Looks at everything, whatever is wrong.
    pub(crate) fn of(history: &Path, stated: &StatedHistory, log_id: u64) -> Inspection {
        let known = Fingerprints::read(history);
        let mut inspection = Inspection::default();
        let mut general = |problem: Result<(), HistoryError>| {
            inspection.problems.extend(problem.err());
        };
        general(is_identified(history, &history_label(log_id, stated.id)));
        general(is_version(history));
        general(are_files(history, |name| {
            name == "lock" || Path::new(name).extension() == Some(OsStr::new("jnl"))
        }));
        general(are_keyspaces(&keyspaces(history)));
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
            inspected.look(&label, &known, &mut inspection.fingerprints);
            inspection.keyspaces.push(inspected);
        }
        inspection
    }

    /// Everything that is wrong.
    pub(crate) fn into_problems(self) -> Vec<HistoryError> {
        let of_keyspaces = self.keyspaces.into_iter().flat_map(|one| one.problems);
        self.problems.into_iter().chain(of_keyspaces).collect()
    }
}

impl InspectedKeyspace {
    fn look(&mut self, label: &str, known: &Fingerprints, fingerprints: &mut Fingerprints) {
        let identified = is_identified(&self.directory, label);
        let foreign = identified.is_err() && self.directory.join(IDENTITY).exists();
        self.problems.extend(identified.err());
        let stated = Current {
            version: self.stated.version,
            checksum: self.stated.checksum,
        };
        let newest = match Current::read(&self.directory) {
            Ok(current) => is_not_older(&self.directory, current, stated)
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
        self.problems.extend(are_tables(&self.directory).err());
        if let Some(list) = self.list.take() {
            self.look_at_tables(&list, known, fingerprints);
            self.list = Some(list);
        }
    }

    fn look_at_tables(
        &mut self,
        list: &List,
        known: &Fingerprints,
        fingerprints: &mut Fingerprints,
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
                Some(known) if known == found => {
                    sound.insert(key, found);
                }
                Some(_) => {
                    let path = table.path(&self.directory);
                    let problem = damaged(&path, "it is not the file that was written");
                    self.problems.push(problem);
                    self.unsound.push(*table);
                }
                None => match table.verify(&self.directory) {
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

/// Looks at a history of a version that made no statement: what its lists name must be there.
pub(crate) fn verify_unstated(history: &Path) -> Result<(), HistoryError> {
    is_version(history)?;
    are_keyspaces(&keyspaces(history))?;
    for keyspace in entries(&keyspaces(history))? {
        let (directory, _) = keyspace?;
        if !directory.join(crate::lists::CURRENT).try_exists()? {
            // The engine was making it or removing it when the process ended.
            continue;
        }
        let list = List::newest(&directory)?;
        are_tables(&directory)?;
        for table in &list.tables {
            table.fingerprint(&directory)?;
        }
    }
    Ok(())
}

/// The identity of a history that was made for this log and of which nothing is stated yet.
///
/// # Errors
/// It is another one.
pub(crate) fn unstated_id(history: &Path, log_id: u64) -> Result<u64, HistoryError> {
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

/// The log of which a history says that it is.
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
        // It may be there for the system and not yet for the disk.
        std::fs::File::open(&path)?.sync_all()?;
        return std::fs::File::open(directory)?.sync_all();
    }
    std::fs::write(&new, label)?;
    std::fs::File::open(&new)?.sync_all()?;
    std::fs::rename(&new, &path)?;
    std::fs::File::open(directory)?.sync_all()
}

fn is_identified(directory: &Path, label: &str) -> Result<(), HistoryError> {
    let path = directory.join(IDENTITY);
    let there = std::fs::read(&path).map_err(|e| named(&path, &e))?;
    if there != label.as_bytes() {
        return Err(damaged(
            &path,
            "the directory is not the one that was there before",
        ));
    }
    Ok(())
}

fn is_version(history: &Path) -> Result<(), HistoryError> {
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

fn is_not_older(directory: &Path, found: Current, stated: Current) -> Result<(), HistoryError> {
    let (path, found_at, stated_at) = (
        directory.join(crate::lists::CURRENT),
        found.version,
        stated.version,
    );
    if found_at < stated_at {
        let what = format!(
            "it names version {found_at} of the list of tables, and there was a version {stated_at}"
        );
        return Err(damaged(&path, &what));
    }
    if found_at == stated_at && found != stated {
        return Err(damaged(
            &path,
            "it names another list of tables than there was",
        ));
    }
    Ok(())
}

/// The tables of a keyspace must be files with numbers for names, or the engine ends the process.
fn are_tables(keyspace: &Path) -> Result<(), HistoryError> {
    let tables = keyspace.join("tables");
    are_numbered(&tables, "file", FileType::is_file)
}

fn are_keyspaces(keyspaces: &Path) -> Result<(), HistoryError> {
    are_numbered(keyspaces, "directory", FileType::is_dir)
}

fn are_numbered(
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
                &format!("it is no {kind} of the storage engine"),
            ));
        }
    }
    Ok(())
}

/// What has one of these names must be a file.
fn are_files(directory: &Path, is_meant: impl Fn(&OsStr) -> bool) -> Result<(), HistoryError> {
    for entry in entries(directory)? {
        let (path, found) = entry?;
        if path.file_name().is_some_and(&is_meant) && !found.is_file() {
            return Err(damaged(&path, "it is no file"));
        }
    }
    Ok(())
}

type Entry = Result<(PathBuf, FileType), HistoryError>;

/// The entries of a directory, and what they are without following links.
fn entries(directory: &Path) -> Result<impl Iterator<Item = Entry>, HistoryError> {
    let entries = std::fs::read_dir(directory).map_err(|e| named(directory, &e))?;
    let directory = directory.to_owned();
    Ok(entries.map(move |entry| {
        let entry = entry.map_err(|e| named(&directory, &e))?;
        let kind = entry.file_type().map_err(|e| named(&entry.path(), &e))?;
        Ok((entry.path(), kind))
    }))
}

fn keyspaces(history: &Path) -> PathBuf {
    history.join("keyspaces")
}

pub(crate) fn history_label(log_id: u64, history_id: u64) -> String {
    format!("encke 1: history {history_id:016x} of log {log_id:016x}\n")
}

fn keyspace_label(log_id: u64, history_id: u64, id: u64) -> String {
    format!("encke 1: keyspace {id} of history {history_id:016x} of log {log_id:016x}\n")
}

/// The file with the identity of a history, and of each of its keyspaces.
const IDENTITY: &str = "identity";
/// The content of the engine's file `version`.
pub(crate) const ENGINE_VERSION: [u8; 4] = *b"FJL\x03";
