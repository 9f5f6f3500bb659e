//! What other threads have to say to connections: outcomes of commands, parts of streams, events of the dispatcher, keys.

use encke_jobs::DispatchClient;
use encke_log::ReadError;
use encke_protocol::DispatchResponse;
use encke_stream::{Piece, Reply};

use super::state::Shard;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::Token;

impl Shard {
    /// Hands messages to the dispatcher and commands to the sequencers. Those for which there is no room are refused.
    pub(super) fn submit(&mut self) {
        for client in self.hand_over.send_messages() {
            self.dispatched(client, DispatchResponse::overloaded());
        }
        if !self.hand_over.has_commands() {
            return;
        }
        let now = self.connections.clock.time();
        for token in self.hand_over.submit_commands(now) {
            self.feeds.fan_out.backpressure.note_reply(token);
            self.on_token(token, ExchangeEvent::NotSubmitted);
        }
    }

    /// Handles the outcome of an exchange's command. It is held back if it acknowledges an append to a congested stream.
    pub(super) fn replied(&mut self, reply: Reply) {
        let backpressure = &mut self.feeds.fan_out.backpressure;
        if let Some(stream) = backpressure.note_reply(reply.token)
            && reply.outcome.changes()
            && self.context.congested.has(stream)
            && self.connections.stopping.is_none()
        {
            let wait = self.context.settings.admission_wait;
            let until = self.connections.clock.monotonic().after(wait);
            self.connections.counts.held_back += 1;
            return backpressure.hold(reply, stream, until);
        }
        self.on_token(reply.token, ExchangeEvent::Committed(reply.outcome));
    }

    /// Sends the acknowledgements that need not be held back any longer.
    pub(super) fn release_acknowledgements(&mut self) {
        let now = self.connections.clock.monotonic();
        let backpressure = &mut self.feeds.fan_out.backpressure;
        let replies = match self.connections.stopping {
            Some(_) => backpressure.take_all(),
            None => backpressure.take_due(now, &self.context.congested),
        };
        for reply in replies {
            self.on_token(reply.token, ExchangeEvent::Committed(reply.outcome));
        }
    }

    /// Takes a piece of a stream from a reader thread.
    pub(super) fn piece_read(&mut self, token: Token, piece: Result<Piece, ReadError>) {
        self.connections.counts.catch_ups += 1;
        let Some(index) = self.connections.slots.find(token) else {
            return;
        };
        match self.feeds.is_subscription(index, &self.connections.slots) {
            true => self.piece_read_for_feed(index, piece),
            false => {
                self.connections.requests.end_part(ExchangeId::new(index));
                self.on_exchange(index, ExchangeEvent::PieceRead(piece));
            }
        }
    }

    /// Handles an event of the dispatcher for one of this shard's exchanges.
    pub(super) fn dispatched(&mut self, client: DispatchClient, event: DispatchResponse) {
        let index = self.connections.slots.find(client.token);
        let index = index.filter(|index| {
            let id = ExchangeId::new(*index);
            let connection = self.connections.of_exchange(*index);
            connection.is_some_and(|one| one.awaits_dispatch(id, client.request))
        });
        match index {
            Some(index) => {
                self.connections.requests.end_part(ExchangeId::new(index));
                self.on_exchange(index, ExchangeEvent::Dispatched(event));
            }
            // The connection is gone: its jobs and its slot go to other workers.
            None if event.needs_client() => {
                self.hand_over.abandon_client(client);
            }
            None => {}
        }
    }

    /// Has the connections flushed to which something was written in this turn.
    pub(super) fn flush_dirty(&mut self) {
        for token in std::mem::take(&mut self.dirty) {
            if let Some(index) = self.connections.slots.find(token) {
                self.on(index, crate::connection::Event::Flush);
            }
        }
    }

    /// Gives an event to an exchange, if it is still there. If the client is gone, the record of its command exists nevertheless.
    pub(super) fn on_token(&mut self, token: Token, event: ExchangeEvent) {
        if let Some(index) = self.connections.slots.find(token) {
            self.on_exchange(index, event);
        }
    }
}
