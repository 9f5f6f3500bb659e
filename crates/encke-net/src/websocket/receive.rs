//! The receiving direction of a connection: bytes in any split become events (RFC 6455, sections 5.4 to 6.2).

use std::time::Duration;

use super::close::Close;
use super::deflate::CompressedMessage;
use super::frame::{ControlKind, ControlPayload, DataKind, FrameHeader, HEADER_BYTES_MAX, Opcode};
use super::frame_meter::{FRAGMENT_BYTES_MIN, FrameFlood, LightFrameMeter, SMALL_FRAGMENTS_MAX};
use super::mask::Mask;
use super::message::Message;
use super::violation::Violation;

/// Receives the frames of one client.
///
/// It allocates nothing while nothing is half received; then a connection can drop it and begin with [`MessageReceiver::new`] when bytes
/// arrive.
#[derive(Debug, Default)]
pub(crate) struct MessageReceiver {
    state: State,
}

/// What a connection agreed on and is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveOptions {
    /// The most bytes of a message, over all its fragments; of a compressed one, as it is sent.
    pub(crate) message_bytes_max: usize,
    /// Whether permessage-deflate was negotiated (RFC 7692).
    pub(crate) deflate: bool,
}

/// What a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MessageEvent {
    /// A complete message.
    Message(Message),
    /// A complete message that must be inflated. Only where permessage-deflate was negotiated.
    Compressed(CompressedMessage),
    /// Asks for a pong with the same payload. It may arrive between the fragments of a message.
    Ping(ControlPayload),
    /// Answers a ping, or none.
    Pong(ControlPayload),
    /// The last frame of the client. `None`: the client gives no code.
    Close(Option<Close>),
}

#[derive(Debug, Default)]
enum State {
    /// Nothing is half received.
    #[default]
    Idle,
    /// Something is half received.
    Receiving(Box<Partial>),
    /// Nothing counts any more: the client sent a close frame or broke the protocol.
    Ended,
}

/// What is half received.
#[derive(Debug, Default)]
struct Partial {
    frame: PartialFrame,
    /// The message of which a fragment is missing that has not begun.
    interrupted: Option<PartialMessage>,
}

#[derive(Debug)]
enum PartialFrame {
    Header(PartialHeader),
    Control(PartialControl),
    Data(PartialData),
}

/// The first bytes of a header; possibly none.
#[derive(Debug, Default)]
struct PartialHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    length: usize,
}

#[derive(Debug)]
struct PartialControl {
    kind: ControlKind,
    payload: Vec<u8>,
    payload_bytes: usize,
    mask: Mask,
}

/// A frame of a message whose header is complete.
#[derive(Debug)]
struct PartialData {
    message: PartialMessage,
    fin: bool,
    /// Bytes of the payload that have not arrived.
    left: usize,
    mask: Mask,
}

#[derive(Debug)]
struct PartialMessage {
    kind: DataKind,
    compressed: bool,
    bytes: Vec<u8>,
    /// Bytes at the beginning that are valid UTF-8. Behind them stands at most one incomplete character. 0 unless the message is
    /// uncompressed text.
    valid: usize,
    small_fragments: u16,
}

impl MessageReceiver {
    /// A receiver before the first frame, or between two messages.
    pub(crate) fn new() -> Self {
        MessageReceiver::default()
    }

    /// Takes bytes off `input` until an event is complete. `Ok(None)`: all bytes are taken, and more must come.
    ///
    /// The events do not depend on how the bytes are split. `meter` counts the frames with little content; `now` is the time
    /// since any moment that stays the same for it. Behind a close frame or a violation all input is dropped.
    ///
    /// # Errors
    /// The first rule that the client broke. Text is refused at its first wrong byte, in any fragment; a message that exceeds
    /// `message_bytes_max` at the header of the frame that exceeds it; a close frame when it is complete.
    pub(crate) fn receive(
        &mut self,
        input: &mut &[u8],
        options: ReceiveOptions,
        meter: &mut LightFrameMeter,
        now: Duration,
    ) -> Result<Option<MessageEvent>, Violation> {
        let result = match &mut self.state {
            State::Idle => {
                // Frames that arrive whole need no allocation for the state.
                let mut partial = Partial::default();
                let result = partial.receive(input, options, meter, now);
                if !partial.is_empty() {
                    self.state = State::Receiving(Box::new(partial));
                }
                result
            }
            State::Receiving(partial) => {
                let result = partial.receive(input, options, meter, now);
                if partial.is_empty() {
                    self.state = State::Idle;
                }
                result
            }
            State::Ended => Ok(None),
        };
        if matches!(result, Err(_) | Ok(Some(MessageEvent::Close(_)))) {
            self.state = State::Ended;
        }
        if matches!(self.state, State::Ended) {
            *input = &[];
        }
        result
    }

