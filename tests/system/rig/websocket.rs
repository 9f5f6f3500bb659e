//! A client of WebSocket in raw frames, so that a test can send what no library would.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::Value;

use super::{Connection, Response, still_waits};

/// A connection that has been upgraded.
#[derive(Debug)]
pub(crate) struct WebSocketClient {
    connection: Connection,
    /// Pings of the server that were answered.
    pub(crate) pings: usize,
    pub(crate) answers_pings: bool,
    /// The fragments so far of a message that is not complete.
    fragments: Option<Vec<u8>>,
    /// Frames of messages that came in fragments.
    pub(crate) fragments_seen: usize,
}

/// A frame of the server (RFC 6455, section 5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerFrame {
    pub(crate) opcode: u8,
    pub(crate) payload: Vec<u8>,
}

impl WebSocketClient {
    /// Opens a channel.
    pub(crate) fn open(address: SocketAddr, target: &str, fields: &[&str]) -> WebSocketClient {
        let (response, client) = WebSocketClient::try_open(address, target, fields);
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.field("Sec-WebSocket-Accept"), Some(ACCEPT));
        client
    }

    /// Asks for a channel, which may be refused.
    pub(crate) fn try_open(
        address: SocketAddr,
        target: &str,
        fields: &[&str],
    ) -> (Response, WebSocketClient) {
        WebSocketClient::try_open_on(Connection::open(address), target, fields)
    }

    /// The same over a connection.
    pub(crate) fn try_open_on(
        mut connection: Connection,
        target: &str,
        fields: &[&str],
    ) -> (Response, WebSocketClient) {
        let mut request = format!(
            "GET {target} HTTP/1.1\r\nHost: encke\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
        );
        for field in fields {
            request.push_str(field);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        connection.send(request.as_bytes());
        let response = connection.head();
        let client = WebSocketClient {
            connection,
            pings: 0,
            answers_pings: true,
            fragments: None,
            fragments_seen: 0,
        };
        (response, client)
    }

    /// Sends a text message.
    pub(crate) fn send(&mut self, text: &str) {
        self.send_raw(&client_frame(FIN | TEXT, text.as_bytes()));
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.connection.send(bytes);
    }

    /// The next message; `None` after a close frame or the end of the connection.
    pub(crate) fn message(&mut self) -> Option<Value> {
        let begin = Instant::now();
        loop {
            still_waits(begin);
            let frame = self.frame()?;
            match frame.opcode {
                TEXT => return Some(serde_json::from_slice(&frame.payload).expect("it is JSON")),
                PING if self.answers_pings => {
                    self.pings += 1;
                    self.send_raw(&client_frame(FIN | PONG, &frame.payload));
                }
                PING | PONG => {}
                CLOSE => return None,
                other => panic!("a frame of the kind {other}"),
            }
        }
    }

    /// Sends a message, and returns the next one.
    pub(crate) fn ask(&mut self, text: &str) -> Value {
        self.send(text);
        self.message().expect("it is answered")
    }

    /// The code of the server's close frame, behind all that comes before it.
    pub(crate) fn close_code(&mut self) -> u16 {
        loop {
            let frame = self.frame().expect("the server says why it closes");
            if frame.opcode == CLOSE {
                let code = frame.payload.get(..2).expect("it has a code");
                return u16::from_be_bytes([code[0], code[1]]);
            }
        }
    }

    /// The next control frame or complete message; `None` at the end of the connection.
    pub(crate) fn frame(&mut self) -> Option<ServerFrame> {
        loop {
            let (is_last, frame) = self.any_frame()?;
            match (frame.opcode, &mut self.fragments) {
                (PING | PONG | CLOSE, _) => return Some(frame),
                (CONTINUATION, Some(fragments)) => {
                    self.fragments_seen += 1;
                    fragments.extend_from_slice(&frame.payload);
                    if is_last && let Some(payload) = self.fragments.take() {
                        let opcode = TEXT;
                        return Some(ServerFrame { opcode, payload });
                    }
                }
                (CONTINUATION, None) => panic!("a continuation of nothing"),
                (_, Some(_)) => panic!("a message stands between the fragments of another"),
                (_, None) if is_last => return Some(frame),
                (_, None) => {
                    self.fragments_seen += 1;
                    self.fragments = Some(frame.payload);
                }
            }
        }
    }

    /// The next frame, and whether it is the last one of its message.
    fn any_frame(&mut self) -> Option<(bool, ServerFrame)> {
        while self.connection.input().len() < 2 {
            if !self.connection.fill() {
                return None;
            }
        }
        let head = self.connection.take(2);
        assert_eq!(head[0] & 0x70, 0, "no extension was agreed on");
        assert_eq!(head[1] & 0x80, 0, "a server does not mask");
        let length = match head[1] {
            126 => {
                let length = self.connection.take(2);
                usize::from(u16::from_be_bytes([length[0], length[1]]))
            }
            127 => {
                let length = self.connection.take(8);
                let length: [u8; 8] = length.try_into().expect("it is that long");
                u64::from_be_bytes(length) as usize
            }
            short => usize::from(short),
        };
        let frame = ServerFrame {
            opcode: head[0] & 0x0f,
            payload: self.connection.take(length),
        };
        Some((head[0] & FIN != 0, frame))
    }
}

/// A masked frame. `first` is its first byte.
pub(crate) fn client_frame(first: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![first];
    match payload.len() {
        length @ ..126 => frame.push(0x80 | length as u8),
        length @ ..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    let masked = payload.iter().zip(MASK.iter().cycle());
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    frame
}

/// The key of the example in RFC 6455, section 1.3, and the answer to it.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

pub(crate) const FIN: u8 = 0x80;
pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;
