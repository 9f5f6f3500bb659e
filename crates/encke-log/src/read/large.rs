//! Records that are too large to be read whole: their data stays in the file, and the reader takes parts of it.
//!
//! A record is verified before anything of it is given, whole, in a buffer of bounded size. The sums of its chunks are kept then, and
//! each part that is read is compared with them. What the kernel sends is verified again for each reader, unless a
//! verification that is done has begun since that reader asked.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::disk::DiskFile;
use crate::error::ReadError;
use crate::ids::{Sequence, StreamNo};
use crate::read::window::{damaged, unreadable};
use crate::segments::frame::{self, FrameView, Positioned};
use crate::segments::index::Entry;
use crate::segments::segment::Segment;

/// What a read gives that leaves large records in their files.
#[derive(Debug)]
pub enum GivenRecord<'a> {
    /// A record.
    Whole(FrameView<'a>),
    /// A large record.
    Large(LargeRecord<'a>),
}

/// A record that is not in memory.
#[derive(Debug)]
pub struct LargeRecord<'a> {
    /// Its position in the global order.
    pub sequence: Sequence,
    /// The kind that the caller gave.
    pub kind: u8,
    /// The beginning of its payload.
    pub head: &'a [u8],
    /// Its payload.
    pub payload: FileRange,
}

/// A part of a file of the log. It can be read as long as it is held, whatever retention removes.
#[derive(Clone)]
pub struct FileRange {
    file: Arc<dyn LogFile>,
    frame: Arc<VerifiedFrame>,
    /// Where it begins in the file.
    pub at: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// The frame of a large record that was verified.
#[derive(Debug)]
struct VerifiedFrame {
    sequence: Sequence,
    /// Where it begins in the file.
    at: u64,
    bytes: u64,
    /// The sums of its chunks.
    sums: Box<[u32]>,
    /// A chunk had another sum since.
    is_damaged: AtomicBool,
}

/// The file of a segment.
trait LogFile: Send + Sync {
    fn name(&self) -> &str;
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize>;
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

impl<F: DiskFile> LogFile for Segment<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(bytes, at)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}

impl FileRange {
    /// The same without its first `bytes` bytes.
    #[must_use]
    pub fn skip(&self, bytes: u64) -> FileRange {
        let skipped = bytes.min(self.bytes);
        FileRange {
            file: Arc::clone(&self.file),
            frame: Arc::clone(&self.frame),
            at: self.at + skipped,
            bytes: self.bytes - skipped,
        }
    }

    /// Fills `out`, which is no longer than the range, with its first bytes. The sums of their chunks must be those of the verified
    /// record.
    ///
    /// # Errors
    /// The file cannot be read, has become shorter, or has other content now.
    pub fn read(&self, out: &mut [u8]) -> Result<(), ReadError> {
        debug_assert!(out.len() as u64 <= self.bytes);
        let frame = &*self.frame;
        let mut chunk = Vec::new();
        let mut done = 0;
        while done < out.len() {
            let within = self.at + done as u64 - frame.at;
            let number = within / CHUNK_BYTES as u64;
            let begin = number * CHUNK_BYTES as u64;
            let bytes = (frame.bytes - begin).min(CHUNK_BYTES as u64) as usize;
            let skipped = (within - begin) as usize;
            let taken = (bytes - skipped).min(out.len() - done);
            let target = &mut out[done..done + taken];
            // A whole chunk needs no copy.
            let is_whole = taken == bytes;
            if !is_whole {
                chunk.resize(bytes, 0);
            }
            let content = if is_whole { &mut *target } else { &mut chunk };
            self.read_whole(content, frame.at + begin)?;
            if crc32c::crc32c(content) != frame.sums[number as usize] {
                frame.is_damaged.store(true, Ordering::Relaxed);
                return Err(ReadError::Damaged {
                    file: self.file.name().into(),
                    position: frame.at,
                    sequence: frame.sequence,
                    what: frame::Flaw::Checksum.text(),
                });
            }
            if !is_whole {
                target.copy_from_slice(&chunk[skipped..skipped + taken]);
            }
            done += taken;
        }
        Ok(())
    }

    fn read_whole(&self, out: &mut [u8], at: u64) -> Result<(), ReadError> {
        let wanted = out.len();
        let read = self.file.read_at(out, at);
        let read = read.and_then(|read| match read == wanted {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        read.map_err(|source| ReadError::Io {
            file: self.file.name().into(),
            position: at,
            source,
        })
    }

    /// The file, for a system call that sends a part of it. `None`: it is no file of this system.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileRange({} bytes at {})", self.bytes, self.at)
    }
}

/// The large records that were verified last.
#[derive(Debug, Default)]
pub(crate) struct VerifiedRecords(Mutex<Verified>);

#[derive(Debug, Default)]
struct Verified {
    /// By the segment and the position of each, with when its last verification began.
    records: HashMap<(u64, u32), (Arc<VerifiedFrame>, Instant)>,
    /// Oldest first.
    order: VecDeque<(u64, u32)>,
    /// Of all records.
    sums: usize,
}

impl VerifiedRecords {
    /// A record that was verified, and when that began.
    fn get(&self, segment: u64, position: u32) -> Option<(Arc<VerifiedFrame>, Instant)> {
        let verified = self.0.lock();
        let known = verified.records.get(&(segment, position));
        let known = known.filter(|(frame, _)| !frame.is_damaged.load(Ordering::Relaxed));
        known.cloned()
    }

