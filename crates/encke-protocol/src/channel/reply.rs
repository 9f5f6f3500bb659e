//! Responses to messages, as messages.

use encke_stream::{Offset, Refusal};

use super::merged::reason;
use super::object::MessageWriter;
use crate::encoder::StreamEnd;
use crate::ndjson;
use crate::problem;
use crate::response::Response;

/// What a message is about: the stream or the subscription that its response names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// One stream.
    Stream(Box<str>),
    /// Several streams, or a pattern, each by its name.
    Several(Box<[Box<str>]>),
}

/// What a response repeats of its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageTag {
    /// The client's own number.
    pub(super) id: Option<u64>,
    /// What the message is about, if it is known.
    pub(super) subject: Option<Subject>,
}

impl Subject {
    /// The names of streams and patterns, in the order of the client.
    pub(super) fn names(&self) -> &[Box<str>] {
        match self {
            Subject::Stream(name) => std::slice::from_ref(name),
            Subject::Several(names) => names,
        }
    }

    /// The name of the subscription: the names separated by commas.
    pub(super) fn label(&self) -> String {
        self.names().join(",")
    }

    fn write(&self, message: &mut MessageWriter<'_>) {
        match self {
            Subject::Stream(name) => message.text("stream", name),
            Subject::Several(_) => message.text("subscription", &self.label()),
        };
    }
}

impl MessageTag {
    /// The response that is a message of a type, with further members.
    pub(super) fn reply(
        &self,
        message_type: &'static str,
        members: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Response {
        let mut body = Vec::new();
        let mut message = MessageWriter::new(message_type, &mut body);
        self.write(&mut message);
        members(&mut message);
        message.end();
        Response::new(200).body(body)
    }

    /// The response to a message that is refused: the same status and code, as a message.
    pub(super) fn error(&self, refused: Response) -> Response {
        self.error_with(refused, |_| ())
    }

    /// The response to an append that is refused.
    pub(super) fn refusal(&self, refusal: &Refusal) -> Response {
        self.error_with(problem::refused(refusal), |message| match refusal {
            Refusal::Closed { tail, end } => {
                message.plain("offset", tail);
                if let Some(end) = end {
                    message.plain("endReason", end);
                }
            }
            Refusal::TailDiffers { tail, .. } => {
                message.plain("offset", tail);
            }
            Refusal::StaleEpoch { current } => {
                message.literal("epoch", current);
            }
            Refusal::SeqGap { expected, received } => {
                message
                    .literal("expected", expected)
                    .literal("received", received);
            }
            _ => {}
        })
    }

    fn error_with(
        &self,
        refused: Response,
        members: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Response {
        let (code, why) = problem::code_and_message(&refused);
        let mut body = Vec::new();
        let mut message = MessageWriter::new("error", &mut body);
        self.write(&mut message);
        message.literal("status", refused.status);
        message.text("code", &code).text("message", &why);
        members(&mut message);
        if let Some(retry_s) = problem::retry_after_s(&refused) {
            message.literal("retryAfter", retry_s);
        }
        message.end();
        Response::new(refused.status)
            .audited(refused.audit)
            .body(body)
    }

    fn write(&self, message: &mut MessageWriter<'_>) {
        if let Some(id) = self.id {
            message.literal("id", id);
        }
        if let Some(subject) = &self.subject {
            subject.write(message);
        }
    }
}

/// Adds the streams of a subscription that have ended before it, if there are some.
pub(super) fn write_ended<'a>(
    message: &mut MessageWriter<'_>,
    ended: impl Iterator<Item = (&'a str, StreamEnd)>,
) {
    let mut ended = ended.peekable();
    if ended.peek().is_none() {
        return;
    }
    let out = message.value("ended");
    for (number, (name, end)) in ended.enumerate() {
        out.push(if number == 0 { b'[' } else { b',' });
        out.extend_from_slice(b"{\"stream\":");
        ndjson::string(name, out);
        out.extend_from_slice(format!(",\"reason\":\"{}\"}}", reason(end)).as_bytes());
    }
    out.push(b']');
}

/// Adds that a subscription begins at the end of its stream.
pub(super) fn write_start(message: &mut MessageWriter<'_>, from: Offset, is_at_tail: bool) {
    message.plain("offset", from);
    if is_at_tail {
        message.literal("upToDate", true);
    }
}
