//! A request as a protocol sees it.

use std::net::IpAddr;

use encke_access::ClientCertificate;
use encke_clock::Now;

/// A request, parsed and with its whole body.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The target's path as it was sent, percent-encoded. Only URLs in responses repeat it: the gate gives the path that is
    /// authorised and routed.
    pub path: &'a str,
    /// What follows the path's `?`.
    pub query: Option<&'a str>,
    /// The header fields, in the order sent.
    pub headers: Headers<'a>,
    /// The body; empty if there is none.
    pub body: Vec<u8>,
    /// The client that sent it.
    pub caller: CallerInfo<'a>,
    /// The time.
    pub now: Now,
    /// On a node of a fleet: how often the request has waited for the order ([`Action::AwaitOrder`]).
    ///
    /// [`Action::AwaitOrder`]: crate::Action::AwaitOrder
    pub barriers: usize,
    /// It asks for a channel: for WebSocket, by `Upgrade` or by an extended CONNECT. Then the method is GET.
    pub upgrade: bool,
}

impl<'a> Request<'a> {
    /// The host as the client addressed it, with or without a port.
    pub(crate) fn host(&self) -> Option<&'a str> {
        let sent = || self.headers.text("Host").ok().flatten();
        self.caller
            .host
            .or_else(sent)
            .filter(|host| !host.is_empty())
    }

    /// Scheme and host as the client addressed them, for URLs in responses. Empty without a `Host`: a URL is relative then.
    pub(crate) fn base(&self) -> String {
        let scheme = if self.caller.tls { "https" } else { "http" };
        match self.host() {
            None => String::new(),
            Some(host) => format!("{scheme}://{host}"),
        }
    }
}

/// What is known of the client that sent a request, beyond the request itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallerInfo<'a> {
    /// The client uses https, to this server or to a trusted proxy.
    pub tls: bool,
    /// The host that the client named according to a trusted proxy, if it differs from the `Host` field.
    pub host: Option<&'a str>,
    /// The certificate with which the client has authenticated itself.
    pub certificate: Option<&'a ClientCertificate>,
    /// The client is connected to the address for operators.
    pub operator: bool,
    /// The client is the server itself, which probes its own health.
    pub probe: bool,
    /// A trusted proxy sends the request for a client.
    pub forwarded: bool,
    /// The address to which limits apply, unless the client is exempt from them.
    pub address: Option<IpAddr>,
}

/// A request's header fields.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a>(pub &'a [(&'a str, &'a [u8])]);

impl<'a> Headers<'a> {
    /// Whether a body of at most that many bytes is announced.
    pub(crate) fn announces_at_most(&self, bytes_max: usize) -> bool {
        let length = self.text("Content-Length").ok().flatten();
        let length = length.and_then(|length| length.parse::<usize>().ok());
        length.is_some_and(|length| length <= bytes_max)
    }

    /// The value of the first field with that name, without regard to case.
    pub fn first(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The values of all fields with that name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0
            .iter()
            .filter(move |(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    /// The value of the first field with that name as text, without the blanks around it. `None`: there is no such field.
    ///
    /// # Errors
    /// The value is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, NotText> {
        match self.first(name) {
            None => Ok(None),
            Some(value) => std::str::from_utf8(value)
                .map(|value| Some(value.trim_matches([' ', '\t'])))
                .map_err(|_| NotText),
        }
    }
}

/// Bytes of a body that are received for credentials which cannot be checked yet.
pub(crate) const UNVERIFIED_BODY_BYTES_MAX: usize = 64 << 10;

/// A header field is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field is not UTF-8")]
pub struct NotText;
