//! Work that waits for its turn behind commits and their deliveries.

use std::collections::VecDeque;

use encke_log::ReadError;
use encke_stream::Piece;

use crate::compression::CompressedPiece;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, Slots, Token};
use crate::transport::tls::Handshaken;

/// A piece of a stream for a connection.
#[derive(Debug)]
pub(crate) struct DeferredPiece {
    pub(crate) token: Token,
    pub(crate) piece: Result<Piece, ReadError>,
    /// No reader thread has read it: its records are in memory for all readers.
    pub(crate) is_kept: bool,
}

/// Deferred work, apart from what timers and the acceptor know.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// [`ShardSender::put_piece`] bounds how much those hold that a thread has read.
    ///
    /// [`ShardSender::put_piece`]: crate::shard_channel::ShardSender::put_piece
    pieces: VecDeque<DeferredPiece>,
    /// The bound on handshakes bounds them too.
    handshaken: VecDeque<(Token, Box<Handshaken>)>,
    /// As many as there are compressors, at most.
    compressed: VecDeque<(Token, CompressedPiece)>,
    /// Connections that have more to do than one turn allows.
    queued: VecDeque<ExchangeId>,
    /// Of these, how many this turn still comes to.
    queued_left: usize,
}

impl Deferred {
    /// Adds a piece that a reader thread has read.
    pub(crate) fn add_piece(&mut self, token: Token, piece: Result<Piece, ReadError>) {
        self.pieces.push_back(DeferredPiece {
            token,
            piece,
            is_kept: false,
        });
    }

    /// Whether there is room for a kept piece. Each may be the last one that holds its records in memory.
    pub(crate) fn takes_kept_piece(&self) -> bool {
        self.pieces.len() < KEPT_PIECES_MAX
    }

    /// Adds a piece of records that are in memory for all readers.
    pub(crate) fn add_kept_piece(&mut self, token: Token, piece: Piece) {
        self.pieces.push_back(DeferredPiece {
            token,
            piece: Ok(piece),
            is_kept: true,
        });
    }

    pub(crate) fn next_piece(&mut self) -> Option<DeferredPiece> {
        self.pieces.pop_front()
    }

    pub(crate) fn add_compressed(&mut self, token: Token, piece: CompressedPiece) {
        self.compressed.push_back((token, piece));
    }

    pub(crate) fn add_handshaken(&mut self, token: Token, ended: Box<Handshaken>) {
        self.handshaken.push_back((token, ended));
    }

    pub(crate) fn next_handshaken(&mut self) -> Option<(Token, Box<Handshaken>)> {
        self.handshaken.pop_front()
    }

    pub(crate) fn next_compressed(&mut self) -> Option<(Token, CompressedPiece)> {
        self.compressed.pop_front()
    }

    /// Queues a connection or an exchange that has more to do than one turn allows, unless it is queued.
    pub(crate) fn queue(&mut self, id: ExchangeId, slots: &mut Slots) {
        let flags = &mut slots[id.slot()].flags;
        if !flags.has(Flags::QUEUED) {
            flags.set(Flags::QUEUED, true);
            self.queued.push_back(id);
        }
    }

    /// Begins a turn: a connection that is queued again in it has had its turn.
    pub(crate) fn begin_turn(&mut self) {
        self.queued_left = self.queued.len();
    }

    /// The next one that was queued when the turn began, and is still there.
    pub(crate) fn next_queued(&mut self, slots: &mut Slots) -> Option<ExchangeId> {
        loop {
            self.queued_left = self.queued_left.checked_sub(1)?;
            let id = self.queued.pop_front()?;
            let flags = &mut slots[id.slot()].flags;
            // Otherwise it is gone.
            if flags.has(Flags::QUEUED) {
                flags.set(Flags::QUEUED, false);
                return Some(id);
            }
        }
    }

    /// Whether this turn has left something undone.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.holds_items() || self.queued_left > 0
    }

    /// Whether something waits.
    pub(crate) fn is_due(&self) -> bool {
        self.holds_items() || !self.queued.is_empty()
    }

    fn holds_items(&self) -> bool {
        !self.pieces.is_empty() || !self.compressed.is_empty() || !self.handshaken.is_empty()
    }
}

/// Pieces that wait when a kept one is added, at most. With pages of the default size they are 16 MiB.
const KEPT_PIECES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_queued_again_waits_for_the_next_turn() {
        let mut slots = Slots::default();
        let mut add = || ExchangeId::new(slots.add_exchange(0, 0));
        let (first, second) = (add(), add());
        let mut deferred = Deferred::default();
        deferred.queue(first, &mut slots);
        deferred.queue(second, &mut slots);
        deferred.begin_turn();
        assert_eq!(deferred.next_queued(&mut slots), Some(first));
        deferred.queue(first, &mut slots);
        assert!(deferred.is_unfinished());
        assert_eq!(deferred.next_queued(&mut slots), Some(second));
        assert_eq!(deferred.next_queued(&mut slots), None);
        assert!(!deferred.is_unfinished() && deferred.is_due());
        deferred.begin_turn();
        assert_eq!(deferred.next_queued(&mut slots), Some(first));
        assert!(!deferred.is_due());
    }
}
