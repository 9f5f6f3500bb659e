//! Streams in memory: what shards may read, and what the machine decides by.
//!
//! `record.rs` is the format of a record, `offset.rs` and `number.rs` name positions and streams. `writers.rs` has the producers of
//! a stream, `retention.rs` how much of it stays, `renewal.rs` when a lifetime is renewed, `ack.rs` the durability levels, `media.rs` content types,
//! `own.rs` knows the server's own streams, `label.rs` what encoders need, `viewer.rs` whose streams a caller may use, and `account.rs` and `charge.rs` who pays for them.

pub(crate) mod account;
pub(crate) mod ack;
pub(crate) mod charge;
pub(crate) mod count;
pub(crate) mod label;
pub(crate) mod media;
pub(crate) mod number;
pub(crate) mod offset;
pub(crate) mod own;
pub(crate) mod pending_storage;
pub(crate) mod producers;
pub(crate) mod record;
mod renewal;
pub(crate) mod retention;
pub(crate) mod viewer;
pub(crate) mod writers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use encke_clock::{Now, SteadyTime};
use encke_log::{Sequence, StreamNo};
use parking_lot::Mutex;

use crate::machine::deadlines::DueTimes;
use crate::stream::account::{Account, ChargedAccount};
use crate::stream::count::{ByteCount, MessageCount};
use crate::stream::media::Media;
use crate::stream::number::born;
use crate::stream::record::EndReason;
use crate::stream::retention::Buckets;
use crate::stream::writers::Writers;
use crate::{AckLevel, Lifetime, Offset, Retention};

/// A stream. Shards hold a reference and read its committed [`Facts`]; only the [`Machine`](crate::Machine) changes it.
///
/// Invariant: the durability of `committed` is never below the stream's level. `next` is the state after the batch that
/// is being built.
#[derive(Debug)]
pub struct Stream {
    /// Its number. It holds the log and the record that created the stream ([`born`], [`log_of`](crate::log_of)), so it
    /// is never reused.
    pub no: StreamNo,
    /// Its name.
    pub name: Box<str>,
    /// Its content type.
    pub media: Arc<Media>,
    /// When it ends by itself.
    pub lifetime: Lifetime,
    /// Its durability level: when readers see a record, and when an append that names no level is acknowledged.
    pub ack: AckLevel,
    /// What few streams have.
    rare: Option<Box<RareSettings>>,
    /// The stream that holds the data before its own.
    pub source: Option<Box<Source>>,
    /// The length of its chain of sources; 0 for a stream that is not a fork.
    pub(crate) depth: u32,
    touched_ms: AtomicU64,
    /// It was looked up since the last sweep.
    pub(crate) used: AtomicBool,
    /// Shards may have subscribers; the view knows which.
    pub(crate) watched: AtomicBool,
    state: Mutex<State>,
}

/// What a stream has from its creation on.
#[derive(Clone, Debug)]
pub(crate) struct StreamSettings {
    pub(crate) media: Arc<Media>,
    pub(crate) lifetime: Lifetime,
    pub(crate) ack: AckLevel,
    pub(crate) retention: Retention,
    /// The name of the caller to whom it belongs.
    pub(crate) owner: Option<Box<str>>,
    /// It is closed when nothing was appended for so many seconds.
    pub(crate) producer_timeout_s: Option<u32>,
    /// Who pays for it.
    pub(crate) account: Option<Arc<Account>>,
}

/// Settings that few streams have.
#[derive(Debug)]
struct RareSettings {
    retention: Retention,
    owner: Option<Box<str>>,
    producer_timeout_s: Option<u32>,
    /// When something was appended last, by the steady clock. Only kept with a timeout.
    last_append_ms: AtomicU64,
    account: Option<ChargedAccount>,
}

/// The stream that a fork continues, and where.
#[derive(Debug)]
pub struct Source {
    /// The stream that holds the data before `at`.
    pub stream: Arc<Stream>,
    /// The first position that is the fork's own.
    pub at: Offset,
}

/// What can change about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The position after the last data.
    pub tail: Offset,
    /// Messages that were appended, those of its source included, and those that were removed; see [`Facts::messages`].
    pub counted: MessageCount,
    /// Bytes of data that were appended to it, see [`ByteCount`].
    pub appended: ByteCount,
    /// How many forks share its data.
    pub forks: u32,
    /// Readers must not see its records up to this one.
    pub floor: Sequence,
    /// No append follows.
    pub closed: bool,
    /// Why it was closed, if that was said.
    pub end: Option<EndReason>,
    /// A reader has asked the producer to stop.
    pub stop_asked: bool,
    /// Whether clients can use it.
    pub life: Life,
}

