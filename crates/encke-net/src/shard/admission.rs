//! The owner of a connection, and the limits of each client address.

use std::net::{IpAddr, SocketAddr};

use encke_protocol::CallerInfo;
use rustix::net::{SocketAddrAny, getpeername};

use super::Shard;
use super::accept::no_place;
use crate::addresses::{AddressNo, Denied};
use crate::connection::owners::Owner;
use crate::connection::slot::Flags;
use crate::forwarded;
use crate::http::Rejection;
use crate::proxy::{self, NotPreface};

impl Denied {
    /// The label in metrics.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Denied::TooMany => "connections_per_address",
            Denied::TooFast { .. } => "request_rate",
            Denied::Full => "addresses_max",
            Denied::Untrusted => "proxy_untrusted",
        }
    }

    /// The response to a request.
    pub(super) fn refused(self) -> Rejection {
        match self {
            Denied::TooMany => Rejection::new(
                429,
                self.reason(),
                "your address has too many connections already",
            )
            .retry(RETRY_S),
            Denied::TooFast { retry_s } => {
                Rejection::new(429, self.reason(), "your address exceeds its request rate")
                    .retry(retry_s)
            }
            Denied::Full => Rejection::new(
                503,
                self.reason(),
                "the server tracks too many client addresses",
            )
            .retry(RETRY_S),
            Denied::Untrusted => Rejection::new(
                403,
                self.reason(),
                "only trusted proxies may connect to this port",
            ),
        }
    }
}

impl Shard {
    /// The owner of a connection of that peer, if it is admitted.
    pub(super) fn admit(&self, peer: Option<SocketAddrAny>) -> Result<Owner, Denied> {
        let address = peer
            .and_then(|peer| SocketAddr::try_from(peer).ok())
            .map(|peer| peer.ip());
        let settings = &self.context.settings;
        match address {
            Some(address) if settings.trust.contain(address) => Ok(Owner {
                address: None,
                // Behind the PROXY protocol the fields may be any client's.
                trusted: !settings.proxy_protocol,
            }),
            _ if settings.proxy_protocol => Err(Denied::Untrusted),
            Some(address) => self.owner(address),
            // Every TCP socket has a peer; one that is gone already needs no limit.
            None => Ok(Owner::default()),
        }
    }

    /// Counts a connection for the client at that address.
    fn owner(&self, address: IpAddr) -> Result<Owner, Denied> {
        let settings = &self.context.settings;
        let trusted = settings.trust.contain(address);
        if trusted || settings.exempt.contain(address) {
            return Ok(Owner {
                address: None,
                trusted,
            });
        }
        let entered = self.context.addresses.enter(address, self.clock.now())?;
        Ok(Owner {
            address: Some(entered),
            trusted,
        })
    }

    /// Lets a new connection begin with a header of the PROXY protocol.
    pub(super) fn await_preface(&mut self, index: u32) {
        self.connections.slots[index]
            .flags
            .set(Flags::AWAITS_PROXY, true);
        let timeout = self.context.settings.request_timeout;
        self.set_deadline(index, self.clock.monotonic().after(timeout));
    }

    /// Takes the header of the PROXY protocol off the input. False: more is needed.
    pub(super) fn take_preface(&mut self, index: u32, rest: &mut &[u8]) -> Result<bool, Rejection> {
        let preface = match proxy::parse(rest) {
            Ok(Some(preface)) => preface,
            Ok(None) => return Ok(false),
            Err(NotPreface(why)) => return Err(Rejection::new(400, "proxy_protocol", why)),
        };
        *rest = &rest[preface.bytes..];
        let flags = &mut self.connections.slots[index].flags;
        flags.set(Flags::AWAITS_PROXY, false);
        flags.set(Flags::TLS, preface.tls);
        if let Some(active) = self.connections.active_mut(index) {
            // A request has time of its own.
            active.deadline = None;
        }
        if let Some(client) = preface.client {
            self.keep_client(index, client);
            let owner = self.owner(client).map_err(Denied::refused)?;
            self.owners.set(index, owner);
        }
        if self.context.handshakes.is_some() {
            let received = std::mem::take(rest).to_vec();
            self.begin_handshake(index, received, preface.client);
            return Ok(false);
        }
        Ok(true)
    }

