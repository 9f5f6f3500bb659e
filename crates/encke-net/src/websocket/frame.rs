//! Frames (RFC 6455, section 5): parses the headers that clients send, and encodes the frames of the server.

use super::mask::Mask;
use super::violation::Violation;

/// The header of a client's frame. It keeps the rules that hold for a single frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// The frame is the last one of its message.
    pub(crate) fin: bool,
    /// RSV1: the message is compressed, if that was negotiated (RFC 7692, section 6).
    pub(crate) rsv1: bool,
    /// What the frame is.
    pub(crate) opcode: Opcode,
    /// Bytes of the payload, below 2^63; at most [`CONTROL_BYTES_MAX`] for control frames.
    pub(crate) payload_bytes: u64,
    /// The mask at the first byte of the payload.
    pub(crate) mask: Mask,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    /// A further fragment of a message.
    Continuation,
    /// A message, or its first fragment.
    Data(DataKind),
    /// A control frame.
    Control(ControlKind),
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataKind {
    /// UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

/// The kind of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// Ends one direction of the connection.
    Close,
    /// Asks for a pong with the same payload.
    Ping,
    /// Answers a ping, or only shows that the peer is there.
    Pong,
}

/// The payload of a ping or pong: at most [`CONTROL_BYTES_MAX`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlPayload(Vec<u8>);

impl FrameHeader {
    /// Parses the header at the beginning of `bytes`, and gives its length in bytes. `None`: more bytes are needed.
    ///
    /// Each part of the header is checked as soon as it is complete, so most faults are found before the key.
    ///
    /// # Errors
    /// The first part that breaks a rule.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(FrameHeader, usize)>, Violation> {
        let Some(&first) = bytes.first() else {
            return Ok(None);
        };
        if first & (RSV2 | RSV3) != 0 {
            return Err(Violation::ReservedBit);
        }
        let (fin, rsv1) = (first & FIN != 0, first & RSV1 != 0);
        let opcode = Opcode::parse(first & OPCODE)?;
        let is_control = matches!(opcode, Opcode::Control(_));
        if is_control && !fin {
            return Err(Violation::FragmentedControl);
        }
        if is_control && rsv1 {
            return Err(Violation::ReservedBit);
        }
        let Some(&second) = bytes.get(1) else {
            return Ok(None);
        };
        if second & MASKED == 0 {
            return Err(Violation::Unmasked);
        }
        let short_length = second & LENGTH;
        if is_control && usize::from(short_length) > CONTROL_BYTES_MAX {
            return Err(Violation::LongControl);
        }
        let behind = &bytes[2..];
        let (payload_bytes, behind) = match short_length {
            LENGTH_16 => match behind.split_first_chunk() {
                Some((length, behind)) => (u64::from(u16::from_be_bytes(*length)), behind),
                None => return Ok(None),
            },
            LENGTH_64 => match behind.split_first_chunk() {
                Some((length, behind)) => (u64::from_be_bytes(*length), behind),
                None => return Ok(None),
            },
            length => (u64::from(length), behind),
        };
        if payload_bytes > i64::MAX as u64 {
            return Err(Violation::LengthTooLarge);
        }
        if short_length != length_code(payload_bytes) {
            return Err(Violation::LengthNotMinimal);
        }
        let Some((key, behind)) = behind.split_first_chunk() else {
            return Ok(None);
        };
        let header = FrameHeader {
            fin,
            rsv1,
            opcode,
            payload_bytes,
            mask: Mask::new(*key),
        };
        Ok(Some((header, bytes.len() - behind.len())))
    }
}

impl Opcode {
    fn parse(code: u8) -> Result<Opcode, Violation> {
        Ok(match code {
            CONTINUATION => Opcode::Continuation,
            1 => Opcode::Data(DataKind::Text),
            2 => Opcode::Data(DataKind::Binary),
            8 => Opcode::Control(ControlKind::Close),
            9 => Opcode::Control(ControlKind::Ping),
            10 => Opcode::Control(ControlKind::Pong),
            reserved => return Err(Violation::ReservedOpcode(reserved)),
        })
    }
}

impl DataKind {
    fn code(self) -> u8 {
        match self {
            DataKind::Text => 1,
            DataKind::Binary => 2,
        }
    }
}

impl ControlKind {
    fn code(self) -> u8 {
        match self {
            ControlKind::Close => 8,
            ControlKind::Ping => 9,
            ControlKind::Pong => 10,
        }
    }
}

