//! A small Durable Streams server for tests, which can lose, double and swap messages, cut connections and refuse requests. It
//! knows one producer of each stream.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test program uses a part")]

mod http;

use http::{METRICS, Request, answer, read_request};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How the server behaves; by default as it should.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// SSE bodies are chunked; else they end with the connection.
    pub(crate) chunked: bool,
    /// Event streams are closed after this number of events.
    pub(crate) close_after: Option<usize>,
    /// Event streams are cut without the last control event, after this number of events.
    pub(crate) cut_after: Option<usize>,
    /// Every nth append is refused with 503.
    pub(crate) refuse_every: Option<u64>,
    /// Every nth append is stored, but its connection is closed without a response.
    pub(crate) lose_answer_every: Option<u64>,
    /// A client that closes its side goes unnoticed until the next write fails.
    pub(crate) deaf: bool,
    /// Events have ids, and a client continues behind the one that it names.
    pub(crate) ids: bool,
    /// The metrics show a segment that waits, in so many responses. `None`: there are no metrics.
    pub(crate) segments_waiting: Option<u64>,
    /// Messages (stream or `*`, position) that readers don't get.
    pub(crate) lost: Vec<(&'static str, usize)>,
    /// Messages that readers get twice.
    pub(crate) doubled: Vec<(&'static str, usize)>,
    /// Messages that readers get after the one that follows them.
    pub(crate) swapped: Vec<(&'static str, usize)>,
}

/// A running server. Its threads end with the test's process.
pub(crate) struct Server {
    /// Where its streams are.
    pub(crate) url: String,
    state: Arc<State>,
}

struct State {
    behaviour: Behaviour,
    streams: Mutex<HashMap<String, Stream>>,
    news: Condvar,
    appends: Mutex<u64>,
    /// How often metrics were asked for.
    scrapes: Mutex<u64>,
}

#[derive(Default)]
struct Stream {
    content_type: String,
    messages: Vec<Vec<u8>>,
    closed: bool,
    /// The number of the next append of its producer.
    sequence: u64,
}

impl Server {
    /// Starts a server.
    pub(crate) fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/stream", listener.local_addr().unwrap());
        let state = Arc::new(State {
            behaviour,
            streams: Mutex::default(),
            news: Condvar::new(),
            appends: Mutex::new(0),
            scrapes: Mutex::new(0),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // An error means that the client has gone, or that it was cut off on purpose.
                std::thread::spawn(move || state.serve(socket).ok());
            }
        });
        Self { url, state }
    }

    /// How many messages all streams hold.
    pub(crate) fn stored(&self) -> usize {
        let streams = self.state.streams.lock().unwrap();
        streams.values().map(|stream| stream.messages.len()).sum()
    }

    /// How often metrics were asked for.
    pub(crate) fn scrapes(&self) -> u64 {
        *self.state.scrapes.lock().unwrap()
    }

    /// Forgets the last message of a stream, as a server does that acknowledged too early.
    pub(crate) fn forget_last(&self, name: &str) {
        self.state
            .streams
            .lock()
            .unwrap()
            .get_mut(name)
            .unwrap()
            .messages
            .pop()
            .unwrap();
    }

    /// Forgets a stream altogether.
    pub(crate) fn forget(&self, name: &str) {
        self.state.streams.lock().unwrap().remove(name).unwrap();
    }
}

impl State {
    fn serve(&self, mut socket: TcpStream) -> std::io::Result<()> {
        socket.set_nodelay(true)?;
        let mut bytes = Vec::new();
        while let Some(request) = read_request(&mut socket, &mut bytes)? {
            match request.method.as_str() {
                "PUT" => self.create(&request, &mut socket)?,
                "POST" => self.append(&request, &mut socket)?,
                _ if request.name == METRICS => self.metrics(&mut socket)?,
                _ => match request.query.get("live").map(String::as_str) {
                    Some("sse") => return self.events(&request, socket),
                    _ => self.read(&request, &mut socket)?,
                },
            }
        }
        Ok(())
    }

