//! The rules of a relay: which node dispatches, and what becomes of requests meanwhile.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use encke_stream::{DispatcherTerm, FleetCommand, Outcome, Refusal, Reply};

use super::session::{Broken, Session};
use super::wire::{DispatcherReply, DispatcherState, NodeMessage, Packet, Part, decode, encode};
use crate::error::JobError;
use crate::message::DispatcherMessage;
use crate::request::{PoolClient, PoolRequest};
use crate::response::PoolResponse;

/// Which node dispatches, and the requests of this node's clients. Times are in milliseconds of a clock that never goes back.
#[derive(Debug)]
pub(super) struct Relay {
    node: Box<str>,
    logs: usize,
    /// How long a request waits for a dispatcher.
    hold_ms: u64,
    role: Role,
    /// The term that this node knows from the order.
    known: Option<DispatcherTerm>,
    /// The clients that expect responses.
    clients: HashMap<PoolClient, Client>,
    /// Requests that wait for a dispatcher, with the time until which they do.
    held: VecDeque<(u64, PoolClient)>,
    held_bytes: usize,
    /// The number of the last term of this run.
    last_number: u64,
    /// The number of the last session. Those of a later run are higher.
    last_session: u64,
    /// The number of the last claim.
    last_claim: u64,
    /// The number of the last node that began a session with this one.
    last_node: u16,
    next_beat_ms: u64,
    stopping: bool,
    effects: Vec<RelayEffect>,
    figures: Arc<RelayFigures>,
}

/// What the thread of the relay does.
#[derive(Debug)]
pub(super) enum RelayEffect {
    /// Send a response to a shard.
    Respond(PoolClient, PoolResponse),
    /// Send this to the log's order; the outcome comes back with the token.
    Submit(FleetCommand, u64),
    /// Send a packet.
    Send(PacketTo, Vec<u8>),
    /// Restore the pools for the term with this number.
    Restore(u64),
    /// Hand this to the dispatcher.
    Dispatch(DispatcherMessage),
    /// Let the dispatcher end what it has begun.
    StopDispatcher,
    /// End the dispatcher at once: what it does has no effect any more.
    AbandonDispatcher,
}

/// Who gets a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketTo {
    /// All nodes of the fleet.
    All,
    /// The node of that name.
    Node(Box<str>),
}

/// Figures of a relay, for metrics.
#[derive(Debug, Default)]
pub struct RelayFigures {
    /// How often this node has become the dispatcher.
    pub takeovers: AtomicU64,
    /// Whether it is the dispatcher.
    pub dispatching: AtomicBool,
    /// Requests that wait for a dispatcher.
    pub held: AtomicU64,
    /// Sessions with other nodes that have broken off.
    pub broken: AtomicU64,
}

#[derive(Debug)]
enum Role {
    /// No dispatcher is known, since this time.
    Waiting {
        since_ms: u64,
        silence_ms: u64,
    },
    /// The command for this log is on its way.
    Claiming {
        term: u64,
        log: usize,
        begun_ms: u64,
    },
    Dispatching(Dispatching),
    /// Another node dispatches.
    Following {
        node: Box<str>,
        term: u64,
        session: Session,
        /// When its last heartbeat came.
        heard_ms: u64,
        /// When it said that it has ended.
        released_ms: Option<u64>,
    },
}

#[derive(Debug)]
struct Dispatching {
    term: u64,
    /// Counts the terms of this run: stale outcomes and restored pools have another one.
    number: u64,
    stage: Stage,
    /// The sessions with other nodes.
    sessions: BTreeMap<u16, (Box<str>, Session)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Restoring,
    Running,
    /// It ends what it has begun.
    Stopping,
}

/// A client that expects responses.
#[derive(Debug)]
struct Client {
    is_worker: bool,
    /// Its request, until a response has come.
    request: Option<PoolRequest>,
    /// The request is among those that wait for a dispatcher.
    held: bool,
}

impl Client {
    fn content_bytes(&self) -> usize {
        self.request.as_ref().map_or(0, PoolRequest::content_bytes)
    }
}

