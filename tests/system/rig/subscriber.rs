//! A subscriber by server-sent events.

use std::net::SocketAddr;
use std::time::Instant;

use super::{Connection, request, still_waits};

/// A live subscription.
#[derive(Debug)]
pub(crate) struct Subscriber {
    connection: Connection,
    /// Where the last control event said that the stream goes on.
    pub(crate) next_offset: String,
    /// The cursor of the last control event.
    pub(crate) cursor: Option<u64>,
    /// The last control event said that nothing more will come.
    pub(crate) closed: bool,
    /// Everything before was delivered, as the last control event has it.
    pub(crate) up_to_date: bool,
    /// The id of the last event that has one.
    pub(crate) last_id: String,
    /// The last comment that came.
    pub(crate) comment: String,
    /// The end may come within an event, because we gave the server a reason.
    pub(crate) may_be_cut: bool,
    ready: std::collections::VecDeque<serde_json::Value>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    name: String,
    id: Option<String>,
    data: String,
}

impl Subscriber {
    /// Asks for a stream from an offset on. The answer is there when this returns.
    pub(crate) fn open(address: SocketAddr, path: &str, offset: &str) -> Subscriber {
        let mut subscriber = Subscriber::ask(address, path, &format!("offset={offset}"));
        subscriber.accepted();
        subscriber
    }

    /// Asks, and waits for nothing.
    pub(crate) fn ask(address: SocketAddr, path: &str, query: &str) -> Subscriber {
        Subscriber::over(Connection::open(address), path, query)
    }

    /// The same on a connection that is there.
    pub(crate) fn over(mut connection: Connection, path: &str, query: &str) -> Subscriber {
        let target = format!("{path}?{query}&live=sse");
        connection.send(&request("GET", &target, &[], b""));
        Subscriber {
            connection,
            next_offset: String::new(),
            last_id: String::new(),
            cursor: None,
            closed: false,
            up_to_date: false,
            may_be_cut: false,
            comment: String::new(),
            ready: std::collections::VecDeque::new(),
        }
    }

    /// Reads the answer that opens the subscription.
    pub(crate) fn accepted(&mut self) {
        let head = self.connection.head();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.field("Content-Type"), Some("text/event-stream"));
    }

    /// The next event that is not a comment; nothing when the server has hung up, which it may do
    /// only between two events.
    fn event(&mut self) -> Option<Event> {
        let begin = Instant::now();
        loop {
            still_waits(begin);
            let Some(block) = self.connection.event() else {
                let cut = self.connection.input();
                assert!(
                    cut.is_empty() || self.may_be_cut,
                    "the connection ended within an event: {:?}",
                    String::from_utf8_lossy(cut)
                );
                return None;
            };
            if let Some(event) = parse(&block) {
                return Some(event);
            }
            block.trim_end().clone_into(&mut self.comment);
        }
    }

    /// The next JSON message; nothing when the server has hung up.
    pub(crate) fn message(&mut self) -> Option<serde_json::Value> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if !self.step() {
                return None;
            }
        }
    }

    /// The next `count` messages, which are numbers.
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<u64> {
        (0..count)
            .map(|at| {
                let message = self.message();
                message
                    .and_then(|message| message.as_u64())
                    .unwrap_or_else(|| panic!("number {at} of {count} did not come"))
            })
            .collect()
    }

    /// All numbers until the server hangs up.
    pub(crate) fn rest(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.message())
            .map(|message| message.as_u64().expect("a number"))
            .collect()
    }

    /// Reads events until a control event says that everything was delivered.
    pub(crate) fn catch_up(&mut self) {
        self.up_to_date = false;
        while !self.up_to_date {
            assert!(self.step(), "the server hung up");
        }
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub(crate) fn into_connection(self) -> Connection {
        self.connection
    }

    /// Takes one event in. False when the server has hung up.
    fn step(&mut self) -> bool {
        let Some(event) = self.event() else {
            return false;
        };
        let value: serde_json::Value = serde_json::from_str(&event.data)
            .unwrap_or_else(|error| panic!("{error} in {event:?}"));
        if let Some(id) = event.id {
            self.last_id = id;
        }
        match (&*event.name, value) {
            ("data", serde_json::Value::Array(messages)) => self.ready.extend(messages),
            ("control", control) => {
                control["streamNextOffset"]
                    .as_str()
                    .expect("a control event says where the stream goes on")
                    .clone_into(&mut self.next_offset);
                // The event of the end has an id of its own.
                let mark = if control["streamClosed"] == true {
                    ";end"
                } else {
                    ""
                };
                let position = format!("{}{mark}", self.next_offset);
                assert_eq!(self.last_id, position, "the id is the same position");
                self.cursor = control["streamCursor"]
                    .as_str()
                    .map(|cursor| cursor.parse().expect("our cursors are numbers"));
                self.closed = control["streamClosed"] == true;
                self.up_to_date = control["upToDate"] == true;
            }
            (name, value) => panic!("unexpected event {name}: {value}"),
        }
        true
    }
}

/// An event's text as its name and data; nothing for a comment.
fn parse(block: &str) -> Option<Event> {
    let (mut name, mut id) = (None, None);
    let mut data = Vec::new();
    for line in block.lines().filter(|line| !line.is_empty()) {
        let (field, value) = line
            .split_once(':')
            .unwrap_or_else(|| panic!("no field: {line:?}"));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => {}
            "retry" => assert!(value.parse::<u32>().is_ok(), "{block:?}"),
            "event" => assert_eq!(name.replace(value.to_owned()), None, "{block:?}"),
            "data" => data.push(value),
            "id" => assert_eq!(id.replace(value.to_owned()), None, "{block:?}"),
            _ => panic!("unexpected field: {line:?}"),
        }
    }
    name.map(|name| Event {
        name,
        id,
        data: data.join("\n"),
    })
}