// Each stream in memory has it twice.
const _: () = assert!(size_of::<Facts>() <= 48);

/// Whether a stream exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Clients can read and write it.
    Live,
    /// Deleted or expired, but forks read its data. Clients get the response that it is gone.
    Kept,
    /// Deleted or expired: its name is free.
    Ended,
}

impl Facts {
    /// How many messages were appended to the stream, those of its source included, and those that were removed. `None`: it is a fork that
    /// begins inside its source, or an older version has stored it.
    pub fn messages(&self) -> Option<u64> {
        self.counted.known()
    }
}

impl Stream {
    /// A stream that was read or written last at `touched`, and appended to as well.
    pub(crate) fn new(
        no: StreamNo,
        name: Box<str>,
        settings: StreamSettings,
        source: Option<Box<Source>>,
        facts: Facts,
        touched: SteadyTime,
    ) -> Self {
        let depth = source.as_ref().map_or(0, |source| source.stream.depth + 1);
        let StreamSettings {
            media,
            lifetime,
            ack,
            retention,
            owner,
            producer_timeout_s,
            account,
        } = settings;
        let is_rare = retention.is_limited()
            || owner.is_some()
            || producer_timeout_s.is_some()
            || account.is_some();
        let rare = is_rare.then(|| {
            Box::new(RareSettings {
                retention,
                owner,
                producer_timeout_s,
                last_append_ms: AtomicU64::new(touched.as_ms()),
                account: account.map(ChargedAccount::new),
            })
        });
        Stream {
            no,
            name,
            media,
            lifetime,
            ack,
            rare,
            source,
            depth,
            touched_ms: AtomicU64::new(touched.as_ms()),
            used: AtomicBool::new(true),
            // It may have been watched before it was evicted.
            watched: AtomicBool::new(true),
            state: Mutex::new(State {
                committed: facts,
                next: facts,
                dirty: false,
                stored: None,
                watched: DueTimes::default(),
                writers: None,
                buckets: None,
                metadata: None,
            }),
        }
    }

    /// The committed state.
    pub fn facts(&self) -> Facts {
        self.state.lock().committed
    }

    /// Whether it was deleted or expired and no fork reads it. Its records may be removed already, so the result of a
    /// read is void.
    pub fn has_ended(&self) -> bool {
        self.facts().life == Life::Ended
    }

    /// Whether this node has memory for a producer of it: one that it remembers, or a further one.
    pub fn has_room_for_producer(&self, id: &str) -> bool {
        let state = self.state();
        let writers = state.writers.as_ref();
        writers.is_none_or(|writers| writers.producers.have_room_for(id))
    }

    /// How much of it is retained.
    pub fn retention(&self) -> Retention {
        let rare = self.rare.as_ref();
        rare.map_or_else(Retention::default, |rare| rare.retention)
    }

    /// The name of the caller to whom it belongs.
    pub fn owner(&self) -> Option<&str> {
        self.rare.as_ref()?.owner.as_deref()
    }

    /// It is closed when nothing was appended for so many seconds.
    pub fn producer_timeout_s(&self) -> Option<u32> {
        self.rare.as_ref()?.producer_timeout_s
    }

    pub(crate) fn charged_account(&self) -> Option<&ChargedAccount> {
        self.rare.as_ref()?.account.as_ref()
    }

    /// Its committed metadata, in JSON.
    pub fn metadata(&self) -> Option<Arc<str>> {
        self.state.lock().metadata.as_ref()?.committed.clone()
    }

    /// Whether it has a limited retention.
    pub(crate) fn keeps_part(&self) -> bool {
        self.retention().is_limited()
    }

    /// Whether it has a deadline: the end of its lifetime, the silence of its producer, or the age of its records.
    pub(crate) fn is_timed(&self) -> bool {
        self.lifetime != Lifetime::Unbounded
            || self.retention().age_s.is_some()
            || self.producer_timeout_s().is_some()
    }

    /// Whether its lifetime begins again with each read and write.
    pub(crate) fn is_sliding(&self) -> bool {
        matches!(self.lifetime, Lifetime::Sliding { .. })
    }

