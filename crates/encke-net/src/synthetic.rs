//! Subscribers without sockets: a shard's own tables with millions of names, to see what they cost.
//!
//! Slots, topics, their index, the lists and the recent records are the ones that a shard uses, and a record finds its
//! subscribers and is encoded as there; only the send is left out. `examples/ten_million.rs` measures with it.

use std::sync::Arc;

use encke_clock::{Now, WallTime};
use encke_log::Sequence;
use encke_protocol::{
    Action, Admin, CallerInfo, EncodedRun, EncoderId, Feed, Gate, Headers, Probes,
    ProtocolSettings, ReadyState, Request, Router, Run, Variant,
};
use encke_stream::{
    Batch, Change, Command, Create, Item, Journal, Limits, Machine, MediaKind, Offset, Record,
    Refusal, Stream, View, Views,
};

use crate::feed::slot::{NONE, Slots};
use crate::feed::topics::{Next, Topics};

/// A shard's tables, each subscriber on a stream of its own.
pub struct SyntheticShard {
    slots: Slots,
    topics: Topics,
    /// The streams' numbers.
    streams: Vec<u32>,
    /// Streams that are made and not subscribed to yet.
    made: Vec<Arc<Stream>>,
    next: Sequence,
    router: Router,
    encoder: EncoderId,
    encoded: EncodedRun,
}

impl SyntheticShard {
    /// Empty tables.
    pub fn new() -> Self {
        let view = Arc::new(View::default());
        let next = create(&view, std::iter::once("example".to_owned()), 1);
        let views = Views::one(view);
        let probes = Probes {
            readiness: Arc::new(|| ReadyState::Ready),
            metrics: Arc::new(Vec::new),
        };
        let topics = Topics::new(RING_BYTES, 0, Arc::clone(&views));
        let router = Router::new(
            views,
            ProtocolSettings::default(),
            Gate::default(),
            Admin::new(probes),
        );
        let encoder = live_encoder(&router);
        SyntheticShard {
            slots: Slots::default(),
            topics,
            streams: Vec::new(),
            made: Vec::new(),
            next,
            router,
            encoder,
            encoded: EncodedRun::default(),
        }
    }

    /// Makes streams for the next subscribers. Not a part of what a shard does, so not to be measured.
    pub fn make_streams(&mut self, count: usize) {
        let view = Arc::new(View::default());
        let names = (0..count).map(|number| format!("users/{:x}", self.next + number as Sequence));
        let names: Vec<_> = names.collect();
        self.next = create(&view, names.iter().cloned(), self.next);
        self.made
            .extend(names.iter().filter_map(|name| view.find(name)));
    }

    /// Subscribes one more, to a stream that was made. False: none is left.
    pub fn subscribe(&mut self) -> bool {
        let Some(stream) = self.made.pop() else {
            return false;
        };
        let topic = self.topics.intern(&stream);
        // A slot like all others, but without a socket.
        let slot = self.slots.add_member(0);
        self.slots[slot].cursor = stream.no;
        self.topics.link(&mut self.slots, topic, slot);
        // As `Topics::rest` does once the stream is in a checkpoint: it leaves memory, and what must be known of it stays.
        self.topics[topic].stream = None;
        // In memory for itself and as the example's own book, which counts as a subscriber's.
        self.streams.push(u32::try_from(stream.no).unwrap_or(0));
        true
    }

    /// How many there are.
    pub fn subscribers(&self) -> usize {
        self.streams.len()
    }

    /// Commits one record of the stream of the subscriber with that number, and encodes it for the stream's subscribers.
    /// Returns how many these are.
    pub fn publish(&mut self, subscriber: usize, data: &[u8]) -> usize {
        let sequence = self.next;
        self.next += 1;
        let record = Record {
            sequence,
            time: WallTime::default(),
            stream: u64::from(self.streams[subscriber]),
            data: data.to_vec(),
            tail: Offset::behind(sequence),
            units: 1,
            closes: false,
            end: None,
            asks_stop: false,
            deletes: false,
        };
        let batch = Arc::new(Batch::new(vec![record]));
        let mut touched = Vec::with_capacity(1);
        self.topics.take(&batch, |_, topic| touched.push(topic));
        let mut reached = 0;
        for topic in touched {
            self.topics.begin(topic);
            while self.topics[topic].iter != NONE {
                let slot = self.topics[topic].iter;
                self.topics[topic].iter = self.slots[slot].next;
                reached += usize::from(self.deliver(topic, slot));
            }
        }
        reached
    }

