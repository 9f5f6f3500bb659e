//! The bodies of requests, as JSON: the configuration of a subscription, names of streams, and what workers say.
//!
//! Members that have no meaning are ignored, as clients of the protocol may send their own. One that has a meaning and the wrong type is
//! refused by its name. Nothing is kept of what is ignored: reports come from clients that the access control does not know.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use encke_stream::Viewer;
use encke_subscriptions::{
    BadWebhookUrl, Glob, LEASE_MS, RESERVED_SEGMENT, StreamAck, SubscriptionConfig,
    SubscriptionError, SubscriptionKind, URL_BYTES_MAX, WORKER_BYTES_MAX, stream_name,
};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::refusals::{invalid, refusal};
use crate::misspelled::shown;
use crate::response::Response;

/// The members of an object that have a meaning.
pub(super) trait Members: Default {
    /// Reads the value of a member, or ignores it.
    fn member<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Reads a body. An empty one has no members.
pub(super) fn parse<M: Members>(body: &[u8]) -> Result<M, Response> {
    if body.trim_ascii().is_empty() {
        return Ok(M::default());
    }
    let object: Object<M> = serde_json::from_slice(body).map_err(|error| {
        let mut why = error.to_string();
        // It may repeat a value.
        if why.len() > MESSAGE_BYTES_MAX {
            why.truncate(why.floor_char_boundary(MESSAGE_BYTES_MAX));
            why.push_str("...");
        }
        invalid(format!("the body is wrong: {why}"))
    })?;
    Ok(object.0)
}

/// The body that creates a subscription.
#[derive(Debug, Default)]
pub(super) struct CreateBody {
    kind: Option<Box<str>>,
    pattern: Option<Box<str>>,
    streams: Option<Vec<Box<str>>>,
    webhook: Option<Object<WebhookBody>>,
    wake_stream: Option<Box<str>>,
    lease_ms: Option<u64>,
    description: Option<Box<str>>,
}

#[derive(Debug, Default)]
struct WebhookBody {
    url: Option<Box<str>>,
}

/// The body that names streams to follow.
#[derive(Debug, Default)]
pub(super) struct StreamsBody {
    streams: Option<Vec<Box<str>>>,
}

/// The body of a claim.
#[derive(Debug, Default)]
pub(super) struct ClaimBody {
    worker: Option<Box<str>>,
}

/// The body of a report.
#[derive(Debug, Default)]
pub(super) struct ReportBody {
    wake_id: Option<Box<str>>,
    pub(super) generation: Option<u64>,
    acks: Option<Vec<Object<AckBody>>>,
    pub(super) done: Option<bool>,
}

#[derive(Debug, Default)]
struct AckBody {
    stream: Option<Box<str>>,
    /// What some clients say for `stream`.
    path: Option<Box<str>>,
    offset: Option<Box<str>>,
}

impl CreateBody {
    /// The configuration in its only form. Whose streams it may follow depends on the rest of it.
    pub(super) fn config(self) -> Result<SubscriptionConfig, Response> {
        let kind = match self.kind.as_deref() {
            Some("webhook") => {
                let url = self.webhook.and_then(|webhook| webhook.0.url);
                let url = url.ok_or_else(|| {
                    invalid("a subscription of the type webhook needs webhook.url, a string")
                })?;
                check_url_length(&url)?;
                SubscriptionKind::Webhook { url }
            }
            Some("pull-wake") => SubscriptionKind::PullWake,
            Some(other) => {
                let why = format!("type is {}, expected webhook or pull-wake", shown(other));
                return Err(invalid(why));
            }
            None => return Err(invalid("type is missing: webhook or pull-wake")),
        };
        let pattern = self.pattern.filter(|text| !text.is_empty());
        let config = SubscriptionConfig {
            kind,
            pattern: pattern.map(|text| glob(&text)).transpose()?,
            streams: self.streams.unwrap_or_default(),
            wake_stream: self.wake_stream,
            lease_ms: self.lease_ms.unwrap_or(LEASE_MS),
            description: self.description,
            viewer: Viewer::Of(None),
        };
        config.checked().map_err(|error| refusal(&error))
    }
}

impl StreamsBody {
    /// The names of the streams.
    pub(super) fn names(self) -> Result<Vec<Box<str>>, Response> {
        let streams = self
            .streams
            .ok_or_else(|| invalid("streams is missing: an array of names of streams"))?;
        let names = streams.iter().map(|text| stream_name(text));
        let names: Result<_, _> = names.collect();
        names.map_err(|error| refusal(&error))
    }
}

impl ClaimBody {
    /// The name of the worker.
    pub(super) fn worker(self) -> Result<Box<str>, Response> {
        let worker = self.worker.unwrap_or_default();
        match worker.len() {
            1..=WORKER_BYTES_MAX => Ok(worker),
            _ => Err(refusal(&SubscriptionError::BadWorker)),
        }
    }
}

impl ReportBody {
    /// The name of the wake. One of such a length is that of no wake.
    pub(super) fn wake_id(&mut self) -> Option<Box<str>> {
        let wake_id = self.wake_id.take();
        wake_id.filter(|wake_id| wake_id.len() <= WAKE_ID_BYTES_MAX)
    }

