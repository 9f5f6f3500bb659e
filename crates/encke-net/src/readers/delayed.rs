//! Pieces that lack what is acknowledged and not written yet, as long as a full disk or a slow one keeps it from being.
//!
//! Who gets one asks again. It is kept back until something was written, or for a while, so that nobody asks without end for
//! what can't be there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_log::Sequence;
use encke_stream::Piece;

use crate::connection::slot::Token;
use crate::shard_channel::ShardSender;

/// What one reader thread keeps back: at most one piece for each connection, and none of them holds data.
#[derive(Default)]
pub(super) struct DelayedPieces {
    pieces: Vec<(Arc<ShardSender>, Token, Piece)>,
    /// What was written when the first of them was read, and when that was.
    published: Sequence,
    since: Option<Instant>,
    pause: Duration,
}

impl DelayedPieces {
    /// How soon to look again, if anything is kept back.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.since.map(|_| self.pause)
    }

    /// Keeps back a piece that was read when `published` was written.
    pub(super) fn keep(
        &mut self,
        sender: Arc<ShardSender>,
        token: Token,
        piece: Piece,
        published: Sequence,
    ) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            self.published = published;
            self.pause = PAUSE_MIN;
        }
        self.pieces.push((sender, token, piece));
    }

    /// Hands all over if something was written since, or if it took long enough.
    pub(super) fn look(&mut self, published: Sequence) {
        let Some(since) = self.since else { return };
        if published == self.published && since.elapsed() < HELD_MAX {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            return;
        }
        self.since = None;
        for (sender, token, piece) in self.pieces.drain(..) {
            sender.put_piece(token, Ok(piece));
        }
        self.pieces.shrink_to(PIECES_KEPT);
    }
}

/// How soon to look whether something was written, first and later.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// After so long who waits asks again, whatever happened: about as often as a full disk is tried.
const HELD_MAX: Duration = Duration::from_millis(250);

/// Room that is kept when nothing is held.
const PIECES_KEPT: usize = 1024;
