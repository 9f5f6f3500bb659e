//! The HTTP client of tools and tests: one kept connection, one request at a time, or one stream of events.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::load::wire::http::{Framing, parse_head};
use crate::load::wire::sse::{Event, Splitter};

/// A connection that is kept.
#[derive(Debug)]
pub struct HttpClient {
    server: SocketAddr,
    stream: TcpStream,
    /// Bytes that were read and not yet taken.
    bytes: Vec<u8>,
    /// The socket's read timeout.
    timeout: Duration,
}

impl HttpClient {
    /// Connects.
    ///
    /// # Errors
    /// The server can't be reached.
    pub fn connect(server: SocketAddr) -> Result<Self, BenchError> {
        let connect = || {
            let stream = TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_WAIT))?;
            Ok::<_, std::io::Error>(stream)
        };
        Ok(Self {
            server,
            stream: connect().map_err(BenchError::system("connect to the server"))?,
            bytes: Vec::new(),
            timeout: ANSWER_WAIT,
        })
    }

    /// Sends a request with a body (which may be empty) and returns status and body of the answer.
    ///
    /// # Errors
    /// The connection fails, nothing comes for 30 seconds, or the answer is not HTTP.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<(u16, Vec<u8>), BenchError> {
        let request = request(self.server, method, path, body);
        let (status, mut framing) = self.exchange(&request)?;
        if method == "HEAD" {
            // No body follows, whatever its length.
            framing = Framing::Done;
        }
        let mut answer = Vec::new();
        while !framing.is_done() {
            if self.bytes.is_empty() {
                self.read()?;
            }
            self.take(&mut framing, |piece| {
                answer.extend_from_slice(piece);
                Ok(())
            })?;
        }
        Ok((status, answer))
    }

    /// As [`HttpClient::request`], but returns an error for any status that is no success.
    ///
    /// # Errors
    /// As for [`HttpClient::request`], and [`BenchError::Status`].
    pub fn succeed(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Vec<u8>, BenchError> {
        match self.request(method, path, body)? {
            (200..300, answer) => Ok(answer),
            (status, _) => Err(unexpected(method, path, status)),
        }
    }

    /// Sends bytes that are a request with a body, and returns the head of the answer.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<(u16, Framing), BenchError> {
        self.stream
            .write_all(request)
            .map_err(BenchError::system("write to the server"))?;
        loop {
            if let Some((head, taken)) = parse_head(&self.bytes)? {
                let found = (head.status, head.framing);
                self.bytes.drain(..taken);
                return Ok(found);
            }
            self.read()?;
        }
    }

    /// Follows the server-sent events at `path`.
    ///
    /// # Errors
    /// As for [`HttpClient::succeed`].
    pub(crate) fn subscribe(mut self, path: &str) -> Result<Subscription, BenchError> {
        let (status, framing) = self.exchange(&request(self.server, "GET", path, b""))?;
        if status != 200 {
            return Err(unexpected("GET", path, status));
        }
        Ok(Subscription {
            client: self,
            framing,
            splitter: Splitter::default(),
        })
    }

    /// Passes on the pieces of a body that have been read.
    fn take(
        &mut self,
        framing: &mut Framing,
        mut each: impl FnMut(&[u8]) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let mut rest = &self.bytes[..];
        while let Some(piece) = framing.next_piece(&mut rest)? {
            each(piece)?;
        }
        let taken = self.bytes.len() - rest.len();
        self.bytes.drain(..taken);
        Ok(())
    }

    fn read(&mut self) -> Result<(), BenchError> {
        match self.read_within(ANSWER_WAIT)? {
            true => Ok(()),
            false => Err(BenchError::Server("did not answer in time".into())),
        }
    }

    /// Reads once; false when nothing comes in time.
    fn read_within(&mut self, time: Duration) -> Result<bool, BenchError> {
        let mut block = [0; 16 << 10];
        if time != self.timeout {
            self.timeout = time;
            let set = self.stream.set_read_timeout(Some(time));
            set.map_err(BenchError::system("set a timeout"))?;
        }
        match self.stream.read(&mut block) {
            Ok(0) => Err(BenchError::Server("closed the connection".into())),
            Ok(count) => {
                self.bytes.extend_from_slice(&block[..count]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(false)
            }
            Err(error) => Err(BenchError::system("read the server's answer")(error)),
        }
    }
}

/// A stream of server-sent events.
#[derive(Debug)]
pub(crate) struct Subscription {
    client: HttpClient,
    framing: Framing,
    splitter: Splitter,
}

impl Subscription {
    /// Passes on the events that come within `time`, with the moment at which they were read; false when none comes.
    ///
    /// # Errors
    /// The connection ends, or the answer is not HTTP or no stream of events.
    pub(crate) fn events(
        &mut self,
        time: Duration,
        mut each: impl FnMut(Event<'_>, Instant),
    ) -> Result<bool, BenchError> {
        if self.client.bytes.is_empty() && !self.client.read_within(time)? {
            return Ok(false);
        }
        let now = Instant::now();
        let splitter = &mut self.splitter;
        self.client.take(&mut self.framing, |piece| {
            let fed = splitter.feed(piece, |event| {
                each(event, now);
                Ok(())
            });
            Ok(fed?)
        })?;
        Ok(true)
    }
}

fn unexpected(method: &str, path: &str, status: u16) -> BenchError {
    BenchError::Status {
        request: format!("{method} {path}"),
        status,
    }
}

/// A request as it goes over the wire.
fn request(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {server}\r\n");
    if matches!(method, "PUT" | "POST") {
        request += &format!(
            "Content-Type: text/plain\r\nContent-Length: {}\r\n",
            body.len()
        );
    }
    request += "\r\n";
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    request
}

/// How long an answer may take before the run is given up.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Answers each request with the next of these, in pieces.
    fn server(answers: Vec<&'static [&'static str]>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let mut block = [0; 4096];
                assert!(stream.read(&mut block).unwrap() > 0);
                for piece in answer {
                    stream.write_all(piece.as_bytes()).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        address
    }

    #[test]
    fn answers_are_read_whole_and_the_connection_is_kept() {
        let mut client = HttpClient::connect(server(vec![
            &["HTTP/1.1 200 OK\r\nContent-Le", "ngth: 5\r\n\r\nhe", "llo"],
            &["HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"],
            &[
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                "0\r\n\r\n",
            ],
            &["HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"],
        ]))
        .unwrap();
        assert_eq!(
            client.request("GET", "/", b"").unwrap(),
            (200, b"hello".to_vec())
        );
        assert_eq!(client.request("HEAD", "/", b"").unwrap(), (200, vec![]));
        assert_eq!(client.succeed("POST", "/", b"x").unwrap(), b"abc");
        let error = client.succeed("PUT", "/a", b"").unwrap_err();
        assert!(
            matches!(error, BenchError::Status { status: 404, .. }),
            "{error}"
        );
        assert!(client.request("GET", "/", b"").is_err(), "it has gone");
    }
}
