//! Requests to one server, and its responses.

use std::io::{BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use encke_client::{ClientRules, client};
use flate2::read::MultiGzDecoder;
use ureq::http::header::HeaderValue;
use ureq::http::{HeaderMap, Request};
use ureq::{Agent, Timeout};

use crate::backoff::Backoff;
use crate::copy_failure::CopyFailure;
use crate::progress::ImportProgress;
use crate::server_access::{BearerToken, ServerAccess};

/// The client of one server.
#[derive(Debug)]
pub(crate) struct HttpServer {
    agent: Agent,
    fields: HeaderMap,
    token: Option<BearerToken>,
    authorization: Mutex<Option<HeaderValue>>,
    /// There is a server, although it may not answer now.
    reached: AtomicBool,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: &'static str,
    /// The address, without the query.
    pub(crate) url: &'a str,
    /// What stands behind the question mark.
    pub(crate) query: &'a str,
    pub(crate) fields: &'a [(&'static str, &'a str)],
    pub(crate) body: Option<&'a [u8]>,
    /// How long the server may take until the head of its response.
    pub(crate) patience: Duration,
}

/// A response.
pub(crate) struct HttpReply {
    method: &'static str,
    url: String,
    pub(crate) status: u16,
    fields: HeaderMap,
    body: ureq::Body,
}

impl HttpServer {
    pub(crate) fn new(
        access: &ServerAccess,
        rules: &ClientRules,
        connections: usize,
    ) -> Result<Self, String> {
        let authorization = access.token.as_ref().map(BearerToken::authorization);
        let config = rules
            .config()
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE_MAX))
            .timeout_per_write(Some(SILENCE_MAX))
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .accept("*/*")
            .build();
        Ok(HttpServer {
            agent: client(config),
            fields: access.parsed_fields()?,
            token: access.token.clone(),
            authorization: Mutex::new(authorization.transpose()?),
            reached: AtomicBool::new(false),
        })
    }

    /// Makes a request once.
    pub(crate) fn ask(&self, ask: Ask<'_>) -> Result<HttpReply, CopyFailure> {
        let reply = self.send(ask)?;
        if reply.status == 401 && self.renew_token() {
            return self.send(ask);
        }
        Ok(reply)
    }

    /// Makes a request until it is answered with a status that another attempt would not change.
    pub(crate) fn ask_patiently(
        &self,
        ask: Ask<'_>,
        patience: Duration,
        progress: &ImportProgress,
    ) -> Result<HttpReply, CopyFailure> {
        let mut backoff = Backoff::new(patience);
        loop {
            let error = match self.ask(ask) {
                Ok(reply) => match reply.overload() {
                    Ok(reply) => return Ok(reply),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            // What has never answered is more likely misspelled than restarting.
            if !self.reached.load(Ordering::Relaxed) {
                return Err(error);
            }
            backoff.wait(error)?;
            progress.retried();
        }
    }

    fn send(&self, ask: Ask<'_>) -> Result<HttpReply, CopyFailure> {
        let target = match ask.query {
            "" => ask.url.to_owned(),
            query => format!("{}?{query}", ask.url),
        };
        let mut request = Request::builder().method(ask.method).uri(target);
        for (name, value) in &self.fields {
            request = request.header(name, value);
        }
        let authorization = self
            .authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*authorization {
            request = request.header("authorization", value);
        }
        drop(authorization);
        for (name, value) in ask.fields {
            request = request.header(*name, *value);
        }
        let unreachable = |why: String| CopyFailure::Unreachable {
            url: ask.url.to_owned(),
            why,
        };
        let sent = match ask.body {
            Some(body) => {
                let request = request
                    .body(body)
                    .map_err(|why| unreachable(why.to_string()))?;
                let request = self.agent.configure_request(request);
                self.agent
                    .run(request.timeout_recv_response(Some(ask.patience)).build())
            }
            None => {
                let request = request
                    .body(())
                    .map_err(|why| unreachable(why.to_string()))?;
                let request = self.agent.configure_request(request);
                self.agent
                    .run(request.timeout_recv_response(Some(ask.patience)).build())
            }
        };
        let response = sent.map_err(|error| {
            if is_of_a_connection(&error) {
                self.reached.store(true, Ordering::Relaxed);
            }
            unreachable(reason(&error))
        })?;
        self.reached.store(true, Ordering::Relaxed);
        let (parts, body) = response.into_parts();
        Ok(HttpReply {
            method: ask.method,
            url: ask.url.to_owned(),
            status: parts.status.as_u16(),
            fields: parts.headers,
            body,
        })
    }

    /// Whether there is another token than the one that was refused.
    fn renew_token(&self) -> bool {
        let Some(token @ BearerToken::File(_)) = &self.token else {
            return false;
        };
        let Ok(new) = token.authorization() else {
            return false;
        };
        let mut known = self
            .authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_other = known.as_ref() != Some(&new);
        *known = Some(new);
        is_other
    }
}

/// Whether a request failed after the connection was made.
fn is_of_a_connection(error: &ureq::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        ureq::Error::Io(error) => [
            BrokenPipe,
            ConnectionAborted,
            ConnectionReset,
            UnexpectedEof,
        ]
        .contains(&error.kind()),
        ureq::Error::Timeout(at) => *at != Timeout::Connect && *at != Timeout::Resolve,
        ureq::Error::Protocol(_) => true,
        _ => false,
    }
}