impl Relay {
    /// `run` is higher than at the last start of the node.
    pub(super) fn new(
        now_ms: u64,
        node: &str,
        run: u64,
        logs: usize,
        hold_ms: u64,
        figures: Arc<RelayFigures>,
    ) -> Relay {
        Relay {
            node: node.into(),
            logs,
            hold_ms,
            role: Role::Waiting {
                since_ms: now_ms,
                silence_ms: SILENCE_MAX_MS,
            },
            known: None,
            clients: HashMap::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            last_number: 0,
            last_session: run,
            last_claim: 0,
            last_node: 0,
            next_beat_ms: 0,
            stopping: false,
            effects: Vec::new(),
            figures,
        }
    }

    pub(super) fn take_effects(&mut self) -> Vec<RelayEffect> {
        std::mem::take(&mut self.effects)
    }

    /// The number of clients that expect a response.
    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.clients.len()
    }

    /// Whether this node's dispatcher runs, or its pools are being restored.
    fn is_dispatching(&self) -> bool {
        matches!(self.role, Role::Dispatching(_))
    }

    /// Whether this node has a term, or has asked for one: it must not end before another node may have the next.
    pub(super) fn is_in_office(&self) -> bool {
        matches!(self.role, Role::Dispatching(_) | Role::Claiming { .. })
    }

    /// Handles what time brings. `known`: the term that this node knows from the order. `silence_ms`: how long no broker has
    /// answered; none if this node does not follow the order.
    pub(super) fn tick(
        &mut self,
        now_ms: u64,
        known: Option<DispatcherTerm>,
        silence_ms: Option<u64>,
    ) {
        let ready = silence_ms.is_some_and(|ms| ms < OFFICE_SILENCE_MAX_MS);
        // A claim that waits for the brokers could unseat a dispatcher that this node does not hear.
        let may_claim = silence_ms.is_some_and(|ms| ms < CLAIM_SILENCE_MAX_MS);
        let known_term = known.as_ref().map_or(0, |known| known.term);
        self.known = known;
        match &self.role {
            Role::Dispatching(own) if known_term > own.term => self.lose(now_ms, SILENCE_MAX_MS),
            Role::Dispatching(own) if !ready && own.stage != Stage::Stopping => {
                self.lose(now_ms, SILENCE_MAX_MS);
            }
            Role::Following { term, .. } if known_term > *term => {
                self.lose(now_ms, SILENCE_MAX_MS);
            }
            Role::Following { heard_ms, .. } if now_ms >= heard_ms + SILENCE_MAX_MS => {
                self.lose(now_ms, self.jitter_ms());
            }
            Role::Following {
                released_ms: Some(released_ms),
                ..
            } if now_ms >= released_ms + ENDED_WAIT_MS => self.lose(now_ms, self.jitter_ms()),
            Role::Claiming { begun_ms, .. } if now_ms >= begun_ms + CLAIM_MAX_MS => {
                self.role = Role::Waiting {
                    since_ms: now_ms,
                    silence_ms: SILENCE_MAX_MS,
                };
            }
            Role::Following { session, .. } if now_ms >= session.heard_ms + SESSION_MAX_MS => {
                self.begin_session(now_ms);
            }
            Role::Waiting {
                since_ms,
                silence_ms,
            } if may_claim && !self.stopping => {
                // Nobody dispatches: this node has, before it was started again.
                let is_own = self.last_number == 0
                    && self.known.as_ref().is_some_and(|now| now.node == self.node);
                let patience = match is_own || self.known.is_none() {
                    true => self.jitter_ms(),
                    false => *silence_ms,
                };
                if now_ms >= since_ms + patience {
                    self.claim(now_ms, known_term + 1, 0);
                }
            }
            _ => {}
        }
        if now_ms >= self.next_beat_ms {
            self.next_beat_ms = now_ms + BEAT_MS;
            self.beat(now_ms);
        }
        self.expire(now_ms);
        let held = self.held.len() as u64;
        self.figures.held.store(held, Ordering::Relaxed);
        let dispatching = self.is_dispatching();
        self.figures
            .dispatching
            .store(dispatching, Ordering::Relaxed);
    }

    /// Handles a message of this node's shards, or outcomes of commands.
    pub(super) fn message(&mut self, now_ms: u64, message: DispatcherMessage) {
        match message {
            DispatcherMessage::Request(client, request) => {
                let is_worker =
                    matches!(&request, PoolRequest::Register(work) if work.poll_ms.is_none());
                let request = Some(request);
                let new = Client {
                    is_worker,
                    request,
                    held: false,
                };
                self.clients.insert(client, new);
                self.pass_on(now_ms, client);
            }
            DispatcherMessage::Disconnected(client) => {
                let gone = self.clients.remove(&client);
                if let Some(gone) = gone.filter(|gone| gone.held) {
                    self.held_bytes = self.held_bytes.saturating_sub(gone.content_bytes());
                }
                match &mut self.role {
                    Role::Dispatching(_) => {
                        self.dispatch(DispatcherMessage::Disconnected(client));
                    }
                    Role::Following { .. } => self.send(&NodeMessage::Disconnected(client)),
                    _ => {}
                }
            }
            DispatcherMessage::Committed(replies) => self.committed(now_ms, replies),
            _ => {}
        }
    }

    /// Handles a response of this node's dispatcher.
    pub(super) fn response(&mut self, now_ms: u64, client: PoolClient, response: PoolResponse) {
        if client.node == 0 {
            return self.respond(now_ms, client, response);
        }
        let Role::Dispatching(own) = &mut self.role else {
            return;
        };
        let Some((node, session)) = own.sessions.get_mut(&client.node) else {
            if response.needs_client() {
                self.dispatch(DispatcherMessage::Disconnected(client));
            }
            return;
        };
        let reply = DispatcherReply::Response(PoolClient { node: 0, ..client }, response);
        reply_to(&mut self.effects, own.term, node, session, &reply);
    }

    /// Whether the pools are to be restored for the term with this number.
    pub(super) fn expects(&self, number: u64) -> bool {
        matches!(&self.role, Role::Dispatching(own)
            if own.number == number && own.stage == Stage::Restoring)
    }

    /// The pools are restored, for the term with this number. False: they are not needed any more.
    pub(super) fn restored(&mut self, now_ms: u64, number: u64) -> bool {
        let Role::Dispatching(own) = &mut self.role else {
            return false;
        };
        if own.number != number || own.stage != Stage::Restoring {
            return false;
        }
        own.stage = Stage::Running;
        self.figures.takeovers.fetch_add(1, Ordering::Relaxed);
        self.beat(now_ms);
        self.pass_on_held(now_ms);
        if self.stopping {
            self.stop_dispatcher();
        }
        true
    }

    /// The pools cannot be restored: another node may have more luck.
    pub(super) fn not_restored(&mut self, now_ms: u64, number: u64) {
        if matches!(&self.role, Role::Dispatching(own) if own.number == number) {
            self.release(DispatcherState::Failed);
            self.lose(now_ms, SILENCE_MAX_MS);
        }
    }

    /// The dispatcher for the term with this number has ended: after [`RelayEffect::StopDispatcher`], or by a panic.
    pub(super) fn ended(&mut self, now_ms: u64, number: u64) {
        let stage = match &self.role {
            Role::Dispatching(own) if own.number == number => own.stage,
            _ => return,
        };
        if stage == Stage::Running {
            tracing::error!("the dispatcher has ended by itself");
            self.release(DispatcherState::Failed);
            return self.lose(now_ms, SILENCE_MAX_MS);
        }
        if stage == Stage::Stopping {
            self.end_sessions();
            self.release(DispatcherState::Released);
            self.hold_unanswered(now_ms);
            self.role = Role::Waiting {
                since_ms: now_ms,
                silence_ms: SILENCE_MAX_MS,
            };
        }
    }

    /// Tells the other nodes that the dispatcher has ended and has taken no request that it has not answered.
    fn end_sessions(&mut self) {
        if let Role::Dispatching(own) = &mut self.role {
            for (node, session) in own.sessions.values_mut() {
                let ended = DispatcherReply::Ended;
                reply_to(&mut self.effects, own.term, node, session, &ended);
            }
        }
    }

    /// Requests without a response wait for the next dispatcher.
    fn hold_unanswered(&mut self, now_ms: u64) {
        let unanswered = self.clients.iter().filter(|(_, client)| !client.held);
        let unanswered: Vec<_> = unanswered
            .map(|(client, state)| (*client, state.request.is_some()))
            .collect();
        for (client, has_request) in unanswered {
            match has_request {
                true => self.hold(now_ms, client),
                false => self.respond(now_ms, client, PoolResponse::Stopping),
            }
        }
    }

    /// The server stops: this node dispatches no more, and its workers are told.
    pub(super) fn stop(&mut self, now_ms: u64) {
        self.stopping = true;
        if self.is_dispatching() {
            self.stop_dispatcher();
        }
        let workers = self.clients.iter().filter(|(_, client)| client.is_worker);
        let workers: Vec<_> = workers.map(|(client, _)| *client).collect();
        for client in workers {
            // The dispatcher of this node tells its own.
            if !self.is_dispatching() {
                self.message(now_ms, DispatcherMessage::Disconnected(client));
                self.effects
                    .push(RelayEffect::Respond(client, PoolResponse::Stopping));
            }
        }
    }

    /// No request follows: everything that waits is refused.
    pub(super) fn quit(&mut self) {
        for (client, _) in std::mem::take(&mut self.clients) {
            let refused = PoolResponse::Refused(JobError::Stopping);
            self.effects.push(RelayEffect::Respond(client, refused));
        }
        self.held.clear();
    }

    /// Handles a packet of another node.
    pub(super) fn packet(&mut self, now_ms: u64, packet: &[u8]) {
        match decode::<Packet<'_>>(packet) {
            Some(Packet::Heartbeat { node, term, state }) => {
                self.heartbeat(now_ms, &node, term, state);
            }
            Some(Packet::ToDispatcher {
                node,
                term,
                session,
                part,
            }) => self.take_request_part(now_ms, &node, term, session, part),
            Some(Packet::ToNode {
                term,
                session,
                part,
            }) => self.take_reply_part(now_ms, term, session, part),
            Some(Packet::Reset { term, session }) => {
                let is_own = matches!(&self.role, Role::Following { term: own, session: now, .. }
                    if *own == term && now.number == session);
                if is_own {
                    self.begin_session(now_ms);
                }
            }
            None => tracing::debug!("a packet that is no packet of the pools"),
        }
    }

    fn heartbeat(&mut self, now_ms: u64, node: &str, term: u64, state: DispatcherState) {
        let known = self.known.as_ref().map_or(0, |known| known.term);
        if *node == *self.node || term < known {
            return;
        }
        match &mut self.role {
            Role::Following {
                term: own,
                heard_ms,
                released_ms,
                ..
            } if *own == term => {
                // The end of a dispatcher comes in the session, behind its last response.
                match state {
                    DispatcherState::Restoring | DispatcherState::Running => *heard_ms = now_ms,
                    DispatcherState::Released => {
                        released_ms.get_or_insert(now_ms);
                    }
                    DispatcherState::Failed => self.lose(now_ms, self.jitter_ms()),
                }
            }
            Role::Dispatching(own) if own.term >= term => {}
            Role::Following { term: own, .. } if *own > term => {}
            // It may be that this node has the next term in a moment.
            Role::Claiming { .. } => {}
            _ => {
                let silence_ms = match state {
                    DispatcherState::Released | DispatcherState::Failed => self.jitter_ms(),
                    DispatcherState::Restoring | DispatcherState::Running => SILENCE_MAX_MS,
                };
                self.lose(now_ms, silence_ms);
                if state != DispatcherState::Running {
                    return;
                }
                self.last_session += 1;
                self.role = Role::Following {
                    node: node.into(),
                    term,
                    session: Session::new(self.last_session, now_ms),
                    heard_ms: now_ms,
                    released_ms: None,
                };
                self.send(&NodeMessage::Alive);
                self.pass_on_held(now_ms);
            }
        }
    }

    fn take_request_part(
        &mut self,
        now_ms: u64,
        node: &str,
        term: u64,
        session: u64,
        part: Part<'_>,
    ) {
        let Role::Dispatching(own) = &mut self.role else {
            return;
        };
        if own.term != term || own.stage == Stage::Restoring {
            return;
        }
        let known = own.sessions.iter().find(|(_, (name, _))| **name == *node);
        let known = known.map(|(number, (_, known))| (*number, known.number));
        let number = match known {
            Some((number, known)) if known == session => number,
            // It is older, and was given up.
            Some((_, known)) if known > session && part.number != 0 => return,
            known => {
                if let Some((number, _)) = known {
                    self.end_session(number);
                }
                if part.number != 0 {
                    return self.reset(node, term, session);
                }
                let Some(number) = self.begin_node(now_ms, node, session) else {
                    return;
                };
                number
            }
        };
        let Role::Dispatching(own) = &mut self.role else {
            return;
        };
        let Some((_, open)) = own.sessions.get_mut(&number) else {
            return;
        };
        match open.take(now_ms, part) {
            Ok(None) => {}
            Ok(Some(message)) => match decode::<NodeMessage>(&message) {
                Some(NodeMessage::Request(client, request)) => {
                    let client = PoolClient {
                        node: number,
                        ..client
                    };
                    self.dispatch(DispatcherMessage::Request(client, request));
                }
                Some(NodeMessage::Disconnected(client)) => {
                    let client = PoolClient {
                        node: number,
                        ..client
                    };
                    self.dispatch(DispatcherMessage::Disconnected(client));
                }
                Some(NodeMessage::Alive) => {}
                // A node with another version of Encke.
                None => self.break_session(number, node, term, session),
            },
            Err(Broken) => self.break_session(number, node, term, session),
        }
    }

    fn take_reply_part(&mut self, now_ms: u64, term: u64, session: u64, part: Part<'_>) {
        let Role::Following {
            term: own,
            session: open,
            ..
        } = &mut self.role
        else {
            return;
        };
        if *own != term || open.number != session {
            return;
        }
        match open.take(now_ms, part) {
            Ok(None) => {}
            Ok(Some(message)) => match decode::<DispatcherReply>(&message) {
                Some(DispatcherReply::Response(client, response)) => {
                    self.respond(now_ms, client, response);
                }
                Some(DispatcherReply::Alive) => {}
                Some(DispatcherReply::Ended) => {
                    self.hold_unanswered(now_ms);
                    self.lose(now_ms, self.jitter_ms());
                }
                None => self.begin_session(now_ms),
            },
            Err(Broken) => self.begin_session(now_ms),
        }
    }

    /// A new node, with the number that its clients have at the dispatcher. None: too many nodes.
    fn begin_node(&mut self, now_ms: u64, node: &str, session: u64) -> Option<u16> {
        let Role::Dispatching(own) = &mut self.role else {
            return None;
        };
        if own.sessions.len() >= usize::from(u16::MAX) - 1 {
            return None;
        }
        loop {
            self.last_node = self.last_node.wrapping_add(1).max(1);
            if !own.sessions.contains_key(&self.last_node) {
                break;
            }
        }
        let session = Session::new(session, now_ms);
        own.sessions.insert(self.last_node, (node.into(), session));
        Some(self.last_node)
    }

    fn break_session(&mut self, number: u16, node: &str, term: u64, session: u64) {
        self.end_session(number);
        self.reset(node, term, session);
    }

    fn reset(&mut self, node: &str, term: u64, session: u64) {
        self.figures.broken.fetch_add(1, Ordering::Relaxed);
        let packet = encode(&Packet::Reset { term, session });
        self.effects
            .push(RelayEffect::Send(PacketTo::Node(node.into()), packet));
    }

    /// The clients of a node's session are gone.
    fn end_session(&mut self, number: u16) {
        if let Role::Dispatching(own) = &mut self.role {
            own.sessions.remove(&number);
            self.dispatch(DispatcherMessage::NodeGone(number));
        }
    }

    /// Begins another session with the dispatcher: what was sent in the last one may have been carried out or not.
    fn begin_session(&mut self, now_ms: u64) {
        self.figures.broken.fetch_add(1, Ordering::Relaxed);
        self.last_session += 1;
        let number = self.last_session;
        if let Role::Following { session, .. } = &mut self.role {
            *session = Session::new(number, now_ms);
        }
        self.give_up_clients();
    }

    fn claim(&mut self, now_ms: u64, term: u64, log: usize) {
        self.last_claim += 1;
        self.role = Role::Claiming {
            term,
            log,
            begun_ms: now_ms,
        };
        let next = DispatcherTerm {
            node: self.node.clone(),
            term,
        };
        let command = FleetCommand::Dispatch { log, next };
        self.effects
            .push(RelayEffect::Submit(command, CLAIM_TOKEN | self.last_claim));
    }

    fn committed(&mut self, now_ms: u64, replies: Vec<Reply>) {
        let mut commands = Vec::new();
        for reply in replies {
            match reply.token & CLAIM_TOKEN {
                0 => commands.push(reply),
                _ => self.claimed(now_ms, reply.token, &reply.outcome),
            }
        }
        let Role::Dispatching(own) = &self.role else {
            return;
        };
        let first = own.number << OP_BITS;
        commands.retain(|reply| reply.token >= first);
        // What the dispatcher believes may not be what the log has: it begins again.
        let lost = commands.iter().any(|reply| {
            let refusal = match &reply.outcome {
                Outcome::Refused(refusal) => refusal,
                _ => return false,
            };
            matches!(refusal, Refusal::Unknown(_) | Refusal::NotDispatcher)
        });
        if lost {
            self.release(DispatcherState::Failed);
            self.lose(now_ms, SILENCE_MAX_MS);
        } else if !commands.is_empty() {
            self.dispatch(DispatcherMessage::Committed(commands));
        }
    }

    /// The outcome of a claim.
    pub(super) fn claimed(&mut self, now_ms: u64, token: u64, outcome: &Outcome) {
        let Role::Claiming { term, log, .. } = self.role else {
            return;
        };
        if token != CLAIM_TOKEN | self.last_claim {
            return;
        }
        if *outcome != Outcome::Done {
            tracing::debug!(?outcome, term, "another node dispatches");
            self.role = Role::Waiting {
                since_ms: now_ms,
                silence_ms: SILENCE_MAX_MS,
            };
            return;
        }
        if log + 1 < self.logs {
            return self.claim(now_ms, term, log + 1);
        }
        tracing::info!(term, "this node dispatches the jobs of the fleet");
        self.last_number += 1;
        let number = self.last_number;
        self.role = Role::Dispatching(Dispatching {
            term,
            number,
            stage: Stage::Restoring,
            sessions: BTreeMap::new(),
        });
        if self.stopping {
            // It was asked for before.
            self.release(DispatcherState::Released);
            return self.lose(now_ms, SILENCE_MAX_MS);
        }
        self.effects.push(RelayEffect::Restore(number));
        self.beat(now_ms);
    }

    /// The first number of the commands of a term.
    pub(super) fn first_op(number: u64) -> u64 {
        number << OP_BITS
    }

    fn beat(&mut self, now_ms: u64) {
        match &mut self.role {
            Role::Dispatching(own) => {
                let beat = Packet::Heartbeat {
                    node: self.node.clone(),
                    term: own.term,
                    state: match own.stage {
                        Stage::Running => DispatcherState::Running,
                        // No node begins to follow one that stops.
                        Stage::Restoring | Stage::Stopping => DispatcherState::Restoring,
                    },
                };
                let beat = RelayEffect::Send(PacketTo::All, encode(&beat));
                self.effects.push(beat);
                let over = |(_, session): &(Box<str>, Session)| {
                    now_ms >= session.heard_ms + SESSION_MAX_MS
                };
                let (lost, open): (Vec<_>, Vec<_>) =
                    own.sessions.iter_mut().partition(|(_, one)| over(one));
                for (_, (node, session)) in open {
                    let alive = DispatcherReply::Alive;
                    reply_to(&mut self.effects, own.term, node, session, &alive);
                }
                let lost: Vec<u16> = lost.into_iter().map(|(number, _)| *number).collect();
                for number in lost {
                    self.figures.broken.fetch_add(1, Ordering::Relaxed);
                    self.end_session(number);
                }
            }
            Role::Following { .. } => self.send(&NodeMessage::Alive),
            Role::Waiting { .. } | Role::Claiming { .. } => {}
        }
    }

    /// Tells the others that another node may take over.
    fn release(&mut self, state: DispatcherState) {
        if let Role::Dispatching(own) = &self.role {
            let beat = Packet::Heartbeat {
                node: self.node.clone(),
                term: own.term,
                state,
            };
            self.effects
                .push(RelayEffect::Send(PacketTo::All, encode(&beat)));
        }
    }

    fn stop_dispatcher(&mut self) {
        if let Role::Dispatching(own) = &mut self.role
            && own.stage == Stage::Running
        {
            own.stage = Stage::Stopping;
            self.effects.push(RelayEffect::StopDispatcher);
        }
    }

    /// The dispatcher is gone or another one: asks for the next term after `silence_ms` without a heartbeat.
    fn lose(&mut self, now_ms: u64, silence_ms: u64) {
        if let Role::Dispatching(own) = &self.role {
            tracing::info!(
                term = own.term,
                "this node dispatches the jobs of the fleet no longer"
            );
            self.effects.push(RelayEffect::AbandonDispatcher);
        }
        self.role = Role::Waiting {
            since_ms: now_ms,
            silence_ms,
        };
        self.give_up_clients();
    }

    /// The responses that clients wait for will not come. Requests that were not sent go on waiting.
    fn give_up_clients(&mut self) {
        let effects = &mut self.effects;
        self.clients.retain(|client, state| {
            if !state.held {
                let response = match state.is_worker {
                    true => PoolResponse::Stopping,
                    false => PoolResponse::Refused(JobError::NoDispatcher),
                };
                effects.push(RelayEffect::Respond(*client, response));
            }
            state.held
        });
    }

    /// Hands a client's request to the dispatcher, or lets it wait for one.
    fn pass_on(&mut self, now_ms: u64, client: PoolClient) {
        let state = self.clients.get(&client);
        let Some(request) = state.and_then(|state| state.request.clone()) else {
            return;
        };
        match &mut self.role {
            Role::Dispatching(own) if own.stage == Stage::Running => {
                self.dispatch(DispatcherMessage::Request(client, request));
            }
            Role::Following { .. } => self.send(&NodeMessage::Request(client, request)),
            _ => self.hold(now_ms, client),
        }
    }

    fn hold(&mut self, now_ms: u64, client: PoolClient) {
        if self.held.len() >= HELD_MAX || self.held_bytes >= HELD_BYTES_MAX {
            self.clients.remove(&client);
            let response = PoolResponse::overloaded();
            return self.effects.push(RelayEffect::Respond(client, response));
        }
        let Some(state) = self.clients.get_mut(&client) else {
            return;
        };
        state.held = true;
        self.held_bytes += state.content_bytes();
        self.held.push_back((now_ms + self.hold_ms, client));
    }

    fn pass_on_held(&mut self, now_ms: u64) {
        self.held_bytes = 0;
        for (_, client) in std::mem::take(&mut self.held) {
            if let Some(state) = self.clients.get_mut(&client) {
                state.held = false;
                self.pass_on(now_ms, client);
            }
        }
    }

    /// Refuses requests that have waited for too long.
    fn expire(&mut self, now_ms: u64) {
        while let Some((until_ms, client)) = self.held.front().copied()
            && until_ms <= now_ms
        {
            self.held.pop_front();
            if let Some(state) = self.clients.remove(&client) {
                self.held_bytes = self.held_bytes.saturating_sub(state.content_bytes());
                let refused = PoolResponse::Refused(JobError::NoDispatcher);
                self.effects.push(RelayEffect::Respond(client, refused));
            }
        }
        if self.held.is_empty() {
            self.held_bytes = 0;
        }
    }

    /// Sends a response to a shard.
    fn respond(&mut self, now_ms: u64, client: PoolClient, response: PoolResponse) {
        // The dispatcher stops, and has not taken the request.
        let again = matches!(response, PoolResponse::Refused(JobError::Stopping));
        if let Some(state) = self.clients.get_mut(&client) {
            let registers = matches!(state.request, Some(PoolRequest::Register(_)));
            // A node that stops has no workers.
            if again && state.request.is_some() && !(registers && self.stopping) {
                return self.hold(now_ms, client);
            }
            state.request = None;
            let goes_on = matches!(
                response,
                PoolResponse::Registered { .. } | PoolResponse::Dispatched(_)
            );
            if !state.is_worker || !goes_on {
                self.clients.remove(&client);
            }
        }
        self.effects.push(RelayEffect::Respond(client, response));
    }

    fn dispatch(&mut self, message: DispatcherMessage) {
        self.effects.push(RelayEffect::Dispatch(message));
    }

    /// Sends a message to the dispatcher.
    fn send(&mut self, message: &NodeMessage) {
        let Role::Following {
            node,
            term,
            session,
            ..
        } = &mut self.role
        else {
            return;
        };
        let number = session.number;
        let (effects, own) = (&mut self.effects, &self.node);
        session.send(message, |part| {
            let packet = Packet::ToDispatcher {
                node: own.clone(),
                term: *term,
                session: number,
                part,
            };
            let to = PacketTo::Node(node.clone());
            effects.push(RelayEffect::Send(to, encode(&packet)));
        });
    }

    /// Nodes ask for a term at different times, so that one request is enough.
    fn jitter_ms(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.node.hash(&mut hasher);
        self.known
            .as_ref()
            .map(|known| known.term)
            .hash(&mut hasher);
        hasher.finish() % JITTER_MS
    }
}

