//! What a connection needs only while it is busy or blocked.

use encke_face::{Style, Then};
use encke_stream::{Fetch, MediaKind, Offset};

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
    /// What the face waits with.
    pub(crate) then: Option<Then>,
    /// A long poll's or a catching-up subscriber's position, where it is not just a sequence.
    pub(crate) from: Option<Offset>,
    /// How a subscriber's records are written, if not as everybody's.
    pub(crate) style: Option<Style>,
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
            && self.then.is_none()
            && self.from.is_none()
            && self.style.is_none()
    }
}

/// How everybody's records are written for a stream of that kind.
pub(crate) fn shared_style(kind: MediaKind) -> Style {
    Style::DurableStreams {
        kind,
        cursor_floor: 0,
    }
}
