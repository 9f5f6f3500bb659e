//! Parses the header fields of requests. Every refusal names what is allowed.

use encke_access::{CanonicalPath, Operation};
use encke_clock::{NotRfc3339, WallTime};
use encke_stream::{AckLevel, EndReason, Lifetime, Offset, ProducerId, Retention};

use crate::append::{
    CONTENT_TYPE_BYTES_MAX, PRODUCER_ID_BYTES_MAX, PRODUCER_NUMBER_MAX, STREAM_SEQ_BYTES_MAX,
    client_end_reason, is_content_type,
};
use crate::mount::Mount;
use crate::number::decimal;
use crate::problem::error;
use crate::request::Headers;
use crate::requirement::Requirement;
use crate::response::Response;
use crate::stream_rights::StreamRights;
use crate::streams::StartPosition;

/// The source of a fork, and the position where it begins (section 4.2).
pub(super) struct Forking {
    /// The source's name.
    pub(super) source: String,
    /// The source's tail if it is left out.
    pub(super) at: Option<Offset>,
    /// Units behind the offset; 0 if it is left out.
    pub(super) sub_offset: u32,
}

impl Forking {
    /// What a fork needs at its source. `streams` is the mount of the streams.
    pub(super) fn requirement(
        &self,
        streams: &Mount,
        rights: &StreamRights,
    ) -> Requirement<'static> {
        let path = format!("{}{}", streams.pattern().as_str(), self.source);
        rights.of_stream(Operation::Read, &self.source, path)
    }
}

/// Whether `Stream-Closed` is `true`; any other value counts as none (section 4.1).
pub(super) fn says_closed(headers: Headers<'_>) -> bool {
    headers
        .first("Stream-Closed")
        .is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"true"))
}

/// `Content-Type`; nothing if it is absent or empty.
pub(super) fn content_type(headers: Headers<'_>) -> Result<Option<&str>, Response> {
    match text(headers, "Content-Type")?.filter(|value| !value.is_empty()) {
        // It is stored with the stream and sent with every response.
        Some(value) if !is_content_type(value) => Err(bad_field(format!(
            "Content-Type is a media type such as text/plain with at most \
                 {CONTENT_TYPE_BYTES_MAX} bytes, not {value:?}"
        ))),
        value => Ok(value),
    }
}

/// The writer's own sequence (section 5.2).
pub(super) fn writer_seq(headers: Headers<'_>) -> Result<Option<&str>, Response> {
    match text(headers, "Stream-Seq")? {
        Some(value) if value.len() > STREAM_SEQ_BYTES_MAX => Err(bad_field(format!(
            "Stream-Seq has {} bytes, at most {STREAM_SEQ_BYTES_MAX} are allowed",
            value.len()
        ))),
        value => Ok(value),
    }
}

/// The three fields of an idempotent producer: all, or none (section 5.2.1).
pub(super) fn producer(headers: Headers<'_>) -> Result<Option<ProducerId>, Response> {
    let id = text(headers, "Producer-Id")?;
    let epoch = text(headers, "Producer-Epoch")?;
    let seq = text(headers, "Producer-Seq")?;
    let (id, epoch, seq) = match (id, epoch, seq) {
        (None, None, None) => return Ok(None),
        (Some(id), Some(epoch), Some(seq)) => (id, epoch, seq),
        _ => {
            return Err(bad_field(
                "Producer-Id, Producer-Epoch and Producer-Seq come together, such as writer-1, 0 and 0, or not at all",
            ));
        }
    };
    if id.is_empty() || id.len() > PRODUCER_ID_BYTES_MAX {
        return Err(bad_field(format!(
            "Producer-Id has 1 to {PRODUCER_ID_BYTES_MAX} bytes, not {}",
            id.len()
        )));
    }
    let number = |name: &str, digits: &str| {
        decimal(digits)
            .filter(|number| *number <= PRODUCER_NUMBER_MAX)
            .ok_or_else(|| {
                bad_field(format!(
                    "{name} is a whole number from 0 to {PRODUCER_NUMBER_MAX} without leading zeros, \
                     not {digits:?}"
                ))
            })
    };
    Ok(Some(ProducerId {
        id: id.into(),
        epoch: number("Producer-Epoch", epoch)?,
        seq: number("Producer-Seq", seq)?,
    }))
}