    /// Whether nothing is half received, so that a new receiver can replace this one.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Bytes of memory that it holds, besides itself: at most `message_bytes_max` and `STATE_BYTES_MAX`.
    pub(crate) fn bytes(&self) -> usize {
        match &self.state {
            State::Idle | State::Ended => 0,
            State::Receiving(partial) => size_of::<Partial>() + partial.payload_bytes(),
        }
    }
}

impl Partial {
    fn receive(
        &mut self,
        input: &mut &[u8],
        options: ReceiveOptions,
        meter: &mut LightFrameMeter,
        now: Duration,
    ) -> Result<Option<MessageEvent>, Violation> {
        loop {
            match &mut self.frame {
                PartialFrame::Header(partial) => {
                    let Some(header) = partial.take(input)? else {
                        return Ok(None);
                    };
                    self.begin_frame(&header, options, meter, now)?;
                }
                PartialFrame::Control(partial) => {
                    if !partial.take(input) {
                        return Ok(None);
                    }
                    if let PartialFrame::Control(control) = std::mem::take(&mut self.frame) {
                        return control.complete().map(Some);
                    }
                }
                PartialFrame::Data(partial) => {
                    if !partial.take(input, options)? {
                        return Ok(None);
                    }
                    if let PartialFrame::Data(data) = std::mem::take(&mut self.frame) {
                        if data.fin {
                            return data.message.complete().map(Some);
                        }
                        self.interrupted = Some(data.message);
                    }
                }
            }
        }
    }

    /// Applies the rules that a frame is held to by those before it.
    fn begin_frame(
        &mut self,
        header: &FrameHeader,
        options: ReceiveOptions,
        meter: &mut LightFrameMeter,
        now: Duration,
    ) -> Result<(), Violation> {
        let &FrameHeader {
            fin, rsv1, mask, ..
        } = header;
        let mut message = match (header.opcode, self.interrupted.take()) {
            (Opcode::Control(kind), interrupted) => {
                meter.count(now)?;
                self.interrupted = interrupted;
                self.frame = PartialFrame::Control(PartialControl {
                    kind,
                    payload: Vec::new(),
                    payload_bytes: header.payload_bytes as usize,
                    mask,
                });
                return Ok(());
            }
            (Opcode::Continuation, None) => return Err(Violation::UnexpectedContinuation),
            (Opcode::Data(_), Some(_)) => return Err(Violation::ExpectedContinuation),
            // Only the first frame of a message says whether it is compressed (RFC 7692, section 6.1).
            (Opcode::Continuation, Some(_)) if rsv1 => return Err(Violation::ReservedBit),
            (Opcode::Data(_), None) if rsv1 && !options.deflate => {
                return Err(Violation::ReservedBit);
            }
            (Opcode::Continuation, Some(message)) => message,
            (Opcode::Data(kind), None) => PartialMessage::new(kind, rsv1),
        };
        let is_whole = fin && matches!(header.opcode, Opcode::Data(_));
        let is_light = header.payload_bytes < FRAGMENT_BYTES_MIN as u64 && !is_whole;
        if is_light {
            message.count_small_fragment()?;
        }
        if is_light || header.payload_bytes == 0 {
            meter.count(now)?;
        }
        let room = options
            .message_bytes_max
            .saturating_sub(message.bytes.len());
        if header.payload_bytes > room as u64 {
            return Err(Violation::MessageTooBig {
                bytes_max: options.message_bytes_max,
            });
        }
        self.frame = PartialFrame::Data(PartialData {
            message,
            fin,
            left: header.payload_bytes as usize,
            mask,
        });
        Ok(())
    }

    fn is_empty(&self) -> bool {
        let between_frames =
            matches!(&self.frame, PartialFrame::Header(header) if header.length == 0);
        between_frames && self.interrupted.is_none()
    }

    /// Bytes of memory that the payloads take.
    fn payload_bytes(&self) -> usize {
        let frame = match &self.frame {
            PartialFrame::Header(_) => 0,
            PartialFrame::Control(control) => control.payload.capacity(),
            PartialFrame::Data(data) => data.message.bytes.capacity(),
        };
        let interrupted = self.interrupted.as_ref();
        frame + interrupted.map_or(0, |message| message.bytes.capacity())
    }
}

impl Default for PartialFrame {
    fn default() -> Self {
        PartialFrame::Header(PartialHeader::default())
    }
}

