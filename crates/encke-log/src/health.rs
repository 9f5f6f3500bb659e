//! What an operator wants to know of a log.

use crate::Sequence;
use crate::error::{CommitError, ReadError};
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
    /// Whether that is for want of room, and may work when there is some again.
    pub history_lacks_room: bool,
    /// Why something that is stored can't be read at the moment. The read that failed is repeated by itself.
    pub reads_failing: Option<Arc<str>>,
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
    /// How many calls of [`Log::write`](crate::Log::write) took [`STALL`] or more beside what is in `rolled`, and how long the
    /// longest of all took. Its cause is in the process's own log.
    pub stalls: u64,
    /// See `stalls`.
    pub longest_stall: Duration,
    /// Bytes of segments on disk, those that are in history and still kept included.
    pub segment_bytes: u64,
    /// Bytes of history on disk.
    pub history_bytes: u64,
}

/// From when on a write that waits is a stall: somebody notices.
pub const STALL: Duration = Duration::from_millis(50);

/// One call of [`Log::write`](crate::Log::write), for who wants to know why it took long.
#[derive(Debug, Default)]
pub(crate) struct WriteTime {
    /// For room in history, and for a segment to be prepared.
    pub(crate) for_history: Duration,
    pub(crate) for_segment: Duration,
    /// For the disk, to go from one segment to the next.
    pub(crate) rolling: Duration,
}

/// What the writer and the background work note as they go.
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

    /// Notes how long a write took in all, and of that what it waited for; says so if it was a stall.
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

    pub(crate) fn set_history_failed(&self, failure: Option<HistoryFailure>) {
        *self.history_failed.lock() = failure;
    }

    pub(crate) fn history_failed(&self) -> Option<HistoryFailure> {
        self.history_failed.lock().clone()
    }

    /// Notes why a read failed, if none has before; whether that is so.
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

    /// Notes that the read that failed works again.
    pub(crate) fn clear_failed_read(&self) {
        if let Some(reason) = self.failed_read.lock().take() {
            tracing::warn!(%reason, "the read works again");
        }
    }

    pub(crate) fn health(&self, segments_waiting: usize, history_bytes: u64) -> Health {
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
            history_bytes,
        }
    }
}

/// Nanoseconds, of which 64 bits hold five centuries.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
