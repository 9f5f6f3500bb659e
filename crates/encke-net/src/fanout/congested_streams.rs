//! Streams that most of their subscribers can't keep up with: what shards tell each other of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use encke_log::StreamNo;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// The jammed streams of a server, each with the number of shards in which it is.
#[derive(Debug, Default)]
pub(crate) struct CongestedStreams {
    /// How many streams there are, so that whoever asks while there is none need not wait for the others.
    count: AtomicUsize,
    streams: Mutex<HashMap<StreamNo, usize>>,
}

impl CongestedStreams {
    /// A stream is jammed in one more shard.
    pub(crate) fn begin(&self, stream: StreamNo) {
        let mut streams = self.streams.lock();
        *streams.entry(stream).or_default() += 1;
        self.count.store(streams.len(), Ordering::Relaxed);
    }

    /// A stream is jammed in one shard less.
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

    /// Whether a stream is jammed anywhere.
    pub(crate) fn has(&self, stream: StreamNo) -> bool {
        self.count() > 0 && self.streams.lock().contains_key(&stream)
    }

    /// How many streams are jammed.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_jammed_until_it_is_in_no_shard() {
        let jams = CongestedStreams::default();
        jams.begin(7);
        jams.begin(7);
        jams.begin(8);
        assert_eq!(jams.count(), 2);
        jams.end(7);
        assert!(jams.has(7) && jams.has(8) && !jams.has(9));
        jams.end(7);
        jams.end(8);
        assert!(!jams.has(7) && !jams.has(8));
        assert_eq!(jams.count(), 0);
    }
}
