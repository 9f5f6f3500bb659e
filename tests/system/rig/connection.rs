//! A client's connection, in raw bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::{Chunks, JSON, PATIENCE, path};

/// A connection and what was read of it and not used yet.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    input: Vec<u8>,
    /// The chunks of a stream of events that are not complete yet, while one is read.
    chunks: Option<Chunks>,
    /// A stream of events came to its end, and was not cut.
    pub(crate) ended: bool,
}

/// A response, read strictly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// A request with its length, as most clients would send it.
pub(crate) fn request(method: &str, target: &str, fields: &[&str], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: encke.localhost\r\n");
    for field in fields {
        bytes.push_str(field);
        bytes.push_str("\r\n");
    }
    if !body.is_empty() {
        bytes.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    bytes.push_str("\r\n");
    [bytes.as_bytes(), body].concat()
}

impl Response {
    /// What the response depends on, by all fields `Vary`.
    pub(crate) fn vary(&self) -> String {
        let vary = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("Vary").then(|| value.clone())
        };
        let fields: Vec<String> = self.fields.iter().filter_map(vary).collect();
        fields.join(", ")
    }

    /// The value of a field; the test fails if it is there twice.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut values = self
            .fields
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} is there twice");
        value
    }

    /// Whether the server says that it closes the connection.
    pub(crate) fn closes(&self) -> bool {
        self.field("Connection") == Some("close")
    }

    /// The code of an error's JSON body.
    pub(crate) fn error_code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("an error's body is JSON, {error}: {self:?}"));
        body["error"]["code"]
            .as_str()
            .unwrap_or_else(|| panic!("an error has a code: {self:?}"))
            .to_owned()
    }
}

