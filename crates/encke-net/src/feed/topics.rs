//! The streams that a shard's connections are subscribed to, and their recent records.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_clock::Now;
use encke_log::{Sequence, StreamNo};
use encke_stream::{
    AwaitedStream, Batch, Lifetime, MediaKind, Offset, Pattern, PatternMatch, Record, Stream,
    StreamLabel, Views, born, home, is_awaited, is_pattern, log_of,
};
use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use super::awaited::{AwaitedName, AwaitedTopics};
use super::slot::{NONE, Slots};
use super::weight;
use crate::chunked_vec::ChunkedVec;
use crate::hash_index::HashIndex;

/// A stream, or a pattern of names in one log, with subscribers on this shard.
#[derive(Debug)]
pub(crate) struct Topic {
    /// The number of the stream or pattern; 0 in a free entry.
    no: StreamNo,
    /// The stream. `None` while it may leave memory, because nothing has happened for a while, and for a pattern.
    pub(crate) stream: Option<Arc<Stream>>,
    /// Its subscribers, an intrusive list of slots.
    head: u32,
    /// The next subscriber of the present round.
    pub(crate) iter: u32,
    pub(crate) state: Round,
    /// The kind of the stream's data.
    pub(crate) kind: MediaKind,
    /// [`FRESH`] and [`DELETED`].
    marks: u8,
    /// When a subscriber was behind last, as [`lag_mark`] has it; 0 for never.
    lagged: u8,
    /// What was appended to it, by [`weight`](weight::weight) and modulo 2^32; only differences count.
    pub(crate) appended: u32,
    /// Every record of the stream behind this sequence is among the recent ones.
    complete_from: Sequence,
    /// The stream's last record that this shard has seen.
    pub(crate) last: Sequence,
    /// Positions of its first and last recent record; meaningless where `complete_from` covers all.
    first_at: u64,
    last_at: u64,
}

impl Topic {
    /// Notes that something is there for another round. Whether that is to be queued.
    pub(crate) fn await_round(&mut self) -> bool {
        self.state = match self.state {
            Round::Quiet => Round::Queued,
            Round::Running => Round::Again,
            Round::Queued | Round::Again => return false,
        };
        true
    }
}

// What a stream with an idle subscriber costs here is a promise of the design.
const _: () = assert!(size_of::<Topic>() <= 64);

/// Something has happened since [`Topics::rest`] last looked.
const FRESH: u8 = 1;
/// The stream was deleted, or has expired.
const DELETED: u8 = 1 << 1;

/// A moment in one byte, from 1 on. It repeats after 17 minutes, and a stream then stays in memory for a few seconds more.
fn lag_mark(now_s: u32) -> u8 {
    (now_s / LAG_MARK_S % LAG_MARKS + 1) as u8
}

fn marks_since(earlier: u8, now: u8) -> u32 {
    (u32::from(now) + LAG_MARKS - u32::from(earlier)) % LAG_MARKS
}

/// Seconds of one mark; those behind are looked at as often as the others, which is each 5 s.
const LAG_MARK_S: u32 = 4;
const LAG_MARKS: u32 = 255;
/// A stream stays in memory for so many marks behind the last one at which a subscriber was seen behind.
const LAG_MARKS_KEPT: u32 = 2;

/// Whether the topic's subscribers are being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Nothing is due.
    Quiet,
    /// In the queue of rounds.
    Queued,
    /// Begun.
    Running,
    /// Begun, and queued again: records have arrived that those served already lack.
    Again,
}

/// All topics of a shard and their recent records, found by number.
#[derive(Debug)]
pub(crate) struct Topics {
    topics: ChunkedVec<Topic>,
    free: Vec<u32>,
    index: HashIndex,
    hasher: FixedState,
    /// The recent records of each log, by their indices.
    rings: Vec<Ring>,
    /// What all of them hold together, and may hold.
    bytes: usize,
    bytes_max: usize,
    shard: u16,
    views: Arc<Views>,
    /// Topics that are patterns'.
    patterns: usize,
    awaited: AwaitedTopics,
}