    fn deliver(&mut self, topic: u32, slot: u32) -> bool {
        let Next::Recent(at) = self.topics.next(topic, self.slots[slot].cursor) else {
            return false;
        };
        let mut end = 0;
        let items = self.topics.records(topic, at).map(|record| {
            end = record.sequence;
            Item {
                data: &record.data,
                skip: 0,
                take: record.units,
                end: Offset::behind(record.sequence),
                time: record.time,
            }
        });
        let items: Vec<Item<'_>> = items.collect();
        let run = Run {
            items: &items,
            at_tail: true,
            ..Run::position(Offset::behind(end))
        };
        let variant = Variant {
            name: "",
            kind: MediaKind::Json,
            option: 0,
        };
        self.encoded.bytes.clear();
        self.encoded.marks.clear();
        let encoder = self.router.encoders().encoder(self.encoder);
        encoder.encode(variant, &run, WallTime::from_ms(0), &mut self.encoded);
        self.slots[slot].cursor = end;
        !self.encoded.bytes.is_empty()
    }
}

impl Default for SyntheticShard {
    fn default() -> Self {
        Self::new()
    }
}

/// Creates streams in a view; the next sequence behind them.
pub(crate) fn create(
    view: &Arc<View>,
    names: impl Iterator<Item = String>,
    next: Sequence,
) -> Sequence {
    let mut machine = Machine::new(Arc::clone(view), Limits::default());
    let mut journal = Counter(next);
    for name in names {
        let create = Create {
            content_type: Some("application/json".into()),
            ..Create::new(name.as_str())
        };
        machine.apply(Command::Create(create), Now::default(), &mut journal);
        machine.publish(journal.0 - 1);
    }
    journal.0
}

/// The encoder of live reads, for tests.
#[cfg(test)]
pub(crate) fn encoder() -> EncoderId {
    SyntheticShard::new().encoder
}

/// An ephemeral message to a stream of text, for all who have its records up to 5.
#[cfg(test)]
pub(crate) fn ephemeral(
    stream: u64,
    name: &str,
    data: &[u8],
) -> Arc<crate::broadcast_message::BroadcastMessage> {
    let message = encke_stream::EphemeralMessage {
        stream,
        label: encke_stream::StreamLabel {
            name: name.into(),
            kind: MediaKind::Text,
            owner: None,
        },
        after: 5,
        time: WallTime::default(),
        data: encke_stream::Data {
            bytes: data.to_vec(),
            units: data.len() as u32,
        },
    };
    Arc::new(crate::broadcast_message::BroadcastMessage {
        message,
        patterns: Box::default(),
        except: None,
    })
}

/// The encoder of live reads.
fn live_encoder(router: &Router) -> EncoderId {
    let routed = router.request(Request {
        method: "GET",
        path: "/v1/stream/example",
        query: Some("offset=-1&live=sse"),
        headers: Headers(&[]),
        body: Vec::new(),
        caller: CallerInfo::default(),
        now: Now::default(),
        barriers: 0,
        upgrade: false,
    });
    match routed.action {
        Action::Subscribe(subscription) => match subscription.feed {
            Feed::Single { encoder, .. } => encoder,
            _ => unreachable!("the request names one stream that exists"),
        },
        other => unreachable!("a live read subscribes: {other:?}"),
    }
}

/// A journal that only counts.
struct Counter(Sequence);

impl Journal for Counter {
    fn next_sequence(&self) -> Sequence {
        self.0
    }

    fn record(
        &mut self,
        _stream: &Arc<Stream>,
        _change: &Change<'_>,
        _data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        self.0 += 1;
        Ok(self.0 - 1)
    }
}

const RING_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_reaches_its_own_subscriber_once() {
        let mut shard = SyntheticShard::new();
        shard.make_streams(3_000);
        while shard.subscribe() {}
        assert_eq!(shard.subscribers(), 3_000);
        for round in 0..3 {
            for subscriber in (0..3_000).rev() {
                assert_eq!(shard.publish(subscriber, b"{}"), 1, "round {round}");
            }
        }
    }
}
