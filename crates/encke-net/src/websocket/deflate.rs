//! permessage-deflate without context takeover: compresses and decompresses single messages (RFC 7692, section 7.2).
//!
//! Every message stands alone, so a connection keeps no state. A thread has one [`Deflater`] and one [`Inflater`] for all its
//! connections, and a message for many clients is compressed once.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frame::DataKind;
use super::message::Message;
use super::violation::Violation;

/// Compresses messages.
pub(crate) struct Deflater {
    compress: Compress,
}

/// Decompresses messages.
pub(crate) struct Inflater {
    decompress: Decompress,
}

/// A message as the client compressed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompressedMessage {
    kind: DataKind,
    payload: Vec<u8>,
}

impl Deflater {
    /// A compressor for a window of [`WINDOW_BITS`] bits.
    pub(crate) fn new() -> Self {
        Deflater {
            compress: Compress::new_with_window_bits(Compression::new(LEVEL), false, WINDOW_BITS),
        }
    }

    /// Compresses a message to the payload of a frame with RSV1. `None`: it would not become shorter, so it is sent as it is.
    pub(crate) fn deflate(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.compress.reset();
        // The output must have room for the tail, and a byte must be left for it to be known as complete.
        let room = message.len() + TAIL.len();
        let mut payload = Vec::with_capacity(room);
        let compressed = self
            .compress
            .compress_vec(message, &mut payload, FlushCompress::Sync);
        let is_complete = compressed.is_ok()
            && self.compress.total_in() == message.len() as u64
            && payload.len() < room;
        if !is_complete || !payload.ends_with(&TAIL) {
            return None;
        }
        payload.truncate(payload.len() - TAIL.len());
        payload.shrink_to_fit();
        Some(payload)
    }
}

impl Inflater {
    /// A decompressor for any window that a client may use. It takes 36 KiB, measured.
    pub(crate) fn new() -> Self {
        Inflater {
            decompress: Decompress::new(false),
        }
    }

    /// Decompresses the payload of a message. The result never has room for more than `bytes_max`.
    ///
    /// # Errors
    /// [`Violation::MessageTooBig`] if the result has more than `bytes_max` bytes; [`Violation::InvalidDeflate`] if the payload
    /// is broken or incomplete.
    fn inflate(&mut self, payload: &[u8], bytes_max: usize) -> Result<Vec<u8>, Violation> {
        self.decompress.reset(false);
        let mut out = Vec::new();
        self.inflate_part(payload, &mut out, bytes_max)?;
        // With the tail that the client left out, a complete payload ends between two blocks, where the last block of a stream
        // can follow. The library does not tell where it stopped; that this block ends the stream does.
        let ended = self.inflate_part(&TAIL_AND_LAST_BLOCK, &mut out, bytes_max)?;
        match ended {
            true => Ok(out),
            false => Err(Violation::InvalidDeflate),
        }
    }

    /// Decompresses a part. True if a stream ends with its last byte.
    fn inflate_part(
        &mut self,
        mut part: &[u8],
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<bool, Violation> {
        let mut ended = false;
        loop {
            grow(out, bytes_max, part.len());
            let has_room = out.len() < out.capacity();
            let before = (self.decompress.total_in(), self.decompress.total_out());
            let mut excess = [0];
            let status = match has_room {
                true => self
                    .decompress
                    .decompress_vec(part, out, FlushDecompress::None),
                // The bound is reached: the rest must be blocks without content.
                false => self
                    .decompress
                    .decompress(part, &mut excess, FlushDecompress::None),
            };
            let taken = self.decompress.total_in() - before.0;
            let produced = self.decompress.total_out() - before.1;
            if !has_room && produced > 0 {
                return Err(Violation::MessageTooBig { bytes_max });
            }
            part = &part[taken as usize..];
            let status = status.map_err(|_| Violation::InvalidDeflate)?;
            if taken == 0 && produced == 0 && !part.is_empty() {
                return Err(Violation::InvalidDeflate);
            }
            if status == Status::StreamEnd {
                // A block with the final bit may be followed by others (RFC 7692, section 7.2.3.4).
                self.decompress.reset(false);
                ended = true;
            } else if taken > 0 {
                ended = false;
            }
            if part.is_empty() && (out.len() < out.capacity() || produced == 0) {
                return Ok(ended);
            }
        }
    }
}

impl CompressedMessage {
    /// A message of that kind from the payloads of its frames.
    pub(super) fn new(kind: DataKind, payload: Vec<u8>) -> Self {
        CompressedMessage { kind, payload }
    }

    /// Bytes of memory that it takes, besides itself.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn bytes(&self) -> usize {
        self.payload.capacity()
    }

    /// Decompresses the message by the decompressor of this thread.
    ///
    /// # Errors
    /// As [`CompressedMessage::inflate`].
    pub(crate) fn inflate_here(&self, bytes_max: usize) -> Result<Message, Violation> {
        INFLATER.with_borrow_mut(|inflater| self.inflate(inflater, bytes_max))
    }

    /// Decompresses the message to at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`Violation::MessageTooBig`], [`Violation::InvalidDeflate`], or [`Violation::InvalidUtf8`] if text is not UTF-8.
    pub(crate) fn inflate(
        &self,
        inflater: &mut Inflater,
        bytes_max: usize,
    ) -> Result<Message, Violation> {
        Message::new(self.kind, inflater.inflate(&self.payload, bytes_max)?)
    }
}

impl std::fmt::Debug for Deflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deflater")
    }
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inflater")
    }
}

thread_local! {
    static DEFLATER: RefCell<Deflater> = RefCell::new(Deflater::new());
    static INFLATER: RefCell<Inflater> = RefCell::new(Inflater::new());
}

/// Compresses a message by the compressor of this thread.
pub(crate) fn deflate(message: &[u8]) -> Option<Vec<u8>> {
    DEFLATER.with_borrow_mut(|deflater| deflater.deflate(message))
}

/// Makes room if there is none: twice as much as before, and never more than `bytes_max` in all.
fn grow(out: &mut Vec<u8>, bytes_max: usize, part_bytes: usize) {
    if out.len() == out.capacity() {
        let room = (out.capacity() * 2).max(part_bytes).max(ROOM_BYTES_MIN);
        out.reserve_exact(room.min(bytes_max).saturating_sub(out.len()));
    }
}

/// The window that messages are compressed with, 4 KiB: most messages are smaller, and one form is compressed for all clients.
pub(crate) const WINDOW_BITS: u8 = 12;

/// The level of compressed responses (gzip): nearly the ratio of level 6 at twice the speed.
const LEVEL: u32 = 2;

/// The end of every compressed message, which is not sent (RFC 7692, section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// The tail, and behind it a final block without content.
const TAIL_AND_LAST_BLOCK: [u8; 9] = [0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff];

/// Bytes that the first part of an inflated message gets, if the bound allows it.
const ROOM_BYTES_MIN: usize = 256;
