//! The content of a log's directory, read before anything in it is opened or changed.

use crate::disk::Disk;
use crate::disk::file_name;
use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::generations::Times;
use crate::history::old_marks::{self, OldMarks};
use crate::history::tree;
use crate::history::verify::fingerprints::Fingerprints;
use crate::history::verify::inspect::{self, Inspection, ReadWhole};
use crate::history::verify::lists::CURRENT;
use crate::history::verify::private_copy::{HistoryCopy, private_directory};
use crate::options::Options;
use crate::segments::segment::Segment;
use crate::superblock::Superblocks;
use crate::superblock::statement::Marks;
use crate::superblock::statement::{StatedHistory, Statement};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The content of a directory, and its statement.
pub(crate) struct LogDirectory<D: Disk> {
    pub(crate) names: Vec<String>,
    /// The log identities in segments and in history: one, unless a file is misplaced. None for a log of a version
    /// without superblocks, also if its first start by this version was interrupted.
    pub(crate) log_ids: BTreeSet<u64>,
    pub(crate) superblocks: Superblocks<D::File>,
    /// `None` for a new log, and for one of a version without superblocks.
    pub(crate) statement: Option<Statement>,
    /// The directory of the existing history.
    pub(crate) history: Option<PathBuf>,
}

impl<D: Disk> LogDirectory<D> {
    /// Reads the superblock. Nothing is changed.
    ///
    /// # Errors
    /// A superblock is required, and there is no sound one.
    pub(crate) fn of(disk: &D) -> Result<LogDirectory<D>, OpenError> {
        let found = LogDirectory::of_any(disk)?;
        match found.superblock_error(disk) {
            Some(reason) => Err(reason),
            None => Ok(found),
        }
    }

    /// [`LogDirectory::of`], but also without a required superblock.
    pub(crate) fn of_any(disk: &D) -> Result<LogDirectory<D>, OpenError> {
        let names = disk.names();
        let names = names.map_err(|e| OpenError::io(&disk.path(""), "list", e))?;
        // A link or a file in the place of the directory counts.
        let history = disk
            .history()
            .filter(|path| path.symlink_metadata().is_ok());
        let mut log_ids = ids_of_segments(disk, &names);
        let is_in_segments = !log_ids.is_empty();
        log_ids.extend(history.as_deref().and_then(inspect::log_id));
        let superblocks = Superblocks::read(disk, &log_ids)?;
        // The first start by this version identifies history before it states it.
        if let Some(path) = &history
            && superblocks.are_missing()
            && !is_in_segments
            && !log_ids.is_empty()
            && old_marks::is_of_older_version(path)?
        {
            log_ids.clear();
        }
        Ok(LogDirectory {
            statement: superblocks.statement().cloned(),
            log_ids,
            names,
            superblocks,
            history,
        })
    }

