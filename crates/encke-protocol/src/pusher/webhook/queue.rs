//! Events of webhooks that clients cause, on their way to the log.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Records that wait to be written.
#[derive(Default)]
pub(crate) struct WebhookQueue {
    waiting: Mutex<WaitingRecords>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct WaitingRecords {
    records: Vec<Vec<u8>>,
    bytes: usize,
    /// Those that are said once, however often they happen.
    once: HashSet<Vec<u8>>,
    /// Their bytes, here and in the set.
    once_bytes: usize,
}

impl WebhookQueue {
    /// Adds a record, unless too much waits.
    pub(crate) fn push(&self, record: Vec<u8>) {
        let mut waiting = self.waiting();
        if waiting.bytes + record.len() > QUEUE_BYTES_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += record.len();
        waiting.records.push(record);
    }

    /// Adds a record that anybody can cause, unless the same one waits, or too many of these. They take no room of the others.
    pub(crate) fn push_once(&self, record: Vec<u8>) {
        let mut waiting = self.waiting();
        if waiting.once.contains(&record) {
            return;
        }
        let bytes = 2 * record.len();
        if waiting.once_bytes + bytes > ONCE_BYTES_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.once_bytes += bytes;
        waiting.records.push(record.clone());
        waiting.once.insert(record);
    }

    /// What waits, in order.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.waiting()).records
    }

    /// Records that were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingRecords> {
        // No code that holds it can panic halfway through a change.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for WebhookQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookQueue")
    }
}

/// Bytes that wait. They are written ten times per second.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// The same of records that are said once.
const ONCE_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_a_bound() {
        let queue = WebhookQueue::default();
        for _ in 0..5 {
            queue.push(vec![b'x'; QUEUE_BYTES_MAX / 4]);
        }
        assert_eq!((queue.take().len(), queue.take_dropped()), (4, 1));
        queue.push(vec![b'x']);
        assert_eq!((queue.take(), queue.take_dropped()), (vec![vec![b'x']], 0));
    }

    #[test]
    fn what_happens_again_before_it_is_written_waits_once() {
        let queue = WebhookQueue::default();
        for record in [b"a", b"b", b"a"] {
            queue.push_once(record.to_vec());
        }
        assert_eq!(queue.take(), [b"a", b"b"]);
        queue.push_once(b"a".to_vec());
        assert_eq!(queue.take(), [b"a"]);
    }

    #[test]
    fn what_anybody_can_cause_takes_no_room_of_client_events() {
        let queue = WebhookQueue::default();
        for number in 0..5_000 {
            queue.push_once(format!("{number:1000}").into_bytes());
        }
        assert!(queue.take_dropped() > 0);
        queue.push(vec![0; QUEUE_BYTES_MAX]);
        assert_eq!(queue.take_dropped(), 0);
        let bytes: usize = queue.take().iter().map(Vec::len).sum();
        assert!(bytes <= QUEUE_BYTES_MAX + ONCE_BYTES_MAX);
    }
}
