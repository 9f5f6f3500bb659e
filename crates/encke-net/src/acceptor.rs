//! The listener of a shard, and the schedule of accepting.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with};

use crate::accept_batching::{AcceptBatching, GATHER_MS};
use crate::clients::rate_limit::RateLimit;
use crate::clock::Monotonic;
use crate::poller::Poller;

/// A listener and its schedule.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// None once the server stops.
    listener: Option<OwnedFd>,
    schedule: AcceptSchedule,
    listening: bool,
    /// When the listener is watched again after a pause.
    listen_again: Option<Monotonic>,
}

/// The result of accepting one connection.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A connection.
    Connection(OwnedFd, Option<SocketAddrAny>),
    /// The client has closed the connection already.
    Aborted,
    /// No connection waits.
    NoneWaiting,
    /// The rate is used up; accepting pauses.
    RateReached,
    /// The process has no descriptors or memory left; accepting pauses.
    OutOfDescriptors,
}

/// A change of the listener's registration in epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heed {
    Unchanged,
    On,
    Off,
}

impl Acceptor {
    /// An acceptor of at most that many connections a second; 0 for no limit. The connections of a second may arrive at once:
    /// all clients connect again together when a server restarts, and those for which the kernel's queue has no room try again
    /// only after a second.
    pub(crate) fn new(listener: OwnedFd, accepts_per_s: u64) -> Self {
        Acceptor {
            listener: Some(listener),
            schedule: AcceptSchedule::new(RateLimit::new(accepts_per_s, accepts_per_s)),
            listening: false,
            listen_again: None,
        }
    }

    /// Starts or stops watching the listener.
    pub(crate) fn listen(&mut self, poller: &Poller, on: bool) -> rustix::io::Result<()> {
        if on == self.listening {
            return Ok(());
        }
        if let Some(listener) = &self.listener {
            poller.listen(listener, on)?;
        }
        self.listening = on;
        self.schedule.gather_at_us = None;
        Ok(())
    }

    /// The milliseconds until the listener is watched again; `None` while it is.
    pub(crate) fn pause_ms(&self, now: Monotonic) -> Option<u64> {
        let left = |again: Monotonic| again.since(now).as_millis() as u64;
        (!self.listening).then(|| self.listen_again.map_or(0, left))
    }