    /// The error when a sound superblock is required and there is none.
    pub(crate) fn superblock_error(&self, disk: &D) -> Option<OpenError> {
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

    /// The stated progress of the background work.
    pub(crate) fn marks(&self) -> Marks {
        let stated = self.statement.as_ref();
        Marks::stated(stated.and_then(|stated| stated.history.as_ref()))
    }

    /// Compares history with the statement. Returns the progress of the background work.
    ///
    /// # Errors
    /// History does not hold what is stated.
    pub(crate) fn inspect(&self, disk: &D) -> Result<(Fingerprints, Marks), OpenError> {
        let marks = self.marks();
        let Some(path) = disk.history() else {
            return Ok((Fingerprints::default(), marks));
        };
        let wrong = |e: HistoryError| e.on_open(&path, "use");
        match self.stated_history() {
            Some((log_id, stated)) => {
                let inspection = Inspection::of(&path, stated, log_id, ReadWhole::Unknown);
                let fingerprints = inspection.fingerprints.clone();
                match inspection.into_problems().into_iter().next() {
                    Some(problem) => Err(wrong(problem)),
                    None => Ok((fingerprints, marks)),
                }
            }
            None => {
                let marks = self.inspect_without_statement()?.map_err(wrong)?;
                Ok((Fingerprints::default(), marks))
            }
        }
    }

    /// The identity of the log, and the statement of its history.
    pub(crate) fn stated_history(&self) -> Option<(u64, &StatedHistory)> {
        let statement = self.statement.as_ref()?;
        Some((statement.log_id, statement.history.as_ref()?))
    }

    /// Inspects a history that is not stated.
    fn inspect_without_statement(&self) -> Result<Result<Marks, HistoryError>, OpenError> {
        Ok(match (&self.history, &self.statement) {
            (None, _) => Ok(Marks::default()),
            (Some(path), None) => {
                // A history that was ever stated is not opened without its superblock.
                let directory = private_directory()?;
                inspect::verify_without_statement(path)
                    .and_then(|()| HistoryCopy::of_whole(directory, path))
                    .and_then(|copy| OldMarks::read(&copy.history))
                    .map(|old| old.marks)
            }
            // The process ended after it made history and before it stated it.
            (Some(path), Some(stated)) => {
                inspect::id_without_statement(path, stated.log_id).map(|_| Marks::default())
            }
        })
    }

    /// Opens history, or makes an empty one if the options ask for it. It must have been inspected.
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
            // The engine renames a list of tables and then syncs its directory. A kill in between left a name that is stated
            // from now on.
            for keyspace in &stated.keyspaces {
                let list = inspect::keyspaces(&path)
                    .join(keyspace.id.to_string())
                    .join(CURRENT);
                tree::sync_parent(&list).map_err(|e| failed(e.into()))?;
            }
            let history = History::open(path.clone(), cache_bytes, stated.times())?;
            check_keyspaces(&history, stated).map_err(failed)?;
            let stated = stated.clone();
            return Ok(Some(OpenedHistory { history, stated }));
        }
        let id = match (&self.history, &self.statement) {
            (Some(_), None) => {
                let history = History::open_without_statement(path, cache_bytes, Times::new())?;
                return OpenedHistory::with_old_marks(history, salt(disk)?).map(Some);
            }
            (Some(_), Some(_)) => inspect::id_without_statement(&path, log_id).map_err(failed)?,
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

/// An open history, and its statement.
pub(crate) struct OpenedHistory {
    pub(crate) history: History,
    pub(crate) stated: StatedHistory,
}

impl OpenedHistory {
    /// A history of a version that kept its marks in the history itself.
    fn with_old_marks(history: History, id: u64) -> Result<OpenedHistory, OpenError> {
        let old = OldMarks::read(&history).map_err(|e| e.on_open(history.path(), "read"))?;
        let stated = StatedHistory {
            id,
            history_upto: old.marks.history_upto,
            checkpoint_upto: old.marks.checkpoint_upto,
            retention_floor: old.retention_floor,
            keyspaces: Vec::new(),
        };
        // The tree needs the times of generations, which are known only now.
        let (path, cache_bytes) = (history.path().to_owned(), history.cache_bytes());
        drop(history);
        let history = History::open_without_statement(path, cache_bytes, old.times)?;
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

/// Compares the keyspaces of an open history with the statement.
///
/// # Errors
/// The engine does not know a stated keyspace.
pub(crate) fn check_keyspaces(
    history: &History,
    stated: &StatedHistory,
) -> Result<(), HistoryError> {
    let there = history.with(|open| Ok(open.keyspace_names()))?;
    let lacks = stated.keyspaces.iter().find(|one| {
        let mut there = there.iter();
        !one.name.is_empty() && !there.any(|(id, name)| *id == one.id && *name == one.name)
    });
    match lacks {
        None => Ok(()),
        Some(lacking) => {
            let (id, name) = (lacking.id, &lacking.name);
            let reason = format!("the engine has lost keyspace {id} ({name})");
            Err(HistoryError::from(reason))
        }
    }
}

/// A random number for an identity.
pub(crate) fn salt<D: Disk>(disk: &D) -> Result<u64, OpenError> {
    // 0 means no identity.
    let salt = disk.salt().map(|salt| salt.max(1));
    salt.map_err(|e| OpenError::io(&disk.path(""), "find an identity for", e))
}

/// The log identities in the heads of sound segments.
fn ids_of_segments<D: Disk>(disk: &D, names: &[String]) -> BTreeSet<u64> {
    let segments = names
        .iter()
        .filter(|name| file_name::first_of(name).is_some());
    let segments = segments.filter_map(|name| Segment::open(disk, name).ok());
    let ids = segments.map(|segment| segment.log_id);
    ids.filter(|id| *id != 0).collect()
}
