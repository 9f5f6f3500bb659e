//! permessage-deflate without context takeover: compresses and decompresses single messages (RFC 7692, section 7.2).
//!
//! Every message stands alone, so a connection keeps no state. A thread has one [`Deflater`] for all its connections, and a message
//! for many clients is compressed once. A large message of a client is decompressed in pieces ([`Inflation`]).

use std::cell::{Cell, RefCell};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frame::DataKind;
use super::message::Message;
use super::violation::Violation;

/// Compresses messages.
pub(crate) struct Deflater {
    compress: Compress,
}

/// Decompresses messages.
struct Inflater {
    decompress: Decompress,
}

/// A message that is being decompressed, piece by piece.
#[derive(Debug)]
pub(crate) struct Inflation {
    message: CompressedMessage,
    /// Bytes of the payload, and of the tail behind it, that were read.
    taken: usize,
    /// A stream ended with the last of them.
    has_ended: bool,
    inflated: Vec<u8>,
    bytes_max: usize,
    /// `None` only when it is dropped.
    inflater: Option<Box<Inflater>>,
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
    /// A decompressor for any window that a client may use.
    fn new() -> Self {
        Inflater {
            decompress: Decompress::new(false),
        }
    }
}

impl Inflation {
    /// Begins with a message. It becomes at most `bytes_max` bytes.
    pub(crate) fn new(message: CompressedMessage, bytes_max: usize) -> Self {
        let mut inflater = INFLATER.take().unwrap_or_else(|| Box::new(Inflater::new()));
        inflater.decompress.reset(false);
        Inflation {
            message,
            taken: 0,
            has_ended: false,
            inflated: Vec::new(),
            bytes_max,
            inflater: Some(inflater),
        }
    }

    /// Decompresses a further piece: about `bytes` of what is read and written. `None`: there is more. Not to be called behind the result.
    ///
    /// # Errors
    /// [`Violation::MessageTooBig`] if the message has more bytes than it may; [`Violation::InvalidDeflate`] if the payload is broken
    /// or incomplete; [`Violation::InvalidUtf8`] if text is not UTF-8.
    pub(crate) fn step(&mut self, bytes: usize) -> Result<Option<Message>, Violation> {
        let Some(inflater) = &mut self.inflater else {
            return Err(Violation::InvalidDeflate);
        };
        let decompress = &mut inflater.decompress;
        let payload = &self.message.payload;
        let mut scratch = [0; SCRATCH_BYTES];
        let mut left = bytes;
        while left > 0 {
            // With the tail that the client left out, a complete payload ends between two blocks, where the last block of a stream can
            // follow. The library does not tell where it stopped; that this block ends the stream does.
            let part = match payload.get(self.taken..) {
                Some(part) if !part.is_empty() => part,
                _ => &TAIL_AND_LAST_BLOCK[self.taken - payload.len()..],
            };
            let part = &part[..part.len().min(SCRATCH_BYTES)];
            let before = (decompress.total_in(), decompress.total_out());
            let status = decompress.decompress(part, &mut scratch, FlushDecompress::None);
            let taken = (decompress.total_in() - before.0) as usize;
            let produced = (decompress.total_out() - before.1) as usize;
            if produced > self.bytes_max - self.inflated.len() {
                return Err(Violation::MessageTooBig {
                    bytes_max: self.bytes_max,
                });
            }
            let status = status.map_err(|_| Violation::InvalidDeflate)?;
            if taken == 0 && produced == 0 && !part.is_empty() {
                return Err(Violation::InvalidDeflate);
            }
            grow(&mut self.inflated, produced, self.bytes_max);
            self.inflated.extend_from_slice(&scratch[..produced]);
            self.taken += taken;
            if status == Status::StreamEnd {
                // A block with the final bit may be followed by others (RFC 7692, section 7.2.3.4).
                decompress.reset(false);
                self.has_ended = true;
            } else if taken > 0 {
                self.has_ended = false;
            }
            let is_all = self.taken == payload.len() + TAIL_AND_LAST_BLOCK.len();
            if is_all && produced < SCRATCH_BYTES {
                return match self.has_ended {
                    true => {
                        let inflated = std::mem::take(&mut self.inflated);
                        Message::new(self.message.kind, inflated).map(Some)
                    }
                    false => Err(Violation::InvalidDeflate),
                };
            }
            left = left.saturating_sub(taken + produced);
        }
        Ok(None)
    }

    /// Bytes of memory that it takes, besides itself.
    pub(crate) fn bytes(&self) -> usize {
        self.message.payload.capacity() + self.inflated.capacity() + INFLATER_BYTES
    }
}

/// The thread keeps one decompressor for the next message.
impl Drop for Inflation {
    fn drop(&mut self) {
        // A thread that ends keeps nothing.
        let _ = INFLATER.try_with(|kept| kept.set(self.inflater.take()));
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

    /// Decompresses the message to at most `bytes_max` bytes, in one piece.
    ///
    /// # Errors
    /// As [`Inflation::step`].
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn inflate(&self, bytes_max: usize) -> Result<Message, Violation> {
        let mut inflation = Inflation::new(self.clone(), bytes_max);
        loop {
            if let Some(message) = inflation.step(usize::MAX)? {
                return Ok(message);
            }
        }
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
    static INFLATER: Cell<Option<Box<Inflater>>> = const { Cell::new(None) };
}

/// Compresses a message by the compressor of this thread.
pub(crate) fn deflate(message: &[u8]) -> Option<Vec<u8>> {
    DEFLATER.with_borrow_mut(|deflater| deflater.deflate(message))
}

/// Makes room for `count` more bytes: twice as much as before, and never for more than `bytes_max` in all.
fn grow(out: &mut Vec<u8>, count: usize, bytes_max: usize) {
    let needed = out.len() + count;
    if needed > out.capacity() {
        let room = needed.max(bytes_max.min(out.capacity() * 2));
        out.reserve_exact(room - out.len());
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

/// Bytes that the library reads or writes at once.
const SCRATCH_BYTES: usize = 4 << 10;

/// Memory of a decompressor, measured.
const INFLATER_BYTES: usize = 36 << 10;
