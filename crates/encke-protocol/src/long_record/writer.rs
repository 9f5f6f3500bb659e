//! Writes the data of a record in its form, as much as fits into a piece.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_stream::{MediaKind, Offset};

use super::form::{DataForm, RecordForm};
use super::json_cursor::{JsonCursor, JsonPart};
use super::record_part::RecordPart;
use crate::data_lines::DataLines;
use crate::encoded_run::EncodedRun;
use crate::ndjson;

/// Called with each message of a record whose form is [`DataForm::EachMessage`], with the position behind it.
pub type EachMessage<'a> = &'a mut dyn FnMut(Offset, &[u8], &mut EncodedRun);

/// Writes the data of one record.
#[derive(Clone, Debug)]
pub(super) struct DataWriter {
    part: RecordPart,
    /// Bytes before the data, until they are written.
    head: Vec<u8>,
    /// A character that was begun before the record and belongs to its data, until it is written.
    before: Vec<u8>,
    form: DataForm,
    place: Place,
    /// Of base64, bytes that are too few for a group; of messages that are handed over, the beginning of the present one.
    pending: Vec<u8>,
    lines: DataLines,
    is_done: bool,
}

/// Where in the data the writer is.
#[derive(Clone, Debug)]
enum Place {
    /// The number of bytes of data that follow.
    Bytes(u64),
    /// All of the data belongs to the reader, up to its end.
    AllMessages,
    /// Only some of the messages belong to the reader, or each is written by itself.
    Messages(JsonCursor),
}

impl DataWriter {
    /// Writes a part of a record up to, but without, `end_byte`, if its units are bytes.
    pub(super) fn new(
        part: RecordPart,
        end_byte: u64,
        before: &[u8],
        head: Vec<u8>,
        form: DataForm,
    ) -> Self {
        let place = match (part.kind, form) {
            (MediaKind::Text | MediaKind::Binary, _) => {
                Place::Bytes(end_byte.saturating_sub(part.first_byte()))
            }
            (MediaKind::Json, DataForm::MessageLines(_) | DataForm::EachMessage(_)) => {
                Place::Messages(JsonCursor::default())
            }
            (MediaKind::Json, _) if part.skip == 0 && part.end.units == 0 => Place::AllMessages,
            (MediaKind::Json, _) => Place::Messages(JsonCursor::default()),
        };
        DataWriter {
            part,
            head,
            before: before.to_vec(),
            form,
            place,
            pending: Vec::new(),
            lines: match form {
                DataForm::EventText => DataLines::begin(),
                _ => DataLines::inside(),
            },
            is_done: false,
        }
    }

    pub(super) fn is_one_value(&self) -> bool {
        !matches!(self.form, DataForm::EachMessage(_))
    }

    /// Whether the next byte may belong to a message that has begun.
    pub(super) fn is_in_message(&self) -> bool {
        matches!(&self.place, Place::Messages(cursor) if cursor.is_in_message())
    }

