//! All connections of a shard.

use std::os::fd::OwnedFd;

use super::active::{Active, FeedState, SingleFeed, Subscriber, Task};
use super::by_slot::BySlot;
use super::slot::{Flags, Slot, SlotState, Slots, Token};
use crate::transport::Transports;

/// All connections of a shard: their slots, and beside them what the active ones are doing.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    pub(crate) slots: Slots,
    active: BySlot<Active>,
    /// How bytes get through the sockets that are not plain.
    pub(crate) transports: Transports,
    /// Closed in this turn.
    closed: Vec<u32>,
}

impl Connections {
    /// Takes a slot for a new connection.
    pub(crate) fn add(&mut self, socket: OwnedFd, now_s: u32) -> u32 {
        self.slots.add(socket, now_s)
    }

    /// Takes a slot for a stream of an HTTP/2 connection.
    pub(crate) fn add_stream(&mut self, now_s: u32) -> u32 {
        self.slots.add_stream(now_s)
    }

    /// The connection that a token names, if it has not been closed.
    pub(crate) fn find(&self, token: Token) -> Option<u32> {
        self.slots.find(token)
    }

    /// Whether a connection has not been closed in this turn.
    pub(crate) fn is_open(&self, index: u32) -> bool {
        self.slots[index].state != SlotState::Closed
    }

    /// What an active connection is doing.
    pub(crate) fn active(&self, index: u32) -> Option<&Active> {
        // Most subscribers of a round are not active, and their slot is at hand.
        match self.slots[index].state {
            SlotState::Active => self.active.get(index),
            _ => None,
        }
    }

    /// What an active connection is doing, to be changed.
    pub(crate) fn active_mut(&mut self, index: u32) -> Option<&mut Active> {
        match self.slots[index].state {
            SlotState::Active => self.active.get_mut(index),
            _ => None,
        }
    }

    /// What a connection is doing if it is active, and its slot.
    pub(crate) fn parts_mut(&mut self, index: u32) -> (Option<&mut Active>, &mut Slot) {
        (self.active.get_mut(index), &mut self.slots[index])
    }

    /// Transports, and the slots that have the sockets.
    pub(crate) fn encrypted_parts(&mut self) -> (&mut Transports, &Slots) {
        (&mut self.transports, &self.slots)
    }

    /// What a connection is doing; it becomes active if it was not.
    pub(crate) fn activate(&mut self, index: u32) -> &mut Active {
        let slot = &mut self.slots[index];
        let active = self.active.enter(index);
        match slot.state {
            SlotState::Idle => slot.state = SlotState::Active,
            SlotState::Subscribed(encoder) => {
                slot.state = SlotState::Active;
                active.task = Task::Subscribed(Subscriber::new(FeedState::Single(SingleFeed {
                    encoder,
                    option: 0,
                    position: None,
                })));
            }
            // A closed one is removed with the turn.
            SlotState::Active | SlotState::Closed | SlotState::Free | SlotState::Member => {}
        }
        active
    }

    /// Gives a connection another task.
    pub(crate) fn begin(&mut self, index: u32, task: Task) -> &mut Active {
        let active = self.activate(index);
        active.task = task;
        active
    }

    /// A connection reads requests again.
    pub(crate) fn begin_reading(&mut self, index: u32) {
        if let Some(active) = self.active_mut(index) {
            active.task = Task::default();
        } else if self.is_open(index) {
            self.slots[index].state = SlotState::Idle;
        }
    }

    /// Whether the socket has not taken all output.
    pub(crate) fn is_blocked(&self, index: u32) -> bool {
        let active = self.active(index);
        active.is_some_and(|active| active.pending.is_some())
    }

    /// Whether the next request may be looked at.
    pub(crate) fn reads(&self, index: u32) -> bool {
        match self.slots[index].state {
            SlotState::Idle => true,
            SlotState::Active => self.active(index).is_some_and(|active| {
                matches!(active.task, Task::Reading { .. }) && active.pending.is_none()
            }),
            _ => false,
        }
    }

    /// Takes a connection out of the table of active ones if nothing in its entry matters any more.
    pub(crate) fn settle(&mut self, index: u32) {
        let Some(active) = self.active_mut(index) else {
            return;
        };
        match active.rest() {
            Some(rest) => {
                self.active.remove(index);
                self.slots[index].state = rest;
            }
            None if matches!(active.task, Task::Reading { body: None, .. }) => {
                active.deadline = None;
            }
            None => {}
        }
    }

    /// Closes a connection: what it does ends at once, its slot and its socket are kept until [`Self::free_closed`].
    pub(crate) fn close(&mut self, index: u32) {
        self.active.remove(index);
        if self.slots[index].flags.has(Flags::ENCRYPTED) {
            self.transports.remove(index);
        }
        self.slots.mark_closed(index);
        self.closed.push(index);
    }

    /// Closes the sockets of the connections that were closed in this turn, and frees their slots.
    pub(crate) fn free_closed(&mut self) {
        for index in self.closed.drain(..) {
            self.active.remove(index);
            self.slots.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::active::UnsentOutput;

    fn socket() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn a_slot_says_whether_its_connection_is_active() {
        let mut connections = Connections::default();
        let index = connections.add(socket(), 0);
        assert!(connections.reads(index) && connections.active(index).is_none());
        connections.activate(index).input.push(b'G');
        assert_eq!(connections.slots[index].state, SlotState::Active);
        assert!(connections.reads(index));
        connections.settle(index);
        assert!(connections.active(index).is_some(), "its input matters");
        connections.activate(index).pending = Some(UnsentOutput::default());
        assert!(connections.is_blocked(index) && !connections.reads(index));
        let active = connections.activate(index);
        (active.pending, active.input) = (None, Vec::new());
        connections.settle(index);
        assert_eq!(connections.slots[index].state, SlotState::Idle);
        assert!(connections.active(index).is_none());
    }

    #[test]
    fn a_closed_connection_keeps_its_slot_until_the_turn_ends() {
        let mut connections = Connections::default();
        let index = connections.add(socket(), 0);
        let token = connections.slots.token(index);
        connections.close(index);
        assert_eq!(connections.find(token), None);
        assert!(!connections.is_open(index) && !connections.reads(index));
        assert_ne!(connections.add(socket(), 0), index);
        // Whatever is entered for it in the same turn goes with it.
        connections.begin_reading(index);
        connections.activate(index).input.push(b'x');
        connections.settle(index);
        assert!(!connections.is_open(index));
        connections.free_closed();
        assert!(connections.active(index).is_none());
        assert_eq!(connections.add(socket(), 0), index);
        assert!(connections.reads(index));
    }
}
