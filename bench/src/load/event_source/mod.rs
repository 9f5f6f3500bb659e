//! Clients of event streams, of `/v1/events` or of a single stream, that return as a browser's `EventSource` does: with
//! `Last-Event-ID`, to the next server. Of a server that gives no ids they return with the offset of the last control event.
//!
//! One epoll loop holds all of them. A client has no buffer but for the part of a head or an event whose end has not arrived.

mod audience;
mod client;

pub(crate) use audience::Audience;

use crate::BenchError;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::latency::Latencies;
use crate::load::poller::{Poller, Ready};
use crate::load::socket::{Sources, connected};
use client::{CLOSED, Client, Step};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;

/// How clients connect.
#[derive(Debug, Clone)]
pub(crate) struct EventSourcePlan {
    /// How many connect at the beginning.
    pub(crate) clients: u32,
    /// How many more connect when they are told to, see [`EventSources::open`].
    pub(crate) later_clients: u32,
    /// Where they connect to: the first one, and after a loss the others in turn.
    pub(crate) servers: Vec<SocketAddr>,
    /// Where they connect from.
    pub(crate) sources: Sources,
    /// How many may be connecting at a time.
    pub(crate) opening_max: u32,
    /// How long a client stays away that has hung up.
    pub(crate) away_ns: u64,
}

/// What became of the clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EventSourceCounts {
    /// Clients of the first ones that have connected, or tried to.
    pub(crate) begun: u32,
    /// Clients that are subscribed now.
    pub(crate) subscribed: u32,
    /// Subscriptions whose connection broke.
    pub(crate) lost: u64,
    /// Subscriptions that their clients ended.
    pub(crate) hung_up: u64,
    /// Clients that have given up.
    pub(crate) over: u32,
    /// Clients that have all of a closed stream.
    pub(crate) complete: u32,
    /// Why connections did not come about or broke, and how often.
    pub(crate) reasons: BTreeMap<String, u64>,
}

/// The clients.
pub(crate) struct EventSources {
    plan: EventSourcePlan,
    poller: Poller,
    clients: Vec<Client>,
    sockets: Vec<Option<OwnedFd>>,
    counts: EventSourceCounts,
    /// Clients that are to be subscribed.
    wanted: u32,
    /// Clients that are connecting or wait for their position.
    opening: u32,
    /// Clients that return, each with the time when.
    returns: BinaryHeap<Reverse<(u64, u32)>>,
    swept_ns: u64,
    /// How long each batch of events took.
    batches: Latencies,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    request: Vec<u8>,
}

impl EventSources {
    /// Clients that have not connected yet.
    pub(crate) fn new(plan: EventSourcePlan) -> Result<Self, BenchError> {
        let all = plan.clients + plan.later_clients;
        Ok(Self {
            poller: Poller::new()?,
            clients: (0..all).map(|_| Client::default()).collect(),
            sockets: (0..all).map(|_| None).collect(),
            wanted: plan.clients,
            counts: EventSourceCounts::default(),
            opening: 0,
            returns: BinaryHeap::new(),
            swept_ns: 0,
            batches: Latencies::new(),
            ready: Vec::new(),
            buffer: vec![0; READ_BYTES],
            request: Vec::new(),
            plan,
        })
    }

    /// Watches a pipe: [`EventSources::turn`] says when it can be read.
    pub(crate) fn watch_pipe(&self, pipe: impl AsFd) -> Result<(), BenchError> {
        let added = self.poller.add_readable(pipe, PIPE);
        added.map_err(BenchError::system("watch a pipe"))
    }

    /// What became of the clients so far.
    pub(crate) fn counts(&self) -> &EventSourceCounts {
        &self.counts
    }

    /// How long each batch of events took: as long as that an event may have waited here.
    pub(crate) fn batches(&self) -> &Latencies {
        &self.batches
    }

    /// From now on no client connects for the first time.
    pub(crate) fn stop_opening(&mut self) {
        self.wanted -= self.plan.clients - self.counts.begun;
        self.plan.clients = self.counts.begun;
    }

    /// Whether each client is subscribed, has given up, or has all of a closed stream.
    pub(crate) fn is_settled(&self) -> bool {
        let EventSourceCounts {
            subscribed,
            over,
            complete,
            ..
        } = &self.counts;
        subscribed + over + complete == self.wanted
    }

