//! Clients of `/v1/events` that return as a browser's `EventSource` does: with `Last-Event-ID`, to the next server.
//!
//! One epoll loop holds all of them. A client has no buffer but for the part of a head or an event whose end has not arrived.

use crate::BenchError;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::poller::{Poller, Ready};
use crate::load::socket::{Sources, connected};
use crate::load::wire::http::{Framing, parse_head};
use crate::load::wire::sse::{EventData, Splitter};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;

/// What clients ask for, and what they hear.
pub(crate) trait Audience {
    /// Appends the path and the query that `client` requests.
    fn target(&self, client: u32, out: &mut Vec<u8>);

    /// `client` has a position: what is appended from now on is for it.
    fn subscribed(&mut self, _client: u32, _now_ns: u64) {}

    /// A record for `client`.
    fn record(&mut self, client: u32, data: EventData<'_>, now_ns: u64);
}

/// How clients connect.
#[derive(Debug, Clone)]
pub(crate) struct EventSourcePlan {
    /// How many there are.
    pub(crate) clients: u32,
    /// Where they connect to: the first one, and after a loss the others in turn.
    pub(crate) servers: Vec<SocketAddr>,
    /// Where they connect from.
    pub(crate) sources: Sources,
    /// How many may be connecting at a time.
    pub(crate) opening_max: u32,
}

/// What became of the clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EventSourceCounts {
    /// Clients that have connected, or tried to.
    pub(crate) begun: u32,
    /// Clients that are subscribed now.
    pub(crate) subscribed: u32,
    /// Subscriptions whose connection broke.
    pub(crate) lost: u64,
    /// Clients that have given up.
    pub(crate) over: u32,
    /// Why connections did not come about or broke, and how often.
    pub(crate) reasons: BTreeMap<String, u64>,
}

/// The clients.
pub(crate) struct EventSources {
    plan: EventSourcePlan,
    poller: Poller,
    clients: Vec<Client>,
    counts: EventSourceCounts,
    /// Clients that are connecting or wait for their position.
    opening: u32,
    /// Clients that return, each with the time when.
    returns: BinaryHeap<Reverse<(u64, u32)>>,
    swept_ns: u64,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    request: Vec<u8>,
}

#[derive(Debug)]
struct Client {
    socket: Option<OwnedFd>,
    stage: Stage,
    /// The id of its last event.
    last_id: Option<Box<[u8]>>,
    /// Since when it has been connecting, in nanoseconds of the monotonic clock.
    since_ns: u64,
    /// The server's place in the plan.
    server: u16,
    /// How often in a row it could not subscribe.
    tries: u8,
    /// It has its position on this connection.
    subscribed: bool,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Connecting,
    /// The head of a response, of which so much has arrived.
    Head(Vec<u8>),
    Events(Framing, Splitter),
}

impl EventSources {
    /// Clients that have not connected yet.
    pub(crate) fn new(plan: EventSourcePlan) -> Result<Self, BenchError> {
        let client = || Client {
            socket: None,
            stage: Stage::Idle,
            last_id: None,
            since_ns: 0,
            server: 0,
            tries: 0,
            subscribed: false,
        };
        Ok(Self {
            poller: Poller::new()?,
            clients: (0..plan.clients).map(|_| client()).collect(),
            counts: EventSourceCounts::default(),
            opening: 0,
            returns: BinaryHeap::new(),
            swept_ns: 0,
            ready: Vec::new(),
            buffer: vec![0; READ_BYTES],
            request: Vec::new(),
            plan,
        })
    }

    /// Watches a pipe: [`EventSources::turn`] says when it can be read.
    pub(crate) fn watch_pipe(&self, pipe: impl AsFd) -> Result<(), BenchError> {
        let added = self.poller.add_pipe(pipe, PIPE);
        added.map_err(BenchError::system("watch a pipe"))
    }

    /// What became of the clients so far.
    pub(crate) fn counts(&self) -> &EventSourceCounts {
        &self.counts
    }

