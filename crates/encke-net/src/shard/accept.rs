//! New connections.

use std::sync::atomic::Ordering;

use rustix::event::epoll;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags, acceptfrom_with, send};

use super::crowd::GATHER_MS;
use super::{LISTENER, Shard};
use crate::addresses::Denied;
use crate::close::CloseReason;
use crate::owners::Owner;
use crate::slot::Flags;

impl Shard {
    /// Starts or stops looking at the listener.
    pub(super) fn listen(&mut self, on: bool) -> rustix::io::Result<()> {
        if on == self.listening {
            return Ok(());
        }
        if on {
            epoll::add(
                &self.epoll,
                &self.parts.listener,
                epoll::EventData::new_u64(LISTENER),
                epoll::EventFlags::IN,
            )?;
        } else {
            epoll::delete(&self.epoll, &self.parts.listener)?;
        }
        self.listening = on;
        self.gather_at_us = None;
        Ok(())
    }

    /// Accepts one of those who wait, while as many wait as the turn accepts; the rest come with the next turn, for which
    /// epoll reports the listener again.
    ///
    /// To ask for one more when nobody waits costs as much as half a connection, because the kernel makes the socket before
    /// it looks. So one is accepted at first, and twice as many with each turn in which there were as many as that.
    ///
    /// While a crowd comes, they are gathered: see [`super::crowd`].
    pub(super) fn accept(&mut self) {
        if !self.accept_one() {
            self.errands.arrivals = 0;
            self.accepts_next = 1;
            return;
        }
        self.errands.arrived += 1;
        self.errands.arrivals -= 1;
        if self.errands.arrivals == 0 {
            self.accepts_next = (2 * self.accepts_next).min(ACCEPTS_PER_TURN);
        }
    }

    /// Has those accepted in this turn who were gathered, if it is time. Whether it is.
    pub(super) fn gathered(&mut self) -> bool {
        let now_us = self.clock.now_us();
        let due = self.gather_at_us.is_some_and(|at_us| at_us <= now_us);
        if due {
            self.errands.arrivals = ACCEPTS_PER_TURN;
        }
        due
    }

    /// After those were accepted for whom the turn had time: whether those who come next are gathered.
    pub(super) fn weigh_crowd(&mut self, gathered: bool) {
        let arrived = std::mem::take(&mut self.errands.arrived);
        let more = self.errands.arrivals > 0 || arrived == ACCEPTS_PER_TURN;
        let now_us = self.clock.now_us();
        let gather = self.crowd.note(arrived, self.slots.used(), now_us);
        let at_us = if more {
            now_us
        } else {
            now_us + GATHER_MS * 1000
        };
        if !self.listening {
            // Nobody is accepted for now.
        } else if gathered {
            self.parts.metrics.accepts_gathered.inc_by(arrived as u64);
            if gather || more {
                self.gather_at_us = Some(at_us);
            } else if self.heed(true).is_ok() {
                self.gather_at_us = None;
            }
        } else if gather && self.heed(false).is_ok() {
            self.gather_at_us = Some(at_us);
        }
    }

    /// Has epoll tell of the listener or not, without taking it out.
    fn heed(&self, on: bool) -> rustix::io::Result<()> {
        let flags = if on {
            epoll::EventFlags::IN
        } else {
            epoll::EventFlags::empty()
        };
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::modify(&self.epoll, &self.parts.listener, data, flags)
    }

    /// Accepts a connection, unless nobody waits or nobody may come in.
    fn accept_one(&mut self) -> bool {
        if self.accepts_enough() {
            return false;
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) = match acceptfrom_with(&self.parts.listener, flags) {
            Ok(accepted) => accepted,
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(
                error @ (rustix::io::Errno::MFILE
                | rustix::io::Errno::NFILE
                | rustix::io::Errno::NOBUFS
                | rustix::io::Errno::NOMEM),
            ) => {
                self.out_of_descriptors(error);
                return false;
            }
            // The client gave up before it was accepted.
            Err(_) => return true,
        };
        let owner = match self.enter(peer) {
            Ok(owner) => owner,
            Err((reason, answer)) => {
                self.refuse_connection(reason);
                // A fresh socket's buffer takes these few bytes, or nobody is there to read them.
                let _ = send(&socket, answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                return true;
            }
        };
        let index = self.slots.add(socket, self.clock.now_s());
        self.counts.accepted += 1;
        self.counts.connections += 1;
        self.owners.set(index, owner);
        if self.errands.arrived == 0 {
            // Who asks for the metrics is counted in them.
            self.counts.add_up(&self.parts.metrics);
        }
        self.welcome(index);
        true
    }

    /// Looks whether a new connection's request is there already, which spares it a turn, and has epoll tell of the rest.
    fn welcome(&mut self, index: u32) {
        let token = self.slots.token(index);
        if self.parts.settings.proxy_protocol {
            self.await_preface(index);
        }
        self.newcomer = Some(index);
        self.readable(index, false);
        self.newcomer = None;
        if !self.is_open(index) {
            return;
        }
        let flags = watched(self.slots[index].flags);
        let Some(fd) = self.slots[index].fd() else {
            return;
        };
        // What came since it was read is told at once.
        if epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags).is_err() {
            self.close(index, CloseReason::Epoll);
        }
    }