    /// Has a client connect that is none of the first ones, once.
    pub(crate) fn open(&mut self, client: u32) {
        debug_assert!(client >= self.plan.clients);
        self.wanted += 1;
        self.returns.push(Reverse((0, client)));
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
        let woke_ns = monotonic_ns();
        let mut pipe = false;
        for event in ready.drain(..) {
            match event.token {
                PIPE => pipe = true,
                token => self.serve(token as u32, event, audience),
            }
        }
        self.ready = ready;
        self.batches.record(monotonic_ns() - woke_ns);
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
                _ if self.counts.begun < self.plan.clients => {
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
        one.connecting(now_ns);
        let opened = self.plan.sources.connect(server).and_then(|socket| {
            self.poller.add_socket(&socket, u64::from(client))?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => self.sockets[client as usize] = Some(socket),
            Err(error) => self.fail(client, &error.to_string(), now_ns),
        }
    }

    fn serve(&mut self, client: u32, event: Ready, audience: &mut impl Audience) {
        let Some(socket) = &self.sockets[client as usize] else {
            return;
        };
        if self.clients[client as usize].is_connecting() {
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
        self.request.clear();
        self.clients[client as usize].ask(client, audience, &mut self.request);
        let Some(socket) = &self.sockets[client as usize] else {
            return Err(Errno::NOTCONN);
        };
        // A request of a few hundred bytes always fits into a socket that has nothing else to send.
        match rustix::net::send(socket, &self.request, SendFlags::NOSIGNAL)? {
            sent if sent == self.request.len() => Ok(()),
            _ => Err(Errno::NOBUFS),
        }
    }

    /// Reads until the socket is empty; `to_the_end` when its end may already be there.
    fn read(&mut self, client: u32, to_the_end: bool, audience: &mut impl Audience) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(socket) = &self.sockets[client as usize] {
            let read = rustix::io::read(socket, &mut buffer[..]);
            let now_ns = monotonic_ns();
            let length = match read {
                Ok(0) => {
                    self.fail(client, CLOSED, now_ns);
                    break;
                }
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    self.fail(client, &error.to_string(), now_ns);
                    break;
                }
            };
            let bytes = &buffer[..length];
            match self.receive(client, bytes, now_ns, audience) {
                Ok(Step::Wait) if length < buffer.len() && !to_the_end => break,
                Ok(Step::Wait) => {}
                Ok(Step::HangUp) => self.hang_up(client, now_ns),
                Ok(Step::Over) => self.complete(client),
                Ok(Step::Return(reason)) | Err(reason) => self.fail(client, &reason, now_ns),
            }
        }
        self.buffer = buffer;
    }

    fn receive(
        &mut self,
        client: u32,
        bytes: &[u8],
        now_ns: u64,
        audience: &mut impl Audience,
    ) -> Result<Step, String> {
        let one = &mut self.clients[client as usize];
        let was_subscribed = one.is_subscribed;
        let step = one.receive(client, bytes, now_ns, audience);
        if one.is_subscribed && !was_subscribed {
            one.tries = 0;
            self.opening -= 1;
            self.counts.subscribed += 1;
        }
        step
    }

    /// A client closes its connection without a word.
    fn hang_up(&mut self, client: u32, now_ns: u64) {
        self.sockets[client as usize] = None;
        self.clients[client as usize].disconnected();
        self.counts.subscribed -= 1;
        self.counts.hung_up += 1;
        let return_ns = now_ns + self.plan.away_ns;
        self.returns.push(Reverse((return_ns, client)));
    }

    /// A client has all of a closed stream.
    fn complete(&mut self, client: u32) {
        self.sockets[client as usize] = None;
        match self.clients[client as usize].disconnected() {
            true => self.counts.subscribed -= 1,
            false => self.opening -= 1,
        }
        self.counts.complete += 1;
    }

    /// A connection did not come about, or broke: the client returns to the next server.
    fn fail(&mut self, client: u32, reason: &str, now_ns: u64) {
        let reasons = &mut self.counts.reasons;
        let has_room = reasons.len() < REASONS_MAX || reasons.contains_key(reason);
        let reason = if has_room { reason } else { "other" };
        *reasons.entry(reason.to_owned()).or_default() += 1;
        self.sockets[client as usize] = None;
        let one = &mut self.clients[client as usize];
        let was_subscribed = one.disconnected();
        let servers = self.plan.servers.len();
        // Clients that lose one server spread over all others.
        let step = 1 + client as usize % servers.saturating_sub(1).max(1);
        one.server = ((usize::from(one.server) + step) % servers) as u16;
        if was_subscribed {
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
        for client in 0..self.clients.len() as u32 {
            let one = &self.clients[client as usize];
            let waits = self.sockets[client as usize].is_some() && !one.is_subscribed;
            if waits && now_ns >= one.since_ns + ANSWER_NS_MAX {
                self.fail(client, "no answer in time", now_ns);
            }
        }
    }
}

/// The token of the pipe.
const PIPE: u64 = u64::MAX - 1;

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
mod tests;
