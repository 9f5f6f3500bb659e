//! Lines of JSON for a client of several streams. Each line that moves the client's position has it as `id`.

use std::io::Write;

use encke_stream::EphemeralMessage;

use super::encode::{end_object, ephemeral_object, gap_object, members_form, stop_object};
use super::id;
use crate::encoder::{Farewell, MergeEncoder, MergedHead, MergedPosition, StreamEnd};
use crate::long_record::{DataForm, RecordForm};
use crate::ndjson;

/// Encodes each record as a line, with the members that an event's data has.
#[derive(Debug)]
pub(super) struct MergedLines {
    /// Records have their times.
    pub(super) has_times: bool,
}

impl MergeEncoder for MergedLines {
    fn form(&self, _label: &str, record: &MergedHead<'_>) -> RecordForm {
        let mut head = Vec::new();
        begin(Some(record.at), &mut head);
        head.push(b',');
        members_form(record, self.has_times, DataForm::FlatMessages).within(head, b"}\n")
    }

    fn ended(
        &self,
        _label: &str,
        name: &str,
        end: StreamEnd,
        at: Option<MergedPosition<'_>>,
        out: &mut Vec<u8>,
    ) {
        begin(at, out);
        let comma = if at.is_some() { "," } else { "" };
        // Writing to a vector does not fail.
        let _ = writeln!(out, "{comma}\"end\":{}}}", end_object(name, end));
    }

    fn stop_asked(&self, _label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        begin(Some(at), out);
        // Writing to a vector does not fail.
        let _ = writeln!(out, ",\"stop\":{}}}", stop_object(name));
    }

    fn gap(&self, _label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        begin(Some(at), out);
        // Writing to a vector does not fail.
        let _ = writeln!(out, ",\"gap\":{}}}", gap_object(name));
    }

    fn position(&self, _label: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        begin(Some(at), out);
        out.extend_from_slice(b"}\n");
    }

    fn ephemeral(&self, _label: &str, message: &EphemeralMessage, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"ephemeral\":");
        ndjson::json(&ephemeral_object(message, self.has_times), out);
        out.extend_from_slice(b"}\n");
    }

    fn farewell(&self, _label: &str, farewell: &Farewell, out: &mut Vec<u8>) {
        ndjson::disconnect(farewell.why, farewell.resumable, out);
    }

    fn heartbeat(&self) -> &'static [u8] {
        ndjson::HEARTBEAT
    }
}

/// Appends a line with a remark for people.
pub(super) fn warning(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"warning\":");
    ndjson::string(text, out);
    out.extend_from_slice(b"}\n");
}

/// Begins a line, with the client's position if it is stated.
fn begin(at: Option<MergedPosition<'_>>, out: &mut Vec<u8>) {
    out.push(b'{');
    if let Some(at) = at {
        out.extend_from_slice(b"\"id\":\"");
        id::write_value(&at, out);
        out.push(b'"');
    }
}
