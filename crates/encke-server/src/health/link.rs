//! A connection of the probe to a shard: one request, and its response as far as it has come.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use encke_protocol::PROBE;

/// Connects to a shard.
pub(super) type Connect<'a> = &'a dyn Fn(usize) -> std::io::Result<UnixStream>;

/// One request, and its response as far as it has come.
#[derive(Debug)]
pub(super) struct Link {
    socket: UnixStream,
    received: Vec<u8>,
    is_over: bool,
}

impl Link {
    /// Subscribes to the probe's stream on a shard.
    ///
    /// # Errors
    /// The shard can't be connected to now.
    pub(super) fn subscribe(connect: Connect<'_>, shard: usize) -> std::io::Result<Self> {
        let request = format!("GET {PROBE} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
        Link::open(connect, shard, &request)
    }

    /// Appends a record to the probe's stream of a log, by a request to that shard.
    ///
    /// # Errors
    /// The shard can't be connected to now.
    pub(super) fn append(
        connect: Connect<'_>,
        shard: usize,
        log: usize,
        record: &str,
    ) -> std::io::Result<Self> {
        let length = record.len();
        let request = format!(
            "POST {PROBE}?log={log} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{record}"
        );
        Link::open(connect, shard, &request)
    }

    fn open(connect: Connect<'_>, shard: usize, request: &str) -> std::io::Result<Self> {
        let mut socket = connect(shard)?;
        // A fresh pair takes these few bytes at once.
        socket.write_all(request.as_bytes())?;
        Ok(Link {
            socket,
            received: Vec::new(),
            is_over: false,
        })
    }

    /// The socket, to be waited for.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes what has arrived, without a wait.
    pub(super) fn receive(&mut self) {
        let mut some = [0; 1024];
        while !self.is_over && self.received.len() < RESPONSE_BYTES_MAX {
            match self.socket.read(&mut some) {
                Ok(0) => self.is_over = true,
                Ok(count) => self.received.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_over = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }

    /// The status of the response, once its head has come; 0 if the connection has ended without one.
    pub(super) fn status(&self) -> Option<u16> {
        let text = String::from_utf8_lossy(&self.received);
        if !text.contains("\r\n\r\n") {
            return self.is_over.then_some(0);
        }
        let status = text.split(' ').nth(1)?;
        status.parse().ok()
    }

    /// Whether a record has come.
    pub(super) fn has(&self, record: &str) -> bool {
        let mut windows = self.received.windows(record.len());
        windows.any(|window| window == record.as_bytes())
    }

    /// Whether nothing more can come.
    pub(super) fn is_over(&self) -> bool {
        self.is_over || self.received.len() >= RESPONSE_BYTES_MAX
    }
}

/// Bytes of a response that are looked at. In a fleet, the records of other nodes' probes come, too.
const RESPONSE_BYTES_MAX: usize = 64 << 10;