    /// Has epoll tell when a socket takes more. It is asked for only once that is of interest: of a new socket it would tell
    /// at once, for nothing. False: the connection is closed, because nobody would ever tell.
    pub(super) fn watch_output(&mut self, index: u32) -> bool {
        if self.slots[index].flags.has(Flags::WATCHED) {
            return true;
        }
        self.slots[index].flags.set(Flags::WATCHED, true);
        if self.newcomer == Some(index) {
            return true;
        }
        let token = self.slots.token(index);
        let flags = watched(self.slots[index].flags);
        let Some(fd) = self.slots[index].fd() else {
            return true;
        };
        // If it takes more by now, that is told at once.
        let told = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags);
        if told.is_err() {
            self.cut(index, CloseReason::Epoll);
        }
        told.is_ok()
    }

    /// Counts a new connection and finds out whose it is; why it is not let in, and what it is told, if it is not.
    fn enter(&self, peer: Option<SocketAddrAny>) -> Result<Owner, (&'static str, &'static [u8])> {
        let connections = &self.parts.connections;
        let entered =
            if connections.fetch_add(1, Ordering::Relaxed) >= self.parts.settings.connections_max {
                Err(("connections_max", FULL))
            } else {
                self.admit(peer).map_err(|turned| {
                    let answer = match turned {
                        Denied::Stranger => STRANGER,
                        Denied::Crowd => CROWD,
                        Denied::Haste { .. } => HASTE,
                        Denied::Full => FULL,
                    };
                    (turned.reason(), answer)
                })
            };
        if entered.is_err() {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
        entered
    }

    /// Whether as many were accepted as may be for now: the others are left to the kernel's queue, where they cost nothing.
    /// To refuse them would cost as much as to accept them.
    fn accepts_enough(&mut self) -> bool {
        let Some(pace) = self.accept_pace else {
            return false;
        };
        let now_ns = self.clock.now_us() * 1000;
        if pace.take(&mut self.accepted_upto_ns, now_ns).is_ok() {
            return false;
        }
        if self.listen(false).is_ok() {
            self.parts.metrics.accepts_held.inc();
            // A little later, so that some may come at once then: to look again and again would cost more than they do.
            self.listen_again_ms = self.clock.now_ms() + PACE_PAUSE_MS;
        }
        true
    }

    /// Without descriptors the listener would be ready for ever: it is left alone for a while.
    fn out_of_descriptors(&mut self, error: rustix::io::Errno) {
        self.refuse_connection("descriptors");
        if self.listen(false).is_ok() {
            let now_ms = self.clock.now_ms();
            // ForwardedInfo once, however long it lasts.
            if now_ms > self.listen_again_ms + LISTEN_PAUSE_MS * 5 {
                tracing::warn!(%error, "no connection can be accepted; trying again and again");
            }
            self.listen_again_ms = now_ms + LISTEN_PAUSE_MS;
        }
    }

    fn refuse_connection(&self, reason: &str) {
        self.parts
            .metrics
            .refused
            .with_label_values(&[reason])
            .inc();
    }
}

/// What epoll tells of a connection.
fn watched(flags: Flags) -> epoll::EventFlags {
    let input = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    if flags.has(Flags::WATCHED) {
        input | epoll::EventFlags::OUT
    } else {
        input
    }
}

/// So many are accepted at most before other sockets have their turn.
const ACCEPTS_PER_TURN: usize = 64;

const LISTEN_PAUSE_MS: u64 = 100;

/// Less than what may come at once takes to come, so that the rate is reached all the same.
const PACE_PAUSE_MS: u64 = 10;
const _: () = assert!(PACE_PAUSE_MS < 1000);

/// An answer to somebody who has not asked yet.
macro_rules! refusal {
    ($status:literal, $length:literal, $fields:literal, $why:literal) => {
        concat!(
            "HTTP/1.1 ",
            $status,
            "\r\nContent-Type: text/plain\r\nContent-Length: ",
            $length,
            "\r\n",
            $fields,
            "Connection: close\r\n\r\n",
            $why,
            "\n"
        )
        .as_bytes()
    };
}

const FULL: &[u8] = refusal!(
    "503 Service Unavailable",
    "35",
    "Retry-After: 5\r\n",
    "the server has no room for clients"
);

const STRANGER: &[u8] = refusal!(
    "403 Forbidden",
    "46",
    "",
    "only proxies that are trusted are heard here."
);

const CROWD: &[u8] = refusal!(
    "429 Too Many Requests",
    "46",
    "Retry-After: 5\r\n",
    "your address has too many connections already"
);

const HASTE: &[u8] = refusal!(
    "429 Too Many Requests",
    "47",
    "Retry-After: 5\r\n",
    "your address makes requests faster than it may"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_as_long_as_it_says() {
        for refusal in [FULL, STRANGER, CROWD, HASTE] {
            let refusal = std::str::from_utf8(refusal).unwrap();
            let (head, body) = refusal.split_once("\r\n\r\n").unwrap();
            let (_, length) = head.split_once("Content-Length: ").unwrap();
            let (length, _) = length.split_once("\r\n").unwrap();
            assert_eq!(length.parse(), Ok(body.len()), "{refusal}");
        }
    }
}
