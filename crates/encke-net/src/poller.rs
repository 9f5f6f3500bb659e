//! The epoll instance of a shard.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::feed::slot::Token;

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Arc<OwnedFd>,
}

impl Poller {
    /// Waits for this eventfd, edge-triggered.
    pub(crate) fn new(wake: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, wake, EventData::new_u64(WAKE), flags)?;
        Ok(Poller {
            epoll: Arc::new(epoll),
        })
    }

    /// The instance, which takes a millisecond for every thousand sockets to close.
    pub(crate) fn instance(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Waits for events, at most for that long.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        timeout: Duration,
    ) -> rustix::io::Result<()> {
        events.clear();
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let room = rustix::buffer::spare_capacity(events);
        match epoll::wait(&*self.epoll, room, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds the listener, or removes it.
    pub(crate) fn listen(&self, listener: &OwnedFd, on: bool) -> rustix::io::Result<()> {
        match on {
            true => {
                let data = EventData::new_u64(LISTENER);
                epoll::add(&*self.epoll, listener, data, EventFlags::IN)
            }
            false => epoll::delete(&*self.epoll, listener),
        }
    }

    /// Reports the listener or ignores it, without removing it.
    pub(crate) fn heed(&self, listener: &OwnedFd, on: bool) -> rustix::io::Result<()> {
        let flags = match on {
            true => EventFlags::IN,
            false => EventFlags::empty(),
        };
        let data = EventData::new_u64(LISTENER);
        epoll::modify(&*self.epoll, listener, data, flags)
    }

    /// Adds a listener for as long as this instance exists. Each arrival is reported once.
    pub(crate) fn add_listener(&self, listener: &OwnedFd, token: Token) -> rustix::io::Result<()> {
        let data = EventData::new_u64(token);
        epoll::add(
            &*self.epoll,
            listener,
            data,
            EventFlags::IN | EventFlags::ET,
        )
    }

    /// Adds a connection. What has arrived already is reported at once.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token, output: bool) -> rustix::io::Result<()> {
        let data = EventData::new_u64(token);
        epoll::add(&*self.epoll, fd, data, watched(output))
    }

    /// Removes a connection whose socket goes elsewhere.
    pub(crate) fn remove(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::delete(&*self.epoll, fd)
    }

    /// Also reports when the connection's socket is writable, at once if it is already.
    pub(crate) fn watch_output(&self, fd: impl AsFd, token: Token) -> rustix::io::Result<()> {
        let data = EventData::new_u64(token);
        epoll::modify(&*self.epoll, fd, data, watched(true))
    }
}

fn watched(output: bool) -> EventFlags {
    let input = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    match output {
        true => input | EventFlags::OUT,
        false => input,
    }
}

/// Tokens of no connection: their generation is never given to a slot.
pub(crate) const WAKE: Token = u64::MAX;
pub(crate) const LISTENER: Token = u64::MAX - 1;
pub(crate) const OPERATORS: Token = u64::MAX - 2;
