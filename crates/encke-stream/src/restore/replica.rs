//! What a node of a fleet restores beside the streams: the chain of the replicated order, and the records of batches until
//! their marks.

use encke_clock::WallTime;
use encke_log::{FrameView, Sequence};

use crate::replicated::{BatchMark, Chain, CutRecord, Replica};
use crate::restore::RestoreError;
use crate::stream::record::BadRecord;

/// What a node of a fleet restores beside the streams.
#[derive(Debug, Default)]
pub(super) struct ReplicaRestore {
    /// The marks in the log, continued.
    chain: Chain,
    /// Whether there was a mark.
    marked: bool,
    /// Records after the last mark.
    unmarked: Vec<UnmarkedRecord>,
}

#[derive(Debug)]
pub(super) struct UnmarkedRecord {
    pub(super) record: CutRecord,
    pub(super) time: WallTime,
}

impl UnmarkedRecord {
    fn of(frame: &FrameView<'_>) -> Self {
        let record = CutRecord {
            sequence: frame.sequence,
            stream: frame.stream,
            payload: frame.payload.to_vec(),
        };
        UnmarkedRecord {
            record,
            time: frame.time,
        }
    }
}

impl ReplicaRestore {
    /// Holds a record until the mark behind its batch.
    pub(super) fn hold(&mut self, frame: &FrameView<'_>) {
        self.unmarked.push(UnmarkedRecord::of(frame));
    }

    /// Continues the chain with the batch that ends here, and returns its records.
    pub(super) fn mark(&mut self, frame: &FrameView<'_>) -> Result<Vec<UnmarkedRecord>, BadRecord> {
        let mark = BatchMark::decode(frame.payload)?;
        self.marked = true;
        self.chain.follow(mark, frame.time);
        Ok(std::mem::take(&mut self.unmarked))
    }

    /// Notes that the log has a mark.
    pub(super) fn set_marked(&mut self) {
        self.marked = true;
    }

    /// The records without a mark that the checkpoint has, which goes up to `upto`, and what the machine keeps: the records
    /// behind them belong to a batch that a crash has cut.
    ///
    /// # Errors
    /// The log is that of a server by itself.
    pub(super) fn finish(
        self,
        stored: Option<Chain>,
        upto: Sequence,
    ) -> Result<(Vec<UnmarkedRecord>, Replica), RestoreError> {
        let followed = self.marked || stored.is_some();
        if !followed && (upto > 0 || !self.unmarked.is_empty()) {
            return Err(RestoreError::OfOneServer);
        }
        let unmarked = self.unmarked.into_iter();
        let (known, cut): (Vec<_>, Vec<_>) =
            unmarked.partition(|unmarked| unmarked.record.sequence <= upto);
        let mut chain = stored.unwrap_or_default().restored();
        if self.chain.tip.position > chain.tip.position {
            chain.adopt(self.chain);
        }
        let replica = Replica {
            chain,
            cut: cut.into_iter().map(|unmarked| unmarked.record).collect(),
            ..Replica::default()
        };
        Ok((known, replica))
    }
}
