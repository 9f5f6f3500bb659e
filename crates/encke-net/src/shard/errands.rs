//! What comes behind commits and their deliveries in a turn: new connections, parts of long answers and of what subscribers
//! catch up on, deadlines, heartbeats. One of each kind is done after the other, until nothing is left or the turn's time
//! for them is used up; the rest comes with the next turn, behind what was committed meanwhile. So a crowd that comes at
//! once, or comes back at once, costs whoever is there already a fraction of a millisecond and not all of what it takes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use encke_log::ReadError;
use encke_stream::Piece;

use super::Shard;
use crate::slot::Token;

/// What waits for its turn.
#[derive(Debug, Default)]
pub(super) struct Errands {
    /// Parts of streams that reader threads have brought. [`ShardSender::put_piece`] bounds how much they are.
    ///
    /// [`ShardSender::put_piece`]: crate::shard_channel::ShardSender::put_piece
    pub(super) pieces: VecDeque<(Token, Result<Piece, ReadError>)>,
    /// Connections whose deadline may have passed.
    pub(super) due: VecDeque<Token>,
    /// Slots that are still to be looked after in this step of the sweep.
    pub(super) sweep: u64,
    /// How many are still to be accepted in this turn, if so many wait. The next turn's events tell of the rest.
    pub(super) arrivals: usize,
    /// How many have been accepted in this turn.
    pub(super) arrived: usize,
}

impl Errands {
    /// Whether something waits that no event of the next turn tells of.
    pub(super) fn wait(&self) -> bool {
        !self.pieces.is_empty() || !self.due.is_empty() || self.sweep > 0
    }
}

impl Shard {
    /// Runs errands for as long as the turn has taken for everything else, and at least for what is set.
    pub(super) fn run_errands(&mut self) {
        let begun = Instant::now();
        let time = time(
            self.parts.settings.errands_time,
            begun.duration_since(self.clock.now()),
        );
        self.timers();
        // Who comes back to the end of the line has had its turn.
        let mut lagging = self.lagging.len();
        loop {
            let mut busy = false;
            if let Some((token, piece)) = self.errands.pieces.pop_front() {
                let bytes = piece.as_ref().map_or(0, Piece::bytes);
                self.fetched(token, piece);
                self.parts.receiver.took_piece(bytes);
                busy = true;
            }
            for _ in 0..DUE_AT_ONCE {
                let Some(token) = self.errands.due.pop_front() else {
                    break;
                };
                self.reminded(token);
                busy = true;
            }
            if lagging > 0
                && let Some(index) = self.lagging.pop_front()
            {
                lagging -= 1;
                self.catch_lagging(index);
                busy = true;
            }
            if self.errands.arrivals > 0 {
                self.accept();
                busy = true;
            }
            if self.errands.sweep > 0 {
                self.sweep_on();
                busy = true;
            }
            if !busy {
                break;
            }
            if begun.elapsed() >= time {
                let put_off = self.errands.wait() || self.errands.arrivals > 0 || lagging > 0;
                self.counts.errands_put_off += u64::from(put_off);
                break;
            }
        }
        if self.errands.due.is_empty() {
            self.errands.due.shrink_to(DUE_KEPT);
        }
    }
}

/// How long a turn may run errands that took so long for everything else. Half of a shard's time is theirs even when it is
/// never idle, or nobody would catch up beside a stream that is busy enough.
fn time(set: Duration, taken: Duration) -> Duration {
    set.max(taken)
}

/// So many deadlines are looked at between two looks at the clock: most reminders were overtaken and cost nothing.
const DUE_AT_ONCE: usize = 4;

/// Room for deadlines that is kept when a crowd's were dealt with.
const DUE_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errands_get_what_is_set_and_half_of_a_long_turn() {
        let set = Duration::from_micros(200);
        assert_eq!(time(set, Duration::from_micros(10)), set);
        assert_eq!(
            time(set, Duration::from_millis(3)),
            Duration::from_millis(3)
        );
    }
}
