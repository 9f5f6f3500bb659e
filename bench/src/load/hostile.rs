//! Hostile clients beside the measured ones: they hold connections open in every way that costs a server resources, and
//! reconnect whenever they are closed.

use crate::BenchError;
use crate::client::HttpClient;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::kinds::{HostileKind, SubscriberKind};
use crate::load::report::hostile::Deeds;
use crate::load::socket::Sources;
use crate::load::wire::target::{Requests, ServerUrl, Streams};
use crate::load::wire::websocket::{
    CONTINUATION, FIN, PING, TEXT, masked, write_frame, write_header,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The behaviour of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Connects and says nothing.
    Silent,
    /// Sends a head that never ends, a byte a second.
    SlowHead,
    /// Announces a large body and sends it a byte a second.
    SlowBody,
    /// Subscribes to a stream that has much to say, and reads nothing of it.
    UnreadEvents,
    /// Asks for all of that stream, and reads nothing of it.
    UnreadAnswer,
    /// Opens a channel and reads what comes, but sends no pong.
    NoPong,
    /// Opens a channel, announces a large message and sends it a byte a second.
    HalfFrame,
    /// Opens a channel and sends [`PINGS`] pings a second.
    PingFlood,
    /// Opens a channel and sends a message without an end, in [`FRAGMENTS`] fragments of one byte a second.
    Fragments,
    /// Opens a channel that has much to say, and reads nothing of it.
    UnreadRecords,
}

impl Kind {
    /// The ways of being hostile; clients take them in turn.
    fn all(of: HostileKind) -> &'static [Self] {
        match of {
            HostileKind::Http1 => &[
                Self::Silent,
                Self::SlowHead,
                Self::SlowBody,
                Self::UnreadEvents,
                Self::Silent,
                Self::SlowHead,
                Self::SlowBody,
                Self::UnreadAnswer,
            ],
            HostileKind::Websocket => &[
                Self::NoPong,
                Self::HalfFrame,
                Self::PingFlood,
                Self::Fragments,
                Self::UnreadRecords,
            ],
        }
    }

    /// Its name in reports.
    fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::SlowHead => "slow heads",
            Self::SlowBody => "slow bodies",
            Self::UnreadEvents => "unread events",
            Self::UnreadAnswer => "unread answers",
            Self::NoPong => "without pongs",
            Self::HalfFrame => "half frames",
            Self::PingFlood => "floods of pings",
            Self::Fragments => "fragments of one byte",
            Self::UnreadRecords => "unread records",
        }
    }

    fn reads(self) -> bool {
        !matches!(
            self,
            Self::UnreadEvents | Self::UnreadAnswer | Self::UnreadRecords
        )
    }
}

/// Hostile clients, in their own thread.
#[derive(Debug)]
pub(crate) struct Hostiles {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Deeds>,
}

/// The plan of the hostile clients.
#[derive(Debug)]
pub(crate) struct HostilePlan {
    server: SocketAddr,
    count: u32,
    kinds: &'static [Kind],
    body: Vec<u8>,
    events: Vec<u8>,
    answer: Vec<u8>,
    /// Opens a channel at the end of the stream, and at its beginning.
    quiet_channel: Vec<u8>,
    full_channel: Vec<u8>,
    /// The header of a large message, and its text, which repeats.
    large_message: Vec<u8>,
    masked_text: [u8; 4],
    pings: Vec<u8>,
    first_fragment: Vec<u8>,
    fragments: Vec<u8>,
}

impl HostilePlan {
    /// Prepares a stream that has much to say, for clients that read nothing.
    pub(crate) fn new(
        target: &ServerUrl,
        run: u32,
        count: u32,
        kind: HostileKind,
    ) -> Result<Self, BenchError> {
        let streams = Streams::one(&format!("hostile/{run}"));
        let requests = Requests::new(target, &streams, "text/plain")?;
        let write = |make: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            make(&mut out);
            out
        };
        let mut client = HttpClient::connect(target.address)?;
        let mut send = |request: Vec<u8>| match client.exchange(&request)? {
            (200..300, _) => Ok(()),
            (status, _) => Err(BenchError::Status {
                request: "the creation of a stream for hostile clients".into(),
                status,
            }),
        };
        send(write(&|out| requests.create(0, out)))?;
        let record = vec![b'x'; RECORD_BYTES];
        for _ in 0..RECORDS {
            send(write(&|out| requests.append(0, &record, out)))?;
        }
        let large = vec![b'x'; LARGE_BODY_BYTES];
        let mut body = write(&|out| requests.append(0, &large, out));
        body.truncate(body.len() - LARGE_BODY_BYTES);
        Ok(Self {
            server: target.address,
            count,
            kinds: Kind::all(kind),
            body,
            events: write(&|out| requests.subscribe(SubscriberKind::Http1, 0, "-1", out)),
            answer: write(&|out| requests.read(0, "-1", "", out)),
            quiet_channel: write(&|out| {
                requests.subscribe(SubscriberKind::Websocket, 0, "now", out);
            }),
            full_channel: write(&|out| {
                requests.subscribe(SubscriberKind::Websocket, 0, "-1", out);
            }),
            large_message: write(&|out| write_header(FIN | TEXT, LARGE_BODY_BYTES, out)),
            masked_text: masked([b'x'; 4]),
            pings: write(&|out| {
                for _ in 0..PINGS {
                    write_frame(FIN | PING, b"", out);
                }
            }),
            first_fragment: write(&|out| write_frame(TEXT, b"x", out)),
            fragments: write(&|out| {
                for _ in 0..FRAGMENTS {
                    write_frame(CONTINUATION, b"x", out);
                }
            }),
        })
    }
}

