//! What connections share: the time, the protocols, limits, and the counts and logs of what happens.

use std::net::IpAddr;
use std::sync::Arc;

use encke_access::{Caller, ClientCertificate};
use encke_protocol::CallerNeeds;
use encke_protocol::{AuditNote, CallerInfo, Headers, Request, Response, Router};

use super::effect::{ConnectionEffect, Effects};
use super::exchange_id::{ExchangeId, ExchangeIds, ExchangePlace};
use crate::access_log::OpenRequests;
use crate::audit::{AuditEntry, AuditSender};
use crate::buffers::Buffers;
use crate::clients::{Clients, Identified};
use crate::clock::ShardClock;
use crate::compression::Compressors;
use crate::http::Rejection;
use crate::http::head::Head;
use crate::metrics::{Metrics, ShardCounts};
use crate::settings::NetSettings;

/// What an event of a connection is handled with.
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a NetSettings,
    pub(crate) router: &'a Router,
    pub(crate) clock: &'a ShardClock,
    pub(crate) metrics: &'a Metrics,
    pub(crate) counts: &'a mut ShardCounts,
    pub(crate) clients: &'a mut Clients,
    pub(crate) requests: &'a mut OpenRequests,
    pub(crate) audit: &'a AuditSender,
    pub(crate) buffers: &'a Arc<Buffers>,
    pub(crate) compressors: &'a Compressors,
    pub(crate) ids: &'a mut dyn ExchangeIds,
    pub(crate) effects: &'a mut Effects,
    /// The value of Strict-Transport-Security in responses over TLS.
    pub(crate) hsts: Option<&'a str>,
    /// Whether there are threads that make handshakes of TLS.
    pub(crate) makes_handshakes: bool,
    /// The server stops.
    pub(crate) stopping: bool,
    /// The certificate with which the client of the connection has authenticated itself.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// Where the other end of the connection is.
    pub(crate) peer: &'a dyn Fn() -> Option<IpAddr>,
}

impl Context<'_> {
    pub(crate) fn push(&mut self, effect: ConnectionEffect) {
        self.effects.push(effect);
    }

    /// Determines the client of a request, and counts the request for it.
    pub(crate) fn count_request<'f>(
        &mut self,
        place: ExchangePlace,
        known: CallerInfo<'f>,
        fields: &[(&'f str, &'f [u8])],
    ) -> Result<CallerInfo<'f>, Rejection> {
        let identified = self.identify(place, known, fields)?;
        let now = self.clock.now();
        let counted =
            self.clients
                .count_request(place.exchange, place.connection, &identified, now);
        counted.map_err(crate::clients::addresses::Denied::refused)?;
        Ok(identified.caller)
    }

    /// Determines the client of a request.
    pub(crate) fn identify<'f>(
        &mut self,
        place: ExchangePlace,
        known: CallerInfo<'f>,
        fields: &[(&'f str, &'f [u8])],
    ) -> Result<Identified<'f>, Rejection> {
        let now = self.clock.now();
        let mut identified = self.clients.identify(place.exchange, known, fields, now)?;
        identified.caller.address = self.limited_address(place);
        self.requests.name_client(place.exchange, identified.named);
        Ok(identified)
    }

    /// The address by which refused tokens are limited. Without access control nothing verifies tokens, and the look-up would take a lock
    /// for nothing.
    pub(crate) fn limited_address(&self, place: ExchangePlace) -> Option<IpAddr> {
        self.router.access()?;
        self.clients.limited_address(place)
    }

    /// Notes who has sent a request, and until when its credentials are good.
    pub(crate) fn keep_caller(
        &mut self,
        exchange: ExchangeId,
        caller: Option<Arc<Caller>>,
        needs: Option<CallerNeeds>,
        certificate: Option<&ClientCertificate>,
    ) {
        if let Some(caller) = &caller {
            self.requests.name_caller(exchange, caller.name());
        }
        self.clients
            .keep_caller(exchange, caller, needs, certificate);
    }

    /// A request as far as its head tells.
    pub(crate) fn bodyless<'r>(
        &self,
        head: &Head<'r>,
        fields: &'r [(&'r str, &'r [u8])],
        caller: CallerInfo<'r>,
    ) -> Request<'r> {
        Request {
            method: head.method,
            path: head.path,
            query: head.query,
            headers: Headers(fields),
            body: Vec::new(),
            caller,
            now: self.clock.time(),
            barriers: 0,
            upgrade: false,
        }
    }

    /// The response to a request that is refused before a protocol sees it, which is counted by its reason.
    pub(crate) fn rejection(&self, place: ExchangePlace, rejection: &Rejection) -> Response {
        tracing::debug!(
            client = %self.client_name(place),
            status = rejection.status,
            reason = rejection.reason,
            "refused a request"
        );
        self.count_refused(rejection.reason);
        rejection.response()
    }

    /// Counts a response that refuses, and adds the line of a response to the audit log: its own, or else the one that its request has.
    pub(crate) fn note_response(
        &mut self,
        place: ExchangePlace,
        response: &Response,
        of_request: Option<&AuditNote>,
    ) {
        if let Some(note) = response.audit.as_deref().or(of_request) {
            self.add_to_audit(place, note, response.status);
        }
        if response.status >= 400 {
            self.count_refused(&response.status.to_string());
        }
    }

    /// Counts something that is refused.
    pub(crate) fn count_refused(&self, reason: &str) {
        let refused = &self.metrics.refused;
        refused.with_label_values(&[reason]).inc();
    }

    /// A client, as logs show it.
    pub(crate) fn client_name(&self, place: ExchangePlace) -> String {
        let shown = self.clients.shown(place.exchange, place.connection);
        shown.unwrap_or_else(|| match (self.peer)() {
            Some(peer) => peer.to_canonical().to_string(),
            None => "unknown".to_owned(),
        })
    }

    /// Adds a line to the audit log.
    pub(crate) fn add_to_audit(&mut self, place: ExchangePlace, note: &AuditNote, status: u16) {
        // A trusted proxy names the client of each request; it is kept while the request is logged.
        let request = self.requests.get_mut(place.exchange);
        let named = request.and_then(|request| request.client);
        self.audit.send(AuditEntry {
            at: self.clock.wall(),
            client: match named {
                Some(client) => client.to_string().into(),
                None => self.client_name(place).into(),
            },
            status,
            note: Box::new(note.clone()),
        });
    }
}
