//! The bodies of requests, as JSON: the configuration of a subscription, and reports on a wake.
//!
//! Members that have no meaning are ignored, as clients of the protocol may send their own. One that has a meaning and the wrong type is
//! refused by its name.

use encke_stream::Viewer;
use encke_subscriptions::{
    Glob, LEASE_MS, LEASE_MS_LEAST, LEASE_MS_MAX, RESERVED_SEGMENT, StreamAck, SubscriptionConfig,
    SubscriptionKind, stream_name,
};
use serde_json::{Map, Value};

use super::responses::{invalid, refusal};
use crate::misspelled::shown;
use crate::response::Response;

/// The members of a body.
#[derive(Debug)]
pub(super) struct Members(Map<String, Value>);

/// What a report says, beside the token.
#[derive(Debug, Default)]
pub(super) struct ReportBody {
    pub(super) wake_id: Option<Box<str>>,
    pub(super) generation: Option<u64>,
    pub(super) acks: Vec<StreamAck>,
    pub(super) done: bool,
}

impl Members {
    /// Reads a body. An empty one has no members.
    pub(super) fn parse(body: &[u8]) -> Result<Members, Response> {
        if body.trim_ascii().is_empty() {
            return Ok(Members(Map::new()));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(members)) => Ok(Members(members)),
            Ok(other) => {
                let why = format!("the body is {}, expected a JSON object", kind_of(&other));
                Err(invalid(why))
            }
            Err(error) => Err(invalid(format!("the body is not JSON: {error}"))),
        }
    }

    /// The configuration of a subscription, in its only form. Whose streams it may follow depends on the rest of it.
    pub(super) fn config(mut self) -> Result<SubscriptionConfig, Response> {
        let kind = match self.text("type")?.as_deref() {
            Some("webhook") => SubscriptionKind::Webhook {
                url: self.webhook_url()?,
            },
            Some("pull-wake") => SubscriptionKind::PullWake,
            Some(other) => {
                let why = format!("type is {}, expected webhook or pull-wake", shown(other));
                return Err(invalid(why));
            }
            None => {
                return Err(invalid(
                    "the member type is missing: webhook or pull-wake".to_owned(),
                ));
            }
        };
        let pattern = match self.text("pattern")?.filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(glob(&text)?),
        };
        let config = SubscriptionConfig {
            kind,
            pattern,
            streams: self.texts("streams")?.unwrap_or_default(),
            wake_stream: self.text("wake_stream")?,
            lease_ms: self.lease_ms()?,
            description: self.text("description")?,
            viewer: Viewer::Of(None),
        };
        config.checked().map_err(|error| refusal(&error))
    }

    /// The names of streams to follow.
    pub(super) fn streams(mut self) -> Result<Vec<Box<str>>, Response> {
        let streams = self.texts("streams")?;
        let streams = streams.ok_or_else(|| {
            invalid("the member streams is missing: an array of names of streams".to_owned())
        })?;
        let names = streams.iter().map(|text| stream_name(text));
        let names: Result<_, _> = names.collect();
        names.map_err(|error| refusal(&error))
    }

    /// The name of a worker; empty if there is none.
    pub(super) fn worker(mut self) -> Result<Box<str>, Response> {
        Ok(self.text("worker")?.unwrap_or_default())
    }

    /// Which wake a worker gives back.
    pub(super) fn release(mut self) -> Result<ReportBody, Response> {
        Ok(ReportBody {
            wake_id: self.text("wake_id")?,
            generation: self.generation()?,
            ..ReportBody::default()
        })
    }

    /// What a receiver or worker says of a wake.
    pub(super) fn report(mut self) -> Result<ReportBody, Response> {
        let acks = match self.0.remove("acks") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(acks)) => {
                let acks = acks.into_iter().map(ack);
                acks.collect::<Result<_, _>>()?
            }
            Some(other) => return Err(wrong("acks", &other, "an array of objects")),
        };
        let done = match self.0.remove("done") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(done)) => done,
            Some(other) => return Err(wrong("done", &other, "true or false")),
        };
        Ok(ReportBody {
            acks,
            done,
            ..self.release()?
        })
    }

    fn webhook_url(&mut self) -> Result<Box<str>, Response> {
        let url = match self.0.remove("webhook") {
            None | Some(Value::Null) => None,
            Some(Value::Object(webhook)) => Members(webhook).text("url")?,
            Some(other) => return Err(wrong("webhook", &other, "an object with the member url")),
        };
        url.ok_or_else(|| {
            invalid("a subscription of the type webhook needs webhook.url".to_owned())
        })
    }

    fn lease_ms(&mut self) -> Result<u64, Response> {
        match self.0.remove("lease_ttl_ms") {
            None => Ok(LEASE_MS),
            Some(value) => value.as_u64().ok_or_else(|| {
                let expected = format!("a whole number from {LEASE_MS_LEAST} to {LEASE_MS_MAX}");
                wrong("lease_ttl_ms", &value, &expected)
            }),
        }
    }

    fn generation(&mut self) -> Result<Option<u64>, Response> {
        match self.0.remove("generation") {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(generation) => Ok(Some(generation)),
                None => Err(wrong("generation", &value, "a whole number")),
            },
        }
    }

    /// A text. `null` is as none.
    fn text(&mut self, name: &str) -> Result<Option<Box<str>>, Response> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.into())),
            Some(other) => Err(wrong(name, &other, "a string")),
        }
    }

    /// An array of texts. `null` is as none.
    fn texts(&mut self, name: &str) -> Result<Option<Vec<Box<str>>>, Response> {
        let texts = match self.0.remove(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Array(texts)) => texts,
            Some(other) => return Err(wrong(name, &other, "an array of strings")),
        };
        let texts = texts.into_iter().map(|text| match text {
            Value::String(text) => Ok(text.into()),
            other => {
                let why = format!("{name} has {}, expected strings", kind_of(&other));
                Err(invalid(why))
            }
        });
        texts.collect::<Result<_, _>>().map(Some)
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

/// Up to where a stream is done. Some clients say `path` for `stream`.
fn ack(value: Value) -> Result<StreamAck, Response> {
    let Value::Object(members) = value else {
        return Err(wrong(
            "acks",
            &value,
            "objects with stream and offset in it",
        ));
    };
    let mut members = Members(members);
    let stream = match members.text("stream")? {
        Some(stream) => Some(stream),
        None => members.text("path")?,
    };
    match (stream, members.text("offset")?) {
        (Some(stream), Some(offset)) => Ok(StreamAck { stream, offset }),
        _ => Err(invalid(
            "each of acks has the members stream and offset".to_owned(),
        )),
    }
}

fn wrong(name: &str, value: &Value, expected: &str) -> Response {
    invalid(format!("{name} is {}, expected {expected}", kind_of(value)))
}

/// A value as a message names it, which does not repeat long ones.
fn kind_of(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
