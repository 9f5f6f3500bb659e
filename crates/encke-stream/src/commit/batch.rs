//! What a commit sends to the shards: the records, shared by all shards, and the replies of each shard.

use std::sync::{Arc, OnceLock, Weak};

use encke_clock::WallTime;
use encke_log::{Sequence, StreamNo};
use encke_trace::CommandTrace;

use crate::commit::change::{StreamChange, StreamState};
use crate::stream::label::StreamLabel;
use crate::stream::number::born;
use crate::{EndReason, MediaKind, Offset, Outcome, Stream};

/// The records of one commit, shared by all shards.
#[derive(Debug)]
pub struct Batch {
    /// In the order of their sequences.
    pub records: Vec<Record>,
    /// Bytes of their data.
    pub bytes: usize,
    /// The records of streams that match patterns with subscribers, in the same order. Set before the batch is sent.
    pub pattern_matches: OnceLock<Box<[PatternMatch]>>,
    /// The streams that it creates and whose names were awaited. Set before the batch is sent.
    pub awaited: OnceLock<Box<[AwaitedStream]>>,
    /// What the records change, of the streams that concern the observer ([`ObserveCommits`]), in the same order. Set before the batch is
    /// sent.
    pub changes: OnceLock<Box<[StreamChange]>>,
    /// The records whose requests are traced, by their indices, in order.
    pub traces: Vec<(u32, Arc<CommandTrace>)>,
}

/// A stream that was created and whose name was awaited.
#[derive(Debug)]
pub struct AwaitedStream {
    /// The number of the name.
    pub awaited: StreamNo,
    /// The number of the stream.
    pub no: StreamNo,
    /// The stream, which a batch that is kept for a while does not keep in memory.
    pub stream: Weak<Stream>,
    /// The kind of its data.
    pub kind: MediaKind,
    /// The shards that have awaited it. They are its watchers from this batch on.
    pub shards: Box<[u16]>,
}

/// A record of a stream that matches patterns with subscribers.
#[derive(Debug)]
pub struct PatternMatch {
    /// Its index in [`Batch::records`].
    pub index: u32,
    /// Its stream. Not the stream itself, because shards keep records for a while, and that must not keep an idle stream in
    /// memory.
    pub stream: Arc<StreamLabel>,
    /// The numbers of the patterns.
    pub patterns: Arc<[StreamNo]>,
}

impl Batch {
    /// A batch of these records.
    pub fn new(records: Vec<Record>) -> Batch {
        Batch {
            bytes: records.iter().map(|record| record.data.len()).sum(),
            records,
            pattern_matches: OnceLock::new(),
            awaited: OnceLock::new(),
            changes: OnceLock::new(),
            traces: Vec::new(),
        }
    }

    /// What the observer learns of the batch.
    pub fn changes(&self) -> &[StreamChange] {
        self.changes.get().map_or(&[], |changes| changes)
    }

    /// Whether it has the record that created a stream.
    pub(crate) fn creates(&self, no: StreamNo) -> bool {
        let found = (self.records).binary_search_by_key(&born(no), |record| record.sequence);
        found.is_ok_and(|found| self.records[found].stream == no)
    }

    /// The streams that it creates and whose names were awaited.
    pub fn awaited(&self) -> &[AwaitedStream] {
        self.awaited.get().map_or(&[], |awaited| awaited)
    }

    /// The records of streams that match patterns.
    pub fn pattern_matches(&self) -> &[PatternMatch] {
        self.pattern_matches.get().map_or(&[], |matches| matches)
    }

    /// The stream of the record at that index, if it matches patterns.
    pub fn label(&self, index: u32) -> Option<&StreamLabel> {
        let matches = self.pattern_matches();
        let found = matches.binary_search_by_key(&index, |record| record.index);
        found.ok().map(|found| &*matches[found].stream)
    }
}

/// One committed record.
#[derive(Debug)]
pub struct Record {
    /// Its position in the order of all streams.
    pub sequence: Sequence,
    /// When it was decided: the time of its frame in the log.
    pub time: WallTime,
    /// The stream of the record. Only the number, because shards keep records for a while, and that must not keep an
    /// idle stream in memory.
    pub stream: StreamNo,
    /// The data as readers see it; empty when the record only closes or deletes.
    pub data: Vec<u8>,
    /// The position after the stream's data with this record. The record itself may have no data.
    pub tail: Offset,
    /// How many units the data holds.
    pub units: u32,
    /// No more data follows.
    pub closes: bool,
    /// Why it closes the stream, if that was said.
    pub end: Option<EndReason>,
    /// A reader asks the producer to stop.
    pub asks_stop: bool,
    /// The stream is deleted. Its readers must be closed.
    pub deletes: bool,
}

impl Record {
    /// What it changes of its stream.
    pub fn change(&self, stream: &Stream) -> StreamChange {
        let (no, name) = (stream.no, stream.name.clone());
        if self.deletes {
            return StreamChange::Ended { no, name };
        }
        let creates = self.sequence == born(no);
        let begin = match &stream.source {
            Some(source) => source.at,
            None if creates && self.units == 0 => self.tail,
            None => Offset::START,
        };
        StreamChange::Changed(StreamState {
            no,
            name,
            owner: stream.owner().map(Into::into),
            begin,
            tail: self.tail,
        })
    }
}

/// The reply to a [`Submission`](crate::Submission).
#[derive(Debug)]
pub struct Reply {
    /// The shard's name for the caller.
    pub token: u64,
    /// The outcome of the command.
    pub outcome: Outcome,
}

/// A shard as the sequencer sees it.
pub trait Outlet: Send {
    /// Delivers a commit: its records and the shard's own replies. May wait when the shard is far behind. Must not
    /// fail: for a shard that has stopped, it does nothing.
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>);

    /// Waits until the shard is near enough to the newest record to take more.
    fn admit(&self);

    /// Like [`Outlet::deliver`], for callers that must not wait.
    ///
    /// # Errors
    /// There is no room now; the arguments come back. An outlet that never waits always has room.
    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        self.deliver(batch, replies);
        Ok(())
    }

    /// Whether [`Outlet::admit`] returns without a wait.
    fn admits(&self) -> bool {
        true
    }

    /// What observes commits for this outlet: it gets each batch with changes of streams that concern the observer, beside its replies.
    /// Asked once. At most one outlet of a log has one.
    fn observer(&self) -> Option<Arc<dyn ObserveCommits>> {
        None
    }
}

/// Observes the commits of some streams, whether anybody is subscribed to them or not.
pub trait ObserveCommits: Send + Sync {
    /// Whether the changes of a stream of that name are wanted. Asked for each stream of each batch, so that it must be cheap.
    fn concerns(&self, stream: &str) -> bool;
}

/// What a commit sends to one shard.
#[derive(Debug)]
pub struct Handover {
    /// The records, if some of them have subscribers there.
    pub batch: Option<Arc<Batch>>,
    /// The shard's replies.
    pub replies: Vec<Reply>,
}
