//! The clients of a shard's connections: their addresses and callers, and the limits of each.
//!
//! A connection is counted for an address (`addresses`, `owners`), which a trusted proxy may name for each request
//! (`forwarded`); what lasts longer than its caller's credentials ends with them (`callers`); and the memory that it holds is
//! counted for its client (`holdings`).

pub(crate) mod addresses;
pub(crate) mod callers;
pub(crate) mod forwarded;
pub(crate) mod holdings;
pub(crate) mod owners;
pub(crate) mod quotas;
pub(crate) mod rate_limit;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use encke_access::{Caller, CallerIdentity, ClientCertificate};
use encke_protocol::{CallerInfo, CallerNeeds};
use foldhash::{HashMap, HashMapExt};

use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::http::Rejection;
use crate::settings::NetSettings;
use addresses::{AddressNo, Addresses, Denied};
use callers::ConnectionCallers;
use holdings::Holder;
use owners::{ConnectionOwners, Owner};

/// The clients of a shard.
#[derive(Debug)]
pub(crate) struct Clients {
    settings: Arc<NetSettings>,
    /// The addresses of the clients of all shards.
    addresses: Arc<Addresses>,
    owners: ConnectionOwners,
    pub(crate) callers: ConnectionCallers,
    /// The apps that have signed the requests whose bodies are being received.
    apps: HashMap<ExchangeId, u32>,
}

/// What the head of a request says about its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identified<'a> {
    pub(crate) caller: CallerInfo<'a>,
    /// The client that a trusted proxy names.
    pub(crate) named: Option<IpAddr>,
    /// It is another one than that of the request before.
    is_new: bool,
}

impl Clients {
    /// No clients. `addresses` are those of all shards.
    pub(crate) fn new(settings: Arc<NetSettings>, addresses: Arc<Addresses>) -> Self {
        Clients {
            settings,
            addresses,
            owners: ConnectionOwners::default(),
            callers: ConnectionCallers::default(),
            apps: HashMap::new(),
        }
    }

    /// The owner of a connection of that peer, if it is admitted.
    pub(crate) fn admit(&self, peer: Option<IpAddr>, now: Instant) -> Result<Owner, Denied> {
        match peer {
            Some(peer) if self.settings.trust.contain(peer) => Ok(Owner {
                address: None,
                // Behind the PROXY protocol the fields may be any client's.
                trusted: !self.settings.proxy_protocol,
            }),
            _ if self.settings.proxy_protocol => Err(Denied::Untrusted),
            Some(peer) => self.enter(peer, now),
            // Every TCP socket has a peer; one that is gone already needs no limit.
            None => Ok(Owner::default()),
        }
    }

    /// Sets the owner of a connection that was admitted.
    pub(crate) fn set_owner(&mut self, exchange: ExchangeId, owner: Owner) {
        self.owners.set(exchange, owner);
    }

    /// An exchange of a connection that has several begins.
    pub(crate) fn begin(&mut self, exchange: ExchangeId, connection: ExchangeId) {
        // A proxy's exchanges may be those of several clients. Otherwise the connection is what is counted for its owner.
        let trusted = self.owners.of(connection).trusted;
        self.owners.set(
            exchange,
            Owner {
                address: None,
                trusted,
            },
        );
    }

    /// The PROXY protocol names the client of a connection.
    pub(crate) fn name(
        &mut self,
        connection: ExchangeId,
        client: IpAddr,
        now: Instant,
    ) -> Result<(), Denied> {
        let owner = self.enter(client, now)?;
        self.owners.set(connection, owner);
        Ok(())
    }

