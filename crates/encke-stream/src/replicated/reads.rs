//! The reads of a node of a fleet that renew sliding lifetimes. Readers note them; the node proposes the renewals.

use std::collections::HashMap;
use std::sync::Arc;

use encke_clock::Now;
use encke_log::StreamNo;
use foldhash::fast::FixedState;
use parking_lot::Mutex;

use crate::Stream;

/// Streams with sliding lifetimes that were read, or that are read live, at this node.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Read, and not proposed yet.
    once: Mutex<Streams>,
    /// With live readers.
    live: Mutex<Streams>,
}

type Streams = HashMap<StreamNo, Arc<Stream>, FixedState>;

impl Reads {
    /// Notes a read.
    pub(crate) fn note(&self, stream: &Arc<Stream>) {
        let mut once = self.once.lock();
        if once.len() < ONCE_MAX {
            once.insert(stream.no, Arc::clone(stream));
        }
    }

    /// Takes the streams that were read since the last call.
    pub(crate) fn take(&self) -> Vec<Arc<Stream>> {
        let mut once = self.once.lock();
        once.drain().map(|(_, stream)| stream).collect()
    }

    /// Notes that a stream has live readers.
    pub(crate) fn begin_live(&self, stream: &Arc<Stream>) {
        if stream.is_sliding() {
            let mut live = self.live.lock();
            live.insert(stream.no, Arc::clone(stream));
        }
    }

    /// Notes that a stream may have no live readers any more. `is_read` says whether it has some by now.
    pub(crate) fn end_live(&self, no: StreamNo, is_read: impl FnOnce() -> bool) {
        let mut live = self.live.lock();
        // Behind the lock: who begins to read it meanwhile adds it again.
        if !is_read() {
            live.remove(&no);
        }
    }

    /// The streams with live readers whose lifetimes must be renewed.
    pub(crate) fn unrenewed(&self, now: Now) -> Vec<Arc<Stream>> {
        let live = self.live.lock();
        let due = live.values().filter(|stream| stream.is_half_over(now));
        due.cloned().collect()
    }
}

/// The most streams whose reads wait to be proposed. Further streams are noted with their next read.
const ONCE_MAX: usize = 100_000;
