//! A client of WebSocket in the simulation: what it asks for, and what came of it.

use serde_json::{Value, json};

use super::client::{Answered, Purpose};
use crate::connection::testing::websocket_client::{
    CLOSE, PING, PONG, ReceivedFrame, TEXT, frame, handshake, take_frame,
};

/// A channel, as its client sees it.
#[derive(Default)]
pub(super) struct ChannelClient {
    /// What was asked for; the number of each message is its place.
    answered: Vec<Answered>,
    /// The subscriptions that are open, by their names, with the places of their messages.
    open: Vec<(String, usize)>,
    received: Vec<u8>,
    is_upgraded: bool,
    is_refused: bool,
    /// The server has sent a close frame.
    is_closed: bool,
}

impl ChannelClient {
    /// A client, and what it sends first.
    pub(super) fn new() -> (Self, Vec<u8>) {
        (
            ChannelClient::default(),
            handshake("/v1/events", "").into_bytes(),
        )
    }

    pub(super) fn answers(&self) -> Vec<Answered> {
        self.answered.clone()
    }

    /// Asks for something. Returns the frames, of which one has a part of the message only if `split` says where.
    pub(super) fn ask(
        &mut self,
        purpose: Purpose,
        target: &str,
        text: &str,
        split: u64,
    ) -> Vec<u8> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let stream = path.strip_prefix("/v1/stream/").unwrap_or("none");
        let id = self.answered.len();
        let message = match &purpose {
            Purpose::Append { .. } => {
                json!({"type": "append", "id": id, "stream": stream, "text": text})
            }
            Purpose::Follow { from_now, .. } => {
                let offset = if *from_now { "now" } else { "-1" };
                json!({"type": "subscribe", "id": id, "stream": stream, "offset": offset})
            }
            Purpose::FollowAll if query.contains("**") => {
                json!({"type": "subscribe", "id": id, "stream": "s/**", "offset": "-1"})
            }
            Purpose::FollowAll => json!({
                "type": "subscribe", "id": id, "streams": ["s/a", "s/b", "s/c"], "offset": "-1"
            }),
            Purpose::Unsubscribe => {
                json!({"type": "unsubscribe", "id": id, "stream": stream})
            }
            _ => json!({"type": "subscribe", "id": id, "stream": "none"}),
        };
        self.answered.push(Answered {
            purpose,
            status: None,
            body: String::new(),
            is_complete: false,
            is_given_up: false,
        });
        let message = message.to_string();
        let at = split as usize % (2 * message.len());
        match message.as_bytes().split_at_checked(at) {
            None => frame(TEXT, message.as_bytes()),
            Some((first, rest)) => {
                [frame(0x01, first), frame(PING, b"?"), frame(0x80, rest)].concat()
            }
        }
    }

    /// Takes what has arrived. Returns what the client has to send for it.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.received.extend_from_slice(bytes);
        let mut reply = Vec::new();
        if !self.is_upgraded {
            let Some(end) = memchr::memmem::find(&self.received, b"\r\n\r\n") else {
                return reply;
            };
            self.is_upgraded = true;
            // A handshake that came too late is refused, and the connection is closed.
            self.is_refused = !self.received.starts_with(b"HTTP/1.1 101 ");
            self.received.drain(..end + 4);
        }
        if self.is_refused {
            return reply;
        }
        while let Some(ReceivedFrame { first, payload }) = take_frame(&mut self.received) {
            assert!(!self.is_closed, "something follows a close frame");
            match first {
                TEXT => self.take(&serde_json::from_slice(&payload).unwrap_or_else(|error| {
                    panic!("{error}: {:?}", String::from_utf8_lossy(&payload))
                })),
                PING => reply.extend(frame(PONG, &payload)),
                PONG => {}
                CLOSE => self.is_closed = true,
                other => panic!("a frame that begins with {other}"),
            }
        }
        reply
    }

    fn take(&mut self, message: &Value) {
        match message["type"].as_str().unwrap() {
            "records" => {
                let name = name_of(message);
                let (_, place) = self.open.iter().find(|(open, _)| *open == name).unwrap();
                let text = message["text"].as_str().unwrap();
                self.answered[*place].body.push_str(text);
            }
            "position" => {
                let name = name_of(message);
                assert!(self.open.iter().any(|(open, _)| *open == name));
            }
            "disconnected" | "gap" | "ended" => {}
            kind => self.answer(kind, message),
        }
    }

    fn answer(&mut self, kind: &str, message: &Value) {
        let place = message["id"].as_u64().unwrap() as usize;
        let before = self.answered[place].status;
        assert_eq!(before, None, "{message} is a second response");
        let status = match kind {
            "subscribed" => {
                self.open.push((name_of(message), place));
                200
            }
            "unsubscribed" => {
                let name = name_of(message);
                let at = self.open.iter().position(|(open, _)| *open == name);
                let (_, followed) = self.open.remove(at.unwrap());
                self.answered[followed].is_given_up = true;
                200
            }
            "appended" => 204,
            "error" => message["status"].as_u64().unwrap() as u16,
            other => panic!("{other}"),
        };
        self.answered[place].status = Some(status);
        self.answered[place].is_complete = true;
    }
}

/// The name of the subscription that a message belongs to.
fn name_of(message: &Value) -> String {
    let name = message["subscription"]
        .as_str()
        .or(message["stream"].as_str());
    name.unwrap().to_owned()
}
