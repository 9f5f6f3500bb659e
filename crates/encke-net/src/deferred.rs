//! Work that waits for its turn behind commits and their deliveries.

use std::collections::VecDeque;

use encke_log::ReadError;
use encke_stream::Piece;

use crate::compression::CompressedPiece;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, Slots, Token};
use crate::transport::tls::Handshaken;

/// A piece of a stream that a reader thread has read for a connection.
type ReadPiece = (Token, Result<Piece, ReadError>);

/// Deferred work, apart from what timers and the acceptor know.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// [`ShardSender::put_piece`] bounds how much they hold.
    ///
    /// [`ShardSender::put_piece`]: crate::shard_channel::ShardSender::put_piece
    pieces: VecDeque<ReadPiece>,
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
    pub(crate) fn add_piece(&mut self, token: Token, piece: Result<Piece, ReadError>) {
        self.pieces.push_back((token, piece));
    }

    pub(crate) fn next_piece(&mut self) -> Option<ReadPiece> {
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
