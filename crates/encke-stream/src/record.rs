//! What one append stored: the payload of a frame in the log.
//!
//! A record is a header that says what changed, followed by the data as readers will see it. The
//! header carries the producer's state too, so that data and producer state can't be separated by
//! a crash.

use encke_log::{Sequence, StreamNo};
use serde::{Deserialize, Serialize};

use crate::{AckLevel, Offset, Retention};

/// What a record changed in its stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<'a> {
    /// The stream came to be.
    Create {
        /// Its name, as clients address it.
        #[serde(borrow)]
        name: &'a str,
        /// Its type, as the creator wrote it.
        content_type: &'a str,
        /// When it ends by itself.
        lifetime: Lifetime,
        /// How safe its records are when their appends are acknowledged and when readers see them.
        ack: AckLevel,
        /// What is kept of it.
        retention: Retention,
        /// Where its history before this record comes from.
        fork: Option<Fork>,
        /// Up to this record nothing is kept of what it shares with its source.
        floor: Sequence,
        /// No append may follow.
        closed: bool,
        /// How many units the data holds.
        units: u32,
    },
    /// Data was added, or the stream was closed, or both.
    Append {
        /// The idempotent producer that did it.
        #[serde(borrow)]
        producer: Option<Producer<'a>>,
        /// The writer's own sequence (`Stream-Seq`).
        writer_seq: Option<&'a str>,
        /// No append may follow.
        closes: bool,
        /// The stream does not keep all, so that its records are counted.
        counted: bool,
        /// How many units the data holds.
        units: u32,
    },
    /// The stream was deleted, or its lifetime ended.
    Delete,
    /// The records up to `floor` are gone: because somebody asked for it, or by the stream's retention.
    Truncate {
        /// The last one of them; it may be another stream's.
        floor: Sequence,
    },
}

impl<'a> Change<'a> {
    /// Writes the header; the data follows it in the frame.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("growing a vector is the only thing that writes here")
    }

    /// Splits a frame's payload into the change and the data.
    pub fn decode(payload: &'a [u8]) -> Result<(Change<'a>, &'a [u8]), BadRecord> {
        postcard::take_from_bytes(payload).map_err(|_| BadRecord)
    }

    /// How many units of data came with the change.
    pub fn units(&self) -> u32 {
        match self {
            Change::Create { units, .. } | Change::Append { units, .. } => *units,
            Change::Truncate { .. } | Change::Delete => 0,
        }
    }

    /// Whether no record can follow this one but a deletion.
    pub fn closes(&self) -> bool {
        match self {
            Change::Create { closed, .. } => *closed,
            Change::Append { closes, .. } => *closes,
            Change::Truncate { .. } => false,
            Change::Delete => true,
        }
    }
}

/// The kind of a frame that holds a [`Change`].
pub const KIND_CHANGE: u8 = 1;

/// A frame whose check sum holds, but whose payload this version can't read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of the log is not one that this version of encke writes")]
pub struct BadRecord;

/// When a stream ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// Never.
    #[default]
    Unbounded,
    /// So many seconds after the last read or write.
    Sliding {
        /// The window in seconds.
        ttl_s: u64,
    },
    /// At a moment, whatever happens.
    Until {
        /// Milliseconds since 1970.
        at_ms: u64,
    },
}

impl Lifetime {
    /// When a stream ends that was last touched then, both in milliseconds since 1970.
    pub fn ends_ms(self, touched_ms: u64) -> Option<u64> {
        match self {
            Lifetime::Unbounded => None,
            Lifetime::Sliding { ttl_s } => {
                Some(touched_ms.saturating_add(ttl_s.saturating_mul(1000)))
            }
            Lifetime::Until { at_ms } => Some(at_ms),
        }
    }
}

/// Where a fork leaves its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The stream whose data it shares.
    pub source: StreamNo,
    /// Data before this position is the source's.
    pub at: Offset,
}

/// An idempotent producer's word on one request (Durable Streams, section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer<'a> {
    /// Its name, stable over restarts.
    pub id: &'a str,
    /// Its session: grows when it restarts.
    pub epoch: u64,
    /// The number of the request in its session.
    pub seq: u64,
}
