//! Lists the records of a log that is not open.

use crate::diagnosis::Diagnosis;
use crate::disk::files::{FileAccess, Files};
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::history::error::HistoryError;
use crate::history::verify::inspect::ReadWhole;
use crate::ids::{Sequence, StreamNo};
use crate::segments::frame::FrameView;
use crate::segments::scan::{self, Scan, Step, Tail, WINDOW_BYTES};
use crate::segments::segment::{self, Segment};
use std::ops::ControlFlow;
use std::path::Path;

/// Which records [`dump`] gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpFilter {
    /// Records from this one on; 0 for all.
    pub from: Sequence,
    /// Records of this stream, in history too; `None` for the global order, which only segments have.
    pub stream: Option<StreamNo>,
}

/// The result of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpReport {
    /// The number of records.
    pub records: u64,
    /// The oldest record in the segments, and so of the global order; 0 without segments.
    pub oldest: Sequence,
}

/// Gives `each` the stored records that match the filter, oldest first, until it breaks. Records below a stream's floor
/// that are not reclaimed yet are included. The log must not be open.
///
/// # Errors
/// As [`check`](crate::check), and the first damage, after all records before it were given.
pub fn dump(
    directory: &Path,
    filter: DumpFilter,
    each: &mut dyn FnMut(FrameView<'_>) -> ControlFlow<()>,
) -> Result<DumpReport, OpenError> {
    dump_on(
        &Files::lock_existing(directory, FileAccess::Read)?,
        filter,
        each,
    )
}

/// [`dump`] on any disk.
///
/// # Errors
/// As [`dump`].
pub fn dump_on<D: Disk>(
    disk: &D,
    filter: DumpFilter,
    each: &mut dyn FnMut(FrameView<'_>) -> ControlFlow<()>,
) -> Result<DumpReport, OpenError> {
    let mut report = DumpReport::default();
    let mut from = filter.from.max(1);
    let firsts = segment::names(disk)?;
    report.oldest = firsts.first().map_or(0, |(first, _)| *first);
    let mut give = |view: FrameView<'_>| {
        report.records += 1;
        each(view)
    };
    if let Some(stream) = filter.stream
        && let diagnosis = Diagnosis::of(disk, ReadWhole::Unknown)?
        && let Some(history) = diagnosis.history()
    {
        let path = disk.history().unwrap_or_default();
        let unreadable = |e: HistoryError| e.on_open(&path, "read");
        if let Some((_, what)) = diagnosis.problems.first() {
            return Err(unreadable(HistoryError::from(what.clone())));
        }
        let upto = diagnosis.marks.history_upto;
        let mut flow = ControlFlow::Continue(());
        let read = history.read(stream, from - 1, upto, &mut |view, _| {
            flow = give(view);
            flow
        });
        read.map_err(unreadable)?;
        if flow.is_break() {
            return Ok(report);
        }
        from = from.max(upto + 1);
    }
    for (i, (_, name)) in firsts.iter().enumerate() {
        let next = firsts.get(i + 1).map(|(first, _)| *first);
        if next.is_some_and(|next| next <= from) {
            continue;
        }
        let segment = Segment::open(disk, name)?;
        let flow = walk(disk, &segment, next, &mut |view| {
            let wanted = filter
                .stream
                .is_none_or(|stream| view.streams.iter().any(|(of, _)| of == stream));
            if view.sequence < from || !wanted {
                return ControlFlow::Continue(());
            }
            give(FrameView {
                stream: filter.stream.unwrap_or(view.stream),
                ..view
            })
        })?;
        if flow.is_break() {
            break;
        }
    }
    Ok(report)
}

/// Gives every record of a segment, up to the first one of the next segment. Returns an error where the segment is
/// damaged.
fn walk<D: Disk>(
    disk: &D,
    segment: &Segment<D::File>,
    next: Option<Sequence>,
    give: &mut dyn FnMut(FrameView<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, OpenError> {
    let unreadable = |e| OpenError::io(&disk.path(&segment.name), "read", e);
    let mut scan = Scan::new(segment, WINDOW_BYTES);
    while next.is_none_or(|next| scan.due() < next) {
        let (position, due) = (scan.position(), scan.due());
        match scan.next().map_err(unreadable)? {
            Step::Record(_, frame) => {
                if give(frame.view(None)).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Step::Watermark(_) => {}
            Step::End(..)
                if next.is_none() && is_end(segment, position, due).map_err(unreadable)? =>
            {
                break;
            }
            Step::End(_, flaw) => {
                return Err(OpenError::Damaged {
                    file: disk.path(&segment.name),
                    position,
                    sequence: due,
                    what: flaw.text().to_owned(),
                });
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Whether the last segment may end here: nothing that was durable follows.
fn is_end<F: DiskFile>(
    segment: &Segment<F>,
    position: u64,
    due: Sequence,
) -> std::io::Result<bool> {
    let tail = scan::tail(segment, position, due)?;
    Ok(!matches!(tail, Tail::Confirmed { .. }))
}