    /// From now on no client connects for the first time.
    pub(crate) fn stop_opening(&mut self) {
        self.clients.truncate(self.counts.begun as usize);
    }

    /// Whether each client is subscribed, or has given up.
    pub(crate) fn is_settled(&self) -> bool {
        (self.counts.subscribed + self.counts.over) as usize == self.clients.len()
    }

    /// Connects what is due and waits for events, at most until `until_ns`. True: the pipe can be read.
    pub(crate) fn turn(
        &mut self,
        until_ns: u64,
        audience: &mut impl Audience,
    ) -> Result<bool, BenchError> {
        let now_ns = monotonic_ns();
        let due_ns = self.open_due(now_ns);
        if now_ns >= self.swept_ns + SECOND_NS {
            self.swept_ns = now_ns;
            self.sweep(now_ns);
        }
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self
            .poller
            .wait(until_ns.min(due_ns), |event| ready.push(event));
        let mut pipe = false;
        for event in ready.drain(..) {
            match event.token {
                PIPE => pipe = true,
                token => self.serve(token as u32, event, audience),
            }
        }
        self.ready = ready;
        waited.map(|()| pipe)
    }

    /// Connects as many clients as may connect. Returns when the next one is due.
    fn open_due(&mut self, now_ns: u64) -> u64 {
        for _ in 0..OPENED_PER_TURN {
            if self.opening >= self.plan.opening_max {
                return u64::MAX;
            }
            match self.returns.peek() {
                Some(&Reverse((due_ns, client))) if due_ns <= now_ns => {
                    self.returns.pop();
                    self.connect(client, now_ns);
                }
                _ if (self.counts.begun as usize) < self.clients.len() => {
                    self.counts.begun += 1;
                    self.connect(self.counts.begun - 1, now_ns);
                }
                Some(&Reverse((due_ns, _))) => return due_ns,
                None => return u64::MAX,
            }
        }
        now_ns
    }

