//! How a body is framed whose length is not known when it begins (RFC 9112, section 6.3).

use std::io::Write;

use crate::websocket::deflate::deflate as deflated;
use crate::websocket::frame::{DataKind, encode_fragment, encode_message};

/// A framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseFraming {
    /// The chunked coding. The client can tell a complete body from one that was cut.
    Chunks,
    /// The body ends with the connection, for clients of HTTP/1.0.
    Connection,
    /// The frames of an HTTP/2 stream, which are not a part of the body's bytes: the end is a flag of the last one.
    Frames,
    /// Messages of WebSocket. A part may have several, with [`ResponseFraming::separate`] between them.
    Messages {
        /// Those that become shorter by it are compressed.
        deflate: bool,
    },
}

impl ResponseFraming {
    /// Appends a part of the body.
    pub(crate) fn part(self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            // An empty chunk would end the body.
            ResponseFraming::Chunks if bytes.is_empty() => {}
            ResponseFraming::Chunks => {
                // Writing to a vector does not fail.
                let _ = write!(out, "{:x}\r\n", bytes.len());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            ResponseFraming::Messages { deflate } => {
                let messages = bytes.split(|byte| *byte == MESSAGE_END);
                for message in messages.filter(|message| !message.is_empty()) {
                    match deflate.then(|| deflated(message)).flatten() {
                        Some(payload) => encode_message(DataKind::Text, true, &payload, out),
                        None => encode_message(DataKind::Text, false, message, out),
                    }
                }
            }
            ResponseFraming::Connection | ResponseFraming::Frames => out.extend_from_slice(bytes),
        }
    }

    /// Appends a piece of a long record.
    pub(crate) fn piece(self, bytes: &[u8], is_first: bool, is_last: bool, out: &mut Vec<u8>) {
        match self {
            // Compression would need a state for each client.
            ResponseFraming::Messages { .. } => encode_fragment(is_first, is_last, bytes, out),
            other => other.part(bytes, out),
        }
    }

    /// Appends what is before a part of so many bytes. Only for parts of chunks, or of bodies that end with the connection.
    pub(crate) fn begin_part(self, bytes: u64, out: &mut Vec<u8>) {
        if self == ResponseFraming::Chunks {
            // Writing to a vector does not fail.
            let _ = write!(out, "{bytes:x}\r\n");
        }
    }

    /// Appends what is behind a part that began with [`ResponseFraming::begin_part`].
    pub(crate) fn end_part(self, out: &mut Vec<u8>) {
        if self == ResponseFraming::Chunks {
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Notes that one message ends here, where a part may have several.
    pub(crate) fn separate(self, out: &mut Vec<u8>) {
        if matches!(self, ResponseFraming::Messages { .. }) {
            out.push(MESSAGE_END);
        }
    }

    /// Appends the end of a complete body. A body that is cut gets none.
    pub(crate) fn end(self, out: &mut Vec<u8>) {
        if self == ResponseFraming::Chunks {
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }
}

/// Ends a message within a part. No text of JSON has it (RFC 7464, section 2.1).
const MESSAGE_END: u8 = 0x1e;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_chunks_ends_only_at_its_end() {
        let mut out = Vec::new();
        for part in [&b"0123456789abcdef"[..], b"", b"x"] {
            ResponseFraming::Chunks.part(part, &mut out);
        }
        assert_eq!(out, b"10\r\n0123456789abcdef\r\n1\r\nx\r\n");
        ResponseFraming::Chunks.end(&mut out);
        assert!(out.ends_with(b"x\r\n0\r\n\r\n"));
    }

    #[test]
    fn a_body_of_which_something_else_says_the_end_is_only_its_bytes() {
        let mut out = Vec::new();
        for framing in [ResponseFraming::Connection, ResponseFraming::Frames] {
            framing.part(b"ab", &mut out);
            framing.part(b"", &mut out);
            framing.end(&mut out);
        }
        assert_eq!(out, b"abab");
    }
}