    /// Up to where streams are done.
    pub(super) fn acks(&mut self) -> Result<Vec<StreamAck>, Response> {
        let acks = self.acks.take().unwrap_or_default().into_iter();
        let acks = acks.map(|Object(ack)| match (ack.stream.or(ack.path), ack.offset) {
            (Some(stream), Some(offset)) => Ok(StreamAck { stream, offset }),
            _ => Err(invalid("each of acks has the members stream and offset")),
        });
        acks.collect()
    }
}

impl Members for CreateBody {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "type" => self.kind = map.next_value()?,
            "pattern" => self.pattern = map.next_value()?,
            "streams" => self.streams = map.next_value()?,
            "webhook" => self.webhook = map.next_value()?,
            "wake_stream" => self.wake_stream = map.next_value()?,
            // Not even `null`.
            "lease_ttl_ms" => self.lease_ms = Some(map.next_value()?),
            "description" => self.description = map.next_value()?,
            _ => ignore(map)?,
        }
        Ok(())
    }
}

impl Members for WebhookBody {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "url" => self.url = map.next_value()?,
            _ => ignore(map)?,
        }
        Ok(())
    }
}

impl Members for StreamsBody {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "streams" => self.streams = map.next_value()?,
            _ => ignore(map)?,
        }
        Ok(())
    }
}

impl Members for ClaimBody {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "worker" => self.worker = map.next_value()?,
            _ => ignore(map)?,
        }
        Ok(())
    }
}

impl Members for ReportBody {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "wake_id" => self.wake_id = map.next_value()?,
            "generation" => self.generation = map.next_value()?,
            "acks" => self.acks = map.next_value()?,
            "done" => self.done = map.next_value()?,
            _ => ignore(map)?,
        }
        Ok(())
    }
}

impl Members for AckBody {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "stream" => self.stream = map.next_value()?,
            "path" => self.path = map.next_value()?,
            "offset" => self.offset = map.next_value()?,
            _ => ignore(map)?,
        }
        Ok(())
    }
}

/// An object with these members.
#[derive(Debug, Default)]
struct Object<M>(M);

impl<'de, M: Members> Deserialize<'de> for Object<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<M>(PhantomData<M>);

impl<'de, M: Members> Visitor<'de> for ObjectVisitor<M> {
    type Value = Object<M>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<M>, A::Error> {
        let mut members = M::default();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let read = members.member(&name, &mut map);
            read.map_err(|error| A::Error::custom(format_args!("{name}: {error}")))?;
        }
        Ok(Object(members))
    }
}

fn ignore<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(drop)
}

/// The rest of the URL is checked behind the question whether the subscription exists.
fn check_url_length(url: &str) -> Result<(), Response> {
    match url.len() {
        ..=URL_BYTES_MAX => Ok(()),
        bytes => Err(refusal(&From::from(BadWebhookUrl::TooLong { bytes }))),
    }
}

/// A pattern of streams that there can be.
fn glob(text: &str) -> Result<Glob, Response> {
    let glob: Glob = text.parse().map_err(|error| refusal(&From::from(error)))?;
    match glob.prefix().split('/').next() == Some(RESERVED_SEGMENT) {
        true => Err(invalid(format!(
            "no stream's name begins with the segment {RESERVED_SEGMENT}, so the pattern matches none"
        ))),
        false => Ok(glob),
    }
}

/// Names of wakes are shorter.
const WAKE_ID_BYTES_MAX: usize = 200;

/// What is shown of an error of the parser.
const MESSAGE_BYTES_MAX: usize = 200;
