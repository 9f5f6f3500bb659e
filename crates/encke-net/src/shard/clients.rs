//! Whose a connection is, and the limits that hold for each client address.

use std::net::IpAddr;

use rustix::net::SocketAddrAny;

use super::Shard;
use crate::addresses::Turned;
use crate::http::Refused;
use crate::owners::Owner;

impl Turned {
    /// What metrics count it as.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Turned::Crowd => "connections_per_address",
            Turned::Haste { .. } => "request_rate",
            Turned::Full => "addresses_max",
        }
    }

    /// The answer to a request.
    pub(super) fn refused(self) -> Refused {
        match self {
            Turned::Crowd => Refused::new(
                429,
                self.reason(),
                "your address has too many connections already",
            )
            .retry(RETRY_S),
            Turned::Haste { retry_s } => Refused::new(
                429,
                self.reason(),
                "your address makes requests faster than it may",
            )
            .retry(retry_s),
            Turned::Full => {
                Refused::new(503, self.reason(), "too many clients at present").retry(RETRY_S)
            }
        }
    }
}

impl Shard {
    /// Whether a connection of that peer may come in, and whose it is.
    pub(super) fn admit(&self, peer: Option<SocketAddrAny>) -> Result<Owner, Turned> {
        let address = peer
            .and_then(|peer| std::net::SocketAddr::try_from(peer).ok())
            .map(|peer| peer.ip());
        // Every TCP socket has a peer; one that is gone already needs no limit.
        address.map_or(Ok(Owner::default()), |address| self.owner(address))
    }

    /// Counts a connection for the client at that address.
    fn owner(&self, address: IpAddr) -> Result<Owner, Turned> {
        let settings = &self.parts.settings;
        if settings.exempt.contain(address) {
            return Ok(Owner::default());
        }
        let entered = self.parts.addresses.enter(address, self.clock.now())?;
        Ok(Owner {
            address: Some(entered),
            trusted: false,
        })
    }

    /// A connection is nobody's any more.
    pub(super) fn disown(&mut self, index: u32) {
        if let Some(address) = self.owners.of(index).address {
            self.parts.addresses.leave(address, self.clock.now());
        }
        self.owners.set(index, Owner::default());
    }

    /// Counts a request for whoever makes it.
    pub(super) fn count_request(&self, index: u32) -> Result<(), Refused> {
        match self.owners.of(index).address {
            None => Ok(()),
            Some(address) => self
                .parts
                .addresses
                .request(address, self.clock.now())
                .map_err(Turned::refused),
        }
    }
}

/// When to come back to a server that has no room.
const RETRY_S: u64 = 5;