/// What a failure of a request means.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::HostNotFound => "no such host".into(),
        other => other.to_string(),
    }
}

impl HttpReply {
    /// The value of a field, if it is text.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether a field is `true`.
    pub(crate) fn says(&self, name: &str) -> bool {
        self.field(name)
            .is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
    }

    /// The position behind what the response has.
    pub(crate) fn next_offset(&self) -> Result<String, CopyFailure> {
        let offset = self
            .field("Stream-Next-Offset")
            .filter(|offset| !offset.is_empty());
        offset.map(str::to_owned).ok_or_else(|| {
            self.protocol("the response has no Stream-Next-Offset; it is no stream of the protocol")
        })
    }

    /// An error because the response breaks the protocol.
    pub(crate) fn protocol(&self, why: impl Into<String>) -> CopyFailure {
        CopyFailure::Protocol {
            url: self.url.clone(),
            why: why.into(),
        }
    }

    /// An error if the status is one of overload or of a restart.
    fn overload(self) -> Result<Self, CopyFailure> {
        match self.status {
            408 | 425 | 429 | 500.. => Err(self.refused()),
            _ => Ok(self),
        }
    }

    /// The error that the response is, with what its body says.
    pub(crate) fn refused(self) -> CopyFailure {
        let retry_after = self
            .field("Retry-After")
            .and_then(|value| value.trim().parse().ok());
        let redirect = self
            .field("Location")
            .filter(|_| (300..400).contains(&self.status));
        let redirect = redirect.map(|to| {
            let to = to.split('?').next().unwrap_or_default();
            format!(": it redirects to {to}; redirects are not followed, use that address")
        });
        let (method, url, status) = (self.method, self.url.clone(), self.status);
        let detail = redirect.unwrap_or_else(|| {
            let mut text = Vec::new();
            // What can't be read is no part of the message.
            let _ = self
                .body
                .into_reader()
                .take(DETAIL_BYTES_MAX)
                .read_to_end(&mut text);
            detail(&text)
        });
        CopyFailure::Refused {
            method,
            url,
            status,
            detail,
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    /// The body, decoded.
    pub(crate) fn reader(self) -> Result<Box<dyn Read + Send>, CopyFailure> {
        let has_end = self.fields.contains_key("content-length")
            || self.fields.contains_key("transfer-encoding");
        if !has_end {
            return Err(self.protocol(
                "the response has neither a length nor chunks, so that a cut would go unnoticed",
            ));
        }
        let coding = self
            .field("Content-Encoding")
            .unwrap_or_default()
            .to_ascii_lowercase();
        match coding.trim() {
            "" | "identity" => Ok(Box::new(self.body.into_reader())),
            "gzip" | "x-gzip" => {
                let body = BufReader::with_capacity(64 << 10, self.body.into_reader());
                Ok(Box::new(MultiGzDecoder::new(body)))
            }
            other => {
                let why = format!("the response has the coding {other}, which was not asked for");
                Err(self.protocol(why))
            }
        }
    }

    /// Reads a body that is not needed, so that the connection can be used again.
    pub(crate) fn discard(self) {
        let mut body = self.body.into_reader().take(DETAIL_BYTES_MAX);
        let _ = std::io::copy(&mut body, &mut std::io::sink());
    }
}

/// What the body of an error says: the message of Encke's, or the first line of another server's.
fn detail(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = json
        .as_ref()
        .and_then(|json| json["error"]["message"].as_str());
    let text = String::from_utf8_lossy(body);
    let text = message.unwrap_or_else(|| text.trim().lines().next().unwrap_or_default());
    let shown: String = text
        .chars()
        .filter(|character| !character.is_control())
        .collect();
    let shown: String = shown.chars().take(DETAIL_CHARACTERS_MAX).collect();
    match &*shown {
        "" => String::new(),
        shown => format!(": {shown}"),
    }
}

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a server may send nothing of a body, or take nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How much of an error is read.
const DETAIL_BYTES_MAX: u64 = 16 << 10;

/// How much of an error is shown.
const DETAIL_CHARACTERS_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_its_body_says() {
        for (body, shown) in [
            ("", ""),
            ("Stream not found\nat line 1", ": Stream not found"),
            (
                r#"{"error":{"code":"x","message":"the stream is closed"}}"#,
                ": the stream is closed",
            ),
            ("a\u{1b}[31mb", ": a[31mb"),
        ] {
            assert_eq!(detail(body.as_bytes()), shown);
        }
        assert!(detail("x".repeat(5_000).as_bytes()).len() < 400);
    }
}
