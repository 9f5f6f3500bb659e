//! Recovers the segments of a log at a start. First all segments are read and compared with the superblock, and nothing
//! is changed; then the tail is repaired.
//!
//! Every segment but the last must be sound up to the record before the next one's first, because a segment begins only
//! when that is durable. The last segment may end in a torn batch. The bytes behind its last sound frame are cut off,
//! unless a later frame states that they were durable; then the log is refused. After a cut the next record begins a
//! new segment, because a write over a torn tail could make stale frames valid again.

use crate::disk::{Disk, DiskFile, is_shortage};
use crate::error::OpenError;
use crate::ids::Sequence;
use crate::segments::frame::{FILLER, Flaw, FrameView};

use crate::disk::file_name;
use crate::segments::index::{Index, IngestedSegment, SegmentIndex};
use crate::segments::scan::{self, Scan, Step, Tail, WINDOW_BYTES};
use crate::segments::segment::{HEAD_BYTES, Segment};
use crate::superblock::statement::{LastSegment, Marks, Statement};
use crate::write::prepare::{self, Preparer};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The segments of a log after recovery.
#[derive(Debug)]
pub(crate) struct Recovered<F> {
    /// The segment that is written to, and how many of its bytes are in use.
    pub(crate) active: Arc<Segment<F>>,
    pub(crate) used: u64,
    /// The length of its file.
    pub(crate) active_bytes: u64,
    /// The sequence of the next record; all before it are durable.
    pub(crate) next: Sequence,
    /// Frames state that the log is durable up to this record.
    pub(crate) confirmed_upto: Sequence,
    pub(crate) index: Index<F>,
}

/// The segments of a log as they were found. Nothing is changed yet.
pub(crate) struct FoundSegments<F> {
    index: Index<F>,
    /// `None` without segments.
    last: Option<LastSegmentContent<F>>,
    /// Segments before a missing one, whose records are all in history.
    unneeded: Vec<Arc<Segment<F>>>,
}

impl<F: DiskFile> FoundSegments<F> {
    /// The last segment as it is to be stated before anything is changed, without the part that will be cut off.
    pub(crate) fn last(&self, segment_bytes: u64) -> Option<LastSegment> {
        let last = self.last.as_ref()?;
        let segment = &last.index.segment;
        let bytes = match (last.is_replaced(segment_bytes), last.torn) {
            (true, _) => segment.bytes.min(segment_bytes),
            (false, true) => last.end,
            (false, false) => segment.bytes,
        };
        Some(LastSegment {
            number: segment.number,
            first: segment.first,
            bytes,
        })
    }

    /// The number of the next segment.
    pub(crate) fn next_number(&self) -> u64 {
        let last = self.last.as_ref();
        last.map_or(1, |last| last.index.segment.number + 1)
    }
}

/// Opens and reads all segments, compares them with the statement, and changes nothing. `replay` gets every record
/// after the checkpoint in `marks`.
pub(crate) fn find<D: Disk>(
    disk: &D,
    names: &[String],
    stated: Option<&Statement>,
    marks: Marks,
    replay: &mut dyn FnMut(FrameView<'_>),
) -> Result<FoundSegments<D::File>, OpenError> {
    let missing = |from, upto| OpenError::Missing {
        directory: disk.path(""),
        from,
        upto,
    };
    let mut replay = |view: FrameView<'_>| {
        let is_filler = view.streams.is_empty() && view.payload == FILLER;
        if view.sequence > marks.checkpoint_upto && !is_filler {
            replay(view);
        }
    };
    let mut segments = open_segments(disk, names)?;
    if let Some(stated) = stated {
        check_identities(disk, &segments, stated)?;
    }
    let settled_upto = marks.history_upto.min(marks.checkpoint_upto);
    let required_upto = marks.history_upto.max(marks.checkpoint_upto);
    let unneeded = split_off_unneeded(&mut segments, settled_upto);
    let mut index = Index {
        published: 0,
        history_upto: marks.history_upto,
        checkpoint_upto: marks.checkpoint_upto,
        done: VecDeque::new(),
        segments: VecDeque::with_capacity(segments.len() + 1),
    };
    let Some(last) = segments.pop() else {
        let stated_upto = stated.map_or(0, |stated| stated.durable_upto);
        let lost = stated.is_some_and(|stated| stated.last.is_some());
        return match required_upto.max(stated_upto) {
            0 if !lost => Ok(FoundSegments {
                index,
                last: None,
                unneeded,
            }),
            upto => Err(missing(1, upto.max(1))),
        };
    };
    let oldest = segments.first().unwrap_or(&last).first;
    if oldest > settled_upto + 1 {
        return Err(missing(settled_upto + 1, oldest - 1));
    }
    if let Some(stated) = stated {
        check_last(disk, &last, stated)?;
    }
    // Segments that are not settled are read whole, in order; the disk may read ahead.
    let read = segments.iter().skip(1).chain([&last]);
    for (segment, next) in segments.iter().zip(read) {
        if next.first - 1 > settled_upto {
            segment.file.expect_reads();
        }
    }
    last.file.expect_reads();
    for (i, segment) in segments.iter().enumerate() {
        let next = segments.get(i + 1).unwrap_or(&last);
        let (segment, end) = (segment.clone(), next.first);
        if end - 1 <= settled_upto {
            let places = None;
            index.done.push_back(IngestedSegment {
                segment,
                end,
                places,
            });
        } else {
            let in_history = end - 1 <= marks.history_upto;
            let mut sealed = read_sealed(disk, &segment, next, !in_history, &mut replay)?;
            if in_history {
                let places = Some(sealed.take_sparse_index());
                index.done.push_back(IngestedSegment {
                    segment,
                    end,
                    places,
                });
            } else {
                index.segments.push_back(sealed);
            }
        }
    }
    let last = read_last(disk, &last, &mut replay)?;
    let next = last.index.end();
    if let Some(durable_upto) = stated.map(|stated| stated.durable_upto)
        && next <= durable_upto
    {
        let what = format!(
            "there is no sound frame, and the superblock states that the log was durable up to record {durable_upto}"
        );
        return Err(damaged(disk, &last.index.segment, last.end, next, what));
    }
    if next <= required_upto {
        return Err(missing(next, required_upto));
    }
    Ok(FoundSegments {
        index,
        last: Some(last),
        unneeded,
    })
}

