//! Segments: the files that frames lie in.
//!
//! A segment begins with a head of 64 bytes, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic |
//! | 4 | byte order mark |
//! | 2 | version of the format |
//! | 2 | zero |
//! | 8 | number of the segment, counted from 1 without gaps |
//! | 8 | sequence of its first frame, which is also its name |
//! | 8 | random salt: the seed of the checksums of its frames follows from it |
//! | 8 | identity of the log; zero in logs of 0.1.0 |
//! | 12 | zero |
//! | 4 | CRC32C of all before; it is here in every version of the format |
//!
//! The head is durable before the file gets its name, and the name before the first frame is written. So a file with the
//! name of a segment and a bad head was damaged, not torn; and a segment that exists proves that the one before it is
//! whole up to the sequence before this one's first.

use crate::disk::file_name::first_of;
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::ids::Sequence;
use crate::segments::frame::{self, u32_at, u64_at};

/// A segment with its open file.
#[derive(Debug)]
pub(crate) struct Segment<F> {
    pub(crate) number: u64,
    /// The sequence of its first frame, which may not exist yet.
    pub(crate) first: Sequence,
    /// The identity of its log; 0 in a segment that has none.
    pub(crate) log_id: u64,
    /// The seed of the checksums of its frames.
    pub(crate) seed: u32,
    /// The length of the file, which bounds its frames.
    pub(crate) bytes: u64,
    pub(crate) name: String,
    pub(crate) file: F,
}

impl<F: DiskFile> Segment<F> {
    /// Opens a segment and checks its head against its name.
    pub(crate) fn open<D: Disk<File = F>>(disk: &D, name: &str) -> Result<Segment<F>, OpenError> {
        let path = disk.path(name);
        let io = |action| move |e| OpenError::io(&disk.path(name), action, e);
        let file = disk.open(name).map_err(io("open"))?;
        let bytes = file.bytes().map_err(io("measure"))?;
        let mut head = [0; HEAD_BYTES as usize];
        let read = file.read_at(&mut head, 0).map_err(io("read"))?;
        let damaged = |what: &str| OpenError::Damaged {
            file: disk.path(name),
            position: 0,
            sequence: first_of(name).unwrap_or(0),
            what: what.to_owned(),
        };
        if read < head.len() {
            return Err(damaged("the head of the segment is cut off"));
        }
        let mark = u32_at(&head, 8);
        if crc32c::crc32c(&head[..60]) != u32_at(&head, 60) {
            return Err(
                match (head[..8] == MAGIC, mark == BYTE_ORDER.swap_bytes()) {
                    (false, _) => OpenError::NotASegment { file: path },
                    (true, true) => OpenError::ByteOrder { file: path },
                    (true, false) => damaged("the checksum of the segment's head does not match"),
                },
            );
        }
        // The checksum has the same place in every version of the format, so the head is not damaged.
        let version = u16::from_le_bytes([head[12], head[13]]);
        if version != VERSION {
            return Err(OpenError::Version {
                file: path,
                found: version,
                supported: VERSION,
            });
        }
        let (number, first, salt) = (u64_at(&head, 16), u64_at(&head, 24), u64_at(&head, 32));
        if head[..8] != MAGIC
            || mark != BYTE_ORDER
            || Some(first) != first_of(name)
            || number == 0
            || number >= NUMBER_END
        {
            return Err(damaged("the head of the segment does not fit its name"));
        }
        if bytes > u64::from(u32::MAX) {
            return Err(damaged("the segment is longer than a segment can be"));
        }
        Ok(Segment {
            number,
            first,
            log_id: u64_at(&head, 40),
            seed: seed(salt),
            bytes,
            name: name.to_owned(),
            file,
        })
    }

    /// The largest frame that fits an empty segment of this size.
    pub(crate) fn room(segment_bytes: u64) -> u64 {
        records_end(segment_bytes) - HEAD_BYTES
    }
}

/// The end of records in a segment of this size. Behind them, a watermark that states their durability must fit.
pub(crate) fn records_end(segment_bytes: u64) -> u64 {
    segment_bytes.saturating_sub(frame::WATERMARK_BYTES as u64)
}

/// The head of a segment.
pub(crate) fn head(
    number: u64,
    first: Sequence,
    salt: u64,
    log_id: u64,
) -> [u8; HEAD_BYTES as usize] {
    let mut head = [0; HEAD_BYTES as usize];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&BYTE_ORDER.to_le_bytes());
    head[12..14].copy_from_slice(&VERSION.to_le_bytes());
    head[16..24].copy_from_slice(&number.to_le_bytes());
    head[24..32].copy_from_slice(&first.to_le_bytes());
    head[32..40].copy_from_slice(&salt.to_le_bytes());
    head[40..48].copy_from_slice(&log_id.to_le_bytes());
    let checksum = crc32c::crc32c(&head[..60]);
    head[60..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// The seed of the checksums of a segment's frames. It differs between segments, so a frame of another segment is never
/// valid.
pub(crate) fn seed(salt: u64) -> u32 {
    crc32c::crc32c(&salt.to_le_bytes())
}

/// The first sequences and the names of all segments on a disk, oldest first.
pub(crate) fn names<D: Disk>(disk: &D) -> Result<Vec<(Sequence, String)>, OpenError> {
    let names = disk.names();
    let names = names.map_err(|e| OpenError::io(&disk.path(""), "list", e))?;
    let mut firsts: Vec<_> = names
        .into_iter()
        .filter_map(|name| Some((first_of(&name)?, name)))
        .collect();
    firsts.sort_unstable();
    Ok(firsts)
}

/// The head's length, and where the first frame begins.
pub(crate) const HEAD_BYTES: u64 = 64;
/// Numbers of segments are smaller: a position has 32 bits for them.
pub(crate) const NUMBER_END: u64 = 1 << 32;
const MAGIC: [u8; 8] = *b"ENCKELOG";
const BYTE_ORDER: u32 = 0x0A0B_0C0D;
pub(crate) const VERSION: u16 = 1;