    fn add(&self, segment: u64, position: u32, frame: &Arc<VerifiedFrame>, began: Instant) {
        let mut verified = self.0.lock();
        let record = (segment, position);
        let entry = (Arc::clone(frame), began);
        if verified.records.insert(record, entry).is_some() {
            return;
        }
        verified.order.push_back(record);
        verified.sums += frame.sums.len();
        while verified.sums > SUMS_KEPT
            && verified.order.len() > 1
            && let Some(oldest) = verified.order.pop_front()
        {
            let removed = verified.records.remove(&oldest);
            verified.sums -= removed.map_or(0, |(frame, _)| frame.sums.len());
        }
    }
}

/// Reads a whole frame, the beginning of it into `head`. Returns the sums of its chunks, and whether it is what was written.
fn sums<F: DiskFile>(
    segment: &Segment<F>,
    (position, bytes): (u64, usize),
    known: Option<&VerifiedFrame>,
    head: &mut [u8],
) -> io::Result<(Box<[u32]>, bool)> {
    let mut sums = Vec::with_capacity(bytes.div_ceil(CHUNK_BYTES));
    let mut check = frame::Check::new(segment.seed);
    let mut buffer = vec![0; VERIFIED_AT_ONCE.min(bytes)];
    let mut at = 0;
    while at < bytes {
        let part = &mut buffer[..(bytes - at).min(VERIFIED_AT_ONCE)];
        if segment.file.read_at(part, position + at as u64)? < part.len() {
            return Ok((sums.into(), false));
        }
        if at == 0 {
            head.copy_from_slice(&part[..head.len()]);
        }
        sums.extend(part.chunks(CHUNK_BYTES).map(crc32c::crc32c));
        if known.is_none() {
            check.add(part);
        }
        at += part.len();
    }
    let is_sound = match known {
        Some(known) => *known.sums == *sums,
        None => check.is_sound(),
    };
    Ok((sums.into(), is_sound))
}

/// Gives the frame of `entry`, which has `bytes` bytes, unless its head is too large to be read by itself. `verified_since`: see
/// [`StreamRead`].
pub(crate) fn give<F: DiskFile>(
    directory: &Path,
    segment: &Arc<Segment<F>>,
    (entry, bytes): (&Entry, u32),
    verified: &VerifiedRecords,
    verified_since: Option<Instant>,
    each: &mut dyn FnMut(GivenRecord<'_>),
) -> Result<Option<Sequence>, ReadError> {
    let due = segment.first + u64::from(entry.delta);
    let position = u64::from(entry.position);
    let flawed = |flaw| damaged(directory, segment, position, due, flaw);
    let failed = |error| unreadable(directory, segment, position, error);
    let file = Arc::clone(segment) as Arc<dyn LogFile>;
    let range = |frame| FileRange {
        file,
        frame,
        at: position,
        bytes: u64::from(bytes),
    };
    let mut head = [0; HEAD_AT_ONCE];
    let head = &mut head[..HEAD_AT_ONCE.min(bytes as usize)];
    let known = verified.get(segment.number, entry.position);
    let is_new = |began: Instant| verified_since.is_none_or(|since| began >= since);
    let range = match known {
        Some((frame, began)) if is_new(began) => {
            let range = range(frame);
            range.read(head)?;
            range
        }
        known => {
            let began = Instant::now();
            let known = known.map(|(frame, _)| frame);
            let read = sums(segment, (position, bytes as usize), known.as_deref(), head);
            let (sums, is_sound) = read.map_err(failed)?;
            if !is_sound {
                return Err(flawed(frame::Flaw::Checksum));
            }
            let frame = known.unwrap_or_else(|| {
                Arc::new(VerifiedFrame {
                    sequence: due,
                    at: position,
                    bytes: u64::from(bytes),
                    sums,
                    is_damaged: AtomicBool::new(false),
                })
            });
            verified.add(segment.number, entry.position, &frame, began);
            range(frame)
        }
    };
    let Some(Positioned {
        sequence,
        kind,
        payload_at,
    }) = frame::positioned(head)
    else {
        return Ok(None);
    };
    if sequence != due {
        return Err(flawed(frame::Flaw::Sequence));
    }
    each(GivenRecord::Large(LargeRecord {
        sequence,
        kind,
        head: &head[payload_at..],
        payload: range.skip(payload_at as u64),
    }));
    Ok(Some(sequence))
}

/// A read of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamRead {
    /// The stream.
    pub stream: StreamNo,
    /// Only records behind this one.
    pub after: Sequence,
    /// Only records up to this one.
    pub upto: Sequence,
    /// About how many bytes are given; at least one record.
    pub bytes_max: usize,
    /// Records whose frames have at least so many bytes stay in their files. `None`: all are given whole. A read that ends with a
    /// record of a file may say that there are more without having looked.
    pub large_min: Option<u32>,
    /// Further large records are given behind the first one while there are fewer bytes of them.
    pub large_together: usize,
    /// The verification of a large record must have begun since. `None`: [`FileRange::read`] verifies what is read of it.
    pub verified_since: Option<Instant>,
}

/// Bytes that are verified at a time.
const VERIFIED_AT_ONCE: usize = 256 << 10;

/// The most bytes of a frame in which its head, and that of its payload, are looked for.
pub(super) const HEAD_AT_ONCE: usize = 2 << 10;

/// Bytes of a chunk, each of which has a sum. To read a part costs up to two chunks more.
const CHUNK_BYTES: usize = 64 << 10;

/// Sums that are kept: of 16 GiB of records in 1 MiB, beside what each record takes.
const SUMS_KEPT: usize = 256 << 10;
