//! The fan-out queue: takes commits, serves topics in rounds, encodes records for subscribers.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::WallTime;
use encke_protocol::{Encoders, Variant};
use encke_stream::{Batch, Item, Offset, Sequence, Views};

use super::backpressure::Backpressure;
use super::encoding::{
    EncodingKey, Encodings, Gathered, LongStart, RUN_BYTES, RecentKey, RunBudget, are_withheld,
};
use super::ephemeral_queue::EphemeralQueue;
use super::rounds::{DueRound, Rounds};
use super::slot::{NONE, Slots};
use super::topics::{Round, Topics};
use super::traced::TracedDeliveries;
use crate::broadcast_message::QueuedMessage;

/// A shard's deliveries.
#[derive(Debug)]
pub(crate) struct FanOut {
    pub(crate) topics: Topics,
    pub(crate) backpressure: Backpressure,
    /// What subscribers at the same position share.
    pub(crate) encodings: Encodings,
    /// Ephemeral messages.
    pub(super) ephemeral: EphemeralQueue,
    rounds: Rounds,
    /// Deliveries of records whose requests are traced.
    traced: TracedDeliveries,
    /// Sends that are left to this turn.
    sends_left: usize,
    /// Bytes of all records taken so far.
    taken_bytes: u64,
    /// Of each log the last record that was delivered when the events of this turn were taken, and up to which the topics have
    /// everything. Kept while patterns have subscribers.
    delivered: Vec<Sequence>,
    passed: Vec<Sequence>,
}

