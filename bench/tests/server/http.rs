//! Requests and responses of the server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A request.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) name: String,
    pub(super) query: HashMap<String, String>,
    pub(super) headers: HashMap<String, String>,
    pub(super) body: Vec<u8>,
}

/// Sends a response.
pub(super) fn answer(
    socket: &mut TcpStream,
    status: &str,
    headers: &str,
    body: &[u8],
) -> std::io::Result<()> {
    let length = match status.starts_with("204") {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    let head = format!("HTTP/1.1 {status}\r\n{headers}{length}\r\n");
    socket.write_all(&[head.as_bytes(), body].concat())
}

/// Reads the next request; `None` at the end of the connection.
pub(super) fn read_request(
    socket: &mut TcpStream,
    bytes: &mut Vec<u8>,
) -> std::io::Result<Option<Request>> {
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
        name: match path {
            METRICS => path.to_owned(),
            path => path.strip_prefix("/v1/stream/").unwrap().to_owned(),
        },
        query: query
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        headers,
        body,
    };
    Some((request, end + length))
}

/// The path of the metrics; all other paths are those of streams.
pub(super) const METRICS: &str = "/metrics";
