//! Performs the actions of protocols, and resumes their continuations.

use std::sync::Arc;
use std::time::Duration;

use encke_log::ReadError;
use encke_protocol::{
    Action, EncoderId, Failure, Feed, OnCommit, OnRead, OnRecord, Response, Run, Subscription,
    Wait, problem,
};
use encke_stream::{Command, Fetch, Item, Offset, Piece, Reply, Stream};

use super::Shard;
use crate::connection::active::{FeedState, SingleFeed, Subscriber, Task};
use crate::connection::close::CloseReason;
use crate::connection::slot::{SlotState, Token};

impl Shard {
    /// Performs the action for a request.
    pub(super) fn perform(&mut self, index: u32, action: Action) {
        match action {
            Action::Respond(response) => match response.coding {
                Some(offer) => self.respond_coded(index, response, offer),
                None => self.respond(index, &response),
            },
            // Only a request leads to this action, and it is handled there.
            Action::Load(_) | Action::AwaitKeys(..) | Action::AwaitOrder(..) => {
                self.close(index, CloseReason::Internal);
            }
            Action::Commit(command, then) => self.commit(index, command, then),
            Action::Read(fetch, then) => self.read(index, fetch, then),
            Action::Stream(response, next) => match response.coding {
                Some(offer) => self.stream_coded(index, response, next, offer),
                None => self.stream(index, &response, next),
            },
            Action::Subscribe(subscription) => self.subscribe(index, subscription),
            Action::Wait(wait) => self.wait(index, wait),
            Action::Dispatch(request, then) => self.dispatch(index, request, then),
        }
    }

    /// Handles the outcome of a connection's command.
    pub(super) fn replied(&mut self, reply: Reply) {
        if let Some(reply) = self.hold_back(reply) {
            self.acknowledge(reply);
        }
    }

    /// Responds to a request whose command has an outcome. If the client is gone, the record exists nevertheless.
    pub(super) fn acknowledge(&mut self, reply: Reply) {
        if let Some(index) = self.awaits_order(reply.token) {
            return self.order_awaited(index, reply.outcome);
        }
        if let Some((index, then)) = self.take_commit(reply.token) {
            let response = then.committed(reply.outcome);
            self.respond_later(index, &response);
        }
    }

    /// Refuses a command because the sequencer's mailbox is full.
    pub(super) fn overloaded(&mut self, token: Token) {
        self.fan_out.backpressure.note_reply(token);
        if let Some(index) = self.awaits_order(token) {
            return self.respond_later(index, &problem::failed(Failure::Overloaded));
        }
        if let Some((index, _)) = self.take_commit(token) {
            self.respond_later(index, &problem::failed(Failure::Overloaded));
        }
    }

    /// Takes a piece of a stream from a reader thread, for a connection.
    pub(super) fn piece_read(&mut self, token: Token, piece: Result<Piece, ReadError>) {
        self.counts.catch_ups += 1;
        let Some(index) = self.connections.find(token) else {
            return;
        };
        self.read_arrived(index);
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        match &active.task {
            Task::Subscribed(subscriber) => match &subscriber.feed {
                FeedState::Single(_) => self.caught_up(index, piece),
                FeedState::Merged(_) => self.read_for_merged(index, piece),
            },
            Task::Streaming { .. } => self.part_read(index, piece),
            Task::AwaitingRead(_) => {
                if let Task::AwaitingRead(then) = std::mem::take(&mut active.task) {
                    self.resume_read(index, then, piece);
                }
            }
            _ => {}
        }
    }

    /// Responds to a long poll that timed out.
    pub(super) fn poll_timed_out(&mut self, index: u32) {
        if let Some((_, then)) = self.take_wait(index) {
            self.respond_later(index, &then.timed_out(self.clock.now_ms()));
        }
    }

    /// Takes a long poll off its topic's list; its position and its continuation.
    pub(super) fn take_wait(&mut self, index: u32) -> Option<(Offset, Box<dyn OnRecord>)> {
        let at = self.position(index);
        self.unsubscribe(index);
        let active = self.connections.active_mut(index)?;
        if !matches!(active.task, Task::AwaitingRecord { .. }) {
            return None;
        }
        active.deadline = None;
        match std::mem::take(&mut active.task) {
            Task::AwaitingRecord { then, .. } => Some((at, then)),
            _ => None,
        }
    }

    /// Reads a part of a stream for a request.
    pub(super) fn read(&mut self, index: u32, mut fetch: Fetch, then: Box<dyn OnRead>) {
        fetch.bytes_max = self.grant_read(index, fetch.bytes_max);
        let token = self.connections.slots.token(index);
        let sender = &self.context.sender;
        if self.context.readers.read(fetch, token, sender) {
            self.connections.begin(index, Task::AwaitingRead(then));
        } else {
            self.respond(index, &problem::failed(Failure::Overloaded));
        }
    }