/// Repairs the tail of the segments that were found, and begins the first segment of a new log.
pub(crate) fn recover<D: Disk>(
    disk: &D,
    preparer: &Preparer<D>,
    log_id: u64,
    found: FoundSegments<D::File>,
) -> Result<Recovered<D::File>, OpenError> {
    // A crash may have come between giving a name and making it durable.
    disk.sync_names()
        .map_err(|e| OpenError::io(&disk.path(""), "sync the directory", e))?;
    for segment in found.unneeded {
        let path = disk.path(&segment.name);
        tracing::warn!(file = %path.display(), "removing a segment that is in history, because the one after it is missing");
        disk.remove(&segment.name)
            .map_err(|e| OpenError::io(&path, "remove", e))?;
    }
    match found.last {
        Some(last) => recover_tail(disk, preparer, log_id, found.index, last),
        None => create_first(disk, preparer, log_id, found.index),
    }
}

/// Refuses a segment of another log.
fn check_identities<D: Disk>(
    disk: &D,
    segments: &[Arc<Segment<D::File>>],
    stated: &Statement,
) -> Result<(), OpenError> {
    for segment in segments {
        if !stated.is_of(segment) {
            let what = "the segment is of another log".to_owned();
            return Err(damaged(disk, segment, 0, segment.first, what));
        }
    }
    Ok(())
}

/// The last segment must be the stated one, at least as long as stated, or a later one.
fn check_last<D: Disk>(
    disk: &D,
    last: &Segment<D::File>,
    stated: &Statement,
) -> Result<(), OpenError> {
    let Some(expected) = stated.last else {
        return Ok(());
    };
    if last.number < expected.number {
        return Err(OpenError::Missing {
            directory: disk.path(""),
            from: expected.first,
            upto: stated.durable_upto.max(expected.first),
        });
    }
    if last.number == expected.number && last.bytes < expected.bytes {
        let what = format!(
            "the file has {} bytes, and {} are stated",
            last.bytes, expected.bytes
        );
        return Err(damaged(disk, last, last.bytes, last.first, what));
    }
    Ok(())
}

/// Settled segments are needed for the global order only. When one is missing, those before it are not needed: a crash
/// may have interrupted the removal of old segments.
fn split_off_unneeded<F>(
    segments: &mut Vec<Arc<Segment<F>>>,
    settled_upto: Sequence,
) -> Vec<Arc<Segment<F>>> {
    let follows = |pair: &[Arc<Segment<F>>]| pair[1].number == pair[0].number + 1;
    let gap = segments
        .windows(2)
        .rposition(|pair| !follows(pair) && pair[1].first - 1 <= settled_upto);
    segments.drain(..gap.map_or(0, |gap| gap + 1)).collect()
}

