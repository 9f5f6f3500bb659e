//! Which shards have subscribers of which streams, whether the streams are in memory or not.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use encke_log::StreamNo;
use parking_lot::Mutex;

use crate::Stream;

/// The shards that have subscribers, by stream: a bit for each of the first ones, and in the topmost bits the number of the further
/// ones. Streams without subscribers are not in the table.
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
    /// Notes that a shard has subscribers of a stream. It had none before.
    pub(crate) fn add(&self, stream: &Stream, shard: u16) {
        let mut part = self.part(stream.no).lock();
        let watchers = part.entry(stream.no).or_default();
        match has_own_bit(shard) {
            true => *watchers |= watcher(shard),
            false => *watchers += FURTHER,
        }
        stream.watched.store(true, Ordering::SeqCst);
    }

    /// Notes that a shard has no subscribers of a stream any more.
    pub(crate) fn remove(&self, no: StreamNo, shard: u16) {
        let mut part = self.part(no).lock();
        if let Some(watchers) = part.get_mut(&no) {
            match has_own_bit(shard) {
                true => *watchers &= !watcher(shard),
                false if *watchers >= FURTHER => *watchers -= FURTHER,
                false => {}
            }
            if *watchers == 0 {
                part.remove(&no);
            }
        }
    }

    /// Whether a shard has subscribers of a stream.
    pub(crate) fn has(&self, no: StreamNo) -> bool {
        self.part(no).lock().contains_key(&no)
    }

    /// The shards that have subscribers of a stream, one bit each ([`watcher`]).
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
        bits(watchers)
    }

    /// The same for the stream with that number, which need not be in memory.
    pub(crate) fn of_number(&self, no: StreamNo) -> u64 {
        bits(self.part(no).lock().get(&no).copied().unwrap_or_default())
    }

    fn part(&self, no: StreamNo) -> &Mutex<HashMap<StreamNo, u64, foldhash::fast::FixedState>> {
        &self.parts[no as usize % PARTS]
    }
}

/// An entry of the table as one bit for each shard.
fn bits(watchers: u64) -> u64 {
    let further = u64::from(watchers >= FURTHER) * FURTHER;
    (watchers % FURTHER) | further
}

/// The bit of a shard. All but the first shards share one.
pub(crate) fn watcher(shard: u16) -> u64 {
    1 << shard.min(OWN_BITS)
}

/// Whether a shard has a bit of its own, which can be set twice.
pub(crate) fn has_own_bit(shard: u16) -> bool {
    shard < OWN_BITS
}

/// The number of shards that have a bit of their own.
const OWN_BITS: u16 = 48;

/// One further shard, in the count of them, and the bit that they share.
const FURTHER: u64 = 1 << OWN_BITS;

/// The number of parts. A part that grows moves its content at once: with 10,000,000 streams in 64 parts that takes 6
/// ms.
const PARTS: usize = 256;

// The cost of a stream with subscribers, beside one byte of the table and its spare room.
const _: () = assert!(size_of::<(StreamNo, u64)>() <= 16);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use encke_clock::SteadyTime;

    use super::*;
    use crate::stream::{Facts, Life, StreamSettings};
    use crate::{AckLevel, Lifetime, Media, Offset, Retention};
    use crate::{ByteCount, MessageCount};

    fn stream(no: StreamNo) -> Stream {
        let facts = Facts {
            tail: Offset::behind(no),
            forks: 0,
            floor: 0,
            closed: false,
            end: None,
            counted: MessageCount::default(),
            appended: ByteCount::default(),
            stop_asked: false,
            life: Life::Live,
        };
        let settings = StreamSettings {
            media: Arc::new(Media::new("text/plain")),
            lifetime: Lifetime::Unbounded,
            ack: AckLevel::Synced,
            retention: Retention::default(),
            owner: None,
            producer_timeout_s: None,
            account: None,
        };
        Stream::new(
            no,
            "x".into(),
            settings,
            None,
            facts,
            SteadyTime::from_ms(0),
        )
    }

    #[test]
    fn a_shard_is_a_watcher_until_it_stops_watching() {
        let watchers = Watchers::default();
        let watched = stream(7);
        assert_eq!(watchers.of(&watched), 0);
        for shard in [3, 47, 48, 63, u16::MAX] {
            watchers.add(&watched, shard);
        }
        let all = watcher(3) | watcher(47) | watcher(48);
        assert_eq!(watchers.of(&watched), all);
        assert_eq!((watchers.of_number(7), watchers.of_number(8)), (all, 0));
        watchers.remove(7, 3);
        watchers.remove(7, 47);
        // All further shards share a bit.
        assert_eq!(watcher(48), watcher(u16::MAX));
        watchers.remove(7, 63);
        watchers.remove(7, 48);
        assert_eq!(watchers.of(&watched), watcher(48));
        assert_eq!(watchers.of(&stream(7)), watcher(48), "loaded again");
        assert_eq!(watchers.of(&stream(7 + PARTS as u64)), 0);
        watchers.remove(7, u16::MAX);
        assert_eq!(watchers.of(&watched), 0);
        assert!(!watchers.has(7));
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
