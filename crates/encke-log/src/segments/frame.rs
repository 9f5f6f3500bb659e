//! Frames: how a record lies in a segment.
//!
//! All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | length of the whole frame; never 0, so that zeros mark the end |
//! | 4 | CRC32C, begun with the seed of the segment, over the length and everything after this field |
//! | 8 | sequence |
//! | 8 | time in milliseconds since 1970 |
//! | 1 | kind, given by the caller |
//! | 1 | flags: 1 = `durable_upto` follows, 2 = watermark (see below) |
//! | 2 | number of streams |
//! | 8 | `durable_upto`, if flagged: up to this sequence the log was durable when the frame was written |
//! | 16 each | stream and the position of its previous frame |
//! | rest | payload |
//!
//! A watermark is a frame that is no record: it has the sequence of the next record, no streams and no payload. It only
//! states `durable_upto`.

use encke_clock::WallTime;

use crate::ids::{Sequence, StreamNo};
use crate::segments::checksum;

/// A record to append.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The kind of the record, for the caller; the log stores it unchanged.
    pub kind: u8,
    /// Its time, for the caller and for retention by age.
    pub time: WallTime,
    /// The streams of the record: at most 65,535, each named once, none of them 0.
    pub streams: &'a [StreamNo],
    /// The payload, in pieces that are stored in order.
    pub payload: &'a [&'a [u8]],
}

/// A stored record.
#[derive(Clone, Copy, Debug)]
pub struct FrameView<'a> {
    /// Its position in the global order.
    pub sequence: Sequence,
    /// Its time.
    pub time: WallTime,
    /// The kind that the caller gave.
    pub kind: u8,
    /// The stream that was read; without one, the first stream of the record, or 0 when it has none.
    pub stream: StreamNo,
    /// All its streams.
    pub streams: Streams<'a>,
    /// The payload.
    pub payload: &'a [u8],
}

/// The position of a frame: the number of its segment and the byte in it. The default means "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    pub(crate) fn new(segment: u64, offset: u32) -> Position {
        debug_assert!(segment > 0 && segment < 1 << 32);
        Position(segment << 32 | u64::from(offset))
    }

    /// Whether there is no such frame, or it was in history already when this was written.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The number of the segment, counted from 1.
    pub fn segment(self) -> u64 {
        self.0 >> 32
    }

    /// The byte in the segment at which the frame begins.
    pub fn offset(self) -> u32 {
        self.0 as u32
    }
}

/// The streams of a record, each with the position of its previous record.
#[derive(Clone, Copy, Debug)]
pub struct Streams<'a>(List<'a>);

#[derive(Clone, Copy, Debug)]
enum List<'a> {
    /// From a frame: each with the position of its previous record.
    Positioned(&'a [u8]),
    /// From history: without positions.
    Bare(&'a [u8]),
    /// A single stream.
    One(StreamNo),
}

impl<'a> Streams<'a> {
    /// Streams as history lists them, 8 bytes each.
    pub(crate) fn bare(bytes: &'a [u8]) -> Streams<'a> {
        Streams(List::Bare(bytes))
    }

    pub(crate) fn one(stream: StreamNo) -> Streams<'a> {
        Streams(List::One(stream))
    }

    /// The number of streams.
    pub fn len(&self) -> usize {
        match self.0 {
            List::Positioned(bytes) => bytes.len() / STREAM_BYTES,
            List::Bare(bytes) => bytes.len() / 8,
            List::One(_) => 1,
        }
    }

    /// Whether there are no streams.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each stream with the position of its previous record, in the order in which they were appended. A record from
    /// history has no positions.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (StreamNo, Position)> + use<'a> {
        let list = self.0;
        (0..self.len()).map(move |i| match list {
            List::Positioned(bytes) => {
                let at = i * STREAM_BYTES;
                (u64_at(bytes, at), Position(u64_at(bytes, at + 8)))
            }
            List::Bare(bytes) => (u64_at(bytes, i * 8), Position::default()),
            List::One(stream) => (stream, Position::default()),
        })
    }
}

/// The size of a frame in bytes.
pub(crate) fn bytes(streams: usize, payload: usize, durable_upto: bool) -> u64 {
    let durable_bytes = if durable_upto { DURABLE_BYTES } else { 0 };
    (HEAD_BYTES + durable_bytes + streams * STREAM_BYTES) as u64 + payload as u64
}

/// Appends a frame to `out`, with zeros where [`seal`] will put the previous positions, `durable_upto` and the checksum.
/// The frame's bytes must be fewer than 2^32 and its streams fewer than 2^16.
pub(crate) fn encode(frame: &Frame<'_>, sequence: Sequence, durable_upto: bool, out: &mut Vec<u8>) {
    let payload: usize = frame.payload.iter().map(|piece| piece.len()).sum();
    let bytes = bytes(frame.streams.len(), payload, durable_upto);
    let flags = if durable_upto { FLAG_DURABLE } else { 0 };
    let streams = frame.streams.len() as u16;
    out.reserve(bytes as usize);
    out.extend_from_slice(&head(
        bytes as u32,
        sequence,
        frame.time,
        [frame.kind, flags],
        streams,
    ));
    if durable_upto {
        out.extend_from_slice(&[0; DURABLE_BYTES]);
    }
    for stream in frame.streams {
        let mut entry = [0; STREAM_BYTES];
        entry[..8].copy_from_slice(&stream.to_le_bytes());
        out.extend_from_slice(&entry);
    }
    for piece in frame.payload {
        out.extend_from_slice(piece);
    }
}