/// The recent records of one log, in its order.
#[derive(Debug)]
struct Ring {
    recent: VecDeque<Recent>,
    /// The position of the first of `recent`.
    base: u64,
    bytes: usize,
}

impl Default for Ring {
    fn default() -> Self {
        Ring {
            recent: VecDeque::new(),
            // Position 0 means none.
            base: 1,
            bytes: 0,
        }
    }
}

impl Ring {
    fn at(&self, at: u64) -> &Recent {
        &self.recent[(at - self.base) as usize]
    }
}

/// A record of a stream with subscribers on this shard.
#[derive(Debug)]
struct Recent {
    batch: Arc<Batch>,
    index: u32,
    topic: u32,
    sequence: Sequence,
    /// The position of the stream's next one; 0 while there is none.
    next: u64,
}

// What a recent record costs a shard that keeps it, beside its share of the batch.
const _: () = assert!(size_of::<Recent>() <= 32);

impl Recent {
    fn record(&self) -> &Record {
        &self.batch.records[self.index as usize]
    }
}

/// What follows a subscriber's cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// No record that this shard knows.
    Nothing,
    /// A recent record, at this position.
    Recent(u64),
    /// Records may follow that must be read from the log.
    Older,
}

impl Topics {
    pub(crate) fn new(bytes_max: usize, shard: u16, views: Arc<Views>) -> Self {
        Topics {
            topics: ChunkedVec::default(),
            free: Vec::new(),
            index: HashIndex::default(),
            hasher: FixedState::default(),
            // One more for the streams that are in memory only.
            rings: (0..=views.logs()).map(|_| Ring::default()).collect(),
            bytes: 0,
            bytes_max,
            shard,
            views,
            patterns: 0,
            awaited: AwaitedTopics::default(),
        }
    }

    /// The number of the shard.
    pub(crate) fn shard(&self) -> u16 {
        self.shard
    }

    /// The streams of all logs.
    pub(crate) fn views(&self) -> &Views {
        &self.views
    }

    /// Whether a pattern has subscribers here.
    pub(crate) fn has_patterns(&self) -> bool {
        self.patterns > 0
    }

    /// The topic for a stream, new or not.
    pub(crate) fn intern(&mut self, stream: &Arc<Stream>) -> u32 {
        if let Some(number) = self.find(stream.no) {
            self.bring(number, stream);
            return number;
        }
        self.views.of(stream.no).watch(stream, self.shard);
        let awaited = self.awaited.number(&stream.name);
        // Subscribers of the name have positions in the log that is its home.
        let awaited = awaited.filter(|awaited| log_of(*awaited) == log_of(stream.no));
        let number = match awaited.and_then(|awaited| Some((awaited, self.find(awaited)?))) {
            Some((awaited, number)) => {
                // The shard may miss commits up to this one.
                let complete_from = self.views.of(stream.no).committed();
                self.leave_name(awaited);
                self.rename(number, stream.no, stream.media.kind);
                self.topics[number].complete_from = complete_from;
                number
            }
            None => self.add(stream.no, stream.media.kind),
        };
        self.bring(number, stream);
        number
    }

    /// The topic for a name that had no stream when the log had this record, new or not. It becomes that of the stream when one is
    /// created.
    pub(crate) fn intern_awaited(&mut self, name: &AwaitedName, at: Sequence) -> u32 {
        let known = self.awaited.number(&name.name);
        if let Some(number) = known.and_then(|no| self.find(no)) {
            return number;
        }
        if let Some(stream) = self.created(&name.name, at) {
            return self.intern(&stream);
        }
        let log = home(&name.name, self.views.logs());
        let view = self.views.log(log);
        let no = view.await_name(&name.name, log, name.group, self.shard);
        self.awaited.add(name.clone(), no);
        let number = self.add(no, MediaKind::Json);
        // A stream has all its records behind those of the log so far.
        self.topics[number].complete_from = 0;
        // The stream may have been created before the name was registered.
        match self.created(&name.name, at) {
            Some(stream) => self.intern(&stream),
            None => number,
        }
    }

