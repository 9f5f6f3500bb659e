//! The diagnosis of a log that is not open: what its superblock states, what is wrong with its history, and a private
//! copy of the sound parts.
//!
//! `survey.rs` reads every segment, `dump.rs` lists records. Nothing here changes a file; `repair` does.

pub(crate) mod dump;
pub(crate) mod ranges;
pub(crate) mod survey;

use crate::disk::Disk;
use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::generations;
use crate::history::generations::Times;
use crate::history::old_marks::OldMarks;
use crate::history::verify::inspect::{self, HistoryHealth, Inspection, ReadWhole};
use crate::history::verify::private_copy::{HistoryCopy, private_directory};
use crate::ids::Sequence;
use crate::start::log_directory::LogDirectory;
use crate::superblock::statement::Marks;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What a directory holds, and what is wrong with it. Nothing was changed.
pub(crate) struct Diagnosis<D: Disk> {
    pub(crate) directory: LogDirectory<D>,
    pub(crate) marks: Marks,
    pub(crate) retention_floor: Sequence,
    /// The times of generations in a history without a statement.
    pub(crate) old_times: Times,
    /// The sound parts of history; `None` without a history, or when no part of it can be used.
    copy: Option<HistoryCopy>,
    /// The problems of the superblock and of history, each with its place.
    pub(crate) problems: Vec<(PathBuf, String)>,
    /// How much of history is sound.
    pub(crate) health: HistoryHealth,
    /// Whether a list or a table of records can't be used.
    pub(crate) lacks_records: bool,
}

impl<D: Disk> Diagnosis<D> {
    /// Diagnoses a directory. Every table that `read_whole` names is compared with its checksum.
    pub(crate) fn of(disk: &D, read_whole: ReadWhole) -> Result<Diagnosis<D>, OpenError> {
        let directory = LogDirectory::of_any(disk)?;
        let mut diagnosis = Diagnosis {
            marks: directory.marks(),
            retention_floor: 0,
            old_times: Times::new(),
            copy: None,
            problems: Vec::new(),
            health: HistoryHealth::Sound,
            lacks_records: false,
            directory,
        };
        if let Some(error) = diagnosis.directory.superblock_error(disk) {
            let file = match &error {
                OpenError::Superblock { file, .. } => file.clone(),
                _ => disk.path(""),
            };
            diagnosis.unusable(file, error.to_string());
            return Ok(diagnosis);
        }
        let Some(path) = disk.history() else {
            return Ok(diagnosis);
        };
        if let Some((log_id, stated)) = diagnosis.directory.stated_history() {
            let (log_id, stated) = (log_id, stated.clone());
            diagnosis.retention_floor = stated.retention_floor;
            let inspection = Inspection::of(&path, &stated, log_id, read_whole);
            diagnosis.health = inspection.health();
            diagnosis.lacks_records = inspection.keyspaces.iter().any(|inspected| {
                !inspected.is_whole() && generations::has_records(&inspected.stated.name)
            });
            match HistoryCopy::of_stated(private_directory()?, &stated, &inspection) {
                Ok(copy) => diagnosis.copy = Some(copy),
                Err(error) => diagnosis.unusable(path.clone(), error.reason),
            }
            let problems = inspection.into_problems().into_iter();
            let problems = problems.map(|problem| (path.clone(), problem.reason));
            diagnosis.problems.extend(problems);
        } else if diagnosis.directory.statement.is_none() && diagnosis.directory.history.is_some() {
            let directory = private_directory()?;
            if let Err(error) = diagnosis.read_old_marks(directory, &path) {
                diagnosis.unusable(path, error.reason);
            }
        } else if diagnosis.directory.history.is_some()
            && let Err(error) = diagnosis.directory.inspect(disk)
        {
            diagnosis.unusable(path, error.to_string());
        }
        Ok(diagnosis)
    }

    fn read_old_marks(&mut self, directory: TempDir, path: &Path) -> Result<(), HistoryError> {
        inspect::verify_without_statement(path)?;
        let copy = HistoryCopy::of_whole(directory, path)?;
        let old = OldMarks::read(&copy.history)?;
        (self.marks, self.retention_floor) = (old.marks, old.retention_floor);
        self.old_times = old.times;
        self.copy = Some(copy);
        Ok(())
    }

    fn unusable(&mut self, place: PathBuf, reason: String) {
        self.problems.push((place, reason));
        self.health = HistoryHealth::Unusable;
    }

    /// The sound parts of history, to be read only.
    pub(crate) fn history(&self) -> Option<&History> {
        self.copy.as_ref().map(|copy| &copy.history)
    }

    /// Every record up to this one was durable.
    pub(crate) fn durable_upto(&self) -> Sequence {
        let stated = self.directory.statement.as_ref();
        stated.map_or(0, |stated| stated.durable_upto)
    }
}
