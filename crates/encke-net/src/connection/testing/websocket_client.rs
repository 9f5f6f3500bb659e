//! A client of WebSocket: its handshake, its frames, and what it reads.

use serde_json::Value;

use super::rig::Rig;
pub(crate) use crate::websocket::tests::client::frame;

/// Opens a channel, and returns the rig behind the response.
pub(crate) fn open(rig: Rig, target: &str) -> Rig {
    open_with(rig, target, "").0
}

/// The same with further fields. Returns the head of the response as well.
pub(crate) fn open_with(mut rig: Rig, target: &str, fields: &str) -> (Rig, String) {
    rig.receive(handshake(target, fields).as_bytes());
    let end = memchr::memmem::find(&rig.taken, b"\r\n\r\n").expect("the handshake is answered");
    let head = String::from_utf8_lossy(&rig.taken[..end]).into_owned();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(
        head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        "{head}"
    );
    rig.taken.drain(..end + 4);
    (rig, head)
}

/// The request that opens a channel, with further fields.
pub(crate) fn handshake(target: &str, fields: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n"
    )
}

/// A text message in one frame.
pub(crate) fn text(message: &str) -> Vec<u8> {
    frame(TEXT, message.as_bytes())
}

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedFrame {
    pub(crate) first: u8,
    pub(crate) payload: Vec<u8>,
}

impl ReceivedFrame {
    /// The object of a text message.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.first, TEXT);
        serde_json::from_slice(&self.payload).expect("a message is JSON")
    }

    /// The code of a close frame.
    pub(crate) fn close_code(&self) -> Option<u16> {
        let code = self.payload.first_chunk().copied();
        code.map(u16::from_be_bytes).filter(|_| self.first == CLOSE)
    }
}

/// Takes the frames that a rig's client has received.
///
/// # Panics
/// One is not complete.
pub(crate) fn take_frames(rig: &mut Rig) -> Vec<ReceivedFrame> {
    frames_in(&std::mem::take(&mut rig.taken))
}

/// The frames in what a client has received.
///
/// # Panics
/// One is not complete.
pub(crate) fn frames_in(received: &[u8]) -> Vec<ReceivedFrame> {
    let mut rest = received.to_vec();
    let frames = std::iter::from_fn(|| take_frame(&mut rest)).collect();
    assert!(rest.is_empty(), "a frame is not complete");
    frames
}

/// Takes a frame of the server off the input, if it is there whole.
pub(crate) fn take_frame(input: &mut Vec<u8>) -> Option<ReceivedFrame> {
    let (first, short) = (*input.first()?, *input.get(1)?);
    let (length, begin) = match short {
        126 => {
            let length = input.get(2..4)?.try_into().ok()?;
            (usize::from(u16::from_be_bytes(length)), 4)
        }
        127 => {
            let length = input.get(2..10)?.try_into().ok()?;
            (u64::from_be_bytes(length) as usize, 10)
        }
        short => (usize::from(short), 2),
    };
    let payload = input.get(begin..begin + length)?.to_vec();
    input.drain(..begin + length);
    Some(ReceivedFrame { first, payload })
}

/// The first bytes of frames that are their whole message.
pub(crate) const TEXT: u8 = 0x81;
pub(crate) const BINARY: u8 = 0x82;
pub(crate) const CLOSE: u8 = 0x88;
pub(crate) const PING: u8 = 0x89;
pub(crate) const PONG: u8 = 0x8a;
