//! Commands and messages that a shard collects for other threads, and hands over a few times per turn.

use encke_jobs::{DispatchClient, DispatcherMessage};
use encke_stream::Submission;

/// Commands for the sequencer and messages for the dispatcher, each with its weight in bytes.
#[derive(Default)]
pub(crate) struct Outbox {
    commands: Vec<(Submission, usize)>,
    messages: Vec<(DispatcherMessage, usize)>,
}

impl Outbox {
    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(crate) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    pub(crate) fn add_command(&mut self, command: Submission, bytes: usize) {
        self.commands.push((command, bytes));
    }

    pub(crate) fn add_message(&mut self, message: DispatcherMessage, bytes: usize) {
        self.messages.push((message, bytes));
    }

    /// Takes all commands.
    pub(crate) fn take_commands(&mut self) -> Vec<(Submission, usize)> {
        std::mem::take(&mut self.commands)
    }

    /// Gives the emptied list of commands back, unless others have been added.
    pub(crate) fn give_back(&mut self, mut commands: Vec<(Submission, usize)>) {
        if self.commands.is_empty() {
            commands.clear();
            commands.shrink_to(COMMANDS_KEPT);
            self.commands = commands;
        }
    }

    /// Takes all messages.
    pub(crate) fn take_messages(&mut self) -> Vec<(DispatcherMessage, usize)> {
        std::mem::take(&mut self.messages)
    }

    /// Takes the messages back for which the dispatcher has no room. Those that only say that a client is gone are sent again
    /// later; the clients of the others are returned.
    pub(crate) fn refused(
        &mut self,
        messages: Vec<(DispatcherMessage, usize)>,
    ) -> Vec<DispatchClient> {
        let mut clients = Vec::new();
        for (message, bytes) in messages {
            match message {
                DispatcherMessage::Request(client, _) => clients.push(client),
                message => self.messages.push((message, bytes)),
            }
        }
        clients
    }
}

/// Commands for which room is kept, so that a turn with many does not keep its memory.
const COMMANDS_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use encke_jobs::{DispatchRequest, PoolRequest};

    #[test]
    fn requests_without_room_are_refused_and_goodbyes_are_sent_again() {
        let mut outbox = Outbox::default();
        let request = 1;
        let client = |token| DispatchClient {
            node: 0,
            shard: 0,
            token,
            request,
        };
        outbox.add_message(
            DispatcherMessage::Request(client(1), DispatchRequest::Pool(PoolRequest::List)),
            1,
        );
        outbox.add_message(DispatcherMessage::Disconnected(client(2)), 1);
        let messages = outbox.take_messages();
        assert!(!outbox.has_messages());
        assert_eq!(outbox.refused(messages), [client(1)]);
        let messages = outbox.take_messages();
        assert!(
            matches!(messages[..], [(DispatcherMessage::Disconnected(gone), 1)] if gone == client(2))
        );
    }
}
