//! Messages of clients, parsed.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_stream::{AppendExtras, EndReason, ProducerId};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::object::MessageWriter;
use super::reply::{MessageTag, Subject};
use crate::append::{
    AppendRequest, CONTENT_TYPE_BYTES_MAX, PRODUCER_ID_BYTES_MAX, PRODUCER_NUMBER_MAX,
    STREAM_SEQ_BYTES_MAX, client_end_reason, fits_field, is_content_type,
};
use crate::events::{Named, Parameters};
use crate::last_messages::{BadLast, ReadStart};
use crate::misspelled::{shown, unknown};
use crate::ndjson;
use crate::problem::error;
use crate::response::Response;
use crate::streams::StartPosition;

/// A message of a client.
pub(super) struct ClientMessage {
    /// What its response repeats.
    pub(super) tag: MessageTag,
    pub(super) request: MessageRequest,
}

/// What a message asks for.
pub(super) enum MessageRequest {
    /// Follow one stream.
    Follow {
        name: Box<str>,
        start: ReadStart,
        /// Records have their times.
        has_times: bool,
    },
    /// Follow several streams, or patterns.
    FollowSeveral {
        subject: Subject,
        parameters: Parameters,
    },
    Unsubscribe(Subject),
    Append {
        name: Box<str>,
        append: AppendMessage,
    },
    /// Send something to those who are subscribed to a stream now.
    Ephemeral {
        name: Box<str>,
        content_type: Option<Cow<'static, str>>,
        body: Vec<u8>,
        /// The channel itself gets it, too, if it is subscribed.
        echoes: bool,
    },
    /// Ask the producer of a stream to stop.
    Stop {
        name: Box<str>,
    },
    Authenticate {
        token: String,
    },
}

/// The members of an append.
pub(super) struct AppendMessage {
    content_type: Option<Cow<'static, str>>,
    seq: Option<String>,
    request: AppendRequest<'static>,
}

/// A message that cannot be read, and what is known of it.
pub(super) struct BadClientMessage {
    pub(super) tag: MessageTag,
    pub(super) refused: Response,
}

impl AppendMessage {
    /// The type that the message names for its data. `None`: the stream's own.
    pub(super) fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    pub(super) fn request(&mut self) -> AppendRequest<'_> {
        AppendRequest {
            content_type: self.content_type.as_deref(),
            closes: self.request.closes,
            producer: self.request.producer.take(),
            writer_seq: self.seq.as_deref(),
            ack: self.request.ack,
            body: std::mem::take(&mut self.request.body),
            extras: std::mem::take(&mut self.request.extras),
        }
    }
}

impl ClientMessage {
    /// Reads a message.
    pub(super) fn parse(text: &str, limits: MessageLimits) -> Result<Self, BadClientMessage> {
        let mut tag = MessageTag::default();
        let members: Members<'_> = serde_json::from_str(text).map_err(|why| BadClientMessage {
            tag: MessageTag::default(),
            // What is there instead is not repeated: it may be a token.
            refused: error(
                400,
                "bad_json",
                match why.classify() {
                    Category::Data => {
                        format!("a message is an object of JSON with at most {MEMBERS_MAX} members")
                    }
                    _ => format!(
                        "the message is not valid JSON at line {}, column {}",
                        why.line(),
                        why.column()
                    ),
                },
            ),
        })?;
        // Whatever else is wrong, the client learns which message it is.
        tag.id = members.id().unwrap_or_default();
        // An ephemeral message has a bound of its own, behind which its base64 is larger.
        let has_data = matches!(members.text("type"), Ok(Some(name)) if matches!(&*name, "append" | "ephemeral"));
        if !has_data && text.len() > SMALL_MESSAGE_BYTES_MAX {
            let why = format!(
                "only appends may have more than {SMALL_MESSAGE_BYTES_MAX} bytes, not {}",
                text.len()
            );
            return Err(BadClientMessage {
                tag,
                refused: error(413, "too_large", why),
            });
        }
        let subject = members.subject(limits.streams_max);
        tag.subject = subject.ok().flatten().filter(|subject| {
            let names = subject.names().iter();
            names
                .map(|name| name.len())
                .all(|bytes| bytes <= limits.name_bytes_max)
        });
        match members.request(limits.streams_max) {
            Ok(request) => {
                if let MessageRequest::Append { name, .. }
                | MessageRequest::Ephemeral { name, .. } = &request
                {
                    tag.subject = Some(Subject::Stream(name.clone()));
                }
                Ok(ClientMessage { tag, request })
            }
            Err(refused) => Err(BadClientMessage { tag, refused }),
        }
    }
}

