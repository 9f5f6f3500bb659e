//! Streams that are in memory only: what the server itself tells of something that changes, such as who is subscribed to a stream.
//!
//! They have topics, rounds and positions as all streams have, in an order of their own ([`MEMORY_LOG`]). No log stores them, and no name
//! leads to them: who makes one hands it out. What is older than the recent records of a shard is read from whoever knows the state
//! ([`MemorySource`]), as one record that stands for all up to it.

use std::sync::Arc;

use encke_clock::{SteadyTime, WallTime};
use encke_log::Sequence;

use crate::commit::batch::{Batch, Outlet, Record};
use crate::read::piece::{Fetch, Piece};
use crate::stream::number::{BORN_MAX, MEMORY_LOG, number};
use crate::stream::{Facts, Life, Stream, StreamSettings};
use crate::view::View;
use crate::view::views::Views;
use crate::view::watchers::watcher;
use crate::{AckLevel, ByteCount, Lifetime, Media, MessageCount, Offset, Retention};

/// Knows the state that a stream in memory tells of.
pub trait MemorySource: Send + Sync {
    /// One record that stands for all records of the stream up to its sequence, and that sequence. `None`: there is no such stream.
    fn state(&self, stream: encke_log::StreamNo) -> Option<(Sequence, Vec<u8>)>;
}

/// Publishes the records of streams in memory. They have one order.
pub struct MemoryPublisher {
    view: Arc<View>,
    outlets: Vec<Box<dyn Outlet>>,
}

/// A record that is to be published.
#[derive(Debug)]
pub struct MemoryRecord {
    /// Its stream.
    pub stream: Arc<Stream>,
    /// Its position in the order of all streams in memory; larger than those before it.
    pub sequence: Sequence,
    /// The data.
    pub data: Vec<u8>,
}

impl Stream {
    /// A stream in memory, of JSON. `id` is its own among all of the process. It begins behind that sequence.
    pub fn in_memory(id: u64, name: &str, behind: Sequence) -> Arc<Stream> {
        let facts = Facts {
            tail: Offset::behind(behind),
            counted: MessageCount::default(),
            appended: ByteCount::default(),
            forks: 0,
            floor: 0,
            closed: false,
            end: None,
            stop_asked: false,
            life: Life::Live,
        };
        let settings = StreamSettings {
            media: Arc::new(Media::new("application/json")),
            lifetime: Lifetime::Unbounded,
            ack: AckLevel::Accepted,
            retention: Retention::default(),
            owner: None,
            producer_timeout_s: None,
            account: None,
        };
        let no = number(MEMORY_LOG, id.min(BORN_MAX));
        let touched = SteadyTime::from_ms(0);
        Arc::new(Stream::new(no, name.into(), settings, None, facts, touched))
    }
}

impl MemoryPublisher {
    /// Publishes to these shards, by their numbers.
    pub fn new(views: &Views, outlets: Vec<Box<dyn Outlet>>) -> Self {
        MemoryPublisher {
            view: Arc::clone(views.memory()),
            outlets,
        }
    }

    /// Publishes records in the order of their sequences. Waits for shards that are far behind.
    ///
    /// All records of a stream that anybody may subscribe to must come here, with subscribers or not: one who has read the state and is
    /// about to subscribe learns from the position that something has followed.
    pub fn publish(&self, mut records: Vec<MemoryRecord>, time: WallTime) {
        let Some(last) = records.last().map(|record| record.sequence) else {
            return;
        };
        for record in &records {
            record.stream.set_tail(Offset::behind(record.sequence));
        }
        // As with a log: a shard registers its interest before it reads the position, so that it gets a record or reads the state again.
        self.view.set_committed(last);
        let mut watchers = 0;
        records.retain(|record| {
            let of_stream = self.view.watchers(&record.stream);
            watchers |= of_stream;
            of_stream != 0
        });
        if records.is_empty() {
            return self.view.set_delivered(last);
        }
        let batch = Arc::new(Batch::new(
            records
                .into_iter()
                .map(|record| record.into_record(time))
                .collect(),
        ));
        for (shard, outlet) in (0..).zip(&self.outlets) {
            if watchers & watcher(shard) != 0 {
                outlet.admit();
                outlet.deliver(Some(Arc::clone(&batch)), Vec::new());
            }
        }
        self.view.set_delivered(last);
    }
}

