//! What a connection needs only while it is busy or blocked.

use encke_face::{Style, Then};
use encke_stream::{Fetch, MediaKind, Offset};

use super::look::Parked;
use super::several::Several;
use super::slow::Behind;
use crate::buffers::Held;
use crate::http::body::Incoming;

/// Kept beside the slot, and only as long as something in it matters.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// Bytes that came and are not used yet.
    pub(crate) input: Vec<u8>,
    /// The body that is being received.
    pub(crate) body: Option<Incoming>,
    /// Bytes that the socket did not take yet.
    pub(crate) output: Vec<u8>,
    /// How much of `output` it took.
    pub(crate) sent: usize,
    /// A subscriber's position once `output` is out.
    pub(crate) reached: Option<Offset>,
    /// The subscriber is told nothing more once `output` is out.
    pub(crate) ended: bool,
    /// What follows of a long answer, once `output` is out.
    pub(crate) next: Option<(Fetch, Then)>,
    /// A request that waits for what it names to be looked up.
    pub(crate) parked: Option<Box<Parked>>,
    /// What the face waits with.
    pub(crate) then: Option<Then>,
    /// Which question the pools are asked; 0 for none.
    pub(crate) question: u32,
    /// A long poll's or a catching-up subscriber's position, where it is not just a sequence.
    pub(crate) from: Option<Offset>,
    /// The streams of a subscriber of several.
    pub(crate) several: Option<Box<Several>>,
    /// How a subscriber's records are written, if not as everybody's.
    pub(crate) style: Option<Style>,
    /// Since when it is behind, if it is.
    pub(crate) behind: Option<Behind>,
    /// Why it is closed once `output` is out, if not because that was all.
    pub(crate) reason: Option<&'static str>,
    /// When the body must be complete; 0 while there is none.
    pub(crate) body_until_ms: u64,
    /// What it is counted for in memory.
    pub(crate) held: Held,
    /// When the wheel reminds of the deadline; 0 if it won't.
    pub(crate) reminder_ms: u64,
    /// When the client will have taken too long, or the poll is over; 0 for never.
    pub(crate) deadline_ms: u64,
}

impl Busy {
    /// Whether nothing in it matters any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.input.is_empty()
            && self.body.is_none()
            && self.output.is_empty()
            && self.next.is_none()
            && self.parked.is_none()
            && self.then.is_none()
            && self.from.is_none()
            && self.style.is_none()
            && self.several.is_none()
            && self.behind.is_none()
    }

    /// What it holds in memory, unless that is next to nothing.
    pub(crate) fn bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, Incoming::bytes);
        let read = self.several.as_ref().map_or(0, |several| several.bytes());
        match self.input.capacity() + self.output.capacity() + body + read {
            0 => 0,
            bytes => bytes + size_of::<Busy>(),
        }
    }
}

/// How everybody's records are written for a stream of that kind.
pub(crate) fn shared_style(kind: MediaKind) -> Style {
    Style::DurableStreams {
        kind,
        cursor_floor: 0,
    }
}