    /// Its deadlines unless it is touched.
    pub(crate) fn due(&self, state: &State) -> DueTimes {
        if state.next.life != Life::Live {
            return DueTimes::default();
        }
        let buckets = state.buckets.as_ref();
        let trims = buckets.and_then(|buckets| buckets.next_due(&self.retention()));
        let wall = self.lifetime.until().into_iter().chain(trims).min();
        let abandoned_at = self.abandoned_at().filter(|_| !state.next.closed);
        let slides_until = self.lifetime.slides_until(self.touched());
        DueTimes::new(slides_until.into_iter().chain(abandoned_at).min(), wall)
    }

    /// When its producer has appended nothing for too long, if it is open still.
    pub(crate) fn abandoned_at(&self) -> Option<SteadyTime> {
        let timeout_s = self.producer_timeout_s()?;
        Some(
            self.last_append()
                .after(Duration::from_secs(timeout_s.into())),
        )
    }

    /// Whether its producer has appended nothing for too long.
    pub(crate) fn is_abandoned(&self, now: Now) -> bool {
        self.abandoned_at().is_some_and(|at| at <= now.steady)
    }

    /// Notes an append to a stream with a timeout: the time of its producer begins again. Returns when it began before.
    pub(crate) fn note_append(&self, at: SteadyTime) -> Option<SteadyTime> {
        self.producer_timeout_s()?;
        let before = self.last_append();
        self.set_last_append(at);
        Some(before)
    }

    /// Sets when something was appended last.
    pub(crate) fn set_last_append(&self, at: SteadyTime) {
        if let Some(rare) = &self.rare {
            rare.last_append_ms.store(at.as_ms(), Ordering::Relaxed);
        }
    }

    /// Sets the end of a stream that is in memory only.
    pub(crate) fn set_tail(&self, tail: Offset) {
        let mut state = self.state.lock();
        state.committed.tail = tail;
        state.next.tail = tail;
    }

    /// When something was appended last; 1970 for a stream without a timeout.
    pub(crate) fn last_append(&self) -> SteadyTime {
        let rare = self.rare.as_ref();
        let rare = rare.filter(|rare| rare.producer_timeout_s.is_some());
        SteadyTime::from_ms(rare.map_or(0, |rare| rare.last_append_ms.load(Ordering::Relaxed)))
    }

    /// Notes a read or a write: a sliding lifetime begins again. Readers call [`View::touch`](crate::View::touch).
    pub(crate) fn touch(&self, now: Now) {
        if self.is_sliding() {
            self.touched_ms
                .fetch_max(now.steady.as_ms(), Ordering::Relaxed);
        }
    }

    /// When it was last read or written, by the steady clock. Only kept for sliding lifetimes.
    pub(crate) fn touched(&self) -> SteadyTime {
        SteadyTime::from_ms(self.touched_ms.load(Ordering::Relaxed))
    }

    /// Whether the store has it or is about to get it, so that it can be loaded by its number quickly.
    pub fn is_stored(&self) -> bool {
        self.state.lock().stored.is_some()
    }

    /// Whether its lifetime is over: a sliding one by the steady clock, another by the time of day.
    pub fn expired(&self, now: Now) -> bool {
        let slides_until = self.lifetime.slides_until(self.touched());
        slides_until.is_some_and(|end| end <= now.steady)
            || self.lifetime.until().is_some_and(|end| end <= now.wall)
    }

    /// The stream to which the record was appended: another one for what a fork shares with its source.
    pub fn source_of(&self, sequence: Sequence) -> StreamNo {
        let from = Offset::behind(sequence.saturating_sub(1));
        let spans = self.spans(from, Offset::behind(sequence));
        spans.first().map_or(self.no, |span| span.stream)
    }

    /// The spans of the log that hold the data between `from` and `upto`, in order. From the beginning means from the
    /// floor.
    pub fn spans(&self, from: Offset, mut upto: Offset) -> Vec<Span> {
        let from = match from {
            Offset::START => Offset::behind(self.facts().floor),
            from => from,
        };
        let mut spans = Vec::with_capacity(1);
        let mut stream = self;
        loop {
            let own = match &stream.source {
                // The fork's own records follow the record at which it left its source, even inside that record.
                Some(source) if from <= source.at => Offset::behind(source.at.sequence),
                _ => from,
            };
            let owns = stream.source.as_ref().is_none_or(|source| source.at < upto);
            if owns && own < upto {
                spans.push(Span {
                    stream: stream.no,
                    from: own,
                    upto,
                });
            }
            match &stream.source {
                Some(source) if from < source.at => {
                    upto = upto.min(source.at);
                    stream = &source.stream;
                }
                _ => break,
            }
        }
        spans.reverse();
        spans
    }