impl MemoryRecord {
    fn into_record(self, time: WallTime) -> Record {
        Record {
            sequence: self.sequence,
            time,
            stream: self.stream.no,
            units: 1,
            data: self.data,
            tail: Offset::behind(self.sequence),
            closes: false,
            end: None,
            asks_stop: false,
            deletes: false,
        }
    }
}

impl Fetch {
    /// Whether it reads a stream in memory.
    pub fn is_of_memory(&self) -> bool {
        self.log() == MEMORY_LOG
    }
}

impl Piece {
    /// Reads a stream in memory: its state. `None`: there is no such stream.
    pub fn read_memory(source: &dyn MemorySource, fetch: &Fetch, time: WallTime) -> Option<Piece> {
        let stream = fetch.spans.first()?.stream;
        let (sequence, data) = source.state(stream)?;
        Some(Piece::of_state(data, Offset::behind(sequence), time))
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::commit::batch::Reply;

    #[derive(Clone, Default)]
    struct Shard(Arc<Mutex<Vec<Sequence>>>);

    impl Outlet for Shard {
        fn deliver(&self, batch: Option<Arc<Batch>>, _: Vec<Reply>) {
            let batch = batch.expect("there are no replies");
            let records = batch.records.iter();
            self.0.lock().extend(records.map(|record| record.sequence));
        }

        fn admit(&self) {}
    }

    struct State;

    impl MemorySource for State {
        fn state(&self, stream: encke_log::StreamNo) -> Option<(Sequence, Vec<u8>)> {
            (stream == number(MEMORY_LOG, 7)).then(|| (9, b"{}".to_vec()))
        }
    }

    #[test]
    fn records_reach_the_shards_that_watch_and_the_state_stands_for_all_before() {
        let views = Views::one(Arc::default());
        let shards = [Shard::default(), Shard::default()];
        let outlets = shards.iter().cloned();
        let outlets = outlets.map(|shard| Box::new(shard) as Box<dyn Outlet>);
        let publisher = MemoryPublisher::new(&views, outlets.collect());
        let streams = [7, 8].map(|id| Stream::in_memory(id, "a", 1));
        views.of(streams[0].no).watch(&streams[0], 1);
        let record = |stream: usize, sequence| MemoryRecord {
            stream: Arc::clone(&streams[stream]),
            sequence,
            data: b"1".to_vec(),
        };
        publisher.publish(vec![record(1, 5)], WallTime::default());
        // Whoever subscribes now, with a state from before, reads the state again.
        assert_eq!(views.of(streams[1].no).committed(), 5);
        assert_eq!(views.of(streams[1].no).delivered(), 5);
        publisher.publish(vec![record(0, 6), record(1, 8)], WallTime::default());
        assert_eq!(*shards[0].0.lock(), [0_u64; 0]);
        assert_eq!(*shards[1].0.lock(), [6], "nobody needs the others");
        assert_eq!(views.of(streams[0].no).committed(), 8);
        assert_eq!(views.log(0).committed(), 0, "the log has its own order");
        let tails = streams.each_ref().map(|stream| stream.facts().tail);
        assert_eq!(tails, [Offset::behind(6), Offset::behind(8)]);
        let fetch = |stream: &Stream| Fetch::new(stream, Offset::START, tails[0], 1);
        assert!(fetch(&streams[0]).is_of_memory());
        let piece = Piece::read_memory(&State, &fetch(&streams[0]), WallTime::default());
        let piece = piece.expect("it is known");
        let items: Vec<_> = piece.items().map(|item| (item.part(), item.end)).collect();
        assert_eq!(items, [(&b"{"[..], Offset::behind(9))]);
        assert_eq!((piece.end, piece.more), (Offset::behind(9), false));
        let other = Piece::read_memory(&State, &fetch(&streams[1]), WallTime::default());
        assert!(other.is_none());
    }
}
