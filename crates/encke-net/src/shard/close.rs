//! Closes connections, and ends exchanges.

use std::sync::atomic::Ordering;

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
        self.count_closed(reason);
        let flags = self.connections.slots[index].flags;
        if reason != CloseReason::HangUp && flags.has(Flags::ENCRYPTED) {
            self.connections.close_session(index);
        }
        let token = self.connections.slots.token(index);
        self.release(index, reason);
        self.connections.counts.connections -= 1;
        match &mut self.operators {
            Some(operators) if flags.has(Flags::OPERATOR) => operators.closed(token),
            _ if flags.has(Flags::TURNED_AWAY) => {
                self.context.turned_away.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {
                self.context.connections.fetch_sub(1, Ordering::Relaxed);
            }
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
        let (feeds, mut cx) = self.feeds();
        feeds.unsubscribe(index, &mut cx);
        self.connections.remove(index, reason);
    }

    /// Counts a connection that is closed.
    pub(super) fn count_closed(&mut self, reason: CloseReason) {
        match reason.label() {
            Some(label) => {
                let closed = &self.context.metrics.closed;
                closed.with_label_values(&[label]).inc();
            }
            None => {
                let hangups = &mut self.connections.counts.hangups;
                *hangups += u64::from(reason == CloseReason::HangUp);
            }
        }
    }
}
