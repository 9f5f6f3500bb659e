//! The records of several streams as messages.

use encke_stream::EphemeralMessage;

use super::object::MessageWriter;
use crate::encoder::{Farewell, MergeEncoder, MergedHead, MergedPosition, StreamEnd};
use crate::events::position_text;
use crate::long_record::{RecordForm, WrittenData};
use crate::ndjson::TIME_MEMBER;

/// Encodes each record as a message. The label of a feed is the name of its subscription.
#[derive(Debug)]
pub(super) struct MergedMessages {
    /// Records have their times.
    pub(super) has_times: bool,
}

impl MergeEncoder for MergedMessages {
    fn form(&self, label: &str, record: &MergedHead<'_>) -> RecordForm {
        let facts = record.facts;
        let mut head = Vec::new();
        let mut message = begin("records", label, Some(record.at), &mut head);
        message
            .text("stream", record.name)
            .plain("offset", facts.end);
        if self.has_times {
            message.literal(TIME_MEMBER, facts.time.as_ms());
        }
        let (data, close) = message.data(facts.data);
        let tail = [close, b"}"].concat();
        RecordForm { head, data, tail }
    }

    fn ended(
        &self,
        label: &str,
        name: &str,
        end: StreamEnd,
        at: Option<MergedPosition<'_>>,
        out: &mut Vec<u8>,
    ) {
        let mut message = begin("ended", label, at, out);
        message.text("stream", name).plain("reason", reason(end));
        if let StreamEnd::Closed(Some(end)) = end {
            message.plain("endReason", end);
        }
        message.end();
    }

    fn stop_asked(&self, label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        let mut message = begin("stop", label, Some(at), out);
        message.text("stream", name).end();
    }

    fn gap(&self, label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        let mut message = begin("gap", label, Some(at), out);
        message
            .text("stream", name)
            .plain("reason", "no_longer_kept");
        message.end();
    }

    fn position(&self, label: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        begin("position", label, Some(at), out).end();
    }

    fn farewell(&self, label: &str, farewell: &Farewell, out: &mut Vec<u8>) {
        let mut message = begin("disconnected", label, None, out);
        message.text("reason", farewell.why);
        message.literal("resumable", farewell.resumable).end();
    }

    fn ephemeral(&self, label: &str, ephemeral: &EphemeralMessage, out: &mut Vec<u8>) {
        let mut message = begin("ephemeral", label, None, out);
        write_ephemeral(ephemeral, self.has_times, &mut message);
        message.end();
    }

    /// The wire pings.
    fn heartbeat(&self) -> &'static [u8] {
        b""
    }
}

/// Why a stream has no further records, in one word.
pub(super) fn reason(end: StreamEnd) -> &'static str {
    match end {
        StreamEnd::Closed(_) => "closed",
        StreamEnd::Deleted => "deleted",
    }
}

/// Adds an ephemeral message: its stream, its time if that is asked for, and its data.
pub(super) fn write_ephemeral(
    ephemeral: &EphemeralMessage,
    has_times: bool,
    message: &mut MessageWriter<'_>,
) {
    message.text("stream", &ephemeral.label.name);
    if has_times {
        message.literal(TIME_MEMBER, ephemeral.time.as_ms());
    }
    let bytes = &ephemeral.data.bytes;
    let (form, close) = message.data(WrittenData::of(ephemeral.label.kind, bytes));
    form.write_whole(bytes, message.out());
    message.out().extend_from_slice(close);
}

/// Begins a message of a subscription, with the client's position behind it if it is stated.
fn begin<'o>(
    message_type: &'static str,
    label: &str,
    at: Option<MergedPosition<'_>>,
    out: &'o mut Vec<u8>,
) -> MessageWriter<'o> {
    let mut message = MessageWriter::new(message_type, out);
    message.text("subscription", label);
    if let Some(at) = at {
        message.plain("position", position_text(&at));
    }
    message
}