/// The lifetime of a stream (section 5.1).
pub(super) fn lifetime(headers: Headers<'_>) -> Result<Option<Lifetime>, Response> {
    let ttl = text(headers, "Stream-TTL")?;
    let until = text(headers, "Stream-Expires-At")?;
    match (ttl, until) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(bad_field(
            "Stream-TTL and Stream-Expires-At exclude each other",
        )),
        (Some(ttl), None) => match decimal(ttl) {
            Some(ttl_s) => Ok(Some(Lifetime::Sliding { ttl_s })),
            None => Err(bad_field(format!(
                "Stream-TTL is a whole number of seconds without sign or leading zeros, such as 3600, \
                 not {ttl:?}"
            ))),
        },
        (None, Some(until)) => match WallTime::from_rfc3339(until) {
            Ok(at) => Ok(Some(Lifetime::Until { at })),
            Err(NotRfc3339) => Err(bad_field(format!(
                "Stream-Expires-At is a time such as 2026-01-31T12:00:00Z (RFC 3339), from 1970 on, \
                 not {until:?}"
            ))),
        },
    }
}

/// The durability level at which the request is acknowledged; at a creation, the level of the stream.
pub(super) fn ack(headers: Headers<'_>) -> Result<Option<AckLevel>, Response> {
    let Some(name) = text(headers, "Encke-Ack")? else {
        return Ok(None);
    };
    match name.parse() {
        Ok(level) => Ok(Some(level)),
        Err(_) => Err(bad_field(format!(
            "Encke-Ack is synced, written or accepted, not {name:?}"
        ))),
    }
}

/// Why a request closes its stream.
pub(super) fn end_reason(headers: Headers<'_>) -> Result<Option<EndReason>, Response> {
    let Some(name) = text(headers, "Encke-End-Reason")? else {
        return Ok(None);
    };
    match client_end_reason(name) {
        Some(reason) => Ok(Some(reason)),
        None => Err(bad_field(format!(
            "Encke-End-Reason is done, stopped or failed, not {name:?}"
        ))),
    }
}

/// Whether the request asks the producer to stop.
pub(super) fn asks_stop(headers: Headers<'_>) -> Result<bool, Response> {
    match text(headers, "Encke-Stop")? {
        None => Ok(false),
        Some("true") => Ok(true),
        Some(value) => Err(bad_field(format!("Encke-Stop is true, not {value:?}"))),
    }
}

/// Whether the body is for those who are subscribed now, and not stored.
pub(super) fn is_ephemeral(headers: Headers<'_>) -> Result<bool, Response> {
    match text(headers, "Encke-Ephemeral")? {
        None => Ok(false),
        Some("true") => Ok(true),
        Some(value) => Err(bad_field(format!("Encke-Ephemeral is true, not {value:?}"))),
    }
}

/// Refuses the fields of an append that an ephemeral message can't have, because nothing of it is stored.
pub(super) fn check_ephemeral(headers: Headers<'_>) -> Result<(), Response> {
    match NOT_EPHEMERAL
        .iter()
        .find(|name| headers.first(name).is_some())
    {
        None => Ok(()),
        Some(name) => Err(bad_field(format!(
            "Encke-Ephemeral and {name} exclude each other: an ephemeral message is not stored, and changes nothing of its stream"
        ))),
    }
}

/// Whether the request is one of a reader that stops a stream, so that it needs no right to append: it asks the producer to, or it closes
/// the stream as stopped.
pub(super) fn stops(headers: Headers<'_>) -> StopRequest {
    let is_stopped =
        headers.first("Encke-End-Reason") == Some(EndReason::Stopped.name().as_bytes());
    match headers.first("Encke-Stop") {
        Some(_) => StopRequest::Asks,
        None if is_stopped && says_closed(headers) => StopRequest::Closes,
        None => StopRequest::None,
    }
}

/// What a request does to stop a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopRequest {
    None,
    /// It asks the producer.
    Asks,
    /// It closes the stream, and may append before.
    Closes,
}

/// Where the stream must end for the append to be made: a tag of RFC 9110, section 13.1.1, whose text is the offset, or that alone.
pub(super) fn if_match(headers: Headers<'_>) -> Result<Option<Offset>, Response> {
    let Some(value) = text(headers, "If-Match")? else {
        return Ok(None);
    };
    let quoted = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match quoted.unwrap_or(value).parse() {
        Ok(offset) => Ok(Some(offset)),
        Err(why) => Err(bad_field(format!(
            "If-Match of an append is the offset at which the stream must end, in quotes or without: {why}; this is {value:?}"
        ))),
    }
}