    /// Responds to a request that had to wait, and continues with the connection's next.
    pub(super) fn respond_later(&mut self, index: u32, response: &Response) {
        self.respond(index, response);
        self.resume(index);
    }

    /// Takes a connection off the lists of its topics.
    pub(super) fn unsubscribe(&mut self, index: u32) {
        let slot = &self.connections.slots[index];
        let members = match slot.state {
            SlotState::Subscribed(_) => Vec::new(),
            SlotState::Active => match self.connections.active_mut(index).map(|a| &mut a.task) {
                Some(Task::AwaitingRecord { .. }) => Vec::new(),
                Some(Task::Subscribed(subscriber)) => match &mut subscriber.feed {
                    FeedState::Single(_) => Vec::new(),
                    FeedState::Merged(merged) => std::mem::take(&mut merged.members),
                },
                _ => return,
            },
            _ => return,
        };
        self.counts.subscribers -= 1;
        for member in members {
            self.drop_member(member.slot);
        }
        let slots = &mut self.connections.slots;
        self.fan_out.topics.unlink(slots, index, self.clock.time());
    }

    fn commit(&mut self, index: u32, command: Command, then: Box<dyn OnCommit>) {
        self.connections.begin(index, Task::AwaitingCommit(then));
        self.note_command(index, &command);
        self.send_command(index, command);
    }

    fn resume_read(&mut self, index: u32, then: Box<dyn OnRead>, piece: Result<Piece, ReadError>) {
        let now_ms = self.clock.now_ms();
        let action = match &piece {
            Ok(piece) => {
                let items: Vec<Item<'_>> = piece.items().collect();
                let run = Run {
                    items: &items,
                    end: piece.end,
                    at_tail: !piece.more,
                    closed: false,
                };
                then.read(Ok(run), now_ms)
            }
            Err(ReadError::BelowFloor { .. }) => then.read(Err(Failure::NoLongerKept), now_ms),
            Err(_) => then.read(Err(Failure::Unreadable), now_ms),
        };
        self.perform(index, action);
        self.resume(index);
    }

    fn subscribe(&mut self, index: u32, subscription: Subscription) {
        let response = subscription.response;
        self.counts.subscribers += 1;
        match subscription.feed {
            Feed::Single {
                stream,
                from,
                encoder,
                option,
            } => self.follow(index, &stream, from, (encoder, option)),
            Feed::Merged {
                sources,
                after,
                generations,
                encoder,
                ended,
            } => self.follow_merged(index, sources, after, generations, encoder, ended),
        }
        self.open(index, &response);
        self.connections.settle(index);
        self.flush(index);
    }

    fn follow(
        &mut self,
        index: u32,
        stream: &Arc<Stream>,
        from: Offset,
        (encoder, option): (EncoderId, u64),
    ) {
        let tail = stream.facts().tail;
        // Only the log knows positions inside a record.
        let position = (from.units > 0 || tail.units > 0).then_some(from);
        let idle = self.connections.active(index).is_none();
        let slot = &mut self.connections.slots[index];
        slot.cursor = from.sequence;
        if idle && option == 0 && position.is_none() {
            slot.state = SlotState::Subscribed(encoder);
        } else {
            let feed = FeedState::Single(SingleFeed {
                encoder,
                option,
                position,
            });
            let task = Task::Subscribed(Subscriber::new(feed));
            self.connections.begin(index, task);
        }
        self.link(index, stream);
    }

    fn wait(&mut self, index: u32, wait: Wait) {
        self.counts.subscribers += 1;
        self.connections.slots[index].cursor = wait.from.sequence;
        let task = Task::AwaitingRecord {
            // The protocol has seen that nothing lies behind it.
            position: (wait.from.units > 0).then_some(wait.from),
            loading: false,
            then: wait.then,
        };
        self.connections.begin(index, task);
        self.link(index, &wait.stream);
        let timeout = Duration::from_millis(wait.wait_ms);
        self.set_deadline(index, self.clock.monotonic().after(timeout));
        self.flush(index);
    }

    /// Puts a connection on the list of a stream's topic.
    fn link(&mut self, index: u32, stream: &Arc<Stream>) {
        let topic = self.fan_out.topics.intern(stream);
        let slots = &mut self.connections.slots;
        self.fan_out.topics.link(slots, topic, index);
    }

    /// The connection of that token, if its request waits for the order of a fleet.
    fn awaits_order(&self, token: Token) -> Option<u32> {
        let index = self.connections.find(token)?;
        let active = self.connections.active(index)?;
        matches!(active.task, Task::AwaitingOrder(_)).then_some(index)
    }

    fn take_commit(&mut self, token: Token) -> Option<(u32, Box<dyn OnCommit>)> {
        let index = self.connections.find(token)?;
        let active = self.connections.active_mut(index)?;
        if !matches!(active.task, Task::AwaitingCommit(_)) {
            return None;
        }
        match std::mem::take(&mut active.task) {
            Task::AwaitingCommit(then) => Some((index, then)),
            _ => None,
        }
    }
}
