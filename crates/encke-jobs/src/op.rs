//! Commands on their way to the log, and their purpose.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_clock::SteadySeconds;
use encke_stream::{Append, Command, Create, Data, Lifetime, Target};

use crate::error::JobError;
use crate::pool_state::Decision;
use crate::request::{DispatchClient, Payload};
use crate::settings::{PoolSettings, SettingsChange};
use crate::streams::PublicStream;

/// A pool's number: the sequence of the record that announced it.
pub(crate) type PoolNo = u64;

/// The purpose of a command.
#[derive(Debug)]
pub(crate) enum Op {
    /// Create the registry of pools.
    Registry,
    /// Announce a new pool.
    Announced(Arc<PoolCreation>),
    /// Create one of the public streams of a new pool.
    PublicStream(Arc<PoolCreation>, PoolNo, PublicStream),
    /// Create a new pool's first segment.
    FirstSegment(Arc<PoolCreation>, PoolNo),
    /// Make the first segment current.
    Opened(Arc<PoolCreation>, PoolNo, u64),
    /// Create a segment of an existing pool. The other parts of its snapshot follow.
    Segment(PoolNo, u32, VecDeque<Vec<u8>>),
    /// Append a part of a segment's snapshot: the segment, its first record, and the parts that follow.
    SnapshotPart(PoolNo, u32, u64, VecDeque<Vec<u8>>),
    /// Make a segment with this first record current.
    Rotated(PoolNo, u32, u64),
    /// Change settings of a pool.
    Changed(PoolNo, DispatchClient, SettingsChange),
    /// Remove a pool.
    Removed(PoolNo, DispatchClient),
    /// Append a job.
    Post(PoolNo, PendingPost),
    /// Append a record of decisions.
    Batch(PoolNo, Vec<Decision>),
    /// Append events to the public stream of the pool of that name.
    Events(Arc<str>, Data),
    /// Create a public stream again, because it was deleted.
    Recreated(Arc<str>),
    /// Delete a public stream for a client.
    DeletePublic(DispatchClient),
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
    pub(crate) from: DispatchClient,
    /// Its public streams.
    pub(crate) streams: parking_lot::Mutex<StreamCreation>,
}

/// The creation of the public streams of a pool.
#[derive(Debug, Default)]
pub(crate) struct StreamCreation {
    /// Streams without an outcome yet.
    pub(crate) pending: usize,
    /// Why one of them is not available.
    pub(crate) taken: Option<JobError>,
}

/// A job on its way to the log.
#[derive(Debug)]
pub(crate) struct PendingPost {
    pub(crate) from: DispatchClient,
    pub(crate) selector: u32,
    pub(crate) posted: SteadySeconds,
    pub(crate) wait_ms: Option<u64>,
    pub(crate) payload: Payload,
}

/// Creates a stream of bytes or of JSON messages.
pub(crate) fn create(name: &str, content_type: &str, data: Data) -> Command {
    Command::Create(Create {
        content_type: Some(content_type.into()),
        lifetime: Some(Lifetime::Unbounded),
        data,
        ..Create::new(name)
    })
}

/// Appends data to a stream.
pub(crate) fn append(name: &str, data: Data) -> Command {
    Command::Append(append_to(name, data))
}

/// An append as a part of a series.
pub(crate) fn append_to(name: &str, data: Data) -> Append {
    Append {
        data,
        ..Append::to(Target::Named(name.into()))
    }
}

/// Makes appends in order, each only if those before it are made.
pub(crate) fn series(mut appends: Vec<Append>) -> Command {
    match (appends.pop(), &appends[..]) {
        (Some(only), []) => Command::Append(only),
        (last, _) => {
            appends.extend(last);
            Command::Series(appends)
        }
    }
}

pub(crate) fn bytes(bytes: Vec<u8>) -> Data {
    let units = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Data { bytes, units }
}

/// The content type of internal streams.
pub(crate) const BYTES: &str = "application/octet-stream";
/// The content type of public streams.
pub(crate) const JSON: &str = "application/json";
