//! An append as all protocols over streams know it: its bounds, and the command that it becomes.

use std::sync::Arc;

use encke_clock::Now;
use encke_stream::{
    AckLevel, Append, AppendExtras, Command, Data, EndReason, MediaKind, ProducerId, Stream, Target,
};

use crate::json;
use crate::problem::{error, rejected};
use crate::response::Response;
use crate::streams::StreamAccess;

/// A request to append data to a stream, to close it, or both (Durable Streams, sections 5.2 and 5.3).
#[derive(Debug)]
pub(crate) struct AppendRequest<'a> {
    /// The type of the data. `None`: the stream's own.
    pub(crate) content_type: Option<&'a str>,
    /// No append follows.
    pub(crate) closes: bool,
    /// The idempotent producer that sends it.
    pub(crate) producer: Option<ProducerId>,
    /// The writer's own sequence.
    pub(crate) writer_seq: Option<&'a str>,
    /// The durability level of the acknowledgement; the stream's level if `None`.
    pub(crate) ack: Option<AckLevel>,
    /// The data as the client sent it.
    pub(crate) body: Vec<u8>,
    /// What few appends have.
    pub(crate) extras: AppendExtras,
}

impl AppendRequest<'_> {
    /// Refuses a request that does nothing.
    pub(crate) fn check_not_empty(&self) -> Result<(), Response> {
        let changes = self.closes || self.extras.asks_stop || self.extras.metadata.is_some();
        match self.body.is_empty() && !changes {
            false => Ok(()),
            true => Err(error(
                400,
                "empty_body",
                "an append needs a body, unless it closes the stream, asks to stop or sets metadata",
            )),
        }
    }

    /// The command for it, and whether it has data.
    pub(crate) fn command(self, stream: Arc<Stream>) -> Result<(Command, bool), Response> {
        let producer = self.producer.as_ref();
        if producer.is_some_and(|producer| !stream.has_room_for_producer(&producer.id)) {
            return Err(rejected(
                429,
                "producer_memory",
                "the producers of all streams take more memory than tuning.producer-memory allows, and this stream has many: use a producer that it knows, append without one, or try again",
                PRODUCER_RETRY_S,
            ));
        }
        let asked = self.content_type;
        let differs = asked.filter(|asked| !stream.media.matches(asked));
        let is_json = differs.is_none() && stream.media.kind == MediaKind::Json;
        let data = match is_json && !self.body.is_empty() {
            true => match messages(self.body)? {
                Data { units: 0, .. } => {
                    return Err(error(
                        400,
                        "empty_array",
                        "the array has no messages, and an append needs at least one",
                    ));
                }
                data => data,
            },
            false => bytes(self.body)?,
        };
        let has_data = data.units > 0;
        let command = Command::Append(Append {
            content_type: differs.map(Box::from),
            producer: self.producer,
            writer_seq: self.writer_seq.map(Box::from),
            closes: self.closes,
            ack: self.ack,
            data,
            extras: self.extras,
            ..Append::to(Target::Known(stream))
        });
        Ok((command, has_data))
    }
}

/// Whether a change of the stream of that name waits for the order of its log. A change is decided in the order anyway, so it waits only
/// where this node knows no stream that it could change. `content_type` is the one that the request names.
pub(crate) fn awaits_order(
    streams: &StreamAccess,
    name: &str,
    content_type: Option<&str>,
    now: Now,
) -> bool {
    match streams.known(name) {
        Some(_) => match streams.find(name, now) {
            // A stream of another type may have the name by now.
            Ok(stream) => content_type.is_some_and(|asked| !stream.media.matches(asked)),
            Err(_) => true,
        },
        // It is loaded first.
        None => false,
    }
}

/// The messages of a body of JSON.
pub(crate) fn messages(body: Vec<u8>) -> Result<Data, Response> {
    json::messages(body).map_err(|why| error(400, "bad_json", why.to_string()))
}

/// A body of any other type.
pub(crate) fn bytes(bytes: Vec<u8>) -> Result<Data, Response> {
    match u32::try_from(bytes.len()) {
        Ok(units) => Ok(Data { bytes, units }),
        Err(_) => Err(error(
            413,
            "too_large",
            format!("a record holds at most {} bytes", u32::MAX),
        )),
    }
}

/// Whether a content type can be stored with a stream: a type and a subtype (RFC 9110, section 8.3.1) within the bound. Parameters may be
/// anything that fits in a field.
pub(crate) fn is_content_type(value: &str) -> bool {
    let is_token = |part: &str| {
        let is_allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !part.is_empty() && part.bytes().all(is_allowed)
    };
    let essence = value.split(';').next().unwrap_or(value);
    let parts = essence.trim_matches([' ', '\t']).split_once('/');
    value.len() <= CONTENT_TYPE_BYTES_MAX
        && parts.is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
        && !value.contains(char::is_control)
}

/// The largest number of a producer: what JavaScript can count up to (Durable Streams, section 5.2.1).
pub(crate) const PRODUCER_NUMBER_MAX: u64 = (1 << 53) - 1;

/// The reason for an end that a client gives. That a stream is abandoned the server says.
pub(crate) fn client_end_reason(name: &str) -> Option<EndReason> {
    let known = [EndReason::Done, EndReason::Stopped, EndReason::Failed];
    known.into_iter().find(|reason| reason.name() == name)
}

/// The command that asks the producer of a stream to stop.
pub(crate) fn stop(stream: Arc<Stream>, ack: Option<AckLevel>) -> Command {
    let mut append = Append::to(Target::Known(stream));
    append.ack = ack;
    append.extras.asks_stop = true;
    Command::Append(append)
}

/// Whether a text can be the value of a header field (RFC 9110, section 5.5), so that writers over HTTP can name it too.
pub(crate) fn fits_field(text: &str) -> bool {
    let is_control = |byte: u8| byte != b'\t' && byte.is_ascii_control();
    !text.bytes().any(is_control) && text.trim_matches([' ', '\t']).len() == text.len()
}

/// Seconds after which a further producer may find room: the next checkpoint is stored by then, and streams have left memory.
const PRODUCER_RETRY_S: u64 = 5;

/// Bytes of a producer's id, which has at least one.
pub(crate) const PRODUCER_ID_BYTES_MAX: usize = 256;

/// Bytes of a content type, which is stored with every stream of the type and sent with every response.
pub(crate) const CONTENT_TYPE_BYTES_MAX: usize = 256;

/// Bytes of a writer's own sequence, which is stored with every stream that has such writers.
pub(crate) const STREAM_SEQ_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_two_parts() {
        for value in [
            "text/plain",
            "a/b",
            "A/B; charset=\"x y\"",
            "a/b;",
            "x-y/z.w+json ; q",
        ] {
            assert!(is_content_type(value), "{value}");
        }
        let long = format!("a/{}", "b".repeat(CONTENT_TYPE_BYTES_MAX));
        for value in [
            ".", "text", "text/", "/plain", "a/b/c", "a b/c", "a/ b", "ä/b", "a/b;\x01", &long,
        ] {
            assert!(!is_content_type(value), "{value}");
        }
    }
}
