//! Reads of a stream and of the global order.
//!
//! `reader.rs` is the public interface, `backwards.rs` reads a stream from its end, `window.rs` joins reads of frames that lie close
//! together, `large.rs` leaves large records in their files, and `failed_read.rs` repeats a read that failed until it works.

pub(crate) mod backwards;
pub(crate) mod failed_read;
pub(crate) mod large;
pub(crate) mod reader;
pub(crate) mod window;

use crate::disk::Disk;
use crate::error::ReadError;
use crate::history::floors::FloorCache;
use crate::ids::{Sequence, StreamNo};
use crate::read::large::{GivenRecord, StreamRead};
use crate::read::window::{GAP_BYTES, WALK_BYTES, Window, damaged, unreadable};
use crate::segments::frame::{FrameView, HEAD_BYTES, STREAM_BYTES};
use crate::segments::index::{Entry, Index, SparseIndex, Start};
use crate::segments::scan::{Scan, Step, WINDOW_BYTES};
use crate::segments::segment::Segment;
use crate::shared::Shared;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How far a read came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEnd {
    /// All requested records up to this sequence were given. With `more` it is the last given record, otherwise the
    /// requested end, but never beyond the last published record. The next read can continue from here.
    pub last: Sequence,
    /// Whether there are more requested records.
    pub more: bool,
    /// The floor of a stream: its records up to this one are removed, 0 when none are, [`FORGOTTEN`](crate::FORGOTTEN) when
    /// all are. It includes what retention removed during the read. When it is above the requested position, records in
    /// between may have been removed. Of the global order: always 0; a read that begins too early fails with
    /// [`ReadError::NoLongerKept`].
    pub floor: Sequence,
}

