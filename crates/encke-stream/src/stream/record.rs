//! Records: the payload of a frame in the log.
//!
//! A record is a header with the change, followed by the data as readers see it. The header has the producer's state
//! too, so that no crash separates it from the data. Before the header of a change with [`Extras`] are a mark and these. Before all that, the
//! creation of a stream for which an account pays has another mark and the account.

use std::time::Duration;

use encke_clock::{SteadyTime, WallTime};
use encke_log::{Sequence, StreamNo};
use serde::{Deserialize, Serialize};

use crate::stream::account::AccountId;
use crate::stream::count::MessageCount;
use crate::{AckLevel, Offset, Retention};

/// The change that a record makes to its stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<'a> {
    /// The stream was created.
    Create {
        /// Its name.
        #[serde(borrow)]
        name: &'a str,
        /// Its content type, as the creator wrote it.
        content_type: &'a str,
        /// When it ends by itself.
        lifetime: Lifetime,
        /// Its durability level.
        ack: AckLevel,
        /// How much of it is retained.
        retention: Retention,
        /// The stream that it continues.
        fork: Option<Fork>,
        /// The records that it shares with its source are removed up to this one.
        floor: Sequence,
        /// No append may follow.
        closed: bool,
        /// How many units the data holds.
        units: u32,
        /// What few creations have.
        #[serde(skip)]
        extras: Extras<'a>,
        /// Who pays for the stream.
        #[serde(skip)]
        account: Option<AccountId>,
    },
    /// Data was added, or the stream was closed, or both. Or neither: then the extras say what has changed.
    Append {
        /// The idempotent producer.
        #[serde(borrow)]
        producer: Option<Producer<'a>>,
        /// The writer's own sequence (`Stream-Seq`).
        writer_seq: Option<&'a str>,
        /// No append may follow.
        closes: bool,
        /// The stream has a limited retention, so its records are counted.
        counted: bool,
        /// How many units the data holds.
        units: u32,
        /// What few appends have.
        #[serde(skip)]
        extras: Extras<'a>,
    },
    /// The stream was deleted, or its lifetime ended.
    Delete,
    /// The records up to `floor` are removed: by a request, or by the stream's retention.
    Truncate {
        /// The last removed record. It may belong to another stream.
        floor: Sequence,
    },
    /// The sliding lifetime began again, because the stream was read. Only in a fleet: a server by itself keeps the times of
    /// reads in memory.
    Renew,
}

impl<'a> Change<'a> {
    /// Encodes the header. The data follows it in the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        if let Change::Create {
            account: Some(account),
            ..
        } = self
        {
            header.push(ACCOUNT_MARK);
            header.extend_from_slice(&account.to_bytes());
        }
        let header = match self.extras() {
            Some(extras) if *extras != Extras::default() => {
                header.push(EXTRAS_MARK);
                let extras = postcard::to_extend(extras, header);
                extras.and_then(|header| postcard::to_extend(self, header))
            }
            _ => postcard::to_extend(self, header),
        };
        header.expect("growing a vector is the only thing that writes here")
    }

    /// Splits a frame's payload into the change and the data.
    pub fn decode(payload: &'a [u8]) -> Result<(Change<'a>, &'a [u8]), BadRecord> {
        if let Some(marked) = payload.strip_prefix(&[ACCOUNT_MARK]) {
            let (id, rest) = marked.split_first_chunk().ok_or(BadRecord)?;
            let (mut change, data) = Change::decode_unmarked(rest)?;
            match &mut change {
                Change::Create { account, .. } => *account = Some(AccountId::from_bytes(*id)),
                _ => return Err(BadRecord),
            }
            return Ok((change, data));
        }
        Change::decode_unmarked(payload)
    }

    /// Splits what follows the account.
    fn decode_unmarked(payload: &'a [u8]) -> Result<(Change<'a>, &'a [u8]), BadRecord> {
        let Some(marked) = payload.strip_prefix(&[EXTRAS_MARK]) else {
            return postcard::take_from_bytes(payload).map_err(|_| BadRecord);
        };
        let (found, rest) = postcard::take_from_bytes(marked).map_err(|_| BadRecord)?;
        let (mut change, data) = postcard::take_from_bytes(rest).map_err(|_| BadRecord)?;
        match &mut change {
            Change::Create { extras, .. } | Change::Append { extras, .. } => *extras = found,
            Change::Delete | Change::Truncate { .. } | Change::Renew => return Err(BadRecord),
        }
        Ok((change, data))
    }

    /// What few changes have.
    pub fn extras(&self) -> Option<&Extras<'a>> {
        match self {
            Change::Create { extras, .. } | Change::Append { extras, .. } => Some(extras),
            Change::Delete | Change::Truncate { .. } | Change::Renew => None,
        }
    }

    /// How many units of data came with the change.
    pub fn units(&self) -> u32 {
        match self {
            Change::Create { units, .. } | Change::Append { units, .. } => *units,
            Change::Truncate { .. } | Change::Delete | Change::Renew => 0,
        }
    }

    /// Whether no record can follow this one but a deletion.
    pub fn closes(&self) -> bool {
        match self {
            Change::Create { closed, .. } => *closed,
            Change::Append { closes, .. } => *closes,
            Change::Truncate { .. } | Change::Renew => false,
            Change::Delete => true,
        }
    }
}

