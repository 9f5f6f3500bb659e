//! What a directory holds, found out before anything in it is opened or changed.

use crate::copy::private_directory;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::files::Files;
use crate::fingerprints::Fingerprints;
use crate::history::{History, HistoryError};
use crate::inspect::{self, Inspection};
use crate::marks::{Marks, UnstatedMarks};
use crate::options::Options;
use crate::recover;
use crate::segment::{self, Segment};
use crate::statement::{StatedHistory, Statement};
use crate::superblock::Superblocks;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A directory and what is stated of it.
pub(crate) struct Opening<D: Disk> {
    pub(crate) names: Vec<String>,
    /// The logs of which the segments and the history say that they are: one, unless something is misplaced.
    pub(crate) log_ids: BTreeSet<u64>,
    pub(crate) superblocks: Superblocks<D::File>,
    /// `None` for a new log, and for one of a version that stated nothing.
    pub(crate) statement: Option<Statement>,
    /// The directory of the history that is there.
    pub(crate) history: Option<PathBuf>,
}

impl<D: Disk> Opening<D> {
    /// Reads the superblock. Nothing is changed.
    ///
    /// # Errors
    /// There must be a superblock, and there is no sound one.
    pub(crate) fn of(disk: &D) -> Result<Opening<D>, OpenError> {
        let opening = Opening::of_any(disk)?;
        match opening.unstated_reason(disk) {
            Some(reason) => Err(reason),
            None => Ok(opening),
        }
    }

    /// The same, also when there must be a superblock and is none.
    pub(crate) fn of_any(disk: &D) -> Result<Opening<D>, OpenError> {
        let names = disk.names();
        let names = names.map_err(|e| OpenError::io(&disk.path(""), "list", e))?;
        let log_ids = log_ids(disk, &names);
        let superblocks = Superblocks::read(disk, &log_ids)?;
        // A link or a file in the place of the directory is there, too.
        let history = disk
            .history()
            .filter(|path| path.symlink_metadata().is_ok());
        Ok(Opening {
            statement: superblocks.statement().cloned(),
            log_ids,
            names,
            superblocks,
            history,
        })
    }

    /// Why there must be a sound superblock, if there is none.
    pub(crate) fn unstated_reason(&self, disk: &D) -> Option<OpenError> {
        let identified = !self.log_ids.is_empty();
        let missing = self.superblocks.are_missing();
        if self.statement.is_some() || missing && !identified {
            return None;
        }
        let problems = self.superblocks.problems();
        let (name, _) = problems.first()?;
        let what: Vec<String> = (problems.iter())
            .map(|(name, what)| format!("{name}: {what}"))
            .collect();
        Some(OpenError::Superblock {
            file: disk.path(name),
            what: what.join("; "),
        })
    }

    /// How far the background work had come, as stated.
    pub(crate) fn marks(&self) -> Marks {
        let stated = self.statement.as_ref();
        Marks::stated(stated.and_then(|stated| stated.history.as_ref()))
    }

    /// Compares history with the statement, and finds out how far the background work had come.
    ///
    /// # Errors
    /// It does not hold what was stated.
    pub(crate) fn inspect(&self, disk: &D) -> Result<(Fingerprints, Marks), OpenError> {
        let marks = self.marks();
        let Some(path) = disk.history() else {
            return Ok((Fingerprints::default(), marks));
        };
        let wrong = |e: HistoryError| e.on_open(&path, "use");
        match self.stated_history() {
            Some((log_id, stated)) => {
                let inspection = Inspection::of(&path, stated, log_id);
                let fingerprints = inspection.fingerprints.clone();
                match inspection.into_problems().into_iter().next() {
                    Some(problem) => Err(wrong(problem)),
                    None => Ok((fingerprints, marks)),
                }
            }
            None => {
                let marks = self.inspect_unstated()?.map_err(wrong)?;
                Ok((Fingerprints::default(), marks))
            }
        }
    }

    /// What is stated of history, and the identity of the log.
    pub(crate) fn stated_history(&self) -> Option<(u64, &StatedHistory)> {
        let statement = self.statement.as_ref()?;
        Some((statement.log_id, statement.history.as_ref()?))
    }

    /// Looks at a history of which nothing is stated.
    fn inspect_unstated(&self) -> Result<Result<Marks, HistoryError>, OpenError> {
        Ok(match (&self.history, &self.statement) {
            (None, _) => Ok(Marks::default()),
            (Some(path), None) => {
                // One that a superblock stated is not opened without it.
                let directory = private_directory()?;
                inspect::verify_unstated(path)
                    .and_then(|()| UnstatedMarks::of_copy(directory, path))
                    .map(|unstated| unstated.marks)
            }
            // It was made, and the process ended before it was stated.
            (Some(path), Some(stated)) => {
                inspect::unstated_id(path, stated.log_id).map(|_| Marks::default())
            }
        })
    }

