//! The records of a sealed segment in the order of history: by stream, then by sequence.
//!
//! A segment may be large, so it is never in memory whole: only the position of each record is, and records in parts of
//! bounded size.

use encke_clock::WallTime;

use crate::disk::DiskFile;
use crate::history::error::HistoryError;
use crate::history::ingest::Put;
use crate::history::stored;
use crate::ids::{Sequence, StreamNo};
use crate::segments::frame::{self, Flaw};
use crate::segments::scan::{Scan, Step, WINDOW_BYTES};
use crate::segments::segment::Segment;
use std::io;
use std::ops::Range;

/// The records of a segment, once for each of their streams.
pub(crate) struct Sorted<'s, F> {
    segment: &'s Segment<F>,
    items: Vec<RecordPosition>,
    times: (WallTime, WallTime),
    /// The last read part of the file, and its position.
    window: Vec<u8>,
    window_from: u32,
}

/// A record in one of its streams, and the position of its frame. The order is that of history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RecordPosition {
    stream: StreamNo,
    sequence: Sequence,
    position: u32,
    bytes: u32,
}

impl<'s, F: DiskFile> Sorted<'s, F> {
    /// The records of a segment before `end`, all of which must be sound.
    pub(crate) fn of(segment: &'s Segment<F>, end: Sequence) -> Result<Self, HistoryError> {
        let mut items = Vec::with_capacity(RESERVED_BYTES / size_of::<RecordPosition>());
        let mut times = (WallTime::from_ms(u64::MAX), WallTime::default());
        let mut scan = Scan::new(segment, WINDOW_BYTES);
        while scan.due() < end {
            match scan.next()? {
                Step::Record(position, frame) => {
                    let time = frame.time;
                    times = (times.0.min(time), times.1.max(time));
                    let item = |(stream, _)| RecordPosition {
                        stream,
                        sequence: frame.sequence,
                        position,
                        bytes: frame.bytes,
                    };
                    items.extend(frame.streams.iter().map(item));
                }
                Step::Watermark(_) => {}
                Step::End(position, flaw) => {
                    return Err(HistoryError::from(damage(segment, position, flaw)));
                }
            }
        }
        items.sort_unstable();
        items.dedup_by_key(|item| (item.stream, item.sequence));
        Ok(Sorted {
            segment,
            items,
            times,
            window: Vec::new(),
            window_from: 0,
        })
    }

    /// Whether no record belongs to a stream.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Leaves out the records of other streams.
    pub(crate) fn retain(&mut self, stays: impl Fn(StreamNo) -> bool) {
        self.items.retain(|item| stays(item.stream));
    }

    /// The times of the oldest and the newest record.
    pub(crate) fn times(&self) -> (WallTime, WallTime) {
        self.times
    }

    /// Puts all records into history. It leaves none for a second call.
    pub(crate) fn put(&mut self, put: Put<'_>) -> fjall::Result<()> {
        let items = std::mem::take(&mut self.items);
        let mut values = Vec::with_capacity(RESERVED_BYTES);
        let mut places = Vec::new();
        let mut rest = &items[..];
        while !rest.is_empty() {
            let here = self.gather(rest, &mut values, &mut places)?;
            for (item, place) in here.iter().zip(&places) {
                put(
                    &stored::record_key(item.stream, item.sequence),
                    Some(&values[place.clone()]),
                )?;
            }
            rest = &rest[here.len()..];
        }
        Ok(())
    }

    /// Makes the values of as many items as a part may hold, in the order of the file. Returns these items; `places`
    /// gets the range of each in `values`.
    fn gather<'i>(
        &mut self,
        items: &'i [RecordPosition],
        values: &mut Vec<u8>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<&'i [RecordPosition]> {
        let mut bytes = 0;
        let fits = |item: &&RecordPosition| {
            bytes += item.bytes as usize;
            bytes <= PIECE_BYTES
        };
        // A frame larger than a part is a part of its own.
        let here = &items[..items.iter().take_while(fits).count().max(1)];
        let mut order: Vec<u32> = (0..here.len() as u32).collect();
        order.sort_unstable_by_key(|i| here[*i as usize].position);
        values.clear();
        places.clear();
        places.resize(here.len(), 0..0);
        for i in order {
            let RecordPosition {
                position, bytes, ..
            } = here[i as usize];
            let seed = self.segment.seed;
            let from = values.len();
            match frame::parse(self.frame(position, bytes)?, seed) {
                Ok(frame) => stored::record_value(&frame, values),
                // It was sound before: the disk returns different bytes for the same read.
                Err(flaw) => {
                    return Err(io::Error::other(damage(
                        self.segment,
                        position.into(),
                        flaw,
                    )));
                }
            }
            places[i as usize] = from..values.len();
        }
        Ok(here)
    }

    fn frame(&mut self, position: u32, bytes: u32) -> io::Result<&[u8]> {
        let end = |from: u32, have: &Vec<u8>| u64::from(from) + have.len() as u64;
        let wanted = u64::from(position) + u64::from(bytes);
        if position < self.window_from || wanted > end(self.window_from, &self.window) {
            let left = self.segment.bytes.saturating_sub(position.into()) as usize;
            self.window
                .resize(READ_BYTES.max(bytes as usize).min(left), 0);
            let read = self
                .segment
                .file
                .read_at(&mut self.window, position.into())?;
            self.window.truncate(read);
            self.window_from = position;
        }
        let from = (position - self.window_from) as usize;
        let frame = self.window.get(from..from + bytes as usize);
        frame.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

fn damage<F>(segment: &Segment<F>, position: u64, flaw: Flaw) -> String {
    format!(
        "{} is damaged at byte {position}: {}",
        segment.name,
        flaw.text()
    )
}

/// How many bytes of records are in memory at once.
const PIECE_BYTES: usize = 16 << 20;

/// Memory reserved for sorting a segment; untouched pages cost nothing. Glibc returns blocks of more than 32 MiB to the
/// system when they are freed. Of smaller ones it keeps as much as was ever in use at once.
const RESERVED_BYTES: usize = 33 << 20;

/// How much of the file is read at once.
const READ_BYTES: usize = 256 << 10;
