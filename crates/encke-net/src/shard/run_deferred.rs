//! Runs deferred work, which comes after commits and their deliveries in a turn: new connections, parts of long bodies and of
//! catch-up, deadlines, heartbeats. The shard does one item of each kind in turn until nothing is left or the turn's time for
//! deferred work is used up. The rest follows in the next turn, behind newer commits. A wave of new clients therefore delays
//! the others by a fraction of a millisecond.

use std::time::Instant;

use encke_stream::Piece;

use super::deliver::serve_deferred;
use super::state::Shard;
use crate::connection::exchange::ExchangeEvent;
use crate::feed::slot::{Flags, SlotFeed};
use crate::shard_channel::PIECES_BYTES;

impl Shard {
    /// Does deferred work for as long as the rest of the turn took, and at least for the configured time.
    pub(super) fn run_deferred(&mut self) {
        let begun = Instant::now();
        let taken = begun.duration_since(self.connections.clock.now());
        // Half of the shard's time, even if it is never idle: otherwise no client would catch up beside a busy stream.
        let time = self.context.settings.deferred_time.max(taken);
        self.advance_timers();
        self.deferred.begin_turn();
        let mut kept_bytes = 0;
        loop {
            let mut busy = false;
            if let Some(next) = self.deferred.next_piece() {
                let bytes = next.piece.as_ref().map_or(0, Piece::bytes);
                self.piece_read(next.token, next.piece);
                match next.is_kept {
                    true => kept_bytes += bytes,
                    false => self.context.receiver.took_piece(bytes),
                }
                busy = true;
            }
            if let Some((token, ended)) = self.deferred.next_handshaken() {
                self.handshaken(token, *ended);
                busy = true;
            }
            if let Some((token, piece)) = self.deferred.next_compressed() {
                self.on_token(token, ExchangeEvent::Compressed(piece));
                busy = true;
            }
            for _ in 0..DUE_AT_ONCE {
                let Some(token) = self.timers.next_due() else {
                    break;
                };
                self.reminded(token);
                busy = true;
            }
            if let Some(id) = self.deferred.next_queued(&mut self.connections.slots) {
                self.run_queued(id.slot());
                busy = true;
            }
            if self.acceptor.has_work() {
                self.accept();
                busy = true;
            }
            busy |= self.sweep();
            busy |= self.sweep_callers();
            if !busy {
                break;
            }
            if begun.elapsed() >= time || kept_bytes >= PIECES_BYTES {
                let put_off = self.deferred.is_unfinished()
                    || self.timers.is_due()
                    || self.acceptor.has_work();
                self.connections.counts.deferred_put_off += u64::from(put_off);
                break;
            }
        }
    }

    fn run_queued(&mut self, index: u32) {
        let slot = &self.connections.slots[index];
        let has_feed = slot.feed != SlotFeed::None;
        if slot.flags.has(Flags::UNREAD) && !has_feed {
            self.readable(index, true);
        }
        if has_feed {
            serve_deferred(self, index);
        } else if self.connections.is_open(index) {
            self.on_exchange(index, ExchangeEvent::Queued);
        }
    }
}

/// Deadlines that are looked at between two looks at the clock. Most reminders were replaced and cost nothing.
const DUE_AT_ONCE: usize = 4;
