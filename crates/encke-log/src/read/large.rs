//! Records that are too large to be read whole: their data stays in the file, and the reader takes parts of it.
//!
//! A record is verified before anything of it is given, whole, in a buffer of bounded size. That it was is kept for a while, so that
//! many readers of one record, and one that reads it in many parts, verify it once.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// Where it begins in the file.
    pub at: u64,
    /// How many bytes it has.
    pub bytes: u64,
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
            at: self.at + skipped,
            bytes: self.bytes - skipped,
        }
    }

    /// Reads its first bytes, as many as fit into `out`.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn read(&self, out: &mut [u8]) -> Result<(), ReadError> {
        let wanted = out.len();
        let read = self.file.read_at(out, self.at);
        let read = read.and_then(|read| match read == wanted {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        read.map_err(|source| ReadError::Io {
            file: self.file.name().into(),
            position: self.at,
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
    /// The segment and the position of each.
    records: HashSet<(u64, u32)>,
    /// Oldest first, with the time.
    order: VecDeque<((u64, u32), Instant)>,
}

impl VerifiedRecords {
    fn has(&self, segment: u64, position: u32) -> bool {
        let mut verified = self.0.lock();
        while let Some((record, at)) = verified.order.front()
            && at.elapsed() > VERIFIED_FOR
        {
            let record = *record;
            verified.order.pop_front();
            verified.records.remove(&record);
        }
        verified.records.contains(&(segment, position))
    }

    fn add(&self, segment: u64, position: u32) {
        let mut verified = self.0.lock();
        let record = (segment, position);
        // Another reader may have verified it meanwhile.
        if !verified.records.insert(record) {
            return;
        }
        if verified.order.len() == VERIFIED_KEPT
            && let Some((oldest, _)) = verified.order.pop_front()
        {
            verified.records.remove(&oldest);
        }
        verified.order.push_back((record, Instant::now()));
    }
}

/// Gives the frame of `entry`, which has `bytes` bytes, unless its head is too large to be read by itself.
pub(crate) fn give<F: DiskFile>(
    directory: &Path,
    segment: &Arc<Segment<F>>,
    entry: &Entry,
    bytes: u32,
    verified: &VerifiedRecords,
    each: &mut dyn FnMut(GivenRecord<'_>),
) -> Result<Option<Sequence>, ReadError> {
    let due = segment.first + u64::from(entry.delta);
    let position = u64::from(entry.position);
    let flawed = |flaw| damaged(directory, segment, position, due, flaw);
    let failed = |error| unreadable(directory, segment, position, error);
    if !verified.has(segment.number, entry.position) {
        let mut buffer = vec![0; VERIFIED_AT_ONCE.min(bytes as usize)];
        let mut check = frame::Check::new(segment.seed);
        let mut at = 0;
        while at < bytes {
            let part = &mut buffer[..((bytes - at) as usize).min(VERIFIED_AT_ONCE)];
            let read = segment.file.read_at(part, position + u64::from(at));
            if read.map_err(failed)? < part.len() {
                return Err(flawed(frame::Flaw::Length));
            }
            check.add(part);
            at += part.len() as u32;
        }
        if !check.is_sound() {
            return Err(flawed(frame::Flaw::Checksum));
        }
        verified.add(segment.number, entry.position);
    }
    let mut head = [0; HEAD_AT_ONCE];
    let head = &mut head[..HEAD_AT_ONCE.min(bytes as usize)];
    let read = segment.file.read_at(head, position).map_err(failed)?;
    if read < head.len() {
        return Err(flawed(frame::Flaw::Length));
    }
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
    let file = Arc::clone(segment) as Arc<dyn LogFile>;
    each(GivenRecord::Large(LargeRecord {
        sequence,
        kind,
        head: &head[payload_at..],
        payload: FileRange {
            file,
            at: position + payload_at as u64,
            bytes: u64::from(bytes) - payload_at as u64,
        },
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
}

/// Bytes that are verified at a time.
const VERIFIED_AT_ONCE: usize = 256 << 10;

/// The most bytes of a frame in which its head, and that of its payload, are looked for.
pub(super) const HEAD_AT_ONCE: usize = 2 << 10;

/// Large records of which it is kept that they were verified, and for how long: what is read again from the disk may be damaged since.
const VERIFIED_KEPT: usize = 4096;
const VERIFIED_FOR: Duration = Duration::from_secs(10);
