//! Replies on their way to the outlets: by outlet, and those that wait for a stricter level than their record.

use crate::commit::batch::Reply;
use crate::{AckLevel, Outcome, Refusal};

/// Replies, by the index of the outlet that they go to.
#[derive(Debug, Default)]
pub(crate) struct Replies(Vec<Vec<Reply>>);

impl Replies {
    pub(crate) fn push(&mut self, shard: u16, reply: Reply) {
        let shard = usize::from(shard);
        if self.0.len() <= shard {
            self.0.resize_with(shard + 1, Vec::new);
        }
        self.0[shard].push(reply);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    /// Takes the replies for one outlet.
    pub(crate) fn take(&mut self, outlet: usize) -> Vec<Reply> {
        self.0
            .get_mut(outlet)
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// How many of them acknowledge a change.
    pub(crate) fn changes(&self) -> u64 {
        let replies = self.0.iter().flatten();
        replies.filter(|reply| reply.outcome.changes()).count() as u64
    }

    /// Makes a refusal of every reply.
    pub(crate) fn refuse(&mut self, refusal: &Refusal) {
        for reply in self.0.iter_mut().flatten() {
            reply.outcome = Outcome::Refused(refusal.clone());
        }
    }
}

/// A reply that waits until its record has reached a stricter level than the record's stream asks for.
#[derive(Debug)]
pub(crate) struct LateReply {
    pub(crate) ack: AckLevel,
    pub(crate) shard: u16,
    pub(crate) reply: Reply,
}

/// The late replies of all batches.
#[derive(Debug, Default)]
pub(crate) struct LateReplies {
    waiting: Vec<LateReply>,
    /// Those among them that the running sync serves.
    syncing: Vec<LateReply>,
}

impl LateReplies {
    pub(crate) fn add(&mut self, replies: Vec<LateReply>) {
        self.waiting.extend(replies);
    }

    /// Whether a reply waits for a sync that does not run yet, or for a write.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the replies that wait for no more than this level.
    pub(crate) fn reached(&mut self, level: AckLevel) -> Vec<LateReply> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let (reached, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|late| late.ack <= level);
        self.waiting = waiting;
        reached
    }

    /// Notes that the sync that begins now serves all replies that wait.
    pub(crate) fn begin_sync(&mut self) {
        self.syncing.append(&mut self.waiting);
    }

    /// Takes the replies that the sync has served.
    pub(crate) fn end_sync(&mut self) -> Vec<LateReply> {
        std::mem::take(&mut self.syncing)
    }

    /// Takes all replies and makes refusals of them.
    pub(crate) fn refuse(&mut self, refusal: &Refusal) -> Vec<LateReply> {
        let mut refused = std::mem::take(&mut self.syncing);
        refused.append(&mut self.waiting);
        for late in &mut refused {
            late.reply.outcome = Outcome::Refused(refusal.clone());
        }
        refused
    }
}
