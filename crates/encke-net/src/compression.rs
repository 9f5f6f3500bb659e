//! Compresses bodies, a bounded piece at a time, on the reader threads.
//!
//! A compressor lives as long as its response. It goes with its input to a reader thread and comes back with the output, so a
//! shard never compresses. The number of compressors is bounded, and what they hold counts as buffered bytes.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use encke_protocol::ContentCoding;
use flate2::write::GzEncoder;

use crate::buffers::{BufferShare, Buffers};
use crate::metrics::Metrics;

/// The compressors of a server.
#[derive(Debug)]
pub(crate) struct Compressors {
    used: Arc<AtomicUsize>,
    max: usize,
    buffers: Arc<Buffers>,
}

/// Compresses one body.
pub(crate) struct Compressor {
    encoder: BodyEncoder,
    /// Input, of which `taken` bytes are compressed.
    input: Vec<u8>,
    taken: usize,
    /// The input is the last of the body.
    ends: bool,
    finished: bool,
    share: BufferShare,
    buffers: Arc<Buffers>,
    /// The number of compressors, from which this one is subtracted in the end.
    used: Arc<AtomicUsize>,
}

/// A piece that a reader thread has compressed. `Err`: the library failed.
#[derive(Debug)]
pub(crate) struct CompressedPiece {
    pub(crate) compressor: Box<Compressor>,
    pub(crate) out: std::io::Result<Vec<u8>>,
}

enum BodyEncoder {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Compressors {
    pub(crate) fn new(max: usize, buffers: Arc<Buffers>) -> Compressors {
        Compressors {
            used: Arc::default(),
            max,
            buffers,
        }
    }

    /// How many responses are being compressed.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A new compressor; `None` if there are as many as allowed, or if all connections together hold too much memory.
    pub(crate) fn begin(
        &self,
        coding: ContentCoding,
        metrics: &Metrics,
    ) -> Option<Box<Compressor>> {
        let room = |used: usize| (used < self.max).then_some(used + 1);
        let reserved = !self.buffers.are_crowded()
            && (self.used)
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_ok();
        if !reserved {
            metrics.compressions_refused.inc();
            return None;
        }
        let compressor = Compressor::new(coding, Arc::clone(&self.used), Arc::clone(&self.buffers));
        match compressor {
            Ok(compressor) => {
                let compressed = metrics.compressions.with_label_values(&[coding.name()]);
                compressed.inc();
                Some(Box::new(compressor))
            }
            Err(error) => {
                self.used.fetch_sub(1, Ordering::Relaxed);
                tracing::error!(%error, "a compressor can't be made");
                None
            }
        }
    }
}

impl Compressor {
    /// `used` counts this one already, and no longer when it is dropped.
    fn new(
        coding: ContentCoding,
        used: Arc<AtomicUsize>,
        buffers: Arc<Buffers>,
    ) -> std::io::Result<Compressor> {
        let encoder = match coding {
            ContentCoding::Gzip => BodyEncoder::Gzip(GzEncoder::new(
                Vec::new(),
                flate2::Compression::new(GZIP_LEVEL),
            )),
            ContentCoding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(ZSTD_WINDOW_LOG)?;
                BodyEncoder::Zstd(encoder)
            }
        };
        let mut share = BufferShare::default();
        share.set(STATE_BYTES, &buffers);
        Ok(Compressor {
            encoder,
            input: Vec::new(),
            taken: 0,
            ends: false,
            finished: false,
            share,
            buffers,
            used,
        })
    }

    /// Adds input behind what is compressed. Before, [`Self::has_work`] must be false.
    pub(crate) fn add(&mut self, input: Vec<u8>, ends: bool) {
        self.share
            .set(STATE_BYTES + input.capacity(), &self.buffers);
        (self.input, self.taken, self.ends) = (input, 0, ends);
    }

    /// What it takes in memory, without the output of a step.
    pub(crate) fn bytes(&self) -> usize {
        STATE_BYTES + self.input.capacity()
    }

    /// Whether there is input that is not compressed, or an end that is not written.
    pub(crate) fn has_work(&self) -> bool {
        self.taken < self.input.len() || self.ends && !self.finished
    }

    /// Whether the body is complete.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// The input, which the compressor keeps until the next.
    pub(crate) fn into_input(self) -> Vec<u8> {
        let mut compressor = self;
        std::mem::take(&mut compressor.input)
    }

