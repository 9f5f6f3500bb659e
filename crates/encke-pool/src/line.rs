//! Claims that wait, first come first served.

use std::collections::VecDeque;

use encke_mailbox::ReplyTo;

use crate::claim::Claim;

/// Those who wait, in the order in which they came. Behind a lock that only they and who serves them take.
pub(crate) struct Line<W> {
    waiting: VecDeque<Place<W>>,
    next_ticket: u64,
    pub(crate) closed: bool,
}

struct Place<W> {
    ticket: u64,
    reply_to: ReplyTo<Claim<W>>,
}

impl<W> Line<W> {
    pub(crate) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            next_ticket: 0,
            closed: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts somebody at the end. Returns the ticket.
    pub(crate) fn push(&mut self, reply_to: ReplyTo<Claim<W>>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push_back(Place { ticket, reply_to });
        ticket
    }

    /// Takes the first out, to be served.
    pub(crate) fn pop(&mut self) -> Option<ReplyTo<Claim<W>>> {
        self.waiting.pop_front().map(|place| place.reply_to)
    }

    /// Takes somebody out who leaves. None: has been served.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<ReplyTo<Claim<W>>> {
        let at = self
            .waiting
            .binary_search_by_key(&ticket, |place| place.ticket)
            .ok()?;
        self.waiting.remove(at).map(|place| place.reply_to)
    }

    /// Sends everybody away, for good.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = ReplyTo<Claim<W>>> + use<W> {
        self.closed = true;
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|place| place.reply_to)
    }
}
