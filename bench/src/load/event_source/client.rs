//! One client of an event stream: what it has received, and where it continues. It knows no socket.

use super::audience::Audience;
use crate::load::wire::control::Control;
use crate::load::wire::http::{Framing, parse_head};
use crate::load::wire::sse::{Event, EventData, Splitter};
use std::mem::take;

/// A client.
#[derive(Debug, Default)]
pub(super) struct Client {
    stage: Stage,
    /// Where it continues: the id of the last event that had one, or the offset of the last control event if none had.
    position: Option<Box<[u8]>>,
    has_ids: bool,
    /// A record has arrived behind the position.
    is_ahead: bool,
    /// An event has arrived on this connection.
    pub(super) is_subscribed: bool,
    /// Since when it has been connecting, in nanoseconds of the monotonic clock.
    pub(super) since_ns: u64,
    /// The server's place in the plan.
    pub(super) server: u16,
    /// How often in a row it could not subscribe.
    pub(super) tries: u8,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    Connecting,
    /// The head of a response, of which so much has arrived.
    Head(Vec<u8>),
    Events(Framing, Splitter),
}

/// How a connection goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// More will come.
    Wait,
    /// It has ended, for this reason: the client returns.
    Return(String),
    /// The client closes it, and returns later.
    HangUp,
    /// The stream is closed, and the client has all of it.
    Over,
}

impl Client {
    /// A connection is being made.
    pub(super) fn connecting(&mut self, now_ns: u64) {
        self.stage = Stage::Connecting;
        self.since_ns = now_ns;
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.stage, Stage::Connecting)
    }

    /// Its connection has gone, and what was half-read is forgotten. Returns whether it was subscribed.
    pub(super) fn disconnected(&mut self) -> bool {
        self.stage = Stage::Idle;
        take(&mut self.is_subscribed)
    }

    /// Appends the request that it makes on a new connection.
    pub(super) fn ask(&mut self, number: u32, audience: &impl Audience, out: &mut Vec<u8>) {
        let (id, offset) = match &self.position {
            Some(id) if self.has_ids => (Some(id), None),
            offset => (None, offset.as_deref()),
        };
        out.extend_from_slice(b"GET ");
        audience.target(number, offset, out);
        out.extend_from_slice(b" HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n");
        if let Some(id) = id {
            out.extend_from_slice(b"Last-Event-ID: ");
            out.extend_from_slice(id);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        self.stage = Stage::Head(Vec::new());
        self.is_ahead = false;
    }

    /// Takes the next bytes of the connection.
    pub(super) fn receive(
        &mut self,
        number: u32,
        bytes: &[u8],
        now_ns: u64,
        audience: &mut impl Audience,
    ) -> Result<Step, String> {
        let joined;
        let mut bytes = bytes;
        if let Stage::Head(held) = &mut self.stage {
            if !held.is_empty() {
                held.extend_from_slice(bytes);
                joined = take(held);
                bytes = &joined;
            }
            let head = parse_head(bytes).map_err(|error| error.to_string())?;
            let Some((head, taken)) = head else {
                self.stage = Stage::Head(bytes.to_vec());
                return Ok(Step::Wait);
            };
            match head.status {
                200 => {}
                // The answer to a client that has all of a closed stream.
                204 if self.position.is_some() => return Ok(Step::Over),
                status => return Err(format!("status {status}")),
            }
            self.stage = Stage::Events(head.framing, Splitter::default());
            bytes = &bytes[taken..];
        }
        // Taken out for the time being, because events change the rest of the client.
        let (mut framing, mut splitter) = match take(&mut self.stage) {
            Stage::Events(framing, splitter) => (framing, splitter),
            other => {
                self.stage = other;
                return Ok(Step::Wait);
            }
        };
        let mut step = Step::Wait;
        while let Some(piece) = framing.next_piece(&mut bytes).map_err(|e| e.to_string())? {
            let fed = splitter.feed(piece, |event| {
                // What is behind a hang-up has not arrived.
                if step != Step::HangUp {
                    step = self.event(number, &event, now_ns, audience);
                }
                Ok(())
            });
            fed.map_err(|error| error.to_string())?;
        }
        if step == Step::Wait && framing.is_done() {
            step = Step::Return(CLOSED.to_owned());
        }
        self.stage = Stage::Events(framing, splitter);
        Ok(step)
    }

    /// Takes one event.
    fn event(
        &mut self,
        number: u32,
        event: &Event<'_>,
        now_ns: u64,
        audience: &mut impl Audience,
    ) -> Step {
        let control = match (event.kind, event.data) {
            (b"control", EventData::Line(line)) => Control::parse(line),
            _ => None,
        };
        match (event.id, &control) {
            (Some(id), _) => self.reach(id, true),
            (None, Some(control)) if !self.has_ids => self.reach(control.offset.as_bytes(), false),
            _ => {}
        }
        let has_data = !matches!(event.data, EventData::None);
        let is_record = has_data && matches!(event.kind, b"message" | b"data");
        let is_first = is_record || event.id.is_some() || control.is_some();
        if is_first && !std::mem::replace(&mut self.is_subscribed, true) {
            audience.subscribed(number, now_ns.saturating_sub(self.since_ns), now_ns);
        }
        if is_record {
            self.is_ahead = event.id.is_none();
            audience.record(number, event.data, now_ns);
        }
        if control.is_some_and(|control| control.closed) {
            Step::Over
        } else if !self.is_ahead && audience.hangs_up(number) {
            Step::HangUp
        } else {
            Step::Wait
        }
    }

    fn reach(&mut self, position: &[u8], is_id: bool) {
        self.is_ahead = false;
        self.has_ids = is_id;
        match &mut self.position {
            Some(last) if last.len() == position.len() => last.copy_from_slice(position),
            last => *last = Some(position.into()),
        }
    }
}