    fn create(&self, request: &Request, socket: &mut TcpStream) -> std::io::Result<()> {
        let content_type = request.headers["content-type"].clone();
        let mut streams = self.streams.lock().unwrap();
        let stream = streams
            .entry(request.name.clone())
            .or_insert_with(|| Stream {
                content_type: content_type.clone(),
                ..Stream::default()
            });
        let status = if stream.content_type == content_type {
            "201 Created"
        } else {
            "409 Conflict"
        };
        answer(socket, status, "", b"")
    }

    fn append(&self, request: &Request, socket: &mut TcpStream) -> std::io::Result<()> {
        let number = {
            let mut appends = self.appends.lock().unwrap();
            *appends += 1;
            *appends
        };
        let due = |every: Option<u64>| every.is_some_and(|every| number % every == 0);
        if due(self.behaviour.refuse_every) {
            return answer(
                socket,
                "503 Service Unavailable",
                "Retry-After: 1\r\n",
                b"full",
            );
        }
        {
            let mut streams = self.streams.lock().unwrap();
            let Some(stream) = streams.get_mut(&request.name) else {
                return answer(socket, "404 Not Found", "", b"");
            };
            stream.take(request);
        }
        self.news.notify_all();
        if due(self.behaviour.lose_answer_every) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        answer(socket, "204 No Content", "", b"")
    }

    fn metrics(&self, socket: &mut TcpStream) -> std::io::Result<()> {
        let mut scrapes = self.scrapes.lock().unwrap();
        *scrapes += 1;
        let Some(waiting) = self.behaviour.segments_waiting else {
            return answer(socket, "404 Not Found", "", b"");
        };
        let left = (waiting + 1).saturating_sub(*scrapes);
        let text = format!("encke_log_segments_waiting{{log=\"0\"}} {left}\n");
        answer(socket, "200 OK", "", text.as_bytes())
    }

    /// What a reader at `cursor` gets next: which messages, and where the reader is then.
    fn step(&self, name: &str, cursor: usize, tail: usize) -> Option<(Vec<usize>, usize)> {
        let is = |list: &[(&str, usize)]| {
            list.iter()
                .any(|&(n, at)| (n == "*" || n == name) && at == cursor)
        };
        if cursor >= tail {
            return None;
        }
        if is(&self.behaviour.swapped) {
            return (cursor + 1 < tail).then(|| (vec![cursor + 1, cursor], cursor + 2));
        }
        let copies = match (is(&self.behaviour.lost), is(&self.behaviour.doubled)) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        Some((vec![cursor; copies], cursor + 1))
    }

    /// The stream's type, and what a reader at `cursor` gets of it, of at most `steps_max` steps.
    fn collect(
        &self,
        name: &str,
        cursor: &mut usize,
        steps_max: usize,
    ) -> Option<(String, Vec<Vec<u8>>, usize)> {
        let streams = self.streams.lock().unwrap();
        let stream = streams.get(name)?;
        let tail = stream.messages.len();
        let mut messages = Vec::new();
        for _ in 0..steps_max {
            let Some((which, next)) = self.step(name, *cursor, tail) else {
                break;
            };
            messages.extend(
                which
                    .into_iter()
                    .map(|index| stream.messages[index].clone()),
            );
            *cursor = next;
        }
        Some((stream.content_type.clone(), messages, tail))
    }

    fn cursor(&self, request: &Request) -> Option<usize> {
        let tail = self
            .streams
            .lock()
            .unwrap()
            .get(&request.name)?
            .messages
            .len();
        let id = request.headers.get("last-event-id");
        let id = id.filter(|_| self.behaviour.ids);
        match id.unwrap_or(&request.query["offset"]).as_str() {
            "now" => Some(tail),
            "-1" => Some(0),
            offset => offset.parse().ok(),
        }
    }

    fn read(&self, request: &Request, socket: &mut TcpStream) -> std::io::Result<()> {
        let Some(mut cursor) = self.cursor(request) else {
            return answer(socket, "404 Not Found", "", b"");
        };
        // Pages of a few messages, so that readers have to go on.
        let Some((content_type, messages, tail)) = self.collect(&request.name, &mut cursor, 7)
        else {
            return answer(socket, "404 Not Found", "", b"");
        };
        let mut headers = format!("Stream-Next-Offset: {cursor:08}\r\n");
        if cursor >= tail {
            headers += "Stream-Up-To-Date: true\r\n";
        }
        answer(socket, "200 OK", &headers, &join(&content_type, &messages))
    }

