//! Closes connections, and ends exchanges.

use super::state::Shard;
use crate::connection::close::CloseReason;
use crate::feed::slot::{Flags, SlotState};

impl Shard {
    /// Closes a connection. What it does ends at once; its slot is freed at the end of the turn, so that until then its index names
    /// no other connection.
    pub(super) fn close_connection(&mut self, index: u32, reason: CloseReason) {
        if !self.connections.is_open(index) {
            return;
        }
        let flags = self.connections.slots[index].flags;
        if flags.has(Flags::PROBE) {
            return self.release(index, reason);
        }
        self.connections.count_closed(reason);
        if reason != CloseReason::HangUp && flags.has(Flags::ENCRYPTED) {
            self.connections.close_session(index);
        }
        let token = self.connections.slots.token(index);
        self.release(index, reason);
        self.connections.counts.connections -= 1;
        match &mut self.operators {
            Some(operators) if flags.has(Flags::OPERATOR) => operators.closed(token),
            _ => self.admission.leave(flags.has(Flags::TURNED_AWAY)),
        }
    }

    /// Ends what a connection or an exchange is doing, and closes its slot.
    pub(super) fn release(&mut self, index: u32, reason: CloseReason) {
        if matches!(
            self.connections.slots[index].state,
            SlotState::Closed | SlotState::Free
        ) {
            return;
        }
        if self.feeds.is_reading(index) {
            // Others of its channel may read now.
            let others = self.connections.feeds_of_channel(index).into_iter();
            let slots = &self.connections.slots;
            self.due.extend(others.map(|feed| slots.token(feed)));
        }
        let (feeds, mut cx) = self.feeds();
        feeds.unsubscribe(index, &mut cx);
        self.connections.release_patterns(index, &self.feeds);
        self.connections.remove(index, reason);
    }
}
