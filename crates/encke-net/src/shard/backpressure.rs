//! Holds acknowledgements of appends to congested streams back.

use encke_stream::{Command, Reply};

use super::Shard;
use crate::connection::active::FeedState;
use crate::connection::slot::SlotState;

impl Shard {
    /// A round has come to a subscriber.
    pub(super) fn see_in_round(&mut self, index: u32) {
        match self.connections.slots[index].state {
            SlotState::Subscribed(_) => self.fan_out.backpressure.see(None),
            SlotState::Active if self.is_single(index) => {
                let backlog = self.backlog(index);
                self.fan_out.backpressure.see(backlog);
            }
            _ => {}
        }
    }

    /// A topic's round is over, or goes on in the next turn.
    pub(super) fn note_round(&mut self, topic: u32, over: bool) {
        if self.fan_out.backpressure.is_idle() {
            return;
        }
        let (stream, now_ms) = (
            self.fan_out.topics.no(topic),
            self.clock.monotonic().as_ms(),
        );
        let (backpressure, all) = (&mut self.fan_out.backpressure, &self.context.congested);
        if over {
            backpressure.end_round(topic, stream, now_ms, all);
        } else {
            backpressure.begin_if_most(topic, stream, now_ms, all);
        }
    }

    /// A command goes to the sequencer: if it appends to a congested stream, its acknowledgement may be held back.
    pub(super) fn note_command(&mut self, index: u32, command: &Command) {
        let all = &self.context.congested;
        if all.count() > 0 && !self.context.settings.admission_wait.is_zero() {
            let token = self.connections.slots.token(index);
            self.fan_out.backpressure.note_command(token, command, all);
        }
    }

    /// Holds an acknowledgement back if its stream is congested; returns the reply if not.
    pub(super) fn hold_back(&mut self, reply: Reply) -> Option<Reply> {
        let Some(stream) = self.fan_out.backpressure.note_reply(reply.token) else {
            return Some(reply);
        };
        let congested = self.context.congested.has(stream);
        if !reply.outcome.changes() || !congested || self.stopping.is_some() {
            return Some(reply);
        }
        let wait_ms = self.context.settings.admission_wait.as_millis() as u64;
        self.counts.held_back += 1;
        let until_ms = self.clock.monotonic().as_ms() + wait_ms;
        self.fan_out.backpressure.hold(reply, stream, until_ms);
        None
    }

    /// Sends the acknowledgements that need not be held back any longer.
    pub(super) fn release_acknowledgements(&mut self) {
        let now_ms = self.clock.monotonic().as_ms();
        let backpressure = &mut self.fan_out.backpressure;
        let replies = match self.stopping {
            Some(_) => backpressure.take_all(),
            None => backpressure.take_due(now_ms, &self.context.congested),
        };
        for reply in replies {
            self.acknowledge(reply);
        }
    }

    /// Whether a connection is subscribed to one stream.
    pub(super) fn is_single(&self, index: u32) -> bool {
        match self.connections.slots[index].state {
            SlotState::Subscribed(_) => true,
            SlotState::Active => {
                let active = self.connections.active(index);
                let subscriber = active.and_then(|active| active.subscriber());
                subscriber.is_some_and(|subscriber| matches!(subscriber.feed, FeedState::Single(_)))
            }
            _ => false,
        }
    }
}