/// The metadata of a stream: an object of JSON, in characters that any field can have.
pub(super) fn metadata(headers: Headers<'_>) -> Result<Option<Box<str>>, Response> {
    let Some(value) = text(headers, "Encke-Metadata")? else {
        return Ok(None);
    };
    let object: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(value);
    if let Err(why) = object {
        return Err(bad_field(format!(
            "Encke-Metadata is an object of JSON, such as {{\"title\":\"…\"}}: {why}"
        )));
    }
    let mut ascii = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            ' '..='~' => ascii.push(character),
            // White space between tokens.
            '\t' => ascii.push(' '),
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    ascii.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    if ascii.len() > METADATA_BYTES_MAX {
        return Err(bad_field(format!(
            "Encke-Metadata has {} bytes, at most {METADATA_BYTES_MAX} are allowed; a character outside of ASCII counts as its escape, such as \\u00e4",
            ascii.len()
        )));
    }
    Ok(Some(ascii.into()))
}

/// The time in which a producer must append something.
pub(super) fn producer_timeout_s(headers: Headers<'_>) -> Result<Option<u32>, Response> {
    let Some(value) = text(headers, "Encke-Producer-Timeout")? else {
        return Ok(None);
    };
    seconds("Encke-Producer-Timeout", value, PRODUCER_TIMEOUT_S_MAX).map(Some)
}

/// For how long a signed URL to read the new stream is good that the response has.
pub(super) fn read_url_s(headers: Headers<'_>) -> Result<Option<u32>, Response> {
    let Some(value) = text(headers, "Encke-Read-URL")? else {
        return Ok(None);
    };
    seconds("Encke-Read-URL", value, READ_URL_S_MAX).map(Some)
}

/// Whose a new stream is: the caller's own, or that of a subject of an issuer.
pub(super) fn owner(headers: Headers<'_>) -> Result<Option<NamedOwner<'_>>, Response> {
    let Some(value) = text(headers, "Encke-Owner")? else {
        return Ok(None);
    };
    let (subject, issuer) = match value.split_once("; issuer=") {
        Some((subject, issuer)) => (subject, Some(issuer.trim_matches('"'))),
        None => (value, None),
    };
    if subject.is_empty() || value.len() > OWNER_BYTES_MAX {
        return Err(bad_field(format!(
            "Encke-Owner is self, or the subject of a token, of at most {OWNER_BYTES_MAX} bytes; with several issuers SUBJECT; issuer=NAME"
        )));
    }
    Ok(Some(match (subject, issuer) {
        ("self", None) => NamedOwner::Caller,
        (subject, issuer) => NamedOwner::Subject { subject, issuer },
    }))
}

/// Refuses an owner whose name no field can have.
pub(super) fn check_owner(name: &str) -> Result<(), Response> {
    match name.len() > OWNER_BYTES_MAX || name.chars().any(char::is_control) {
        false => Ok(()),
        true => Err(bad_field(format!(
            "the name of an owner has at most {OWNER_BYTES_MAX} bytes and no control characters; this one has {} bytes",
            name.len()
        ))),
    }
}

/// Whom a creation names as the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedOwner<'a> {
    Caller,
    Subject {
        subject: &'a str,
        issuer: Option<&'a str>,
    },
}

