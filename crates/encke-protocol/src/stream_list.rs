//! The list of streams: `GET /v1/stream?prefix=chat/`, a page at a time.
//!
//! Callers get the streams that they may use, as far as owners say. The streams of pools are listed with the pools.

use encke_access::{Operation, name_of_identity};
use encke_jobs::pool_of_stream;
use encke_stream::{ListFetch, ListedStream, Offset, StreamPage};
use serde_json::{Map, Value};

use crate::action::{Action, Failure, OnList};
use crate::gate::Admitted;
use crate::known_field::KnownFields;
use crate::misspelled;
use crate::mount::Mount;
use crate::number::decimal;
use crate::problem::{check_method, error, failed};
use crate::protocol::Protocol;
use crate::query;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;
use crate::streams::StreamAccess;

/// The list of streams.
#[derive(Debug)]
pub(crate) struct StreamList {
    mounts: [Mount; 1],
    streams: StreamAccess,
}

impl StreamList {
    pub(crate) fn new(streams: StreamAccess) -> Self {
        let path = streams.root.strip_suffix('/').unwrap_or(&streams.root);
        StreamList {
            mounts: [Mount::at(path).for_operators_by_grant()],
            streams,
        }
    }

    fn list(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<Action, Response> {
        check_method(request.method, METHODS)?;
        let parameters = Parameters::parse(request.query)?;
        let needed = parameters.needed(&self.streams);
        admitted.meet(&needed)?;
        let logs = self.streams.views.logs();
        if self.streams.in_fleet && request.barriers < logs {
            return Ok(Action::AwaitOrder(request.barriers, Vec::new()));
        }
        let fetch = ListFetch {
            prefix: parameters.prefix.into(),
            behind: parameters.after.map(Into::into),
            count_max: parameters.limit,
            viewer: admitted.rights.viewer(&needed.paths),
            now: request.now,
        };
        Ok(Action::List(fetch, Box::new(Listing)))
    }
}

impl Protocol for StreamList {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        METHODS
    }

    fn fields(&self) -> &'static KnownFields {
        &KnownFields::NONE
    }

    fn overview(&self) -> &'static str {
        "List them    GET /v1/stream?prefix={prefix}\n"
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        Ok(vec![Parameters::parse(head.query)?.needed(&self.streams)])
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = self.list(&request, admitted);
        action.unwrap_or_else(Action::Respond)
    }
}

/// The parameters of a list.
#[derive(Debug)]
struct Parameters {
    /// What the names begin with.
    prefix: String,
    /// The last name of the page before.
    after: Option<String>,
    /// The most streams of the page.
    limit: usize,
}

impl Parameters {
    fn parse(query: Option<&str>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let (mut prefix, mut after, mut limit) = (None, None, None);
        for parameter in query::parameters(query) {
            let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
            let place = match &*name {
                "prefix" => &mut prefix,
                "after" => &mut after,
                "limit" => &mut limit,
                other => {
                    misspelled::check_parameter(other, PARAMETERS)?;
                    continue;
                }
            };
            if place.replace(value.into_owned()).is_some() {
                return Err(bad(format!("the parameter {name} comes once")));
            }
        }
        let limit = match limit.as_deref() {
            None => LIMIT_DEFAULT,
            Some(text) => {
                let limit = decimal(text).filter(|limit| (1..=LIMIT_MAX as u64).contains(limit));
                let limit = limit.ok_or_else(|| {
                    bad(format!(
                        "limit is a whole number from 1 to {LIMIT_MAX}, not {text:?}"
                    ))
                })?;
                limit as usize
            }
        };
        Ok(Parameters {
            prefix: prefix.unwrap_or_default(),
            after,
            limit,
        })
    }

    /// The right to list all below the last slash of the prefix.
    fn needed(&self, streams: &StreamAccess) -> Requirement<'static> {
        let folder = self.prefix.rfind('/').map_or("", |at| &self.prefix[..=at]);
        Requirement::below(Operation::List, format!("{}{folder}", streams.root))
    }
}

/// Waits for the page.
#[derive(Debug)]
struct Listing;

impl OnList for Listing {
    fn listed(self: Box<Self>, page: Result<StreamPage, Failure>) -> Response {
        let StreamPage { streams, next } = match page {
            Ok(page) => page,
            Err(failure) => return failed(failure),
        };
        // A pool lists its own.
        let streams = streams
            .iter()
            .filter(|one| pool_of_stream(&one.name).is_none());
        let mut list = Map::new();
        list.insert("streams".into(), streams.map(described).collect());
        if let Some(next) = next {
            list.insert("next".into(), Value::from(&*next));
        }
        Response::shared(200)
            .field("Content-Type", "application/json")
            .field("Cache-Control", "no-store")
            .body(Value::Object(list).to_string())
    }
}

/// A stream in the list, with what HEAD says of it.
fn described(stream: &ListedStream) -> Value {
    let mut described = Map::new();
    let mut add = |name: &str, value: Value| described.insert(name.into(), value);
    add("name", Value::from(&*stream.name));
    add("contentType", Value::from(&*stream.content_type));
    add("nextOffset", Value::from(stream.tail.to_string()));
    if let Some(messages) = stream.messages {
        add("messages", Value::from(messages));
    }
    if stream.floor > 0 {
        add(
            "floor",
            Value::from(Offset::behind(stream.floor).to_string()),
        );
    }
    if stream.closed {
        add("closed", Value::from(true));
    }
    if let Some(end) = stream.end {
        add("endReason", Value::from(end.to_string()));
    }
    if stream.stop_asked && !stream.closed {
        add("stopRequested", Value::from(true));
    }
    if let Some(owner) = &stream.owner {
        add("owner", Value::from(name_of_identity(owner)));
    }
    let metadata = stream.metadata.as_deref();
    // It was checked before it was stored.
    if let Some(metadata) = metadata.and_then(|text| serde_json::from_str(text).ok()) {
        add("metadata", metadata);
    }
    Value::Object(described)
}

const METHODS: &[&str] = &["GET"];

/// The parameters of a list. Unknown ones are ignored, but for those that are nearly one of these.
const PARAMETERS: &[&str] = &["prefix", "after", "limit"];

/// Streams on a page, if the client says nothing, and at most.
const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;
