//! Reads the records of all streams that match patterns, in the order of the log.
//!
//! The order has records by the numbers of their streams, and what a stream's own readers may not see. So a read takes three
//! steps: it collects records, finds the name and the present state of each of their streams, and keeps what the streams' own
//! readers would get.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use encke_clock::WallTime;
use encke_log::{Disk, FORGOTTEN, FrameView, ReadError, Reader, Sequence, StreamNo};

use crate::at_rest::load::{LoadError, Loader, Outline};
use crate::read::large_records::RECORD_BYTES;
use crate::read::piece::{OrderEvent, OrderedRecord, Piece};
use crate::stream::label::StreamLabel;
use crate::stream::media::Media;
use crate::stream::number::born;
use crate::stream::record::{Change, KIND_CHANGE};
use crate::view::pattern::Pattern;

/// A read of the global order of a log.
#[derive(Clone, Debug)]
pub struct OrderFetch {
    /// The index of the log.
    pub log: usize,
    /// Patterns, no two of which match the same name.
    pub patterns: Vec<Arc<Pattern>>,
    /// The first record is behind this one.
    pub after: Sequence,
    /// The last record.
    pub upto: Sequence,
    /// About how many bytes of the log are read, of matching streams or not. Of a record only the first [`RECORD_BYTES`] are given.
    pub bytes_max: usize,
}

impl Piece {
    /// Reads the records of the streams that match patterns from the global order. A record belongs to the stream to which it
    /// was appended, so a fork has none of its source's. Records that are acknowledged and not written yet are left for another
    /// piece.
    ///
    /// # Errors
    /// As [`Piece::read`], and [`ReadError::NoLongerKept`] if the order does not go back that far.
    pub fn read_order<D: Disk>(
        log: &Reader<D>,
        loader: &Loader<Reader<D>>,
        fetch: &OrderFetch,
    ) -> Result<Piece, ReadError> {
        // Before the read: what is published meanwhile is left for the next piece.
        let published = log.published();
        let mut candidates = Candidates::default();
        let mut removed = Candidates::default();
        let end = log.read_all(
            fetch.after,
            fetch.upto.min(published),
            fetch.bytes_max,
            &mut |frame, floor| {
                if floor != FORGOTTEN {
                    removed.take(&frame, fetch, true);
                }
            },
            &mut |frame| candidates.take(&frame, fetch, false),
        )?;
        candidates.join(removed);
        let last = end.last.max(fetch.after);
        let lacks = last == fetch.after && fetch.after < fetch.upto;
        if lacks && let Some(reason) = log.given_up(published) {
            return Err(ReadError::NeverWritten {
                stream: 0,
                after: published,
                reason,
            });
        }
        let streams = candidates.streams(log, loader, fetch)?;
        let mut piece = candidates.piece(&streams);
        piece.end_order(last, last < fetch.upto, lacks);
        Ok(piece)
    }
}

/// Records that were read from the order, before the states of the streams are known.
#[derive(Default)]
struct Candidates {
    records: Vec<Candidate>,
    /// Their data.
    bytes: Vec<u8>,
    /// Streams whose creation is among the records: those that match, with their labels.
    created: HashMap<StreamNo, Option<StreamLabel>, foldhash::fast::FixedState>,
}

struct Candidate {
    sequence: Sequence,
    time: WallTime,
    stream: StreamNo,
    data: Range<usize>,
    units: u32,
    event: OrderEvent,
}

/// A stream whose name a pattern matches.
struct MatchingStream {
    label: Arc<StreamLabel>,
    pattern: usize,
    /// Its own readers must not see its records up to this one.
    floor: Sequence,
    /// Its own readers can read it.
    live: bool,
}

type MatchingStreams = HashMap<StreamNo, MatchingStream, foldhash::fast::FixedState>;

impl Candidates {
    /// Takes a record, unless its stream is known not to match.
    fn take(&mut self, frame: &FrameView<'_>, fetch: &OrderFetch, removed: bool) {
        if frame.kind != KIND_CHANGE {
            return;
        }
        // The log has checked the frame, and opening the log has refused payloads that cannot be decoded.
        let Ok((change, data)) = Change::decode(frame.payload) else {
            return;
        };
        if let Some(label) = created(&change) {
            let label = fetch.matching(&label.name).map(|_| label);
            self.created.insert(frame.stream, label);
        }
        if let Some(None) = self.created.get(&frame.stream) {
            return;
        }
        let units = change.units();
        let event = match &change {
            // What had no data leaves no gap.
            _ if removed && units == 0 => return,
            _ if removed => OrderEvent::Removed,
            Change::Delete => OrderEvent::Deleted,
            change if change.closes() => {
                OrderEvent::Closed(change.extras().and_then(|extras| extras.end))
            }
            _ if units == 0 => return,
            _ => OrderEvent::Data,
        };
        let start = self.bytes.len();
        if !removed {
            // One byte more shows that it is only the beginning.
            let data = &data[..data.len().min(RECORD_BYTES + 1)];
            self.bytes.extend_from_slice(data);
        }
        self.records.push(Candidate {
            sequence: frame.sequence,
            time: frame.time,
            stream: frame.stream,
            data: start..self.bytes.len(),
            units,
            event,
        });
    }

