//! What a shard hands to other threads once or a few times in a turn.

use encke_jobs::{Client, JobError, Word};
use encke_protocol::{DispatchEvent, DispatchRequest};
use encke_stream::{Caller, Command, Request};

use super::Shard;

/// Commands for the sequencer and messages for the dispatcher.
#[derive(Default)]
pub(super) struct Outbox {
    commands: Vec<(Request, usize)>,
    messages: Vec<(Word, usize)>,
    /// The number of the last request to the dispatcher; never 0 afterwards.
    question: u32,
}

impl Outbox {
    pub(super) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }
}

impl Shard {
    /// Sends a command to the sequencer with the next hand-over.
    pub(super) fn send_command(&mut self, index: u32, command: Command) {
        let bytes = command.weight_bytes();
        let from = Caller {
            shard: self.context.number,
            token: self.connections.slots.token(index),
        };
        let request = Request { command, from };
        self.outbox.commands.push((request, bytes));
    }

    /// Sends a request to the dispatcher with the next hand-over; its number.
    pub(super) fn send_dispatch(&mut self, index: u32, request: DispatchRequest) -> u32 {
        self.outbox.question = self.outbox.question.wrapping_add(1).max(1);
        let client = self.client(index, self.outbox.question);
        self.send_message(Word::Ask(client, request));
        self.outbox.question
    }

    /// Tells the dispatcher that a client is gone.
    pub(super) fn send_gone(&mut self, client: Client) {
        self.send_message(Word::Gone(client));
    }

    pub(super) fn client(&self, index: u32, question: u32) -> Client {
        Client {
            shard: self.context.number,
            token: self.connections.slots.token(index),
            question,
        }
    }

    /// Hands commands to the sequencer and messages to the dispatcher. Those for which there is no room are refused.
    pub(super) fn submit(&mut self) {
        self.submit_messages();
        if self.outbox.commands.is_empty() {
            return;
        }
        let mut commands = std::mem::take(&mut self.outbox.commands);
        let now_ms = self.clock.now_ms();
        self.context.intake.submit(&mut commands, now_ms);
        for (request, _) in commands.drain(..) {
            self.overloaded(request.from.token);
        }
        // Refusals may have brought the next requests of pipelining clients.
        if self.outbox.commands.is_empty() {
            commands.shrink_to(COMMANDS_KEPT);
            self.outbox.commands = commands;
        }
    }

    /// Requests without room are refused; that a client is gone is sent again later.
    fn submit_messages(&mut self) {
        if self.outbox.messages.is_empty() {
            return;
        }
        let mut messages = std::mem::take(&mut self.outbox.messages);
        self.context.dispatcher.put_many(&mut messages);
        for (message, bytes) in messages {
            match message {
                Word::Ask(client, _) => {
                    self.dispatched(client, DispatchEvent::No(JobError::Overloaded));
                }
                message => self.outbox.messages.push((message, bytes)),
            }
        }
    }

    fn send_message(&mut self, message: Word) {
        let bytes = self.context.dispatcher.weight_bytes(&message);
        self.outbox.messages.push((message, bytes));
    }
}

/// Commands for which room is kept, so that a turn with many does not keep its memory.
const COMMANDS_KEPT: usize = 64;
