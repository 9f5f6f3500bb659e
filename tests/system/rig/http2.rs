//! A client of HTTP/2 in raw frames, so that a test can send what no library would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// A connection that has sent its preface.
#[derive(Debug)]
pub(crate) struct Http2Client {
    pub(crate) socket: TcpStream,
}

/// A frame (RFC 9113, section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Frame {
        Frame {
            kind,
            flags,
            stream,
            payload: payload.to_vec(),
        }
    }

    /// A frame with one number as its payload, such as RST_STREAM or WINDOW_UPDATE.
    pub(crate) fn number(kind: u8, stream: u32, number: u32) -> Frame {
        Frame::new(kind, 0, stream, &number.to_be_bytes())
    }

    /// A request's HEADERS, of which each field is written as it is. `flags`: [`END_STREAM`], [`END_HEADERS`].
    pub(crate) fn headers(flags: u8, stream: u32, fields: &[(&str, &str)]) -> Frame {
        let mut block = Vec::new();
        for (name, value) in fields {
            block.push(0);
            for text in [name, value] {
                push_length(text.len(), &mut block);
                block.extend_from_slice(text.as_bytes());
            }
        }
        Frame::new(HEADERS, flags, stream, &block)
    }

    /// A whole request without a body.
    pub(crate) fn get(stream: u32, path: &str) -> Frame {
        let fields = Frame::fields("GET", path);
        Frame::headers(END_STREAM | END_HEADERS, stream, &fields)
    }

    /// The fields that each request has.
    pub(crate) fn fields<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            (":method", method),
            (":scheme", "http"),
            (":authority", "encke.localhost"),
            (":path", path),
        ]
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = (self.payload.len() as u32).to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The error code of a RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = match self.kind {
            RST_STREAM => 0,
            GOAWAY => 4,
            _ => panic!("no error code in {self:?}"),
        };
        let code = self.payload[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(code)
    }
}

impl Http2Client {
    /// Connects and sends the preface with these settings.
    pub(crate) fn open(address: SocketAddr, settings: &[(u16, u32)]) -> Http2Client {
        let socket = TcpStream::connect(address).expect("the server listens");
        Http2Client::over(socket, b"", settings)
    }

    /// The same over a socket, behind bytes that come first.
    pub(crate) fn over(socket: TcpStream, before: &[u8], settings: &[(u16, u32)]) -> Http2Client {
        socket.set_nodelay(true).expect("it is a TCP socket");
        for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
            set(&socket, Some(PATIENCE)).expect("a timeout can be set");
        }
        let mut client = Http2Client { socket };
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        let settings = Frame::new(SETTINGS, 0, 0, &payload).bytes();
        client.send_bytes(&[before, PREFACE, &settings].concat());
        client
    }

    pub(crate) fn send(&mut self, frame: &Frame) {
        self.send_bytes(&frame.bytes());
    }

    /// Sends to a server that may have hung up already.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        // What matters is what it said before.
        let _ = self.socket.write_all(bytes);
    }

    /// The next frame, but for SETTINGS and WINDOW_UPDATE; nothing at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            let mut head = [0; 9];
            if let Err(error) = self.socket.read_exact(&mut head) {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "nothing came");
                return None;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.socket.read_exact(&mut payload).ok()?;
            let stream = head[5..].try_into().expect("four bytes");
            let frame = Frame::new(head[3], head[4], u32::from_be_bytes(stream), &payload);
            match frame.kind {
                SETTINGS if frame.flags == 0 => self.send(&Frame::new(SETTINGS, 1, 0, b"")),
                SETTINGS | WINDOW_UPDATE => {}
                _ => return Some(frame),
            }
        }
    }

    /// The next frame of a kind; others are left out.
    pub(crate) fn until(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().expect("the connection goes on");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// The error code of the GOAWAY behind which the connection ends.
    pub(crate) fn end(&mut self) -> u32 {
        let code = self.until(GOAWAY).code();
        let mut last = code;
        while let Some(frame) = self.next() {
            if frame.kind == GOAWAY {
                last = frame.code();
            }
        }
        last
    }

    /// The body of a stream's response, to its end.
    pub(crate) fn body(&mut self, stream: u32) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let frame = self.next().expect("the connection goes on");
            assert_ne!(
                (frame.kind, frame.stream),
                (RST_STREAM, stream),
                "{frame:?}"
            );
            if frame.stream != stream {
                continue;
            }
            if frame.kind == DATA {
                body.extend(&frame.payload);
            }
            if frame.has(END_STREAM) {
                return body;
            }
        }
    }

    /// The code in the body of an error, to its end.
    pub(crate) fn error_code(&mut self, stream: u32) -> String {
        let body = self.body(stream);
        let body: serde_json::Value = serde_json::from_slice(&body).expect("an error is JSON");
        body["error"]["code"].as_str().expect("a code").to_owned()
    }
}

/// Writes the length of a text that is not compressed (RFC 7541, section 5.1).
fn push_length(length: usize, block: &mut Vec<u8>) {
    const PREFIX: usize = 127;
    let Some(mut rest) = length.checked_sub(PREFIX) else {
        return block.push(length as u8);
    };
    block.push(PREFIX as u8);
    while rest >= 128 {
        block.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
}

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The setting that says how large the window of a new stream is.
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;
