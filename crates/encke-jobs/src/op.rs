//! Commands on their way to the log, and their purpose.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_stream::{Append, Command, Create, Data, Lifetime, Target};

use crate::error::JobError;
use crate::pool_state::Decision;
use crate::request::{Payload, PoolClient};
use crate::settings::PoolSettings;

/// A pool's number: the sequence of the record that announced it.
pub(crate) type PoolNo = u64;

/// The purpose of a command.
#[derive(Debug)]
pub(crate) enum Op {
    /// Create the registry of pools.
    Registry,
    /// Create one of the public streams of a new pool.
    PublicStream(Arc<PoolCreation>),
    /// Announce a new pool.
    Announced(Arc<PoolCreation>),
    /// Create a new pool's first segment.
    First(Arc<PoolCreation>, PoolNo),
    /// Make the first segment current.
    Opened(Arc<PoolCreation>, PoolNo, u64),
    /// Create a segment of an existing pool. The other parts of its snapshot follow.
    Segment(PoolNo, u32, VecDeque<Vec<u8>>),
    /// Append a part of a segment's snapshot: the segment, its first record, and the parts that follow.
    Part(PoolNo, u32, u64, VecDeque<Vec<u8>>),
    /// Make a segment with this first record current.
    Rotated(PoolNo, u32, u64),
    /// Remove a pool.
    Gone(PoolNo, PoolClient),
    /// Append a job.
    Post(PoolNo, PendingPost),
    /// Append a record of decisions.
    Batch(PoolNo, Vec<Decision>),
    /// Append messages to a public stream.
    Messages(Arc<str>, &'static str, Data),
    /// Create a public stream again with messages, because it was deleted.
    Again(Arc<str>),
    /// Delete a segment.
    Delete(String),
    /// Nothing follows.
    Nothing,
}

/// A pool that is being created.
#[derive(Debug)]
pub(crate) struct PoolCreation {
    pub(crate) name: Box<str>,
    pub(crate) settings: PoolSettings,
    pub(crate) from: PoolClient,
    /// Why one of its streams is not available.
    pub(crate) taken: parking_lot::Mutex<Option<JobError>>,
}

/// A job on its way to the log.
#[derive(Debug)]
pub(crate) struct PendingPost {
    pub(crate) from: PoolClient,
    pub(crate) selector: u32,
    pub(crate) posted_s: u32,
    pub(crate) wait_ms: Option<u64>,
    pub(crate) payload: Payload,
}

/// Creates a stream of bytes or of JSON messages.
pub(crate) fn create(name: &str, content_type: &str, data: Data) -> Command {
    Command::Create(Create {
        name: name.into(),
        content_type: Some(content_type.into()),
        lifetime: Some(Lifetime::Unbounded),
        closed: false,
        fork: None,
        data,
        ack: None,
        retention: None,
        known: Vec::new(),
    })
}

/// Appends data to a stream.
pub(crate) fn append(name: &str, data: Data) -> Command {
    Command::Append(Append {
        target: Target::Named(name.into()),
        content_type: None,
        producer: None,
        writer_seq: None,
        closes: false,
        ack: None,
        data,
    })
}

pub(crate) fn bytes(bytes: Vec<u8>) -> Data {
    let units = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Data { bytes, units }
}

/// The content type of internal streams.
pub(crate) const BYTES: &str = "application/octet-stream";
/// The content type of public streams.
pub(crate) const JSON: &str = "application/json";
