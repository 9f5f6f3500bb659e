//! One subscriber: its request, its input, and the offset to continue from.
//!
//! No sockets here: bytes in, messages and offsets out. A subscriber holds no buffer but for the
//! part of a head or an event whose end has not arrived.

use super::tally::Tally;
use super::traits::Traits;
use crate::load::kinds::SubscriberKind;
use crate::load::sequence::Seen;
use crate::load::wire::channel::ChannelMessage;
use crate::load::wire::control::Control;
use crate::load::wire::http::{Framing, Head, WireError, parse_head};
use crate::load::wire::http2::{Http2Part, Http2Response};
use crate::load::wire::payload::scan_json;
use crate::load::wire::sse::{Event, EventData, Splitter};
use crate::load::wire::target::Requests;
use crate::load::wire::transport::Wire;
use crate::load::wire::websocket::{
    self, FIN, FrameReader, PONG, SWITCHING_PROTOCOLS, ServerFrame,
};

/// A client that follows one stream.
#[derive(Debug)]
pub(crate) struct Subscriber {
    /// The connection, while there is one.
    pub(crate) socket: Option<Wire>,
    /// The stream's index in the run.
    pub(crate) stream: u32,
    /// The state of its connection.
    pub(crate) stage: Stage,
    /// Its flags.
    pub(crate) traits: Traits,
    /// How often in a row it could not come back.
    pub(crate) tries: u8,
    /// Since when it has been in its stage, in nanoseconds of the monotonic clock.
    pub(crate) since_ns: u64,
    /// When it last came back; messages from before were missed while it was away.
    pub(crate) returned_ns: u64,
    /// The sequences that it has received.
    pub(crate) seen: Seen,
    /// Where it would go on: the last offset that the server gave. Empty before the first.
    offset: String,
}

/// The state of a subscriber's connection.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Nothing: it has no connection, and may get one.
    Away,
    /// The connection is being made.
    Connecting,
    /// The head of a response, of which so much has arrived.
    Head(Vec<u8>),
    /// Server-sent events over HTTP/1.1.
    Events(Framing, Splitter),
    /// The same over HTTP/2, and the response's head.
    Http2(Box<Http2Response>, Splitter),
    /// Messages of a channel.
    Channel(FrameReader),
    /// Nothing any more: the stream is closed, or the subscriber has been given up.
    Over,
}

/// The next step after bytes were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: more will come.
    Wait,
    /// The answer is complete, and the connection with it: come back on a new one.
    ComeBack,
    /// The stream is closed: there is nothing more to come.
    Closed,
}