impl PartialHeader {
    /// Takes the bytes of the header off the input. `None`: all bytes are taken, and more must come.
    fn take(&mut self, input: &mut &[u8]) -> Result<Option<FrameHeader>, Violation> {
        let before = self.length;
        if before == 0
            && let Some((header, length)) = FrameHeader::parse(input)?
        {
            *input = &input[length..];
            return Ok(Some(header));
        }
        let count = input.len().min(HEADER_BYTES_MAX - before);
        self.bytes[before..before + count].copy_from_slice(&input[..count]);
        self.length += count;
        let Some((header, length)) = FrameHeader::parse(&self.bytes[..self.length])? else {
            *input = &input[count..];
            return Ok(None);
        };
        *input = &input[length - before..];
        Ok(Some(header))
    }
}

impl PartialControl {
    /// Takes the payload off the input. True when it is complete.
    fn take(&mut self, input: &mut &[u8]) -> bool {
        let left = self.payload_bytes - self.payload.len();
        let piece = take_piece(input, left);
        // Control frames are small, so the room for the whole is there from the first byte on.
        self.payload.reserve_exact(left);
        append_unmasked(&mut self.payload, piece, &mut self.mask);
        piece.len() == left
    }

    fn complete(self) -> Result<MessageEvent, Violation> {
        let payload = self.payload;
        Ok(match self.kind {
            ControlKind::Close => MessageEvent::Close(Close::parse(&payload)?),
            ControlKind::Ping => MessageEvent::Ping(control_payload(payload)?),
            ControlKind::Pong => MessageEvent::Pong(control_payload(payload)?),
        })
    }
}

impl PartialData {
    /// Takes the payload of the frame off the input. True when it is complete.
    fn take(&mut self, input: &mut &[u8], options: ReceiveOptions) -> Result<bool, Violation> {
        let piece = take_piece(input, self.left);
        // The length of a message is known when its last frame has begun.
        let whole = match self.fin {
            true => self.message.bytes.len() + self.left,
            false => options.message_bytes_max,
        };
        self.message.reserve(piece.len(), whole);
        append_unmasked(&mut self.message.bytes, piece, &mut self.mask);
        self.left -= piece.len();
        let is_complete = self.left == 0;
        // A message that is complete is validated as a whole.
        if !(is_complete && self.fin) {
            self.message.validate()?;
        }
        Ok(is_complete)
    }
}

impl PartialMessage {
    fn new(kind: DataKind, compressed: bool) -> Self {
        PartialMessage {
            kind,
            compressed,
            bytes: Vec::new(),
            valid: 0,
            small_fragments: 0,
        }
    }

    fn count_small_fragment(&mut self) -> Result<(), FrameFlood> {
        if self.small_fragments == SMALL_FRAGMENTS_MAX {
            return Err(FrameFlood::Fragments);
        }
        self.small_fragments += 1;
        Ok(())
    }

    /// Makes room for `count` more bytes. The room doubles as bytes arrive, so that memory follows what the client sends and not
    /// what it announces; it never exceeds `whole`.
    fn reserve(&mut self, count: usize, whole: usize) {
        let (length, capacity) = (self.bytes.len(), self.bytes.capacity());
        let needed = length + count;
        if needed > capacity {
            let room = needed.max(whole.min(capacity * 2));
            self.bytes.reserve_exact(room - length);
        }
    }

    /// Validates the text so far, as far as its characters are complete (RFC 6455, section 8.1).
    fn validate(&mut self) -> Result<(), Violation> {
        if self.kind == DataKind::Binary || self.compressed {
            return Ok(());
        }
        match std::str::from_utf8(&self.bytes[self.valid..]) {
            Ok(text) => self.valid += text.len(),
            Err(error) if error.error_len().is_some() => return Err(Violation::InvalidUtf8),
            // The last character is incomplete, and its bytes so far can begin one.
            Err(error) => self.valid += error.valid_up_to(),
        }
        Ok(())
    }

    fn complete(self) -> Result<MessageEvent, Violation> {
        if self.compressed {
            return Ok(MessageEvent::Compressed(CompressedMessage::new(
                self.kind, self.bytes,
            )));
        }
        Message::new(self.kind, self.bytes).map(MessageEvent::Message)
    }
}

/// Takes at most `count` bytes off the input.
fn take_piece<'a>(input: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (piece, rest) = input.split_at(count.min(input.len()));
    *input = rest;
    piece
}

fn append_unmasked(bytes: &mut Vec<u8>, piece: &[u8], mask: &mut Mask) {
    let before = bytes.len();
    bytes.extend_from_slice(piece);
    mask.apply(&mut bytes[before..]);
}

fn control_payload(bytes: Vec<u8>) -> Result<ControlPayload, Violation> {
    ControlPayload::new(bytes).ok_or(Violation::LongControl)
}

/// The most bytes that a receiver holds besides the message: its state and the payload of a control frame.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) const STATE_BYTES_MAX: usize = size_of::<Partial>() + super::frame::CONTROL_BYTES_MAX;