    fn events(&self, request: &Request, mut socket: TcpStream) -> std::io::Result<()> {
        let Some(mut cursor) = self.cursor(request) else {
            return answer(&mut socket, "404 Not Found", "", b"");
        };
        let content_type = self.streams.lock().unwrap()[&request.name]
            .content_type
            .clone();
        let mut head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
                .to_owned();
        if self.behaviour.chunked {
            head += "Transfer-Encoding: chunked\r\n";
        }
        head += "\r\n";
        socket.write_all(head.as_bytes())?;
        self.piece(&mut socket, &control(cursor))?;
        let mut events = 0;
        loop {
            let before = cursor;
            let closed = self.streams.lock().unwrap()[&request.name].closed;
            let Some((_, messages, _)) = self.collect(&request.name, &mut cursor, 2) else {
                break;
            };
            self.notice(&socket)?;
            if cursor == before && closed {
                let end = control(cursor).replace("true}", "true,\"streamClosed\":true}");
                self.piece(&mut socket, &end)?;
                break;
            }
            if cursor == before {
                self.wait();
                continue;
            }
            let mut text = String::new();
            if !messages.is_empty() {
                if self.behaviour.ids {
                    text += &format!("id: {cursor:08}\n");
                }
                text += &data(&join(&content_type, &messages));
            }
            events += 1;
            if self.behaviour.cut_after == Some(events) {
                return self.piece(&mut socket, &text);
            }
            self.piece(&mut socket, &(text + &control(cursor)))?;
            if self.behaviour.close_after == Some(events) {
                break;
            }
        }
        if self.behaviour.chunked {
            socket.write_all(b"0\r\n\r\n")?;
        }
        Ok(())
    }

    fn piece(&self, socket: &mut TcpStream, text: &str) -> std::io::Result<()> {
        if self.behaviour.chunked {
            socket.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
        } else {
            socket.write_all(text.as_bytes())
        }
    }

    /// An error if the client has closed its side.
    fn notice(&self, socket: &TcpStream) -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        let ended = matches!(socket.peek(&mut [0]), Ok(0));
        socket.set_nonblocking(false)?;
        if ended && !self.behaviour.deaf {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn wait(&self) {
        let streams = self.streams.lock().unwrap();
        drop(
            self.news
                .wait_timeout(streams, Duration::from_millis(20))
                .unwrap(),
        );
    }
}

impl Stream {
    fn take(&mut self, request: &Request) {
        if let Some(sequence) = request.headers.get("producer-seq") {
            let sequence: u64 = sequence.parse().unwrap();
            if sequence < self.sequence {
                return;
            }
            assert_eq!(sequence, self.sequence, "a gap");
            self.sequence += 1;
        }
        self.closed |= request.headers.contains_key("stream-closed");
        let mut body = &request.body[..];
        if self.content_type == "application/json" {
            // Of an array each element is a message; for readers it is all the same.
            let inner = body.strip_prefix(b"[").and_then(|b| b.strip_suffix(b"]"));
            body = inner.unwrap_or(body);
        }
        if !body.is_empty() {
            self.messages.push(body.to_vec());
        }
    }
}

fn control(cursor: usize) -> String {
    format!(
        "event: control\ndata: {{\"streamNextOffset\":\"{cursor:08}\",\"streamCursor\":\"5\",\"upToDate\":true}}\n\n"
    )
}

fn data(body: &[u8]) -> String {
    let text = String::from_utf8(body.to_vec()).unwrap();
    let mut event = "event: data\n".to_owned();
    for line in text.split('\n') {
        writeln!(event, "data: {line}").unwrap();
    }
    event + "\n"
}

fn join(content_type: &str, messages: &[Vec<u8>]) -> Vec<u8> {
    match content_type {
        "application/json" => [b"[", &messages.join(&b","[..])[..], b"]"].concat(),
        _ => messages.concat(),
    }
}