impl FanOut {
    /// No topics. No topic rests for longer than `rest_max` between two rounds.
    pub(crate) fn new(
        ring_bytes: usize,
        shard: u16,
        views: Arc<Views>,
        rest_max: Duration,
    ) -> Self {
        FanOut {
            topics: Topics::new(ring_bytes, shard, views),
            backpressure: Backpressure::default(),
            encodings: Encodings::default(),
            ephemeral: EphemeralQueue::default(),
            rounds: Rounds::new(rest_max),
            traced: TracedDeliveries::new(shard),
            sends_left: 0,
            taken_bytes: 0,
            delivered: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// Notes what is delivered to this shard, taken or not.
    pub(crate) fn note_delivered(&mut self) {
        self.ephemeral.note_delivered(self.topics.views());
        self.delivered.clear();
        if self.topics.has_patterns() {
            let views = self.topics.views();
            let delivered = (0..views.logs()).map(|log| views.log(log).delivered());
            self.delivered.extend(delivered);
        }
    }

    /// All that was noted is taken.
    pub(crate) fn pass_delivered(&mut self) {
        std::mem::swap(&mut self.delivered, &mut self.passed);
    }

    /// The last record of a log up to which the topics have everything; 0 if that is not known.
    pub(crate) fn passed(&self, log: usize) -> Sequence {
        self.passed.get(log).copied().unwrap_or_default()
    }

    /// Takes a commit, and queues a round for each topic that it concerns.
    pub(crate) fn take(&mut self, batch: &Arc<Batch>, now_us: u64) {
        let bytes = self.taken_bytes;
        self.taken_bytes += (batch.bytes + batch.records.len()) as u64;
        let rounds = &mut self.rounds;
        self.topics.take(batch, |topic, number| {
            if topic.await_round() {
                rounds.push(DueRound {
                    topic: number,
                    bytes,
                    us: now_us,
                });
            }
        });
        self.traced.take(batch, &self.topics);
        self.encodings.forget();
    }

    /// Takes an ephemeral message.
    pub(crate) fn take_ephemeral(&mut self, message: QueuedMessage, now_us: u64) {
        self.ephemeral.arrive(message, now_us);
    }

    /// Whether ephemeral messages wait for the records before them.
    pub(crate) fn awaits_records(&self) -> bool {
        self.ephemeral.awaits_records()
    }

    /// Queues a round for each topic with ephemeral messages whose records are taken. To be called when everything is taken that
    /// [`FanOut::note_delivered`] has noted.
    pub(crate) fn queue_ephemeral(&mut self, now_us: u64) -> LostMessages {
        if !self.ephemeral.awaits_records() {
            return LostMessages::default();
        }
        let (ready, late) = self.ephemeral.take_ready(now_us);
        let mut lost = LostMessages { full: 0, late };
        for message in ready {
            let broadcast = &message.broadcast;
            let stream = std::iter::once(broadcast.message.stream);
            for no in stream.chain(broadcast.patterns.iter().copied()) {
                let Some(topic) = self.topics.find(no) else {
                    continue;
                };
                match self.ephemeral.push(topic, no, &message) {
                    true => self.queue_round(topic, now_us),
                    false => lost.full += 1,
                }
            }
        }
        lost
    }

    /// Whether the round that has begun has ephemeral messages.
    pub(crate) fn has_ephemeral(&self) -> bool {
        self.ephemeral.has_round()
    }

    fn queue_round(&mut self, topic: u32, now_us: u64) {
        if self.topics[topic].await_round() {
            self.rounds.push(DueRound {
                topic,
                bytes: self.taken_bytes,
                us: now_us,
            });
        }
    }

    /// Allows a turn that many sends.
    pub(crate) fn begin_turn(&mut self, sends: usize) {
        self.sends_left = sends;
    }

    /// Queues the topics that have rested.
    pub(crate) fn wake(&mut self, now_us: u64) {
        let topics = &self.topics;
        self.rounds.wake(now_us, |topic| topics[topic].appended);
    }

    /// The topic whose round goes on or begins, while sends are left.
    pub(crate) fn round(&mut self, now_us: u64) -> Option<u32> {
        if self.sends_left == 0 {
            return None;
        }
        let topic = self.rounds.first()?;
        if self.topics[topic].state == Round::Queued {
            self.topics[topic].state = Round::Running;
            self.topics.begin(topic);
            self.rounds.begin(now_us);
            self.backpressure.begin_round();
            self.traced.begin_round();
            let no = self.topics.no(topic);
            self.ephemeral.begin_round(topic, no);
        }
        Some(topic)
    }

    /// The next subscriber in a topic's round, while sends are left.
    pub(crate) fn next_subscriber(&mut self, topic: u32, slots: &Slots) -> Option<u32> {
        let index = self.topics[topic].iter;
        if self.sends_left == 0 || index == NONE {
            return None;
        }
        self.topics[topic].iter = slots[index].next;
        self.traced.see();
        Some(index)
    }

    /// A send to a subscriber was spent.
    pub(crate) fn spend_send(&mut self) {
        self.sends_left = self.sends_left.saturating_sub(1);
    }

    /// Whether a topic's round has come to all of its subscribers.
    pub(crate) fn is_over(&self, topic: u32) -> bool {
        self.topics[topic].iter == NONE
    }

    /// A topic's round is over. Whether the topic rests now.
    pub(crate) fn end_round(&mut self, topic: u32, now_us: u64) -> bool {
        let behind = self.backpressure.found_behind();
        self.traced.end_round(topic, self.topics.no(topic), behind);
        let round = &mut self.topics[topic];
        round.state = match round.state {
            Round::Again => Round::Queued,
            _ => Round::Quiet,
        };
        let appended = round.appended;
        if self.ephemeral.end_round(topic, self.topics.no(topic)) {
            self.queue_round(topic, now_us);
        }
        self.rounds.end(now_us, appended)
    }

    /// Whether a recent record has more data than a send carries.
    pub(crate) fn is_large(&self, topic: u32, at: u64) -> bool {
        self.topics.record(topic, at).0.data.len() > RUN_BYTES
    }

    /// Whether no round is due now.
    pub(crate) fn is_quiet(&self) -> bool {
        self.rounds.is_empty()
    }

    /// When the next topic has rested for which records wait.
    pub(crate) fn wake_us(&self) -> Option<u64> {
        self.rounds.wake_us()
    }

    /// How far deliveries are behind: bytes of records, and the age of the oldest that waits, in microseconds.
    pub(crate) fn lag(&self, now_us: u64) -> (u64, u64) {
        match self.rounds.oldest() {
            Some(due) => (self.taken_bytes - due.bytes, now_us.saturating_sub(due.us)),
            None => (0, 0),
        }
    }

    /// Encodes the recent records of a topic from a position of the ring on, as many as one send should carry, unless they are in
    /// this form already. `Some`: nothing is encoded, because the first record is long.
    pub(crate) fn encode_recent(
        &mut self,
        key: RecentKey,
        at: u64,
        encoders: &Encoders,
        now: WallTime,
    ) -> Option<LongStart> {
        if self.encodings.select(EncodingKey::Recent(key)) {
            return None;
        }
        let variant = Variant {
            name: self.topics.name(key.topic),
            kind: self.topics[key.topic].kind,
            option: key.option,
        };
        let encoder = encoders.encoder(key.encoder);
        let mut budget = RunBudget::new();
        let fits = |item: &Item<'_>| {
            budget.try_spend(variant.kind, item, || encoder.overhead(variant, item))
        };
        let mut items = Vec::new();
        let gathered = gather(&self.topics, key.topic, key.from, at, &mut items, fits);
        if gathered.long.is_some() {
            return gathered.long;
        }
        let encoding = self.encodings.replace();
        encoding.clear();
        // A deletion without data before it closes the connection without an event, unless its encoder has one.
        if !items.is_empty() || gathered.closed || gathered.stop_asked {
            encoder.encode(variant, &gathered.run(&items), now, &mut encoding.run);
        }
        if gathered.deleted {
            encoding.add_deletion(encoder, variant, Offset::behind(gathered.last));
        }
        encoding.key = Some(EncodingKey::Recent(key));
        encoding.count(&items);
        encoding.end = gathered.last;
        encoding.ended = gathered.closed || gathered.deleted;
        encoding.frame(key.framing);
        None
    }
}

/// Ephemeral messages that no subscriber of a topic gets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LostMessages {
    /// Too much waited for the topic.
    pub(crate) full: u64,
    /// The records before them did not come in time.
    pub(crate) late: u64,
}

