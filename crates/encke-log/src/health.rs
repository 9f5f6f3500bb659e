//! The health of a log, for operators.

use crate::error::{CommitError, ReadError};
use crate::ids::Sequence;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The health of a log at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The first failure of a poisoned log, which takes no more records until it is opened again.
    pub poisoned: Option<Arc<str>>,
    /// Why history does not take sealed segments. The background retries.
    pub history_failed: Option<Arc<str>>,
    /// Whether that is a shortage of room, which may pass.
    pub history_lacks_room: bool,
    /// Why stored data can't be read. The failed read is repeated in the background.
    pub reads_failing: Option<Arc<str>>,
    /// Sealed segments that are not in history yet.
    pub segments_waiting: usize,
    /// Duration of the last sync; zero before the first.
    pub last_sync: Duration,
    /// The number of syncs of records, and their total duration.
    pub syncs: u64,
    /// See `syncs`.
    pub syncing: Duration,
    /// How long [`Log::write`](crate::Log::write) has waited in total for a segment to be prepared or ingested.
    pub waited: Duration,
    /// How long [`Log::write`](crate::Log::write) has taken in total to go from one segment to the next: to make the
    /// old one durable to its end, and the head and the name of the new one. This is time of the disk, not of waiting.
    pub rolled: Duration,
    /// The number of calls of [`Log::write`](crate::Log::write) that took [`STALL`] or more, without the time in
    /// `rolled`, and the longest duration of all calls. A log message names the cause of each.
    pub stalls: u64,
    /// See `stalls`.
    pub longest_stall: Duration,
    /// Bytes of segments on disk, including those that are in history and still kept.
    pub segment_bytes: u64,
    /// Bytes of history on disk, measured after each change by the background and once a minute.
    pub history_bytes: u64,
}

/// A write that takes this long is a stall.
pub const STALL: Duration = Duration::from_millis(50);

/// The parts of the duration of a [`Log::write`](crate::Log::write).
#[derive(Debug, Default)]
pub(crate) struct WriteTime {
    /// Waiting for room in history, and for a segment to be prepared.
    pub(crate) for_history: Duration,
    pub(crate) for_segment: Duration,
    /// Going from one segment to the next, on the disk.
    pub(crate) rolling: Duration,
}

/// What the writer and the background work report.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    poisoned: Mutex<Option<Arc<str>>>,
    history_failed: Mutex<Option<HistoryFailure>>,
    failed_read: Mutex<Option<Arc<str>>>,
    last_sync_ns: AtomicU64,
    syncs: AtomicU64,
    syncing_ns: AtomicU64,
    waited_ns: AtomicU64,
    rolled_ns: AtomicU64,
    stalls: AtomicU64,
    longest_stall_ns: AtomicU64,
    segment_bytes: AtomicU64,
    history_bytes: AtomicU64,
}

/// Why history does not take sealed segments.
#[derive(Clone, Debug)]
pub(crate) struct HistoryFailure {
    pub(crate) reason: Arc<str>,
    /// Whether it may work when there is room again.
    pub(crate) shortage: bool,
}

impl HistoryFailure {
    /// As the error of a write that needs another segment.
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
    /// Notes a failure, unless there was one before. Returns the error for the first failure.
    pub(crate) fn poison(&self, reason: &str) -> CommitError {
        let mut poisoned = self.poisoned.lock();
        let first = poisoned.is_none();
        let reason = poisoned.get_or_insert_with(|| reason.into()).clone();
        if first {
            tracing::error!(%reason, "the log takes no more records");
        }
        CommitError::Poisoned { reason }
    }

    /// The first failure, if any.
    pub(crate) fn poisoned(&self) -> Option<Arc<str>> {
        self.poisoned.lock().clone()
    }

    pub(crate) fn add_sync(&self, took: Duration) {
        let took_ns = nanoseconds(took);
        self.last_sync_ns.store(took_ns, Ordering::Relaxed);
        self.syncing_ns.fetch_add(took_ns, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the duration of a write and its parts; logs a stall.
    pub(crate) fn add_write(&self, took: Duration, time: &WriteTime, upto: Sequence) {
        let waited = time.for_history + time.for_segment;
        let add = |to: &AtomicU64, time| to.fetch_add(nanoseconds(time), Ordering::Relaxed);
        if !waited.is_zero() {
            add(&self.waited_ns, waited);
        }
        if !time.rolling.is_zero() {
            add(&self.rolled_ns, time.rolling);
        }
        let stall = took.saturating_sub(time.rolling);
        self.longest_stall_ns
            .fetch_max(nanoseconds(stall), Ordering::Relaxed);
        if stall < STALL {
            return;
        }
        self.stalls.fetch_add(1, Ordering::Relaxed);
        let causes = [
            (
                "it waited until history had taken a segment",
                time.for_history,
            ),
            (
                "it waited for the next segment to be prepared",
                time.for_segment,
            ),
            ("the write itself took long", stall.saturating_sub(waited)),
        ];
        let cause = causes.iter().max_by_key(|(_, took)| *took);
        tracing::warn!(
            upto,
            took = ?stall,
            cause = cause.map_or("", |(cause, _)| cause),
            "a write stalled"
        );
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.segment_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take_bytes(&self, bytes: u64) {
        self.segment_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_history_bytes(&self, bytes: u64) {
        self.history_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_history_failed(&self, failure: Option<HistoryFailure>) {
        *self.history_failed.lock() = failure;
    }

    pub(crate) fn history_failed(&self) -> Option<HistoryFailure> {
        self.history_failed.lock().clone()
    }

    /// Notes why a read failed, unless a failed read is noted already. Returns whether it was noted.
    pub(crate) fn note_failed_read(&self, error: &ReadError) -> bool {
        let mut failed = self.failed_read.lock();
        if failed.is_some() {
            return false;
        }
        let reason = format!("reads fail: {error}");
        tracing::error!(reason, "the read is repeated until it works");
        *failed = Some(reason.into());
        true
    }

    /// Notes that the failed read works again.
    pub(crate) fn clear_failed_read(&self) {
        if let Some(reason) = self.failed_read.lock().take() {
            tracing::warn!(%reason, "the read works again");
        }
    }

    pub(crate) fn health(&self, segments_waiting: usize) -> Health {
        let history_failed = self.history_failed();
        Health {
            poisoned: self.poisoned(),
            history_lacks_room: history_failed
                .as_ref()
                .is_some_and(|failed| failed.shortage),
            history_failed: history_failed.map(|failed| failed.reason),
            reads_failing: self.failed_read.lock().clone(),
            segments_waiting,
            last_sync: Duration::from_nanos(self.last_sync_ns.load(Ordering::Relaxed)),
            syncs: self.syncs.load(Ordering::Relaxed),
            syncing: Duration::from_nanos(self.syncing_ns.load(Ordering::Relaxed)),
            waited: Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)),
            rolled: Duration::from_nanos(self.rolled_ns.load(Ordering::Relaxed)),
            stalls: self.stalls.load(Ordering::Relaxed),
            longest_stall: Duration::from_nanos(self.longest_stall_ns.load(Ordering::Relaxed)),
            segment_bytes: self.segment_bytes.load(Ordering::Relaxed),
            history_bytes: self.history_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Nanoseconds; 64 bits are enough for five centuries.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