    /// The stream of a name that was created behind a record of the log that is the name's home.
    fn created(&self, name: &str, at: Sequence) -> Option<Arc<Stream>> {
        let log = home(name, self.views.logs());
        let stream = self.views.log(log).find(name)?;
        (born(stream.no) > at).then_some(stream)
    }

    /// The name of a topic that has no stream yet.
    pub(crate) fn awaited_name(&self, topic: u32) -> Option<&AwaitedName> {
        self.awaited.name(self.topics[topic].no)
    }

    /// The subscribers of an awaited name are gone, or have the topic of its stream.
    fn leave_name(&mut self, no: StreamNo) {
        self.awaited.remove(no);
        if !self.views.of(no).leave_name(no, self.shard) {
            self.awaited.expect_commit(no);
        }
    }

    /// Gives a topic without records another number.
    fn rename(&mut self, number: u32, no: StreamNo, kind: MediaKind) {
        let before = self.topics[number].no;
        self.index.remove(self.hasher.hash_one(before), number);
        let topic = &mut self.topics[number];
        topic.no = no;
        topic.kind = kind;
        self.enter_index(number);
    }

    /// A stream was created whose name was awaited: its topic becomes that of the stream.
    fn take_created(&mut self, created: &AwaitedStream) {
        if !created.shards.contains(&self.shard) {
            return;
        }
        if self.awaited.was_expected(created.awaited) {
            let watches_itself = self.find(created.no).is_some();
            let view = self.views.of(created.no);
            return view.unwatch_awaited(created.no, self.shard, watches_itself);
        }
        let Some(number) = self.find(created.awaited) else {
            return;
        };
        self.awaited.remove(created.awaited);
        self.rename(number, created.no, created.kind);
        if let Some(stream) = created.stream.upgrade() {
            self.bring(number, &stream);
        }
    }

    /// The topic for the streams of a log that match a pattern, new or not.
    pub(crate) fn intern_pattern(&mut self, pattern: &Pattern, log: usize) -> u32 {
        let no = self.views.log(log).watch_pattern(pattern, log, self.shard);
        match self.find(no) {
            Some(number) => number,
            None => {
                self.patterns += 1;
                // The streams have kinds of their own.
                self.add(no, MediaKind::Binary)
            }
        }
    }

