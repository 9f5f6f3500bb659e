//! A stream as the server holds it in memory: what shards may read, and what the machine decides by.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use encke_log::{Sequence, StreamNo};
use parking_lot::Mutex;

use crate::{Lifetime, Offset};

/// One stream. Shards hold it by reference and read its committed [`Facts`]; only the
/// [`Machine`](crate::Machine) changes it.
///
/// Invariant: `committed` is never ahead of what the log has made as durable as the server's level
/// asks; `next` is what the batch being built would make of it.
#[derive(Debug)]
pub struct Stream {
    /// Its number in the log: the sequence of the record that created it, so it is never reused.
    pub no: StreamNo,
    /// Its name.
    pub name: Box<str>,
    /// Its type.
    pub media: Arc<Media>,
    /// When it ends by itself.
    pub lifetime: Lifetime,
    /// Where the data before its own comes from.
    pub source: Option<Box<Source>>,
    touched_ms: AtomicU64,
    /// The shards that have subscribers, a bit each.
    watchers: AtomicU64,
    state: Mutex<State>,
}

/// The stream a fork was made of, and where it leaves it.
#[derive(Debug)]
pub struct Source {
    /// The stream that holds the data before `at`.
    pub stream: Arc<Stream>,
    /// The first position that is the fork's own.
    pub at: Offset,
}

/// What may change about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The position behind the last data.
    pub tail: Offset,
    /// How many forks share its data.
    pub forks: u32,
    /// No append will follow.
    pub closed: bool,
    /// Whether clients still reach it.
    pub life: Life,
}

/// How far a stream is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Clients read and write it.
    Live,
    /// Deleted or expired, but forks read its data: clients are told that it is gone.
    Kept,
    /// Deleted or expired: its name is free.
    Ended,
}

impl Stream {
    pub(crate) fn new(
        no: StreamNo,
        name: &str,
        media: Arc<Media>,
        lifetime: Lifetime,
        source: Option<Box<Source>>,
        next: Facts,
        now_ms: u64,
    ) -> Self {
        Stream {
            no,
            name: name.into(),
            media,
            lifetime,
            source,
            touched_ms: AtomicU64::new(now_ms),
            watchers: AtomicU64::new(0),
            state: Mutex::new(State {
                committed: next,
                next,
                writers: None,
            }),
        }
    }

    /// What is committed.
    pub fn facts(&self) -> Facts {
        self.state.lock().committed
    }

