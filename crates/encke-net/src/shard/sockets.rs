//! Events of sockets.

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::connections::Received;
use super::state::Shard;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, Token};

impl Shard {
    /// Handles what epoll reports of a socket.
    pub(super) fn socket_event(&mut self, token: Token, flags: epoll::EventFlags) {
        let Some(index) = self.connections.slots.find(token) else {
            return;
        };
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            let slot = &self.connections.slots[index];
            let error = slot.fd().map(sockopt::socket_error);
            let reason = match error {
                Some(Ok(Err(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH))) => {
                    CloseReason::Vanished
                }
                _ => CloseReason::HangUp,
            };
            return self.close(index, reason);
        }
        if flags.contains(epoll::EventFlags::OUT) {
            self.connections.send_outbound(index);
            self.do_wishes();
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP) {
            self.readable(index, flags.contains(epoll::EventFlags::RDHUP));
        }
    }

    /// Reads what the socket holds. Epoll reports each arrival once, so the socket must be emptied or marked as unread.
    pub(super) fn readable(&mut self, index: u32, half_closed: bool) {
        if !self.connections.is_open(index) {
            return;
        }
        // What has begun needs its rest.
        let is_left_unread = self.connections.moving.is_some() && self.connections.can_move(index);
        let flags = &mut self.connections.slots[index].flags;
        flags.set(Flags::UNREAD, is_left_unread);
        if is_left_unread {
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        for turn in 0.. {
            let has_enough = self.connections.has_enough(index);
            if turn == READS_PER_TURN || has_enough {
                let flags = &mut self.connections.slots[index].flags;
                flags.set(Flags::UNREAD, true);
                if !has_enough {
                    self.deferred
                        .queue(ExchangeId::new(index), &mut self.connections.slots);
                }
                break;
            }
            let (count, drained, is_last) = match self.connections.receive(index, &mut scratch) {
                Received::Bytes { count, drained } => (count, drained, false),
                Received::Last { count } => (count, true, true),
                Received::Nothing => break,
                Received::Failed(reason) => {
                    self.close(index, reason);
                    break;
                }
            };
            if count > 0 {
                let connections = &mut self.connections;
                connections.counts.bytes_in += count as u64;
                connections.slots[index].active_s = connections.clock.now_s();
                let bytes = &scratch[..count];
                let full = !drained;
                self.on(index, Event::Received { bytes, full });
                if !self.connections.is_open(index) {
                    break;
                }
            }
            if is_last {
                self.on(index, Event::HalfClosed);
                break;
            }
            // A short read has emptied the socket, unless the end of the input is behind it.
            if drained && !half_closed {
                break;
            }
        }
        self.scratch = scratch;
        self.weigh(index);
    }

    /// Reads what has arrived of a connection that is not in epoll yet, and adds it.
    pub(super) fn read_newcomer(&mut self, index: u32) {
        self.readable(index, false);
        self.connections.newcomer = None;
        if !self.connections.is_open(index) {
            return;
        }
        let token = self.connections.slots.token(index);
        let slot = &self.connections.slots[index];
        let output = slot.flags.has(Flags::OUTPUT_WATCHED);
        if let Some(fd) = slot.fd()
            && self.connections.poller.add(fd, token, output).is_err()
        {
            self.close(index, CloseReason::Epoll);
        }
    }
}

/// Reads of one connection in a turn; a client that sends without pause leaves time for the others.
const READS_PER_TURN: u32 = 16;
