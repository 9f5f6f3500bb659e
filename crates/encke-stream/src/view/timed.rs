//! The streams in memory that end by themselves, by number.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use encke_log::StreamNo;
use foldhash::fast::FixedState;
use parking_lot::Mutex;

use crate::Stream;

/// The streams in memory that end by themselves. They do not stay in memory for that.
#[derive(Debug)]
pub(super) struct TimedStreams {
    parts: Vec<Mutex<HashMap<StreamNo, Weak<Stream>, FixedState>>>,
}

impl TimedStreams {
    /// An empty table of that many parts, each with a lock of its own.
    pub(super) fn new(parts: usize) -> TimedStreams {
        TimedStreams {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
        }
    }

    /// Adds a stream, if it ends by itself.
    pub(super) fn insert(&self, stream: &Arc<Stream>) {
        if stream.is_timed() {
            let weak = Arc::downgrade(stream);
            self.part(stream.no).lock().insert(stream.no, weak);
        }
    }

    pub(super) fn remove(&self, stream: &Stream) {
        if stream.is_timed() {
            self.part(stream.no).lock().remove(&stream.no);
        }
    }

    pub(super) fn get(&self, no: StreamNo) -> Option<Arc<Stream>> {
        self.part(no).lock().get(&no)?.upgrade()
    }

    fn part(&self, no: StreamNo) -> &Mutex<HashMap<StreamNo, Weak<Stream>, FixedState>> {
        &self.parts[no as usize % self.parts.len()]
    }
}
