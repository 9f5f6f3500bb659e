//! Looking at a log that is not open: what its superblock states, what is wrong with its history, and a private copy of what is sound.

use crate::copy::{HistoryCopy, private_directory};
use crate::disk::Disk;
use crate::error::OpenError;
use crate::history::{History, HistoryError};
use crate::inspect::{self, Inspection};
use crate::marks::{Marks, Times, UnstatedMarks};
use crate::opening::Opening;
use crate::retention::Class;
use crate::{Sequence, generations};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What is there, and what is wrong with it. Nothing was changed to find that out.
pub(crate) struct Look<D: Disk> {
    pub(crate) opening: Opening<D>,
    pub(crate) marks: Marks,
    pub(crate) class_floors: Vec<(Class, Sequence)>,
    /// The times of generations in a history of a version that stated nothing.
    pub(crate) unstated_times: Times,
    /// What is sound of history; `None` without a history, or when nothing of it can be used.
    copy: Option<HistoryCopy>,
    /// What is wrong with the superblock or with history, and where that is.
    pub(crate) problems: Vec<(PathBuf, String)>,
    /// How much of history is sound.
    pub(crate) health: HistoryHealth,
    /// Whether a list or a table of records can't be used.
    pub(crate) lacks_records: bool,
}

/// How much of a history is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HistoryHealth {
    /// All of it, or there is none.
    Sound,
    /// The state store and the floors are. Records may be missing.
    RecordsDamaged,
    /// The state store, the floors or the marks are not.
    Unusable,
}

impl<D: Disk> Look<D> {
    pub(crate) fn at(disk: &D) -> Result<Look<D>, OpenError> {
        let opening = Opening::of_any(disk)?;
        let mut look = Look {
            marks: opening.marks(),
            class_floors: Vec::new(),
            unstated_times: Times::new(),
            copy: None,
            problems: Vec::new(),
            health: HistoryHealth::Sound,
            lacks_records: false,
            opening,
        };
        if let Some(error) = look.opening.unstated_reason(disk) {
            let file = match &error {
                OpenError::Superblock { file, .. } => file.clone(),
                _ => disk.path(""),
            };
            look.unusable(file, error.to_string());
            return Ok(look);
        }
        let Some(path) = disk.history() else {
            return Ok(look);
        };
        if let Some((log_id, stated)) = look.opening.stated_history() {
            let (log_id, stated) = (log_id, stated.clone());
            look.class_floors.clone_from(&stated.class_floors);
            let inspection = Inspection::of(&path, &stated, log_id);
            look.health = inspection.health();
            look.lacks_records = inspection.keyspaces.iter().any(|inspected| {
                !inspected.is_whole() && generations::of_name(&inspected.stated.name).is_some()
            });
            match HistoryCopy::of_stated(private_directory()?, &stated, &inspection) {
                Ok(copy) => look.copy = Some(copy),
                Err(error) => look.unusable(path.clone(), error.reason),
            }
            let problems = inspection.into_problems().into_iter();
            let problems = problems.map(|problem| (path.clone(), problem.reason));
            look.problems.extend(problems);
        } else if look.opening.statement.is_none() && look.opening.history.is_some() {
            let directory = private_directory()?;
            if let Err(error) = look.at_unstated(directory, &path) {
                look.unusable(path, error.reason);
            }
        } else if look.opening.history.is_some()
            && let Err(error) = look.opening.inspect(disk)
        {
            look.unusable(path, error.to_string());
        }
        Ok(look)
    }

    fn at_unstated(&mut self, directory: TempDir, path: &Path) -> Result<(), HistoryError> {
        inspect::verify_unstated(path)?;
        let copy = HistoryCopy::of_unstated(directory, path)?;
        let unstated = UnstatedMarks::read(&copy.history)?;
        (self.marks, self.class_floors) = (unstated.marks, unstated.class_floors);
        self.unstated_times = unstated.times;
        self.copy = Some(copy);
        Ok(())
    }

    fn unusable(&mut self, place: PathBuf, reason: String) {
        self.problems.push((place, reason));
        self.health = HistoryHealth::Unusable;
    }

    /// What is sound of history, to be read only.
    pub(crate) fn history(&self) -> Option<&History> {
        self.copy.as_ref().map(|copy| &copy.history)
    }

    /// Every record up to this one was durable.
    pub(crate) fn durable_upto(&self) -> Sequence {
        let stated = self.opening.statement.as_ref();
        stated.map_or(0, |stated| stated.durable_upto)
    }
}

impl inspect::InspectedKeyspace {
    fn is_whole(&self) -> bool {
        self.list.is_some() && self.unsound.is_empty() && self.suspect.is_empty()
    }
}

impl Inspection {
    fn health(&self) -> HistoryHealth {
        let of_keyspace = |inspected: &inspect::InspectedKeyspace| {
            let whole = inspected.is_whole();
            let of_records = generations::of_name(&inspected.stated.name).is_some();
            // The keyspaces of the format and of the names are made anew.
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
}