impl ControlPayload {
    /// A payload; `None` if it has more than [`CONTROL_BYTES_MAX`] bytes.
    pub(crate) fn new(bytes: Vec<u8>) -> Option<ControlPayload> {
        (bytes.len() <= CONTROL_BYTES_MAX).then_some(ControlPayload(bytes))
    }

    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Appends a message in one frame. `compressed` says that `payload` comes from [`super::deflate::Deflater`] (RFC 7692, section
/// 7.2.1). The payload of plain text must be UTF-8.
pub(crate) fn encode_message(kind: DataKind, compressed: bool, payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(HEADER_BYTES_MAX + payload.len());
    encode_message_header(kind, compressed, payload.len(), out);
    out.extend_from_slice(payload);
}

/// Appends a fragment of a message of text (RFC 6455, section 5.4). Together the fragments must be UTF-8.
pub(crate) fn encode_fragment(is_first: bool, is_last: bool, payload: &[u8], out: &mut Vec<u8>) {
    let fin = if is_last { FIN } else { 0 };
    let code = match is_first {
        true => DataKind::Text.code(),
        false => CONTINUATION,
    };
    encode_header(fin | code, payload.len() as u64, out);
    out.extend_from_slice(payload);
}

/// Appends the header of a message in one frame. A payload of `payload_bytes` bytes must follow; connections can share it.
pub(crate) fn encode_message_header(
    kind: DataKind,
    compressed: bool,
    payload_bytes: usize,
    out: &mut Vec<u8>,
) {
    let rsv1 = if compressed { RSV1 } else { 0 };
    encode_header(FIN | rsv1 | kind.code(), payload_bytes as u64, out);
}

/// Appends a ping.
pub(crate) fn encode_ping(payload: &ControlPayload, out: &mut Vec<u8>) {
    encode_control(ControlKind::Ping, payload.as_bytes(), out);
}

/// Appends a pong.
pub(crate) fn encode_pong(payload: &ControlPayload, out: &mut Vec<u8>) {
    encode_control(ControlKind::Pong, payload.as_bytes(), out);
}

/// Appends a control frame. The caller bounds the payload by [`CONTROL_BYTES_MAX`].
pub(super) fn encode_control(kind: ControlKind, payload: &[u8], out: &mut Vec<u8>) {
    debug_assert!(payload.len() <= CONTROL_BYTES_MAX);
    encode_header(FIN | kind.code(), payload.len() as u64, out);
    out.extend_from_slice(payload);
}

fn encode_header(first: u8, payload_bytes: u64, out: &mut Vec<u8>) {
    let code = length_code(payload_bytes);
    out.extend_from_slice(&[first, code]);
    match code {
        LENGTH_16 => out.extend_from_slice(&(payload_bytes as u16).to_be_bytes()),
        LENGTH_64 => out.extend_from_slice(&payload_bytes.to_be_bytes()),
        _ => {}
    }
}

/// The second byte of the header without the mask bit: a short length, or which longer one follows.
fn length_code(payload_bytes: u64) -> u8 {
    match payload_bytes {
        0..126 => payload_bytes as u8,
        126..0x1_0000 => LENGTH_16,
        _ => LENGTH_64,
    }
}

/// The most bytes of a control frame's payload (RFC 6455, section 5.5).
pub(crate) const CONTROL_BYTES_MAX: usize = 125;

/// The most bytes of a header: two, a length of eight, and the key of a client's frame.
pub(crate) const HEADER_BYTES_MAX: usize = 14;

const FIN: u8 = 0x80;
const CONTINUATION: u8 = 0;
const RSV1: u8 = 0x40;
const RSV2: u8 = 0x20;
const RSV3: u8 = 0x10;
const OPCODE: u8 = 0x0f;

const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;

/// A length of 16 bits follows.
const LENGTH_16: u8 = 126;
/// A length of 64 bits follows.
const LENGTH_64: u8 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Option<(FrameHeader, usize)>, Violation> {
        FrameHeader::parse(bytes)
    }

    #[test]
    fn lengths_take_the_form_that_is_shortest_for_them() {
        for (payload_bytes, length) in [
            (0, 2),
            (125, 2),
            (126, 4),
            (0xffff, 4),
            (0x1_0000, 10),
            (1 << 40, 10),
        ] {
            let mut out = Vec::new();
            encode_message_header(DataKind::Binary, false, payload_bytes, &mut out);
            assert_eq!(out.len(), length);
            out[1] |= MASKED;
            out.extend_from_slice(&[1, 2, 3, 4]);
            for cut in 0..out.len() {
                assert_eq!(parsed(&out[..cut]), Ok(None));
            }
            out.push(77);
            let (header, header_bytes) = parsed(&out).unwrap().unwrap();
            assert_eq!(header_bytes, out.len() - 1);
            assert_eq!(header.payload_bytes, payload_bytes as u64);
            assert_eq!(header.mask, Mask::new([1, 2, 3, 4]));
        }
        for longer in [&[0, 125][..], &[0, 0], &[0, 0, 0, 0, 0, 0, 0xff, 0xff]] {
            let code = if longer.len() == 2 { 254 } else { 255 };
            let bytes = [&[0x82, code], longer].concat();
            assert_eq!(parsed(&bytes), Err(Violation::LengthNotMinimal));
        }
        let bytes = [0x82, 255, 0x80, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parsed(&bytes), Err(Violation::LengthTooLarge));
    }

    #[test]
    fn a_fault_is_found_at_its_byte() {
        for first in 0..=u8::MAX {
            let (code, rsv) = (first & OPCODE, first & (RSV2 | RSV3));
            let reserved = matches!(code, 3..8 | 11..);
            let wrong = rsv != 0 || reserved || code > 7 && first & (FIN | RSV1) != FIN;
            assert_eq!(parsed(&[first]).is_err(), wrong, "{first:#x}");
        }
        assert_eq!(parsed(&[0x81, 5]), Err(Violation::Unmasked));
        assert_eq!(parsed(&[0x89, 254]), Err(Violation::LongControl));
    }
}