    /// Whether the bytes before the data are written.
    pub(super) fn has_begun(&self) -> bool {
        self.head.is_empty()
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Writes data, and returns how many bytes of it were used. `is_end`: no data follows.
    pub(super) fn write(
        &mut self,
        data: &[u8],
        is_end: bool,
        each: EachMessage<'_>,
        out: &mut EncodedRun,
    ) -> usize {
        out.bytes.append(&mut self.head);
        match self.place {
            Place::Bytes(left) => self.write_bytes(data, left, is_end, &mut out.bytes),
            Place::AllMessages => {
                let used = self.write_plain(data, &mut out.bytes);
                self.is_done = is_end && used == data.len();
                used
            }
            Place::Messages(cursor) => self.write_messages(data, is_end, cursor, each, out),
        }
    }

    fn write_bytes(&mut self, data: &[u8], left: u64, is_end: bool, out: &mut Vec<u8>) -> usize {
        let before = std::mem::take(&mut self.before);
        let written = self.write_plain(&before, out);
        if written < before.len() {
            // The head has filled the piece.
            self.before = before[written..].to_vec();
            return 0;
        }
        let wanted = &data[..data.len().min(left as usize)];
        let used = self.write_plain(wanted, out);
        let left = left - used as u64;
        self.place = Place::Bytes(left);
        if left == 0 || is_end && used == data.len() {
            self.finish(out);
        }
        used
    }

    /// Behind the last byte.
    fn finish(&mut self, out: &mut Vec<u8>) {
        self.is_done = true;
        if !self.pending.is_empty() {
            out.extend_from_slice(STANDARD.encode(&self.pending).as_bytes());
        }
        self.lines.finish(out);
    }

    fn write_messages(
        &mut self,
        data: &[u8],
        is_end: bool,
        mut cursor: JsonCursor,
        each: EachMessage<'_>,
        out: &mut EncodedRun,
    ) -> usize {
        let RecordPart { skip, take, .. } = self.part;
        let mut used = 0;
        while !self.is_done {
            let rest = &data[used..];
            // There is room left to end a message.
            if !rest.is_empty()
                && (out.bytes.len() >= PIECE_BYTES - LINE_BYTES || used >= SCANNED_BYTES)
            {
                break;
            }
            if rest.is_empty() {
                if is_end {
                    if cursor.end() && (skip + 1..=take).contains(&cursor.messages) {
                        self.end_message(cursor.messages, each, out);
                    }
                    self.is_done = true;
                }
                break;
            }
            let was_in_message = cursor.is_in_message();
            let number = cursor.messages;
            let is_wanted = (skip..take).contains(&number);
            let room = (PIECE_BYTES - LINE_BYTES / 2).saturating_sub(out.bytes.len());
            let window = match is_wanted {
                true => &rest[..rest.len().min(self.input_for(room))],
                false => &rest[..rest.len().min(SCANNED_BYTES)],
            };
            match cursor.pass(window) {
                JsonPart::Between(bytes) => {
                    if number > skip && number < take {
                        self.write_between(&rest[..bytes], &mut out.bytes);
                    }
                    used += bytes;
                }
                JsonPart::Message { bytes, ends } => {
                    if is_wanted {
                        if !was_in_message {
                            self.begin_message(number + 1, &mut out.bytes);
                        }
                        self.write_message(&rest[..bytes], &mut out.bytes);
                        if ends {
                            self.end_message(number + 1, each, out);
                        }
                    }
                    used += bytes;
                    self.is_done = cursor.messages >= take;
                }
            }
        }
        self.place = Place::Messages(cursor);
        used
    }

    /// Begins a message; `messages` is the number of messages up to its end.
    fn begin_message(&mut self, messages: u32, out: &mut Vec<u8>) {
        if let DataForm::MessageLines(time) = self.form {
            ndjson::begin_record(self.position(messages), time, out);
            out.extend_from_slice(b",\"data\":");
        }
    }

    fn write_message(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match self.form {
            DataForm::MessageLines(_) => ndjson::json(bytes, out),
            DataForm::EachMessage(bytes_max) => {
                // One byte more marks a message that is too long.
                let room = bytes_max
                    .saturating_add(1)
                    .saturating_sub(self.pending.len());
                self.pending
                    .extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            _ => {
                self.write_plain(bytes, out);
            }
        }
    }

    fn end_message(&mut self, messages: u32, each: EachMessage<'_>, out: &mut EncodedRun) {
        match self.form {
            DataForm::MessageLines(_) => out.bytes.extend_from_slice(b"}\n"),
            DataForm::EachMessage(bytes_max) => {
                let message = std::mem::take(&mut self.pending);
                if message.len() <= bytes_max {
                    each(self.position(messages), &message, out);
                }
            }
            _ => {}
        }
    }

    fn write_between(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match self.form {
            DataForm::MessageLines(_) | DataForm::EachMessage(_) => {}
            _ => {
                self.write_plain(bytes, out);
            }
        }
    }

    fn position(&self, messages: u32) -> Offset {
        self.part.position(messages)
    }

    /// Writes the bytes that fit into the piece, in the form. Returns their number.
    fn write_plain(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            let room = PIECE_BYTES.saturating_sub(out.len());
            if room < ROOM_MIN {
                break;
            }
            let block = bytes.len().min(used + self.input_for(room));
            self.write_block(&bytes[used..block], out);
            used = block;
        }
        used
    }

    /// How many bytes of data surely fit into that room.
    fn input_for(&self, room: usize) -> usize {
        match self.form {
            DataForm::Messages | DataForm::FlatMessages | DataForm::MessageLines(_) => room,
            DataForm::EachMessage(_) => SCANNED_BYTES,
            DataForm::Base64 => room / 4 * 3 - 2,
            DataForm::String | DataForm::EventText | DataForm::EventMessages => {
                room / ESCAPED_BYTES
            }
        }
    }

    fn write_block(&mut self, block: &[u8], out: &mut Vec<u8>) {
        match self.form {
            DataForm::Messages | DataForm::MessageLines(_) | DataForm::EachMessage(_) => {
                out.extend_from_slice(block);
            }
            DataForm::FlatMessages => ndjson::json(block, out),
            DataForm::String => ndjson::escape(block, out),
            DataForm::EventText | DataForm::EventMessages => self.lines.write(block, out),
            DataForm::Base64 => self.write_base64(block, out),
        }
    }

    fn write_base64(&mut self, mut block: &[u8], out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            let missing = GROUP_BYTES - self.pending.len();
            let (first, rest) = block.split_at(missing.min(block.len()));
            self.pending.extend_from_slice(first);
            block = rest;
            if self.pending.len() < GROUP_BYTES {
                return;
            }
            let group = std::mem::take(&mut self.pending);
            base64(&group, out);
        }
        let (whole, rest) = block.split_at(block.len() / GROUP_BYTES * GROUP_BYTES);
        base64(whole, out);
        self.pending.extend_from_slice(rest);
    }
}

