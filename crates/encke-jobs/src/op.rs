//! Commands on their way to the log, and what follows when they are there.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_stream::{Append, Command, Create, Data, Lifetime, Target};

use crate::error::JobError;
use crate::pool_state::Decision;
use crate::request::{Payload, PoolClient};
use crate::settings::PoolSettings;

/// A pool's number: the sequence of the record that announced it.
pub(crate) type PoolNo = u64;

/// What a command to the log was for.
#[derive(Debug)]
pub(crate) enum Op {
    /// The stream of pools, made if it was not there.
    Registry,
    /// One of the streams of a pool that is being made.
    Side(Arc<PoolCreation>),
    /// A pool was announced.
    Announced(Arc<PoolCreation>),
    /// A pool's first segment.
    First(Arc<PoolCreation>, PoolNo),
    /// The first segment is where the pool begins.
    Opened(Arc<PoolCreation>, PoolNo, u64),
    /// A segment of a pool that is there already.
    /// The other parts of what it begins with are to follow.
    Segment(PoolNo, u32, VecDeque<Vec<u8>>),
    /// A part of what a segment begins with, the segment's first record, and the parts that follow.
    Part(PoolNo, u32, u64, VecDeque<Vec<u8>>),
    /// The pool goes on in that segment, which begins with that record.
    Rotated(PoolNo, u32, u64),
    /// A pool is removed.
    Gone(PoolNo, PoolClient),
    /// A job.
    Post(PoolNo, PendingPost),
    /// A record of what was decided.
    Batch(PoolNo, Vec<Decision>),
    /// Messages for a stream that everybody may read.
    Messages(Arc<str>, &'static str, Data),
    /// The same, after the stream was found to be gone and is made anew.
    Again(Arc<str>),
    /// A segment that nobody needs.
    Delete(String),
    /// Nothing follows.
    Nothing,
}

/// A pool that is being made.
#[derive(Debug)]
pub(crate) struct PoolCreation {
    pub(crate) name: Box<str>,
    pub(crate) settings: PoolSettings,
    pub(crate) from: PoolClient,
    /// A stream that it needs can't be had.
    pub(crate) taken: parking_lot::Mutex<Option<JobError>>,
}

/// A job on its way to the log.
#[derive(Debug)]
pub(crate) struct PendingPost {
    pub(crate) from: PoolClient,
    pub(crate) aim: u32,
    pub(crate) posted_s: u32,
    pub(crate) wait_ms: Option<u64>,
    pub(crate) payload: Payload,
}

/// A stream to be made, of bytes or of JSON messages.
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

/// Data for a stream that is there.
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

/// The type of streams that are for the pools alone.
pub(crate) const BYTES: &str = "application/octet-stream";
/// The type of streams that everybody may read.
pub(crate) const JSON: &str = "application/json";
