//! An epoll instance with a precise timer, for all loops of this crate.

use crate::BenchError;
use crate::load::clock::timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::mem::MaybeUninit;

/// The most events that one wait returns.
const EVENTS_MAX: usize = 512;

/// The token of the timer; never given out for a descriptor.
const TIMER: u64 = u64::MAX;

/// An event of a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    /// The token that it was added with.
    pub(crate) token: u64,
    /// A read returns data, an end or an error.
    pub(crate) readable: bool,
    /// It can be written to, or a connection attempt has ended.
    pub(crate) writable: bool,
    /// The peer has closed, or there is an error: reading must go on until it says so.
    pub(crate) ended: bool,
}

/// An epoll instance and its timer. Descriptors leave by being closed.
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Poller {
    /// A new instance.
    pub(crate) fn new() -> Result<Self, BenchError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(BenchError::system("make an epoll instance"))?;
        // Not epoll's own timeout: that counts in milliseconds, and a publisher paces in microseconds.
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )
        .map_err(BenchError::system("make a timer"))?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)
            .map_err(BenchError::system("watch a timer"))?;
        Ok(Self { epoll, timer })
    }

    /// Watches a socket, edge-triggered in both directions: it must be read until it is empty.
    pub(crate) fn add_socket(&self, socket: impl AsFd, token: u64) -> Result<(), Errno> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, socket, EventData::new_u64(token), flags)
    }

    /// Has a watched socket's events come under another token from now on.
    pub(crate) fn move_socket(&self, socket: impl AsFd, token: u64) -> Result<(), Errno> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags)
    }

    /// Watches a pipe, a listener or a socket for something to read, level-triggered.
    pub(crate) fn add_readable(&self, file: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, file, EventData::new_u64(token), EventFlags::IN)
    }

    /// Waits until something happens or `until_ns` (of the monotonic clock) is reached, and calls
    /// `on_ready` for each thing that happened.
    pub(crate) fn wait(
        &self,
        until_ns: u64,
        mut on_ready: impl FnMut(Ready),
    ) -> Result<(), BenchError> {
        let spec = Itimerspec {
            it_interval: timespec(0),
            // Zero would disarm the timer; one is in the past just as well.
            it_value: timespec(until_ns.max(1)),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)
            .map_err(BenchError::system("set a timer"))?;
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let events = match epoll::wait(&self.epoll, &mut events[..], None) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(BenchError::system("wait for events")(error)),
        };
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == TIMER {
                continue;
            }
            let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            on_ready(Ready {
                token,
                readable: flags.intersects(EventFlags::IN | end),
                writable: flags.intersects(EventFlags::OUT | end),
                ended: flags.intersects(end),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::clock::{MILLISECOND_NS, monotonic_ns};
    use std::io::Write as _;

    #[test]
    fn waits_end_in_time_or_with_an_event() {
        let poller = Poller::new().unwrap();
        let start = monotonic_ns();
        poller
            .wait(start + 3 * MILLISECOND_NS, |_| panic!("nothing was added"))
            .unwrap();
        assert!(monotonic_ns() >= start + 3 * MILLISECOND_NS);

        let (reader, mut writer) = std::io::pipe().unwrap();
        poller.add_readable(&reader, 5).unwrap();
        writer.write_all(b"x").unwrap();
        let mut tokens = Vec::new();
        poller
            .wait(u64::MAX, |ready| tokens.push((ready.token, ready.readable)))
            .unwrap();
        assert_eq!(tokens, [(5, true)]);
    }
}