    /// When the next batch is accepted.
    pub(crate) fn batch_at_us(&self) -> Option<u64> {
        self.schedule.gather_at_us
    }

    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self) {
        self.schedule.left = 0;
    }

    /// The listener is readable.
    pub(crate) fn ready(&mut self) {
        self.schedule.left = self.schedule.next;
    }

    /// After a turn's events: whether a batch is due.
    pub(crate) fn end_events(&mut self, now_us: u64) -> bool {
        self.schedule.end_events(now_us)
    }

    /// Whether connections are to be accepted in this turn.
    pub(crate) fn has_work(&self) -> bool {
        self.schedule.left > 0
    }

    /// The listener, for another process. It must not be listened to any more.
    pub(crate) fn take_listener(&mut self) -> Option<OwnedFd> {
        self.listener.take()
    }

    /// Closes the listener: clients that connect are refused.
    pub(crate) fn close(&mut self, poller: &Poller) {
        self.stop();
        if let Err(error) = self.listen(poller, false) {
            tracing::warn!(%error, "the listener could not be removed from epoll");
        }
        self.listener = None;
    }

    fn heed(&self, poller: &Poller, on: bool) -> rustix::io::Result<()> {
        match &self.listener {
            Some(listener) => poller.heed(listener, on),
            None => Ok(()),
        }
    }

    /// Stops accepting for this turn.
    pub(crate) fn stop(&mut self) {
        self.schedule.left = 0;
    }

    /// How many were accepted in this turn.
    pub(crate) fn accepted(&self) -> usize {
        self.schedule.accepted
    }

    /// Accepts one connection.
    pub(crate) fn accept(&mut self, poller: &Poller, now: Monotonic, now_us: u64) -> Accepted {
        let accepted = self.accept_one(poller, now, now_us);
        self.schedule.note(matches!(
            accepted,
            Accepted::Connection(..) | Accepted::Aborted
        ));
        accepted
    }

    fn accept_one(&mut self, poller: &Poller, now: Monotonic, now_us: u64) -> Accepted {
        if !self.schedule.takes_one(now_us) {
            // The others stay in the kernel's queue, where they cost nothing; to refuse them costs as much as to accept them.
            // During the pause several arrive: more frequent checks would cost more than the connections.
            return match self.listen(poller, false) {
                Ok(()) => {
                    self.listen_again = Some(now.after(RATE_PAUSE));
                    Accepted::RateReached
                }
                Err(_) => Accepted::NoneWaiting,
            };
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Some(listener) = &self.listener else {
            return Accepted::NoneWaiting;
        };
        match acceptfrom_with(listener, flags) {
            Ok((socket, peer)) => Accepted::Connection(socket, peer),
            Err(Errno::AGAIN) => Accepted::NoneWaiting,
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                self.pause(poller, now, error);
                Accepted::OutOfDescriptors
            }
            Err(_) => Accepted::Aborted,
        }
    }

    /// Ignores the listener for a moment, because there is no room for more connections. `false`: epoll refused.
    pub(crate) fn hold(&mut self, poller: &Poller, now: Monotonic) -> bool {
        let held = self.listen(poller, false).is_ok();
        if held {
            self.listen_again = Some(now.after(RATE_PAUSE));
        }
        held
    }

    /// Without descriptors the listener would be readable for ever, so it is ignored for a while.
    fn pause(&mut self, poller: &Poller, now: Monotonic, error: Errno) {
        if self.listen(poller, false).is_ok() {
            // Logged once, however long it lasts.
            let is_new = |again: Monotonic| now > again.after(LISTEN_PAUSE * 5);
            if self.listen_again.is_none_or(is_new) {
                tracing::warn!(%error, "no connection can be accepted; trying again");
            }
            self.listen_again = Some(now.after(LISTEN_PAUSE));
        }
    }

    /// Ends a turn in which connections were accepted; `batch` as [`Self::end_events`] said, `connections` being all there
    /// are. How many were accepted as a batch.
    pub(crate) fn end_turn(
        &mut self,
        poller: &Poller,
        batch: bool,
        connections: usize,
        now_us: u64,
    ) -> usize {
        let listening = self.listening;
        let before = self.schedule.gather_at_us;
        let (heed, accepted) = self
            .schedule
            .end_turn(batch, connections, now_us, listening);
        let changed = match heed {
            Heed::Unchanged => Ok(()),
            Heed::On => self.heed(poller, true),
            Heed::Off => self.heed(poller, false),
        };
        if changed.is_err() {
            self.schedule.gather_at_us = before;
        }
        if batch && listening { accepted } else { 0 }
    }
}

/// How many connections a turn accepts.
///
/// An accept without a waiting connection costs half as much as a connection, because the kernel creates the socket first. So a
/// turn accepts one at first, and twice as many with each turn in which as many waited.
#[derive(Debug)]
struct AcceptSchedule {
    rate: Option<RateLimit>,
    /// Up to when the rate is used up; see [`RateLimit::take`].
    taken_ns: u64,
    /// How many the next turn accepts if the listener is readable.
    next: usize,
    /// How many this turn still accepts.
    left: usize,
    /// How many this turn has accepted.
    accepted: usize,
    batching: AcceptBatching,
    /// When the next batch is accepted; `None` while epoll reports the listener.
    gather_at_us: Option<u64>,
}

impl AcceptSchedule {
    fn new(rate: Option<RateLimit>) -> Self {
        AcceptSchedule {
            rate,
            taken_ns: 0,
            next: 1,
            left: 0,
            accepted: 0,
            batching: AcceptBatching::default(),
            gather_at_us: None,
        }
    }

    /// Whether the rate allows one more.
    fn takes_one(&mut self, now_us: u64) -> bool {
        let Some(rate) = self.rate else {
            return true;
        };
        rate.take(&mut self.taken_ns, now_us * 1000).is_ok()
    }

    /// One was accepted, or none waited.
    fn note(&mut self, accepted: bool) {
        if !accepted {
            self.left = 0;
            self.next = 1;
            return;
        }
        self.accepted += 1;
        self.left -= 1;
        if self.left == 0 {
            self.next = (2 * self.next).min(ACCEPTS_PER_TURN);
        }
    }

