//! A sync in two steps, so that nobody has to keep the log to himself while the disk works.

use crate::Sequence;
use crate::disk::{Disk, DiskFile};
use crate::error::CommitError;
use crate::files::Files;
use crate::log::Log;
use crate::segment::Segment;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was written and is to be made durable; see [`Log::late_sync`].
#[derive(Debug)]
#[must_use = "nothing is durable before it has run and the log has heard of it"]
pub struct LateSync<D: Disk = Files> {
    segment: Arc<Segment<D::File>>,
    written_upto: Sequence,
}

/// How it went; for [`Log::late_synced`].
#[derive(Debug)]
#[must_use = "the log must hear of it, above all of a failure"]
pub struct LateSynced {
    pub(crate) written_upto: Sequence,
    pub(crate) took: Duration,
    pub(crate) result: io::Result<()>,
}

impl<D: Disk> LateSync<D> {
    /// Waits for the disk.
    pub fn run(self) -> LateSynced {
        let begun = Instant::now();
        let result = self.segment.file.sync();
        LateSynced {
            written_upto: self.written_upto,
            took: begun.elapsed(),
            result,
        }
    }
}

impl<D: Disk> Log<D> {
    /// Begins what [`Log::sync`] does, to be run without the log; `None` when everything is durable, or the log poisoned.
    /// Until [`Log::late_synced`] has heard how it went, frames may be appended and published, and nothing may be written
    /// or synced: of two syncs at the same time only one hears of a failure.
    pub fn late_sync(&self) -> Option<LateSync<D>> {
        let (segment, written_upto) = self.unsynced()?;
        Some(LateSync {
            segment: Arc::clone(segment),
            written_upto,
        })
    }

    /// Takes note of how a late sync went.
    ///
    /// # Errors
    /// As [`Log::sync`]: it failed, and the log is poisoned.
    pub fn late_synced(&mut self, synced: LateSynced) -> Result<(), CommitError> {
        self.note_sync(synced.took, synced.result, synced.written_upto)
    }
}
