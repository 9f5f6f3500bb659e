//! What becomes of a request: a response now, or after a commit, a read, a record.

use encke_log::ReadError;
use encke_protocol::{
    Action, EncoderId, Failure, Feed, OnCommit, OnRead, Response, Run, Subscription, Wait, problem,
};
use encke_stream::{Caller, Command, Fetch, Item, Offset, Piece, Reply, Request, Stream};
use std::sync::Arc;

use super::Shard;
use super::busy::Continuation;
use crate::close::CloseReason;
use crate::slot::{FeedEncoder, Flags, State, Token};

impl Shard {
    pub(super) fn answer(&mut self, index: u32, answer: Action) {
        match answer {
            Action::Respond(response) => self.respond(index, &response),
            // Only a request's first answer can be this, and that is seen to where it is asked.
            Action::Load(_) => self.close(index, CloseReason::Internal),
            Action::Commit(command, then) => self.send_command(index, command, then),
            Action::Read(fetch, then) => self.fetch_answer(index, fetch, then),
            Action::Stream(response, next) => self.stream(index, &response, next),
            Action::Subscribe(subscription) => self.subscribe(index, subscription),
            Action::Wait(wait) => self.poll(index, wait),
            Action::Dispatch(ask, then) => self.ask(index, ask, then),
        }
    }

    /// A commit has an outcome for one of this shard's connections.
    pub(super) fn replied(&mut self, reply: Reply) {
        if let Some(reply) = self.hold_back(reply) {
            self.acknowledge(reply);
        }
    }

    /// Answers a request whose command has an outcome.
    pub(super) fn acknowledge(&mut self, reply: Reply) {
        let Some((index, Continuation::Commit(then))) =
            self.waiting(reply.token, State::Committing)
        else {
            // The client is gone; its record is there all the same.
            return;
        };
        let response = then.committed(reply.outcome);
        self.respond_later(index, &response);
    }

    /// The sequencer's mailbox was full.
    pub(super) fn overloaded(&mut self, token: Token) {
        self.unmind_jam(token);
        if let Some((index, _)) = self.waiting(token, State::Committing) {
            let response = problem::failed(Failure::Overloaded);
            self.respond_later(index, &response);
        }
    }

    /// A piece of a stream came from a reader thread.
    pub(super) fn fetched(&mut self, token: Token, piece: Result<Piece, ReadError>) {
        self.counts.catch_ups += 1;
        let Some(index) = self.slots.find(token) else {
            return;
        };
        if self.slots[index].state == State::Following {
            self.caught_up(index, piece);
            return;
        }
        if self.slots[index].state == State::Several {
            self.read_for_several(index, piece);
            return;
        }
        if self.slots[index].state == State::Streaming {
            self.stream_part(index, piece);
            return;
        }
        let Some((index, Continuation::Read(then))) = self.waiting(token, State::Fetching) else {
            return;
        };
        let now_ms = self.clock.now_ms();
        let answer = match &piece {
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
            Err(error) => {
                let failure = match error {
                    ReadError::BelowFloor { .. } => Failure::NoLongerKept,
                    _ => Failure::Unreadable,
                };
                then.read(Err(failure), now_ms)
            }
        };
        self.slots[index].state = State::Reading;
        self.answer(index, answer);
        if self.is_open(index) {
            self.resume(index);
        }
    }

    /// A long poll has waited long enough.
    pub(super) fn poll_is_over(&mut self, index: u32) {
        if let Some(Continuation::Record(then)) = self.take_then(index) {
            let response = then.timed_out(self.clock.now_ms());
            self.poll_answered(index, &response);
        }
    }

    /// A long poll has its answer: it leaves its topic's list and goes on.
    pub(super) fn poll_answered(&mut self, index: u32, response: &Response) {
        self.end_poll(index);
        self.respond_later(index, response);
    }

    /// What the face waits with.
    pub(super) fn take_then(&mut self, index: u32) -> Option<Continuation> {
        self.busy.get_mut(index)?.then.take()
    }

    /// A long poll's records must be read from the log.
    pub(super) fn poll_fetches(&mut self, index: u32, fetch: Fetch) {
        if let Some(Continuation::Record(then)) = self.take_then(index) {
            self.end_poll(index);
            self.fetch_answer(index, fetch, then);
        }
    }

