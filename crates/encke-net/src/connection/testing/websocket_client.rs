//! A client of WebSocket: its handshake, its frames, and what it reads.

use serde_json::Value;

use super::rig::Rig;

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

/// A masked frame whose first byte is `first`.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        short @ ..126 => frame.push(0x80 | short as u8),
        medium @ 126..0x1_0000 => {
            frame.push(0x80 | 126);
            frame.extend((medium as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend(KEY);
    let masked = payload.iter().zip(KEY.iter().cycle());
    frame.extend(masked.map(|(byte, key)| byte ^ key));
    frame
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
pub(crate) fn frames_in(mut rest: &[u8]) -> Vec<ReceivedFrame> {
    let mut frames = Vec::new();
    while let [first, second, behind @ ..] = rest {
        let (length, behind) = match second {
            126 => {
                let (length, behind) = behind.split_first_chunk().expect("a length");
                (usize::from(u16::from_be_bytes(*length)), behind)
            }
            127 => {
                let (length, behind) = behind.split_first_chunk().expect("a length");
                (u64::from_be_bytes(*length) as usize, behind)
            }
            short => (usize::from(*short), behind),
        };
        frames.push(ReceivedFrame {
            first: *first,
            payload: behind[..length].to_vec(),
        });
        rest = &behind[length..];
    }
    frames
}

/// The first bytes of frames that are their whole message.
pub(crate) const TEXT: u8 = 0x81;
pub(crate) const BINARY: u8 = 0x82;
pub(crate) const CLOSE: u8 = 0x88;
pub(crate) const PING: u8 = 0x89;
pub(crate) const PONG: u8 = 0x8a;

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
