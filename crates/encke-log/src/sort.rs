//! The records of a sealed segment in the order of history: by stream, then by sequence.
//!
//! A segment may be large, so it is never in memory whole: only where each record lies is, and of the records themselves a
//! piece of bounded size at a time.

use crate::disk::DiskFile;
use crate::frame::{self, Flaw};
use crate::history::{self, HistoryError};
use crate::scan::{Scan, Step, WINDOW_BYTES};
use crate::segment::Segment;
use crate::{Sequence, StreamNo};
use std::io;
use std::ops::Range;

/// The records of one segment, once for each of their streams.
pub(crate) struct Sorted<'s, F> {
    segment: &'s Segment<F>,
    items: Vec<Item>,
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
        let mut items = Vec::new();
        let mut scan = Scan::new(segment, WINDOW_BYTES);
        while scan.due() < end {
            match scan.next()? {
                Step::Record(position, frame) => {
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
            window: Vec::new(),
            window_from: 0,
        })
    }

    /// Whether no record belongs to any stream.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Puts all of them into history.
    pub(crate) fn put(&mut self, put: history::Put<'_>) -> fjall::Result<()> {
        let items = std::mem::take(&mut self.items);
        let (mut values, mut places) = (Vec::new(), Vec::new());
        let mut rest = &items[..];
        while !rest.is_empty() {
            let here = self.gather(rest, &mut values, &mut places)?;
            for (item, place) in here.iter().zip(&places) {
                put(
                    &history::record_key(item.stream, item.sequence),
                    Some(&values[place.clone()]),
                )?;
            }
            rest = &rest[here.len()..];
        }
        Ok(())
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
                Ok(frame) => history::record_value(&frame, values),
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
/// How much is read of the file at once.
const READ_BYTES: usize = 256 << 10;