/// Begins the first segment of a log without records.
fn create_first<D: Disk>(
    disk: &D,
    preparer: &Preparer<D>,
    log_id: u64,
    mut index: Index<D::File>,
) -> Result<Recovered<D::File>, OpenError> {
    let active = begin_segment(disk, preparer, (log_id, 1), 1)?;
    let only = SegmentIndex::new(active.clone(), 0);
    index.segments.push_back(only);
    Ok(Recovered {
        active_bytes: active.bytes,
        used: HEAD_BYTES,
        next: 1,
        confirmed_upto: 0,
        index,
        active,
    })
}

/// Begins a segment while the log is being opened.
fn begin_segment<D: Disk>(
    disk: &D,
    preparer: &Preparer<D>,
    (log_id, number): (u64, u64),
    first: Sequence,
) -> Result<Arc<Segment<D::File>>, OpenError> {
    let failed = |error| match error {
        error if is_shortage(&error) => OpenError::NoSpace {
            directory: disk.path(""),
            bytes: preparer.segment_bytes(),
            source: error,
        },
        error => OpenError::io(&disk.path(&file_name::segment(first)), "make", error),
    };
    let prepared = preparer.take(1).map_err(failed)?.remove(0);
    prepare::begin(disk, prepared, (log_id, number), first).map_err(failed)
}

/// All segments, oldest first.
fn open_segments<D: Disk>(
    disk: &D,
    names: &[String],
) -> Result<Vec<Arc<Segment<D::File>>>, OpenError> {
    let mut firsts: Vec<_> = names
        .iter()
        .filter_map(|name| Some((file_name::first_of(name)?, name)))
        .collect();
    firsts.sort_unstable();
    let open = |(_, name): (Sequence, &String)| Ok(Arc::new(Segment::open(disk, name)?));
    firsts.into_iter().map(open).collect()
}