/// Collects recent records for one send to a subscriber with that position.
pub(crate) fn gather<'a>(
    topics: &'a Topics,
    topic: u32,
    from: Offset,
    at: u64,
    items: &mut Vec<Item<'a>>,
    mut fits: impl FnMut(&Item<'_>) -> bool,
) -> Gathered {
    let mut gathered = Gathered::default();
    let kind = topics[topic].kind;
    let mut bytes = 0;
    for record in topics.records(topic, at) {
        let skip = match record.sequence == from.sequence + 1 {
            true => from.units,
            false => 0,
        };
        let item = Item {
            data: &record.data,
            skip,
            take: record.units,
            end: record.tail,
            time: record.time,
        };
        let has_data = record.units > skip;
        if has_data && !fits(&item) {
            // Otherwise what was gathered is sent first.
            if are_withheld(kind, items) && (!items.is_empty() || !gathered.stop_asked) {
                let start = LongStart::new(&item, items);
                gathered.long = Some(LongStart {
                    stop_asked: gathered.stop_asked,
                    ..start
                });
            }
            break;
        }
        gathered.last = record.sequence;
        gathered.deleted |= record.deletes;
        gathered.closed |= record.closes && !record.deletes;
        gathered.end_reason = gathered.end_reason.or(record.end);
        gathered.stop_asked |= record.asks_stop;
        gathered.end = record.tail;
        if has_data {
            // What the subscriber has of the first record takes no room of the others.
            bytes += record.data.len().saturating_sub(skip as usize);
            items.push(item);
        }
        if gathered.deleted || bytes > RUN_BYTES {
            break;
        }
    }
    gathered.at_tail = gathered.last >= topics[topic].last;
    gathered
}

#[cfg(test)]
mod tests {
    use encke_stream::{Offset, Record, View};

    use super::*;
    use crate::synthetic;