    fn connect(&mut self, client: u32, now_ns: u64) {
        self.opening += 1;
        let one = &mut self.clients[client as usize];
        let server = self.plan.servers[usize::from(one.server)];
        one.stage = Stage::Connecting;
        one.since_ns = now_ns;
        let opened = self.plan.sources.connect(server).and_then(|socket| {
            self.poller.add_socket(&socket, u64::from(client))?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => one.socket = Some(socket),
            Err(error) => self.fail(client, &error.to_string(), now_ns),
        }
    }

    fn serve(&mut self, client: u32, event: Ready, audience: &mut impl Audience) {
        let one = &mut self.clients[client as usize];
        let Some(socket) = &one.socket else { return };
        if matches!(one.stage, Stage::Connecting) {
            if !event.writable {
                return;
            }
            let asked = connected(socket).and_then(|()| self.ask(client, audience));
            if let Err(error) = asked {
                return self.fail(client, &error.to_string(), monotonic_ns());
            }
        }
        if event.readable {
            self.read(client, event.ended, audience);
        }
    }

    fn ask(&mut self, client: u32, audience: &impl Audience) -> Result<(), Errno> {
        let one = &mut self.clients[client as usize];
        let request = &mut self.request;
        request.clear();
        request.extend_from_slice(b"GET ");
        audience.target(client, request);
        request.extend_from_slice(b" HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n");
        if let Some(id) = &one.last_id {
            request.extend_from_slice(b"Last-Event-ID: ");
            request.extend_from_slice(id);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        let Some(socket) = &one.socket else {
            return Err(Errno::NOTCONN);
        };
        // A request of a few hundred bytes always fits into a socket that has nothing else to send.
        match rustix::net::send(socket, request, SendFlags::NOSIGNAL)? {
            sent if sent == request.len() => {
                one.stage = Stage::Head(Vec::new());
                Ok(())
            }
            _ => Err(Errno::NOBUFS),
        }
    }

    /// Reads until the socket is empty; `to_the_end` when its end may already be there.
    fn read(&mut self, client: u32, to_the_end: bool, audience: &mut impl Audience) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(socket) = &self.clients[client as usize].socket {
            let read = rustix::io::read(socket, &mut buffer[..]);
            let now_ns = monotonic_ns();
            let problem = match read {
                Ok(0) => Some(CLOSED.to_owned()),
                Ok(length) => {
                    let received = self.receive(client, &buffer[..length], now_ns, audience);
                    if received.is_ok() && length < buffer.len() && !to_the_end {
                        break;
                    }
                    received.err()
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => None,
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = problem {
                self.fail(client, &reason, now_ns);
                break;
            }
        }
        self.buffer = buffer;
    }

    /// Takes the next bytes of a connection.
    fn receive(
        &mut self,
        client: u32,
        bytes: &[u8],
        now_ns: u64,
        audience: &mut impl Audience,
    ) -> Result<(), String> {
        let one = &mut self.clients[client as usize];
        let joined;
        let mut bytes = bytes;
        if let Stage::Head(held) = &mut one.stage {
            if !held.is_empty() {
                held.extend_from_slice(bytes);
                joined = std::mem::take(held);
                bytes = &joined;
            }
            let head = parse_head(bytes).map_err(|error| error.to_string())?;
            let Some((head, taken)) = head else {
                one.stage = Stage::Head(bytes.to_vec());
                return Ok(());
            };
            if head.status != 200 {
                return Err(format!("status {}", head.status));
            }
            one.stage = Stage::Events(head.framing, Splitter::default());
            bytes = &bytes[taken..];
        }
        let Stage::Events(framing, splitter) = &mut one.stage else {
            return Ok(());
        };
        let was_subscribed = one.subscribed;
        loop {
            let piece = framing.next_piece(&mut bytes);
            let Some(piece) = piece.map_err(|error| error.to_string())? else {
                break;
            };
            let fed = splitter.feed(piece, |event| {
                if let Some(id) = event.id {
                    match &mut one.last_id {
                        Some(last) if last.len() == id.len() => last.copy_from_slice(id),
                        last => *last = Some(id.into()),
                    }
                    if !std::mem::replace(&mut one.subscribed, true) {
                        audience.subscribed(client, now_ns);
                    }
                }
                if !matches!(event.data, EventData::None) && event.kind == b"message" {
                    audience.record(client, event.data, now_ns);
                }
                Ok(())
            });
            fed.map_err(|error| error.to_string())?;
        }
        if one.subscribed && !was_subscribed {
            one.tries = 0;
            self.opening -= 1;
            self.counts.subscribed += 1;
        }
        match framing.is_done() {
            true => Err(CLOSED.to_owned()),
            false => Ok(()),
        }
    }

    /// A connection did not come about, or broke: the client returns to the next server.
    fn fail(&mut self, client: u32, reason: &str, now_ns: u64) {
        let reasons = &mut self.counts.reasons;
        let has_room = reasons.len() < REASONS_MAX || reasons.contains_key(reason);
        let reason = if has_room { reason } else { "other" };
        *reasons.entry(reason.to_owned()).or_default() += 1;
        let one = &mut self.clients[client as usize];
        one.socket = None;
        one.stage = Stage::Idle;
        let servers = self.plan.servers.len();
        // Clients that lose one server spread over all others.
        let step = 1 + client as usize % servers.saturating_sub(1).max(1);
        one.server = ((usize::from(one.server) + step) % servers) as u16;
        if std::mem::take(&mut one.subscribed) {
            self.counts.subscribed -= 1;
            self.counts.lost += 1;
            self.returns.push(Reverse((now_ns, client)));
            return;
        }
        self.opening -= 1;
        one.tries += 1;
        if one.tries == TRIES_MAX {
            self.counts.over += 1;
            return;
        }
        let wait_ns = RETRY_NS << (one.tries - 1).min(RETRY_DOUBLED_MAX);
        self.returns.push(Reverse((now_ns + wait_ns, client)));
    }

    fn sweep(&mut self, now_ns: u64) {
        if self.opening == 0 {
            return;
        }
        for client in 0..self.counts.begun {
            let one = &self.clients[client as usize];
            let waits = one.socket.is_some() && !one.subscribed;
            if waits && now_ns >= one.since_ns + ANSWER_NS_MAX {
                self.fail(client, "no answer in time", now_ns);
            }
        }
    }
}

/// The token of the pipe.
const PIPE: u64 = u64::MAX - 1;

/// The reason of a loss to the server's end of the connection.
const CLOSED: &str = "closed by the server";

/// How many connections are opened before the others are looked at again.
const OPENED_PER_TURN: u32 = 64;

/// How often in a row a client tries to subscribe.
const TRIES_MAX: u8 = 30;

/// How long a client waits after its first failure to subscribe; each further wait is twice as long, up to 32 times.
const RETRY_NS: u64 = 50 * MILLISECOND_NS;
const RETRY_DOUBLED_MAX: u8 = 5;

/// How long a connection may take to be made and answered.
const ANSWER_NS_MAX: u64 = 30 * SECOND_NS;

/// The most different reasons that are counted.
const REASONS_MAX: usize = 32;

/// The size of the buffer that all clients read into.
const READ_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};

    /// Notes what its only client hears.
    #[derive(Default)]
    struct Notes {
        subscribed: u32,
        data: Vec<String>,
    }

    impl Audience for Notes {
        fn target(&self, client: u32, out: &mut Vec<u8>) {
            out.extend_from_slice(format!("/v1/events?stream=s{client}").as_bytes());
        }

        fn subscribed(&mut self, _client: u32, _now_ns: u64) {
            self.subscribed += 1;
        }

        fn record(&mut self, _client: u32, data: EventData<'_>, _now_ns: u64) {
            let EventData::Line(line) = data else {
                panic!("one line was sent")
            };
            self.data.push(String::from_utf8(line.to_vec()).unwrap());
        }
    }

    /// Accepts a client and sends it these events, in two pieces. Returns its request and its connection.
    fn answer(listener: &TcpListener, events: &str) -> (Vec<String>, TcpStream) {
        let (mut client, _) = listener.accept().unwrap();
        let lines = BufReader::new(&client).lines().map(Result::unwrap);
        let request = lines.take_while(|line| !line.is_empty()).collect();
        let (first, second) = events.split_at(events.len() / 2);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        client
            .write_all(format!("{head}{first}").as_bytes())
            .unwrap();
        client.write_all(second.as_bytes()).unwrap();
        (request, client)
    }

    #[test]
    fn a_client_continues_at_the_next_server_with_its_last_id() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let servers: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        let mut sources = EventSources::new(EventSourcePlan {
            clients: 1,
            sources: Sources::new(servers[0], 1),
            servers,
            opening_max: 1,
        })
        .unwrap();
        let mut notes = Notes::default();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (first, _) = answer(&listeners[0], "id:1\n\ndata: a\nid:2\n\n");
                let (second, open) = answer(&listeners[1], "id:2\n\n: quiet\n\ndata: b\nid:3\n\n");
                (first, second, open)
            });
            while notes.data.len() < 2 {
                sources
                    .turn(monotonic_ns() + MILLISECOND_NS, &mut notes)
                    .unwrap();
            }
            let (first, second, _open) = server.join().unwrap();
            assert_eq!(first[0], "GET /v1/events?stream=s0 HTTP/1.1");
            assert!(!first.iter().any(|line| line.starts_with("Last-Event-ID")));
            assert!(
                second.contains(&"Last-Event-ID: 2".to_owned()),
                "{second:?}"
            );
        });
        assert_eq!(
            (notes.subscribed, notes.data),
            (2, vec!["a".into(), "b".into()])
        );
        let counts = sources.counts();
        assert_eq!((counts.subscribed, counts.lost, counts.over), (1, 1, 0));
        assert_eq!(counts.reasons[CLOSED], 1);
        assert!(sources.is_settled());
    }
}
