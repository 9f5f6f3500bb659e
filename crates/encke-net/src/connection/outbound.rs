//! Output that was not taken yet.

use encke_stream::Offset;

use super::close::CloseReason;

/// Bytes that a socket, or a window, has not taken. A connection is blocked while there are some.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    bytes: Vec<u8>,
    /// How many of them were taken meanwhile.
    sent: usize,
    /// A subscriber's position behind them.
    pub(crate) reached: Option<Offset>,
    /// Why it is closed behind them, if it is.
    pub(crate) close: Option<CloseReason>,
}

impl Outbound {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Outbound {
            bytes,
            ..Outbound::default()
        }
    }

    /// What is to be sent next.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Notes that the next `sent` bytes were taken.
    pub(crate) fn take(&mut self, sent: usize) {
        self.sent += sent;
    }

    /// Adds bytes behind the others.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.sent);
        self.sent = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// What it takes in memory.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Why its connection is closed if it is not taken in time.
    pub(crate) fn time_out_reason(&self) -> CloseReason {
        let dismissal = self.close.filter(|reason| reason.is_dismissal());
        dismissal.unwrap_or(CloseReason::Stalled)
    }

    /// Whether the client was sent a farewell, behind which nothing follows.
    pub(crate) fn is_dismissal(&self) -> bool {
        self.close.is_some_and(CloseReason::is_dismissal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_out_once_and_in_order() {
        let mut outbound = Outbound::new(b"abc".to_vec());
        outbound.take(2);
        assert_eq!(outbound.rest(), b"c");
        outbound.append(b"de");
        assert_eq!(outbound.rest(), b"cde");
        outbound.take(3);
        assert!(outbound.rest().is_empty());
        assert!(!outbound.is_dismissal());
        outbound.close = Some(CloseReason::LagMax);
        assert!(outbound.is_dismissal());
    }
}
