//! Calls of URLs: each connection is closed behind its call.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use encke_client::{ClientRules, checked_client};
use encke_threads::ResolveNames;
use ureq::http::Response;
use ureq::{Agent, Body};

use super::addresses::AllowedAddresses;
use super::resolver::CheckedResolver;

/// Calls URLs. Clones share what they are made with.
#[derive(Clone)]
pub struct WebhookCaller {
    agent: Agent,
    names: Arc<dyn ResolveNames>,
}

impl WebhookCaller {
    /// `allowed`: the addresses that may be called. `names` looks up names. `rules` hold for all requests.
    pub fn new(
        allowed: AllowedAddresses,
        names: Arc<dyn ResolveNames>,
        rules: &ClientRules,
    ) -> Self {
        let config = rules
            .config()
            .max_idle_connections(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .max_response_header_size(RESPONSE_BYTES_MAX)
            .accept("application/json")
            .accept_encoding("identity")
            .build();
        let resolver = CheckedResolver {
            names: Arc::clone(&names),
            allowed,
        };
        WebhookCaller {
            agent: checked_client(config, resolver),
            names,
        }
    }

    /// Sends JSON by POST, with further fields. Returns the body of a response of status 2xx; `None` if it has more than
    /// [`RESPONSE_BYTES_MAX`].
    ///
    /// # Errors
    /// Why the receiver has not accepted it.
    pub fn post(
        &self,
        url: &str,
        fields: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, String> {
        let mut response = self.accepted(url, fields, body, timeout)?;
        read_body(&mut response.body_mut().as_reader())
            .map_err(|error| format!("the response has no end: {error}"))
    }

    /// Sends JSON by POST, with further fields, to a receiver that says all by the status of its response.
    ///
    /// # Errors
    /// Why the receiver has not accepted it.
    pub fn tell(
        &self,
        url: &str,
        fields: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<(), String> {
        self.accepted(url, fields, body, timeout).map(drop)
    }

    /// The response of status 2xx to JSON that is sent by POST.
    fn accepted(
        &self,
        url: &str,
        fields: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<Response<Body>, String> {
        let mut request = self
            .agent
            .post(url)
            .config()
            .timeout_global(Some(timeout))
            .build()
            .header_raw("Content-Type", b"application/json");
        // Receivers written in PHP may look fields up by their documented spelling.
        for (name, value) in fields {
            request = request.header_raw(name, value.as_bytes());
        }
        let response = request.send(body).map_err(|error| error.to_string())?;
        let status = response.status();
        match status.is_success() {
            true => Ok(response),
            false => Err(format!("the response has status {status}")),
        }
    }

    /// Ends the calls and the look-ups that are under way. Later ones fail.
    pub fn shut_down(&self) {
        self.names.stop();
        self.agent.clone().shutdown();
    }
}

impl fmt::Debug for WebhookCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookCaller").finish_non_exhaustive()
    }
}

/// The body of a response; `None` if it is too long to be one that matters.
fn read_body(body: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    body.take(RESPONSE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok((bytes.len() <= RESPONSE_BYTES_MAX).then_some(bytes))
}

/// The longest response of a webhook that is read, and the longest head of one.
pub const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// How long it may take to connect, with the handshake of TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
