//! The records of the journal.

use serde::{Deserialize, Serialize};

use crate::entry::{RECORD_HEAD_BYTES, SubscriptionEntry};
use crate::token::SubscriptionSecrets;

/// The stream that says which segment of the journal is the current one.
pub(crate) const SEGMENTS: &str = "\u{1}subscriptions";

/// The name of a segment of the journal. It begins with a control character, so that no client can use it.
pub(crate) fn segment_name(segment: u32) -> String {
    format!("{SEGMENTS}/{segment}")
}

/// A record of the stream [`SEGMENTS`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SegmentsRecord {
    /// This segment is the current one.
    Current {
        /// Its number.
        segment: u32,
    },
}

/// A record of a segment.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SubscriptionRecord {
    /// The first one.
    Begin {
        secrets: SubscriptionSecrets,
        /// The number of the next subscription.
        next_no: u64,
    },
    /// Decisions, in order. Those behind the beginning of a segment are the state that it begins with.
    Entries(Vec<SubscriptionEntry>),
}

/// A record that this version does not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown record format")]
pub struct BadSubscriptionRecord;

impl SegmentsRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadSubscriptionRecord> {
        whole(bytes)
    }
}

impl SubscriptionRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadSubscriptionRecord> {
        whole(bytes)
    }

    /// Entries as records of at most about so many bytes.
    pub(crate) fn of_entries(
        entries: impl IntoIterator<Item = SubscriptionEntry>,
        record_bytes: usize,
    ) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        let mut part = Vec::new();
        let mut bytes = RECORD_HEAD_BYTES;
        for entry in entries {
            let weight = entry.weight_bytes();
            if bytes + weight > record_bytes && !part.is_empty() {
                records.push(SubscriptionRecord::Entries(std::mem::take(&mut part)).encode());
                bytes = RECORD_HEAD_BYTES;
            }
            bytes += weight;
            part.push(entry);
        }
        if !part.is_empty() {
            records.push(SubscriptionRecord::Entries(part).encode());
        }
        records
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("growing a vector is the only thing that writes here")
}

fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, BadSubscriptionRecord> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(BadSubscriptionRecord),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::KeySeed;

    #[test]
    fn only_the_dispatcher_of_a_fleet_changes_the_journal() {
        for name in [SEGMENTS, &segment_name(7)] {
            let is_known = |prefix: &&str| name.starts_with(*prefix);
            assert!(
                encke_stream::JOURNAL_PREFIXES.iter().any(is_known),
                "{name}"
            );
        }
    }

    #[test]
    fn the_first_record_reads_back() {
        let record = SubscriptionRecord::Begin {
            secrets: SubscriptionSecrets::new(&KeySeed::of([1; 32])),
            next_no: 7,
        };
        assert_eq!(SubscriptionRecord::decode(&record.encode()), Ok(record));
        let current = SegmentsRecord::Current { segment: 3 };
        assert_eq!(SegmentsRecord::decode(&current.encode()), Ok(current));
    }

    proptest! {
        #[test]
        fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SubscriptionRecord::decode(&bytes).map(|record| format!("{record:?}"));
            let _ = SegmentsRecord::decode(&bytes).map(|record| format!("{record:?}"));
        }
    }
}
