//! Reads of a stream backwards, from its newest records to older ones.

use crate::disk::Disk;
use crate::error::ReadError;
use crate::ids::{Sequence, StreamNo};
use crate::read::window::Window;
use crate::segments::frame::{FrameView, HEAD_BYTES, STREAM_BYTES};
use crate::segments::index::{Entry, Index};
use crate::segments::segment::Segment;
use crate::shared::Shared;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How much a read backwards gives at most: it ends behind the record that reaches one of the bounds.
#[derive(Clone, Copy, Debug)]
pub struct BackwardBounds {
    /// Records.
    pub records_max: usize,
    /// Bytes of their frames.
    pub bytes_max: usize,
}

impl BackwardBounds {
    /// Takes a record of so many bytes off. Whether no further record may be given.
    fn spend(&mut self, bytes: usize) -> bool {
        self.records_max = self.records_max.saturating_sub(1);
        self.bytes_max = self.bytes_max.saturating_sub(bytes);
        self.records_max == 0 || self.bytes_max == 0
    }

    /// At least as many records as can be given.
    fn records(&self) -> usize {
        let of_bytes = self.bytes_max / (HEAD_BYTES + STREAM_BYTES) + 1;
        self.records_max.clamp(1, of_bytes)
    }
}

/// Gives `each` the records of a stream with `after` < sequence <= `upto`, newest first, within the bounds, but at least one record.
/// Returns the sequence up to which requested records may be left; `None` if all were given.
pub(crate) fn stream_back<D: Disk>(
    shared: &Shared<D>,
    stream: StreamNo,
    (after, upto): (Sequence, Sequence),
    mut bounds: BackwardBounds,
    each: &mut dyn FnMut(FrameView<'_>),
) -> Result<Option<Sequence>, ReadError> {
    let floor = shared.floor(stream).map_err(|e| shared.unreadable(e))?;
    let after = after.max(floor);
    let left_below = |sequence: Sequence| Some(sequence - 1).filter(|last| *last > after);
    let index = shared.index.read();
    let upto = upto.min(index.published);
    let history_upto = index.history_upto.min(upto);
    let recent = find(
        &index,
        stream,
        (after.max(history_upto), upto),
        bounds.records(),
    );
    drop(index);
    for (segment, entries) in &recent {
        let mut window = Window::new(&shared.directory, segment);
        let mut entries = &entries[..];
        while let Some((entry, older)) = entries.split_first() {
            let (bytes, sequence) = window.frame_back(entry, older, bounds.bytes_max, |frame| {
                each(frame.view(Some(stream)));
            })?;
            if bounds.spend(bytes) {
                return Ok(left_below(sequence));
            }
            entries = older;
        }
    }
    let mut left = None;
    if let Some(history) = &shared.history {
        let read = history.read_back(stream, after, history_upto, &mut |view, _| {
            let (bytes, sequence) = (
                HEAD_BYTES + STREAM_BYTES + view.payload.len(),
                view.sequence,
            );
            each(view);
            match bounds.spend(bytes) {
                true => {
                    left = left_below(sequence);
                    ControlFlow::Break(())
                }
                false => ControlFlow::Continue(()),
            }
        });
        read.map_err(|e| shared.unreadable(e))?;
    }
    Ok(left)
}

/// The positions of the last records of a stream with `after` < sequence <= `upto`, at most `records_max`, newest first.
fn find<F>(
    index: &Index<F>,
    stream: StreamNo,
    (after, upto): (Sequence, Sequence),
    records_max: usize,
) -> Vec<(Arc<Segment<F>>, Vec<Entry>)> {
    let from = after.saturating_add(1);
    let mut found = Vec::new();
    let mut left = records_max;
    for segment in index.segments.iter().rev() {
        if left == 0 || segment.end() <= from {
            break;
        }
        let entries = segment.last_records(stream, (from, upto), left);
        left -= entries.len();
        if !entries.is_empty() {
            found.push((segment.segment.clone(), entries));
        }
    }
    found
}
