//! What an operator wants to know of a log.

use crate::error::CommitError;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a log is, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What failed first, when the log takes no more records until it is opened again.
    pub poisoned: Option<Arc<str>>,
    /// Why history does not take sealed segments at the moment. It is tried again by itself.
    pub history_failed: Option<Arc<str>>,
    /// Sealed segments that are not in history yet.
    pub segments_waiting: usize,
    /// How long the last sync took; zero before the first.
    pub last_sync: Duration,
    /// How many syncs of records there were, and how long they took in all.
    pub syncs: u64,
    /// See `syncs`.
    pub syncing: Duration,
    /// How long [`Log::write`](crate::Log::write) has waited for a segment to be prepared or ingested, in all.
    pub waited: Duration,
    /// How long [`Log::write`](crate::Log::write) has taken to go from one segment to the next, in all: to make the old one
    /// durable to its end, and the head and the name of the new one. It is time of the disk, not of waiting.
    pub rolled: Duration,
    /// Bytes of segments on disk, those that are in history and still kept included.
    pub segment_bytes: u64,
    /// Bytes of history on disk.
    pub history_bytes: u64,
}

/// What the writer and the background work note as they go.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    poisoned: Mutex<Option<Arc<str>>>,
    history_failed: Mutex<Option<HistoryFailure>>,
    last_sync_ns: AtomicU64,
    syncs: AtomicU64,
    syncing_ns: AtomicU64,
    waited_ns: AtomicU64,
    rolled_ns: AtomicU64,
    segment_bytes: AtomicU64,
}

/// Why history does not take sealed segments.
#[derive(Clone, Debug)]
pub(crate) struct HistoryFailure {
    pub(crate) reason: Arc<str>,
    /// Whether it may well work when there is room again.
    pub(crate) shortage: bool,
}

impl HistoryFailure {
    /// As an error of a write that would need another segment.
    pub(crate) fn of_write(self, segment_bytes: u64) -> CommitError {
        let (bytes, reason) = (segment_bytes, self.reason);
        if self.shortage {
            CommitError::NoSpace { bytes, reason }
        } else {
            CommitError::HistoryFailed { reason }
        }
    }
}

impl Vitals {
    /// Notes what failed, if nothing has before, and gives the error for what failed first.
    pub(crate) fn poison(&self, reason: &str) -> CommitError {
        let mut poisoned = self.poisoned.lock();
        let first = poisoned.is_none();
        let reason = poisoned.get_or_insert_with(|| reason.into()).clone();
        if first {
            tracing::error!(%reason, "the log takes no more records");
        }
        CommitError::Poisoned { reason }
    }

    /// What failed first, if anything has.
    pub(crate) fn poisoned(&self) -> Option<Arc<str>> {
        self.poisoned.lock().clone()
    }

    pub(crate) fn add_sync(&self, took: Duration) {
        let took_ns = nanoseconds(took);
        self.last_sync_ns.store(took_ns, Ordering::Relaxed);
        self.syncing_ns.fetch_add(took_ns, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_waited(&self, waited: Duration) {
        self.waited_ns
            .fetch_add(nanoseconds(waited), Ordering::Relaxed);
    }

    pub(crate) fn add_rolled(&self, rolled: Duration) {
        self.rolled_ns
            .fetch_add(nanoseconds(rolled), Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.segment_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take_bytes(&self, bytes: u64) {
        self.segment_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_history_failed(&self, failure: Option<HistoryFailure>) {
        *self.history_failed.lock() = failure;
    }

    pub(crate) fn history_failed(&self) -> Option<HistoryFailure> {
        self.history_failed.lock().clone()
    }

    pub(crate) fn health(&self, segments_waiting: usize, history_bytes: u64) -> Health {
        Health {
            poisoned: self.poisoned(),
            history_failed: self.history_failed().map(|failure| failure.reason),
            segments_waiting,
            last_sync: Duration::from_nanos(self.last_sync_ns.load(Ordering::Relaxed)),
            syncs: self.syncs.load(Ordering::Relaxed),
            syncing: Duration::from_nanos(self.syncing_ns.load(Ordering::Relaxed)),
            waited: Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)),
            rolled: Duration::from_nanos(self.rolled_ns.load(Ordering::Relaxed)),
            segment_bytes: self.segment_bytes.load(Ordering::Relaxed),
            history_bytes,
        }
    }
}

/// Nanoseconds, of which 64 bits hold five centuries.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
