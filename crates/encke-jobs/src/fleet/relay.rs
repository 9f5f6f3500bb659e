//! The rules of a relay: which node dispatches, and what becomes of requests meanwhile.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use encke_stream::{DispatcherTerm, FleetCommand, Outcome, Refusal, Reply, StreamChange};

use super::session::Session;
use super::unconfirmed::Unconfirmed;
use super::wire::{DispatcherState, NodeMessage, Packet, decode, encode};
use crate::message::DispatcherMessage;
use crate::op_number::{OpKind, first_op};
use crate::request::{DispatchClient, DispatchRequest};
use crate::response::DispatchResponse;

/// Which node dispatches, and the requests of this node's clients.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) node: Box<str>,
    pub(super) logs: usize,
    /// How long a request waits for a dispatcher.
    pub(super) hold_max: Duration,
    pub(super) role: Role,
    /// The term that this node knows from the order.
    pub(super) known: Option<DispatcherTerm>,
    /// The clients that expect responses.
    pub(super) clients: HashMap<DispatchClient, Client>,
    /// Requests that wait for a dispatcher, with the time until which they do.
    pub(super) held: VecDeque<(Instant, DispatchClient)>,
    pub(super) held_bytes: usize,
    /// The number of the last term of this run.
    pub(super) last_number: u64,
    /// The number of the last session. Those of a later run are higher.
    pub(super) last_session: u64,
    /// The number of the last claim.
    pub(super) last_claim: u64,
    /// The number of the last check whether this node still dispatches.
    pub(super) last_check: u64,
    /// The number of the last node that began a session with this one.
    pub(super) last_node: u16,
    pub(super) next_beat_at: Instant,
    pub(super) stopping: bool,
    pub(super) effects: Vec<RelayEffect>,
    pub(super) figures: Arc<RelayFigures>,
}

/// What the thread of the relay does.
#[derive(Debug)]
pub(super) enum RelayEffect {
    /// Send a response to a shard.
    Respond(DispatchClient, DispatchResponse),
    /// Send this to the log's order; the outcome comes back with the token.
    Submit(FleetCommand, u64),
    /// Send a packet.
    Send(PacketTo, Vec<u8>),
    /// Restore the machines for the term with this number.
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
pub(super) enum Role {
    /// No dispatcher is known, since this time.
    Waiting {
        since: Instant,
        silence_max: Duration,
    },
    /// The command for this log is on its way.
    Claiming {
        term: u64,
        log: usize,
        begun_at: Instant,
    },
    Dispatching(Dispatching),
    /// Another node dispatches.
    Following {
        node: Box<str>,
        term: u64,
        session: Session,
        /// When its last heartbeat came.
        heard_at: Instant,
        /// When it said that it has ended.
        released_at: Option<Instant>,
    },
}

#[derive(Debug)]
pub(super) struct Dispatching {
    pub(super) term: u64,
    /// Counts the terms of this run: stale outcomes and restored pools have another one.
    pub(super) number: u64,
    pub(super) stage: Stage,
    /// The sessions with other nodes.
    pub(super) sessions: BTreeMap<u16, (Box<str>, Session)>,
    /// Responses from memory.
    pub(super) unconfirmed: Unconfirmed,
    /// Changes of streams that came while the machines were restored: what was read may lack them.
    pub(super) early: Vec<StreamChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Restoring,
    Running,
    /// It ends what it has begun.
    Stopping,
}

/// A client that expects responses.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) is_worker: bool,
    /// Its request, until a response has come.
    pub(super) request: Option<DispatchRequest>,
    /// The request is among those that wait for a dispatcher.
    pub(super) held: bool,
    /// Its credentials have ended: the request is not sent to another dispatcher.
    pub(super) ended: bool,
}

impl Client {
    pub(super) fn content_bytes(&self) -> usize {
        self.request
            .as_ref()
            .map_or(0, DispatchRequest::content_bytes)
    }
}

impl Relay {
    /// `run` is higher than at the last start of the node.
    pub(super) fn new(
        now: Instant,
        node: &str,
        run: u64,
        logs: usize,
        hold_max: Duration,
        figures: Arc<RelayFigures>,
    ) -> Relay {
        Relay {
            node: node.into(),
            logs,
            hold_max,
            role: Role::Waiting {
                since: now,
                silence_max: SILENCE_MAX,
            },
            known: None,
            clients: HashMap::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            last_number: 0,
            last_session: run,
            last_claim: 0,
            last_check: 0,
            last_node: 0,
            next_beat_at: now,
            stopping: false,
            effects: Vec::new(),
            figures,
        }
    }

    pub(super) fn take_effects(&mut self) -> Vec<RelayEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether this node's dispatcher runs, or its machines are being restored.
    pub(super) fn is_dispatching(&self) -> bool {
        matches!(self.role, Role::Dispatching(_))
    }

