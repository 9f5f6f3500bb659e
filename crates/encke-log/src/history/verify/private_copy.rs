//! A private copy of a history, to read it without changing a byte.
//!
//! The storage engine writes when it opens. So it opens a temporary directory in which lists are copies and tables are
//! links, and no thread compacts there. Tables that the inspection found unsound are left out.

use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::generations::Times;
use crate::history::tree;
use crate::history::verify::inspect::{ENGINE_VERSION, Inspection};
use crate::history::verify::lists::{CURRENT, CurrentFile, List, TableEntry};
use crate::superblock::statement::StatedHistory;
use std::collections::HashMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A private copy of a history. Dropping it removes the copy.
pub(crate) struct HistoryCopy {
    pub(crate) history: History,
    /// The inner directory comes first, because fields are dropped in order.
    _directories: Vec<TempDir>,
}

impl HistoryCopy {
    /// Copies the sound parts of an inspected history. Of a suspect table, the engine reads what it can.
    pub(crate) fn of_stated(
        directory: TempDir,
        stated: &StatedHistory,
        inspection: &Inspection,
    ) -> Result<HistoryCopy, HistoryError> {
        let mut suspect = inspection.keyspaces.iter().map(|one| &one.suspect);
        if suspect.any(|tables| !tables.is_empty()) {
            let with_suspect = tempfile::tempdir_in(directory.path())?;
            if let Ok(copy) = HistoryCopy::with(with_suspect, stated, inspection, true) {
                return Ok(copy.with_directory(directory));
            }
        }
        HistoryCopy::with(directory, stated, inspection, false)
    }

    fn with(
        directory: TempDir,
        stated: &StatedHistory,
        inspection: &Inspection,
        suspect: bool,
    ) -> Result<HistoryCopy, HistoryError> {
        let path = directory.path().join("history");
        let ids = make_keyspaces(&path, stated)?;
        for inspected in &inspection.keyspaces {
            // The new history has names of its own, so the keyspace of names is not copied.
            let (Some(id), Some(list)) = (ids.get(&inspected.stated.name), &inspected.list) else {
                continue;
            };
            let is_left_out = |table: &TableEntry| {
                inspected.unsound.contains(table) || !suspect && inspected.suspect.contains(table)
            };
            let reduced;
            let list = if list.tables.iter().any(is_left_out) {
                reduced = list.without(|table| !is_left_out(table))?;
                &reduced
            } else {
                list
            };
            let copy = keyspace(&path, *id);
            copy_list(&copy, list)?;
            for table in &list.tables {
                link(&table.path(&inspected.directory), &table.path(&copy))?;
            }
        }
        tree::reset_journal(&path)?;
        HistoryCopy::open(directory, path, stated.times())
    }

    /// Copies a history without a statement.
    pub(crate) fn of_whole(
        directory: TempDir,
        history: &Path,
    ) -> Result<HistoryCopy, HistoryError> {
        let path = copy_whole(&directory, history)?;
        HistoryCopy::open(directory, path, Times::new())
    }

    /// Copies a stated history with the engine's own names of its keyspaces, and opens it as a start opens the original.
    pub(crate) fn as_at_start(
        directory: TempDir,
        history: &Path,
        times: Times,
    ) -> Result<HistoryCopy, HistoryError> {
        let path = copy_whole(&directory, history)?;
        tree::reset_journal(&path)?;
        HistoryCopy::open(directory, path, times)
    }

    fn open(directory: TempDir, path: PathBuf, times: Times) -> Result<HistoryCopy, HistoryError> {
        let history = History::open_copy(path, times);
        let history = history.map_err(|error| HistoryError::from(error.to_string()))?;
        Ok(HistoryCopy {
            history,
            _directories: vec![directory],
        })
    }

    fn with_directory(mut self, directory: TempDir) -> HistoryCopy {
        self._directories.push(directory);
        self
    }
}

/// Copies every keyspace of a history into a directory, with links to all tables.
fn copy_whole(directory: &TempDir, history: &Path) -> Result<PathBuf, HistoryError> {
    let path = directory.path().join("history");
    std::fs::create_dir(&path)?;
    std::fs::write(path.join("version"), ENGINE_VERSION)?;
    std::fs::write(path.join("lock"), b"")?;
    copy_files(history, &path, |name| name.ends_with(".jnl"))?;
    for entry in std::fs::read_dir(history.join("keyspaces"))? {
        let entry = entry?;
        let (original, copy) = (entry.path(), path.join("keyspaces").join(entry.file_name()));
        std::fs::create_dir_all(copy.join("tables"))?;
        copy_files(&original, &copy, |name| {
            name == CURRENT || name.starts_with('v')
        })?;
        if let Ok(list) = List::newest(&original) {
            for table in &list.tables {
                link(&table.path(&original), &table.path(&copy))?;
            }
        }
    }
    Ok(path)
}

/// A directory for a private copy. An error here is not about the history.
pub(crate) fn private_directory() -> Result<TempDir, OpenError> {
    let made = tempfile::tempdir().and_then(|directory| {
        std::fs::write(directory.path().join("room"), [0; 1 << 16])?;
        Ok(directory)
    });
    let action = "make a private copy of history in the directory for temporary files,";
    made.map_err(|e| OpenError::io(&std::env::temp_dir(), action, e))
}

/// Makes an empty history with all stated keyspaces. Returns their numbers in it by name.
fn make_keyspaces(
    path: &Path,
    stated: &StatedHistory,
) -> Result<HashMap<String, u64>, HistoryError> {
    let history = History::open_copy(path.to_owned(), Times::new());
    let history = history.map_err(|error| HistoryError::from(error.to_string()))?;
    let names = stated.keyspaces.iter().map(|one| &*one.name);
    history.make_generations(names)?;
    history.with(|open| {
        Ok(open
            .keyspace_names()
            .into_iter()
            .map(|(id, name)| (name, id))
            .collect())
    })
}

/// Replaces the list of a keyspace.
fn copy_list(keyspace: &Path, list: &List) -> Result<(), HistoryError> {
    let empty = CurrentFile::read(keyspace)?;
    std::fs::remove_file(empty.list_path(keyspace))?;
    std::fs::write(list.current.list_path(keyspace), &list.content)?;
    std::fs::write(keyspace.join(CURRENT), list.current.encode())?;
    Ok(())
}

fn copy_files(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), HistoryError> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let is_wanted = entry.file_name().to_str().is_some_and(&wanted);
        if is_wanted && entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn link(original: &Path, copy: &Path) -> Result<(), HistoryError> {
    let original = std::path::absolute(original)?;
    Ok(symlink(original, copy)?)
}

fn keyspace(history: &Path, id: u64) -> PathBuf {
    history.join("keyspaces").join(id.to_string())
}
