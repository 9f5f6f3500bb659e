//! Which shards have subscribers of which streams, whether the streams are in memory or not.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use encke_log::StreamNo;
use parking_lot::Mutex;

use crate::Stream;

/// One bit for each shard that has subscribers, by stream. Streams without subscribers are not in the table.
#[derive(Debug)]
pub(crate) struct Watchers {
    parts: Vec<Mutex<HashMap<StreamNo, u64, foldhash::fast::FixedState>>>,
}

impl Default for Watchers {
    fn default() -> Self {
        Watchers {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Watchers {
    /// Notes that a shard has subscribers of a stream.
    pub(crate) fn add(&self, stream: &Stream, shard: u16) {
        let mut part = self.part(stream.no).lock();
        *part.entry(stream.no).or_default() |= watcher(shard);
        stream.watched.store(true, Ordering::SeqCst);
    }

    /// Notes that a shard has no subscribers of a stream any more.
    pub(crate) fn remove(&self, no: StreamNo, shard: u16) {
        let mut part = self.part(no).lock();
        // The last bit is for all further shards, so it is never cleared.
        if usize::from(shard) < WATCHERS_MAX - 1
            && let Some(watchers) = part.get_mut(&no)
        {
            *watchers &= !watcher(shard);
            if *watchers == 0 {
                part.remove(&no);
            }
        }
    }

    /// The shards that have subscribers of a stream, one bit each. The last bit is for all further shards.
    pub(crate) fn of(&self, stream: &Stream) -> u64 {
        if !stream.watched.load(Ordering::SeqCst) {
            return 0;
        }
        let part = self.part(stream.no).lock();
        let watchers = part.get(&stream.no).copied().unwrap_or_default();
        if watchers == 0 {
            // No shard can add itself before the lock is released.
            stream.watched.store(false, Ordering::SeqCst);
        }
        watchers
    }

    fn part(&self, no: StreamNo) -> &Mutex<HashMap<StreamNo, u64, foldhash::fast::FixedState>> {
        &self.parts[no as usize % PARTS]
    }
}

/// The bit of a shard.
pub(crate) fn watcher(shard: u16) -> u64 {
    1 << usize::from(shard).min(WATCHERS_MAX - 1)
}

/// The number of bits.
const WATCHERS_MAX: usize = u64::BITS as usize;

/// The number of parts. A part that grows moves its content at once: with 10,000,000 streams in 64 parts that takes 6
/// ms.
const PARTS: usize = 256;

// The cost of a stream with subscribers, beside one byte of the table and its spare room.
const _: () = assert!(size_of::<(StreamNo, u64)>() <= 16);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::stream::{Facts, Life};
    use crate::{AckLevel, Lifetime, Media, Offset, Retention};

    fn stream(no: StreamNo) -> Stream {
        let facts = Facts {
            tail: Offset::behind(no),
            forks: 0,
            floor: 0,
            closed: false,
            life: Life::Live,
        };
        let media = Arc::new(Media::new("text/plain"));
        Stream::new(
            no,
            "x".into(),
            media,
            Lifetime::Unbounded,
            AckLevel::Synced,
            Retention::default(),
            None,
            facts,
            0,
        )
    }

    #[test]
    fn a_shard_is_a_watcher_until_it_stops_watching() {
        let watchers = Watchers::default();
        let watched = stream(7);
        assert_eq!(watchers.of(&watched), 0);
        watchers.add(&watched, 3);
        watchers.add(&watched, 63);
        watchers.add(&watched, 64);
        assert_eq!(watchers.of(&watched), watcher(3) | watcher(63));
        watchers.remove(7, 3);
        // Other shards share the last bit.
        watchers.remove(7, 64);
        assert_eq!(watchers.of(&watched), watcher(63));
        assert_eq!(watcher(64), watcher(u16::MAX));
        assert_eq!(watchers.of(&stream(7)), watcher(63), "loaded again");
        assert_eq!(watchers.of(&stream(7 + PARTS as u64)), 0);
    }

    #[test]
    fn a_stream_without_watchers_leaves_nothing() {
        let watchers = Watchers::default();
        let watched = stream(7);
        watchers.add(&watched, 1);
        watchers.remove(7, 1);
        assert_eq!(watchers.of(&watched), 0);
        assert!(watchers.part(7).lock().is_empty());
        watchers.add(&watched, 1);
        assert_eq!(watchers.of(&watched), watcher(1));
    }
}
