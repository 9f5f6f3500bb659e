//! The requests of this node's clients: they are passed on, or wait for a dispatcher.

use std::time::Instant;

use super::relay::{Client, Relay, RelayEffect, Role, Stage};
use super::wire::NodeMessage;
use crate::error::JobError;
use crate::message::DispatcherMessage;
use crate::request::{DispatchClient, DispatchRequest, PoolRequest};
use crate::response::DispatchResponse;

impl Relay {
    /// Handles a message of this node's shards, or outcomes of commands.
    pub(super) fn message(&mut self, now: Instant, message: DispatcherMessage) {
        match message {
            DispatcherMessage::Request(client, request) => {
                let is_worker = matches!(&request, DispatchRequest::Pool(PoolRequest::Register(work)) if work.poll_ms.is_none());
                let request = Some(request);
                let new = Client {
                    is_worker,
                    request,
                    held: false,
                    ended: false,
                };
                self.clients.insert(client, new);
                self.pass_on(now, client);
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
            DispatcherMessage::CallerEnded(client) => self.caller_ended(client),
            DispatcherMessage::Committed(replies) => self.committed(now, replies),
            DispatcherMessage::Changed(changes) => self.changed(now, changes),
            _ => {}
        }
    }

    /// The credentials of a client have ended. A request that no dispatcher has is refused, and one that it has not answered is not
    /// sent to another.
    fn caller_ended(&mut self, client: DispatchClient) {
        let Some(state) = self.clients.get_mut(&client) else {
            return;
        };
        state.ended = true;
        if state.held {
            return self.refuse_ended(client);
        }
        match &mut self.role {
            Role::Dispatching(_) => self.dispatch(DispatcherMessage::CallerEnded(client)),
            Role::Following { .. } => self.send(&NodeMessage::CallerEnded(client)),
            _ => {}
        }
    }

    /// Refuses the request of a client whose credentials have ended.
    fn refuse_ended(&mut self, client: DispatchClient) {
        if let Some(state) = self.clients.remove(&client)
            && state.held
        {
            self.held_bytes = self.held_bytes.saturating_sub(state.content_bytes());
        }
        let refused = DispatchResponse::Refused(JobError::CallerEnded);
        self.effects.push(RelayEffect::Respond(client, refused));
    }

    /// Requests without a response wait for the next dispatcher.
    pub(super) fn hold_unanswered(&mut self, now: Instant) {
        let unanswered = self.clients.iter().filter(|(_, client)| !client.held);
        let unanswered: Vec<_> = unanswered
            .map(|(client, state)| (*client, state.request.is_some()))
            .collect();
        for (client, has_request) in unanswered {
            match has_request {
                true => self.hold(now, client),
                false => self.respond(now, client, DispatchResponse::Stopping),
            }
        }
    }

    /// The responses that clients wait for will not come. Requests that were not sent go on waiting.
    pub(super) fn give_up_clients(&mut self) {
        let effects = &mut self.effects;
        self.clients.retain(|client, state| {
            if !state.held {
                let response = match state.is_worker {
                    true => DispatchResponse::Stopping,
                    false => DispatchResponse::Refused(JobError::NoDispatcher),
                };
                effects.push(RelayEffect::Respond(*client, response));
            }
            state.held
        });
    }

    /// Hands a client's request to the dispatcher, or lets it wait for one.
    pub(super) fn pass_on(&mut self, now: Instant, client: DispatchClient) {
        let state = self.clients.get(&client);
        let Some(request) = state.and_then(|state| state.request.clone()) else {
            return;
        };
        match &mut self.role {
            Role::Dispatching(own) if own.stage == Stage::Running => {
                self.dispatch(DispatcherMessage::Request(client, request));
            }
            Role::Following { .. } => self.send(&NodeMessage::Request(client, request)),
            _ => self.hold(now, client),
        }
    }

    /// Whether a request that the dispatcher has refused may be sent to another one. A refused post may have waited for its result.
    pub(super) fn is_unchanged(&self, client: DispatchClient) -> bool {
        let request = self.clients.get(&client);
        let request = request.and_then(|state| state.request.as_ref());
        request
            .is_some_and(|request| !matches!(request, DispatchRequest::Pool(PoolRequest::Post(_))))
    }

    pub(super) fn hold(&mut self, now: Instant, client: DispatchClient) {
        if self.clients.get(&client).is_some_and(|state| state.ended) {
            return self.refuse_ended(client);
        }
        if self.held.len() >= HELD_MAX || self.held_bytes >= HELD_BYTES_MAX {
            self.clients.remove(&client);
            let response = DispatchResponse::overloaded();
            return self.effects.push(RelayEffect::Respond(client, response));
        }
        let Some(state) = self.clients.get_mut(&client) else {
            return;
        };
        state.held = true;
        self.held_bytes += state.content_bytes();
        self.held.push_back((now + self.hold_max, client));
    }

    pub(super) fn pass_on_held(&mut self, now: Instant) {
        self.held_bytes = 0;
        for (_, client) in std::mem::take(&mut self.held) {
            if let Some(state) = self.clients.get_mut(&client) {
                state.held = false;
                self.pass_on(now, client);
            }
        }
    }

    /// Refuses requests that have waited for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((until, client)) = self.held.front().copied()
            && until <= now
        {
            self.held.pop_front();
            if let Some(state) = self.clients.remove(&client) {
                self.held_bytes = self.held_bytes.saturating_sub(state.content_bytes());
                let refused = DispatchResponse::Refused(JobError::NoDispatcher);
                self.effects.push(RelayEffect::Respond(client, refused));
            }
        }
        if self.held.is_empty() {
            self.held_bytes = 0;
        }
    }

    /// Sends a response to a shard.
    pub(super) fn respond(
        &mut self,
        now: Instant,
        client: DispatchClient,
        response: DispatchResponse,
    ) {
        // The dispatcher stops, and has not taken the request.
        let again = matches!(response, DispatchResponse::Refused(JobError::Stopping));
        if let Some(state) = self.clients.get_mut(&client) {
            let registers = matches!(
                state.request,
                Some(DispatchRequest::Pool(PoolRequest::Register(_)))
            );
            // A node that stops has no workers.
            if again && state.request.is_some() && !(registers && self.stopping) {
                return self.hold(now, client);
            }
            state.request = None;
            let goes_on = matches!(
                response,
                DispatchResponse::Registered { .. } | DispatchResponse::Dispatched(_)
            );
            if !state.is_worker || !goes_on {
                self.clients.remove(&client);
            }
        }
        self.effects.push(RelayEffect::Respond(client, response));
    }

    /// No request follows: everything that waits is refused.
    pub(super) fn quit(&mut self) {
        for (client, _) in std::mem::take(&mut self.clients) {
            let refused = DispatchResponse::Refused(JobError::Stopping);
            self.effects.push(RelayEffect::Respond(client, refused));
        }
        self.held.clear();
    }

    /// The number of clients that expect a response.
    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.clients.len()
    }
}

/// The most requests that wait for a dispatcher.
pub(super) const HELD_MAX: usize = 10_000;

/// The most content of requests that wait for a dispatcher.
const HELD_BYTES_MAX: usize = 64 << 20;
