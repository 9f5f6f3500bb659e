//! Commands on their way to the log, look-ups and calls under way: what each is for.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_clock::{SteadyTime, StepDetector};
use encke_stream::{AckLevel, Append, Command, Create, Data, Lifetime, StreamNo, Target};

use super::decision::{Decision, WakeEvent};
use crate::request::RequestNo;

/// The purpose of a command.
#[derive(Debug)]
pub(super) enum Op {
    /// Write decisions.
    Decisions(Vec<Decision>),
    /// Write a decision behind the event of its wake. So many records follow the event.
    Wake(Box<Decision>, u64),
    /// Write the event of a wake of this subscription.
    Event {
        no: u64,
        generation: u64,
        event: WakeEvent,
    },
    /// Create the stream that says which segment is the current one.
    Registry,
    /// Create a segment. The other parts of what it begins with follow.
    Segment(u32, VecDeque<Vec<u8>>),
    /// Append a part of what a segment begins with; more may follow.
    SegmentPart(u32, VecDeque<Vec<u8>>),
    /// Make a segment the current one.
    Current(u32),
    /// Delete a segment.
    DeleteSegment(u32),
}

/// The journal.
#[derive(Debug, Default)]
pub(super) struct SegmentState {
    /// The current segment. `None`: there is no journal yet.
    pub(super) current: Option<u32>,
    /// The number of the next segment.
    pub(super) next: u32,
    pub(super) phase: SegmentPhase,
    /// Whether the stream exists that says which segment is the current one.
    pub(super) has_registry: bool,
    /// Bytes of decisions in the current segment.
    pub(super) bytes: u64,
    /// Bytes of the state that it began with.
    pub(super) begin_bytes: u64,
    /// Commands with decisions that are on their way to the log.
    pub(super) under_way: usize,
    /// Segments that are to be deleted, and when that is tried again.
    pub(super) old: Vec<u32>,
    pub(super) delete_at: SteadyTime,
    pub(super) steps: StepDetector,
    /// The time of day was set since the current segment began, so that its times lie elsewhere now.
    pub(super) is_stale: bool,
}

/// Whether the journal takes decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SegmentPhase {
    #[default]
    Open,
    /// A new segment begins when all decisions on their way are in the log.
    Draining,
    /// A new segment is on its way.
    Rotating,
}

impl SegmentState {
    pub(super) fn has_journal(&self) -> bool {
        self.current.is_some()
    }

    /// When old segments are to be deleted.
    pub(super) fn next_due(&self) -> Option<SteadyTime> {
        (!self.old.is_empty()).then_some(self.delete_at)
    }
}

/// The purpose of a look-up.
#[derive(Debug)]
pub(super) struct LookUpPurpose {
    /// The request.
    pub(super) from: RequestNo,
    /// The subscription.
    pub(super) no: u64,
    /// Streams that the request adds to an existing subscription. `None`: it creates the subscription.
    pub(super) added: Option<Vec<Arc<str>>>,
    /// Streams that were reported, and that the look-up before this one has not found.
    pub(super) unverified: Vec<(Arc<str>, StreamNo)>,
}

/// A call that is under way.
#[derive(Debug)]
pub(super) struct DeliveryUnderWay {
    pub(super) no: u64,
    pub(super) generation: u64,
    pub(super) receiver: Arc<str>,
    /// It has one of the places for calls that may take long.
    pub(super) is_doubtful: bool,
    pub(super) began: SteadyTime,
}

/// Creates a stream of the journal. It is synced before anything depends on it, whatever the level of the server.
pub(super) fn create(name: &str, data: Vec<u8>) -> Command {
    Command::Create(Create {
        content_type: Some(BYTES.into()),
        lifetime: Some(Lifetime::Unbounded),
        data: bytes(data),
        ack: Some(AckLevel::Synced),
        ..Create::new(name)
    })
}

/// Appends to a stream of the journal.
pub(super) fn append(name: &str, data: Vec<u8>) -> Append {
    Append {
        data: bytes(data),
        ..Append::to(Target::Named(name.into()))
    }
}

/// Makes appends in order, each only if those before it are made.
pub(super) fn series(mut appends: Vec<Append>) -> Command {
    match (appends.pop(), &appends[..]) {
        (Some(only), []) => Command::Append(only),
        (last, _) => {
            appends.extend(last);
            Command::Series(appends)
        }
    }
}

fn bytes(bytes: Vec<u8>) -> Data {
    let units = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Data { bytes, units }
}

/// The content type of the streams of the journal.
const BYTES: &str = "application/octet-stream";
