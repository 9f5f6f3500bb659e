//! The memory that connections hold beyond their slots: counts it by client, and takes it back from the clients with the most.

use encke_access::CallerIdentity;

use super::Shard;
use crate::connection::active::Task;
use crate::connection::close::CloseReason;
use crate::connection::slot::Flags;
use crate::holdings::Holder;
use crate::http::Rejection;

impl Shard {
    /// Counts what a connection holds in memory now.
    pub(super) fn weigh(&mut self, index: u32) {
        let mut bytes = 0;
        if let Some(active) = self.connections.active_mut(index) {
            bytes += active.weigh(&self.context.buffers);
        }
        let flags = self.connections.slots[index].flags;
        if flags.has(Flags::ENCRYPTED)
            && let Some(session) = self.connections.transports.session(index)
        {
            bytes += session.weigh(&self.context.buffers);
        }
        if flags.has(Flags::HTTP2_STREAM) {
            self.hold_on_stream(index, bytes);
        }
        let holder = self.holder(index);
        self.holdings.set(index, holder, bytes);
    }

    /// Takes memory back from clients that hold more than one may, and from those with the most while all hold too much.
    pub(super) fn relieve(&mut self) {
        for holder in self.holdings.take_over() {
            let mut shed = 0;
            while self.holdings.exceeds(holder)
                && shed < SHED_AT_ONCE
                && let Some((index, _)) = self.holdings.largest_of(holder)
            {
                self.shed(index);
                shed += 1;
            }
        }
        let number = self.context.number;
        if !self.context.buffers.matter() {
            return self.context.buffers.note_largest(number, 0);
        }
        let mut crowded = self.context.buffers.are_crowded();
        for _ in 0..SHED_AT_ONCE {
            let (holder, bytes) = self.holdings.largest().unzip();
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
            let Some((index, _)) = holder.and_then(|holder| self.holdings.largest_of(holder))
            else {
                return;
            };
            self.shed(index);
        }
    }

    /// Whether a request that grows may go on. Others give memory back for it first; it is refused if it has the most itself, or
    /// if that does not help in time.
    pub(super) fn has_memory(&mut self, index: u32) -> bool {
        if self.context.buffers.are_crowded() {
            self.relieve();
            if !self.connections.is_open(index) || self.is_lingering(index) {
                return false;
            }
            let is_stream = self.connections.slots[index].flags.has(Flags::HTTP2_STREAM);
            if is_stream && self.connections.active(index).is_none() {
                return false;
            }
        }
        if !self.context.buffers.have_room() {
            self.refuse(index, &no_room());
            return false;
        }
        true
    }

    /// The client for which a connection holds memory.
    fn holder(&self, index: u32) -> Holder {
        let caller = self.callers.identity(index);
        if let Some(caller) = caller.filter(CallerIdentity::is_personal) {
            return Holder::Caller(caller);
        }
        match (caller, self.address_of(index)) {
            (Some(caller), Some(address)) => Holder::Sharing(caller, address),
            (None, Some(address)) => Holder::Address(address),
            (_, None) => Holder::Connection(self.socket_of(index)),
        }
    }

    /// Gives back what a connection holds: refuses a request that is not complete, and closes any other.
    fn shed(&mut self, index: u32) {
        if !self.connections.is_open(index) {
            return self.holdings.remove(index);
        }
        // What it held may be gone by now.
        let held = self.holdings.bytes(index);
        self.weigh(index);
        if self.holdings.bytes(index) < held {
            return;
        }
        self.counts.buffers_shed += 1;
        let task = self.connections.active(index).map(|active| &active.task);
        match task {
            Some(
                Task::Reading { .. }
                | Task::ReceivingBody(_)
                | Task::AwaitingLoad(_)
                | Task::AwaitingKeys(_)
                | Task::AwaitingOrder(_),
            ) if !self.connections.is_blocked(index) => self.refuse(index, &no_room()),
            _ => self.cut(index, CloseReason::BuffersMax),
        }
        if self.connections.is_open(index) {
            self.weigh(index);
        }
    }
}

/// The response to a body for which there is no memory.
fn no_room() -> Rejection {
    let rejection = Rejection::new(
        503,
        "buffers_max",
        "partly received requests use too much of the server's memory; try again",
    );
    rejection.retry(1)
}

/// Connections that a shard sheds in a turn for one client; the rest follows in the next turns.
const SHED_AT_ONCE: usize = 64;
