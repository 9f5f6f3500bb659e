//! The frames of an HTTP/2 connection: drives `h2` over a wire, and says what came of it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream};

use super::frame_meter::{Flood, FrameMeter};
use super::head_watch::{HeadWatch, TooManyFound};
use super::read_ahead::ReadAhead;
use super::request::HasFragment;
use super::wire::{Wire, WireEnd};
use crate::settings::NetSettings;

/// A request whose head has arrived.
pub(crate) type AcceptedStream = (http::Request<RecvStream>, SendResponse<Bytes>);

/// What drives the frames of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Http2Frames {
    wire: Wire,
    state: State,
    meter: FrameMeter,
    heads: HeadWatch,
    /// What they have read ahead.
    pub(crate) read_ahead: ReadAhead,
    /// Its streams that have channels.
    channels: u32,
    /// Requests that were not looked at yet.
    accepted: Vec<AcceptedStream>,
    /// Bytes that were written to its streams since it was last polled.
    pub(crate) unflushed: usize,
    /// It must be polled, because something was written to it.
    pub(crate) dirty: bool,
    /// The shard looks at it before it waits.
    pub(crate) queued: bool,
    /// A stream could not send all that it wanted to.
    pub(crate) starved: bool,
    /// Frames have arrived since its streams were looked at.
    pub(crate) received: bool,
    /// Where among its streams those that wait for the socket are looked at first.
    pub(crate) first: usize,
    /// No more streams are accepted.
    pub(crate) leaving: bool,
    /// The client was told so.
    pub(crate) said_goaway: bool,
    /// Its last frame is written: what still arrives is discarded.
    pub(crate) finished: bool,
    /// Since when it has no streams, in seconds since the shard started.
    pub(crate) idle_since_s: u32,
}

/// How far `h2` is.
enum State {
    /// The preface is read, and the settings are sent.
    Handshake(Box<Handshake<WireEnd, Bytes>>),
    Open(Box<Connection<WireEnd, Bytes>>),
    Over(Http2End),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http2End {
    /// After a GOAWAY of one side, when its streams were complete.
    Complete,
    /// The client violated the protocol; it was sent a GOAWAY.
    Violation,
    /// The client used more than one of `h2`'s bounds allows; it was sent a GOAWAY.
    Excess,
}

impl Http2Frames {
    /// A connection of which nothing was received.
    pub(crate) fn new(settings: &NetSettings, now_s: u32) -> Self {
        let wire = Wire::default();
        let head_bytes_max = settings.head_bytes_max.saturating_mul(HEAD_FACTOR);
        let head_bytes_max = u32::try_from(head_bytes_max).unwrap_or(u32::MAX);
        let mut builder = Builder::new();
        builder
            .enable_connect_protocol()
            .max_concurrent_streams(settings.http2_streams_max)
            .max_header_list_size(head_bytes_max)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buffer_size(SEND_BYTES_MAX)
            .max_concurrent_reset_streams(RESET_STREAMS_MAX)
            .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
            .max_local_error_reset_streams(Some(ERROR_RESETS_MAX));
        Http2Frames {
            state: State::Handshake(Box::new(builder.handshake(wire.end()))),
            wire,
            meter: FrameMeter::new(),
            heads: HeadWatch::new(settings.head_bytes_max),
            read_ahead: ReadAhead::default(),
            channels: 0,
            accepted: Vec::new(),
            unflushed: 0,
            dirty: false,
            queued: false,
            starved: false,
            received: false,
            first: 0,
            leaving: false,
            said_goaway: false,
            finished: false,
            idle_since_s: now_s,
        }
    }

    /// Takes received bytes. The next poll handles them.
    pub(crate) fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<(), Flood> {
        self.meter.count(bytes, now)?;
        let read = self.heads.read(bytes);
        read.map_err(|TooManyFound| Flood::Control)?;
        self.wire.receive(bytes);
        self.received = true;
        Ok(())
    }

    /// Since when the fields of a request arrive that are not complete, by the clock of [`Self::receive`].
    pub(crate) fn head_since(&self) -> Option<Duration> {
        self.meter.head_since()
    }

    /// What it holds of what was received and is not complete, beside its streams.
    pub(crate) fn bytes(&self) -> usize {
        // `h2` keeps the parts of a header block as well.
        2 * self.heads.bytes() + self.wire.input_bytes()
    }