fn reply_to(
    effects: &mut Vec<RelayEffect>,
    term: u64,
    node: &str,
    session: &mut Session,
    reply: &DispatcherReply,
) {
    let number = session.number;
    session.send(reply, |part| {
        let packet = Packet::ToNode {
            term,
            session: number,
            part,
        };
        let to = PacketTo::Node(node.into());
        effects.push(RelayEffect::Send(to, encode(&packet)));
    });
}

/// After this long without a heartbeat of the dispatcher, in milliseconds, a node asks for the next term.
pub const SILENCE_MAX_MS: u64 = 2_500;

/// The tokens of claims have this bit; those of the dispatcher's commands have not.
const CLAIM_TOKEN: u64 = 1 << 63;

/// A node that has heard no broker for this long leaves its office, in milliseconds.
const OFFICE_SILENCE_MAX_MS: u64 = 5_000;

/// And asks for none.
const CLAIM_SILENCE_MAX_MS: u64 = 1_500;

/// A claim without an outcome is over after this long.
const CLAIM_MAX_MS: u64 = 15_000;

/// The last messages of a dispatcher that has ended may take this long.
const ENDED_WAIT_MS: u64 = 300;

/// The numbers of a term's commands begin with that of the term, above this many bits.
const OP_BITS: u32 = 40;

/// The time between two heartbeats.
pub(super) const BEAT_MS: u64 = 500;

/// After this long without a message of the other end a session is over.
pub(super) const SESSION_MAX_MS: u64 = 2_500;

/// Nodes wait for different times below this before they ask for a term.
const JITTER_MS: u64 = 400;

/// The most requests that wait for a dispatcher.
pub(super) const HELD_MAX: usize = 10_000;

/// The most content of requests that wait for a dispatcher.
const HELD_BYTES_MAX: usize = 64 << 20;