    /// Compresses the next [`STEP_BYTES`] of the input at most. Returns what came out, possibly nothing.
    ///
    /// # Errors
    /// The library failed; the body cannot be completed.
    pub(crate) fn step(&mut self) -> std::io::Result<Vec<u8>> {
        let end = self.input.len().min(self.taken + STEP_BYTES);
        let piece = &self.input[self.taken..end];
        let finishes = self.ends && end == self.input.len();
        let out = match &mut self.encoder {
            BodyEncoder::Gzip(encoder) => {
                encoder.write_all(piece)?;
                if finishes {
                    encoder.try_finish()?;
                }
                encoder.get_mut()
            }
            BodyEncoder::Zstd(encoder) => {
                encoder.write_all(piece)?;
                if finishes {
                    encoder.do_finish()?;
                }
                encoder.get_mut()
            }
        };
        self.taken = end;
        self.finished = finishes;
        Ok(std::mem::take(out))
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compressor")
    }
}

/// Bodies below this are sent as they are: with the fields of a coding they would hardly be shorter, and one packet has room for
/// them.
pub(crate) const COMPRESSED_BYTES_MIN: usize = 1 << 10;

/// Bytes that a reader thread compresses at a time, so that reads behind it wait for less than a millisecond. Longer bodies are
/// compressed in several steps, and sent in parts.
pub(crate) const STEP_BYTES: usize = 64 << 10;

/// Measured on JSON events of 164 bytes, 256 KiB of them: level 1 266 MB/s and a ratio of 3.0; 2 181 MB/s, 4.1; 3 164 MB/s, 4.3;
/// 6 88 MB/s, 4.7.
const GZIP_LEVEL: u32 = 2;

/// On the same data: level 1 616 MB/s and a ratio of 4.8; 2 543 MB/s, 4.6; 3 391 MB/s, 4.6.
const ZSTD_LEVEL: i32 = 1;

/// A window of 256 KiB; RFC 9659 allows 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 18;

/// What the state of a compressor takes at most, measured: gzip 355 KiB, zstd 648 KiB.
const STATE_BYTES: usize = 704 << 10;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    fn decoded(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match coding {
            ContentCoding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
            ContentCoding::Zstd => zstd::stream::copy_decode(bytes, &mut out).map(|()| 0),
        }
        .expect("it decodes");
        out
    }

    #[test]
    fn the_number_and_the_memory_are_bounded_and_given_back() {
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let buffers = Arc::new(Buffers::new(STATE_BYTES * 4, []));
        let compressors = Compressors::new(2, Arc::clone(&buffers));
        let begin = || compressors.begin(ContentCoding::Gzip, &metrics);
        let (first, second) = (begin().unwrap(), begin().unwrap());
        assert!(begin().is_none());
        assert_eq!((compressors.used(), buffers.bytes()), (2, 2 * STATE_BYTES));
        assert_eq!(metrics.compressions_refused.get(), 1);
        drop(first);
        let mut third = begin().unwrap();
        third.add(vec![0; STATE_BYTES], false);
        drop(second);
        // There may be another one, but not so much memory.
        third.add(vec![0; 3 * STATE_BYTES], false);
        assert!(begin().is_none());
        drop(third);
        assert_eq!((compressors.used(), buffers.bytes()), (0, 0));
    }

    proptest! {
        #[test]
        fn parts_of_any_length_come_back(
            parts in prop::collection::vec((any::<u8>(), 0..3 * STEP_BYTES), 0..4),
        ) {
            for coding in ContentCoding::ALL {
                let buffers = Arc::new(Buffers::new(usize::MAX, []));
                let compressors = Compressors::new(1, buffers);
                let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
                let mut compressor = compressors.begin(coding, &metrics).unwrap();
                let (mut body, mut out) = (Vec::new(), Vec::new());
                for (byte, length) in &parts {
                    let part: Vec<u8> = (0..*length).map(|at| byte.wrapping_mul(at as u8)).collect();
                    body.extend_from_slice(&part);
                    compressor.add(part, false);
                    while compressor.has_work() {
                        out.extend(compressor.step().unwrap());
                    }
                }
                compressor.add(Vec::new(), true);
                while compressor.has_work() {
                    out.extend(compressor.step().unwrap());
                }
                prop_assert!(compressor.is_finished());
                prop_assert_eq!(decoded(coding, &out), body);
            }
        }
    }
}