    /// The first sequence that data of this stream can have. An offset before it never belonged to this stream.
    pub fn first(&self) -> Sequence {
        let mut stream = self;
        while let Some(source) = &stream.source {
            stream = &source.stream;
        }
        born(stream.no)
    }

    /// Whether `offset` can belong to this stream and not to an earlier stream of its name. The caller checks that it
    /// is not after the tail.
    pub fn reaches_back_to(&self, offset: Offset) -> bool {
        offset == Offset::START || offset.sequence.saturating_add(1) >= self.first()
    }

    /// Whether a client can have `offset` from this stream, and not only from an earlier stream of its name. The caller checks that it
    /// is not after the tail. It is narrower than [`Stream::reaches_back_to`]: an earlier fork of the same source had positions behind
    /// the place where this one leaves it.
    pub fn can_have_given(&self, offset: Offset) -> bool {
        let mut stream = self;
        loop {
            match &stream.source {
                Some(source) if offset == source.at => return true,
                Some(source) if offset < source.at => stream = &source.stream,
                _ => return offset == Offset::START || stream.has_own(offset),
            }
        }
    }

    /// The stream's last position for a client that has everything of the log up to `at`. Only such a position leads on everywhere and
    /// at all times: the stream may end before `at`, and a fork has none between the place where it leaves its source and its own
    /// beginning.
    pub fn position(&self, at: Offset) -> Offset {
        let at = at.min(self.facts().tail);
        let mut stream = self;
        loop {
            match &stream.source {
                Some(source) if at <= source.at => stream = &source.stream,
                Some(source) if !stream.has_own(at) => return source.at,
                _ => return at,
            }
        }
    }

    /// Whether a position is behind the beginning of the stream's own records.
    fn has_own(&self, at: Offset) -> bool {
        at.sequence.saturating_add(1) >= born(self.no)
    }

    /// Whether `offset` is at the beginning of the stream.
    pub(crate) fn begins_at(&self, offset: Offset) -> bool {
        offset == Offset::START || offset == Offset::behind(self.first() - 1)
    }

    pub(crate) fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A chain of forks is dropped one by one, so that its length needs no stack.
        let mut source = self.source.take();
        while let Some(last) = source.and_then(|source| Arc::into_inner(source.stream)) {
            let mut last = last;
            source = last.source.take();
        }
    }
}

/// A span of one stream's records in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stream of the records.
    pub stream: StreamNo,
    /// Data before this position is left out.
    pub from: Offset,
    /// Data from this position on is left out.
    pub upto: Offset,
}

/// The part of a stream that is behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) committed: Facts,
    pub(crate) next: Facts,
    /// Changed since the last checkpoint took it.
    pub(crate) dirty: bool,
    /// The store has it, with this time of its last read or write, by the steady clock.
    pub(crate) stored: Option<SteadyTime>,
    /// Its times in the machine's list of deadlines.
    pub(crate) watched: DueTimes,
    pub(crate) writers: Option<Box<Writers>>,
    /// Its records, if it has a limited retention.
    pub(crate) buckets: Option<Box<Buckets>>,
    /// Its metadata, if it has ever had some.
    pub(crate) metadata: Option<Box<Metadata>>,
}

/// The metadata of a stream, in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) committed: Option<Arc<str>>,
    /// After the batch that is being built.
    pub(crate) next: Option<Arc<str>>,
}

impl Metadata {
    /// Metadata that is committed.
    pub(crate) fn restored(text: &str) -> Metadata {
        let text: Arc<str> = text.into();
        Metadata {
            committed: Some(Arc::clone(&text)),
            next: Some(text),
        }
    }
}

impl State {
    pub(crate) fn writers_mut(&mut self) -> &mut Writers {
        self.writers.get_or_insert_default()
    }

    pub(crate) fn buckets_mut(&mut self) -> &mut Buckets {
        self.buckets.get_or_insert_default()
    }

