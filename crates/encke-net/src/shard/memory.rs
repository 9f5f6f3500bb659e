//! Takes memory back from the clients with the most when it runs short.

use super::state::Shard;
use crate::buffers::Buffers;
use crate::clients::holdings::Holdings;
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
        let crowded = self.context.buffers.are_crowded();
        for _ in 0..SHED_AT_ONCE {
            let (holdings, buffers) = (&self.connections.holdings, &self.context.buffers);
            let Some(id) = next_to_shed(holdings, buffers, crowded, self.context.number) else {
                break;
            };
            self.shed(id);
        }
        for token in std::mem::take(&mut self.grown) {
            if let Some(index) = self.connections.slots.find(token)
                && !self.context.buffers.have_room()
            {
                let connection = self.connections.slots.connection_of(index);
                self.on(connection, Event::NoMemory(ExchangeId::new(index)));
            }
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

/// The exchange that gives back what it holds while all clients hold too much: that of the client with the most, unless a client of
/// another shard has more. Notes how much the most is. Nothing is given back unless memory was
/// `crowded`.
fn next_to_shed(
    holdings: &Holdings,
    buffers: &Buffers,
    crowded: bool,
    shard: u16,
) -> Option<ExchangeId> {
    if !buffers.matter() {
        buffers.note_largest(shard, 0);
        buffers.losers(shard, 0);
        return None;
    }
    let losers = buffers.losers(shard, holdings.of_strangers());
    let largest = holdings.largest(losers);
    buffers.note_largest(shard, largest.map_or(0, |(_, bytes)| bytes));
    // The client of another shard holds more: it is that one's turn.
    if !crowded || buffers.excess() == 0 || !buffers.is_largest(shard) {
        return None;
    }
    let (holder, _) = largest?;
    let (id, _) = holdings.largest_of(holder)?;
    Some(id)
}

/// Connections that a shard sheds in a turn for one client; the rest follows in the next turns.
const SHED_AT_ONCE: usize = 64;
