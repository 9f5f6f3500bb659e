//! The records of one stream as messages, shared by all channels that are at the same position.

use encke_clock::WallTime;
use encke_stream::{EphemeralMessage, Item, MediaKind, Offset};

use super::merged::write_ephemeral;
use super::object::MessageWriter;
use crate::encoded_run::EncodedRun;
use crate::encoder::{Encoder, Farewell, LINE_OVERHEAD, RecordHead, Variant};
use crate::long_record::RecordForm;
use crate::ndjson::TIME_MEMBER;
use crate::payload::{EVENT_BYTES, join, shared_overhead, together};
use crate::run::Run;
use crate::text;

/// Encodes records as messages of the type `records`. Behind each mark stands one whole message.
///
/// The end of a closed stream is a member of its last message, and no message of its own: a subscriber that is left between the two
/// has the same position, and would never get the other one.
#[derive(Debug)]
pub(crate) struct ChannelRecords {
    /// Each message has the data of one append, and its time.
    pub(crate) has_times: bool,
}

impl Encoder for ChannelRecords {
    fn encode(&self, variant: Variant<'_>, run: &Run<'_>, _now: WallTime, out: &mut EncodedRun) {
        let marks_before = out.marks.len();
        match variant.kind {
            MediaKind::Text => self.encode_text(variant.name, run, out),
            MediaKind::Json | MediaKind::Binary => self.encode_items(variant, run, out),
        }
        // A subscriber that is at the tail with nothing to read learns that.
        if out.marks.len() == marks_before && (run.at_tail || run.closed || run.stop_asked) {
            let at = out.withheld_at.unwrap_or(run.end);
            match run.closed {
                true => {
                    let mut message = MessageWriter::new("ended", &mut out.bytes);
                    message.text("stream", variant.name);
                    message.plain("reason", "closed").plain("offset", at);
                    write_end_reason(&mut message, run);
                    message.end();
                }
                false => {
                    let mut message = MessageWriter::new("position", &mut out.bytes);
                    message.text("stream", variant.name).plain("offset", at);
                    message.literal("upToDate", run.at_tail);
                    write_stop(&mut message, run);
                    message.end();
                }
            }
            out.mark(at);
        }
    }

    fn overhead(&self, variant: Variant<'_>, item: &Item<'_>) -> usize {
        let message = LINE_OVERHEAD + 2 * variant.name.len();
        match self.has_times {
            true => message,
            false => shared_overhead(variant.kind, item, message),
        }
    }

    fn form(&self, variant: Variant<'_>, record: &RecordHead<'_>, _now: WallTime) -> RecordForm {
        let facts = record.facts;
        let mut head = Vec::new();
        let mut message = self.begin(variant.name, facts.end, facts.time, &mut head);
        let (data, close) = message.data(facts.data);
        let tail = [close, b"}"].concat();
        RecordForm { head, data, tail }
    }

    fn farewell(
        &self,
        variant: Variant<'_>,
        farewell: &Farewell,
        _now: WallTime,
        out: &mut Vec<u8>,
    ) {
        let mut message = MessageWriter::new("disconnected", out);
        message.text("stream", variant.name);
        message.text("reason", farewell.why);
        if let Some(at) = farewell.at {
            message.plain("offset", at);
        }
        message.literal("resumable", farewell.resumable).end();
    }

    fn deleted(&self, variant: Variant<'_>, out: &mut Vec<u8>) {
        let mut message = MessageWriter::new("ended", out);
        message.text("stream", variant.name);
        message.plain("reason", "deleted").end();
    }

    fn ephemeral(&self, ephemeral: &EphemeralMessage, out: &mut Vec<u8>) {
        let mut message = MessageWriter::new("ephemeral", out);
        write_ephemeral(ephemeral, self.has_times, &mut message);
        message.end();
    }

    fn has_ephemeral(&self) -> bool {
        true
    }

    /// The wire pings.
    fn heartbeat(&self) -> &'static [u8] {
        b""
    }

    fn names_streams(&self) -> bool {
        true
    }
}

impl ChannelRecords {
    fn encode_items(&self, variant: Variant<'_>, run: &Run<'_>, out: &mut EncodedRun) {
        let mut items = run.items;
        let mut payload = Vec::new();
        while let Some(first) = items.first() {
            let count = match self.has_times {
                true => 1,
                false => together(items),
            };
            let (now, later) = items.split_at(count);
            items = later;
            payload.clear();
            join(variant.kind, now, &mut payload);
            let is_last = items.is_empty();
            let end = match now.last() {
                // Changes without data may follow the last record.
                Some(last) if !is_last => last.end,
                _ => run.end,
            };
            let mut message = self.begin(variant.name, end, first.time, &mut out.bytes);
            match variant.kind {
                MediaKind::Json => message.value("data").extend_from_slice(&payload),
                _ => {
                    message.base64("base64", &payload);
                }
            }
            finish(message, run, is_last);
            out.mark(end);
        }
    }

    /// Encodes records of text. Where a cut character is withheld, the last position is before it.
    fn encode_text(&self, name: &str, run: &Run<'_>, out: &mut EncodedRun) {
        let bytes_max = match self.has_times {
            // Each record is a message of its own.
            true => 0,
            false => EVENT_BYTES,
        };
        let (parts, withheld_at) = text::split(run, bytes_max);
        out.withheld_at = withheld_at;
        let count = parts.len();
        for (number, part) in (1..).zip(&parts) {
            let mut message = self.begin(name, part.end, part.time, &mut out.bytes);
            match std::str::from_utf8(&part.bytes)
                .ok()
                .filter(|_| part.is_text)
            {
                Some(text) => message.text("text", text),
                None => message.base64("base64", &part.bytes),
            };
            finish(message, run, number == count);
            out.mark(part.end);
        }
    }

    fn begin<'o>(
        &self,
        name: &str,
        end: Offset,
        time: WallTime,
        out: &'o mut Vec<u8>,
    ) -> MessageWriter<'o> {
        let mut message = MessageWriter::new("records", out);
        message.text("stream", name).plain("offset", end);
        if self.has_times {
            message.literal(TIME_MEMBER, time.as_ms());
        }
        message
    }
}

/// Ends a message; the last one of a run says what follows it.
fn finish(mut message: MessageWriter<'_>, run: &Run<'_>, is_last: bool) {
    if is_last && (run.at_tail || run.closed) {
        message.literal("upToDate", true);
    }
    if is_last && run.closed {
        message.plain("ended", "closed");
        write_end_reason(&mut message, run);
    }
    if is_last {
        write_stop(&mut message, run);
    }
    message.end();
}

/// Adds why the stream was closed, if that was said.
fn write_end_reason(message: &mut MessageWriter<'_>, run: &Run<'_>) {
    if let Some(reason) = run.end_reason {
        message.plain("endReason", reason);
    }
}

/// Adds that a reader asks the producer to stop, if one does.
fn write_stop(message: &mut MessageWriter<'_>, run: &Run<'_>) {
    if run.stop_asked {
        message.literal("stopRequested", true);
    }
}
