//! The journal: where the machine records its decisions.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_log::{AppendError, Disk, Frame, Log, Sequence};

use crate::stream::record::{Change, KIND_CHANGE};
use crate::{Refusal, Stream};

/// Takes changes, in the order in which they are decided.
pub trait Journal {
    /// The sequence of the next record.
    fn next_sequence(&self) -> Sequence;

    /// Appends a record, or refuses and stays as it was. `stream` may still have the state before the change.
    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal>;
}

/// A log as a journal: every change is a frame of the log's batch.
#[derive(Debug)]
pub struct LogJournal<'a, D: Disk> {
    /// The log.
    pub log: &'a mut Log<D>,
    /// When the changes are made.
    pub now: WallTime,
}

impl<D: Disk> LogJournal<'_, D> {
    /// Like [`Journal::record`], for callers that use the data afterwards.
    pub(crate) fn append(
        &mut self,
        stream: &Stream,
        change: &Change<'_>,
        data: &[u8],
    ) -> Result<Sequence, Refusal> {
        let header = change.encode();
        let frame = Frame {
            kind: KIND_CHANGE,
            time: self.now,
            streams: &[stream.no],
            payload: &[&header, data],
        };
        self.log.append(&frame).map_err(|error| match error {
            AppendError::TooLarge {
                bytes,
                max: bytes_max,
            } => Refusal::TooLarge { bytes, bytes_max },
            error => Refusal::LogFailed(error.to_string().into()),
        })
    }
}

impl<D: Disk> Journal for LogJournal<'_, D> {
    fn next_sequence(&self) -> Sequence {
        self.log.next_sequence()
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        self.append(stream, change, &data)
    }
}
