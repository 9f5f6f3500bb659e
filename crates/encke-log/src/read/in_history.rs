//! Reads of the part of a stream in history.

use crate::disk::Disk;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::ids::Sequence;
use crate::read::large::{GivenRecord, StreamRead};
use crate::read::old_large::{Loaded, SegmentPlace};
use crate::read::order::build_sparse_index;
use crate::read::progress::{FRAME_BYTES, ReadProgress};
use crate::segments::index::Entry;
use crate::segments::scan::{Scan, Step, WINDOW_BYTES};
use crate::shared::Shared;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Gives `each` the records of a stream in history with `from` < sequence <= `upto`. Returns whether more is requested.
pub(crate) fn stream_in_history<D: Disk>(
    (shared, history): (&Shared<D>, &History),
    read: &StreamRead,
    (mut from, upto): (Sequence, Sequence),
    given: &mut ReadProgress,
    each: &mut dyn FnMut(GivenRecord<'_>),
) -> Result<bool, HistoryError> {
    let stream = read.stream;
    let large_min = read.large_min.map_or(usize::MAX, |min| min as usize);
    let payload_min = large_min.saturating_sub(FRAME_BYTES) as u64;
    let mut only_values = false;
    loop {
        let mut large = shared.old_large.first(stream, (from, upto), payload_min);
        if large.is_none() {
            let mut more = false;
            let mut loaded = None;
            history.read(stream, from, upto, &mut |view, value| {
                let bytes = FRAME_BYTES + view.payload.len();
                if bytes >= large_min {
                    loaded = Some(Loaded {
                        stream,
                        after: from,
                        sequence: view.sequence,
                        value: value.clone(),
                    });
                    return ControlFlow::Break(());
                }
                if !given.takes_whole() {
                    more = true;
                    return ControlFlow::Break(());
                }
                from = view.sequence;
                given.add(from, bytes);
                each(GivenRecord::Whole(view));
                ControlFlow::Continue(())
            })?;
            let Some(loaded) = loaded else {
                return Ok(more);
            };
            let place = match only_values {
                true => None,
                false => find_in_segment(shared, loaded.sequence),
            };
            large = match place {
                Some(place) => shared.old_large.keep_place(&loaded, place),
                None => shared.old_large.keep_value(&loaded),
            };
            if large.is_none() {
                if !given.takes_whole() {
                    return Ok(true);
                }
                // It is alone, as other large ones are.
                from = loaded.sequence;
                given.add(from, usize::MAX);
                if let Some(view) = loaded.view() {
                    each(GivenRecord::Whole(view));
                }
            }
        }
        let Some(large) = large else {
            continue;
        };
        if !given.takes_large() {
            return Ok(true);
        }
        let (directory, verified) = (&shared.directory, &shared.verified);
        if !shared.old_large.give(&large, directory, verified, each) {
            // Its segment is gone, or damaged.
            only_values = true;
            continue;
        }
        from = large.sequence;
        given.add_large(from, large.bytes as usize);
        if !given.takes_large() {
            // To look for the next one would be to load it.
            return Ok(from < read.upto);
        }
    }
}

/// Looks for a record of history in the segments that are kept for the global order.
fn find_in_segment<D: Disk>(
    shared: &Shared<D>,
    sequence: Sequence,
) -> Option<SegmentPlace<D::File>> {
    let start = || {
        let start = shared.index.read().start(sequence);
        start.filter(|start| start.segment.first <= sequence)
    };
    let mut found = start()?;
    if found.at.is_none() {
        build_sparse_index(shared, &found).ok()?;
        found = start()?;
    }
    let segment = &found.segment;
    let at = found.at?;
    let first = segment.first + u64::from(at.delta);
    let mut scan = Scan::from(segment, at.position, first, WINDOW_BYTES);
    loop {
        match scan.next().ok()? {
            Step::Record(position, frame) if frame.sequence == sequence => {
                return Some(SegmentPlace {
                    entry: Entry {
                        delta: (sequence - segment.first) as u32,
                        position,
                    },
                    bytes: frame.bytes,
                    segment: Arc::downgrade(segment),
                });
            }
            Step::Record(_, frame) if frame.sequence > sequence => return None,
            Step::Record(..) | Step::Watermark(_) => {}
            Step::End(..) => return None,
        }
    }
}
