//! Reads of a stream, from older records to newer ones.

use crate::disk::Disk;
use crate::error::ReadError;
use crate::ids::{Sequence, StreamNo};
use crate::read::in_history::stream_in_history;
use crate::read::large::{self, GivenRecord, StreamRead};
use crate::read::progress::{FRAME_BYTES, ReadEnd, ReadProgress};
use crate::read::window::Window;
use crate::segments::index::{Entry, Index};
use crate::segments::segment::Segment;
use crate::shared::Shared;
use std::sync::Arc;

/// Gives `each` the records of a stream with `after` < sequence <= `upto`, in order, until about `bytes_max` bytes were given,
/// but at least one record. A large record is given first, or left for the next read.
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
        ..
    } = *read;
    let mut floor = shared.floor(stream).map_err(|e| shared.unreadable(e))?;
    let from = after.max(floor);
    let records_max = bytes_max / FRAME_BYTES + 1;
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
    let mut given = ReadProgress::new(read);
    let mut more = false;
    if let Some(history) = &shared.history {
        let history = (shared, history);
        let read = stream_in_history(history, read, (from, history_upto), &mut given, each);
        more = read.map_err(|e| shared.unreadable(e))?;
        if given.has_large() {
            // History was read several times, between which records may have been removed.
            floor = shared.floor(stream).map_err(|e| shared.unreadable(e))?;
        }
    }
    // A retention floor that rose during the read may have taken records away from it.
    let end = |last, more| ReadEnd {
        last,
        more,
        floor: floor.max(shared.retention_floor_of(stream)),
    };
    if let (true, Some(last)) = (more, given.last) {
        return Ok(end(last, more));
    }
    for (segment, entries) in &found {
        let mut window = Window::new(&shared.directory, segment);
        for (i, entry) in entries.iter().enumerate() {
            if let (true, Some(last)) = (given.is_full(), given.last) {
                return Ok(end(last, true));
            }
            let large = match large_min {
                Some(min) => window.large(entry, &entries[i..], given.left, min)?,
                None => None,
            };
            if let Some(bytes) = large {
                if let (false, Some(last)) = (given.takes_large(), given.last) {
                    return Ok(end(last, true));
                }
                let (directory, verified) = (&shared.directory, &shared.verified);
                let since = read.verified_since;
                let frame = (entry, bytes);
                let sequence = large::give(directory, segment, frame, verified, since, each)?;
                if let Some(sequence) = sequence {
                    given.add_large(sequence, bytes as usize);
                    continue;
                }
            }
            if let (false, Some(last)) = (given.takes_whole(), given.last) {
                return Ok(end(last, true));
            }
            let (bytes, sequence) = window.frame(entry, &entries[i..], given.left, |frame| {
                each(GivenRecord::Whole(frame.view(Some(stream))));
            })?;
            // A large one whose head could not be read by itself is alone as well.
            given.add(sequence, large.map_or(bytes, |_| usize::MAX));
        }
    }
    Ok(end(upto.max(after), false))
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
