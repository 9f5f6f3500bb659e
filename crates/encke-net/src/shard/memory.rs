//! Takes memory back from the clients with the most when it runs short.

use super::state::Shard;
use crate::connection::Event;
use crate::connection::exchange_id::ExchangeId;

impl Shard {
    /// Takes memory back from clients that hold more than one may, and from those with the most while all hold too much. Then
    /// requests that have grown are refused if that has not helped.
    pub(super) fn relieve(&mut self) {
        for holder in self.connections.holdings.take_over() {
            let mut shed = 0;
            while self.connections.holdings.exceeds(holder)
                && shed < SHED_AT_ONCE
                && let Some((id, _)) = self.connections.holdings.largest_of(holder)
            {
                self.shed(id);
                shed += 1;
            }
        }
        self.relieve_all();
        for token in std::mem::take(&mut self.grown) {
            if let Some(index) = self.connections.slots.find(token)
                && !self.context.buffers.have_room()
            {
                let connection = self.connections.slots.connection_of(index);
                self.on(connection, Event::NoMemory(ExchangeId::new(index)));
            }
        }
    }

    fn relieve_all(&mut self) {
        let number = self.context.number;
        if !self.context.buffers.matter() {
            return self.context.buffers.note_largest(number, 0);
        }
        let mut crowded = self.context.buffers.are_crowded();
        for _ in 0..SHED_AT_ONCE {
            let (holder, bytes) = self.connections.holdings.largest().unzip();
            let buffers = &self.context.buffers;
            buffers.note_largest(number, bytes.unwrap_or_default());
            crowded &= buffers.excess() > 0;
            if !crowded {
                return;
            }
            // The client of another shard holds more: it is that one's turn.
            if !buffers.is_largest(number) {
                return;
            }
            let holdings = &self.connections.holdings;
            let Some((id, _)) = holder.and_then(|holder| holdings.largest_of(holder)) else {
                return;
            };
            self.shed(id);
        }
    }

    /// Gives back what an exchange holds.
    fn shed(&mut self, id: ExchangeId) {
        let index = id.slot();
        if !self.connections.is_open(index) {
            return self.connections.holdings.remove(id);
        }
        // What it held may be gone by now.
        let held = self.connections.holdings.bytes(id);
        self.weigh(index);
        if self.connections.holdings.bytes(id) < held {
            return;
        }
        self.connections.counts.buffers_shed += 1;
        let connection = self.connections.slots.connection_of(index);
        self.on(connection, Event::Shed(id));
        self.weigh(index);
    }
}

/// Connections that a shard sheds in a turn for one client; the rest follows in the next turns.
const SHED_AT_ONCE: usize = 64;