/// What a message may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageLimits {
    /// Longer names of streams are not repeated in errors.
    pub(super) name_bytes_max: usize,
    /// Streams and patterns that a message may name.
    pub(super) streams_max: usize,
}

/// The message that follows one stream.
pub(crate) fn single(name: &str, start: ReadStart, has_times: bool) -> String {
    let mut out = Vec::new();
    let mut message = MessageWriter::new("subscribe", &mut out);
    message.text("stream", name);
    match start {
        ReadStart::Behind(position) => message.plain("offset", position),
        ReadStart::Last(count) => message.literal("last", count),
    };
    if has_times {
        message.literal("times", true);
    }
    message.end();
    String::from_utf8_lossy(&out).into_owned()
}

/// The message that follows several streams as a URL names them, from a position on if it has one.
pub(crate) fn several(parameters: &Parameters) -> String {
    let mut out = Vec::new();
    let mut message = MessageWriter::new("subscribe", &mut out);
    let list = message.value("streams");
    for (number, one) in parameters.named.iter().enumerate() {
        list.extend_from_slice(if number == 0 { b"[{" } else { b",{" });
        list.extend_from_slice(b"\"stream\":");
        ndjson::string(&one.name, list);
        let from = match one.from {
            ReadStart::Behind(position) => format!(",\"offset\":\"{position}\"}}"),
            ReadStart::Last(count) => format!(",\"last\":{count}}}"),
        };
        list.extend_from_slice(from.as_bytes());
    }
    list.push(b']');
    if let Some(position) = parameters.position() {
        message.text("position", position);
    }
    if parameters.has_times {
        message.literal("times", true);
    }
    message.end();
    String::from_utf8_lossy(&out).into_owned()
}