impl RecordForm {
    /// Writes a record whose data is at hand, all of it for the reader.
    pub(crate) fn write_whole(&self, data: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        self.data.write_whole(data, out);
        out.extend_from_slice(&self.tail);
    }
}

impl DataForm {
    /// Writes data that is at hand, of a form that writes a record as one value.
    pub(crate) fn write_whole(self, data: &[u8], out: &mut Vec<u8>) {
        match self {
            DataForm::Messages => out.extend_from_slice(data),
            DataForm::FlatMessages => ndjson::json(data, out),
            DataForm::String => ndjson::escape(data, out),
            DataForm::Base64 => out.extend_from_slice(STANDARD.encode(data).as_bytes()),
            DataForm::EventMessages => DataLines::inside().write(data, out),
            DataForm::EventText => {
                let mut lines = DataLines::begin();
                lines.write(data, out);
                lines.finish(out);
            }
            DataForm::MessageLines(_) | DataForm::EachMessage(_) => {}
        }
    }
}

fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes.len() / GROUP_BYTES * 4, 0);
    // The room is just what the encoding of whole groups needs.
    let _ = STANDARD.encode_slice(bytes, &mut out[start..]);
}

/// Bytes of a group of base64.
const GROUP_BYTES: usize = 3;

/// Room that no block is begun without.
const ROOM_MIN: usize = 64;

/// Room for what stands around a message in a line, on both sides.
const LINE_BYTES: usize = 512;

/// Bytes of data that one step looks through, however little it writes.
const SCANNED_BYTES: usize = 256 << 10;

/// Bytes of a piece, at most. The last piece of a record may have the tail of its form more, and the first one the head.
pub const PIECE_BYTES: usize = 64 << 10;

/// Bytes that one byte is encoded as, at most: six of `\u0001`, or seven of a line feed, `data:` and a space.
pub(super) const ESCAPED_BYTES: usize = 7;
