//! The streams whose subscribers cannot keep up, in any shard.

use std::sync::atomic::{AtomicUsize, Ordering};

use encke_log::StreamNo;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// The congested streams of a server, each with the number of shards in which it is congested.
#[derive(Debug, Default)]
pub(crate) struct CongestedStreams {
    /// The number of streams, so that the usual case takes no lock.
    count: AtomicUsize,
    streams: Mutex<HashMap<StreamNo, usize>>,
}

impl CongestedStreams {
    /// A stream is congested in one more shard.
    pub(crate) fn begin(&self, stream: StreamNo) {
        let mut streams = self.streams.lock();
        *streams.entry(stream).or_default() += 1;
        self.count.store(streams.len(), Ordering::Relaxed);
    }

    /// A stream is congested in one shard less.
    pub(crate) fn end(&self, stream: StreamNo) {
        let mut streams = self.streams.lock();
        if let Some(shards) = streams.get_mut(&stream) {
            *shards -= 1;
            if *shards == 0 {
                streams.remove(&stream);
            }
        }
        self.count.store(streams.len(), Ordering::Relaxed);
    }

    /// Whether a stream is congested in any shard.
    pub(crate) fn has(&self, stream: StreamNo) -> bool {
        self.count() > 0 && self.streams.lock().contains_key(&stream)
    }

    /// The number of congested streams.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_congested_until_it_is_in_no_shard() {
        let congested = CongestedStreams::default();
        congested.begin(7);
        congested.begin(7);
        congested.begin(8);
        assert_eq!(congested.count(), 2);
        congested.end(7);
        assert!(congested.has(7) && congested.has(8) && !congested.has(9));
        congested.end(7);
        congested.end(8);
        assert!(!congested.has(7) && !congested.has(8));
        assert_eq!(congested.count(), 0);
    }
}