/// Connects from 127.0.0.`client`.
pub(crate) fn connect_from(client: u8, address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from(([127, 0, 0, client], 0))).expect("a loopback address");
    connect(&socket, &address).expect("the server listens");
    TcpStream::from(socket)
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Connection {
        Connection::try_open(address).expect("the server listens")
    }

    /// To a server that may not listen.
    pub(crate) fn try_open(address: SocketAddr) -> std::io::Result<Connection> {
        TcpStream::connect(address).map(Connection::over)
    }

    /// One whose system takes little ahead of what is read.
    pub(crate) fn open_narrow(address: SocketAddr) -> Connection {
        use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_recv_buffer_size(&socket, 16 << 10).expect("a size");
        connect(&socket, &address).expect("the server listens");
        Connection::over(TcpStream::from(socket))
    }

    /// From 127.0.0.`client`.
    pub(crate) fn open_from(client: u8, address: SocketAddr) -> Connection {
        Connection::over(connect_from(client, address))
    }

    pub(crate) fn over(socket: TcpStream) -> Connection {
        socket.set_nodelay(true).expect("it is a TCP socket");
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        socket
            .set_write_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        Connection {
            socket,
            input: Vec::new(),
            chunks: None,
            ended: false,
        }
    }

    /// Sends a request and reads its answer.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        target: &str,
        fields: &[&str],
        body: &[u8],
    ) -> Response {
        self.send(&request(method, target, fields, body));
        self.answer_to(method)
    }

    /// Appends a number to a stream of JSON; where the stream goes on behind it.
    pub(crate) fn append(&mut self, stream: &str, number: u64) -> String {
        let body = number.to_string();
        let answer = self.ask("POST", &path(stream), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
        let offset = answer.field("Stream-Next-Offset").expect("a place");
        offset.to_owned()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the server reads");
    }

    /// Sends to a server that may have hung up already. False when it surely has.
    pub(crate) fn send_anyway(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// The next response of a server that may die at any byte; `None` when it died before the response was complete.
    /// For responses whose body, if any, has a length.
    pub(crate) fn answer_if_alive(&mut self) -> Option<Response> {
        let mut answer = self.head_if_alive()?;
        let length = answer.field("Content-Length").unwrap_or("0");
        let length = length.parse().expect("a length is a number");
        while self.input.len() < length {
            if !self.fill() {
                return None;
            }
        }
        answer.body = self.take(length);
        Some(answer)
    }

    /// The next response's status line and fields; `None` when the server died before they were complete.
    pub(crate) fn head_if_alive(&mut self) -> Option<Response> {
        while find(&self.input, b"\r\n\r\n").is_none() {
            if !self.fill() {
                return None;
            }
        }
        Some(self.head())
    }

    /// The next event of a stream of events, with the empty line that ends it. `None` when the server has hung up; the part of
    /// an event that was cut stays in [`input`](Connection::input).
    pub(crate) fn event(&mut self) -> Option<String> {
        let end = loop {
            if let Some(at) = find(&self.input, b"\n\n") {
                break at + 2;
            }
            if !self.fill() {
                return None;
            }
        };
        let event = self.input.drain(..end).collect();
        Some(String::from_utf8(event).expect("events are text"))
    }

    /// The next line of a stream of lines of JSON.
    pub(crate) fn json_line(&mut self) -> serde_json::Value {
        loop {
            if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                return serde_json::from_slice(&line).expect("a line is JSON");
            }
            assert!(self.fill(), "the server hung up before the end of a line");
        }
    }

    /// Whether there is something to read.
    pub(crate) fn has_input(&self) -> bool {
        self.socket.set_nonblocking(true).expect("it is open");
        let peeked = self.socket.peek(&mut [0; 12]);
        self.socket.set_nonblocking(false).expect("it is open");
        !self.input.is_empty() || peeked.is_ok_and(|count| count > 0)
    }

    pub(crate) fn half_close(&self) {
        self.socket
            .shutdown(Shutdown::Write)
            .expect("it is connected");
    }

    /// Hangs up with a reset instead of a goodbye.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.socket, Some(std::time::Duration::ZERO))
            .expect("it is a TCP socket");
    }

    /// The next response to a request that was not HEAD.
    pub(crate) fn answer(&mut self) -> Response {
        self.answer_to("GET")
    }

    /// The next response, to a request of that method.
    pub(crate) fn answer_to(&mut self, method: &str) -> Response {
        let mut response = self.head();
        let bodiless = method == "HEAD" || matches!(response.status, 100..200 | 204 | 304);
        let length = response
            .field("Content-Length")
            .map(|length| length.parse::<usize>().expect("a length is a number"));
        let chunked = response.field("Transfer-Encoding");
        assert!(length.is_none() || chunked.is_none(), "{response:?}");
        match length {
            _ if bodiless => {}
            _ if self.ended || self.chunks.is_some() => response.body = self.rest(),
            None if chunked.is_some() => {
                assert_eq!(chunked, Some("chunked"), "{response:?}");
                response.body = self.chunks();
            }
            Some(length) => response.body = self.take(length),
            None => {
                assert!(
                    response.closes(),
                    "neither a length nor a close ends {response:?}"
                );
                response.body = self.rest();
            }
        }
        response
    }

    /// The next response's status line and fields.
    pub(crate) fn head(&mut self) -> Response {
        let end = loop {
            if let Some(at) = find(&self.input, b"\r\n\r\n") {
                break at + 4;
            }
            assert!(
                self.fill(),
                "the server hung up before its answer was complete: {:?}",
                String::from_utf8_lossy(&self.input)
            );
        };
        let head: Vec<u8> = self.input.drain(..end).collect();
        let head = String::from_utf8(head).expect("a head is text");
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let line = lines.next().expect("a status line");
        let status = line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.split_once(' '))
            .and_then(|(status, phrase)| status.parse().ok().filter(|_| !phrase.is_empty()))
            .unwrap_or_else(|| panic!("no status line: {line:?}"));
        let fields: Vec<_> = lines
            .map(|line| {
                let (name, value) = line.split_once(": ").unwrap_or_else(|| {
                    panic!("no field: {line:?}");
                });
                (name.to_owned(), value.to_owned())
            })
            .collect();
        let response = Response {
            status,
            fields,
            body: Vec::new(),
        };
        let goes_on = ["text/event-stream", "application/x-ndjson"];
        if goes_on.map(Some).contains(&response.field("Content-Type")) {
            if response.field("Transfer-Encoding") == Some("chunked") {
                let mut chunks = Chunks::default();
                let came = std::mem::take(&mut self.input);
                chunks.take(&came, &mut self.input);
                self.ended = chunks.ended;
                self.chunks = Some(chunks);
            } else if let Some(length) = response.field("Content-Length") {
                // The response is complete.
                let body = self.take(length.parse().expect("a length is a number"));
                self.input = body;
                self.ended = true;
            }
        }
        response
    }

    /// A body in chunks, to its end.
    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let size = String::from_utf8(self.line()).expect("a chunk's size is text");
            let size = usize::from_str_radix(&size, 16)
                .unwrap_or_else(|_| panic!("no chunk's size: {size:?}"));
            body.extend(self.take(size));
            assert_eq!(self.line(), b"", "behind a chunk of {size} bytes");
            if size == 0 {
                return body;
            }
        }
    }

    /// Everything up to the next line end, which is dropped.
    fn line(&mut self) -> Vec<u8> {
        let end = loop {
            if let Some(at) = find(&self.input, b"\r\n") {
                break at;
            }
            assert!(self.fill(), "the server hung up within a body");
        };
        self.take(end + 2)[..end].to_vec()
    }

    /// So many bytes.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        while self.input.len() < count {
            assert!(self.fill(), "the server hung up within a body");
        }
        self.input.drain(..count).collect()
    }

    /// All bytes until the server hangs up.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.input)
    }

    /// A stream of events or lines has ended, and the connection stays: another request may follow.
    pub(crate) fn expect_end_of_stream(&mut self) {
        self.rest();
        assert!(self.ended, "the server hung up");
        (self.chunks, self.ended) = (None, false);
    }

    /// What has been read and not used.
    pub(crate) fn input(&mut self) -> &mut Vec<u8> {
        &mut self.input
    }

    /// The server hangs up, and has nothing more to say before.
    pub(crate) fn expect_end(&mut self) {
        let rest = self.rest();
        assert!(
            rest.is_empty(),
            "an end was due: {:?}",
            String::from_utf8_lossy(&rest)
        );
    }

    /// Reads more. False when the server has hung up.
    pub(crate) fn fill(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let mut buffer = [0; 64 << 10];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    match &mut self.chunks {
                        None => self.input.extend_from_slice(&buffer[..count]),
                        Some(chunks) => {
                            chunks.take(&buffer[..count], &mut self.input);
                            self.ended = chunks.ended;
                        }
                    }
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What we sent after the last answer may turn the end into a reset.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!(
                    "nothing came: {error}; before it {:?}",
                    String::from_utf8_lossy(&self.input)
                ),
            }
        }
        // What is left of a chunk that was cut.
        if let Some(chunks) = &mut self.chunks {
            self.input.append(&mut chunks.cut());
        }
        false
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