/// The reason of a loss to the server's end of the connection.
pub(super) const CLOSED: &str = "closed by the server";

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what its only client receives.
    #[derive(Default)]
    struct Notes {
        subscribed: u32,
        records: Vec<String>,
        /// The record behind which it hangs up.
        last: &'static str,
    }

    impl Audience for Notes {
        fn target(&self, _client: u32, offset: Option<&[u8]>, out: &mut Vec<u8>) {
            out.extend_from_slice(b"/s?offset=");
            out.extend_from_slice(offset.unwrap_or(b"-1"));
        }

        fn subscribed(&mut self, _client: u32, _took_ns: u64, _now_ns: u64) {
            self.subscribed += 1;
        }

        fn record(&mut self, _client: u32, data: EventData<'_>, _now_ns: u64) {
            let EventData::Line(line) = data else {
                panic!("one line was sent")
            };
            self.records.push(String::from_utf8(line.to_vec()).unwrap());
        }

        fn hangs_up(&mut self, _client: u32) -> bool {
            self.records.last().is_some_and(|last| last == self.last)
        }
    }

    const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";

    fn request(client: &mut Client, notes: &Notes) -> String {
        let mut out = Vec::new();
        client.ask(0, notes, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn receive(client: &mut Client, notes: &mut Notes, text: &str) -> Step {
        client.receive(0, text.as_bytes(), 1, notes).unwrap()
    }

    #[test]
    fn a_position_is_an_id_or_else_an_offset() {
        let control = |offset: u32, more: &str| {
            format!("event: control\ndata:{{\"streamNextOffset\":\"{offset}\"{more}}}\n\n")
        };
        let (mut client, mut notes) = (Client::default(), Notes::default());
        let first = request(&mut client, &notes);
        assert!(
            first.starts_with("GET /s?offset=-1 HTTP/1.1\r\n"),
            "{first}"
        );
        let text = format!("{HEAD}{}event: data\ndata: a\n\n", control(7, ""));
        assert_eq!(receive(&mut client, &mut notes, &text), Step::Wait);
        assert!(client.is_subscribed);
        receive(&mut client, &mut notes, &control(8, ""));
        assert!(client.disconnected());
        let second = request(&mut client, &notes);
        assert!(second.starts_with("GET /s?offset=8 "), "{second}");
        assert!(!second.contains("Last-Event-ID"), "{second}");
        let text = format!("{HEAD}id: i9\nevent: data\ndata: b\n\n{}", control(9, ""));
        receive(&mut client, &mut notes, &text);
        assert!(client.disconnected());
        let third = request(&mut client, &notes);
        assert!(third.starts_with("GET /s?offset=-1 "), "{third}");
        assert!(third.contains("\r\nLast-Event-ID: i9\r\n"), "{third}");
        let text = format!("{HEAD}{}", control(9, ",\"streamClosed\":true"));
        assert_eq!(receive(&mut client, &mut notes, &text), Step::Over);
        assert_eq!((notes.subscribed, notes.records.join("")), (3, "ab".into()));
    }

    #[test]
    fn only_a_client_that_has_a_position_is_over_without_events() {
        let none = "HTTP/1.1 204 No Content\r\n\r\n";
        let (mut client, mut notes) = (Client::default(), Notes::default());
        request(&mut client, &notes);
        let refused = client.receive(0, none.as_bytes(), 1, &mut notes);
        assert_eq!(refused, Err("status 204".into()));
        client.reach(b"1", true);
        request(&mut client, &notes);
        assert_eq!(receive(&mut client, &mut notes, none), Step::Over);
    }

    #[test]
    fn a_client_hangs_up_where_it_will_get_no_record_twice() {
        let data = |text: &str| format!("event: data\ndata: {text}\n\n");
        let control = "event: control\ndata:{\"streamNextOffset\":\"1\"}\n\n";
        let last = "b";
        let notes = || Notes {
            last,
            ..Notes::default()
        };
        // With ids at once, and what is behind the event is lost.
        let (mut client, mut with_ids) = (Client::default(), notes());
        request(&mut client, &with_ids);
        let text = format!(
            "{HEAD}id: 1\n{}id: 2\n{}id: 3\n{}",
            data("a"),
            data("b"),
            data("c")
        );
        assert_eq!(receive(&mut client, &mut with_ids, &text), Step::HangUp);
        assert_eq!(with_ids.records.join(""), "ab");
        assert!(client.disconnected());
        let next = request(&mut client, &with_ids);
        assert!(next.contains("\r\nLast-Event-ID: 2\r\n"), "{next}");
        // Without ids behind the control event.
        let (mut client, mut without) = (Client::default(), notes());
        request(&mut client, &without);
        let text = format!("{HEAD}{}", data("b"));
        assert_eq!(receive(&mut client, &mut without, &text), Step::Wait);
        assert_eq!(receive(&mut client, &mut without, control), Step::HangUp);
    }
}
