//! Reads of the part of a stream in history.

use crate::disk::{Disk, DiskFile};
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::stored::{self, record_key};
use crate::ids::{Sequence, StreamNo};
use crate::read::large::{self, GivenRecord, HEAD_AT_ONCE, StreamRead};
use crate::read::large_places::LargePlace;
use crate::read::order::build_sparse_index;
use crate::read::progress::{FRAME_BYTES, ReadProgress};
use crate::segments::frame;
use crate::segments::index::{Entry, Start};
use crate::segments::scan::{Scan, Step};
use crate::segments::segment::Segment;
use crate::shared::Shared;
use std::ops::ControlFlow;
use std::time::Instant;

/// Gives `each` the records of a stream in history with `from` < sequence <= `upto`. Returns whether more is requested.
pub(crate) fn stream_in_history<D: Disk>(
    (shared, history): (&Shared<D>, &History),
    read: &StreamRead,
    (mut from, upto): (Sequence, Sequence),
    given: &mut ReadProgress,
    each: &mut dyn FnMut(GivenRecord<'_>),
) -> Result<bool, HistoryError> {
    let stream = read.stream;
    let large_min = read.large_min.unwrap_or(u32::MAX);
    while from < upto {
        let known = match read.large_min {
            Some(_) => shared.large_places.first(stream, (from, upto)),
            None => None,
        };
        if let Some(place) = known.filter(|place| place.bytes >= large_min) {
            if !given.takes_large() {
                return Ok(true);
            }
            if give(shared, stream, &place, read.verified_since, each) {
                from = place.sequence;
                given.add_large(from, place.bytes as usize);
                if !given.takes_large() {
                    // To look for the next one could be to load it.
                    return Ok(from < read.upto);
                }
                continue;
            }
        }
        let mut more = false;
        let mut large = None;
        history.read(stream, from, upto, &mut |view, value| {
            let bytes = FRAME_BYTES + view.payload.len();
            let is_large = bytes >= large_min as usize;
            more = match is_large {
                true => !given.takes_large(),
                false => !given.takes_whole(),
            };
            if is_large && !more {
                large = Some((view.sequence, value.clone()));
            }
            if is_large || more {
                return ControlFlow::Break(());
            }
            from = view.sequence;
            given.add(from, bytes);
            each(GivenRecord::Whole(view));
            ControlFlow::Continue(())
        })?;
        let Some((sequence, value)) = large else {
            return Ok(more);
        };
        if let Some(place) = find(shared, (from, sequence)) {
            shared.large_places.add(stream, place);
            continue;
        }
        // A large one that cannot be read in parts is alone as well.
        if !given.takes_whole() {
            return Ok(true);
        }
        from = sequence;
        given.add(sequence, usize::MAX);
        if let Some(view) = stored::view(stream, &record_key(stream, sequence), &value) {
            each(GivenRecord::Whole(view));
        }
        return Ok(from < read.upto);
    }
    Ok(false)
}

/// Gives a record from its segment. False: it is not there any more, and its place is forgotten.
fn give<D: Disk>(
    shared: &Shared<D>,
    stream: StreamNo,
    place: &LargePlace,
    verified_since: Option<Instant>,
    each: &mut dyn FnMut(GivenRecord<'_>),
) -> bool {
    let start = start(shared, place.sequence);
    let start = start.filter(|start| start.segment.number == place.segment);
    if let Some(Start { segment, .. }) = &start {
        let (directory, verified) = (&shared.directory, &shared.verified);
        let frame = (&place.entry, place.bytes);
        match large::give(directory, segment, frame, verified, verified_since, each) {
            Ok(Some(_)) => return true,
            Ok(None) => give_up(shared, segment, "the head of a record is too long"),
            Err(error) => give_up(shared, segment, &error.to_string()),
        }
    }
    shared.large_places.forget(stream, place.sequence);
    false
}

/// Looks for the record `sequence`, which is the first one of its stream behind `after`, in the segments that are kept for the global order.
fn find<D: Disk>(
    shared: &Shared<D>,
    (after, sequence): (Sequence, Sequence),
) -> Option<LargePlace> {
    let mut begin = start(shared, sequence)?;
    if shared.large_places.is_given_up(begin.segment.number) {
        return None;
    }
    if begin.at.is_none() {
        // It was in history when the log was opened.
        if let Err(error) = build_sparse_index(shared, &begin) {
            give_up(shared, &begin.segment, &error.to_string());
            return None;
        }
        begin = start(shared, sequence)?;
    }
    let (segment, at) = (begin.segment, begin.at?);
    let first = segment.first + u64::from(at.delta);
    let mut scan = Scan::from(&segment, at.position, first, SCAN_BYTES);
    loop {
        if scan.due() == sequence
            && let Some(bytes) = large_at(&segment, scan.position(), sequence)
        {
            let entry = Entry {
                delta: (sequence - segment.first) as u32,
                position: scan.position() as u32,
            };
            return Some(LargePlace {
                after,
                sequence,
                segment: segment.number,
                entry,
                bytes,
            });
        }
        match scan.next() {
            Ok(Step::Record(_, frame)) if frame.sequence >= sequence => return None,
            Ok(Step::Record(..) | Step::Watermark(_)) => {}
            Ok(Step::End(_, flaw)) => {
                give_up(shared, &segment, flaw.text());
                return None;
            }
            Err(error) => {
                give_up(shared, &segment, &error.to_string());
                return None;
            }
        }
    }
}

/// The bytes of the frame at a position, if it is that of a large record with that sequence. It is verified before it is given.
fn large_at<F: DiskFile>(segment: &Segment<F>, position: u64, sequence: Sequence) -> Option<u32> {
    let mut head = [0; HEAD_AT_ONCE];
    let read = segment.file.read_at(&mut head, position).ok()?;
    let head = &head[..read];
    let room = segment.bytes.saturating_sub(position);
    let bytes = frame::length(head.first_chunk()?, room).ok()?;
    let found = frame::positioned(head)?;
    (found.sequence == sequence && bytes as usize > head.len()).then_some(bytes)
}

/// Where to begin to look for a record, if its segment is kept.
fn start<D: Disk>(shared: &Shared<D>, sequence: Sequence) -> Option<Start<D::File>> {
    let start = shared.index.read().start(sequence);
    start.filter(|start| start.segment.first <= sequence)
}

/// Leaves the records of a segment to history, which has them too.
fn give_up<D: Disk>(shared: &Shared<D>, segment: &Segment<D::File>, why: &str) {
    if shared.large_places.give_up(segment.number) {
        let path = shared.directory.join(&segment.name);
        tracing::warn!(segment = %path.display(), why, "a segment is damaged; its records are read from history");
    }
}

/// How much of a segment is read at once to find a record.
const SCAN_BYTES: usize = 64 << 10;
