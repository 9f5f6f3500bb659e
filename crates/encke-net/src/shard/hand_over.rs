//! Hands commands to the sequencer and messages to the dispatcher.

use encke_jobs::{DispatchClient, DispatcherMessage};
use encke_protocol::{DispatchRequest, DispatchResponse};
use encke_stream::{Command, Submission, Submitter};

use super::Shard;

impl Shard {
    /// Sends a command to the sequencer with the next hand-over.
    pub(super) fn send_command(&mut self, index: u32, command: Command) {
        let bytes = command.weight_bytes();
        let from = Submitter {
            shard: self.context.number,
            token: self.connections.slots.token(index),
        };
        let request = Submission { command, from };
        self.outbox.add_command(request, bytes);
    }

    /// Sends a request to the dispatcher with the next hand-over; its number.
    pub(super) fn send_dispatch(&mut self, index: u32, request: DispatchRequest) -> u32 {
        let number = self.outbox.next_request();
        let client = self.client(index, number);
        self.send_message(DispatcherMessage::Request(client, request));
        number
    }

    /// Reports to the dispatcher that a client is gone.
    pub(super) fn send_gone(&mut self, client: DispatchClient) {
        self.send_message(DispatcherMessage::Disconnected(client));
    }

    /// Reports to the dispatcher that the time of a client's caller is over.
    pub(super) fn send_caller_ended(&mut self, client: DispatchClient) {
        self.send_message(DispatcherMessage::CallerEnded(client));
    }

    pub(super) fn client(&self, index: u32, request: u32) -> DispatchClient {
        DispatchClient {
            node: 0,
            shard: self.context.number,
            token: self.connections.slots.token(index),
            request,
        }
    }

    /// Hands commands to the sequencer and messages to the dispatcher. Those for which there is no room are refused.
    pub(super) fn submit(&mut self) {
        self.submit_messages();
        if !self.outbox.has_commands() {
            return;
        }
        let mut commands = self.outbox.take_commands();
        let now = self.clock.time();
        self.context.sequencers.submit(&mut commands, now);
        for (request, _) in commands.drain(..) {
            self.overloaded(request.from.token);
        }
        self.outbox.give_back(commands);
    }

    /// Requests without room are refused; that a client is gone is sent again later.
    fn submit_messages(&mut self) {
        if !self.outbox.has_messages() {
            return;
        }
        let mut messages = self.outbox.take_messages();
        self.context.dispatcher.put_many(&mut messages);
        for client in self.outbox.refused(messages) {
            self.dispatched(client, DispatchResponse::overloaded());
        }
    }

    fn send_message(&mut self, message: DispatcherMessage) {
        let bytes = self.context.dispatcher.weight_bytes(&message);
        self.outbox.add_message(message, bytes);
    }
}
