//! The log under repair, shared by the parts of a repair.

use crate::diagnosis::Diagnosis;
use crate::diagnosis::survey::Surveyed;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::start::log_directory::salt;
use crate::superblock::statement::{StatedHistory, StatedKeyspace, Statement};
use crate::superblock::{Superblock, Superblocks};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A log under repair, and what was found in its directory.
pub(crate) struct DamagedLog<'r, D: Disk> {
    pub(crate) disk: &'r D,
    pub(crate) diagnosis: &'r Diagnosis<D>,
    pub(crate) surveyed: &'r [Surveyed<D::File>],
}

impl<D: Disk> DamagedLog<'_, D> {
    pub(crate) fn history_path(&self) -> PathBuf {
        self.disk.history().unwrap_or_default()
    }

    /// A statement for a log that has none.
    pub(crate) fn new_statement(&self) -> Result<Statement, OpenError> {
        let of_segments = self.surveyed.iter().rev();
        let segments = of_segments.filter_map(|found| found.segment.as_ref());
        let id = segments
            .clone()
            .map(|segment| segment.log_id)
            .find(|id| *id != 0);
        let log_id = match id {
            Some(id) => id,
            None => salt(self.disk)?,
        };
        let identified_from = segments.clone().find(|segment| segment.log_id == 0);
        let marks = self.diagnosis.marks;
        let history = self.diagnosis.history().map(|_| StatedHistory {
            history_upto: marks.history_upto,
            checkpoint_upto: marks.checkpoint_upto,
            retention_floor: self.diagnosis.retention_floor,
            keyspaces: (self.diagnosis.old_times.iter())
                .map(|(name, times)| StatedKeyspace {
                    name: name.clone(),
                    times: Some(*times),
                    ..StatedKeyspace::default()
                })
                .collect(),
            ..StatedHistory::default()
        });
        Ok(Statement {
            log_id,
            identified_from: identified_from.map_or(1, |segment| segment.number + 1),
            last: None,
            durable_upto: 0,
            history,
        })
    }

    /// The number that follows those of all segments.
    pub(crate) fn next_number(&self) -> u64 {
        let segments = self.surveyed.iter();
        let numbers = segments.filter_map(|found| Some(found.segment.as_ref()?.number + 1));
        let stated = self.diagnosis.directory.statement.as_ref();
        let stated = stated.and_then(|stated| Some(stated.last?.number + 1));
        numbers.chain(stated).max().unwrap_or(1)
    }

    pub(crate) fn sync_names(&self) -> Result<(), OpenError> {
        let synced = self.disk.sync_names();
        synced.map_err(|e| OpenError::io(&self.disk.path(""), "sync the directory", e))
    }

    pub(crate) fn state(&self, statement: Statement) -> Result<(), OpenError> {
        let found = Superblocks::read(self.disk, &BTreeSet::from([statement.log_id]))?;
        Superblock::write(self.disk, found, statement).map(|_| ())
    }
}

/// A free name for a history that is set aside.
pub(crate) fn aside_path(history: &Path) -> PathBuf {
    let name = |n: u32| history.with_extension(format!("dropped-{n}"));
    (1..)
        .map(name)
        .find(|path| path.symlink_metadata().is_err())
        .unwrap_or_else(|| name(0))
}