/// A whole watermark, checksum included.
pub(crate) fn watermark(next: Sequence, durable_upto: Sequence, seed: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(WATERMARK_BYTES);
    out.extend_from_slice(&head(
        WATERMARK_BYTES as u32,
        next,
        WallTime::from_ms(0),
        [0, FLAG_DURABLE | FLAG_WATERMARK],
        0,
    ));
    out.extend_from_slice(&[0; DURABLE_BYTES]);
    seal(&mut out, seed, durable_upto, |_| Position::default());
    out
}

/// The head of a frame, without its checksum.
fn head(
    bytes: u32,
    sequence: Sequence,
    time: WallTime,
    [kind, flags]: [u8; 2],
    streams: u16,
) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..CHECKSUM_AT].copy_from_slice(&bytes.to_le_bytes());
    head[SEQUENCE_AT..TIME_AT].copy_from_slice(&sequence.to_le_bytes());
    head[TIME_AT..KIND_AT].copy_from_slice(&time.as_ms().to_le_bytes());
    head[KIND_AT] = kind;
    head[FLAGS_AT] = flags;
    head[STREAMS_AT..].copy_from_slice(&streams.to_le_bytes());
    head
}

/// Finishes the frame made by [`encode`] at the beginning of `frame`. Returns its length.
pub(crate) fn seal(
    frame: &mut [u8],
    seed: u32,
    durable_upto: Sequence,
    mut previous: impl FnMut(StreamNo) -> Position,
) -> usize {
    let bytes = u32_at(frame, 0) as usize;
    let frame = &mut frame[..bytes];
    let mut at = HEAD_BYTES;
    if frame[FLAGS_AT] & FLAG_DURABLE != 0 {
        frame[at..at + DURABLE_BYTES].copy_from_slice(&durable_upto.to_le_bytes());
        at += DURABLE_BYTES;
    }
    for _ in 0..u16_at(frame, STREAMS_AT) {
        let position = previous(u64_at(frame, at));
        frame[at + 8..at + STREAM_BYTES].copy_from_slice(&position.0.to_le_bytes());
        at += STREAM_BYTES;
    }
    let checksum = checksum(frame, seed);
    frame[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The time of a frame made by [`encode`], with which `frame` begins.
pub(crate) fn time(frame: &[u8]) -> WallTime {
    WallTime::from_ms(u64_at(frame, TIME_AT))
}

/// A frame whose checksum matches and whose parts fit its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed<'a> {
    pub(crate) bytes: u32,
    pub(crate) sequence: Sequence,
    pub(crate) time: WallTime,
    pub(crate) kind: u8,
    pub(crate) durable_upto: Option<Sequence>,
    pub(crate) watermark: bool,
    pub(crate) streams: Streams<'a>,
    pub(crate) payload: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// The frame as a reader sees it; `stream` is the stream that was read, if any.
    pub(crate) fn view(&self, stream: Option<StreamNo>) -> FrameView<'a> {
        let first = || self.streams.iter().next().map_or(0, |(stream, _)| stream);
        FrameView {
            sequence: self.sequence,
            time: self.time,
            kind: self.kind,
            stream: stream.unwrap_or_else(first),
            streams: self.streams,
            payload: self.payload,
        }
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The length is zero: no frame was written here, or it was lost.
    Nothing,
    /// The length is impossible: shorter than a head, or longer than the rest of the segment.
    Length,
    /// The checksum does not match.
    Checksum,
    /// The checksum matches and the parts don't fit the length.
    Shape,
    /// A sound frame of another record than the expected one.
    Sequence,
}

impl Flaw {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Flaw::Nothing => "there is no frame",
            Flaw::Length => "the length of the frame is impossible",
            Flaw::Checksum => "the checksum of the frame does not match",
            Flaw::Shape => "the parts of the frame do not fit its length",
            Flaw::Sequence => "the frame is of another record",
        }
    }
}

/// The length of the frame at the beginning of `bytes`, if it is possible within `room` bytes.
pub(crate) fn length(bytes: &[u8; 4], room: u64) -> Result<u32, Flaw> {
    match u32::from_le_bytes(*bytes) {
        0 => Err(Flaw::Nothing),
        n if (n as usize) < HEAD_BYTES || u64::from(n) > room => Err(Flaw::Length),
        n => Ok(n),
    }
}

