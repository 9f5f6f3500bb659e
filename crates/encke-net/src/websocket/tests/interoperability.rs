//! What a client of tungstenite sends is received here, and the other way round.

use std::io::{self, Read, Write};

use proptest::prelude::*;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

use super::client::{Seen, Server};
use crate::websocket::close::{encode_close, encode_empty_close};
use crate::websocket::close_code::CloseCode;
use crate::websocket::frame::{ControlPayload, DataKind, encode_message, encode_ping, encode_pong};

/// Bytes to read, and what was written.
#[derive(Debug, Default)]
struct Pipe {
    unread: io::Cursor<Vec<u8>>,
    written: Vec<u8>,
}

impl Read for Pipe {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.unread.read(out)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn endpoint(role: Role, unread: Vec<u8>) -> WebSocket<Pipe> {
    let pipe = Pipe {
        unread: io::Cursor::new(unread),
        written: Vec::new(),
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(1 << 10)
        .write_buffer_size(0);
    WebSocket::from_raw_socket(pipe, role, Some(config))
}

/// All that an endpoint of tungstenite reads.
fn read_all(endpoint: &mut WebSocket<Pipe>) -> Vec<Seen> {
    let mut all = Vec::new();
    while let Ok(message) = endpoint.read() {
        all.push(match message {
            Message::Text(text) => Seen::Text(text.as_str().to_owned()),
            Message::Binary(bytes) => Seen::Binary(bytes.to_vec()),
            Message::Ping(payload) => Seen::Ping(payload.to_vec()),
            Message::Pong(payload) => Seen::Pong(payload.to_vec()),
            Message::Close(close) => Seen::Close(
                close.map(|close| (close.code.into(), close.reason.as_str().to_owned())),
            ),
            Message::Frame(frame) => unreachable!("never read: {frame}"),
        });
    }
    all
}

fn payloads() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..140),
        1 => (any::<u8>(), 0..70_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![4 => ".{0,50}", 1 => (".", 0..10_000_usize).prop_map(|(part, times)| part.repeat(times))]
}

/// What one side sends, without the end.
fn sent() -> impl Strategy<Value = Vec<Seen>> {
    let control = || prop::collection::vec(any::<u8>(), 0..=125);
    let one = prop_oneof![
        3 => texts().prop_map(Seen::Text),
        3 => payloads().prop_map(Seen::Binary),
        1 => control().prop_map(Seen::Ping),
        1 => control().prop_map(Seen::Pong),
    ];
    prop::collection::vec(one, 0..8)
}

fn ends() -> impl Strategy<Value = Option<Seen>> {
    let codes = prop_oneof![Just(1000_u16), Just(1001), 3000..5000_u16];
    let said = (codes, "[a-zä]{0,40}").prop_map(|(code, reason)| Some((code, reason)));
    prop::option::of(prop_oneof![said, Just(None)].prop_map(Seen::Close))
}

/// Sends through a client of tungstenite; data in fragments of at most that length.
fn send(client: &mut WebSocket<Pipe>, seen: &Seen, fragment_bytes: usize) {
    let mut fragments = |kind: Data, bytes: &[u8]| {
        let mut parts = bytes.chunks(fragment_bytes.max(1)).peekable();
        let mut kind = OpCode::Data(kind);
        loop {
            let part = parts.next().unwrap_or(&[]).to_vec();
            let is_last = parts.peek().is_none();
            client
                .send(Message::Frame(Frame::message(part, kind, is_last)))
                .unwrap();
            kind = OpCode::Data(Data::Continue);
            if is_last {
                break;
            }
        }
    };
    match seen.clone() {
        Seen::Text(text) => fragments(Data::Text, text.as_bytes()),
        Seen::Binary(bytes) => fragments(Data::Binary, &bytes),
        Seen::Ping(payload) => client.send(Message::Ping(payload.into())).unwrap(),
        Seen::Pong(payload) => client.send(Message::Frame(Frame::pong(payload))).unwrap(),
        Seen::Close(close) => client
            .close(close.map(|(code, reason)| CloseFrame {
                code: code.into(),
                reason: reason.into(),
            }))
            .unwrap(),
        other => panic!("never sent: {other:?}"),
    }
}

proptest! {
    /// Pieces of any sizes, fragments of any length from 64 bytes on.
    #[test]
    fn what_a_client_sends_is_received_alike(
        messages in sent(),
        end in ends(),
        fragment_bytes in 64..100_000_usize,
        pieces in prop::collection::vec(1..5_000_usize, 1..5),
    ) {
        let sent: Vec<Seen> = messages.into_iter().chain(end).collect();
        let mut client = endpoint(Role::Client, Vec::new());
        for seen in &sent {
            send(&mut client, seen, fragment_bytes);
        }
        let bytes = std::mem::take(&mut client.get_mut().written);
        let mut server = Server::new(1 << 20);
        let mut received = Vec::new();
        let mut rest = &bytes[..];
        for piece_bytes in pieces.into_iter().cycle() {
            let (piece, behind) = rest.split_at(piece_bytes.min(rest.len()));
            received.extend(server.take(piece));
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(server.receiver.bytes(), 0);
        prop_assert_eq!(&received, &read_all(&mut endpoint(Role::Server, bytes)));
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn what_the_server_sends_is_read_by_a_client(messages in sent(), end in ends()) {
        let sent: Vec<Seen> = messages.into_iter().chain(end).collect();
        let mut out = Vec::new();
        let control = |payload: &[u8]| ControlPayload::new(payload.to_vec()).expect("short enough");
        for seen in &sent {
            match seen {
                Seen::Text(text) => encode_message(DataKind::Text, false, text.as_bytes(), &mut out),
                Seen::Binary(bytes) => encode_message(DataKind::Binary, false, bytes, &mut out),
                Seen::Ping(payload) => encode_ping(&control(payload), &mut out),
                Seen::Pong(payload) => encode_pong(&control(payload), &mut out),
                Seen::Close(Some((code, reason))) => {
                    encode_close(CloseCode::new(*code).expect("it may be sent"), reason, &mut out);
                }
                Seen::Close(None) => encode_empty_close(&mut out),
                other => panic!("never sent: {other:?}"),
            }
        }
        prop_assert_eq!(read_all(&mut endpoint(Role::Client, out)), sent);
    }
}
