//! A plain HTTP client: one connection, one request at a time, as a person with curl would.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::load::wire::http::{Framing, parse_head};

use crate::BenchError;

/// A connection that is kept.
pub(crate) struct Client {
    server: SocketAddr,
    stream: TcpStream,
    /// What was read and not yet taken.
    bytes: Vec<u8>,
}

impl Client {
    /// Connects.
    pub(crate) fn connect(server: SocketAddr) -> Result<Self, BenchError> {
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
        })
    }

    /// Sends a request with a body (which may be empty) and waits for the whole answer: its status and body.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<(u16, Vec<u8>), BenchError> {
        let request = request(self.server, method, path, body);
        self.stream
            .write_all(&request)
            .map_err(BenchError::system("write to the server"))?;
        let (status, mut framing, taken) = loop {
            if let Some((head, taken)) = parse_head(&self.bytes)? {
                // No body follows, whatever length is told.
                let framing = match method {
                    "HEAD" => Framing::Done,
                    _ => head.framing,
                };
                break (head.status, framing, taken);
            }
            self.read()?;
        };
        self.bytes.drain(..taken);
        let mut answer = Vec::new();
        while !framing.is_done() {
            if self.bytes.is_empty() {
                self.read()?;
            }
            let mut rest = &self.bytes[..];
            while let Some(piece) = framing.next_piece(&mut rest)? {
                answer.extend_from_slice(piece);
            }
            let taken = self.bytes.len() - rest.len();
            self.bytes.drain(..taken);
        }
        Ok((status, answer))
    }

    /// As [`Self::request`], but any status that is no success is an error.
    pub(crate) fn succeed(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Vec<u8>, BenchError> {
        match self.request(method, path, body)? {
            (200..300, answer) => Ok(answer),
            (status, _) => Err(BenchError::Status {
                request: format!("{method} {path}"),
                status,
            }),
        }
    }

    fn read(&mut self) -> Result<(), BenchError> {
        let mut block = [0; 16 << 10];
        let read = self.stream.read(&mut block);
        match read.map_err(BenchError::system("read the server's answer"))? {
            0 => Err(BenchError::Server(
                "closed a connection that it should have kept".into(),
            )),
            count => {
                self.bytes.extend_from_slice(&block[..count]);
                Ok(())
            }
        }
    }
}

/// A request as it goes over the wire.
pub(crate) fn request(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
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

/// Whether a read has ended because nothing came in time.
pub(crate) fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
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
        let mut client = Client::connect(server(vec![
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