/// What few changes have. In the record it is before the change, so that all others have the form that they have always had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extras<'a> {
    /// Of a creation: the name of the caller to whom the stream belongs.
    #[serde(borrow)]
    pub owner: Option<&'a str>,
    /// Of a creation: the stream is closed when nothing was appended for so many seconds.
    pub producer_timeout_s: Option<u32>,
    /// The stream's metadata from here on, in JSON.
    #[serde(borrow)]
    pub metadata: Option<&'a str>,
    /// Of an append that closes the stream: why.
    pub end: Option<EndReason>,
    /// A reader has asked the producer to stop.
    pub asks_stop: bool,
    /// Of the creation of a fork: how many messages it has from its source.
    pub inherited: MessageCount,
}

/// Why a stream was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// The producer has finished.
    Done,
    /// A reader has stopped it.
    Stopped,
    /// The producer has failed.
    Failed,
    /// The producer has appended nothing for too long.
    Abandoned,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [EndReason; 4] = [
        EndReason::Done,
        EndReason::Stopped,
        EndReason::Failed,
        EndReason::Abandoned,
    ];

    /// Its name in header fields and messages.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Done => "done",
            EndReason::Stopped => "stopped",
            EndReason::Failed => "failed",
            EndReason::Abandoned => "abandoned",
        }
    }
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a record with [`Extras`] begins with. No change has this number.
const EXTRAS_MARK: u8 = 0x7f;

/// What the creation of a stream with an account begins with. No change has this number.
const ACCOUNT_MARK: u8 = 0x7e;

/// The header of most changes fits, so that it is allocated once.
const HEADER_BYTES: usize = 32;

/// The kind of a frame that holds a [`Change`].
pub const KIND_CHANGE: u8 = 1;

/// A frame with a valid checksum whose payload this version cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this version of encke cannot read a record of the log")]
pub struct BadRecord;

/// When a stream ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// Never.
    #[default]
    Unbounded,
    /// This long after the last read or write.
    Sliding {
        /// The window in seconds.
        ttl_s: u64,
    },
    /// At a fixed time.
    Until {
        /// The time of day.
        #[serde(rename = "at_ms")]
        at: WallTime,
    },
}

impl Lifetime {
    /// When the lifetime of a stream is over that was last touched at `touched`, if it is a sliding one.
    pub(crate) fn slides_until(self, touched: SteadyTime) -> Option<SteadyTime> {
        match self {
            Lifetime::Sliding { ttl_s } => Some(touched.after(Duration::from_secs(ttl_s))),
            Lifetime::Unbounded | Lifetime::Until { .. } => None,
        }
    }

    /// When the lifetime is over, if it ends at a fixed time.
    pub(crate) fn until(self) -> Option<WallTime> {
        match self {
            Lifetime::Until { at } => Some(at),
            Lifetime::Unbounded | Lifetime::Sliding { .. } => None,
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

/// The producer's state in one request (Durable Streams, section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer<'a> {
    /// Its name, stable over restarts.
    pub id: &'a str,
    /// Its session. It increases when the producer restarts.
    pub epoch: u64,
    /// The number of the request in its session.
    pub seq: u64,
}
