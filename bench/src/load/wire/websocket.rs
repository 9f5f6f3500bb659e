//! The frames of WebSocket (RFC 6455) as a client of this server sees them: what it sends is masked, and each message comes in
//! one frame.
//!
//! Fragments and extensions are refused: the client offers none, and a server that sends them measures something else.

use super::http::{EVENT_BYTES_MAX, WireError};

/// What a request has beside its target and host to open a channel. The key is an example of RFC 6455, section 1.3: nothing
/// between this client and the server keeps responses for others.
pub(crate) const HANDSHAKE_FIELDS: &[u8] =
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: encke.v1\r\n";

/// The status of the response to a handshake that succeeds.
pub(crate) const SWITCHING_PROTOCOLS: u16 = 101;

/// The first byte of a text message, with [`FIN`]; without it that of the first of several fragments.
pub(crate) const TEXT: u8 = 1;
/// The first byte of a further fragment.
pub(crate) const CONTINUATION: u8 = 0;
/// The first byte of a ping, with [`FIN`].
pub(crate) const PING: u8 = 9;
/// The first byte of a pong, with [`FIN`].
pub(crate) const PONG: u8 = 10;
/// Marks the last frame of a message.
pub(crate) const FIN: u8 = 0x80;

const CLOSE: u8 = 8;
const MASKED: u8 = 0x80;

/// A frame of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerFrame<'a> {
    /// A whole message of text.
    Text(&'a [u8]),
    /// Wants a pong with this payload.
    Ping(&'a [u8]),
    /// The last frame, with its code if it has one.
    Close(Option<u16>),
    /// Something that a client need not look at.
    Pong,
}

/// Finds frames in the bytes of a connection, without copying those that arrive whole.
///
/// Invariant: `held` is empty exactly when all that was fed belongs to complete frames.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    /// The beginning of a frame whose end has not arrived.
    held: Vec<u8>,
}

impl FrameReader {
    /// Whether no part of a frame is being held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes the next bytes and calls `on_frame` for each frame that they complete.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut on_frame: impl FnMut(ServerFrame<'_>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        if !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            let length = loop {
                // Until the header is complete, byte by byte.
                let wanted = match frame_length(&held)? {
                    Some(length) if length.whole() == held.len() => break length,
                    Some(length) => length.whole() - held.len(),
                    None => 1,
                };
                if bytes.is_empty() {
                    self.held = held;
                    return Ok(());
                }
                let (now, later) = bytes.split_at(wanted.min(bytes.len()));
                held.extend_from_slice(now);
                bytes = later;
            };
            on_frame(parse_frame(&held, length)?)?;
        }
        loop {
            let length = frame_length(bytes)?.filter(|length| length.whole() <= bytes.len());
            let Some(length) = length else {
                self.held = bytes.to_vec();
                return Ok(());
            };
            let (frame, later) = bytes.split_at(length.whole());
            on_frame(parse_frame(frame, length)?)?;
            bytes = later;
        }
    }
}

/// The length of a frame, in bytes.
#[derive(Debug, Clone, Copy)]
struct FrameLength {
    header: usize,
    payload: usize,
}

impl FrameLength {
    fn whole(self) -> usize {
        self.header + self.payload
    }
}

/// The length of the frame at the beginning of `bytes`; `None` while its header is incomplete.
fn frame_length(bytes: &[u8]) -> Result<Option<FrameLength>, WireError> {
    let &[_, short, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    let (header, payload) = match short {
        0..=125 => (2, u64::from(short)),
        126 => match rest.first_chunk() {
            Some(&length) => (4, u64::from(u16::from_be_bytes(length))),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(&length) => (10, u64::from_be_bytes(length)),
            None => return Ok(None),
        },
        // A server masks nothing.
        _ => return Err(WireError::BadWebSocketFrame),
    };
    if payload > EVENT_BYTES_MAX as u64 {
        return Err(WireError::EventTooLong);
    }
    let payload = payload as usize;
    Ok(Some(FrameLength { header, payload }))
}

fn parse_frame(frame: &[u8], length: FrameLength) -> Result<ServerFrame<'_>, WireError> {
    const LAST_TEXT: u8 = FIN | TEXT;
    const LAST_PING: u8 = FIN | PING;
    const LAST_PONG: u8 = FIN | PONG;
    const LAST_CLOSE: u8 = FIN | CLOSE;
    let payload = &frame[length.header..];
    match frame[0] {
        LAST_TEXT => Ok(ServerFrame::Text(payload)),
        LAST_PING if payload.len() < 126 => Ok(ServerFrame::Ping(payload)),
        LAST_PONG => Ok(ServerFrame::Pong),
        LAST_CLOSE => {
            let code = payload.first_chunk().copied();
            Ok(ServerFrame::Close(code.map(u16::from_be_bytes)))
        }
        _ => Err(WireError::BadWebSocketFrame),
    }
}

