//! A small Durable Streams server for tests, which can lose, double and swap messages, cut connections and refuse requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
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
    /// Messages (stream, position) that readers don't get.
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
}

#[derive(Default)]
struct Stream {
    content_type: String,
    messages: Vec<Vec<u8>>,
}

struct Request {
    method: String,
    name: String,
    query: HashMap<String, String>,
    headers: HashMap<String, String>,
    body: Vec<u8>,
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
            stream.messages.push(request.body.clone());
        }
        self.news.notify_all();
        if due(self.behaviour.lose_answer_every) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        answer(socket, "204 No Content", "", b"")
    }

    /// What a reader at `cursor` gets next: which messages, and where the reader is then.
    fn step(&self, name: &str, cursor: usize, tail: usize) -> Option<(Vec<usize>, usize)> {
        let is = |list: &[(&str, usize)]| list.iter().any(|&(n, at)| n == name && at == cursor);
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
        match request.query["offset"].as_str() {
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
            let Some((_, messages, _)) = self.collect(&request.name, &mut cursor, 2) else {
                break;
            };
            self.notice(&socket)?;
            if cursor == before {
                self.wait();
                continue;
            }
            let mut text = String::new();
            if !messages.is_empty() {
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

fn answer(socket: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let length = match status.starts_with("204") {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    let head = format!("HTTP/1.1 {status}\r\n{headers}{length}\r\n");
    socket.write_all(&[head.as_bytes(), body].concat())
}

fn read_request(socket: &mut TcpStream, bytes: &mut Vec<u8>) -> std::io::Result<Option<Request>> {
    loop {
        if let Some((request, taken)) = parse(bytes) {
            bytes.drain(..taken);
            return Ok(Some(request));
        }
        let mut buffer = [0; 16 * 1024];
        let length = socket.read(&mut buffer)?;
        if length == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&buffer[..length]);
    }
}

fn parse(bytes: &[u8]) -> Option<(Request, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ');
    let (method, path) = (first.next().unwrap(), first.next().unwrap());
    assert_eq!(first.next(), Some("HTTP/1.1"));
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    assert!(
        headers.contains_key("host"),
        "HTTP/1.1 wants a host: {head}"
    );
    let length = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let body = bytes.get(end..end + length)?.to_vec();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let request = Request {
        method: method.to_owned(),
        name: path.strip_prefix("/v1/stream/").unwrap().to_owned(),
        query: query
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        headers,
        body,
    };
    Some((request, end + length))
}