    /// Whether this node has a term, or has asked for one: it must not end before another node may have the next.
    pub(super) fn is_in_office(&self) -> bool {
        matches!(self.role, Role::Dispatching(_) | Role::Claiming { .. })
    }

    /// Handles what time brings. `known`: the term that this node knows from the order, read after all replies before. `silence`: how long no broker has
    /// answered; none if this node does not follow the order.
    pub(super) fn tick(
        &mut self,
        now: Instant,
        known: Option<DispatcherTerm>,
        silence: Option<Duration>,
    ) {
        let ready = silence.is_some_and(|silence| silence < OFFICE_SILENCE_MAX);
        // A claim that waits for the brokers could unseat a dispatcher that this node does not hear.
        let may_claim = silence.is_some_and(|silence| silence < CLAIM_SILENCE_MAX);
        let known_term = known.as_ref().map_or(0, |known| known.term);
        self.known = known;
        match &self.role {
            Role::Dispatching(own) if known_term > own.term => self.lose(now, SILENCE_MAX),
            Role::Dispatching(own) if !ready && own.stage != Stage::Stopping => {
                self.lose(now, SILENCE_MAX);
            }
            Role::Following { term, .. } if known_term > *term => {
                self.lose(now, SILENCE_MAX);
            }
            Role::Following { heard_at, .. } if now >= *heard_at + SILENCE_MAX => {
                self.lose(now, self.jitter());
            }
            Role::Following {
                released_at: Some(released_at),
                ..
            } if now >= *released_at + ENDED_WAIT => self.lose(now, self.jitter()),
            Role::Claiming { begun_at, .. } if now >= *begun_at + CLAIM_MAX => {
                self.role = Role::Waiting {
                    since: now,
                    silence_max: SILENCE_MAX,
                };
            }
            Role::Following { session, .. } if now >= session.heard_at + SESSION_MAX => {
                self.begin_session(now);
            }
            Role::Waiting { since, silence_max } if may_claim && !self.stopping => {
                // No node dispatches: this one held the last term, before its restart.
                let is_own = self.last_number == 0
                    && self.known.as_ref().is_some_and(|now| now.node == self.node);
                let wait_max = match is_own || self.known.is_none() {
                    true => self.jitter(),
                    false => *silence_max,
                };
                if now >= *since + wait_max {
                    self.claim(now, known_term + 1, 0);
                }
            }
            _ => {}
        }
        self.confirm(now);
        if now >= self.next_beat_at {
            self.next_beat_at = now + BEAT;
            self.beat(now);
        }
        self.expire(now);
        let held = self.held.len() as u64;
        self.figures.held.store(held, Ordering::Relaxed);
        let dispatching = self.is_dispatching();
        self.figures
            .dispatching
            .store(dispatching, Ordering::Relaxed);
    }

    /// Whether the machines are to be restored for the term with this number.
    pub(super) fn expects(&self, number: u64) -> bool {
        matches!(&self.role, Role::Dispatching(own)
            if own.number == number && own.stage == Stage::Restoring)
    }

    /// The machines are restored, for the term with this number. False: they are not needed any more.
    pub(super) fn restored(&mut self, now: Instant, number: u64) -> bool {
        let Role::Dispatching(own) = &mut self.role else {
            return false;
        };
        if own.number != number || own.stage != Stage::Restoring {
            return false;
        }
        own.stage = Stage::Running;
        let early = std::mem::take(&mut own.early);
        if !early.is_empty() {
            self.dispatch(DispatcherMessage::Changed(early));
        }
        self.figures.takeovers.fetch_add(1, Ordering::Relaxed);
        self.beat(now);
        self.pass_on_held(now);
        if self.stopping {
            self.stop_dispatcher();
        }
        true
    }

    /// Handles changes of streams that concern the subscriptions.
    pub(super) fn changed(&mut self, now: Instant, changes: Vec<StreamChange>) {
        match &mut self.role {
            Role::Dispatching(own) if own.stage == Stage::Restoring => {
                own.early.extend(changes);
                if own.early.len() > EARLY_MAX {
                    self.overrun(now);
                }
            }
            Role::Dispatching(_) => self.dispatch(DispatcherMessage::Changed(changes)),
            // Of a term that is over.
            _ => {}
        }
    }

    /// This node does not keep up with the changes of streams: the next dispatcher finds them in the log.
    pub(super) fn overrun(&mut self, now: Instant) {
        tracing::error!("the dispatcher does not keep up with the commits of streams");
        self.release(DispatcherState::Failed);
        self.lose(now, SILENCE_MAX);
    }

