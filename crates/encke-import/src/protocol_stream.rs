//! A stream of a server of the protocol, as its readers see it.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::copy_failure::CopyFailure;
use crate::http_server::{Ask, HttpReply, HttpServer};
use crate::progress::ImportProgress;

/// A stream of a server.
#[derive(Clone, Debug)]
pub(crate) struct ProtocolStream {
    pub(crate) server: Arc<HttpServer>,
    pub(crate) url: String,
    /// What stands in all requests behind the question mark, such as a signature.
    pub(crate) query: Option<String>,
    /// For how long a request is tried without success.
    pub(crate) patience: Duration,
    pub(crate) progress: Arc<ImportProgress>,
}

/// What HEAD says of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamFacts {
    pub(crate) content_type: String,
    /// The field that bounds its life, and the value of that.
    pub(crate) lifetime: Option<(&'static str, String)>,
    pub(crate) closed: bool,
    pub(crate) tail: String,
}

impl StreamFacts {
    /// Whether the stream has messages of JSON.
    pub(crate) fn is_json(&self) -> bool {
        let essence = self.content_type.split(';').next().unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("application/json")
    }
}

/// A part of a stream, as one response has it.
pub(crate) struct SourcePage {
    /// Nothing for a long poll that ended without data.
    pub(crate) body: Option<Box<dyn Read + Send>>,
    /// The position behind it.
    pub(crate) next: String,
    /// The stream had nothing behind it.
    pub(crate) up_to_date: bool,
    /// The stream ends there.
    pub(crate) closed: bool,
    /// What the next long poll repeats.
    pub(crate) cursor: Option<String>,
}

impl ProtocolStream {
    /// What the stream is. `None`: there is none.
    pub(crate) fn head(&self) -> Result<Option<StreamFacts>, CopyFailure> {
        let query = self.query.as_deref().unwrap_or_default();
        let ask = Ask {
            method: "HEAD",
            url: &self.url,
            query,
            fields: &[],
            body: None,
            patience: RESPONSE,
        };
        let reply = self
            .server
            .ask_patiently(ask, self.patience, &self.progress)?;
        match reply.status {
            200 => {}
            404 => return Ok(None),
            _ => return Err(reply.refused()),
        }
        let content_type = reply.field("Content-Type").filter(|name| !name.is_empty());
        let lifetime = ["Stream-TTL", "Stream-Expires-At"].into_iter();
        let mut lifetime =
            lifetime.filter_map(|name| reply.field(name).map(|value| (name, value.to_owned())));
        Ok(Some(StreamFacts {
            content_type: content_type
                .unwrap_or("application/octet-stream")
                .to_owned(),
            lifetime: lifetime.next(),
            closed: reply.says("Stream-Closed"),
            tail: reply.next_offset()?,
        }))
    }

    /// What the stream has behind an offset, or its beginning.
    pub(crate) fn page(&self, from: &str) -> Result<SourcePage, CopyFailure> {
        self.get(&format!("offset={}", encoded(from)), RESPONSE)
    }

    /// What the stream has behind an offset, as soon as it has something.
    pub(crate) fn poll(&self, from: &str, cursor: Option<&str>) -> Result<SourcePage, CopyFailure> {
        let mut query = String::new();
        if let Some(cursor) = cursor {
            query = format!("cursor={}&", encoded(cursor));
        }
        query += &format!("live=long-poll&offset={}", encoded(from));
        self.get(&query, POLL)
    }

    /// Checks that a page that had data ends behind its begin.
    pub(crate) fn check_advance(
        &self,
        begin: &str,
        end: &str,
        units: u64,
    ) -> Result<(), CopyFailure> {
        // Offsets sort as texts (section 8).
        if units == 0 || end > begin {
            return Ok(());
        }
        Err(CopyFailure::Protocol {
            url: self.url.clone(),
            why: format!(
                "the data behind offset {begin} ends at offset {end}, which is not behind it"
            ),
        })
    }

    fn get(&self, query: &str, patience: Duration) -> Result<SourcePage, CopyFailure> {
        let query = match &self.query {
            Some(own) => format!("{own}&{query}"),
            None => query.to_owned(),
        };
        let reply = self.server.ask(Ask {
            method: "GET",
            url: &self.url,
            query: &query,
            fields: &[("Accept-Encoding", "gzip"), ("Cache-Control", "no-cache")],
            body: None,
            patience,
        })?;
        let has_body = match reply.status {
            200 => true,
            204 => false,
            _ => return Err(reply.refused()),
        };
        let closed = reply.says("Stream-Closed");
        Ok(SourcePage {
            next: reply.next_offset()?,
            up_to_date: closed || !has_body || reply.says("Stream-Up-To-Date"),
            closed,
            cursor: reply.field("Stream-Cursor").map(str::to_owned),
            body: Some(reply)
                .filter(|_| has_body)
                .map(HttpReply::reader)
                .transpose()?,
        })
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, IN_QUERIES).to_string()
}

/// Offsets are opaque; most have these characters only.
const IN_QUERIES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// How long a server may take until the head of a response.
const RESPONSE: Duration = Duration::from_secs(60);

/// The same for a long poll, which servers hold for up to a minute or so.
const POLL: Duration = Duration::from_secs(300);