    /// Handles what has arrived, and writes what its streams have sent. Returns the bytes for the socket.
    pub(crate) fn poll(&mut self) -> Vec<u8> {
        self.unflushed = 0;
        self.dirty = false;
        let mut cx = Context::from_waker(Waker::noop());
        if let State::Handshake(handshake) = &mut self.state {
            match Pin::new(handshake).poll(&mut cx) {
                Poll::Ready(Ok(connection)) => self.state = State::Open(Box::new(connection)),
                Poll::Ready(Err(error)) => self.state = State::Over(Http2End::of(&error)),
                Poll::Pending => {}
            }
        }
        while let State::Open(connection) = &mut self.state {
            match connection.poll_accept(&mut cx) {
                Poll::Ready(Some(Ok((mut request, respond)))) => {
                    if self.heads.take(respond.stream_id().as_u32()) {
                        request.extensions_mut().insert(HasFragment);
                    }
                    self.accepted.push((request, respond));
                }
                Poll::Ready(Some(Err(error))) => self.state = State::Over(Http2End::of(&error)),
                Poll::Ready(None) => self.state = State::Over(Http2End::Complete),
                Poll::Pending => break,
            }
        }
        self.wire.take_output()
    }

    /// The requests that have arrived since this was last called.
    pub(crate) fn take_accepted(&mut self) -> Vec<AcceptedStream> {
        std::mem::take(&mut self.accepted)
    }

    /// Whether the trailers of a stream are malformed, which ends its request. To be asked once, when they have arrived.
    pub(crate) fn take_malformed_trailers(&mut self, stream: u32) -> bool {
        self.heads.take_malformed(stream)
    }

    /// Whether the last poll has found something that nothing was done about.
    pub(crate) fn has_news(&self) -> bool {
        !self.finished && (!self.accepted.is_empty() || matches!(self.state, State::Over(_)))
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<Http2End> {
        match &self.state {
            State::Over(end) => Some(*end),
            State::Handshake(_) | State::Open(_) => None,
        }
    }

    /// One of its streams has a channel, which may hold back as much as its window: the others do not wait for that.
    pub(crate) fn channel_opened(&mut self) {
        self.channels += 1;
        self.set_window();
    }

    /// A stream with a channel is gone.
    pub(crate) fn channel_ended(&mut self) {
        self.channels = self.channels.saturating_sub(1);
        self.set_window();
    }

    fn set_window(&mut self) {
        if let State::Open(connection) = &mut self.state {
            let more = self.channels.saturating_mul(STREAM_WINDOW_BYTES);
            let window = CONNECTION_WINDOW_BYTES.saturating_add(more);
            connection.set_target_window_size(window.min(WINDOW_BYTES_MAX));
        }
    }

    /// Accepts no more streams: says so to the client, which may have sent some already.
    pub(crate) fn begin_leaving(&mut self) {
        self.leaving = true;
        if let State::Open(connection) = &mut self.state
            && !std::mem::replace(&mut self.said_goaway, true)
        {
            connection.graceful_shutdown();
        }
    }

    /// Accepts no more streams, and does not say so yet.
    pub(crate) fn refuse_streams(&mut self) {
        self.leaving = true;
    }

    /// Ends it at once. The next poll writes the reason.
    pub(crate) fn abort(&mut self, reason: Reason) {
        self.leaving = true;
        if let State::Open(connection) = &mut self.state {
            connection.abrupt_shutdown(reason);
        }
    }

    /// Data was written to a stream.
    pub(crate) fn sent_data(&mut self, bytes: usize) {
        self.unflushed += bytes;
        self.meter.sent_data(bytes);
    }
}

impl Http2End {
    fn of(error: &h2::Error) -> Self {
        match error.reason() {
            _ if error.is_remote() => Http2End::Complete,
            Some(Reason::ENHANCE_YOUR_CALM) => Http2End::Excess,
            Some(Reason::NO_ERROR) => Http2End::Complete,
            _ => Http2End::Violation,
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            State::Handshake(_) => out.write_str("Handshake"),
            State::Open(_) => out.write_str("Open"),
            State::Over(end) => write!(out, "Over({end:?})"),
        }
    }
}

/// The first bytes of an HTTP/2 connection (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The beginning of the preface that is no request of HTTP/1.1.
pub(crate) const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Bytes of a body that a client may send ahead of its windows' updates. The shard takes them off at once, so they bound the
/// rate of an upload, not the memory. Of a channel, they bound what is not looked at yet.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Bytes of the largest window (RFC 9113, section 6.9.1).
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// Bytes that `h2` keeps of the streams of a connection between two polls, and bytes that wait for a socket before no more
/// frames of the client are read.
pub(crate) const SEND_BYTES_MAX: usize = 64 << 10;

/// A head that is too large, but no larger than this multiple of the limit, is refused by the shard, whose response pages can read. `h2`
/// refuses larger ones, with a status and no fields.
const HEAD_FACTOR: usize = 2;

/// Streams that the server has reset and remembers for a second, so that late frames for them are no violation.
const RESET_STREAMS_MAX: usize = 50;

/// Streams that a client may reset before the shard has looked at them.
const UNSEEN_RESETS_MAX: usize = 20;

/// Streams of a connection that are reset for errors of the client, in all.
const ERROR_RESETS_MAX: usize = 1024;