    fn end_events(&mut self, now_us: u64) -> bool {
        if self.left == 0 {
            // None was waiting, so the next turn begins with one again.
            self.next = 1;
        }
        let batch = self.gather_at_us.is_some_and(|at_us| at_us <= now_us);
        if batch {
            self.left = ACCEPTS_PER_TURN;
        }
        batch
    }

    /// Decides how the next connections are accepted; how many were in this turn.
    fn end_turn(
        &mut self,
        batch: bool,
        connections: usize,
        now_us: u64,
        listening: bool,
    ) -> (Heed, usize) {
        let accepted = std::mem::take(&mut self.accepted);
        let more = self.left > 0 || accepted == ACCEPTS_PER_TURN;
        let gather = self.batching.note(accepted, connections, now_us);
        let at_us = if more {
            now_us
        } else {
            now_us + GATHER_MS * 1000
        };
        let heed = if !listening {
            Heed::Unchanged
        } else if batch {
            if gather || more {
                self.gather_at_us = Some(at_us);
                Heed::Unchanged
            } else {
                self.gather_at_us = None;
                Heed::On
            }
        } else if gather {
            self.gather_at_us = Some(at_us);
            Heed::Off
        } else {
            Heed::Unchanged
        };
        (heed, accepted)
    }
}

/// The most connections that one turn accepts before other sockets have their turn.
const ACCEPTS_PER_TURN: usize = 64;

const LISTEN_PAUSE: Duration = Duration::from_millis(100);

/// Shorter than the time in which the connections of a burst arrive, so that the rate is reached nevertheless.
const RATE_PAUSE: Duration = Duration::from_millis(10);
const _: () = assert!(RATE_PAUSE.as_secs() == 0);

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn in which that many wait and the listener is readable; how many it accepts.
    fn turn(
        schedule: &mut AcceptSchedule,
        waiting: usize,
        connections: usize,
        now_us: u64,
    ) -> usize {
        schedule.left = schedule.next;
        let batch = schedule.end_events(now_us);
        for _ in 0..waiting {
            if schedule.left == 0 {
                break;
            }
            schedule.note(true);
        }
        if schedule.left > 0 {
            schedule.note(false);
        }
        schedule.end_turn(batch, connections, now_us, true).1
    }

    #[test]
    fn a_turn_accepts_twice_as_many_while_enough_wait() {
        let mut schedule = AcceptSchedule::new(None);
        let turns = (0..9).map(|_| turn(&mut schedule, 1000, 0, 0));
        assert_eq!(turns.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(turn(&mut schedule, 3, 0, 0), 3);
        assert_eq!(
            turn(&mut schedule, 1000, 0, 0),
            1,
            "fewer waited than allowed"
        );
    }

    #[test]
    fn the_rate_bounds_what_is_accepted() {
        let mut schedule = AcceptSchedule::new(RateLimit::new(10, 10));
        let taken = (0..100).filter(|_| schedule.takes_one(1)).count();
        assert_eq!(taken, 10);
        assert!(schedule.takes_one(100_002));
        assert!(!schedule.takes_one(100_003));
    }

    #[test]
    fn many_that_stay_are_accepted_in_batches() {
        let mut schedule = AcceptSchedule::new(None);
        let mut connections = 0;
        let mut now_us = 1_000_000;
        while schedule.gather_at_us.is_none() {
            now_us += 1_000;
            connections += turn(&mut schedule, 8, connections + 8, now_us);
            assert!(now_us < 1_100_000, "a batch begins");
        }
        // Until the batch is due nothing is accepted.
        let at_us = schedule.gather_at_us.unwrap();
        schedule.left = 0;
        assert!(!schedule.end_events(at_us - 1));
        assert!(schedule.end_events(at_us));
        assert_eq!(schedule.left, ACCEPTS_PER_TURN);
        // When none has arrived, epoll reports the listener again.
        schedule.note(false);
        let (heed, accepted) = schedule.end_turn(true, connections, at_us, true);
        assert_eq!((heed, accepted, schedule.gather_at_us), (Heed::On, 0, None));
    }
}