    /// Determines the client of a request, and counts the request for it.
    pub(super) fn caller<'a>(
        &mut self,
        index: u32,
        fields: &[(&'a str, &'a [u8])],
    ) -> Result<CallerInfo<'a>, Rejection> {
        if self.is_turned_away(index) {
            return Err(no_place());
        }
        let (caller, is_new) = self.identify(index, fields)?;
        // A new client of a proxy's connection was counted when it came.
        if let (Some(address), false) = (self.address_of(index), is_new) {
            let now = self.clock.now();
            let counted = self.context.addresses.request(address, now);
            counted.map_err(Denied::refused)?;
        }
        Ok(caller)
    }

    /// The address of a client that limits by address apply to. A stream of HTTP/2 has that of its connection, unless a proxy names one.
    pub(super) fn address_of(&self, index: u32) -> Option<AddressNo> {
        let own = self.owners.of(index).address;
        own.or_else(|| self.owners.of(self.socket_of(index)).address)
    }

    /// Determines the client of a request; also whether it is another one than that of the request before.
    pub(super) fn identify<'a>(
        &mut self,
        index: u32,
        fields: &[(&'a str, &'a [u8])],
    ) -> Result<(CallerInfo<'a>, bool), Rejection> {
        let owner = self.owners.of(index);
        let mut caller = CallerInfo {
            tls: self.connections.slots[index].flags.has(Flags::TLS),
            operator: self.connections.slots[index].flags.has(Flags::OPERATOR),
            forwarded: self.context.settings.proxy_protocol,
            ..CallerInfo::default()
        };
        if owner.trusted {
            let settings = &self.context.settings;
            let said = forwarded::read(settings.forwarded_by, &settings.trust, fields)?;
            caller.tls = said.https.unwrap_or(caller.tls);
            caller.host = said.host;
            caller.forwarded |= said.client.is_some();
            self.set_request_client(index, said.client);
            if !self.is_still(owner, said.client) {
                self.hand_over(index, said.client)?;
                return Ok((caller, true));
            }
        }
        Ok((caller, false))
    }

    /// Whether the client of a proxy's connection is the same as before.
    fn is_still(&self, owner: Owner, client: Option<IpAddr>) -> bool {
        match (owner.address, client) {
            (None, None) => true,
            (Some(address), Some(client)) => self.context.addresses.is(address, client),
            _ => false,
        }
    }

    /// Gives a proxy's connection to another client, until the next one uses it.
    fn hand_over(&mut self, index: u32, client: Option<IpAddr>) -> Result<(), Rejection> {
        self.disown(index);
        let mut owner = Owner {
            address: None,
            trusted: true,
        };
        self.owners.set(index, owner);
        if let Some(client) = client {
            owner.address = self.owner(client).map_err(Denied::refused)?.address;
            self.owners.set(index, owner);
        }
        Ok(())
    }

    /// A connection's client, as logs show it.
    pub(super) fn client_name(&self, index: u32) -> String {
        if let Some(address) = self.owners.of(index).address {
            return self.context.addresses.shown(address);
        }
        let index = self.socket_of(index);
        if let Some(address) = self.owners.of(index).address {
            return self.context.addresses.shown(address);
        }
        let peer = self.connections.slots[index]
            .fd()
            .and_then(|fd| getpeername(fd).ok());
        peer.flatten()
            .and_then(|peer| SocketAddr::try_from(peer).ok())
            .map_or_else(
                || "unknown".to_owned(),
                |peer| peer.ip().to_canonical().to_string(),
            )
    }

    /// Removes a connection's owner.
    pub(super) fn disown(&mut self, index: u32) {
        if let Some(address) = self.owners.of(index).address {
            self.context.addresses.leave(address, self.clock.now());
        }
        self.owners.set(index, Owner::default());
    }
}

/// Seconds after which a refused client may try again.
const RETRY_S: u64 = 5;
