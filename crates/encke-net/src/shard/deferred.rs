//! Work that comes behind commits and their deliveries in a turn: new connections, parts of long bodies and of what subscribers
//! catch up on, deadlines, heartbeats. The shard does one of each kind after the other, until nothing is left or the turn's
//! time for them is used up. The rest follows in the next turn, behind what was committed meanwhile. So many clients that
//! arrive at once delay the others by a fraction of a millisecond, not by all the time that they take.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use encke_log::ReadError;
use encke_stream::Piece;

use super::Shard;
use crate::connection::slot::{Flags, Token};

/// Work that waits for its turn.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Pieces of streams that reader threads have read. [`ShardSender::put_piece`] bounds how much they hold.
    ///
    /// [`ShardSender::put_piece`]: crate::shard_channel::ShardSender::put_piece
    pieces: VecDeque<(Token, Result<Piece, ReadError>)>,
    /// Connections that have more to do than one turn allows.
    queued: VecDeque<u32>,
}

impl Deferred {
    pub(super) fn add_piece(&mut self, token: Token, piece: Result<Piece, ReadError>) {
        self.pieces.push_back((token, piece));
    }

    /// Whether work waits.
    pub(super) fn is_due(&self) -> bool {
        !self.pieces.is_empty() || !self.queued.is_empty()
    }
}

impl Shard {
    /// Does deferred work for as long as the rest of the turn took, and at least for the configured time.
    pub(super) fn run_deferred(&mut self) {
        let begun = Instant::now();
        let taken = begun.duration_since(self.clock.now());
        let time = time(self.context.settings.errands_time, taken);
        self.advance_timers();
        // A connection that is queued again has had its turn.
        let mut queued = self.deferred.queued.len();
        loop {
            let mut busy = false;
            if let Some((token, piece)) = self.deferred.pieces.pop_front() {
                let bytes = piece.as_ref().map_or(0, Piece::bytes);
                self.piece_read(token, piece);
                self.context.receiver.took_piece(bytes);
                busy = true;
            }
            for _ in 0..DUE_AT_ONCE {
                let Some(token) = self.timers.next_due() else {
                    break;
                };
                self.reminded(token);
                busy = true;
            }
            if queued > 0
                && let Some(index) = self.deferred.queued.pop_front()
            {
                queued -= 1;
                self.run_queued(index);
                busy = true;
            }
            if self.acceptor.has_work() {
                self.accept();
                busy = true;
            }
            busy |= self.sweep();
            if !busy {
                break;
            }
            if begun.elapsed() >= time {
                let put_off = !self.deferred.pieces.is_empty()
                    || self.timers.is_due()
                    || self.acceptor.has_work()
                    || queued > 0;
                self.counts.deferred_put_off += u64::from(put_off);
                break;
            }
        }
    }

    /// Queues a connection that has more to do than one turn allows.
    pub(super) fn queue(&mut self, index: u32) {
        let flags = &mut self.connections.slots[index].flags;
        if !flags.has(Flags::QUEUED) {
            flags.set(Flags::QUEUED, true);
            self.deferred.queued.push_back(index);
        }
    }

    fn run_queued(&mut self, index: u32) {
        let flags = &mut self.connections.slots[index].flags;
        if !flags.has(Flags::QUEUED) {
            // The connection is gone.
            return;
        }
        flags.set(Flags::QUEUED, false);
        let unread = flags.has(Flags::UNREAD);
        if self.is_streaming(index) {
            self.stream_on(index);
        } else if unread && !self.is_subscribed(index) {
            self.readable(index, true);
        } else {
            self.flush(index);
        }
    }
}

/// How long deferred work may take when the rest of the turn took that long. It gets half of a shard's time even if the shard
/// is never idle; otherwise no client would catch up beside a stream that is busy enough.
fn time(configured: Duration, taken: Duration) -> Duration {
    configured.max(taken)
}

/// Deadlines that are looked at between two looks at the clock. Most reminders were replaced and cost nothing.
const DUE_AT_ONCE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_work_gets_its_time_and_half_of_a_long_turn() {
        let configured = Duration::from_micros(200);
        assert_eq!(time(configured, Duration::from_micros(10)), configured);
        let long = Duration::from_millis(3);
        assert_eq!(time(configured, long), long);
    }
}