    /// A new topic without subscribers. The caller has registered the shard as a watcher.
    fn add(&mut self, no: StreamNo, kind: MediaKind) -> u32 {
        let topic = Topic {
            no,
            kind,
            marks: 0,
            lagged: 0,
            stream: None,
            head: NONE,
            iter: NONE,
            state: Round::Quiet,
            appended: 0,
            complete_from: self.views.of(no).committed(),
            last: 0,
            first_at: 0,
            last_at: 0,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.topics[number] = topic;
                number
            }
            None => self.topics.push(topic),
        };
        self.enter_index(number);
        number
    }

    fn enter_index(&mut self, number: u32) {
        let Topics {
            index,
            topics,
            hasher,
            ..
        } = self;
        index.insert(hasher.hash_one(topics[number].no), number, |number| {
            hasher.hash_one(number_of(&topics[number]))
        });
    }

    /// Sets a topic's stream again.
    pub(crate) fn bring(&mut self, number: u32, stream: &Arc<Stream>) {
        let topic = &mut self.topics[number];
        if topic.no == stream.no {
            topic.marks |= FRESH;
            topic.stream = Some(Arc::clone(stream));
        }
    }

    /// The name of a topic's stream; empty while it may leave memory, and for a pattern.
    pub(crate) fn name(&self, topic: u32) -> &str {
        match &self.topics[topic].stream {
            Some(stream) => &stream.name,
            None => self.awaited_name(topic).map_or("", |name| &name.name),
        }
    }

    /// Whether the stream of a topic was deleted. The records of a pattern's streams say nothing of the pattern.
    pub(crate) fn is_deleted(&self, topic: u32) -> bool {
        self.topics[topic].marks & DELETED != 0
    }

    /// The number of a topic's stream.
    pub(crate) fn no(&self, topic: u32) -> StreamNo {
        self.topics[topic].no
    }

    /// Drops the stream of a topic where nothing has happened since the last call, so that it can leave memory. A stream stays
    /// if it has a sliding lifetime, because that its last subscriber leaves counts as a read, or if a subscriber is behind: where
    /// that may go on when it is closed, the stream says.
    pub(crate) fn rest(&mut self, number: u32, now_s: u32) {
        let topic = &mut self.topics[number];
        if topic.lagged != 0 && marks_since(topic.lagged, lag_mark(now_s)) <= LAG_MARKS_KEPT {
            return;
        }
        let Some(stream) = &topic.stream else {
            return;
        };
        let is_fresh = topic.marks & FRESH != 0;
        topic.marks &= !FRESH;
        if is_fresh
            || topic.state != Round::Quiet
            || matches!(stream.lifetime, Lifetime::Sliding { .. })
            || !stream.is_stored()
        {
            return;
        }
        topic.stream = None;
    }

    /// A subscriber of a topic is behind.
    pub(crate) fn lags(&mut self, number: u32, now_s: u32) {
        self.topics[number].lagged = lag_mark(now_s);
    }

    /// Puts a connection on a topic's list.
    pub(crate) fn link(&mut self, slots: &mut Slots, topic: u32, slot: u32) {
        let head = std::mem::replace(&mut self.topics[topic].head, slot);
        let entry = &mut slots[slot];
        entry.topic = topic;
        entry.prev = NONE;
        entry.next = head;
        if head != NONE {
            slots[head].prev = slot;
        }
    }

    /// Takes a connection off its topic's list, and forgets a topic without subscribers.
    pub(crate) fn unlink(&mut self, slots: &mut Slots, slot: u32, now: Now) {
        let (number, next, prev) = (slots[slot].topic, slots[slot].next, slots[slot].prev);
        if number == NONE {
            return;
        }
        slots[slot].topic = NONE;
        if next != NONE {
            slots[next].prev = prev;
        }
        let topic = &mut self.topics[number];
        if topic.iter == slot {
            topic.iter = next;
        }
        if prev != NONE {
            slots[prev].next = next;
            return;
        }
        topic.head = next;
        if next == NONE {
            self.forget(number, now);
        }
    }

    /// Takes a commit: links its records to their topics. `touched` is called for each topic that
    /// has something new.
    pub(crate) fn take(&mut self, batch: &Arc<Batch>, mut touched: impl FnMut(&mut Topic, u32)) {
        for created in batch.awaited() {
            self.take_created(created);
        }
        let mut kept = false;
        // A batch is one log's.
        let first = batch.records.first();
        let log = first.map_or(0, |record| self.ring_of(record.stream));
        let mut matched = batch.pattern_matches().iter().peekable();
        for (index, record) in (0..).zip(&batch.records) {
            if let Some(number) = self.find(record.stream) {
                kept = true;
                touched(self.link_record(log, batch, index, number), number);
            }
            let Some(of_patterns) = matched.next_if(|matched| matched.index == index) else {
                continue;
            };
            for pattern in &*of_patterns.patterns {
                if let Some(number) = self.find(*pattern) {
                    kept = true;
                    touched(self.link_record(log, batch, index, number), number);
                }
            }
        }
        if kept {
            self.bytes += batch_weight(batch);
            self.rings[log].bytes += batch_weight(batch);
            self.evict();
        }
    }

    /// Adds a record of a log's batch to the recent ones, as a topic's last. Returns the topic.
    fn link_record(
        &mut self,
        log: usize,
        batch: &Arc<Batch>,
        index: u32,
        number: u32,
    ) -> &mut Topic {
        let record = &batch.records[index as usize];
        let ring = &mut self.rings[log];
        let at = ring.base + ring.recent.len() as u64;
        let topic = &mut self.topics[number];
        if topic.last_at >= ring.base {
            ring.recent[(topic.last_at - ring.base) as usize].next = at;
        }
        if topic.first_at < ring.base {
            topic.first_at = at;
        }
        topic.last_at = at;
        topic.last = record.sequence;
        topic.marks |= FRESH;
        if record.deletes && record.stream == topic.no {
            topic.marks |= DELETED;
        }
        topic.appended = topic
            .appended
            .wrapping_add(weight::weight(record.data.len()));
        ring.recent.push_back(Recent {
            batch: Arc::clone(batch),
            index,
            topic: number,
            sequence: record.sequence,
            next: 0,
        });
        topic
    }

    /// What a subscriber of the topic with that cursor gets next.
    pub(crate) fn next(&self, number: u32, cursor: Sequence) -> Next {
        let topic = &self.topics[number];
        if cursor < topic.complete_from {
            return Next::Older;
        }
        let ring = self.ring(number);
        if cursor >= topic.last || topic.last_at < ring.base {
            return Next::Nothing;
        }
        // The record at the cursor may be another stream's, or this one's from before the topic was forgotten and created
        // again: neither leads to this topic's records. It is there once for each of its topics.
        let first = ring
            .recent
            .partition_point(|recent| recent.sequence < cursor);
        let same = ring.recent.range(first..).enumerate();
        let mut same = same.take_while(|(_, recent)| recent.sequence == cursor);
        let mut at = match same.find(|(step, _)| self.owns(number, first + step)) {
            Some((_, recent)) => recent.next,
            None => topic.first_at,
        };
        while at != 0 && ring.at(at).sequence <= cursor {
            at = ring.at(at).next;
        }
        if at == 0 {
            Next::Nothing
        } else {
            Next::Recent(at)
        }
    }

    /// The recent record inside which a position lies.
    pub(crate) fn inside(&self, number: u32, position: Offset) -> Option<u64> {
        match self.next(number, position.sequence) {
            Next::Recent(at) if self.record(number, at).0.sequence == position.sequence + 1 => {
                Some(at)
            }
            _ => None,
        }
    }

    /// The stream's recent records from a position on.
    pub(crate) fn records(&self, topic: u32, at: u64) -> impl Iterator<Item = &Record> {
        let ring = self.ring(topic);
        let mut at = at;
        std::iter::from_fn(move || {
            if at == 0 {
                return None;
            }
            let recent = ring.at(at);
            at = recent.next;
            Some(recent.record())
        })
    }

    /// The recent record at a position, and the position of the stream's next one; 0 if there is none.
    pub(crate) fn record(&self, topic: u32, at: u64) -> (&Record, u64) {
        let recent = self.ring(topic).at(at);
        (recent.record(), recent.next)
    }

    /// The name and kind of the stream of a record, if the topic is a pattern's.
    pub(crate) fn label(&self, topic: u32, at: u64) -> Option<&StreamLabel> {
        let recent = self.ring(topic).at(at);
        recent.batch.label(recent.index)
    }

    /// Begins a round over the topic's subscribers.
    pub(crate) fn begin(&mut self, topic: u32) {
        let topic = &mut self.topics[topic];
        topic.iter = topic.head;
    }

    /// Every record of the topic's stream behind this sequence is among the recent ones.
    pub(crate) fn complete_from(&self, topic: u32) -> Sequence {
        self.topics[topic].complete_from
    }

    /// Whether a recent record is linked to those of the topic as it is now.
    fn owns(&self, number: u32, index: usize) -> bool {
        let topic = &self.topics[number];
        let ring = self.ring(number);
        ring.recent[index].topic == number && ring.base + index as u64 >= topic.first_at
    }

    /// The recent records among which the topic's are.
    fn ring(&self, topic: u32) -> &Ring {
        &self.rings[self.ring_of(self.topics[topic].no)]
    }

    /// The index of the ring of a stream or pattern: that of its log, or the last one.
    fn ring_of(&self, no: StreamNo) -> usize {
        ring_of(no, self.rings.len())
    }

    /// The topic of a stream or pattern.
    pub(crate) fn find(&self, stream: StreamNo) -> Option<u32> {
        let topics = &self.topics;
        self.index.find(self.hasher.hash_one(stream), |number| {
            number_of(&topics[number]) == stream
        })
    }

    fn forget(&mut self, number: u32, now: Now) {
        let topic = &mut self.topics[number];
        if let Some(stream) = topic.stream.take() {
            // It was read until now: from here on its lifetime goes on without readers.
            self.views.of(stream.no).touch(&stream, now);
        }
        let no = std::mem::take(&mut topic.no);
        if no == 0 {
            return;
        }
        if is_awaited(no) {
            self.leave_name(no);
        } else if is_pattern(no) {
            self.patterns -= 1;
            self.views.of(no).unwatch_pattern(no, self.shard);
        } else {
            self.views.of(no).unwatch(no, self.shard);
        }
        let hash = self.hasher.hash_one(no);
        self.index.remove(hash, number);
        self.free.push(number);
    }

    /// Evicts the oldest records until the bound holds. Their topics note it, so that a subscriber further back reads from the
    /// log.
    fn evict(&mut self) {
        while self.bytes > self.bytes_max {
            let rings_len = self.rings.len();
            let rings = self.rings.iter_mut().enumerate();
            let Some((log, ring)) = rings.max_by_key(|(_, ring)| ring.bytes) else {
                return;
            };
            let Some(oldest) = ring.recent.pop_front() else {
                return;
            };
            let at = ring.base;
            ring.base += 1;
            let topic = &mut self.topics[oldest.topic];
            // Otherwise the entry is of a former topic, whose number another may have.
            if topic.first_at == at && ring_of(topic.no, rings_len) == log {
                topic.complete_from = topic.complete_from.max(oldest.sequence);
                topic.first_at = oldest.next;
            }
            let last_of_batch = ring
                .recent
                .front()
                .is_none_or(|next| !Arc::ptr_eq(&next.batch, &oldest.batch));
            if last_of_batch {
                self.bytes -= batch_weight(&oldest.batch);
                ring.bytes -= batch_weight(&oldest.batch);
            }
        }
    }
}