/// Reads a segment that another one follows: its records go up to the next one's first, whatever follows them. Its
/// streams are indexed only if `streams_wanted`.
fn read_sealed<D: Disk>(
    disk: &D,
    segment: &Arc<Segment<D::File>>,
    next: &Segment<D::File>,
    streams_wanted: bool,
    replay: &mut dyn FnMut(FrameView<'_>),
) -> Result<SegmentIndex<D::File>, OpenError> {
    let mut index = SegmentIndex::new(segment.clone(), 0);
    let mut scan = Scan::new(segment, WINDOW_BYTES);
    while scan.due() < next.first {
        let (position, due) = (scan.position(), scan.due());
        match scan.next().map_err(|e| unreadable(disk, segment, e))? {
            Step::Record(at, frame) => {
                let streams = frame.streams.iter().map(|(stream, _)| stream);
                let (of, time) = (frame.sequence, frame.time);
                index.insert(streams.filter(|_| streams_wanted), (of, time), at);
                replay(frame.view(None));
            }
            Step::Watermark(_) => {}
            // It ends without damage, so the segment after it is missing.
            Step::End(_, Flaw::Nothing) if next.number != segment.number + 1 => {
                return Err(OpenError::Missing {
                    directory: disk.path(""),
                    from: due,
                    upto: next.first - 1,
                });
            }
            Step::End(_, flaw) => {
                let (what, next) = (flaw.text(), &next.name);
                let what = format!("{what}, and {next} was begun after it");
                return Err(damaged(disk, segment, position, due, what));
            }
        }
    }
    if scan.due() != next.first || next.number != segment.number + 1 {
        let what = format!("the segment numbered {} does not follow", next.number);
        return Err(damaged(disk, segment, scan.position(), scan.due(), what));
    }
    Ok(index)
}

/// The content of the last segment.
struct LastSegmentContent<F> {
    index: SegmentIndex<F>,
    /// The end of its last sound frame.
    end: u64,
    /// The end of the last record that a later frame states to be durable. What follows, including a watermark, may be
    /// in memory only.
    unconfirmed_from: u64,
    confirmed_upto: Sequence,
    torn: bool,
}

fn read_last<D: Disk>(
    disk: &D,
    segment: &Arc<Segment<D::File>>,
    replay: &mut dyn FnMut(FrameView<'_>),
) -> Result<LastSegmentContent<D::File>, OpenError> {
    let mut index = SegmentIndex::new(segment.clone(), 0);
    // The segment exists, so everything before it is durable.
    let mut confirmed_upto = segment.first - 1;
    let mut unconfirmed_from = HEAD_BYTES;
    let mut ends: VecDeque<(Sequence, u64)> = VecDeque::new();
    let mut scan = Scan::new(segment, WINDOW_BYTES);
    let (end, due) = loop {
        let due = scan.due();
        let durable_upto = match scan.next().map_err(|e| unreadable(disk, segment, e))? {
            Step::Record(at, frame) => {
                index.insert(
                    frame.streams.iter().map(|(stream, _)| stream),
                    (frame.sequence, frame.time),
                    at,
                );
                ends.push_back((frame.sequence, u64::from(at) + u64::from(frame.bytes)));
                replay(frame.view(None));
                frame.durable_upto
            }
            Step::Watermark(durable_upto) => Some(durable_upto),
            Step::End(end, _) => break (end, due),
        };
        confirmed_upto = confirmed_upto.max(durable_upto.unwrap_or(0));
        while let Some((_, end)) = ends.pop_front_if(|(sequence, _)| *sequence <= confirmed_upto) {
            unconfirmed_from = end;
        }
    };
    let torn = match scan::tail(segment, end, due).map_err(|e| unreadable(disk, segment, e))? {
        Tail::Clean => false,
        Tail::Torn { .. } => true,
        Tail::Confirmed {
            position,
            durable_upto,
            ..
        } => {
            let what = format!(
                "there is no sound frame, and the one at byte {position} states that the log was durable up to record {durable_upto}"
            );
            return Err(damaged(disk, segment, end, due, what));
        }
    };
    Ok(LastSegmentContent {
        index,
        end,
        unconfirmed_from,
        confirmed_upto,
        torn,
    })
}

/// Makes the records of the last segment durable, and cuts off a torn tail.
fn recover_tail<D: Disk>(
    disk: &D,
    preparer: &Preparer<D>,
    log_id: u64,
    mut index: Index<D::File>,
    last: LastSegmentContent<D::File>,
) -> Result<Recovered<D::File>, OpenError> {
    let segment = last.index.segment.clone();
    let (path, next, end) = (disk.path(&segment.name), last.index.end(), last.end);
    let failed = |action| {
        let path = &path;
        move |e| OpenError::io(path, action, e)
    };
    index.published = next - 1;
    let (active, used, active_bytes) = if last.is_replaced(preparer.segment_bytes()) {
        if last.torn {
            tracing::warn!(file = %path.display(), "replacing a segment that holds nothing but a torn batch");
        }
        let active = begin_segment(disk, preparer, (log_id, segment.number), next)?;
        let only = SegmentIndex::new(active.clone(), 0);
        index.segments.push_back(only);
        let bytes = active.bytes;
        (active, HEAD_BYTES, bytes)
    } else {
        rewrite(&segment, last.unconfirmed_from, end).map_err(failed("make durable"))?;
        if last.torn {
            tracing::warn!(file = %path.display(), position = end, next, "cut off a torn batch");
            let cut = segment
                .file
                .truncate(end)
                .and_then(|()| segment.file.sync());
            cut.map_err(failed("truncate"))?;
        }
        index.segments.push_back(last.index);
        // Nothing is written behind a torn tail: the next record begins a segment.
        let bytes = segment.bytes;
        match last.torn {
            true => (segment, bytes, end),
            false => (segment, end, bytes),
        }
    };
    Ok(Recovered {
        active,
        used,
        active_bytes,
        next,
        confirmed_upto: last.confirmed_upto,
        index,
    })
}

impl<F> LastSegmentContent<F> {
    /// Whether a new segment replaces this one, which has no records. An empty segment must have room for any frame:
    /// one that does not fit would begin another segment with the same first record.
    fn is_replaced(&self, segment_bytes: u64) -> bool {
        let segment = &self.index.segment;
        let too_small = segment.bytes < segment_bytes;
        self.index.end() == segment.first && (self.torn || too_small)
    }
}

/// Writes again the frames that no other frame states to be durable, including the frame that states the others, and
/// syncs them. A process that ended after a failed sync leaves frames that can be read and are not on the disk. The
/// kernel considers them clean, so a sync alone would prove nothing.
fn rewrite<F: DiskFile>(segment: &Segment<F>, from: u64, to: u64) -> io::Result<()> {
    let mut position = from;
    let mut buffer = vec![0; WINDOW_BYTES.min((to - from) as usize)];
    while position < to {
        let bytes = buffer.len().min((to - position) as usize);
        if segment.file.read_at(&mut buffer[..bytes], position)? < bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        segment.file.write_at(&buffer[..bytes], position)?;
        position += bytes as u64;
    }
    if from < to {
        segment.file.sync()
    } else {
        Ok(())
    }
}

fn unreadable<D: Disk>(disk: &D, segment: &Segment<D::File>, error: io::Error) -> OpenError {
    OpenError::io(&disk.path(&segment.name), "read", error)
}

fn damaged<D: Disk>(
    disk: &D,
    segment: &Segment<D::File>,
    position: u64,
    sequence: Sequence,
    what: String,
) -> OpenError {
    OpenError::Damaged {
        file: disk.path(&segment.name),
        position,
        sequence,
        what,
    }
}
