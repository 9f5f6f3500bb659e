//! A sync in two steps, so that a caller can use the log while the disk works.

use crate::disk::files::Files;
use crate::disk::{Disk, DiskFile};
use crate::ids::Sequence;
use crate::segments::segment::Segment;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A sync that was begun; see [`Log::defer_sync`](crate::Log::defer_sync).
#[derive(Debug)]
#[must_use = "nothing is durable before it has run and its result is passed to the log"]
pub struct DeferredSync<D: Disk = Files> {
    segment: Arc<Segment<D::File>>,
    written_upto: Sequence,
}

/// The result of a sync; for [`Log::finish_sync`](crate::Log::finish_sync).
#[derive(Debug)]
#[must_use = "the log must get the result, above all a failure"]
pub struct DeferredSyncResult {
    pub(crate) written_upto: Sequence,
    pub(crate) took: Duration,
    pub(crate) result: io::Result<()>,
}

impl<D: Disk> DeferredSync<D> {
    /// The sync of a segment that is written up to a record.
    pub(crate) fn new(segment: Arc<Segment<D::File>>, written_upto: Sequence) -> DeferredSync<D> {
        DeferredSync {
            segment,
            written_upto,
        }
    }

    /// Waits for the disk.
    pub fn run(self) -> DeferredSyncResult {
        let begun = Instant::now();
        let result = self.segment.file.sync();
        DeferredSyncResult {
            written_upto: self.written_upto,
            took: begun.elapsed(),
            result,
        }
    }
}