/// Refuses fields that only another method has, so that none is ignored that changes something.
pub(super) fn refuse(
    headers: Headers<'_>,
    names: &[&'static str],
    method: &str,
) -> Result<(), Response> {
    match names.iter().find(|name| headers.first(name).is_some()) {
        None => Ok(()),
        Some(name) => Err(bad_field(format!("{name} is a field of {method} only"))),
    }
}

/// A time in seconds, from 1 up to a bound.
fn seconds(name: &str, value: &str, max: u32) -> Result<u32, Response> {
    let number = decimal(value).and_then(|seconds| u32::try_from(seconds).ok());
    number
        .filter(|seconds| (1..=max).contains(seconds))
        .ok_or_else(|| {
            bad_field(format!(
                "{name} is a whole number of seconds from 1 to {max}, not {value:?}"
            ))
        })
}

/// Fields of a request that changes its stream, or of its acknowledgement.
const NOT_EPHEMERAL: [&str; 11] = [
    "Producer-Id",
    "Producer-Epoch",
    "Producer-Seq",
    "Stream-Seq",
    "Stream-Closed",
    "If-Match",
    "Encke-Ack",
    "Encke-End-Reason",
    "Encke-Metadata",
    "Encke-Stop",
    "Encke-Truncate",
];

/// Bytes of a stream's metadata, which is stored with the stream and sent with each HEAD.
const METADATA_BYTES_MAX: usize = 2048;

/// The longest time that a producer may be silent: a week.
const PRODUCER_TIMEOUT_S_MAX: u32 = 7 * 24 * 3600;

/// The longest time that a URL to read a new stream is good for: a day.
const READ_URL_S_MAX: u32 = 24 * 3600;

/// Bytes of an owner's name.
const OWNER_BYTES_MAX: usize = 512;

/// The retention of a stream, at its creation.
pub(super) fn retention(headers: Headers<'_>) -> Result<Option<Retention>, Response> {
    let Some(value) = text(headers, "Encke-Retention")? else {
        return Ok(None);
    };
    match value.parse() {
        Ok(retention) => Ok(Some(retention)),
        Err(why) => Err(bad_field(format!(
            "Encke-Retention: {why}; this is {value:?}"
        ))),
    }
}

/// The position before which a truncation removes everything, if the request is one: `None` inside stands for `now`.
pub(super) fn truncation(headers: Headers<'_>) -> Result<Option<Option<Offset>>, Response> {
    let Some(value) = text(headers, "Encke-Truncate")? else {
        return Ok(None);
    };
    match value.parse() {
        Ok(StartPosition::Now) => Ok(Some(None)),
        Ok(StartPosition::At(offset)) => Ok(Some(Some(offset))),
        Ok(StartPosition::Start) | Err(_) => Err(bad_field(format!(
            "Encke-Truncate is an offset that this stream gave, or now, not {value:?}"
        ))),
    }
}

/// Whether the request removes records.
pub(super) fn truncates(headers: Headers<'_>) -> bool {
    headers.first("Encke-Truncate").is_some()
}

/// The fork that a creation asks for (section 4.2). `streams` is the mount of the streams.
pub(super) fn forking(headers: Headers<'_>, streams: &Mount) -> Result<Option<Forking>, Response> {
    let root = streams.pattern().as_str();
    let from = text(headers, "Stream-Forked-From")?;
    let at = text(headers, "Stream-Fork-Offset")?;
    let sub_offset = text(headers, "Stream-Fork-Sub-Offset")?;
    let Some(from) = from else {
        if at.is_some() || sub_offset.is_some() {
            return Err(bad_field(
                "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From",
            ));
        }
        return Ok(None);
    };
    let whole;
    let path = match from.starts_with('/') {
        true => from,
        false => {
            whole = format!("{root}{from}");
            &whole
        }
    };
    // The same form as of a request's path: what is authorised is what is found.
    let path = CanonicalPath::parse(path)
        .map_err(|why| bad_field(format!("Stream-Forked-From: {why}")))?;
    let source = streams.match_path(path.as_str()).ok_or_else(|| {
        bad_field(format!(
            "Stream-Forked-From is the path of a stream, such as {root}NAME"
        ))
    })?;
    let sub_offset = match sub_offset {
        None => 0,
        Some(digits) => decimal(digits)
            .and_then(|units| u32::try_from(units).ok())
            .ok_or_else(|| {
                bad_field(format!(
                    "Stream-Fork-Sub-Offset is a whole number from 0 to {}, not {digits:?}",
                    u32::MAX
                ))
            })?,
    };
    let at = match at {
        None if sub_offset > 0 => {
            return Err(bad_field("Stream-Fork-Sub-Offset needs Stream-Fork-Offset"));
        }
        None => None,
        Some("-1") => Some(Offset::START),
        Some(token) => match token.parse() {
            Ok(at) => Some(at),
            Err(why) => {
                return Err(bad_field(format!(
                    "Stream-Fork-Offset: {why}, or -1; this is {token:?}"
                )));
            }
        },
    };
    Ok(Some(Forking {
        source: source.to_owned(),
        at,
        sub_offset,
    }))
}

/// The answer to a field that says nothing sensible.
fn bad_field(why: impl Into<String>) -> Response {
    error(400, "bad_field", why.into())
}

fn text<'a>(headers: Headers<'a>, name: &'static str) -> Result<Option<&'a str>, Response> {
    headers
        .text(name)
        .map_err(|_| bad_field(format!("{name} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_plain() {
        for (digits, number) in [("0", 0), ("7", 7), ("18446744073709551615", u64::MAX)] {
            assert_eq!(decimal(digits), Some(number));
        }
        for digits in [
            "",
            "00",
            "01",
            "+1",
            "-1",
            "-0",
            "1.0",
            "1e3",
            " 1",
            "1 ",
            "0x1",
            "١",
            "1_000",
            "18446744073709551616",
        ] {
            assert_eq!(decimal(digits), None, "{digits}");
        }
    }

    proptest! {
        #[test]
        fn no_time_panics(text in "\\PC{0,40}", near in "[0-9:TZ+.-]{15,35}") {
            let _ = WallTime::from_rfc3339(&text);
            let _ = WallTime::from_rfc3339(&near);
        }

        #[test]
        fn what_we_say_is_what_we_read(ms in 0..253_402_128_000_000_u64) {
            let said = crate::timestamp::timestamp(WallTime::from_ms(ms));
            prop_assert_eq!(WallTime::from_rfc3339(&said), Ok(WallTime::from_ms(ms)));
        }
    }
}
