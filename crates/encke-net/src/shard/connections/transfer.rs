//! Bytes through the sockets of connections, encrypted where they are.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use super::state::Connections;
use crate::connection::Connection;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, Slot, SlotState};
use crate::transport::tls::{ReadOutcome, TlsFault};
use crate::transport::{Transports, plain};

/// What a read of a socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// `count` bytes; `drained`: the socket held no more.
    Bytes { count: usize, drained: bool },
    /// `count` bytes, behind which the client has closed its side.
    Last { count: usize },
    /// Nothing: the socket is empty.
    Nothing,
    /// The connection is to be closed.
    Failed(CloseReason),
}

impl Connections {
    /// Sends bytes of a feed directly through the socket of its connection. Returns how many the socket took.
    pub(crate) fn send_direct(&mut self, index: u32, bytes: &[u8]) -> Result<usize, CloseReason> {
        match send(&self.slots[index], &mut self.transports, index, bytes) {
            Ok(sent) => {
                self.note_sent(index, sent);
                Ok(sent)
            }
            Err(fault) => {
                let reason = self.session_ended(index, &fault);
                Err(reason)
            }
        }
    }

    /// Receives bytes of the application.
    pub(crate) fn receive(&mut self, index: u32, scratch: &mut [u8]) -> Received {
        let slot = &self.slots[index];
        if slot.flags.has(Flags::ENCRYPTED) {
            return self.receive_encrypted(index, scratch);
        }
        let Some(fd) = slot.fd() else {
            return Received::Nothing;
        };
        match plain::receive(fd, scratch) {
            Ok(0) => Received::Last { count: 0 },
            Ok(count) => Received::Bytes {
                count,
                drained: count < scratch.len(),
            },
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::Failed(CloseReason::HangUp),
        }
    }

    /// Makes epoll report when a socket is writable. Requested only when output waits, because epoll would report each new
    /// socket at once. False: epoll refused.
    pub(crate) fn watch_output(&mut self, index: u32) -> bool {
        let token = self.slots.token(index);
        let slot = &mut self.slots[index];
        if slot.flags.has(Flags::OUTPUT_WATCHED) {
            return true;
        }
        slot.flags.set(Flags::OUTPUT_WATCHED, true);
        if self.newcomer == Some(index) {
            return true;
        }
        match slot.fd() {
            Some(fd) => self.poller.watch_output(fd, token).is_ok(),
            None => true,
        }
    }

    /// Has the socket of a connection closed with a reset: the client must not take the beginning for the whole, and the kernel
    /// discards what was never read.
    pub(crate) fn reset(&mut self, index: u32) {
        // An end of the session would say that nothing is missing.
        self.transports.remove(ExchangeId::new(index));
        if let Some(fd) = self.slots[index].fd() {
            // Where it fails the connection is gone already.
            let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        }
    }

    /// Ends this side of a session of TLS properly, as far as the socket takes it.
    pub(crate) fn close_session(&mut self, index: u32) {
        let slot = &self.slots[index];
        if slot.flags.has(Flags::ENCRYPTED)
            && let (Some(session), Some(fd)) =
                (self.transports.session(ExchangeId::new(index)), slot.fd())
        {
            session.close(fd);
        }
    }

    /// Gives back the memory that the session of a quiet connection does not need.
    pub(crate) fn rest_session(&mut self, index: u32) {
        if self.slots[index].flags.has(Flags::ENCRYPTED)
            && let Some(session) = self.transports.session(ExchangeId::new(index))
        {
            session.rest();
        }
    }

    /// Receives records into `scratch`, and replaces them there by their content.
    fn receive_encrypted(&mut self, index: u32, scratch: &mut [u8]) -> Received {
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        let id = ExchangeId::new(index);
        let (Some(session), Some(fd)) = (self.transports.session(id), self.slots[index].fd())
        else {
            return Received::Failed(CloseReason::Internal);
        };
        let outcome = session.read(fd, scratch, &mut content);
        let partial = session.partial_input();
        session.weigh(&self.shared.buffers);
        // Records are longer than their content.
        let count = content.len().min(scratch.len());
        scratch[..count].copy_from_slice(&content[..count]);
        self.content = content;
        match outcome {
            Ok(ReadOutcome::Read { drained }) => match self.holds_too_much(index, partial) {
                Some(reason) => Received::Failed(reason),
                None => Received::Bytes { count, drained },
            },
            Ok(ReadOutcome::Nothing) => Received::Nothing,
            Ok(ReadOutcome::Ended) => Received::Last { count },
            // Without the end of a session what came before may be a part of what the client has sent.
            Ok(ReadOutcome::Truncated) => Received::Failed(CloseReason::HangUp),
            Err(fault) => Received::Failed(self.session_ended(index, &fault)),
        }
    }

    /// Why a connection is closed that holds too much of a record that is not complete.
    fn holds_too_much(&self, index: u32, partial: usize) -> Option<CloseReason> {
        let listens = match self.slots[index].state {
            SlotState::Subscribed => true,
            _ => self.get(index).is_some_and(Connection::is_listener),
        };
        if partial > LISTENER_RECORD_BYTES_MAX && listens {
            // A subscriber has no reason to send this much.
            return Some(CloseReason::Talkative);
        }
        (partial > 0 && !self.shared.buffers.have_room()).then_some(CloseReason::BuffersMax)
    }

    /// Whether a record is out in part only, so that nothing else may be sent and the connection not be closed.
    pub(super) fn has_unsent_record(&mut self, index: u32) -> bool {
        self.slots[index].flags.has(Flags::ENCRYPTED)
            && self
                .transports
                .session(ExchangeId::new(index))
                .is_some_and(|session| session.has_unsent())
    }

    pub(super) fn end_session(&mut self, index: u32, fault: &TlsFault) {
        let reason = self.session_ended(index, fault);
        self.wish(index, ConnectionEffect::Close(reason));
    }

    /// A socket or a session can't go on: tells the client why, where that is possible. The reason for closing the connection.
    fn session_ended(&mut self, index: u32, fault: &TlsFault) -> CloseReason {
        let id = ExchangeId::new(index);
        if let (Some(session), Some(fd)) = (self.transports.session(id), self.slots[index].fd()) {
            session.end_with(fd, fault);
        }
        // Nothing is sent behind the alert.
        self.transports.remove(id);
        match fault {
            TlsFault::Socket(_) | TlsFault::Alert(_) => CloseReason::HangUp,
            _ => {
                let client = self.client_name(index);
                tracing::debug!(client, %fault, "a session of TLS failed");
                CloseReason::Tls
            }
        }
    }
}

/// Sends bytes through a socket, encrypted where it is. Returns how many it took.
pub(super) fn send(
    slot: &Slot,
    transports: &mut Transports,
    index: u32,
    bytes: &[u8],
) -> Result<usize, TlsFault> {
    let Some(fd) = slot.fd() else {
        return Err(TlsFault::Socket(Errno::NOTCONN));
    };
    if !slot.flags.has(Flags::ENCRYPTED) {
        return Ok(plain::send(fd, bytes)?);
    }
    match transports.session(ExchangeId::new(index)) {
        Some(session) => session.write(fd, bytes),
        None => Err(TlsFault::Socket(Errno::NOTCONN)),
    }
}

/// Bytes of a record that a subscriber may have sent in part.
const LISTENER_RECORD_BYTES_MAX: usize = 1 << 10;
