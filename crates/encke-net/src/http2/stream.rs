//! One stream of an HTTP/2 connection: the way of a response to the client, in place of a socket.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};

use super::request::Http2Request;
use crate::clock::Monotonic;
use crate::http::body::append;

/// The sending side of a stream.
#[derive(Debug)]
pub(crate) struct Http2Stream {
    sender: Sender,
    /// The client has been told the end of the body.
    ended: bool,
}

/// A request whose body is being received.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    request: Http2Request,
    receiver: RecvStream,
    /// What the head says of its length.
    length: Option<u64>,
    bytes: Vec<u8>,
    /// When it must be complete.
    pub(crate) until: Monotonic,
}

/// What a look at a body led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyStep {
    /// More must come. `grown`: something has.
    More {
        grown: bool,
    },
    Complete,
    /// It has more bytes than a body may have.
    TooLarge,
    /// The stream is reset.
    Reset,
}

/// What the client sends on the stream of a channel. The windows open for what was taken when that has gone on, not before.
#[derive(Debug)]
pub(crate) struct ChannelInput {
    receiver: RecvStream,
    /// Bytes that were taken, and for which the windows are not open again.
    unreleased: usize,
}

/// What a look at the input of a channel led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputStep {
    /// More must come.
    More,
    Data(Bytes),
    /// The client sends nothing more.
    End,
    /// The stream is reset.
    Reset,
}

#[derive(Debug)]
enum Sender {
    Head(SendResponse<Bytes>),
    Body(SendStream<Bytes>),
}

impl Http2Stream {
    pub(crate) fn new(respond: SendResponse<Bytes>) -> Self {
        Http2Stream {
            sender: Sender::Head(respond),
            ended: false,
        }
    }

    /// Its number on the connection.
    pub(crate) fn number(&self) -> u32 {
        match &self.sender {
            Sender::Head(respond) => respond.stream_id().as_u32(),
            Sender::Body(stream) => stream.stream_id().as_u32(),
        }
    }

    /// Whether the client has reset it, or `h2` has for the client's error.
    pub(crate) fn is_reset(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let reset = match &mut self.sender {
            Sender::Head(respond) => respond.poll_reset(&mut cx),
            Sender::Body(stream) => stream.poll_reset(&mut cx),
        };
        reset.is_ready()
    }

    /// Sends 100 (Continue): the client waits for it before it sends the body.
    pub(crate) fn invite(&mut self) {
        let mut response = http::Response::new(());
        *response.status_mut() = http::StatusCode::CONTINUE;
        if let Sender::Head(respond) = &mut self.sender {
            // One that is reset meanwhile is closed after the next poll.
            let _ = respond.send_informational(response);
        }
    }

    /// Sends the head of the response. `ends`: it has no body. An error means that the stream is reset.
    pub(crate) fn respond(
        &mut self,
        response: http::Response<()>,
        ends: bool,
    ) -> Result<(), h2::Error> {
        if let Sender::Head(respond) = &mut self.sender {
            let stream = respond.send_response(response, ends)?;
            self.sender = Sender::Body(stream);
            self.ended = ends;
        }
        Ok(())
    }

    /// Sends as much of these bytes as the windows allow, and behind the last one the end of the body if `ends`. What was not
    /// sent is asked for: the windows' next updates go to the streams in turn. An error means that the stream is reset.
    pub(crate) fn send(&mut self, bytes: &[u8], ends: bool) -> Result<usize, h2::Error> {
        let Sender::Body(stream) = &mut self.sender else {
            return Ok(0);
        };
        // What is asked for beyond this goes back to the other streams of the connection.
        stream.reserve_capacity(bytes.len());
        let count = stream.capacity().min(bytes.len());
        let ends = ends && count == bytes.len() && !self.ended;
        if count > 0 || ends {
            stream.send_data(Bytes::copy_from_slice(&bytes[..count]), ends)?;
            self.ended |= ends;
        }
        Ok(count)
    }

    /// Whether the windows allow more of what was not sent.
    pub(crate) fn has_capacity(&mut self) -> bool {
        match &mut self.sender {
            // It takes the head, whatever the windows are.
            Sender::Head(_) => true,
            Sender::Body(stream) => {
                // It may have waited for the socket, and asked for nothing.
                stream.reserve_capacity(ASKED_BYTES);
                stream.capacity() > 0
            }
        }
    }

    /// Cuts the response: the client must not take the beginning for the whole.
    pub(crate) fn reset(&mut self, reason: Reason) {
        match &mut self.sender {
            Sender::Head(respond) => respond.send_reset(reason),
            Sender::Body(stream) => stream.send_reset(reason),
        }
    }
}

/// Bytes that a blocked stream asks its windows for, until it says how many it has.
const ASKED_BYTES: usize = 16 << 10;

impl IncomingBody {
    /// `length` is what the head says of the body.
    pub(crate) fn new(
        request: Http2Request,
        receiver: RecvStream,
        length: Option<u64>,
        until: Monotonic,
    ) -> Self {
        IncomingBody {
            request,
            receiver,
            length,
            bytes: Vec::new(),
            until,
        }
    }

    /// The head of the request and the body.
    pub(crate) fn into_parts(self) -> (Http2Request, Vec<u8>) {
        (self.request, self.bytes)
    }

    pub(crate) fn method(&self) -> &str {
        self.request.head().method
    }

    /// What the head and the body take in memory.
    pub(crate) fn held(&self) -> usize {
        self.request.bytes() + self.bytes.capacity()
    }

    /// Takes what has arrived. Trailers are left out, as those of a chunked body are.
    pub(crate) fn receive(&mut self, bytes_max: usize) -> BodyStep {
        let mut cx = Context::from_waker(Waker::noop());
        let mut grown = false;
        loop {
            match self.receiver.poll_data(&mut cx) {
                Poll::Pending => return BodyStep::More { grown },
                Poll::Ready(None) => return BodyStep::Complete,
                Poll::Ready(Some(Err(_))) => return BodyStep::Reset,
                Poll::Ready(Some(Ok(data))) => {
                    if data.len() > bytes_max - self.bytes.len() {
                        return BodyStep::TooLarge;
                    }
                    grown |= !data.is_empty();
                    let length = self.length.and_then(|length| usize::try_from(length).ok());
                    append(&mut self.bytes, &data, length.unwrap_or(bytes_max));
                    // It fails for a stream that is reset, which the next look finds.
                    let _ = self.receiver.flow_control().release_capacity(data.len());
                }
            }
        }
    }
}

impl ChannelInput {
    pub(crate) fn new(receiver: RecvStream) -> Self {
        ChannelInput {
            receiver,
            unreleased: 0,
        }
    }

    /// Takes the next data that has arrived: for each frame `h2` holds more than its bytes, so nothing stays there.
    pub(crate) fn take(&mut self) -> InputStep {
        let mut cx = Context::from_waker(Waker::noop());
        match self.receiver.poll_data(&mut cx) {
            Poll::Pending => InputStep::More,
            Poll::Ready(None) => InputStep::End,
            Poll::Ready(Some(Err(_))) => InputStep::Reset,
            Poll::Ready(Some(Ok(data))) => {
                self.unreleased += data.len();
                InputStep::Data(data)
            }
        }
    }

    /// Opens the windows for what was taken, except for `held` bytes. Whether there was something.
    pub(crate) fn release(&mut self, held: usize) -> bool {
        let count = self.unreleased.saturating_sub(held);
        self.unreleased -= count;
        // It fails for a stream that is reset, which the next look finds.
        count > 0 && self.receiver.flow_control().release_capacity(count).is_ok()
    }
}
