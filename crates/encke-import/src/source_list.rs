//! Asks the source which streams it has. The protocol has no list; Encke has one.

use std::time::Duration;

use encke_client::ClientRules;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::backoff::Backoff;
use crate::copy_failure::CopyFailure;
use crate::http_server::{Ask, HttpServer};
use crate::progress::ImportProgress;
use crate::server_access::ServerAccess;
use crate::stream_list::SourceRoot;

/// Why there is no list of the source's streams.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The credentials can't be used.
    #[error("{0}")]
    Access(String),
    /// The source does not answer, or refuses.
    #[error("the source gives no list of its streams: {0}")]
    Source(#[from] CopyFailure),
    /// What it answers is no list.
    #[error(
        "the source has no list of its streams, which most servers of the protocol lack ({0}): name them, or give a list with --streams"
    )]
    NoList(String),
}

/// A page of the list.
#[derive(Deserialize)]
struct Listed {
    streams: Vec<ListedName>,
    /// The name behind which the next page begins.
    next: Option<String>,
}

#[derive(Deserialize)]
struct ListedName {
    name: String,
}

/// The streams of the source whose names begin with `prefix`, as they stand in addresses.
///
/// # Errors
/// The source has no list, or does not give it.
pub fn list(
    source: &SourceRoot,
    prefix: &str,
    access: &ServerAccess,
    client: &ClientRules,
    patience: Duration,
) -> Result<Vec<String>, ListError> {
    let server = HttpServer::new(access, client, 1).map_err(ListError::Access)?;
    let url = source.url();
    let mut names = Vec::new();
    let mut after: Option<String> = None;
    let mut backoff = Backoff::new(patience);
    loop {
        let mut query = format!("limit={PAGE}&prefix={}", escaped(prefix));
        if let Some(after) = &after {
            query += &format!("&after={}", escaped(after));
        }
        let page = match page(&server, &url, &query, patience) {
            Ok(page) => page,
            Err(ListError::Source(error)) => {
                backoff.wait(error)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        backoff.reset();
        names.extend(page.streams.iter().map(|stream| {
            // Segments stay apart, and what looks like an escape is none.
            let segments = stream.name.split('/').map(escaped);
            segments.collect::<Vec<_>>().join("/")
        }));
        match page.next {
            Some(next) if after.as_ref() != Some(&next) => after = Some(next),
            _ => return Ok(names),
        }
    }
}

fn page(
    server: &HttpServer,
    url: &str,
    query: &str,
    patience: Duration,
) -> Result<Listed, ListError> {
    let ask = Ask {
        method: "GET",
        url,
        query,
        fields: &[],
        body: None,
        patience: RESPONSE,
    };
    let reply = server.ask_patiently(ask, patience, &ImportProgress::default())?;
    match reply.status {
        200 => {}
        400 | 404 | 405 => return Err(ListError::NoList(reply.refused().to_string())),
        _ => return Err(reply.refused().into()),
    }
    let page = serde_json::from_reader(reply.reader()?);
    page.map_err(|why| match why.is_io() || why.is_eof() {
        true => ListError::Source(CopyFailure::CutOff {
            url: url.to_owned(),
            why: why.to_string(),
        }),
        false => ListError::NoList(format!("{url}: {why}")),
    })
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NOT_PLAIN).to_string()
}

const NOT_PLAIN: &percent_encoding::AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Streams of a page: the most that Encke gives.
const PAGE: usize = 1_000;

/// How long the source may take for a page.
const RESPONSE: Duration = Duration::from_secs(60);