    pub(crate) fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata.get_or_insert_default()
    }

    /// Makes what a batch has changed visible, and returns the facts before.
    pub(crate) fn commit(&mut self) -> Facts {
        if let Some(metadata) = &mut self.metadata {
            metadata.committed.clone_from(&metadata.next);
        }
        std::mem::replace(&mut self.committed, self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(media: &Arc<Media>) -> StreamSettings {
        StreamSettings {
            media: Arc::clone(media),
            lifetime: Lifetime::Unbounded,
            ack: AckLevel::Synced,
            retention: Retention::default(),
            owner: None,
            producer_timeout_s: None,
            account: None,
        }
    }

    fn open_until(last: Sequence) -> Facts {
        Facts {
            tail: Offset::behind(last),
            forks: 0,
            floor: 0,
            closed: false,
            end: None,
            counted: MessageCount::default(),
            appended: ByteCount::default(),
            stop_asked: false,
            life: Life::Live,
        }
    }

    /// A chain of `depth` forks.
    fn chain(depth: u64) -> Arc<Stream> {
        let media = Arc::new(Media::new("text/plain"));
        let mut source = None;
        for no in 1..=depth + 1 {
            let at = Offset::behind(no);
            let stream = Stream::new(
                no,
                "x".into(),
                settings(&media),
                source.take(),
                open_until(no),
                SteadyTime::from_ms(0),
            );
            let stream = Arc::new(stream);
            source = Some(Box::new(Source { stream, at }));
        }
        source.map(|last| last.stream).unwrap()
    }

    #[test]
    fn a_long_chain_of_forks_costs_no_stack() {
        let last = chain(200_000);
        assert_eq!((last.depth, last.first()), (200_000, 1));
        let spans = last.spans(Offset::START, last.facts().tail);
        assert_eq!(spans.len(), 200_001);
        assert!(spans.windows(2).all(|pair| pair[0].upto <= pair[1].from));
        assert!(last.reaches_back_to(Offset::START));
        assert!(last.reaches_back_to(Offset::behind(1)));
        drop(last);
    }

    #[test]
    fn dropping_a_fork_leaves_a_source_that_is_in_use() {
        let last = chain(3);
        let source = Arc::clone(&last.source.as_ref().unwrap().stream);
        drop(last);
        assert_eq!((source.depth, source.first()), (2, 1));
    }

    #[test]
    fn an_offset_of_an_earlier_stream_does_not_reach() {
        let media = Arc::new(Media::new("text/plain"));
        let stream = Stream::new(
            10,
            "x".into(),
            settings(&media),
            None,
            open_until(10),
            SteadyTime::from_ms(0),
        );
        assert!(stream.reaches_back_to(Offset::START));
        assert!(stream.reaches_back_to(Offset::behind(9)));
        assert!(!stream.reaches_back_to(Offset::behind(8)));
        assert!(!stream.reaches_back_to(Offset {
            sequence: 0,
            units: 1
        }));
        assert!(stream.reaches_back_to(Offset::behind(u64::MAX)));
    }

    /// A fork that was created by the record 10, of a stream that was created by the record 2.
    fn fork(at: Offset, tail: Offset) -> Stream {
        let stream = |no, source, tail| {
            let facts = Facts {
                tail,
                ..open_until(0)
            };
            let media = Arc::new(Media::new("text/plain"));
            let touched = SteadyTime::from_ms(0);
            Stream::new(no, "x".into(), settings(&media), source, facts, touched)
        };
        let source = Arc::new(stream(2, None, Offset::behind(20)));
        stream(10, Some(Box::new(Source { stream: source, at })), tail)
    }

    #[test]
    fn a_fork_has_no_positions_between_its_source_and_its_own_beginning() {
        let inside = |sequence| Offset { sequence, units: 1 };
        for at in [Offset::behind(5), inside(4)] {
            let fork = fork(at, Offset::behind(12));
            for (sequence, own) in [
                (0, Offset::START),
                (1, Offset::behind(1)),
                (4, Offset::behind(4)),
            ] {
                let offset = Offset::behind(sequence);
                assert!(fork.can_have_given(offset), "{offset}");
                assert_eq!(fork.position(offset), own);
            }
            assert!(fork.can_have_given(at));
            assert_eq!(fork.position(at), at);
            for offset in [Offset::behind(6), inside(7), Offset::behind(8)] {
                assert!(!fork.can_have_given(offset), "{offset}");
                assert_eq!(fork.position(offset), at);
            }
            // The record that created it may have data, inside which others begin.
            for offset in [inside(9), Offset::behind(10), Offset::behind(12)] {
                assert!(fork.can_have_given(offset), "{offset}");
                assert_eq!(fork.position(offset), offset);
            }
            assert_eq!(fork.position(Offset::behind(30)), Offset::behind(12));
        }
        let empty = fork(Offset::behind(5), Offset::behind(5));
        assert_eq!(empty.position(Offset::behind(30)), Offset::behind(5));
        assert!(!empty.can_have_given(Offset {
            sequence: 0,
            units: 1
        }));
    }
}
