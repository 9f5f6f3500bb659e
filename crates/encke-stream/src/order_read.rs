//! Reads the records of all streams of a pattern, in the order of the log.

use std::collections::HashMap;
use std::sync::Arc;

use encke_log::{Disk, FORGOTTEN, FrameView, ReadError, Reader, RemovedRecord, Sequence, StreamNo};

use crate::Stream;
use crate::load::LoadError;
use crate::number::born;
use crate::pattern::Pattern;
use crate::piece::Piece;
use crate::record::Change;
use crate::stream::{Media, MediaKind};

/// A read of the global order of a log.
#[derive(Clone, Debug)]
pub struct OrderFetch {
    /// The index of the log.
    pub log: usize,
    /// The names of the streams.
    pub pattern: Arc<Pattern>,
    /// The first record is behind this one.
    pub after: Sequence,
    /// The last record.
    pub upto: Sequence,
    /// About how many bytes of the log are read, of matching streams or not.
    pub bytes_max: usize,
}

/// What an encoder needs of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLabel {
    /// Its name.
    pub name: Box<str>,
    /// The kind of its data.
    pub kind: MediaKind,
}

impl StreamLabel {
    /// The label of a stream.
    pub fn of(stream: &Stream) -> StreamLabel {
        StreamLabel {
            name: stream.name.clone(),
            kind: stream.media.kind,
        }
    }
}

/// What a record of the order means to the readers of its stream, beside its data.
#[derive(Clone, Debug)]
pub struct OrderedRecord {
    /// Its stream.
    pub stream: Arc<StreamLabel>,
    /// What happened.
    pub event: OrderEvent,
}

/// What a record of the order does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderEvent {
    /// It has data.
    Data,
    /// It has data, or none, and no data follows.
    Closed,
    /// The stream is deleted.
    Deleted,
    /// Retention or a request has removed it.
    Removed,
}

/// Loads a stream by its number; `None` if it has ended.
pub type LoadNumber<'a> = &'a dyn Fn(StreamNo) -> Result<Option<Arc<Stream>>, LoadError>;

impl Piece {
    /// Reads the records of the streams of a pattern from the global order. A record belongs to the stream to which it was
    /// appended, so a fork has none of its source's. Records that are acknowledged and not written yet are left for another
    /// piece.
    ///
    /// # Errors
    /// As [`Piece::read`]; [`ReadError::NoLongerKept`] if the order does not go back that far. Other variants of
    /// [`LoadError`] if the name of a stream could not be found.
    pub fn read_order<D: Disk>(
        log: &Reader<D>,
        fetch: &OrderFetch,
        load: LoadNumber<'_>,
    ) -> Result<Piece, LoadError> {
        let mut scan = OrderScan {
            log,
            load,
            pattern: &fetch.pattern,
            known: HashMap::default(),
            removed: Vec::new(),
            piece: Piece::default(),
            failed: None,
        };
        // Before the read: what is published meanwhile is left for the next piece.
        let published = log.published();
        let mut removed = Vec::new();
        let end = log.read_all(
            fetch.after,
            fetch.upto.min(published),
            fetch.bytes_max,
            &mut |record| removed.push(record),
            &mut |frame| scan.record(&frame),
        )?;
        for record in removed {
            scan.removed(&record);
        }
        if let Some(error) = scan.failed {
            return Err(error);
        }
        let last = end.last.max(fetch.after);
        let lacks = last == fetch.after && fetch.after < fetch.upto;
        if lacks && let Some(reason) = log.given_up(published) {
            return Err(LoadError::Read(ReadError::NeverWritten {
                stream: 0,
                after: published,
                reason,
            }));
        }
        let mut piece = scan.piece;
        piece.end_order(last, last < fetch.upto, lacks);
        Ok(piece)
    }
}

/// The state of one read.
struct OrderScan<'a, D: Disk> {
    log: &'a Reader<D>,
    load: LoadNumber<'a>,
    pattern: &'a Pattern,
    /// The streams that were seen; `None` for those that the pattern does not have.
    known: HashMap<StreamNo, Option<Arc<StreamLabel>>, foldhash::fast::FixedState>,
    /// The streams of which removed records were seen.
    removed: Vec<StreamNo>,
    piece: Piece,
    failed: Option<LoadError>,
}

impl<D: Disk> OrderScan<'_, D> {
    fn record(&mut self, frame: &FrameView<'_>) {
        // The log has checked the frame, and opening the log has refused payloads that cannot be decoded.
        let Ok((change, data)) = Change::decode(frame.payload) else {
            return;
        };
        let event = match &change {
            Change::Delete => OrderEvent::Deleted,
            change if change.closes() => OrderEvent::Closed,
            _ => OrderEvent::Data,
        };
        if let Some(label) = created(&change) {
            let label = self.pattern.matches(&label.name).then(|| Arc::new(label));
            self.known.insert(frame.stream, label);
        }
        if change.units() == 0 && event == OrderEvent::Data {
            return;
        }
        if let Some(stream) = self.label(frame.stream) {
            let ordered = OrderedRecord { stream, event };
            self.piece
                .push_ordered(frame.sequence, data, change.units(), ordered);
        }
    }

    /// Readers learn once that a stream lacks records. A stream that is gone has told its readers.
    fn removed(&mut self, record: &RemovedRecord) {
        if record.floor == FORGOTTEN || self.removed.contains(&record.stream) {
            return;
        }
        self.removed.push(record.stream);
        if let Some(stream) = self.label(record.stream) {
            let event = OrderEvent::Removed;
            let ordered = OrderedRecord { stream, event };
            self.piece.push_ordered(record.sequence, &[], 0, ordered);
        }
    }

    /// The label of a stream that the pattern has.
    fn label(&mut self, no: StreamNo) -> Option<Arc<StreamLabel>> {
        if let Some(known) = self.known.get(&no) {
            return known.clone();
        }
        let label = match self.find(no) {
            Ok(label) => label,
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        };
        let label = label.filter(|label| self.pattern.matches(&label.name));
        let label = label.map(Arc::new);
        self.known.insert(no, label.clone());
        label
    }

    /// The label from the record that created the stream, or from the stream's state if that record is removed.
    fn find(&self, no: StreamNo) -> Result<Option<StreamLabel>, LoadError> {
        let mut label = None;
        let first = born(no);
        self.log
            .read(no, first.saturating_sub(1), first, 1, &mut |frame| {
                label = Change::decode(frame.payload)
                    .ok()
                    .and_then(|(change, _)| created(&change));
            })?;
        match label {
            Some(label) => Ok(Some(label)),
            None => Ok((self.load)(no)?.map(|stream| StreamLabel::of(&stream))),
        }
    }
}

/// The label of the stream that a change creates.
fn created(change: &Change<'_>) -> Option<StreamLabel> {
    match change {
        Change::Create {
            name, content_type, ..
        } => Some(StreamLabel {
            name: (*name).into(),
            kind: Media::new(content_type).kind,
        }),
        _ => None,
    }
}
