//! Encrypted connections: what sending, receiving and closing mean for them.

use super::Shard;
use crate::connection::close::CloseReason;
use crate::connection::slot::Flags;
use crate::transport::tls::{ReadOutcome, TlsFault};

/// What a read of a transport brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes; `drained`: the socket held no more.
    Bytes { count: usize, drained: bool },
    /// So many bytes, and the client has ended its side behind them.
    Last { count: usize },
    /// Nothing: the socket is empty.
    Nothing,
    /// The connection was closed.
    Closed,
}

impl Shard {
    /// Receives records into `scratch`, and replaces them there by their content.
    pub(super) fn receive_encrypted(&mut self, index: u32, scratch: &mut [u8]) -> Received {
        let mut content = std::mem::take(&mut self.scratch.content);
        content.clear();
        let (transports, slots) = self.connections.encrypted_parts();
        let (Some(session), Some(fd)) = (transports.session(index), slots[index].fd()) else {
            self.close(index, CloseReason::Internal);
            return Received::Closed;
        };
        let outcome = session.read(fd, scratch, &mut content);
        let partial = session.partial_input();
        session.weigh(&self.context.buffers);
        // Records are longer than their content.
        let count = content.len().min(scratch.len());
        scratch[..count].copy_from_slice(&content[..count]);
        self.scratch.content = content;
        match outcome {
            Ok(ReadOutcome::Read { drained }) => {
                if self.holds_too_much(index, partial) {
                    return Received::Closed;
                }
                Received::Bytes { count, drained }
            }
            Ok(ReadOutcome::Nothing) => Received::Nothing,
            Ok(ReadOutcome::Ended) => Received::Last { count },
            // Without the end of a session what came before may be a part of what the client has sent.
            Ok(ReadOutcome::Truncated) => {
                self.close(index, CloseReason::HangUp);
                Received::Closed
            }
            Err(fault) => {
                self.end_session(index, &fault);
                Received::Closed
            }
        }
    }

    /// Encrypts and sends; see [`Shard::send`].
    pub(super) fn send_encrypted(&mut self, index: u32, bytes: &[u8]) -> Option<usize> {
        let (transports, slots) = self.connections.encrypted_parts();
        let (Some(session), Some(fd)) = (transports.session(index), slots[index].fd()) else {
            self.close(index, CloseReason::Internal);
            return None;
        };
        match session.write(fd, bytes) {
            Ok(sent) => Some(sent),
            Err(fault) => {
                self.end_session(index, &fault);
                None
            }
        }
    }

    /// Whether a record is out in part only, so that nothing else may be sent and the connection not be closed.
    pub(super) fn has_unsent_record(&mut self, index: u32) -> bool {
        self.connections.slots[index].flags.has(Flags::ENCRYPTED)
            && self
                .connections
                .transports
                .session(index)
                .is_some_and(|session| session.has_unsent())
    }

    /// Gives back the memory that the session of a quiet connection does not need.
    pub(super) fn rest_session(&mut self, index: u32) {
        if self.connections.slots[index].flags.has(Flags::ENCRYPTED)
            && let Some(session) = self.connections.transports.session(index)
        {
            session.rest();
        }
    }

    /// Ends this side of a session properly, as far as the socket takes it.
    pub(super) fn close_session(&mut self, index: u32) {
        let (transports, slots) = self.connections.encrypted_parts();
        if let (Some(session), Some(fd)) = (transports.session(index), slots[index].fd()) {
            session.close(fd);
        }
    }

    /// A session can't go on: tells the client why, and closes the connection.
    fn end_session(&mut self, index: u32, fault: &TlsFault) {
        let (transports, slots) = self.connections.encrypted_parts();
        if let (Some(session), Some(fd)) = (transports.session(index), slots[index].fd()) {
            session.end_with(fd, fault);
        }
        // Nothing is sent behind the alert.
        self.connections.transports.remove(index);
        let reason = match fault {
            TlsFault::Socket(_) | TlsFault::Alert(_) => CloseReason::HangUp,
            _ => {
                tracing::debug!(client = %self.client_name(index), %fault, "a session of TLS failed");
                CloseReason::Tls
            }
        };
        self.close(index, reason);
    }

    /// Closes a connection that holds too much of a record that is not complete.
    fn holds_too_much(&mut self, index: u32, partial: usize) -> bool {
        if partial == 0 {
            return false;
        }
        let reason = if partial > LISTENER_RECORD_BYTES_MAX && self.is_listener(index) {
            // A subscriber has no reason to send this much.
            CloseReason::Talkative
        } else if !self.context.buffers.have_room() {
            CloseReason::BuffersMax
        } else {
            return false;
        };
        self.close(index, reason);
        true
    }
}

/// Bytes of a record that a subscriber may have sent in part.
const LISTENER_RECORD_BYTES_MAX: usize = 1 << 10;