/// The members of an object, in their order, not looked at yet.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    fn request(&self, streams_max: usize) -> Result<MessageRequest, Response> {
        let message_type = self.text("type")?;
        let message_type = message_type.ok_or_else(|| {
            let types = TYPES.join(", ");
            bad(format!("a message has the member \"type\": one of {types}"))
        })?;
        match &*message_type {
            "subscribe" => {
                self.check(SUBSCRIBE_MEMBERS)?;
                self.id()?;
                self.subscribe(streams_max)
            }
            "unsubscribe" => {
                self.check(&["type", "id", "stream", "streams"])?;
                self.id()?;
                Ok(MessageRequest::Unsubscribe(
                    self.required_subject(streams_max)?,
                ))
            }
            "append" => {
                self.check(APPEND_MEMBERS)?;
                self.id()?;
                self.append()
            }
            "ephemeral" => {
                self.check(EPHEMERAL_MEMBERS)?;
                self.id()?;
                self.ephemeral()
            }
            "stop" => {
                self.check(&["type", "id", "stream"])?;
                self.id()?;
                self.stop()
            }
            "authenticate" => {
                self.check(&["type", "id", "token"])?;
                self.id()?;
                let token = self.text("token")?;
                let token = token.ok_or_else(|| bad("the member \"token\" is missing"))?;
                Ok(MessageRequest::Authenticate { token })
            }
            other => Err(bad(unknown("type", other, TYPES))),
        }
    }

    fn subscribe(&self, streams_max: usize) -> Result<MessageRequest, Response> {
        let subject = self.required_subject(streams_max)?;
        let offset = self.text("offset")?;
        let start = offset.as_deref().map(start).transpose()?;
        let position = self.text("position")?;
        let last = self.last()?;
        let has_times = self.value("times", "true or false")?.unwrap_or(false);
        if last.is_some() && offset.is_some() {
            return Err(bad("a subscription has one of \"offset\" and \"last\""));
        }
        let start = start.map(ReadStart::Behind).or(last);
        let start = start.unwrap_or(ReadStart::NOW);
        if let Subject::Stream(name) = subject {
            if position.is_some() {
                return Err(bad(
                    "\"position\" is the position in several streams or a pattern; in one stream it is \"offset\"",
                ));
            }
            return Ok(MessageRequest::Follow {
                name,
                start,
                has_times,
            });
        }
        let named = self.named(start, streams_max)?;
        if last.is_some_and(|last| named.iter().all(|one| one.from != last)) {
            return Err(bad(
                "\"last\" is for the streams without an offset of their own, and there is none",
            ));
        }
        if let Some(old) = named.iter().find(|one| one.has_old_form()) {
            let prefix = old.name.trim_end_matches('*');
            let why = format!(
                "{} is no pattern: {} followed by ** has all below",
                shown(&old.name),
                shown(prefix)
            );
            return Err(bad(why));
        }
        let parameters = Parameters::of(named, position.as_deref(), has_times)?;
        Ok(MessageRequest::FollowSeveral {
            subject,
            parameters,
        })
    }

    /// Why an append closes its stream.
    fn end_reason(&self, closes: bool) -> Result<Option<EndReason>, Response> {
        let Some(name) = self.text("endReason")? else {
            return Ok(None);
        };
        if !closes {
            return Err(bad(
                "\"endReason\" says why a stream is closed: it needs \"close\": true",
            ));
        }
        let reason = client_end_reason(&name).ok_or_else(|| {
            bad(format!(
                "\"endReason\" is done, stopped or failed, not {}",
                shown(&name)
            ))
        })?;
        Ok(Some(reason))
    }

    /// Asks the producer of a stream to stop.
    fn stop(&self) -> Result<MessageRequest, Response> {
        let name = self.text("stream")?;
        let name = name.ok_or_else(|| bad("the member \"stream\" is missing"))?;
        Ok(MessageRequest::Stop { name: name.into() })
    }

    /// Sends something to those who are subscribed to a stream now.
    fn ephemeral(&self) -> Result<MessageRequest, Response> {
        let name = self.text("stream")?;
        let name = name.ok_or_else(|| bad("the member \"stream\" is missing"))?;
        let (content_type, body) = self.data("an ephemeral message")?;
        Ok(MessageRequest::Ephemeral {
            name: name.into(),
            content_type,
            body,
            echoes: self.value("echo", "true or false")?.unwrap_or(true),
        })
    }

    /// The data of a message, and the type that it names for them. `what` is the message.
    fn data(&self, what: &str) -> Result<(Option<Cow<'static, str>>, Vec<u8>), Response> {
        let mut declared = self.text("contentType")?.map(Cow::Owned);
        if let Some(declared) = &declared
            && !is_content_type(declared)
        {
            return Err(bad(format!(
                "\"contentType\" is a media type such as text/plain with at most {CONTENT_TYPE_BYTES_MAX} bytes"
            )));
        }
        let data = self.find("data");
        let (text, base64) = (self.text("text")?, self.text("base64")?);
        let body = match (data, text, base64) {
            (None, None, None) => Vec::new(),
            (Some(data), None, None) => {
                declared.get_or_insert(Cow::Borrowed("application/json"));
                data.get().as_bytes().to_vec()
            }
            (None, Some(text), None) => text.into_bytes(),
            (None, None, Some(base64)) => STANDARD
                .decode(base64)
                .map_err(|_| bad("\"base64\" is not in base64 with padding"))?,
            _ => {
                return Err(bad(format!(
                    "{what} has one of \"data\", \"text\" and \"base64\""
                )));
            }
        };
        Ok((declared, body))
    }

    fn append(&self) -> Result<MessageRequest, Response> {
        let name = self.text("stream")?;
        let name = name.ok_or_else(|| bad("the member \"stream\" is missing"))?;
        let (declared, body) = self.data("an append")?;
        let seq = self.text("seq")?;
        if seq
            .as_ref()
            .is_some_and(|seq| seq.len() > STREAM_SEQ_BYTES_MAX || !fits_field(seq))
        {
            return Err(bad(format!(
                "\"seq\" has at most {STREAM_SEQ_BYTES_MAX} bytes, and none that the field Stream-Seq could not have"
            )));
        }
        let ack = self.text("ack")?;
        let ack = ack.map(|name| {
            name.parse().map_err(|_| {
                bad(format!(
                    "\"ack\" is synced, written or accepted, not {}",
                    shown(&name)
                ))
            })
        });
        let closes = self.value("close", "true or false")?.unwrap_or(false);
        let request = AppendRequest {
            content_type: None,
            closes,
            producer: self.find("producer").map(producer).transpose()?,
            writer_seq: None,
            ack: ack.transpose()?,
            body,
            extras: AppendExtras {
                end: self.end_reason(closes)?,
                ..AppendExtras::default()
            },
        };
        request.check_not_empty()?;
        Ok(MessageRequest::Append {
            name: name.into(),
            append: AppendMessage {
                content_type: declared,
                seq,
                request,
            },
        })
    }

    /// What the message is about, if it names something.
    fn subject(&self, streams_max: usize) -> Result<Option<Subject>, Response> {
        match (self.text("stream")?, self.find("streams")) {
            (Some(_), Some(_)) => Err(bad("a message has one of \"stream\" and \"streams\"")),
            (None, None) => Ok(None),
            (Some(name), None) => {
                let one = Named::new(name, ReadStart::NOW);
                Ok(Some(match one.pattern {
                    Some(_) => Subject::Several([one.name.into()].into()),
                    None => Subject::Stream(one.name.into()),
                }))
            }
            (None, Some(_)) => {
                let named = self.named(ReadStart::NOW, streams_max)?.into_iter();
                let names = named.map(|one| one.name.into());
                Ok(Some(Subject::Several(names.collect())))
            }
        }
    }

    fn required_subject(&self, streams_max: usize) -> Result<Subject, Response> {
        let subject = self.subject(streams_max)?;
        subject.ok_or_else(|| bad("the member \"stream\" is missing, or \"streams\" for several"))
    }

    /// The streams and patterns that the message names; those without a beginning of their own begin at `start`.
    fn named(&self, start: ReadStart, streams_max: usize) -> Result<Vec<Named>, Response> {
        if let Some(name) = self.text("stream")? {
            return Ok(vec![Named::new(name, start)]);
        }
        let list: Vec<&RawValue> = self
            .value(
                "streams",
                "an array of names, or of objects such as {\"stream\":\"a\",\"offset\":\"-1\"}",
            )?
            .unwrap_or_default();
        if list.len() > streams_max {
            let why = format!(
                "a subscription names at most {streams_max} streams and patterns, not {}",
                list.len()
            );
            return Err(error(400, "too_many_streams", why));
        }
        list.into_iter().map(|one| named(one, start)).collect()
    }

    /// Where a subscription begins that is to have the last messages of a stream.
    fn last(&self) -> Result<Option<ReadStart>, Response> {
        let last = self.value("last", &BadLast.to_string())?;
        let last = last.map(ReadStart::last).transpose();
        last.map_err(|why| bad(format!("\"last\" is {why}")))
    }

    /// The client's own number.
    fn id(&self) -> Result<Option<u64>, Response> {
        let what = "a whole number from 0 to 9007199254740992";
        match self.value("id", what)? {
            Some(id) if id > ID_MAX => Err(bad(format!("\"id\" is {what}"))),
            id => Ok(id),
        }
    }

    /// A string. Its value is not repeated in errors, because it may be a token.
    fn text(&self, name: &str) -> Result<Option<String>, Response> {
        self.value(name, "a string")
    }

    fn value<T: Deserialize<'a>>(&self, name: &str, what: &str) -> Result<Option<T>, Response> {
        let Some(raw) = self.find(name) else {
            return Ok(None);
        };
        let value = serde_json::from_str(raw.get());
        value
            .map(Some)
            .map_err(|_| bad(format!("\"{name}\" is {what}")))
    }

    fn find(&self, name: &str) -> Option<&'a RawValue> {
        let mut members = self.0.iter();
        members.find_map(|(own, value)| (own == name).then_some(*value))
    }

    /// Refuses members that are none of these, and those that are there twice.
    fn check(&self, known: &[&str]) -> Result<(), Response> {
        for (number, (name, _)) in self.0.iter().enumerate() {
            if !known.contains(&&**name) {
                return Err(bad(unknown("member", name, known)));
            }
            if self.0[..number].iter().any(|(other, _)| other == name) {
                return Err(bad(format!("the member \"{name}\" is there twice")));
            }
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    if members.len() == MEMBERS_MAX {
                        return Err(serde::de::Error::custom("it has too many members"));
                    }
                    members.push(member);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(MembersVisitor).map(Members)
    }
}