impl std::ops::Index<u32> for Topics {
    type Output = Topic;

    fn index(&self, topic: u32) -> &Topic {
        &self.topics[topic]
    }
}

impl std::ops::IndexMut<u32> for Topics {
    fn index_mut(&mut self, topic: u32) -> &mut Topic {
        &mut self.topics[topic]
    }
}

/// The memory of a batch that a shard keeps: all of it, because it is shared as a whole, and the allocator's overhead.
fn batch_weight(batch: &Batch) -> usize {
    let record = size_of::<Record>() + size_of::<Recent>() + ALLOCATION_BYTES;
    let own = size_of::<Batch>() + 2 * ALLOCATION_BYTES;
    let matches = batch.pattern_matches().iter();
    let matched: usize = matches
        .map(|one| {
            let entries = one.patterns.len() * (size_of::<Recent>() + size_of::<StreamNo>());
            size_of::<PatternMatch>() + one.stream.name.len() + 2 * ALLOCATION_BYTES + entries
        })
        .sum();
    batch.bytes + batch.records.len() * record + matched + own
}

/// The approximate overhead of an allocation.
const ALLOCATION_BYTES: usize = 32;

/// Which of so many rings has the recent records of a stream or pattern.
fn ring_of(no: StreamNo, rings: usize) -> usize {
    log_of(no).min(rings - 1)
}

fn number_of(topic: &Topic) -> StreamNo {
    topic.no
}
