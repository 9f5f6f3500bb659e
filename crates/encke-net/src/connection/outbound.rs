//! Output that was not taken yet.

use encke_stream::Offset;

use super::close::CloseReason;
use crate::byte_queue::ByteQueue;

/// Bytes that a socket, or a window, has not taken. A connection is blocked while there are some.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    bytes: ByteQueue,
    /// A subscriber's position behind them.
    pub(crate) reached: Option<Offset>,
    /// Why it is closed behind them, if it is.
    pub(crate) close: Option<CloseReason>,
    /// They end with the last words to a subscriber for which more would follow.
    is_dismissal: bool,
}

impl Outbound {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Outbound {
            bytes: bytes.into(),
            ..Outbound::default()
        }
    }

    /// What is to be sent next.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.rest()
    }

    /// Notes that the next `sent` bytes were taken.
    pub(crate) fn take(&mut self, sent: usize) {
        self.bytes.take(sent);
    }

    /// Adds bytes behind the others.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.append(bytes);
    }

    /// Adds the last words to a subscriber.
    pub(crate) fn dismiss(&mut self, farewell: &[u8], reason: CloseReason) {
        self.append(farewell);
        self.close = Some(reason);
        self.is_dismissal = true;
    }

    /// What it takes in memory.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Why its connection is closed if it is not taken in time.
    pub(crate) fn time_out_reason(&self) -> CloseReason {
        let dismissal = self.close.filter(|_| self.is_dismissal);
        dismissal.unwrap_or(CloseReason::Stalled)
    }

    /// Whether the client was sent a farewell, behind which nothing follows.
    pub(crate) fn is_dismissal(&self) -> bool {
        self.is_dismissal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_farewell_is_a_dismissal() {
        let mut outbound = Outbound::new(b"abc".to_vec());
        outbound.close = Some(CloseReason::Stopping);
        assert!(!outbound.is_dismissal());
        outbound.dismiss(b"d", CloseReason::LagMax);
        assert!(outbound.is_dismissal());
        assert_eq!(outbound.rest(), b"abcd");
    }
}
