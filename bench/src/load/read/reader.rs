//! One reader: a connection that reads a stream response by response.
//!
//! It costs as little as it can, because it shares the processors with the server: what is certain to be a part of a body is
//! discarded in the kernel, so that only heads and the framing between chunks are copied.

use super::records::RecordCheck;
use crate::BenchError;
use crate::load::clock::monotonic_ns;
use crate::load::poller::Poller;
use crate::load::wire::http::{Framing, Head, parse_head};
use crate::load::wire::target::ServerUrl;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::TcpStream;

/// A connection that reads a stream.
#[derive(Debug)]
pub(super) struct Reader {
    socket: TcpStream,
    stage: Stage,
    /// Where the next response begins.
    offset: String,
    /// The response that is being read reaches the end of the stream.
    is_up_to_date: bool,
    keep_alive: bool,
    /// Bytes of the bodies of this read.
    pub(super) bytes: u64,
    /// When this read began, in nanoseconds of the monotonic clock.
    pub(super) since_ns: u64,
    /// How often it has read the stream whole.
    pub(super) times: u32,
}

#[derive(Debug)]
enum Stage {
    /// The head of a response, of which so much has arrived.
    Head(Vec<u8>),
    Body(Framing),
}

/// What has been received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// Nothing: the socket is empty.
    Nothing,
    /// A part of a response.
    Part,
    /// The end of a response; with `true` also that of the stream.
    Response(bool),
}

/// Room that all readers receive into.
#[derive(Debug)]
pub(super) struct Room {
    copied: Vec<u8>,
    /// The kernel looks at the size of this and writes nothing to it.
    discarded: Vec<u8>,
    request: Vec<u8>,
}

impl Room {
    pub(super) fn new(is_checking: bool) -> Self {
        let copied_bytes = match is_checking {
            true => CHECKED_BYTES,
            false => COPIED_BYTES,
        };
        Self {
            copied: vec![0; copied_bytes],
            discarded: vec![0; DISCARDED_BYTES],
            request: Vec::new(),
        }
    }
}

impl Reader {
    /// Connects; `token` is that of its events.
    pub(super) fn connect(
        server: &ServerUrl,
        poller: &Poller,
        token: u64,
    ) -> Result<Self, BenchError> {
        Ok(Self {
            socket: open(server, poller, token)?,
            stage: Stage::Head(Vec::new()),
            offset: String::new(),
            is_up_to_date: false,
            keep_alive: true,
            bytes: 0,
            since_ns: 0,
            times: 0,
        })
    }

    /// The next read is one from the beginning of the stream.
    pub(super) fn rewind(&mut self) {
        self.offset.clear();
        self.offset.push_str("-1");
        self.bytes = 0;
        self.since_ns = monotonic_ns();
    }

    /// Connects again if the server has closed the connection behind its last response.
    pub(super) fn reopen(
        &mut self,
        server: &ServerUrl,
        poller: &Poller,
        token: u64,
    ) -> Result<(), BenchError> {
        if !self.keep_alive {
            self.socket = open(server, poller, token)?;
        }
        Ok(())
    }

    /// Requests what is next.
    pub(super) fn ask(
        &mut self,
        server: &ServerUrl,
        stream: &str,
        room: &mut Room,
    ) -> Result<(), BenchError> {
        self.stage = Stage::Head(Vec::new());
        room.request.clear();
        server.read(stream, &self.offset, &mut room.request);
        // A request of a few hundred bytes always fits into a socket that has nothing else to send.
        match rustix::net::send(&self.socket, &room.request, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == room.request.len() => Ok(()),
            Ok(_) => Err(BenchError::Server("did not take a request".into())),
            Err(error) => Err(BenchError::system("write to the server")(error)),
        }
    }

