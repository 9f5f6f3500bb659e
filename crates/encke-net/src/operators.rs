//! The listener for operators: metrics, readiness with reasons, administration. The first shard has it. Its connections do not
//! count for the limits of clients, so that operators get in when clients have used these up.
//!
//! It has few places. Connections that do nothing keep no operator out: a newcomer takes the place of the one that is quiet for
//! longest.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{SocketFlags, acceptfrom_with};

use crate::clients::addresses;
use crate::feed::slot::Token;
use crate::listener_places::{Doing, ListenerPlaces, NoPlace};
use crate::poller::{OPERATORS, Poller};

/// The listener and its connections.
#[derive(Debug)]
pub(crate) struct OperatorListener {
    listener: OwnedFd,
    places: ListenerPlaces<Token>,
}

impl OperatorListener {
    /// Watches the listener.
    pub(crate) fn new(listener: OwnedFd, poller: &Poller) -> rustix::io::Result<Self> {
        poller.add_listener(&listener, OPERATORS)?;
        Ok(OperatorListener {
            listener,
            places: ListenerPlaces::new(
                OPERATOR_CONNECTIONS_MAX,
                OPERATOR_CONNECTIONS_PER_ADDRESS_MAX,
            ),
        })
    }

    /// The listener, for another process.
    pub(crate) fn into_listener(self) -> OwnedFd {
        self.listener
    }

    /// Accepts the next connection, and says where it is from.
    pub(crate) fn accept(&self) -> Option<(OwnedFd, IpAddr)> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match acceptfrom_with(&self.listener, flags) {
                Ok((socket, peer)) => {
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
                    return Some((socket, address));
                }
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                // None waits, or there are no descriptors: the next connection is reported again.
                Err(_) => return None,
            }
        }
    }

    /// Gives a connection a place. Returns the connection that is to be closed for it, if there is one. `doing` says what others do.
    pub(crate) fn enter(
        &mut self,
        connection: Token,
        address: IpAddr,
        doing: impl Fn(Token) -> Doing,
    ) -> Result<Option<Token>, NoPlace> {
        self.places
            .enter(connection, addresses::key(address), doing)
    }

    /// A connection makes a request.
    pub(crate) fn note_request(&mut self, connection: Token) {
        self.places.note_request(connection);
    }

    /// A connection is closed.
    pub(crate) fn closed(&mut self, connection: Token) {
        self.places.leave(connection);
    }
}

/// Connections of operators at a time; a further one takes the place of another.
pub(crate) const OPERATOR_CONNECTIONS_MAX: usize = 64;

/// Those of one address, so that others have places of their own.
pub(crate) const OPERATOR_CONNECTIONS_PER_ADDRESS_MAX: usize = 48;

/// How long a connection of an operator may be kept without a request, unless others may be kept for less.
pub(crate) const OPERATOR_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
