//! Clients that expect anything: refused connections, cut responses, and answers that never come.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What became of an append.
pub enum Appended {
    /// It is acknowledged.
    Yes,
    /// It was refused before it was sent, or by an answer that says that nothing is stored.
    No,
    /// It may be stored.
    Unknown,
}

const CONNECT: Duration = Duration::from_millis(500);

/// Longer than a node tries a batch again.
const ANSWER: Duration = Duration::from_secs(15);

/// An append without an answer after this long is unknown, and its client goes on at another node: it must not wait for one that
/// stands still, or what is reported as a time without service is the patience of the clients.
const APPEND: Duration = Duration::from_secs(2);

fn connect(address: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&address, CONNECT)?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// A whole response: its status, its field `Stream-Next-Offset`, whether it is up to date, and its body.
struct Response {
    status: u16,
    next: Option<String>,
    up_to_date: bool,
    body: Vec<u8>,
}

/// How a body ends.
enum Length {
    Bytes(usize),
    Chunked,
    Connection,
}

fn ask(socket: TcpStream, request: &[u8]) -> std::io::Result<Response> {
    (&socket).write_all(request)?;
    let mut input = BufReader::new(socket);
    let (mut response, length) = head(&mut input)?;
    match length {
        Length::Bytes(bytes) => {
            response.body.resize(bytes, 0);
            input.read_exact(&mut response.body)?;
        }
        Length::Chunked => loop {
            let mut line = String::new();
            input.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16);
            let size = size.map_err(|_| std::io::ErrorKind::InvalidData)?;
            let begin = response.body.len();
            response.body.resize(begin + size, 0);
            input.read_exact(&mut response.body[begin..])?;
            input.read_line(&mut line)?;
            if size == 0 {
                break;
            }
        },
        Length::Connection => {
            input.read_to_end(&mut response.body)?;
        }
    }
    Ok(response)
}

fn head(input: &mut impl BufRead) -> std::io::Result<(Response, Length)> {
    let mut response = Response {
        status: 0,
        next: None,
        up_to_date: false,
        body: Vec::new(),
    };
    let mut length = Length::Connection;
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end();
        if text.is_empty() {
            return Ok((response, length));
        }
        if response.status == 0 {
            let status = text
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok());
            response.status = status.ok_or(std::io::ErrorKind::InvalidData)?;
            continue;
        }
        let Some((name, value)) = text.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match &*name.to_ascii_lowercase() {
            "content-length" => {
                let bytes = value.parse().map_err(|_| std::io::ErrorKind::InvalidData)?;
                length = Length::Bytes(bytes);
            }
            "transfer-encoding" => length = Length::Chunked,
            "stream-next-offset" => response.next = Some(value.to_owned()),
            "stream-up-to-date" => response.up_to_date = value == "true",
            _ => {}
        }
    }
}

fn request(method: &str, target: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Creates a stream at a node that works.
pub fn create(address: SocketAddr, stream: &str) {
    let socket = connect(address, ANSWER).unwrap();
    let made = ask(socket, &request("PUT", &format!("/v1/stream/{stream}"), "")).unwrap();
    assert_eq!(made.status, 201);
}

/// Appends a number.
pub fn append(address: SocketAddr, stream: &str, number: u64) -> Appended {
    let Ok(socket) = connect(address, APPEND) else {
        return Appended::No;
    };
    let answer = ask(
        socket,
        &request("POST", &format!("/v1/stream/{stream}"), &number.to_string()),
    );
    match answer {
        Ok(answer) if answer.status == 204 => Appended::Yes,
        Ok(answer) if answer.status == 503 => {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            match text.contains("unconfirmed") {
                true => Appended::Unknown,
                false => Appended::No,
            }
        }
        Ok(answer) => panic!(
            "an append got {}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        ),
        Err(_) => Appended::Unknown,
    }
}

/// All numbers of a stream, read from its beginning at a node that works.
pub fn read_all(address: SocketAddr, stream: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut offset = "-1".to_owned();
    loop {
        let socket = connect(address, ANSWER).unwrap();
        let target = format!("/v1/stream/{stream}?offset={offset}");
        let page = ask(socket, &request("GET", &target, "")).unwrap();
        assert_eq!(page.status, 200, "{}", String::from_utf8_lossy(&page.body));
        let part: Vec<u64> = serde_json::from_slice(&page.body).unwrap();
        numbers.extend(part);
        if page.up_to_date {
            return numbers;
        }
        offset = page.next.unwrap();
    }
}

/// Follows a stream by server-sent events, at one node after the other.
pub struct Follower {
    stream: &'static str,
    /// What it got.
    pub numbers: Vec<u64>,
    /// Behind what it got.
    offset: String,
}

impl Follower {
    pub fn new(stream: &'static str) -> Follower {
        Follower {
            stream,
            numbers: Vec::new(),
            offset: "-1".into(),
        }
    }

    /// Follows at a node until the connection ends, nothing comes for two seconds, or the test ends.
    pub fn follow(&mut self, address: SocketAddr, ends: &AtomicBool) {
        if self.try_follow(address, ends).is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_follow(&mut self, address: SocketAddr, ends: &AtomicBool) -> std::io::Result<()> {
        let mut socket = connect(address, Duration::from_secs(2))?;
        let target = format!("/v1/stream/{}?offset={}&live=sse", self.stream, self.offset);
        socket.write_all(&request("GET", &target, ""))?;
        let mut input = BufReader::new(socket);
        let (head, _) = head(&mut input)?;
        if head.status != 200 {
            assert_eq!(head.status, 503, "a follower got another answer");
            return Err(std::io::ErrorKind::Other.into());
        }
        let (mut id, mut data) = (String::new(), None);
        let mut line = String::new();
        while !ends.load(Ordering::Relaxed) {
            line.clear();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if !line.ends_with('\n') {
                // The connection was cut within a line.
                return Ok(());
            }
            let text = line.trim_end();
            if let Some(offset) = text.strip_prefix("id: ") {
                offset.clone_into(&mut id);
            } else if let Some(values) = text.strip_prefix("data:[") {
                let values = format!("[{values}");
                data =
                    Some(serde_json::from_str::<Vec<u64>>(&values).map_err(std::io::Error::other)?);
            } else if text.is_empty()
                && let Some(values) = data.take()
            {
                // An event counts when it is complete.
                self.numbers.extend(values);
                self.offset = id.clone();
            }
        }
        Ok(())
    }
}