    /// A fan-out with a stream for each name, and that many subscribers of each.
    fn fan_out(subscribers: &[(&str, usize)]) -> (FanOut, Slots, Vec<u64>) {
        let view = Arc::new(View::default());
        let names = subscribers.iter().map(|(name, _)| (*name).to_owned());
        synthetic::create(&view, names, 1);
        let views = Views::one(Arc::clone(&view));
        let mut fan_out = FanOut::new(1 << 20, 0, views, Duration::ZERO);
        let mut slots = Slots::default();
        let mut streams = Vec::new();
        for (name, count) in subscribers {
            let stream = view.find(name).unwrap();
            let topic = fan_out.topics.intern(&stream);
            for _ in 0..*count {
                let slot = slots.add_member(0);
                slots[slot].cursor = 100;
                fan_out.topics.link(&mut slots, topic, slot);
            }
            streams.push(stream.no);
        }
        (fan_out, slots, streams)
    }

    fn commit(fan_out: &mut FanOut, streams: &[u64], first: u64, now_us: u64) {
        let records = (first..).zip(streams).map(|(sequence, stream)| Record {
            sequence,
            time: WallTime::default(),
            stream: *stream,
            data: b"1".to_vec(),
            tail: Offset::behind(sequence),
            units: 1,
            closes: false,
            end: None,
            asks_stop: false,
            deletes: false,
        });
        let batch = Batch::new(records.collect());
        fan_out.take(&Arc::new(batch), now_us);
    }

    /// The subscribers that a turn of that many sends comes to.
    fn turn(fan_out: &mut FanOut, slots: &Slots, sends: usize) -> Vec<u32> {
        let mut served = Vec::new();
        fan_out.begin_turn(sends);
        while let Some(topic) = fan_out.round(0) {
            while let Some(index) = fan_out.next_subscriber(topic, slots) {
                served.push(index);
                fan_out.spend_send();
            }
            if !fan_out.is_over(topic) {
                break;
            }
            fan_out.end_round(topic, 0);
        }
        served
    }

    #[test]
    fn a_round_goes_on_where_the_sends_of_a_turn_ended() {
        let (mut fan_out, slots, streams) = fan_out(&[("a", 3), ("b", 1)]);
        assert!(fan_out.is_quiet());
        commit(&mut fan_out, &streams, 101, 0);
        assert_eq!(turn(&mut fan_out, &slots, 2), [2, 1]);
        assert!(!fan_out.is_quiet());
        assert_eq!(turn(&mut fan_out, &slots, 2), [0, 3]);
        assert!(fan_out.is_quiet());
    }

    #[test]
    fn a_commit_during_a_round_leads_to_another_one() {
        let (mut fan_out, slots, streams) = fan_out(&[("a", 2)]);
        commit(&mut fan_out, &streams, 101, 0);
        assert_eq!(turn(&mut fan_out, &slots, 1), [1]);
        commit(&mut fan_out, &streams, 102, 0);
        assert_eq!(turn(&mut fan_out, &slots, 1), [0]);
        assert!(!fan_out.is_quiet());
        assert_eq!(turn(&mut fan_out, &slots, 9), [1, 0]);
        assert!(fan_out.is_quiet());
    }

    #[test]
    fn the_lag_is_that_of_the_oldest_commit_that_waits() {
        let (mut fan_out, slots, streams) = fan_out(&[("a", 1), ("b", 1)]);
        assert_eq!(fan_out.lag(1_000), (0, 0));
        commit(&mut fan_out, &streams[..1], 101, 1_000);
        commit(&mut fan_out, &streams[1..], 102, 1_400);
        assert_eq!(fan_out.lag(1_500), (4, 500));
        turn(&mut fan_out, &slots, 1);
        assert_eq!(fan_out.lag(1_500), (2, 100));
        turn(&mut fan_out, &slots, 1);
        assert_eq!(fan_out.lag(1_500), (0, 0));
    }

    #[test]
    fn gathered_records_are_those_of_one_stream() {
        let (mut fan_out, _, streams) = fan_out(&[("a", 1), ("b", 1)]);
        commit(&mut fan_out, &[streams[0], streams[1], streams[0]], 101, 0);
        let mut items = Vec::new();
        let gathered = gather(&fan_out.topics, 0, Offset::START, 1, &mut items, |_| true);
        assert_eq!(items.len(), 2);
        assert_eq!((gathered.last, gathered.at_tail), (103, true));
    }
}