    /// Opens history, or makes an empty one if it is wanted. It must have been inspected.
    pub(crate) fn open_history(
        &self,
        disk: &D,
        log_id: u64,
        options: &Options,
    ) -> Result<Option<OpenedHistory>, OpenError> {
        let Some(path) = disk.history() else {
            return Ok(None);
        };
        let failed = |e: HistoryError| e.on_open(&path, "open");
        let cache_bytes = options.history_cache_bytes;
        if let Some((_, stated)) = self.stated_history() {
            let history = History::open(path.clone(), cache_bytes, stated.times())?;
            let there = history
                .with(|open| Ok(open.keyspace_names()))
                .map_err(failed)?;
            let lacks = stated.keyspaces.iter().find(|one| {
                let mut there = there.iter();
                !one.name.is_empty() && !there.any(|(id, name)| *id == one.id && *name == one.name)
            });
            if let Some(lacking) = lacks {
                let reason = format!(
                    "the engine has lost keyspace {} ({})",
                    lacking.id, lacking.name
                );
                return Err(failed(HistoryError::from(reason)));
            }
            let stated = stated.clone();
            return Ok(Some(OpenedHistory { history, stated }));
        }
        let id = match (&self.history, &self.statement) {
            (Some(_), None) => {
                let history = History::open_unstated(path, cache_bytes)?;
                return OpenedHistory::unstated(history, salt(disk)?).map(Some);
            }
            (Some(_), Some(_)) => inspect::unstated_id(&path, log_id).map_err(failed)?,
            (None, _) if options.history => {
                let id = salt(disk)?;
                History::make(&path, (log_id, id))?;
                id
            }
            (None, _) => return Ok(None),
        };
        let stated = StatedHistory {
            id,
            ..StatedHistory::default()
        };
        let history = History::open(path, cache_bytes, stated.times())?;
        Ok(Some(OpenedHistory { history, stated }))
    }
}

/// Finds out whether a log would be refused, and changes nothing. Of several logs all are looked at before the first is opened, so that a
/// refusal leaves all of them as they are. A directory without a log is fine.
///
/// # Errors
/// As [`Log::open`](crate::Log::open).
pub fn preflight(directory: &Path) -> Result<(), OpenError> {
    if !directory.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let disk = match Files::lock_existing(directory) {
        Err(OpenError::NoLog { .. }) => return Ok(()),
        locked => locked?,
    };
    let opening = Opening::of(&disk)?;
    let (_, marks) = opening.inspect(&disk)?;
    let (names, stated) = (&opening.names, opening.statement.as_ref());
    recover::find(&disk, names, stated, marks, &mut |_| {}).map(|_| ())
}

/// A history that is open, and what is to be stated of it.
pub(crate) struct OpenedHistory {
    pub(crate) history: History,
    pub(crate) stated: StatedHistory,
}

impl OpenedHistory {
    /// One of a version that kept its marks in the history itself.
    fn unstated(history: History, id: u64) -> Result<OpenedHistory, OpenError> {
        let unstated =
            UnstatedMarks::read(&history).map_err(|e| e.on_open(history.path(), "read"))?;
        let stated = StatedHistory {
            id,
            history_upto: unstated.marks.history_upto,
            checkpoint_upto: unstated.marks.checkpoint_upto,
            class_floors: unstated.class_floors,
            keyspaces: Vec::new(),
        };
        // Opened again, because the times of generations are known only now.
        let (path, cache_bytes) = (history.path().to_owned(), history.cache_bytes());
        drop(history);
        let history = History::open_unstated_with(path, cache_bytes, unstated.times)?;
        Ok(OpenedHistory { history, stated })
    }

    /// Identifies a history and adds its keyspaces to the statement.
    pub(crate) fn identify(&mut self, log_id: u64) -> Result<(), OpenError> {
        let path = self.history.path();
        let failed = |e: HistoryError| e.on_open(path, "write to");
        inspect::identify_history(path, log_id, self.stated.id)
            .map_err(|e| failed(HistoryError::from(e)))?;
        let identified = self.stated.keyspaces.iter().map(|one| one.id).collect();
        let ids = (log_id, self.stated.id);
        let keyspaces = self.history.stated_keyspaces(ids, &identified);
        self.stated.keyspaces = keyspaces.map_err(failed)?;
        Ok(())
    }
}

/// A random number for an identity.
pub(crate) fn salt<D: Disk>(disk: &D) -> Result<u64, OpenError> {
    // 0 stands for none.
    let salt = disk.salt().map(|salt| salt.max(1));
    salt.map_err(|e| OpenError::io(&disk.path(""), "find an identity for", e))
}

/// The identities of logs in the heads of sound segments and in the directory of history.
fn log_ids<D: Disk>(disk: &D, names: &[String]) -> BTreeSet<u64> {
    let segments = names
        .iter()
        .filter(|name| segment::first_of(name).is_some());
    let segments = segments.filter_map(|name| Segment::open(disk, name).ok());
    let of_segments = segments.map(|segment| segment.log_id).filter(|id| *id != 0);
    let of_history = disk.history().and_then(|path| inspect::log_id(&path));
    of_segments.chain(of_history).collect()
}
