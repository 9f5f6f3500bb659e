//! The frames of a client, byte by byte, and a receiver that takes them.

use std::time::Duration;

use crate::websocket::frame_meter::LightFrameMeter;
use crate::websocket::message::Message;
use crate::websocket::receive::{MessageEvent, MessageReceiver, ReceiveOptions};
use crate::websocket::violation::Violation;

/// A frame as a client sends it, with no rule kept.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        short @ 0..126 => out.push(0x80 | short as u8),
        medium @ 126..0x1_0000 => {
            out.push(0xfe);
            out.extend((medium as u16).to_be_bytes());
        }
        long => {
            out.push(0xff);
            out.extend((long as u64).to_be_bytes());
        }
    }
    out.extend(KEY);
    out.extend(
        payload
            .iter()
            .zip(KEY.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    out
}

/// A close frame.
pub(in crate::websocket) fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(0x88, &[&code.to_be_bytes(), reason].concat())
}

/// What a client sent, in a form that is short to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Text(String),
    Binary(Vec<u8>),
    Compressed,
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
    Violation(Violation),
}

pub(super) fn text(text: &str) -> Seen {
    Seen::Text(text.to_owned())
}

impl From<MessageEvent> for Seen {
    fn from(event: MessageEvent) -> Seen {
        match event {
            MessageEvent::Message(Message::Text(text)) => Seen::Text(text),
            MessageEvent::Message(Message::Binary(bytes)) => Seen::Binary(bytes),
            MessageEvent::Compressed(_) => Seen::Compressed,
            MessageEvent::Ping(payload) => Seen::Ping(payload.as_bytes().to_vec()),
            MessageEvent::Pong(payload) => Seen::Pong(payload.as_bytes().to_vec()),
            MessageEvent::Close(close) => {
                Seen::Close(close.map(|close| (close.code.number(), close.reason)))
            }
        }
    }
}

/// A connection on the server's side.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) receiver: MessageReceiver,
    pub(super) options: ReceiveOptions,
    pub(super) meter: LightFrameMeter,
    pub(super) now: Duration,
}

impl Server {
    pub(super) fn new(message_bytes_max: usize) -> Server {
        Server {
            receiver: MessageReceiver::new(),
            options: ReceiveOptions {
                message_bytes_max,
                deflate: false,
            },
            meter: LightFrameMeter::new(),
            now: Duration::from_secs(5),
        }
    }

    pub(super) fn events(&mut self, mut input: &[u8]) -> Vec<Result<MessageEvent, Violation>> {
        let mut events = Vec::new();
        loop {
            match self
                .receiver
                .receive(&mut input, self.options, &mut self.meter, self.now)
            {
                Ok(Some(event)) => events.push(Ok(event)),
                Ok(None) => return events,
                Err(violation) => events.push(Err(violation)),
            }
        }
    }

    pub(super) fn take(&mut self, input: &[u8]) -> Vec<Seen> {
        let events = self.events(input).into_iter();
        events
            .map(|event| event.map_or_else(Seen::Violation, Seen::from))
            .collect()
    }
}

/// What is seen of bytes in pieces of that size.
pub(super) fn seen(input: &[u8], piece_bytes: usize) -> Vec<Seen> {
    let mut server = Server::new(AMPLE);
    let pieces = input.chunks(piece_bytes.min(input.len()).max(1));
    pieces.flat_map(|piece| server.take(piece)).collect()
}

/// More than the messages of the tests have.
pub(super) const AMPLE: usize = 1 << 24;

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