/// Gives `each` the records of a stream with `after` < sequence <= `upto`, in order, until about `bytes_max` bytes were given,
/// but at least one record. A large record of a segment is given first, or left for the next read.
pub(crate) fn stream<D: Disk>(
    shared: &Shared<D>,
    read: &StreamRead,
    each: &mut dyn FnMut(GivenRecord<'_>),
) -> Result<ReadEnd, ReadError> {
    let StreamRead {
        stream,
        after,
        upto,
        bytes_max,
        large_min,
        large_together,
    } = *read;
    let floor = shared.floor(stream).map_err(|e| shared.unreadable(e))?;
    let from = after.max(floor);
    let records_max = bytes_max / (HEAD_BYTES + STREAM_BYTES) + 1;
    let index = shared.index.read();
    let upto = upto.min(index.published);
    let history_upto = index.history_upto.min(upto);
    // One more than can be given, to know whether there is more.
    let found = find(
        &index,
        stream,
        from.max(index.history_upto),
        upto,
        records_max + 1,
    );
    drop(index);
    let mut left = bytes_max;
    let mut last = None;
    let mut more = false;
    if let Some(history) = &shared.history {
        let read = history.read(stream, from, history_upto, &mut |view| {
            let bytes = HEAD_BYTES + STREAM_BYTES + view.payload.len();
            let is_large = large_min.is_some_and(|min| bytes >= min as usize);
            if (left == 0 || is_large) && last.is_some() {
                more = true;
                return ControlFlow::Break(());
            }
            last = Some(view.sequence);
            left = match is_large {
                true => 0,
                false => left.saturating_sub(bytes),
            };
            each(GivenRecord::Whole(view));
            ControlFlow::Continue(())
        });
        read.map_err(|e| shared.unreadable(e))?;
    }
    // A retention floor that rose during the read may have taken records away from it.
    let end = |last, more| ReadEnd {
        last,
        more,
        floor: floor.max(shared.retention_floor.get()),
    };
    if let (true, Some(last)) = (more, last) {
        return Ok(end(last, more));
    }
    let mut large_given = 0;
    for (segment, entries) in &found {
        let mut window = Window::new(&shared.directory, segment);
        for (i, entry) in entries.iter().enumerate() {
            if let (true, Some(last)) = (left == 0 && large_given == 0, last) {
                return Ok(end(last, true));
            }
            let large = match large_min {
                Some(min) => window.large(entry, &entries[i..], left, min)?,
                None => None,
            };
            if let Some(bytes) = large {
                if let Some(last) = last
                    && (large_given == 0 || large_given >= large_together)
                {
                    return Ok(end(last, true));
                }
                let (directory, verified) = (&shared.directory, &shared.verified);
                let given = large::give(directory, segment, entry, bytes, verified, each)?;
                if let Some(sequence) = given {
                    last = Some(sequence);
                    large_given += bytes as usize;
                    left = 0;
                    continue;
                }
            }
            if let (true, Some(last)) = (large_given > 0, last) {
                return Ok(end(last, true));
            }
            let (bytes, sequence) = window.frame(entry, &entries[i..], left, |frame| {
                each(GivenRecord::Whole(frame.view(Some(stream))));
            })?;
            last = Some(sequence);
            // A large one whose head could not be read by itself is alone as well.
            left = match large {
                Some(_) => 0,
                None => left.saturating_sub(bytes),
            };
        }
    }
    Ok(end(upto.max(after), false))
}

/// Gives `each` the records of all streams, and `removed` those that are removed from their streams, with the floor of the
/// first stream; otherwise as [`stream`]. Removed records count as given.
pub(crate) fn order<D: Disk>(
    shared: &Shared<D>,
    after: Sequence,
    upto: Sequence,
    bytes_max: usize,
    removed: &mut dyn FnMut(FrameView<'_>, Sequence),
    each: &mut dyn FnMut(FrameView<'_>),
) -> Result<ReadEnd, ReadError> {
    let mut walk = OrderWalk {
        floors: FloorCache::default(),
        last: after,
        left: bytes_max,
        given: false,
    };
    loop {
        let index = shared.index.read();
        let upto = upto.min(index.published);
        let last = walk.last;
        if last >= upto {
            let (more, floor) = (false, 0);
            return Ok(ReadEnd { last, more, floor });
        }
        if walk.left == 0 && walk.given {
            let (more, floor) = (true, 0);
            return Ok(ReadEnd { last, more, floor });
        }
        let oldest = index.oldest();
        // These records exist, so if no segment has them they were removed.
        let start = index.start(last + 1).filter(|_| oldest <= last + 1);
        drop(index);
        let Some(start) = start else {
            return Err(ReadError::NoLongerKept {
                after: last,
                oldest,
            });
        };
        match start.at {
            Some(at) => {
                walk_segment(
                    shared,
                    &start.segment,
                    at,
                    upto.min(start.end - 1),
                    &mut walk,
                    removed,
                    each,
                )?;
            }
            None => build_sparse_index(shared, &start)?,
        }
    }
}

/// Builds the sparse index of a segment that was in history when the log was opened.
fn build_sparse_index<D: Disk>(
    shared: &Shared<D>,
    start: &Start<D::File>,
) -> Result<(), ReadError> {
    let (segment, directory) = (&*start.segment, &shared.directory);
    let mut places = SparseIndex::default();
    let mut scan = Scan::new(segment, WINDOW_BYTES);
    while scan.due() < start.end {
        let (position, due) = (scan.position(), scan.due());
        match scan
            .next()
            .map_err(|e| unreadable(directory, segment, position, e))?
        {
            Step::Record(position, frame) => {
                let delta = (frame.sequence - segment.first) as u32;
                places.note(Entry { delta, position }, frame.time);
            }
            Step::Watermark(_) => {}
            Step::End(position, flaw) => {
                return Err(damaged(directory, segment, position, due, flaw));
            }
        }
    }
    shared
        .index
        .write()
        .set_sparse_index(segment.number, places);
    Ok(())
}

/// Scans a segment from `at` on and gives the records after the last given one, up to `upto` and while the size allows.
fn walk_segment<D: Disk>(
    shared: &Shared<D>,
    segment: &Segment<D::File>,
    at: Entry,
    upto: Sequence,
    walk: &mut OrderWalk,
    removed: &mut dyn FnMut(FrameView<'_>, Sequence),
    each: &mut dyn FnMut(FrameView<'_>),
) -> Result<(), ReadError> {
    let directory = &shared.directory;
    let due = segment.first + u64::from(at.delta);
    let window_bytes = WALK_BYTES.min(walk.left.saturating_add(GAP_BYTES));
    let mut scan = Scan::from(segment, at.position, due, window_bytes);
    while walk.last < upto && (walk.left > 0 || !walk.given) {
        let (position, due) = (scan.position(), scan.due());
        match scan
            .next()
            .map_err(|e| unreadable(directory, segment, position, e))?
        {
            Step::Record(_, frame) if frame.sequence <= walk.last => {}
            Step::Record(_, frame) => {
                let hidden = walk
                    .floors
                    .hide(frame.sequence, frame.streams, |stream| shared.floor(stream));
                match hidden.map_err(|e| shared.unreadable(e))? {
                    Some(floor) => removed(frame.view(None), floor),
                    None => each(frame.view(None)),
                }
                walk.given = true;
                walk.left = walk.left.saturating_sub(frame.bytes as usize);
                walk.last = frame.sequence;
            }
            Step::Watermark(_) => {}
            Step::End(position, flaw) => {
                return Err(damaged(directory, segment, position, due, flaw));
            }
        }
    }
    Ok(())
}

/// The state of a read of the global order.
struct OrderWalk {
    floors: FloorCache,
    last: Sequence,
    /// How many bytes may still be given, and whether a record was given.
    left: usize,
    given: bool,
}

/// The positions of the records of a stream with `after` < sequence <= `upto`, at most `records_max`.
fn find<F>(
    index: &Index<F>,
    stream: StreamNo,
    after: Sequence,
    upto: Sequence,
    records_max: usize,
) -> Vec<(Arc<Segment<F>>, Vec<Entry>)> {
    let mut found = Vec::new();
    let mut left = records_max;
    for segment in index.from(after.saturating_add(1)) {
        let wanted = |entry: &Entry| segment.segment.first + u64::from(entry.delta) <= upto;
        let mut entries = segment.records(stream, after.saturating_add(1), left);
        entries.truncate(entries.partition_point(wanted));
        left -= entries.len();
        if !entries.is_empty() {
            found.push((segment.segment.clone(), entries));
        }
        if left == 0 {
            break;
        }
    }
    found
}