    /// The server is stopping: what is under way ends in its protocol's way, the rest is closed.
    pub(super) fn say_goodbye(&mut self, index: u32) {
        self.slots[index].flags.set(Flags::KEEP, false);
        match self.slots[index].state {
            State::Free
            | State::Closed
            | State::Member
            | State::Committing
            | State::Fetching
            | State::Streaming
            // The dispatcher tells them.
            | State::Asking
            | State::Working
            | State::Lingering => {}
            State::Polling => self.poll_is_over(index),
            State::Reading | State::Following | State::Several
                if self.slots[index].flags.has(Flags::BLOCKED) =>
            {
                self.slots[index].flags.set(Flags::CLOSING, true);
            }
            // Subscribers are always left between two events: the last one says where to go on.
            State::Following | State::Several | State::Reading => self.close(index, CloseReason::Stopping),
        }
    }

    fn send_command(&mut self, index: u32, command: Command, then: Box<dyn OnCommit>) {
        self.slots[index].state = State::Committing;
        self.busy(index).then = Some(Continuation::Commit(then));
        self.mind_jam(index, &command);
        let bytes = command.weight_bytes();
        let from = Caller {
            shard: self.parts.number,
            token: self.slots.token(index),
        };
        self.outbox.push((Request { command, from }, bytes));
    }

    fn fetch_answer(&mut self, index: u32, fetch: Fetch, then: Box<dyn OnRead>) {
        let token = self.slots.token(index);
        if self.parts.readers.ask(fetch, token, &self.parts.sender) {
            self.slots[index].state = State::Fetching;
            self.busy(index).then = Some(Continuation::Read(then));
        } else {
            let response = problem::failed(Failure::Overloaded);
            self.respond(index, &response);
        }
    }

    fn subscribe(&mut self, index: u32, subscription: Subscription) {
        let response = subscription.response;
        match subscription.feed {
            Feed::Single {
                stream,
                from,
                encoder,
                option,
            } => self.follow(index, &response, &stream, from, (encoder, option)),
            Feed::Merged {
                sources,
                after,
                encoder,
            } => {
                self.slots[index].encoder = FeedEncoder::Merged(encoder);
                self.follow_all(index, &response, sources, after);
            }
        }
    }

    fn follow(
        &mut self,
        index: u32,
        response: &Response,
        stream: &Arc<Stream>,
        from: Offset,
        (encoder, option): (EncoderId, u64),
    ) {
        self.slots[index].state = State::Following;
        self.slots[index].cursor = from.sequence;
        self.counts.subscribers += 1;
        let topic = self.topics.intern(stream);
        self.topics.link(&mut self.slots, topic, index);
        self.slots[index].encoder = FeedEncoder::Single(encoder);
        if option != 0 {
            self.busy(index).option = option;
        }
        let tail = stream.facts().tail;
        // Positions inside a record are the log's business.
        if from.units > 0 || tail.units > 0 {
            self.busy(index).from = Some(from);
        }
        self.open(index, response);
        if self.is_open(index) {
            self.settle(index);
            self.flush(index);
        }
    }

    fn poll(&mut self, index: u32, poll: Wait) {
        self.slots[index].state = State::Polling;
        self.slots[index].cursor = poll.from.sequence;
        self.counts.subscribers += 1;
        let topic = self.topics.intern(&poll.stream);
        self.topics.link(&mut self.slots, topic, index);
        let busy = self.busy(index);
        busy.then = Some(Continuation::Record(poll.then));
        // The face has seen that nothing lies behind it.
        busy.from = (poll.from.units > 0).then_some(poll.from);
        self.deadline(index, poll.until_ms);
        self.flush(index);
    }

    /// Takes a long poll off its topic's list.
    fn end_poll(&mut self, index: u32) {
        self.unsubscribe(index);
        self.slots[index].state = State::Reading;
        let busy = self.busy(index);
        busy.deadline_ms = 0;
        busy.from = None;
    }

    /// The connection that a token names, and what its face waits with.
    fn waiting(&mut self, token: Token, state: State) -> Option<(u32, Continuation)> {
        let index = self.slots.find(token)?;
        if self.slots[index].state != state {
            return None;
        }
        let then = self.take_then(index)?;
        Some((index, then))
    }

    /// Answers a request that had to wait, and goes on with the connection's next.
    pub(super) fn respond_later(&mut self, index: u32, response: &Response) {
        self.respond(index, response);
        if self.is_open(index) {
            self.resume(index);
        }
    }
}