    /// The machines cannot be restored: another node may have more luck.
    pub(super) fn not_restored(&mut self, now: Instant, number: u64) {
        if matches!(&self.role, Role::Dispatching(own) if own.number == number) {
            self.release(DispatcherState::Failed);
            self.lose(now, SILENCE_MAX);
        }
    }

    /// The dispatcher for the term with this number has ended: after [`RelayEffect::StopDispatcher`], or by a panic.
    pub(super) fn ended(&mut self, now: Instant, number: u64) {
        let stage = match &self.role {
            Role::Dispatching(own) if own.number == number => own.stage,
            _ => return,
        };
        if stage == Stage::Running {
            tracing::error!("the dispatcher has ended by itself");
            self.release(DispatcherState::Failed);
            return self.lose(now, SILENCE_MAX);
        }
        if stage == Stage::Stopping {
            self.give_up_unconfirmed(now);
            self.end_sessions();
            self.release(DispatcherState::Released);
            self.hold_unanswered(now);
            self.role = Role::Waiting {
                since: now,
                silence_max: SILENCE_MAX,
            };
        }
    }

    /// The server stops: this node dispatches no more, and its workers are told.
    pub(super) fn stop(&mut self, now: Instant) {
        self.stopping = true;
        if self.is_dispatching() {
            self.stop_dispatcher();
        }
        let workers = self.clients.iter().filter(|(_, client)| client.is_worker);
        let workers: Vec<_> = workers.map(|(client, _)| *client).collect();
        for client in workers {
            // The dispatcher of this node tells its own.
            if !self.is_dispatching() {
                self.message(now, DispatcherMessage::Disconnected(client));
                self.effects
                    .push(RelayEffect::Respond(client, DispatchResponse::Stopping));
            }
        }
    }