impl Hostiles {
    /// Starts the clients at that time.
    pub(crate) fn start(orders: HostilePlan, from_ns: u64) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::spawn(move || rage(&orders, from_ns, &ended));
        Self { end, thread }
    }

    /// Ends it; what it did.
    pub(crate) fn end(self) -> Deeds {
        self.end.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// One client.
#[derive(Debug)]
struct Attacker {
    kind: Kind,
    socket: Option<OwnedFd>,
    /// How often it was its turn since it connected.
    turns: u32,
    /// Where in the frames that it sends again and again it goes on.
    position: usize,
}

/// Gives each client its turn once a second, until the end.
fn rage(orders: &HostilePlan, from_ns: u64, end: &AtomicBool) -> Deeds {
    // Real hostile clients have their own machines. Here they share the processors with the server and with the clients that
    // measure latency, and must not delay them. If the priority cannot be lowered, that is ignored.
    let _ = rustix::process::nice(NICE);
    let mut sources = Sources::new(orders.server, orders.count);
    let mut clients: Vec<Attacker> = (0..orders.count as usize)
        .map(|number| Attacker {
            kind: orders.kinds[number % orders.kinds.len()],
            socket: None,
            turns: 0,
            position: 0,
        })
        .collect();
    let mut deeds = Deeds::new(orders.count, orders.kinds.iter().map(|kind| kind.name()));
    let mut done: u64 = 0;
    while !end.load(Ordering::Relaxed) {
        let passed_ns = monotonic_ns().saturating_sub(from_ns);
        let due = (u128::from(passed_ns) * clients.len() as u128 / u128::from(SECOND_NS)) as u64;
        // A delayed turn is not made up for.
        done = done.max(due.saturating_sub(clients.len() as u64));
        while done < due {
            let number = (done % clients.len() as u64) as usize;
            clients[number].turn(orders, &mut sources, &mut deeds);
            done += 1;
        }
        std::thread::sleep(Duration::from_nanos(MILLISECOND_NS));
    }
    deeds.open = clients.iter().filter(|one| one.socket.is_some()).count() as u64;
    deeds
}

impl Attacker {
    fn turn(&mut self, orders: &HostilePlan, sources: &mut Sources, deeds: &mut Deeds) {
        let Some(socket) = &self.socket else {
            match sources.connect(orders.server) {
                Ok(socket) => {
                    if !self.kind.reads() {
                        // The less fits in here, the more the server is left with.
                        let _ = sockopt::set_socket_recv_buffer_size(&socket, NARROW_BYTES);
                    }
                    self.socket = Some(socket);
                    self.turns = 0;
                    self.position = 0;
                    deeds.connects += 1;
                }
                Err(_) => deeds.failed += 1,
            }
            return;
        };
        let closed = if self.kind.reads() {
            is_closed_after_reading(socket)
        } else {
            has_hung_up(socket)
        };
        let bytes: &[u8] = match (self.kind, self.turns) {
            (Kind::Silent, _) => b"",
            (Kind::SlowHead, turn) => {
                let at = (turn as usize).min(HEAD.len() - 1);
                &HEAD[at..=at]
            }
            (Kind::SlowBody, 0) => &orders.body,
            (Kind::SlowBody, _) => b"x",
            (Kind::UnreadEvents, 0) => &orders.events,
            (Kind::UnreadAnswer, 0) => &orders.answer,
            (Kind::UnreadRecords, 0) => &orders.full_channel,
            (Kind::NoPong | Kind::HalfFrame | Kind::PingFlood | Kind::Fragments, 0) => {
                &orders.quiet_channel
            }
            (Kind::HalfFrame, 1) => &orders.large_message,
            (Kind::HalfFrame, turn) => {
                let at = (turn as usize - 2) % orders.masked_text.len();
                &orders.masked_text[at..=at]
            }
            (Kind::PingFlood, _) => &orders.pings[self.position..],
            (Kind::Fragments, 1) => &orders.first_fragment,
            (Kind::Fragments, _) => &orders.fragments[self.position..],
            _ => b"",
        };
        let again_bytes = match (self.kind, self.turns) {
            (Kind::PingFlood, 1..) => orders.pings.len(),
            (Kind::Fragments, 2..) => orders.fragments.len(),
            _ => 0,
        };
        self.turns += 1;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match bytes.is_empty() {
            true => Ok(0),
            false => send(socket, bytes, flags),
        };
        if let (Ok(sent), 1..) = (sent, again_bytes) {
            self.position = (self.position + sent) % again_bytes;
        }
        // A socket that takes nothing is that of a server that does not read.
        let failed = sent.is_err_and(|error| error != Errno::AGAIN);
        if closed || failed {
            self.socket = None;
            *deeds.closed.entry(self.kind.name()).or_default() += 1;
        }
    }
}

/// Reads all that has come; whether the server has closed the connection.
fn is_closed_after_reading(socket: &OwnedFd) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return true,
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => return true,
        }
    }
}

/// Whether the server has closed the connection, which is found out without reading.
fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut one = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut one, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// A head that goes on for longer than anybody should wait; its last byte is sent again and again.
const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nX: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy";

/// The content of the unread stream.
const RECORDS: usize = 64;
const RECORD_BYTES: usize = 64 << 10;

/// The body, or the message, that is announced and never comes.
const LARGE_BODY_BYTES: usize = 1 << 20;

const NARROW_BYTES: usize = 4096;

/// Frames that a client sends each second.
const PINGS: usize = 2_000;
const FRAGMENTS: usize = 500;

/// The lowest priority.
const NICE: i32 = 19;
