//! The records of a sealed segment in the order of history: by stream, then by sequence.
//!
//! A segment may be large, so it is never in memory whole: only where each record lies is, and of the records themselves a
//! piece of bounded size at a time.

use crate::disk::DiskFile;
use crate::frame::{self, Flaw};
use crate::history::{self, HistoryError};
use crate::retention::{Class, class_of};
use crate::scan::{Scan, Step, WINDOW_BYTES};
use crate::segment::Segment;
use crate::stored;
use crate::{Sequence, StreamNo};
use std::io;
use std::ops::Range;

/// The records of one segment, once for each of their streams.
pub(crate) struct Sorted<'s, F> {
    segment: &'s Segment<F>,
    items: Vec<Item>,
    times_ms: (u64, u64),
    /// What was read of the file last, and from where.
    window: Vec<u8>,
    window_from: u32,
}

/// A record in one of its streams, and where its frame lies. The order is that of history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    stream: StreamNo,
    sequence: Sequence,
    position: u32,
    bytes: u32,
}

impl<'s, F: DiskFile> Sorted<'s, F> {
    /// The records of a segment before `end`, all of which must be sound.
    pub(crate) fn of(segment: &'s Segment<F>, end: Sequence) -> Result<Self, HistoryError> {
        let mut items = Vec::with_capacity(RESERVED_BYTES / size_of::<Item>());
        let mut times_ms = (u64::MAX, 0);
        let mut scan = Scan::new(segment, WINDOW_BYTES);
        while scan.due() < end {
            match scan.next()? {
                Step::Record(position, frame) => {
                    let time_ms = frame.time_ms;
                    times_ms = (times_ms.0.min(time_ms), times_ms.1.max(time_ms));
                    let item = |(stream, _)| Item {
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
            times_ms,
            window: Vec::new(),
            window_from: 0,
        })
    }

    /// The classes of which there are records.
    pub(crate) fn classes(&self) -> Vec<Class> {
        let chunks = self
            .items
            .chunk_by(|a, b| class_of(a.stream) == class_of(b.stream));
        chunks.map(|chunk| class_of(chunk[0].stream)).collect()
    }

    /// The times of the oldest and the newest record, of whatever class.
    pub(crate) fn times_ms(&self) -> (u64, u64) {
        self.times_ms
    }

    /// Puts the records of a class into history. Classes are put one after the other, each once, as
    /// [`Sorted::classes`] has them.
    pub(crate) fn put(&mut self, class: Class, put: history::Put<'_>) -> fjall::Result<()> {
        let mut items = std::mem::take(&mut self.items);
        self.items = items.split_off(items.partition_point(|item| class_of(item.stream) <= class));
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

    /// Leaves out the records of a class, where [`Sorted::put`] would put them.
    pub(crate) fn skip(&mut self, class: Class) {
        let upto = self
            .items
            .partition_point(|item| class_of(item.stream) <= class);
        self.items.drain(..upto);
    }

    /// Makes the values of as many items as a piece may hold, in the order in which they lie in the file. Says which items,
    /// and in `places` where in `values` each of them is.
    fn gather<'i>(
        &mut self,
        items: &'i [Item],
        values: &mut Vec<u8>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<&'i [Item]> {
        let mut bytes = 0;
        let fits = |item: &&Item| {
            bytes += item.bytes as usize;
            bytes <= PIECE_BYTES
        };
        // One frame may be larger than a piece, and then is one alone.
        let here = &items[..items.iter().take_while(fits).count().max(1)];
        let mut order: Vec<u32> = (0..here.len() as u32).collect();
        order.sort_unstable_by_key(|i| here[*i as usize].position);
        values.clear();
        places.clear();
        places.resize(here.len(), 0..0);
        for i in order {
            let Item {
                position, bytes, ..
            } = here[i as usize];
            let seed = self.segment.seed;
            let from = values.len();
            match frame::parse(self.frame(position, bytes)?, seed) {
                Ok(frame) => stored::record_value(&frame, values),
                // It was found sound before; only a disk that says now this and now that comes here.
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

/// What is reserved for what a segment needs while it is sorted. Memory costs only what is written to of it. Glibc gives
/// blocks of more than 32 MiB back as soon as they are free; of smaller ones it keeps as much as was ever in use at once.
const RESERVED_BYTES: usize = 33 << 20;

/// How much is read of the file at once.
const READ_BYTES: usize = 256 << 10;
