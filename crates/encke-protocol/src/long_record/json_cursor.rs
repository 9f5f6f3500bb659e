//! Finds the messages in stored JSON that arrives in parts.

use crate::json::is_space;

/// A position in stored data: messages of JSON with commas and white space between them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JsonCursor {
    /// Complete messages before the position.
    pub(super) messages: u32,
    /// Arrays and objects around the position. Stored data is valid, so that their kinds need not be kept.
    depth: u32,
    in_message: bool,
    in_string: bool,
    is_escaped: bool,
}

/// The next part of stored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonPart {
    /// The number of bytes between two messages.
    Between(usize),
    /// The number of bytes of a message; `ends`: the message is complete behind them.
    Message { bytes: usize, ends: bool },
}

impl JsonCursor {
    /// Whether the position is inside a message.
    pub(super) fn is_in_message(&self) -> bool {
        self.in_message
    }

    /// Passes the next part of the data, which must not be empty.
    pub(super) fn pass(&mut self, data: &[u8]) -> JsonPart {
        if !self.in_message {
            let between = data.iter().take_while(|byte| is_between(**byte)).count();
            if between > 0 {
                return JsonPart::Between(between);
            }
            self.in_message = true;
        }
        let mut at = 0;
        while let Some(&byte) = data.get(at) {
            if std::mem::take(&mut self.is_escaped) {
                at += 1;
            } else if self.in_string {
                let Some(end) = memchr::memchr2(b'"', b'\\', &data[at..]) else {
                    at = data.len();
                    break;
                };
                at += end + 1;
                match data[at - 1] {
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return self.end_message(at);
                        }
                    }
                    _ => self.is_escaped = true,
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'[' | b'{' => self.depth += 1,
                    b']' | b'}' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return self.end_message(at + 1);
                        }
                    }
                    // A number or a literal ends here.
                    _ if self.depth == 0 && is_between(byte) => return self.end_message(at),
                    _ => {}
                }
                at += 1;
            }
        }
        JsonPart::Message {
            bytes: at,
            ends: false,
        }
    }

    /// The data ends here: a number or a literal is complete. Whether there was one.
    pub(super) fn end(&mut self) -> bool {
        let was_in_message = self.in_message;
        if was_in_message {
            self.end_message(0);
        }
        was_in_message
    }

    fn end_message(&mut self, bytes: usize) -> JsonPart {
        self.in_message = false;
        self.messages += 1;
        JsonPart::Message { bytes, ends: true }
    }
}

fn is_between(byte: u8) -> bool {
    byte == b',' || is_space(byte)
}
