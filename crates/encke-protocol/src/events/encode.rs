//! Server-sent events as they are written.

use std::io::Write;

use encke_stream::EphemeralMessage;

use super::id;
use crate::encoder::{Farewell, MergeEncoder, MergedHead, MergedPosition, StreamEnd};
use crate::long_record::{DataForm, RecordFacts, RecordForm, WrittenData};
use crate::ndjson;
use crate::sse::{self, lines};

/// Encodes each record as an event whose id is the subscriber's position.
#[derive(Debug)]
pub(super) struct MergedEvents {
    /// Records have their times.
    pub(super) has_times: bool,
}

impl MergeEncoder for MergedEvents {
    fn form(&self, _label: &str, record: &MergedHead<'_>) -> RecordForm {
        let mut head = Vec::new();
        id::write(&record.at, &mut head);
        head.extend_from_slice(b"data:{");
        let form = members_form(record, self.has_times, DataForm::EventMessages);
        form.within(head, b"}\n\n")
    }

    fn ended(
        &self,
        _label: &str,
        name: &str,
        end: StreamEnd,
        at: Option<MergedPosition<'_>>,
        out: &mut Vec<u8>,
    ) {
        if let Some(at) = at {
            id::write(&at, out);
        }
        // Writing to a vector does not fail.
        let _ = write!(out, "event:end\ndata:{}\n\n", end_object(name, end));
    }

    fn stop_asked(&self, _label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        id::write(&at, out);
        // Writing to a vector does not fail.
        let _ = write!(out, "event:stop\ndata:{}\n\n", stop_object(name));
    }

    fn gap(&self, _label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        id::write(&at, out);
        // Writing to a vector does not fail.
        let _ = write!(out, "event:gap\ndata:{}\n\n", gap_object(name));
    }

    fn position(&self, _label: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        id::write(&at, out);
        out.push(b'\n');
    }

    fn ephemeral(&self, _label: &str, message: &EphemeralMessage, out: &mut Vec<u8>) {
        out.extend_from_slice(b"event:ephemeral\n");
        lines(&ephemeral_object(message, self.has_times), out);
        out.push(b'\n');
    }

    /// A comment for people, and an event for scripts, which see no comments. It moves no position.
    fn farewell(&self, _label: &str, farewell: &Farewell, out: &mut Vec<u8>) {
        let then = match farewell.resumable {
            true => "reconnect with the id of the last event",
            false => "reconnect without an id, a pattern with @-1, for what is left",
        };
        // Writing to a vector does not fail.
        let _ = writeln!(out, ": closed by the server: {}; {then}", farewell.why);
        sse::retry(farewell.retry_ms, out);
        out.extend_from_slice(b"event:disconnect\ndata:");
        sse::disconnect(farewell, out);
        out.extend_from_slice(b"\n\n");
    }

    fn heartbeat(&self) -> &'static [u8] {
        sse::HEARTBEAT
    }
}

/// That a stream has no further records, as an object.
pub(super) fn end_object(name: &str, end: StreamEnd) -> String {
    let name = serde_json::Value::from(name);
    match end {
        StreamEnd::Closed(None) => format!("{{\"stream\":{name},\"why\":\"closed\"}}"),
        StreamEnd::Closed(Some(reason)) => {
            format!("{{\"stream\":{name},\"why\":\"closed\",\"endReason\":\"{reason}\"}}")
        }
        StreamEnd::Deleted => format!("{{\"stream\":{name},\"why\":\"deleted\"}}"),
    }
}

/// That the producer of a stream is asked to stop, as an object.
pub(super) fn stop_object(name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!("{{\"stream\":{name}}}")
}

/// That a stream lacks records that are removed, as an object.
pub(super) fn gap_object(name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!("{{\"stream\":{name},\"why\":\"no_longer_kept\"}}")
}

/// An ephemeral message as an object: what a record has, without a position.
pub(crate) fn ephemeral_object(message: &EphemeralMessage, has_times: bool) -> Vec<u8> {
    let data = &message.data.bytes;
    let name = serde_json::Value::from(&*message.label.name);
    let mut head = format!("{{\"stream\":{name}").into_bytes();
    if has_times {
        ndjson::time_member(message.time, &mut head);
    }
    let kind = WrittenData::of(message.label.kind, data);
    let form = data_form(kind, DataForm::Messages).within(head, b"}");
    let mut object = Vec::new();
    form.write_whole(data, &mut object);
    object
}

/// A record as the members of an object: its stream, the offset behind it, its time if that is asked for, and its data in the form of
/// the stream's type; messages in that form.
pub(super) fn members_form(
    record: &MergedHead<'_>,
    has_times: bool,
    messages: DataForm,
) -> RecordForm {
    let name = serde_json::Value::from(record.name);
    let RecordFacts {
        data, end, time, ..
    } = record.facts;
    let mut head = format!("\"stream\":{name},\"nextOffset\":\"{end}\"").into_bytes();
    if has_times {
        ndjson::time_member(time, &mut head);
    }
    data_form(data, messages).within(head, b"")
}

/// Data as a further member of an object.
fn data_form(data: WrittenData, messages: DataForm) -> RecordForm {
    let (head, data, tail) = match data {
        WrittenData::Messages => (&b",\"messages\":["[..], messages, &b"]"[..]),
        WrittenData::Text => (&b",\"text\":\""[..], DataForm::String, &b"\""[..]),
        WrittenData::Bytes => (&b",\"base64\":\""[..], DataForm::Base64, &b"\""[..]),
    };
    RecordForm {
        head: head.to_vec(),
        data,
        tail: tail.to_vec(),
    }
}
