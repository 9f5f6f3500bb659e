//! Messages as objects of JSON, member by member.

use std::fmt::Display;
use std::io::Write;

use crate::long_record::{DataForm, WrittenData};
use crate::ndjson;

/// Writes one message to the end of a buffer.
pub(super) struct MessageWriter<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> MessageWriter<'o> {
    /// Begins a message of a type.
    pub(super) fn new(message_type: &'static str, out: &'o mut Vec<u8>) -> Self {
        // Writing to a vector does not fail.
        let _ = write!(out, "{{\"type\":\"{message_type}\"");
        MessageWriter { out }
    }

    /// Adds a string.
    pub(super) fn text(&mut self, name: &'static str, value: &str) -> &mut Self {
        ndjson::string(value, self.value(name));
        self
    }

    /// Adds a string of characters that need no escape, such as an offset.
    pub(super) fn plain(&mut self, name: &'static str, value: impl Display) -> &mut Self {
        // Writing to a vector does not fail.
        let _ = write!(self.value(name), "\"{value}\"");
        self
    }

    /// Adds a number or a truth value.
    pub(super) fn literal(&mut self, name: &'static str, value: impl Display) -> &mut Self {
        // Writing to a vector does not fail.
        let _ = write!(self.value(name), "{value}");
        self
    }

    /// Adds bytes in base64.
    pub(super) fn base64(&mut self, name: &'static str, bytes: &[u8]) -> &mut Self {
        ndjson::base64(bytes, self.value(name));
        self
    }

    /// The buffer, to which the value of a member that has begun is written.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Begins a member. Its value must follow.
    pub(super) fn value(&mut self, name: &'static str) -> &mut Vec<u8> {
        // Writing to a vector does not fail.
        let _ = write!(self.out, ",\"{name}\":");
        self.out
    }

    /// Begins the member with the data of a record. Returns how the data is written, and what ends it.
    pub(super) fn data(&mut self, data: WrittenData) -> (DataForm, &'static [u8]) {
        let (name, open, form, close) = match data {
            WrittenData::Messages => ("data", b'[', DataForm::Messages, &b"]"[..]),
            WrittenData::Text => ("text", b'"', DataForm::String, &b"\""[..]),
            WrittenData::Bytes => ("base64", b'"', DataForm::Base64, &b"\""[..]),
        };
        self.value(name).push(open);
        (form, close)
    }

    /// Ends the message.
    pub(super) fn end(&mut self) {
        self.out.push(b'}');
    }
}