    /// Adds removed records, of each stream the first.
    fn join(&mut self, removed: Candidates) {
        let mut seen = HashSet::new();
        let first = removed.records.into_iter();
        self.records
            .extend(first.filter(|record| seen.insert(record.stream)));
        self.records.sort_by_key(|record| record.sequence);
        self.created.extend(removed.created);
    }

    /// The streams that match, in their present state.
    fn streams<D: Disk>(
        &self,
        log: &Reader<D>,
        loader: &Loader<Reader<D>>,
        fetch: &OrderFetch,
    ) -> Result<MatchingStreams, ReadError> {
        let mut streams = MatchingStreams::default();
        let mut nameless = HashSet::new();
        let mut seen = HashSet::new();
        for no in self.records.iter().map(|record| record.stream) {
            if !seen.insert(no) {
                continue;
            }
            let mut label = self.created.get(&no).cloned().flatten();
            if label.is_none() {
                label = loader.stored_label(no).or_else(skip(no))?;
            }
            if label.is_none() {
                label = creation(log, no)?;
            }
            match label {
                Some(label) => fetch.add(no, label, loader, &mut streams)?,
                None => {
                    nameless.insert(no);
                }
            }
        }
        // Created since the last checkpoint, with the record that created them removed: one visit to all streams finds them.
        for label in loader.labels_in_memory(&nameless) {
            let (no, label) = label;
            fetch.add(no, label, loader, &mut streams)?;
        }
        Ok(streams)
    }

    /// What the streams' own readers would get, in order.
    fn piece(&self, streams: &MatchingStreams) -> Piece {
        let mut piece = Piece::default();
        let mut gaps = HashSet::new();
        for record in &self.records {
            let Some(stream) = streams.get(&record.stream) else {
                continue;
            };
            let removed = record.event == OrderEvent::Removed || record.sequence <= stream.floor;
            let (event, data, units) = match record.event {
                OrderEvent::Deleted => (OrderEvent::Deleted, 0..0, 0),
                // The end of the stream says enough.
                _ if !stream.live => continue,
                _ if removed && record.units == 0 => continue,
                _ if removed && !gaps.insert(record.stream) => continue,
                _ if removed => (OrderEvent::Removed, 0..0, 0),
                event => (event, record.data.clone(), record.units),
            };
            let ordered = OrderedRecord {
                stream: Arc::clone(&stream.label),
                no: record.stream,
                pattern: stream.pattern,
                event,
            };
            let at = (record.sequence, record.time);
            piece.push_ordered(at, &self.bytes[data], units, ordered);
        }
        piece
    }
}

impl OrderFetch {
    /// The index of the pattern that matches a name.
    fn matching(&self, name: &str) -> Option<usize> {
        let mut patterns = self.patterns.iter();
        patterns.position(|pattern| pattern.matches(name))
    }

    /// Adds a stream in its present state, if a pattern matches its name.
    fn add<S: crate::Store>(
        &self,
        no: StreamNo,
        label: StreamLabel,
        loader: &Loader<S>,
        streams: &mut MatchingStreams,
    ) -> Result<(), ReadError> {
        let Some(pattern) = self.matching(&label.name) else {
            return Ok(());
        };
        let outline = loader.outline(no, &label.name).or_else(skip(no))?;
        let Outline { floor, live } = outline.unwrap_or(Outline {
            floor: 0,
            live: false,
        });
        let stream = MatchingStream {
            label: Arc::new(label),
            pattern,
            floor,
            live,
        };
        streams.insert(no, stream);
        Ok(())
    }
}

/// Leaves a stream out whose state is damaged: the others are not.
fn skip<T>(no: StreamNo) -> impl FnOnce(LoadError) -> Result<Option<T>, ReadError> {
    move |error| match error {
        LoadError::Read(error) => Err(error),
        error => {
            tracing::error!(%error, no, "a stream is left out of the order");
            Ok(None)
        }
    }
}

/// The label from the record that created a stream; `None` if that record is removed.
fn creation<D: Disk>(log: &Reader<D>, no: StreamNo) -> Result<Option<StreamLabel>, ReadError> {
    let mut label = None;
    let first = born(no);
    log.read(no, first.saturating_sub(1), first, 1, &mut |frame| {
        let change = Change::decode(frame.payload);
        label = change.ok().and_then(|(change, _)| created(&change));
    })?;
    Ok(label)
}

/// The label of the stream that a change creates.
fn created(change: &Change<'_>) -> Option<StreamLabel> {
    match change {
        Change::Create {
            name,
            content_type,
            extras,
            ..
        } => Some(StreamLabel {
            name: (*name).into(),
            kind: Media::new(content_type).kind,
            owner: extras.owner.map(Into::into),
        }),
        _ => None,
    }
}
