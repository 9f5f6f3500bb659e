//! The listener for operators: metrics, readiness with reasons, administration. The first shard has it. Its connections do not
//! count for the limits of clients, so that operators get in when clients have used these up.

use std::os::fd::OwnedFd;

use rustix::net::{SocketFlags, accept_with};

use crate::poller::{OPERATORS, Poller};

/// The listener, and how many connections it has.
#[derive(Debug)]
pub(crate) struct OperatorListener {
    listener: OwnedFd,
    open: usize,
}

impl OperatorListener {
    /// Watches the listener.
    pub(crate) fn new(listener: OwnedFd, poller: &Poller) -> rustix::io::Result<Self> {
        poller.add_listener(&listener, OPERATORS)?;
        Ok(OperatorListener { listener, open: 0 })
    }

    /// Accepts the next connection. One that is too many is closed at once.
    pub(crate) fn accept(&mut self) -> Option<OwnedFd> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = accept_with(&self.listener, flags);
            match socket {
                Ok(_) if self.open >= OPERATOR_CONNECTIONS_MAX => {}
                Ok(socket) => {
                    self.open += 1;
                    return Some(socket);
                }
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                // None waits, or there are no descriptors: the next connection is reported again.
                Err(_) => return None,
            }
        }
    }

    /// A connection is closed.
    pub(crate) fn closed(&mut self) {
        self.open = self.open.saturating_sub(1);
    }
}

/// Connections of operators at a time; further ones are closed.
pub(crate) const OPERATOR_CONNECTIONS_MAX: usize = 64;