/// Appends the header of a client's frame. `first` is its first byte.
pub(crate) fn write_header(first: u8, payload_bytes: usize, out: &mut Vec<u8>) {
    out.push(first);
    match payload_bytes {
        0..=125 => out.push(MASKED | payload_bytes as u8),
        126..=0xffff => {
            out.push(MASKED | 126);
            out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            out.push(MASKED | 127);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&MASK);
}

/// Appends a whole frame of a client.
pub(crate) fn write_frame(first: u8, payload: &[u8], out: &mut Vec<u8>) {
    write_header(first, payload.len(), out);
    let masked = payload.iter().zip(MASK.iter().cycle());
    out.extend(masked.map(|(byte, mask)| byte ^ mask));
}

/// The first bytes of a payload, masked. What repeats after four bytes is the same further on.
pub(crate) fn masked(payload: [u8; 4]) -> [u8; 4] {
    std::array::from_fn(|at| payload[at] ^ MASK[at])
}

/// The key of all frames: the example of RFC 6455, section 5.7. No proxy is to be protected from what this client sends.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The frames in these pieces, in words, and whether nothing is held back.
    fn read(pieces: &[&[u8]]) -> (Vec<String>, Result<bool, WireError>) {
        let mut reader = FrameReader::default();
        let mut frames = Vec::new();
        for piece in pieces {
            let fed = reader.feed(piece, |frame| {
                frames.push(match frame {
                    ServerFrame::Text(text) => format!("text {}", text.escape_ascii()),
                    ServerFrame::Ping(payload) => format!("ping {}", payload.escape_ascii()),
                    other => format!("{other:?}"),
                });
                Ok(())
            });
            if let Err(error) = fed {
                return (frames, Err(error));
            }
        }
        (frames, Ok(reader.is_empty()))
    }

    #[test]
    fn frames_of_a_server() {
        let (frames, empty) = read(&[
            b"\x81\x05Hello\x89\x02hi\x8a\x00",
            b"\x88\x06\x03\xe9gone",
            b"\x88\x00\x81\x01",
        ]);
        let expected = [
            "text Hello",
            "ping hi",
            "Pong",
            "Close(Some(1001))",
            "Close(None)",
        ];
        assert_eq!(
            (frames.as_slice(), empty),
            (&expected.map(String::from)[..], Ok(false))
        );
    }

    #[test]
    fn frames_that_are_not_expected_are_refused() {
        for (bytes, error) in [
            // The first fragment, a continuation, a binary message, a compressed one, a masked one.
            (&b"\x01\x01a"[..], WireError::BadWebSocketFrame),
            (b"\x80\x01a", WireError::BadWebSocketFrame),
            (b"\x82\x01a", WireError::BadWebSocketFrame),
            (b"\xc1\x01a", WireError::BadWebSocketFrame),
            (b"\x81\x81abcda", WireError::BadWebSocketFrame),
            (b"\x89\x7e\x00\x7e", WireError::BadWebSocketFrame),
            (
                b"\x81\x7f\x00\x00\x00\x00\x04\x00\x00\x01",
                WireError::EventTooLong,
            ),
        ] {
            let long = [bytes, &[0; 126]].concat();
            assert_eq!(read(&[&long]).1, Err(error), "{bytes:x?}");
        }
    }

    #[test]
    fn frames_of_a_client_are_masked() {
        let mut out = Vec::new();
        write_frame(FIN | TEXT, b"Hello", &mut out);
        // RFC 6455, section 5.7.
        assert_eq!(out, b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
        assert_eq!(masked(*b"Hell"), out[6..10]);
        for (payload_bytes, header) in [
            (125, &b"\x8a\xfd"[..]),
            (126, b"\x8a\xfe\x00\x7e"),
            (65_535, b"\x8a\xfe\xff\xff"),
            (65_536, b"\x8a\xff\x00\x00\x00\x00\x00\x01\x00\x00"),
        ] {
            let mut out = Vec::new();
            write_header(FIN | PONG, payload_bytes, &mut out);
            assert_eq!(out, [header, &MASK].concat());
        }
    }

    /// A frame of a server, whose length is that of its payload.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(first, payload.len(), &mut out);
        out[1] &= !MASKED;
        out.truncate(out.len() - MASK.len());
        out.extend_from_slice(payload);
        out
    }

    proptest! {
        #[test]
        fn frames_are_the_same_however_they_are_cut(
            lengths in prop::collection::vec((any::<bool>(), prop_oneof![0..6usize, 120..130usize, 65_530..65_540usize]), 1..6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for (is_ping, length) in lengths {
                let length = if is_ping { length.min(125) } else { length };
                let payload = vec![b'a' + (length % 26) as u8; length];
                bytes.extend(frame(FIN | if is_ping { PING } else { TEXT }, &payload));
                let name = if is_ping { "ping" } else { "text" };
                expected.push(format!("{name} {}", payload.escape_ascii()));
            }
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            at.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for to in at {
                pieces.push(&bytes[from..to]);
                from = to;
            }
            pieces.push(&bytes[from..]);
            prop_assert_eq!(read(&pieces), (expected, Ok(true)));
        }
    }
}