    /// Handles a packet of another node.
    pub(super) fn packet(&mut self, now: Instant, packet: &[u8]) {
        match decode::<Packet<'_>>(packet) {
            Some(Packet::Heartbeat { node, term, state }) => {
                self.heartbeat(now, &node, term, state);
            }
            Some(Packet::ToDispatcher {
                node,
                term,
                session,
                part,
            }) => self.take_request_part(now, &node, term, session, part),
            Some(Packet::ToNode {
                term,
                session,
                part,
            }) => self.take_reply_part(now, term, session, part),
            Some(Packet::Reset { term, session }) => {
                let is_own = matches!(&self.role, Role::Following { term: own, session: now, .. }
                    if *own == term && now.number == session);
                if is_own {
                    self.begin_session(now);
                }
            }
            None => tracing::debug!("a packet that is no packet of the pools"),
        }
    }

    fn heartbeat(&mut self, now: Instant, node: &str, term: u64, state: DispatcherState) {
        let known = self.known.as_ref().map_or(0, |known| known.term);
        if *node == *self.node || term < known {
            return;
        }
        match &mut self.role {
            Role::Following {
                term: own,
                heard_at,
                released_at,
                ..
            } if *own == term => {
                // The end of a dispatcher comes in the session, behind its last response.
                match state {
                    DispatcherState::Restoring | DispatcherState::Running => *heard_at = now,
                    DispatcherState::Released => {
                        released_at.get_or_insert(now);
                    }
                    DispatcherState::Failed => self.lose(now, self.jitter()),
                }
            }
            Role::Dispatching(own) if own.term >= term => {}
            Role::Following { term: own, .. } if *own > term => {}
            // It may be that this node has the next term in a moment.
            Role::Claiming { .. } => {}
            _ => {
                let silence_max = match state {
                    DispatcherState::Released | DispatcherState::Failed => self.jitter(),
                    DispatcherState::Restoring | DispatcherState::Running => SILENCE_MAX,
                };
                self.lose(now, silence_max);
                if state != DispatcherState::Running {
                    return;
                }
                self.last_session += 1;
                self.role = Role::Following {
                    node: node.into(),
                    term,
                    session: Session::new(self.last_session, now),
                    heard_at: now,
                    released_at: None,
                };
                self.send(&NodeMessage::Alive);
                self.pass_on_held(now);
            }
        }
    }

    fn claim(&mut self, now: Instant, term: u64, log: usize) {
        self.last_claim += 1;
        self.role = Role::Claiming {
            term,
            log,
            begun_at: now,
        };
        let next = DispatcherTerm {
            node: self.node.clone(),
            term,
        };
        let command = FleetCommand::Dispatch { log, next };
        self.effects
            .push(RelayEffect::Submit(command, CLAIM_TOKEN | self.last_claim));
    }

    pub(super) fn committed(&mut self, now: Instant, replies: Vec<Reply>) {
        let mut commands = Vec::new();
        for reply in replies {
            match reply.token & (CLAIM_TOKEN | CHECK_TOKEN) {
                0 => commands.push(reply),
                CHECK_TOKEN => self.checked(reply.token, &reply.outcome),
                _ => self.claimed(now, reply.token, &reply.outcome),
            }
        }
        let Role::Dispatching(own) = &self.role else {
            return;
        };
        let first = first_op(own.number, OpKind::Jobs);
        commands.retain(|reply| reply.token >= first);
        // What the dispatcher believes may not be what the log has: it begins again.
        let lost = commands.iter().any(|reply| {
            let refusal = match &reply.outcome {
                Outcome::Refused(refusal) if OpKind::of(reply.token) != OpKind::Barriers => refusal,
                _ => return false,
            };
            matches!(refusal, Refusal::Unknown(_) | Refusal::NotDispatcher)
        });
        if lost {
            self.release(DispatcherState::Failed);
            self.lose(now, SILENCE_MAX);
        } else if !commands.is_empty() {
            self.dispatch(DispatcherMessage::Committed(commands));
        }
    }

    /// The outcome of a claim.
    pub(super) fn claimed(&mut self, now: Instant, token: u64, outcome: &Outcome) {
        let Role::Claiming { term, log, .. } = self.role else {
            return;
        };
        if token != CLAIM_TOKEN | self.last_claim {
            return;
        }
        if *outcome != Outcome::Done {
            tracing::debug!(?outcome, term, "another node dispatches");
            self.role = Role::Waiting {
                since: now,
                silence_max: SILENCE_MAX,
            };
            return;
        }
        if log + 1 < self.logs {
            return self.claim(now, term, log + 1);
        }
        tracing::info!(term, "this node dispatches the jobs of the fleet");
        self.last_number += 1;
        let number = self.last_number;
        self.role = Role::Dispatching(Dispatching {
            term,
            number,
            stage: Stage::Restoring,
            sessions: BTreeMap::new(),
            unconfirmed: Unconfirmed::default(),
            early: Vec::new(),
        });
        if self.stopping {
            // It was asked for before.
            self.release(DispatcherState::Released);
            return self.lose(now, SILENCE_MAX);
        }
        self.effects.push(RelayEffect::Restore(number));
        self.beat(now);
    }

    fn beat(&mut self, now: Instant) {
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
                self.keep_sessions(now);
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

    /// The dispatcher is gone or another one: asks for the next term after `silence_max` without a heartbeat.
    pub(super) fn lose(&mut self, now: Instant, silence_max: Duration) {
        if let Role::Dispatching(own) = &self.role {
            tracing::info!(
                term = own.term,
                "this node dispatches the jobs of the fleet no longer"
            );
            self.effects.push(RelayEffect::AbandonDispatcher);
        }
        self.give_up_unconfirmed(now);
        self.role = Role::Waiting {
            since: now,
            silence_max,
        };
        self.give_up_clients();
    }

    pub(super) fn dispatch(&mut self, message: DispatcherMessage) {
        self.effects.push(RelayEffect::Dispatch(message));
    }

    /// Nodes ask for a term at different times, so that one request is enough.
    pub(super) fn jitter(&self) -> Duration {
        let mut hasher = DefaultHasher::new();
        self.node.hash(&mut hasher);
        self.known
            .as_ref()
            .map(|known| known.term)
            .hash(&mut hasher);
        Duration::from_millis(hasher.finish() % JITTER_MS)
    }
}

/// After this long without a heartbeat of the dispatcher a node asks for the next term.
pub const SILENCE_MAX: Duration = Duration::from_millis(2_500);

/// The tokens of claims have this bit; those of the dispatcher's commands have not.
const CLAIM_TOKEN: u64 = 1 << 63;

/// And those of checks whether this node still dispatches have this one.
pub(super) const CHECK_TOKEN: u64 = 1 << 62;

/// A node that has heard no broker for this long leaves its office.
const OFFICE_SILENCE_MAX: Duration = Duration::from_secs(5);

/// And asks for none.
const CLAIM_SILENCE_MAX: Duration = Duration::from_millis(1_500);

/// The most changes of streams that are kept while the machines are restored.
pub(super) const EARLY_MAX: usize = 500_000;

/// A claim without an outcome is over after this long.
const CLAIM_MAX: Duration = Duration::from_secs(15);

/// The last messages of a dispatcher that has ended may take this long.
const ENDED_WAIT: Duration = Duration::from_millis(300);

/// The time between two heartbeats.
pub(super) const BEAT: Duration = Duration::from_millis(500);

/// After this long without a message of the other end a session is over.
pub(super) const SESSION_MAX: Duration = Duration::from_millis(2_500);

/// Nodes wait for different times below this before they ask for a term, in milliseconds.
const JITTER_MS: u64 = 400;
