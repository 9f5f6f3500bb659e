//! Stops a shard.

use std::time::Instant;

use super::Shard;
use crate::connection::active::Task;
use crate::connection::close::CloseReason;
use crate::connection::slot::{Flags, SlotState};

impl Shard {
    /// Stops accepting. Pending requests are completed, subscriptions end as their protocol defines, other connections are closed.
    pub(super) fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(Instant::now());
        self.acceptor.stop();
        if let Err(error) = self.acceptor.listen(&self.poller, false) {
            tracing::warn!(%error, "the listener could not be removed from epoll");
        }
        for index in 0..self.connections.slots.len() as u32 {
            self.end_connection(index);
        }
    }

    /// Whether a stop is complete: nothing is pending, or it took too long.
    pub(super) fn stopped(&self) -> bool {
        let Some(since) = self.stopping else {
            return false;
        };
        self.connections.slots.used() == 0 || since.elapsed() > self.context.settings.stop_timeout
    }

    /// The stop took too long: responses that have begun are cut off, so that no client takes a part for the whole.
    pub(super) fn cut_short(&mut self) {
        for index in 0..self.connections.slots.len() as u32 {
            let active = self.connections.active(index);
            if active.is_some_and(|active| {
                active.pending.is_some() || matches!(active.task, Task::Streaming { .. })
            }) {
                self.cut(index, CloseReason::Stopping);
            }
            self.abandon_request(index, CloseReason::Stopping);
        }
        self.flush_http2();
        self.requests.hand_over(&self.context.metrics);
        self.counts.add_up(&self.context.metrics);
    }

    /// Ends all subscriptions and long polls, in the way of their protocols: this node does not follow its fleet.
    pub(super) fn dismiss_all(&mut self) {
        for index in 0..self.connections.slots.len() as u32 {
            match self.connections.slots[index].state {
                SlotState::Subscribed(_) => self.dismiss_now(index, CloseReason::OutOfFleet),
                SlotState::Active => {
                    match self.connections.active(index).map(|active| &active.task) {
                        Some(Task::Subscribed(_)) => {
                            self.dismiss_now(index, CloseReason::OutOfFleet);
                        }
                        Some(Task::AwaitingRecord { .. }) => self.poll_timed_out(index),
                        _ => {}
                    }
                }
                SlotState::Free | SlotState::Idle | SlotState::Member | SlotState::Closed => {}
            }
        }
    }

    fn end_connection(&mut self, index: u32) {
        let slot = &mut self.connections.slots[index];
        slot.flags.set(Flags::KEEP_ALIVE, false);
        match slot.state {
            SlotState::Free | SlotState::Member | SlotState::Closed => return,
            // Subscribers are always left between two events: the last one says where to continue.
            SlotState::Idle | SlotState::Subscribed(_) => {
                return self.close(index, CloseReason::Stopping);
            }
            SlotState::Active => {}
        }
        let last = self.last_reason(index);
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        match (&active.task, &mut active.pending) {
            (Task::AwaitingRecord { .. }, _) => self.poll_timed_out(index),
            (Task::Reading { .. } | Task::Subscribed(_), Some(pending)) => {
                pending.close.get_or_insert(last);
            }
            (Task::Reading { .. } | Task::Subscribed(_), None) => {
                self.close(index, CloseReason::Stopping);
            }
            // The handshake thread drops the socket when it finds the connection gone.
            (Task::Handshaking, _) => self.close(index, CloseReason::Stopping),
            (Task::ReceivingBody(_), _) => self.close(index, CloseReason::Stopping),
            (Task::Http2(_), _) => self.stop_http2(index),
            // The dispatcher ends its own.
            (
                Task::AwaitingLoad(_)
                | Task::AwaitingKeys(_)
                | Task::AwaitingOrder(_)
                | Task::AwaitingCommit(_)
                | Task::AwaitingRead(_)
                | Task::AwaitingCompression(_)
                | Task::AwaitingDispatch { .. }
                | Task::Working { .. }
                | Task::Streaming { .. }
                | Task::Lingering,
                _,
            ) => {}
        }
    }
}