/// A stream or a pattern of a list: its name, or an object that says where it begins.
fn named(raw: &RawValue, start: ReadStart) -> Result<Named, Response> {
    if let Ok(name) = serde_json::from_str(raw.get()) {
        return Ok(Named::new(name, start));
    }
    let what = "a member of \"streams\" is a name, or an object such as {\"stream\":\"a\",\"offset\":\"-1\"}";
    let members: Members<'_> = serde_json::from_str(raw.get()).map_err(|_| bad(what))?;
    members.check(&["stream", "offset", "last"])?;
    let name = members.text("stream")?.ok_or_else(|| bad(what))?;
    let start = match (members.text("offset")?, members.last()?) {
        (Some(_), Some(_)) => {
            return Err(bad("a stream has one of \"offset\" and \"last\""));
        }
        (Some(offset), None) => ReadStart::Behind(self::start(&offset)?),
        (None, last) => last.unwrap_or(start),
    };
    Ok(Named::new(name, start))
}

fn start(offset: &str) -> Result<StartPosition, Response> {
    offset.parse().map_err(|why| {
        bad(format!(
            "\"offset\": {why}, or -1, or now; this is {}",
            shown(offset)
        ))
    })
}

/// The three members of an idempotent producer (Durable Streams, section 5.2.1).
fn producer(raw: &RawValue) -> Result<ProducerId, Response> {
    let what = "\"producer\" is an object such as {\"id\":\"writer-1\",\"epoch\":0,\"seq\":0}";
    let members: Members<'_> = serde_json::from_str(raw.get()).map_err(|_| bad(what))?;
    members.check(&["id", "epoch", "seq"])?;
    let number = |name: &str| {
        let range = format!("a whole number from 0 to {PRODUCER_NUMBER_MAX}");
        let number = members.value(name, &range)?.ok_or_else(|| bad(what))?;
        match number <= PRODUCER_NUMBER_MAX {
            true => Ok(number),
            false => Err(bad(format!("\"{name}\" is {range}"))),
        }
    };
    let id = members.text("id")?.ok_or_else(|| bad(what))?;
    if id.is_empty() || id.len() > PRODUCER_ID_BYTES_MAX || !fits_field(&id) {
        return Err(bad(format!(
            "the \"id\" of a producer has 1 to {PRODUCER_ID_BYTES_MAX} bytes, and none that the field Producer-Id could not have"
        )));
    }
    Ok(ProducerId {
        id: id.into(),
        epoch: number("epoch")?,
        seq: number("seq")?,
    })
}

fn bad(why: impl AsRef<str>) -> Response {
    error(400, "bad_message", why)
}

/// The types of messages.
const TYPES: &[&str] = &[
    "subscribe",
    "unsubscribe",
    "append",
    "ephemeral",
    "stop",
    "authenticate",
];

const SUBSCRIBE_MEMBERS: &[&str] = &[
    "type", "id", "stream", "streams", "offset", "last", "position", "times",
];

const APPEND_MEMBERS: &[&str] = &[
    "type",
    "id",
    "stream",
    "data",
    "text",
    "base64",
    "contentType",
    "ack",
    "producer",
    "seq",
    "close",
    "endReason",
];

const EPHEMERAL_MEMBERS: &[&str] = &[
    "type",
    "id",
    "stream",
    "data",
    "text",
    "base64",
    "contentType",
    "echo",
];

/// The largest number of a message: up to it JavaScript counts every one.
const ID_MAX: u64 = 1 << 53;

/// Bytes of a message that appends nothing, at most: names of many streams, or a long token.
const SMALL_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// More members than any object of a message has.
const MEMBERS_MAX: usize = 16;