    /// Determines the client of a request by its fields. `known` is what the connection says of it.
    pub(crate) fn identify<'a>(
        &mut self,
        exchange: ExchangeId,
        known: CallerInfo<'a>,
        fields: &[(&'a str, &'a [u8])],
        now: Instant,
    ) -> Result<Identified<'a>, Rejection> {
        let owner = self.owners.of(exchange);
        let mut identified = Identified {
            caller: CallerInfo {
                forwarded: self.settings.proxy_protocol,
                ..known
            },
            named: None,
            is_new: false,
        };
        if owner.trusted {
            let settings = &self.settings;
            let said = forwarded::read(settings.forwarded_by, &settings.trust, fields)?;
            let caller = &mut identified.caller;
            caller.tls = said.https.unwrap_or(caller.tls);
            caller.host = said.host;
            caller.forwarded |= said.client.is_some();
            identified.named = said.client;
            if !self.is_still(owner, said.client) {
                self.hand_over(exchange, said.client, now)?;
                identified.is_new = true;
            }
        }
        Ok(identified)
    }

    /// Counts a request for its client.
    pub(crate) fn count_request(
        &self,
        exchange: ExchangeId,
        connection: ExchangeId,
        identified: &Identified<'_>,
        now: Instant,
    ) -> Result<(), Denied> {
        // A new client of a proxy's connection was counted when it came.
        match self.address_of(exchange, connection) {
            Some(address) if !identified.is_new => self.addresses.request(address, now),
            _ => Ok(()),
        }
    }

    /// The address to which limits apply, unless its client is exempt from them.
    pub(crate) fn limited_address(&self, of: ExchangePlace) -> Option<IpAddr> {
        let address = self.address_of(of.exchange, of.connection)?;
        Some(self.addresses.address(address))
    }

    /// Counts a message of a channel as a request of its client.
    pub(crate) fn count_message(&self, channel: ExchangePlace, now: Instant) -> Result<(), Denied> {
        match self.address_of(channel.exchange, channel.connection) {
            Some(address) => self.addresses.request(address, now),
            None => Ok(()),
        }
    }

    /// Notes who has sent a request, what that needs of its caller while it lasts, and until when its credentials are good.
    pub(crate) fn keep_caller(
        &mut self,
        exchange: ExchangeId,
        caller: Option<Arc<Caller>>,
        needs: Option<CallerNeeds>,
        certificate: Option<&ClientCertificate>,
    ) {
        let tag = caller.map(|caller| caller.tag());
        let until = certificate.map(|certificate| certificate.ends_at);
        self.callers.set(exchange, tag, needs, until);
        self.keep_app(exchange, None);
    }

    /// Notes which app has signed the request whose body an exchange receives.
    pub(crate) fn keep_app(&mut self, exchange: ExchangeId, app: Option<u32>) {
        match app {
            Some(app) => self.apps.insert(exchange, app),
            None => self.apps.remove(&exchange),
        };
    }

    /// The client for which an exchange holds memory.
    pub(crate) fn holder(&self, exchange: ExchangeId, connection: ExchangeId) -> Holder {
        let caller = self.callers.identity(exchange);
        if let Some(caller) = caller.filter(CallerIdentity::is_personal) {
            return Holder::Caller(caller);
        }
        if let Some(app) = self.apps.get(&exchange) {
            return Holder::App(*app);
        }
        match (caller, self.address_of(exchange, connection)) {
            (Some(caller), Some(address)) => Holder::Sharing(caller, address),
            (None, Some(address)) => Holder::Address(address),
            (Some(_), None) => Holder::KnownConnection(connection),
            (None, None) => Holder::Connection(connection),
        }
    }

    /// A client as logs show it, if its address is counted.
    pub(crate) fn shown(&self, exchange: ExchangeId, connection: ExchangeId) -> Option<String> {
        let address = self.address_of(exchange, connection)?;
        Some(self.addresses.shown(address))
    }

    /// A connection or an exchange has ended.
    pub(crate) fn end(&mut self, exchange: ExchangeId, now: Instant) {
        self.leave(exchange, now);
        self.callers.set(exchange, None, None, None);
        self.keep_app(exchange, None);
    }

    /// The address for which a connection is counted, and whether it is a proxy that is trusted to name others.
    pub(crate) fn moved(&self, connection: ExchangeId) -> (Option<IpAddr>, bool) {
        let owner = self.owners.of(connection);
        let address = owner.address.map(|address| self.addresses.address(address));
        (address, owner.trusted)
    }

    /// Counts a connection that has moved in, whatever the limits.
    pub(crate) fn arrive(
        &mut self,
        connection: ExchangeId,
        (client, trusted): (Option<IpAddr>, bool),
    ) {
        let address = client.and_then(|client| self.addresses.arrive(client));
        self.owners.set(connection, Owner { address, trusted });
    }

    /// Forgets addresses that have had no connections for a while.
    pub(crate) fn tidy(&self, now: Instant) {
        self.addresses.tidy(now);
    }

    /// The address to which limits apply. An exchange has that of its connection, unless a proxy names one.
    fn address_of(&self, exchange: ExchangeId, connection: ExchangeId) -> Option<AddressNo> {
        let own = self.owners.of(exchange).address;
        own.or_else(|| self.owners.of(connection).address)
    }

    /// Counts a connection for the client at that address.
    fn enter(&self, address: IpAddr, now: Instant) -> Result<Owner, Denied> {
        let trusted = self.settings.trust.contain(address);
        if trusted || self.settings.exempt.contain(address) {
            return Ok(Owner {
                address: None,
                trusted,
            });
        }
        Ok(Owner {
            address: Some(self.addresses.enter(address, now)?),
            trusted,
        })
    }

    /// Whether the client of a proxy's connection is the same as before.
    fn is_still(&self, owner: Owner, client: Option<IpAddr>) -> bool {
        match (owner.address, client) {
            (None, None) => true,
            (Some(address), Some(client)) => self.addresses.is(address, client),
            _ => false,
        }
    }

    /// Gives a proxy's connection to another client, until the next one uses it.
    fn hand_over(
        &mut self,
        exchange: ExchangeId,
        client: Option<IpAddr>,
        now: Instant,
    ) -> Result<(), Rejection> {
        self.leave(exchange, now);
        let mut owner = Owner {
            address: None,
            trusted: true,
        };
        self.owners.set(exchange, owner);
        if let Some(client) = client {
            owner.address = self.enter(client, now).map_err(Denied::refused)?.address;
            self.owners.set(exchange, owner);
        }
        Ok(())
    }

    fn leave(&mut self, exchange: ExchangeId, now: Instant) {
        if let Some(address) = self.owners.of(exchange).address {
            self.addresses.leave(address, now);
        }
        self.owners.set(exchange, Owner::default());
    }
}

impl Denied {
    /// The label in metrics.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Denied::TooMany => "connections_per_address",
            Denied::TooFast { .. } => "request_rate",
            Denied::Full => "addresses_max",
            Denied::NoPlace => "connections_max",
            Denied::Untrusted => "proxy_untrusted",
        }
    }

    /// The response to a request.
    pub(crate) fn refused(self) -> Rejection {
        match self {
            Denied::TooMany => Rejection::new(
                429,
                self.reason(),
                "your address has too many connections already",
            )
            .retry(RETRY_S),
            Denied::TooFast { retry_s } => {
                Rejection::new(429, self.reason(), "your address exceeds its request rate")
                    .retry(retry_s.into())
            }
            Denied::Full => Rejection::new(
                503,
                self.reason(),
                "the server tracks too many client addresses",
            )
            .retry(RETRY_S),
            Denied::NoPlace => {
                Rejection::new(503, self.reason(), "the server has no room for clients")
                    .retry(RETRY_S)
            }
            Denied::Untrusted => Rejection::new(
                403,
                self.reason(),
                "only trusted proxies may connect to this port",
            ),
        }
    }
}

/// Seconds after which a refused client may try again.
const RETRY_S: u64 = 5;
