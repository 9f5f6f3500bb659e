//! Delays pieces that lack records that are acknowledged but not written yet, because the disk is full or slow.
//!
//! A connection that gets such a piece requests another one. The piece is delayed until something is written, or for a while, so
//! that connections do not request pieces in a busy loop.

use std::time::{Duration, Instant};

use encke_log::Sequence;
use encke_net::ReadReply;
use encke_stream::Piece;

/// The delayed pieces of one reader thread: at most one for each connection, and none of them holds data.
#[derive(Default)]
pub(super) struct DelayedPieces {
    pieces: Vec<(ReadReply, Piece)>,
    /// Up to where the log was written when the first of them was read, and when that was.
    published: Sequence,
    since: Option<Instant>,
    pause: Duration,
}

impl DelayedPieces {
    /// How soon to look again, if anything is delayed.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.since.map(|_| self.pause)
    }

    /// Delays a piece that was read when the log was written up to `published`.
    pub(super) fn keep(&mut self, reply: ReadReply, piece: Piece, published: Sequence) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            self.published = published;
            self.pause = PAUSE_MIN;
        }
        self.pieces.push((reply, piece));
    }

    /// Sends all pieces if something was written since, or if they were delayed for long enough.
    pub(super) fn look(&mut self, published: Sequence) {
        let Some(since) = self.since else { return };
        if published == self.published && since.elapsed() < HELD_MAX {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            return;
        }
        self.since = None;
        for (reply, piece) in self.pieces.drain(..) {
            reply.piece(Ok(piece));
        }
        self.pieces.shrink_to(PIECES_KEPT);
    }
}

/// The shortest and the longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The longest delay: about the interval in which a full disk is tried again.
const HELD_MAX: Duration = Duration::from_millis(250);

/// Pieces for which room is kept.
const PIECES_KEPT: usize = 1024;
