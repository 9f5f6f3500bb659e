//! A stream as a checkpoint keeps it in the log's state store.

use encke_log::{StateEntry, StreamNo};
use serde::{Deserialize, Serialize};

use crate::Offset;
use crate::record::{BadRecord, Fork, Lifetime};
use crate::stream::{Life, Stream};
use crate::writers::{ProducerState, Writers};

/// The key and the value under which a stream is kept, as it is committed. An ended one has no
/// value.
pub(crate) fn entry(stream: &Stream) -> StateEntry {
    let key = key(stream.no);
    let state = stream.state();
    let facts = state.committed;
    if facts.life == Life::Ended {
        return (key, None);
    }
    let empty = Writers::default();
    let writers = state.writers.as_deref().unwrap_or(&empty);
    let stored = StoredStream {
        name: &stream.name,
        content_type: &stream.media.name,
        lifetime: stream.lifetime,
        fork: stream.source.as_ref().map(|source| Fork {
            source: source.stream.no,
            at: source.at,
        }),
        tail: facts.tail,
        closed: facts.closed,
        deleted: facts.life != Life::Live,
        producers: writers
            .producers
            .iter()
            .map(|(id, state)| (&**id, *state))
            .collect(),
        writer_seq: writers.seq.as_deref(),
        closer: writers.closer.as_ref().map(|(id, state)| (&**id, *state)),
    };
    let value = postcard::to_allocvec(&stored).expect("growing a vector is all that writes here");
    (key, Some(value))
}

/// The prefix of all keys that hold streams; the stream's number follows, big-endian.
pub(crate) const KEY_STREAM: &[u8] = b"s";

/// The key of a stream's entry.
pub(crate) fn key(no: StreamNo) -> Vec<u8> {
    [KEY_STREAM, &no.to_be_bytes()].concat()
}

/// The number of the stream that an entry's key is for.
pub(crate) fn number(key: &[u8]) -> Result<StreamNo, BadRecord> {
    key.strip_prefix(KEY_STREAM)
        .and_then(|no| no.try_into().ok())
        .map(u64::from_be_bytes)
        .ok_or(BadRecord)
}

/// An entry's value. How many forks a stream has is not kept: it follows from the forks. Nor is
/// when it was last touched: a start counts as a read.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredStream<'a> {
    pub(crate) name: &'a str,
    pub(crate) content_type: &'a str,
    pub(crate) lifetime: Lifetime,
    pub(crate) fork: Option<Fork>,
    pub(crate) tail: Offset,
    pub(crate) closed: bool,
    /// It is kept for its forks only.
    pub(crate) deleted: bool,
    #[serde(borrow)]
    pub(crate) producers: Vec<(&'a str, ProducerState)>,
    pub(crate) writer_seq: Option<&'a str>,
    #[serde(borrow)]
    pub(crate) closer: Option<(&'a str, ProducerState)>,
}

impl<'a> StoredStream<'a> {
    pub(crate) fn decode(value: &'a [u8]) -> Result<Self, BadRecord> {
        match postcard::take_from_bytes(value) {
            Ok((stored, [])) => Ok(stored),
            _ => Err(BadRecord),
        }
    }

    pub(crate) fn writers(&self) -> Option<Box<Writers>> {
        if self.producers.is_empty() && self.writer_seq.is_none() {
            return None;
        }
        Some(Box::new(Writers {
            producers: self
                .producers
                .iter()
                .map(|(id, state)| ((*id).into(), *state))
                .collect(),
            seq: self.writer_seq.map(Into::into),
            closer: self.closer.map(|(id, state)| (id.into(), state)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option::of;
    use proptest::prelude::*;

    use super::*;

    fn producer() -> impl Strategy<Value = (String, ProducerState)> {
        ("\\PC{0,9}", any::<(u64, u64, u64)>()).prop_map(|(id, (epoch, seq, last))| {
            let state = ProducerState { epoch, seq, last };
            (id, state)
        })
    }

    proptest! {
        #[test]
        fn an_entry_reads_back(
            name in "\\PC{0,40}",
            (tail, fork) in any::<((u64, u32), Option<(u64, u64, u32)>)>(),
            (closed, deleted) in any::<(bool, bool)>(),
            producers in vec(producer(), 0..4),
            writer_seq in of("\\PC{0,9}"),
            closer in of(producer()),
        ) {
            let stored = StoredStream {
                name: &name,
                content_type: "text/plain",
                lifetime: Lifetime::Until { at_ms: 5 },
                fork: fork.map(|(source, sequence, units)| Fork {
                    source,
                    at: Offset { sequence, units },
                }),
                tail: Offset { sequence: tail.0, units: tail.1 },
                closed,
                deleted,
                producers: producers.iter().map(|(id, state)| (&**id, *state)).collect(),
                writer_seq: writer_seq.as_deref(),
                closer: closer.as_ref().map(|(id, state)| (&**id, *state)),
            };
            let value = postcard::to_allocvec(&stored).unwrap();
            prop_assert_eq!(StoredStream::decode(&value), Ok(stored));
            // Neither more nor less is an entry.
            prop_assert!(StoredStream::decode(&value[..value.len() - 1]).is_err());
            prop_assert!(StoredStream::decode(&[&value[..], &[0]].concat()).is_err());
        }

        #[test]
        fn no_value_makes_decoding_panic(value in vec(any::<u8>(), 0..200)) {
            let _ = StoredStream::decode(&value).map(|stored| stored.writers());
        }

        #[test]
        fn only_keys_of_streams_have_numbers(no: u64, key in vec(any::<u8>(), 0..12)) {
            prop_assert_eq!(number(&super::key(no)), Ok(no));
            if let Ok(no) = number(&key) {
                prop_assert_eq!(super::key(no), key);
            }
        }
    }
}