/// Why a subscriber can't go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The answer's status is an error.
    Status(u16),
    /// The answer is not what the protocol says.
    Wire(WireError),
    /// The body ended where it should not have.
    Ended,
    /// The channel was closed with this code, which says that the client has a fault.
    Closed(u16),
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl Subscriber {
    /// A subscriber to `stream` that has not asked yet.
    pub(crate) fn new(stream: u32, kind: SubscriberKind, slow: bool) -> Self {
        Self {
            socket: None,
            stream,
            stage: Stage::Away,
            traits: Traits {
                kind,
                slow,
                ..Traits::default()
            },
            tries: 0,
            since_ns: 0,
            returned_ns: 0,
            seen: Seen::default(),
            offset: String::new(),
        }
    }

    /// Appends the request that this subscriber makes next.
    pub(crate) fn ask(&self, requests: &Requests, out: &mut Vec<u8>) {
        let first = self.offset.is_empty();
        let offset = if first { "now" } else { &self.offset };
        requests.subscribe(self.traits.kind, self.stream, offset, out);
    }

    /// Its request is sent.
    pub(crate) fn asked(&mut self) {
        self.stage = match self.traits.kind {
            SubscriberKind::Http1 | SubscriberKind::Websocket => Stage::Head(Vec::new()),
            SubscriberKind::Http2 => Stage::Http2(Box::default(), Splitter::default()),
        };
    }

    /// Whether the server has accepted its request, and messages may come.
    pub(crate) fn is_listening(&self) -> bool {
        match &self.stage {
            Stage::Events(..) | Stage::Channel(_) => true,
            Stage::Http2(response, _) => response.is_answered(),
            Stage::Away | Stage::Connecting | Stage::Head(_) | Stage::Over => false,
        }
    }

    /// Whether nothing is half-read, so that hanging up now can't make the server repeat itself.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.stage {
            Stage::Events(_, splitter) | Stage::Http2(_, splitter) => {
                splitter.is_empty() && !self.traits.unsettled
            }
            Stage::Channel(reader) => reader.is_empty(),
            _ => false,
        }
    }

    /// The connection is gone; what was half-read is forgotten.
    pub(crate) fn disconnected(&mut self, index: u32, tally: &mut Tally) {
        self.socket = None;
        self.stage = Stage::Away;
        self.traits.hang_up = false;
        self.traits.unread = false;
        if self.traits.unsettled {
            self.traits.unsettled = false;
            tally.ledger.may_repeat(&self.seen, index);
        }
    }

    /// The server has closed the connection: what that means for what was being read.
    pub(crate) fn ended(&self) -> Result<Step, Refusal> {
        match &self.stage {
            _ if self.is_listening() => Ok(Step::ComeBack),
            Stage::Head(held) if held.is_empty() && self.traits.ready => Ok(Step::ComeBack),
            _ => Err(Refusal::Ended),
        }
    }

    /// Takes the next bytes of the connection. What the server must be sent for them is appended to `out`.
    pub(crate) fn receive(
        &mut self,
        index: u32,
        bytes: &[u8],
        tally: &mut Tally,
        out: &mut Vec<u8>,
    ) -> Result<Step, Refusal> {
        let joined;
        let mut bytes = bytes;
        if let Stage::Head(held) = &mut self.stage {
            if !held.is_empty() {
                held.extend_from_slice(bytes);
                joined = std::mem::take(held);
                bytes = &joined;
            }
            let Some((head, taken)) = parse_head(bytes)? else {
                self.stage = Stage::Head(bytes.to_vec());
                return Ok(Step::Wait);
            };
            bytes = &bytes[taken..];
            self.stage = self.begin(&head, tally)?;
        }
        match &mut self.stage {
            Stage::Events(..) => self.receive_events(index, bytes, tally),
            Stage::Http2(..) => self.receive_http2(index, bytes, tally, out),
            Stage::Channel(_) => self.receive_messages(index, bytes, tally, out),
            _ => Ok(Step::Wait),
        }
    }

    /// The stage after a response's head.
    fn begin(&mut self, head: &Head<'_>, tally: &Tally) -> Result<Stage, Refusal> {
        let is_channel = self.traits.kind == SubscriberKind::Websocket;
        if head.status != if is_channel { SWITCHING_PROTOCOLS } else { 200 } {
            return Err(Refusal::Status(head.status));
        }
        self.returned_ns = tally.now_ns;
        Ok(match is_channel {
            true => Stage::Channel(FrameReader::default()),
            false => Stage::Events(head.framing, Splitter::default()),
        })
    }

    fn receive_events(
        &mut self,
        index: u32,
        mut bytes: &[u8],
        tally: &mut Tally,
    ) -> Result<Step, Refusal> {
        // Taken out for the time being, because events change the rest of the subscriber.
        let Stage::Events(mut framing, mut splitter) =
            std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Ok(Step::Wait);
        };
        let mut closed = false;
        while let Some(piece) = framing.next_piece(&mut bytes)? {
            closed |= self.events(index, &mut splitter, piece, tally)?;
        }
        let step = match (closed, framing.is_done()) {
            (true, _) => Step::Closed,
            (false, true) => Step::ComeBack,
            (false, false) => Step::Wait,
        };
        self.stage = Stage::Events(framing, splitter);
        Ok(step)
    }

    fn receive_http2(
        &mut self,
        index: u32,
        mut bytes: &[u8],
        tally: &mut Tally,
        out: &mut Vec<u8>,
    ) -> Result<Step, Refusal> {
        // Taken out as above.
        let Stage::Http2(mut response, mut splitter) =
            std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Ok(Step::Wait);
        };
        let mut step = Step::Wait;
        while let Some(part) = response.next_part(&mut bytes, out)? {
            match part {
                Http2Part::Status(200) => self.returned_ns = tally.now_ns,
                Http2Part::Status(status) => return Err(Refusal::Status(status)),
                Http2Part::Content(piece) => {
                    if self.events(index, &mut splitter, piece, tally)? {
                        step = Step::Closed;
                    }
                }
                Http2Part::End if step == Step::Closed => {}
                Http2Part::End if response.is_answered() => step = Step::ComeBack,
                Http2Part::End => return Err(Refusal::Ended),
            }
        }
        self.stage = Stage::Http2(response, splitter);
        Ok(step)
    }

    fn receive_messages(
        &mut self,
        index: u32,
        bytes: &[u8],
        tally: &mut Tally,
        out: &mut Vec<u8>,
    ) -> Result<Step, Refusal> {
        // Taken out as above.
        let Stage::Channel(mut reader) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Ok(Step::Wait);
        };
        let mut result = Ok(Step::Wait);
        reader.feed(bytes, |frame| {
            match frame {
                ServerFrame::Text(text) => {
                    tally.bytes += text.len() as u64;
                    if let Some(ended) = self.message(index, text, tally) {
                        result = ended;
                    }
                }
                ServerFrame::Ping(payload) => websocket::write_frame(FIN | PONG, payload, out),
                ServerFrame::Close(code) if result == Ok(Step::Wait) => {
                    result = match code {
                        None | Some(1000 | 1001 | 1011 | 4503) => Ok(Step::ComeBack),
                        Some(code) => Err(Refusal::Closed(code)),
                    };
                }
                ServerFrame::Close(_) | ServerFrame::Pong => {}
            }
            Ok(())
        })?;
        self.stage = Stage::Channel(reader);
        result
    }

    /// Takes one message of a channel. Returns how it ends the subscription, if it does.
    fn message(
        &mut self,
        index: u32,
        text: &[u8],
        tally: &mut Tally,
    ) -> Option<Result<Step, Refusal>> {
        match ChannelMessage::parse(text) {
            Some(ChannelMessage::At {
                offset,
                data,
                ended,
            }) => {
                if let Some(data) = data {
                    self.messages(index, data, tally);
                }
                self.got_offset(&offset, tally);
                ended.then_some(Ok(Step::Closed))
            }
            Some(ChannelMessage::Ended) => Some(Ok(Step::Closed)),
            Some(ChannelMessage::Disconnected) => Some(Ok(Step::ComeBack)),
            Some(ChannelMessage::Error(status)) => Some(Err(Refusal::Status(status))),
            None => {
                tally.ledger.faults_mut().strangers += 1;
                None
            }
        }
    }

    /// Takes a piece of an event stream. Returns whether it says that the stream is closed.
    fn events(
        &mut self,
        index: u32,
        splitter: &mut Splitter,
        piece: &[u8],
        tally: &mut Tally,
    ) -> Result<bool, WireError> {
        tally.bytes += piece.len() as u64;
        let mut closed = false;
        splitter.feed(piece, |event| {
            closed |= self.event(index, event, tally)?;
            Ok(())
        })?;
        Ok(closed)
    }

    /// Takes one event. Returns whether it says that the stream is closed.
    fn event(
        &mut self,
        index: u32,
        event: Event<'_>,
        tally: &mut Tally,
    ) -> Result<bool, WireError> {
        match (event.kind, event.data) {
            (b"data", data) => {
                self.traits.unsettled = true;
                self.data(index, data, tally);
                Ok(false)
            }
            (b"control", EventData::Line(line)) => {
                let Some(Control { offset, closed }) = Control::parse(line) else {
                    tally.ledger.faults_mut().strangers += 1;
                    return Ok(false);
                };
                self.got_offset(&offset, tally);
                self.traits.unsettled = false;
                Ok(closed)
            }
            _ => Ok(false),
        }
    }

    fn data(&mut self, index: u32, data: EventData<'_>, tally: &mut Tally) {
        match data {
            EventData::None => {}
            EventData::Line(line) => self.messages(index, line, tally),
            EventData::Lines(block) => {
                // Taken out for the time being, because the tally is needed for the messages as well.
                let mut joined = std::mem::take(&mut tally.joined);
                joined.clear();
                for line in block.data() {
                    joined.extend_from_slice(line);
                    joined.push(b'\n');
                }
                self.messages(index, &joined, tally);
                tally.joined = joined;
            }
        }
    }

    /// The server has said where this subscriber stands.
    fn got_offset(&mut self, offset: &str, tally: &mut Tally) {
        self.offset.clear();
        self.offset.push_str(offset);
        if !self.traits.ready {
            self.traits.ready = true;
            self.traits.from_start = !tally.publishing;
            tally.ready += 1;
        }
    }

    /// Takes the content of one event.
    fn messages(&mut self, index: u32, content: &[u8], tally: &mut Tally) {
        let (seen, traits, returned_ns) = (&mut self.seen, self.traits, self.returned_ns);
        let strangers = scan_json(content, |message| {
            tally.message(index, seen, traits, returned_ns, &message);
        });
        tally.ledger.faults_mut().strangers += strangers;
    }
}

#[cfg(test)]
#[path = "subscriber_tests.rs"]
mod tests;
