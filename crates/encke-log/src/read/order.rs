//! Reads of the global order.

use crate::disk::Disk;
use crate::error::ReadError;
use crate::history::floors::FloorCache;
use crate::ids::Sequence;
use crate::read::progress::ReadEnd;
use crate::read::window::{GAP_BYTES, WALK_BYTES, damaged, unreadable};
use crate::segments::frame::FrameView;
use crate::segments::index::{Entry, SparseIndex, Start};
use crate::segments::scan::{Scan, Step, WINDOW_BYTES};
use crate::segments::segment::Segment;
use crate::shared::Shared;

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
pub(crate) fn build_sparse_index<D: Disk>(
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
