//! Stops a shard.

use std::time::Instant;

use super::state::Shard;
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::{Connection, Event};
use crate::feed::slot::SlotState;

impl Shard {
    /// Stops accepting. Pending requests are completed, subscriptions end as their protocol defines, other connections are closed.
    pub(super) fn stop(&mut self) {
        if self.connections.stopping.is_some() {
            return;
        }
        self.connections.stopping = Some(Instant::now());
        // A client that comes back meets a server that is gone, and not one that sends it away again.
        self.acceptor.close(&self.connections.poller);
        for index in 0..self.connections.slots.len() as u32 {
            match self.connections.slots[index].state {
                SlotState::Idle => self.close(index, CloseReason::Stopping),
                // Subscribers are always left between two events: the last one says where to continue.
                SlotState::Subscribed => self.dismiss(index, CloseReason::Stopping),
                SlotState::Active | SlotState::Channel => self.on(index, Event::Stopping),
                SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => {}
            }
        }
    }

    /// The stop took too long: responses that have begun are cut off, so that no client takes a part for the whole.
    pub(super) fn cut_short(&mut self) {
        for index in 0..self.connections.slots.len() as u32 {
            let connection = self.connections.get(index);
            if connection.is_some_and(Connection::is_cut_by_stop) {
                self.connections.reset(index);
                self.close(index, CloseReason::Stopping);
            }
            let requests = &mut self.connections.requests;
            requests.abandon_request(ExchangeId::new(index), CloseReason::Stopping);
        }
        self.flush_dirty();
        let metrics = &self.context.metrics;
        self.connections.requests.hand_over(metrics);
        self.connections.counts.add_up(metrics);
    }

    /// Ends all subscriptions and long polls, in the way of their protocols: this node does not follow its fleet.
    pub(super) fn dismiss_all(&mut self) {
        for index in 0..self.connections.slots.len() as u32 {
            match self.connections.slots[index].state {
                SlotState::Subscribed => self.dismiss(index, CloseReason::OutOfFleet),
                SlotState::Active | SlotState::Channel => self.on(index, Event::OutOfFleet),
                SlotState::Free
                | SlotState::Idle
                | SlotState::Exchange
                | SlotState::Member
                | SlotState::Closed => {}
            }
        }
    }
}
