//! Which streams there are, and the largest of them.

use std::cmp::Reverse;

use encke_access::name_of_identity;
use encke_protocol::{Response, StreamOrder, StreamQuery};
use encke_stream::{ListFetch, ListedStream, StreamPage, Viewer};
use serde_json::{Value, json};

use super::connections::SubscriberCounts;
use super::responses::failure;
use crate::archive::Archive;

/// Whether the answer to a question takes a walk over all streams with the prefix.
pub(super) fn is_walk(query: &StreamQuery) -> bool {
    query.sort != StreamOrder::Name
}

/// A page of streams.
pub(super) fn list(
    archive: &Archive,
    query: &StreamQuery,
    subscribers: &SubscriberCounts,
) -> Result<Value, Response> {
    let described = |stream: &ListedStream| described(stream, subscribers);
    if !is_walk(query) {
        let page = page(archive, query, query.after.clone(), query.limit)?;
        let mut list = json!({ "streams": page.streams.iter().map(described).collect::<Vec<_>>() });
        if let Some(next) = page.next {
            list["next"] = json!(next);
        }
        return Ok(list);
    }
    let mut first = Vec::new();
    let mut behind = None;
    let mut walked = 0;
    let is_complete = loop {
        let page = page(archive, query, behind, PAGE_STREAMS)?;
        walked += page.streams.len();
        first.extend(page.streams);
        // Those in front of all others so far.
        first.sort_by_cached_key(|one: &ListedStream| {
            let size = match query.sort {
                StreamOrder::Name => None,
                StreamOrder::Bytes => one.appended_bytes,
                StreamOrder::Messages => one.messages,
                StreamOrder::Subscribers => Some(subscribers.of(one.no).connections),
            };
            (Reverse(size), one.name.clone())
        });
        first.truncate(query.limit);
        match page.next {
            None => break true,
            Some(_) if walked >= WALKED_MAX => break false,
            next => behind = next,
        }
    };
    Ok(json!({
        "streams": first.iter().map(described).collect::<Vec<_>>(),
        "total": walked,
        "complete": is_complete,
    }))
}

fn page(
    archive: &Archive,
    query: &StreamQuery,
    behind: Option<Box<str>>,
    count_max: usize,
) -> Result<StreamPage, Response> {
    let fetch = ListFetch {
        prefix: query.prefix.clone(),
        behind,
        count_max,
        viewer: Viewer::All,
        now: encke_net::now(),
    };
    let page = archive.loaders.list(&fetch);
    page.map_err(|why| failure(500, "unreadable", &why.to_string()))
}

fn described(stream: &ListedStream, subscribers: &SubscriberCounts) -> Value {
    let of = subscribers.of(stream.no);
    json!({
        "name": stream.name,
        "contentType": stream.content_type,
        "nextOffset": stream.tail.to_string(),
        "messages": stream.messages,
        "appendedBytes": stream.appended_bytes,
        "closed": stream.closed,
        "owner": stream.owner.as_deref().map(name_of_identity),
        "subscribers": of.connections,
        "behind": of.behind,
        "lagBytes": of.lag_bytes,
        "lagSeconds": of.lag_age.as_secs_f64(),
    })
}

/// Streams that are read at once.
const PAGE_STREAMS: usize = 1_000;

/// Streams that are looked at for the largest of them.
const WALKED_MAX: usize = 100_000;
