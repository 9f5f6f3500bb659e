//! What a commit hands to the shards: the records, once for all, and each shard's replies.

use std::sync::Arc;

use encke_log::{Sequence, StreamNo};

use crate::{Command, Offset, Outcome};

/// The records of one commit, shared by all shards.
#[derive(Debug)]
pub struct Batch {
    /// In the order of their sequences.
    pub records: Vec<Record>,
    /// What their data weighs.
    pub bytes: usize,
}

/// One committed record.
#[derive(Debug)]
pub struct Record {
    /// Its place in the order of all streams.
    pub sequence: Sequence,
    /// The stream it belongs to. Only its number, because records are kept for a while by those who
    /// deliver them, and a stream that nobody uses should not stay in memory for that.
    pub stream: StreamNo,
    /// The data as readers see it; empty when the record only closes or deletes.
    pub data: Vec<u8>,
    /// The position behind the stream's data with this record, which may have none.
    pub tail: Offset,
    /// How many units the data holds.
    pub units: u32,
    /// No more data follows.
    pub closes: bool,
    /// The stream is deleted: whoever reads it must be told.
    pub deletes: bool,
}

/// A command, and who waits for what becomes of it.
#[derive(Debug)]
pub struct Submission {
    /// What is asked for.
    pub command: Command,
    /// Who asks.
    pub from: Caller,
}

/// Somebody who waits for an outcome: a number that means something to a shard only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The shard, counted from 0.
    pub shard: u16,
    /// What the shard knows the caller by.
    pub token: u64,
}

/// The answer to a [`Submission`].
#[derive(Debug)]
pub struct Reply {
    /// What the shard knows the caller by.
    pub token: u64,
    /// What became of the command.
    pub outcome: Outcome,
}

/// A shard as the sequencer sees it.
pub trait Outlet: Send {
    /// Hands over a commit: its records and the shard's own replies. May wait when the shard is
    /// far behind, but must not fail: a shard that is gone takes nothing and loses nothing.
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>);

    /// Waits until the shard is near enough to the newest record to take more.
    fn admit(&self);

    /// As [`Outlet::deliver`] for callers that must not wait.
    ///
    /// # Errors
    /// There is no room now: what was to be handed over comes back. An outlet that never waits has room.
    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        self.deliver(batch, replies);
        Ok(())
    }

    /// Whether [`Outlet::admit`] would not wait.
    fn admits(&self) -> bool {
        true
    }
}

/// What a commit hands to one shard.
#[derive(Debug)]
pub struct Handover {
    /// The records, if some of them have subscribers there.
    pub batch: Option<Arc<Batch>>,
    /// The shard's replies.
    pub replies: Vec<Reply>,
}