    /// Receives once. With a check all bytes of bodies are copied and checked, without one they are only counted.
    pub(super) fn receive(
        &mut self,
        room: &mut Room,
        check: Option<&mut RecordCheck<'_>>,
    ) -> Result<Received, BenchError> {
        let ahead = match (&self.stage, &check) {
            (Stage::Body(framing), None) => framing.bytes_ahead(),
            _ => 0,
        };
        let received = match usize::try_from(ahead).unwrap_or(usize::MAX) {
            0 => rustix::io::read(&self.socket, &mut room.copied[..]),
            // With this flag TCP drops what it would have copied.
            ahead => {
                let room = &mut room.discarded[..ahead.min(DISCARDED_BYTES)];
                rustix::net::recv(&self.socket, room, RecvFlags::TRUNC).map(|(_, length)| length)
            }
        };
        match received {
            Ok(0) => {
                return match self.stage {
                    Stage::Body(Framing::UntilClose) => Ok(Received::Response(self.is_up_to_date)),
                    _ => Err(BenchError::Server("closed the connection".into())),
                };
            }
            Ok(length) if ahead > 0 => self.skip(length as u64),
            Ok(length) => self.parse(&room.copied[..length], check)?,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::INTR) => return Ok(Received::Part),
            Err(error) => return Err(BenchError::system("read the server's answer")(error)),
        }
        match self.stage {
            Stage::Body(Framing::Done) => Ok(Received::Response(self.is_up_to_date)),
            _ => Ok(Received::Part),
        }
    }

    fn skip(&mut self, bytes: u64) {
        if let Stage::Body(framing) = &mut self.stage {
            framing.skip(bytes);
        }
        self.bytes += bytes;
    }

    fn parse(
        &mut self,
        bytes: &[u8],
        mut check: Option<&mut RecordCheck<'_>>,
    ) -> Result<(), BenchError> {
        let joined;
        let mut bytes = bytes;
        if let Stage::Head(held) = &mut self.stage {
            if !held.is_empty() {
                held.extend_from_slice(bytes);
                joined = std::mem::take(held);
                bytes = &joined;
            }
            let Some((head, taken)) = parse_head(bytes)? else {
                self.stage = Stage::Head(bytes.to_vec());
                return Ok(());
            };
            self.begin_body(&head)?;
            bytes = &bytes[taken..];
        }
        if let Stage::Body(framing) = &mut self.stage {
            while let Some(piece) = framing.next_piece(&mut bytes)? {
                self.bytes += piece.len() as u64;
                if let Some(check) = &mut check {
                    check.feed(piece);
                }
            }
        }
        Ok(())
    }

    fn begin_body(&mut self, head: &Head<'_>) -> Result<(), BenchError> {
        if head.status != 200 {
            return Err(BenchError::Status {
                request: format!("a read from offset {}", self.offset),
                status: head.status,
            });
        }
        // A server that stands still would be asked for ever.
        let next = head.next_offset.unwrap_or_default();
        if !head.up_to_date && (next.is_empty() || next == self.offset) {
            return Err(BenchError::Server(format!(
                "did not say where to continue behind offset {}",
                self.offset
            )));
        }
        self.offset.clear();
        self.offset.push_str(next);
        self.is_up_to_date = head.up_to_date;
        self.keep_alive = head.keep_alive;
        self.stage = Stage::Body(head.framing);
        Ok(())
    }
}

fn open(server: &ServerUrl, poller: &Poller, token: u64) -> Result<TcpStream, BenchError> {
    let open = || {
        let socket = TcpStream::connect(server.address)?;
        socket.set_nonblocking(true)?;
        poller.add_readable(&socket, token)?;
        Ok::<_, std::io::Error>(socket)
    };
    open().map_err(BenchError::system("connect to the server"))
}

/// What is copied at a time: a head, or the framing between two chunks with the beginning of the second one.
const COPIED_BYTES: usize = 4 << 10;

/// What is copied at a time for a check.
const CHECKED_BYTES: usize = 256 << 10;

/// What is discarded at a time: more than a socket holds.
const DISCARDED_BYTES: usize = 8 << 20;