    /// A read or a write: a sliding lifetime starts anew.
    pub fn touch(&self, now_ms: u64) {
        if matches!(self.lifetime, Lifetime::Sliding { .. }) {
            self.touched_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
    }

    /// A shard has subscribers from now on: it is handed every commit with records of the stream
    /// but those up to [`View::committed`](crate::View::committed), read after this.
    pub fn watch(&self, shard: u16) {
        self.watchers.fetch_or(watcher(shard), Ordering::SeqCst);
    }

    /// A shard has no subscribers any more.
    pub fn unwatch(&self, shard: u16) {
        // The last bit stands for all further shards, so it stays once it is set.
        if usize::from(shard) < WATCHERS_MAX - 1 {
            self.watchers.fetch_and(!watcher(shard), Ordering::SeqCst);
        }
    }

    /// The shards that have subscribers, a bit each; the last stands for all further shards.
    pub(crate) fn watchers(&self) -> u64 {
        self.watchers.load(Ordering::SeqCst)
    }

    /// When it ends unless somebody touches it, in milliseconds since 1970.
    pub fn ends_ms(&self) -> Option<u64> {
        match self.lifetime {
            Lifetime::Unbounded => None,
            Lifetime::Sliding { ttl_s } => Some(
                self.touched_ms
                    .load(Ordering::Relaxed)
                    .saturating_add(ttl_s.saturating_mul(1000)),
            ),
            Lifetime::Until { at_ms } => Some(at_ms),
        }
    }

    /// Whether its lifetime is over.
    pub fn expired(&self, now_ms: u64) -> bool {
        self.ends_ms().is_some_and(|ends_ms| ends_ms <= now_ms)
    }

    /// The parts of the log that hold what a reader sees between `from` and `tail`, in order.
    pub fn spans(&self, from: Offset, tail: Offset) -> Vec<Span> {
        let mut spans = Vec::with_capacity(1);
        self.push_spans(from, tail, &mut spans);
        spans
    }

    fn push_spans(&self, mut from: Offset, upto: Offset, spans: &mut Vec<Span>) {
        if let Some(source) = &self.source {
            if from < source.at {
                let inherited = source.at.min(upto);
                source.stream.push_spans(from, inherited, spans);
            }
            if upto <= source.at {
                return;
            }
            if from <= source.at {
                // The fork's own records come after the one it may have cut.
                from = Offset::behind(source.at.sequence);
            }
        }
        if from < upto {
            spans.push(Span {
                stream: self.no,
                from,
                upto,
            });
        }
    }

    /// The first sequence that data of this stream can have; no offset before it was given out.
    pub fn first(&self) -> Sequence {
        match &self.source {
            Some(source) => source.stream.first(),
            None => self.no,
        }
    }

    pub(crate) fn touched_ms(&self) -> u64 {
        self.touched_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// A stretch of one stream's records in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stream whose records these are.
    pub stream: StreamNo,
    /// Data before this position is not asked for.
    pub from: Offset,
    /// Data from this position on is not asked for.
    pub upto: Offset,
}

/// The part of a stream that is behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) committed: Facts,
    pub(crate) next: Facts,
    pub(crate) writers: Option<Box<Writers>>,
}

impl State {
    pub(crate) fn writers_mut(&mut self) -> &mut Writers {
        self.writers.get_or_insert_default()
    }
}

/// What is remembered of those who write to a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writers {
    pub(crate) producers: HashMap<Box<str>, ProducerState>,
    /// The last `Stream-Seq`.
    pub(crate) seq: Option<Box<str>>,
    /// Who closed the stream, so that a repeated close is known as one.
    pub(crate) closer: Option<(Box<str>, ProducerState)>,
}

/// How far a producer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ProducerState {
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    /// The record that its last request made; tells who was idle longest.
    pub(crate) last: Sequence,
}

/// A stream's type, shared by all streams that have it.
#[derive(Debug, PartialEq, Eq)]
pub struct Media {
    /// As the creator wrote it.
    pub name: Box<str>,
    /// What readers may expect of the data.
    pub kind: MediaKind,
}

/// What a type means for the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// Messages, each a JSON value (`application/json`).
    Json,
    /// Text in UTF-8 (`text/*`).
    Text,
    /// Bytes (all others).
    Binary,
}

impl Media {
    /// The type that a `Content-Type` names.
    pub fn new(name: &str) -> Self {
        let essence = essence(name);
        let kind = if essence.eq_ignore_ascii_case("application/json") {
            MediaKind::Json
        } else if essence
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case("text/"))
        {
            MediaKind::Text
        } else {
            MediaKind::Binary
        };
        Media {
            name: name.into(),
            kind,
        }
    }

    /// Whether `other` names the same type. Case and parameters don't count.
    pub fn matches(&self, other: &str) -> bool {
        essence(&self.name).eq_ignore_ascii_case(essence(other))
    }
}

/// A shard's bit among a stream's watchers.
pub(crate) fn watcher(shard: u16) -> u64 {
    1 << usize::from(shard).min(WATCHERS_MAX - 1)
}

/// Bits for watchers.
const WATCHERS_MAX: usize = u64::BITS as usize;

fn essence(name: &str) -> &str {
    name.split(';').next().unwrap_or(name).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_match_by_their_essence() {
        let json = Media::new("Application/JSON; charset=utf-8");
        assert_eq!(json.kind, MediaKind::Json);
        assert!(json.matches("application/json"));
        assert!(!json.matches("application/jsonl"));
        assert_eq!(Media::new("TEXT/html").kind, MediaKind::Text);
        assert_eq!(Media::new("téxt").kind, MediaKind::Binary);
    }
}
