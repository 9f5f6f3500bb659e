//! What arrives on a stream: a body, or the frames of a channel of WebSocket (RFC 8441).

use crate::connection::close::CloseReason;
use crate::connection::timer::Timer;
use crate::connection::websocket::WebSocket;
use crate::http2::stream::{ChannelInput, IncomingBody};

/// What arrives on a stream.
#[derive(Debug)]
pub(super) enum StreamInput {
    /// Nothing, or nothing that matters.
    None,
    /// The body of its request.
    Body(Box<IncomingBody>),
    /// The frames of a channel whose handshake is not answered yet.
    Handshake(ChannelInput),
    /// The frames of a channel.
    Channel(Box<StreamChannel>),
}

/// What a stream has of its channel.
#[derive(Debug)]
pub(super) struct StreamChannel {
    pub(super) websocket: WebSocket,
    pub(super) input: ChannelInput,
    /// Messages that go out with the next poll, in one frame: clients bound how many small ones they take.
    pub(super) unsent: Vec<u8>,
    pub(super) timer: Timer,
    /// The client has closed its side.
    pub(super) is_half_closed: bool,
    /// Why its close frame was written, if it was: what still arrives means nothing.
    pub(super) closed: Option<CloseReason>,
}

// What an idle channel costs beside its stream and its feeds, but for the protocol's side of it.
const _: () = assert!(size_of::<StreamChannel>() <= 256);

impl StreamChannel {
    /// What it holds in memory, in bytes; 0 while it only delivers.
    pub(super) fn bytes(&self) -> usize {
        match self.websocket.bytes() {
            0 => 0,
            bytes => bytes + size_of::<StreamChannel>(),
        }
    }
}