/// Parses `frame`, which must be exactly one frame. Uses nothing but the length before the checksum matches.
pub(crate) fn parse(frame: &[u8], seed: u32) -> Result<Parsed<'_>, Flaw> {
    if frame.len() < HEAD_BYTES || u32_at(frame, 0) as usize != frame.len() {
        return Err(Flaw::Length);
    }
    if checksum(frame, seed) != u32_at(frame, CHECKSUM_AT) {
        return Err(Flaw::Checksum);
    }
    let flags = frame[FLAGS_AT];
    let mut rest = &frame[HEAD_BYTES..];
    let mut durable_upto = None;
    if flags & FLAG_DURABLE != 0 {
        let (durable, after) = rest.split_at_checked(DURABLE_BYTES).ok_or(Flaw::Shape)?;
        durable_upto = Some(u64_at(durable, 0));
        rest = after;
    }
    let streams = usize::from(u16_at(frame, STREAMS_AT)) * STREAM_BYTES;
    let (streams, payload) = rest.split_at_checked(streams).ok_or(Flaw::Shape)?;
    let watermark = flags & FLAG_WATERMARK != 0;
    if watermark && frame.len() != WATERMARK_BYTES {
        return Err(Flaw::Shape);
    }
    Ok(Parsed {
        bytes: frame.len() as u32,
        sequence: u64_at(frame, SEQUENCE_AT),
        time: WallTime::from_ms(u64_at(frame, TIME_AT)),
        kind: frame[KIND_AT],
        durable_upto,
        watermark,
        streams: Streams(List::Positioned(streams)),
        payload,
    })
}

/// What the beginning of a sound frame says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positioned {
    pub(crate) sequence: Sequence,
    pub(crate) kind: u8,
    /// Where the payload begins.
    pub(crate) payload_at: usize,
}

/// What the beginning of a sound frame says; `None` if its payload begins behind it.
pub(crate) fn positioned(head: &[u8]) -> Option<Positioned> {
    if head.len() < HEAD_BYTES {
        return None;
    }
    let durable_bytes = match head[FLAGS_AT] & FLAG_DURABLE {
        0 => 0,
        _ => DURABLE_BYTES,
    };
    let streams = usize::from(u16_at(head, STREAMS_AT)) * STREAM_BYTES;
    let payload_at = HEAD_BYTES + durable_bytes + streams;
    (payload_at < head.len()).then(|| Positioned {
        sequence: u64_at(head, SEQUENCE_AT),
        kind: head[KIND_AT],
        payload_at,
    })
}

/// The checksum of a frame that comes in parts.
#[derive(Debug)]
pub(crate) struct Check {
    sum: u32,
    stated: [u8; CHECKSUM_BYTES],
    at: usize,
}

impl Check {
    pub(crate) fn new(seed: u32) -> Self {
        Check {
            sum: seed,
            stated: [0; CHECKSUM_BYTES],
            at: 0,
        }
    }

    /// Adds the next part. The first one has the whole head.
    pub(crate) fn add(&mut self, part: &[u8]) {
        self.sum = match self.at {
            0 => {
                let (before, rest) = part.split_at(CHECKSUM_AT.min(part.len()));
                let (stated, behind) = rest.split_at(CHECKSUM_BYTES.min(rest.len()));
                self.stated[..stated.len()].copy_from_slice(stated);
                crc32c::crc32c_append(crc32c::crc32c_append(self.sum, before), behind)
            }
            _ => crc32c::crc32c_append(self.sum, part),
        };
        self.at += part.len();
    }

    /// Whether the frame is what was written.
    pub(crate) fn is_sound(&self) -> bool {
        self.sum == u32::from_le_bytes(self.stated)
    }
}

/// The frame at the beginning of `bytes`, which reach to the end of the segment, if it is sound and has one of these
/// sequences. Cheap tests come first, because a search through a torn tail calls this for every byte.
pub(crate) fn sound_at<'b>(
    bytes: &'b [u8],
    seed: u32,
    sequences: &std::ops::RangeInclusive<Sequence>,
) -> Option<Parsed<'b>> {
    if bytes.len() < HEAD_BYTES || !sequences.contains(&u64_at(bytes, SEQUENCE_AT)) {
        return None;
    }
    parse(bytes.get(..u32_at(bytes, 0) as usize)?, seed).ok()
}

fn checksum(frame: &[u8], seed: u32) -> u32 {
    checksum::checksum(u32_at(frame, 0), &frame[SEQUENCE_AT..], seed)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The payload of the record without streams by which a repair replaces a lost one. It is never replayed.
pub(crate) const FILLER: &[u8] = b"encke 1: this record was gone when the log was repaired\n";
/// The most streams that one frame can name.
pub(crate) const STREAMS_MAX: usize = u16::MAX as usize;
/// The fewest bytes a frame can have.
pub(crate) const HEAD_BYTES: usize = 28;
/// What a stream takes in a frame.
pub(crate) const STREAM_BYTES: usize = 16;
pub(crate) const WATERMARK_BYTES: usize = HEAD_BYTES + DURABLE_BYTES;
const DURABLE_BYTES: usize = 8;
const CHECKSUM_AT: usize = 4;
const CHECKSUM_BYTES: usize = 4;
const SEQUENCE_AT: usize = 8;
const TIME_AT: usize = 16;
const KIND_AT: usize = 24;
const FLAGS_AT: usize = 25;
const STREAMS_AT: usize = 26;
const FLAG_DURABLE: u8 = 1;
const FLAG_WATERMARK: u8 = 2;
