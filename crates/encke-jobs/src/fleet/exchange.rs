//! Messages between a node and the dispatcher: sessions begin, break off and end.

use std::sync::atomic::Ordering;
use std::time::Instant;

use encke_stream::{FleetCommand, Outcome};

use super::relay::{CHECK_TOKEN, PacketTo, Relay, RelayEffect, Role, SESSION_MAX, Stage};
use super::session::{Broken, Session};
use super::wire::{DispatcherReply, NodeMessage, Packet, Part, decode, encode};
use crate::error::JobError;
use crate::message::DispatcherMessage;
use crate::request::DispatchClient;
use crate::response::DispatchResponse;

impl Relay {
    /// Handles a response of this node's dispatcher.
    pub(super) fn response(
        &mut self,
        now: Instant,
        client: DispatchClient,
        response: DispatchResponse,
    ) {
        match &mut self.role {
            Role::Dispatching(own) if response.is_from_memory() => {
                own.unconfirmed.add(client, response);
            }
            _ => self.deliver(now, client, response),
        }
    }

    /// Sends a response to its client.
    fn deliver(&mut self, now: Instant, client: DispatchClient, response: DispatchResponse) {
        if client.node == 0 {
            return self.respond(now, client, response);
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
        let reply = DispatcherReply::Response(DispatchClient { node: 0, ..client }, response);
        reply_to(&mut self.effects, own.term, node, session, &reply);
    }

    /// Sends the responses from memory whose check has come back, and a check for the next ones. This node dispatches, as far as it knows
    /// from the order.
    pub(super) fn confirm(&mut self, now: Instant) {
        let Role::Dispatching(own) = &mut self.role else {
            return;
        };
        let checked = own.unconfirmed.take_checked();
        if own.unconfirmed.needs_check() {
            self.last_check += 1;
            let token = CHECK_TOKEN | self.last_check;
            own.unconfirmed.begin_check(token);
            // In the log whose term the relay knows.
            let check = FleetCommand::Barrier { log: 0 };
            self.effects.push(RelayEffect::Submit(check, token));
        }
        for (client, response) in checked {
            self.deliver(now, client, response);
        }
    }

    /// A check has come back. Whether this node still dispatches shows what it knows from the order now.
    pub(super) fn checked(&mut self, token: u64, outcome: &Outcome) {
        if let Role::Dispatching(own) = &mut self.role {
            own.unconfirmed.end_check(token, *outcome == Outcome::Done);
        }
    }

    /// This node dispatches no longer: what it has refused from memory is for the next dispatcher.
    pub(super) fn give_up_unconfirmed(&mut self, now: Instant) {
        let Role::Dispatching(own) = &mut self.role else {
            return;
        };
        for (client, _) in own.unconfirmed.take_all() {
            if client.node != 0 {
                let refused = DispatchResponse::Refused(JobError::NoDispatcher);
                self.deliver(now, client, refused);
            } else if self.is_unchanged(client) {
                self.hold(now, client);
            }
        }
    }

    /// Tells the other nodes that the dispatcher has ended and has taken no request that it has not answered.
    pub(super) fn end_sessions(&mut self) {
        if let Role::Dispatching(own) = &mut self.role {
            for (node, session) in own.sessions.values_mut() {
                let ended = DispatcherReply::Ended;
                reply_to(&mut self.effects, own.term, node, session, &ended);
            }
        }
    }

    pub(super) fn take_request_part(
        &mut self,
        now: Instant,
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
                let Some(number) = self.begin_node(now, node, session) else {
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
        match open.take(now, part) {
            Ok(None) => {}
            Ok(Some(message)) => match decode::<NodeMessage>(&message) {
                Some(NodeMessage::Request(client, request)) => {
                    let client = DispatchClient {
                        node: number,
                        ..client
                    };
                    self.dispatch(DispatcherMessage::Request(client, request));
                }
                Some(NodeMessage::Disconnected(client)) => {
                    let client = DispatchClient {
                        node: number,
                        ..client
                    };
                    self.dispatch(DispatcherMessage::Disconnected(client));
                }
                Some(NodeMessage::CallerEnded(client)) => {
                    let client = DispatchClient {
                        node: number,
                        ..client
                    };
                    self.dispatch(DispatcherMessage::CallerEnded(client));
                }
                Some(NodeMessage::Alive) => {}
                // A node with another version of Encke.
                None => self.break_session(number, node, term, session),
            },
            Err(Broken) => self.break_session(number, node, term, session),
        }
    }

    pub(super) fn take_reply_part(
        &mut self,
        now: Instant,
        term: u64,
        session: u64,
        part: Part<'_>,
    ) {
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
        match open.take(now, part) {
            Ok(None) => {}
            Ok(Some(message)) => match decode::<DispatcherReply>(&message) {
                Some(DispatcherReply::Response(client, response)) => {
                    self.respond(now, client, response);
                }
                Some(DispatcherReply::Alive) => {}
                Some(DispatcherReply::Ended) => {
                    self.hold_unanswered(now);
                    self.lose(now, self.jitter());
                }
                None => self.begin_session(now),
            },
            Err(Broken) => self.begin_session(now),
        }
    }

    /// A new node, with the number that its clients have at the dispatcher. None: too many nodes.
    pub(super) fn begin_node(&mut self, now: Instant, node: &str, session: u64) -> Option<u16> {
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
        let session = Session::new(session, now);
        own.sessions.insert(self.last_node, (node.into(), session));
        Some(self.last_node)
    }

    pub(super) fn break_session(&mut self, number: u16, node: &str, term: u64, session: u64) {
        self.end_session(number);
        self.reset(node, term, session);
    }

    pub(super) fn reset(&mut self, node: &str, term: u64, session: u64) {
        self.figures.broken.fetch_add(1, Ordering::Relaxed);
        let packet = encode(&Packet::Reset { term, session });
        self.effects
            .push(RelayEffect::Send(PacketTo::Node(node.into()), packet));
    }

    /// The clients of a node's session are gone.
    pub(super) fn end_session(&mut self, number: u16) {
        if let Role::Dispatching(own) = &mut self.role {
            own.sessions.remove(&number);
            self.dispatch(DispatcherMessage::NodeGone(number));
        }
    }

    /// Begins another session with the dispatcher: what was sent in the last one may have been carried out or not.
    pub(super) fn begin_session(&mut self, now: Instant) {
        self.figures.broken.fetch_add(1, Ordering::Relaxed);
        self.last_session += 1;
        let number = self.last_session;
        if let Role::Following { session, .. } = &mut self.role {
            *session = Session::new(number, now);
        }
        self.give_up_clients();
    }

    /// Sends a message to the dispatcher.
    pub(super) fn send(&mut self, message: &NodeMessage) {
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

    /// Tells the nodes with sessions that the dispatcher is there, and ends the sessions of nodes that were not heard of.
    pub(super) fn keep_sessions(&mut self, now: Instant) {
        let Role::Dispatching(own) = &mut self.role else {
            return;
        };
        let over = |(_, session): &(Box<str>, Session)| now >= session.heard_at + SESSION_MAX;
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
