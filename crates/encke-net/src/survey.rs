//! What a shard is asked about its connections, and what it says of them.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use encke_access::CallerTag;
use encke_protocol::ConnectionName;
use encke_stream::StreamNo;

/// Which connections are asked for. The default is all.
#[derive(Clone, Debug, Default)]
pub struct ConnectionFilter {
    /// Those of this client address, as [`ConnectionRow::client`] has it.
    pub client: Option<Box<str>>,
    /// Those of this caller: a name of a key, or a digest of a subject as [`CallerTag::is_named`] compares it.
    pub caller: Option<Box<str>>,
    /// Subscribers of the stream with this number and name.
    pub stream: Option<(StreamNo, Box<str>)>,
    /// Those that are behind.
    pub slow: bool,
}

/// A connection, or an exchange of one that has several and is subscribed.
#[derive(Clone, Debug)]
pub struct ConnectionRow {
    /// Its name.
    pub name: ConnectionName,
    /// The connection that an exchange belongs to.
    pub of: Option<ConnectionName>,
    /// The client, as logs show it.
    pub client: Box<str>,
    /// What is kept of its caller.
    pub caller: Option<CallerTag>,
    /// What it speaks.
    pub speaks: &'static str,
    /// What it is doing.
    pub doing: &'static str,
    /// The first streams and patterns that it is subscribed to.
    pub streams: Vec<SubscribedTo>,
    /// How many streams and patterns it is subscribed to.
    pub streams_total: usize,
    /// How far it is behind.
    pub lag: Option<LagOfRow>,
    /// Seconds since something was sent or received.
    pub quiet_s: u32,
    /// Requests so far, as far as they can be counted.
    pub requests: u16,
    /// Bytes that are held for it.
    pub held_bytes: usize,
    /// Whether it is encrypted.
    pub tls: bool,
    /// Whether it is connected to the address for operators.
    pub operator: bool,
}

/// A stream or a pattern that a connection is subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscribedTo {
    /// A stream by its number, and by its name if it is in memory.
    Stream(StreamNo, Option<Box<str>>),
    /// A pattern.
    Pattern(Box<str>),
}

/// How far a client is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagOfRow {
    /// What it lacks of its streams, approximately; 0 for a body that it does not take.
    pub bytes: u64,
    /// For how long.
    pub age: Duration,
}

/// A part of a survey: what one shard is asked for at once.
pub(crate) struct SurveyStep {
    pub(crate) filter: Arc<ConnectionFilter>,
    /// The first slot.
    pub(crate) from: u32,
    /// The most rows.
    pub(crate) rows_max: usize,
    pub(crate) answer: mpsc::Sender<StepAnswer>,
}

/// What a shard says to a part of a survey.
#[derive(Debug, Default)]
pub(crate) struct StepAnswer {
    pub(crate) rows: Vec<ConnectionRow>,
    /// The slot behind those that were looked at. `None`: there are no more.
    pub(crate) next: Option<u32>,
    pub(crate) looked_at: usize,
}

impl std::fmt::Debug for SurveyStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SurveyStep(from {})", self.from)
    }
}
