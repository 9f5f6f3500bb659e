//! The one place where the order of records is decided.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_log::{AppendError, CommitError, Frame, FrameView, Log, Sequence};
use encke_mailbox::Receiver;

use crate::batch::{Batch, Outlet, Record, Reply, Request};
use crate::record::{BadRecord, Change, KIND_CHANGE};
use crate::stored::{self, KEY_STREAM, Restore};
use crate::stream::watcher;
use crate::{Journal, Limits, Machine, Outcome, Refusal, Stream, View};

/// How safe a record is when its append is acknowledged and when subscribers see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AckLevel {
    /// Ordered, but in this process's memory only: a crash of the process may take it.
    Accepted,
    /// Written to the file: a crash of the process takes nothing, a power cut may.
    Written,
    /// On the disk, by fdatasync: nothing short of the disk's loss takes it.
    #[default]
    Synced,
}

/// Drains the mailbox, decides, commits, and hands out: one batch after the other.
///
/// While a batch is being written and synced, the next one gathers in the mailbox; there is no
/// timer and no knob. The caller brings the thread and the clock.
pub struct Sequencer {
    machine: Machine,
    log: Log,
    mailbox: Receiver<Request>,
    outlets: Vec<Box<dyn Outlet>>,
    level: AckLevel,
    watch: Box<dyn FnMut(&Committed) + Send>,
    failed: Option<Arc<str>>,
    /// Something was acknowledged that only the operating system has.
    unsynced: bool,
    synced_at: Instant,
}

/// Figures of one batch, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// Commands that were judged.
    pub commands: usize,
    /// Records that were stored.
    pub records: usize,
    /// Bytes that were written to the log.
    pub bytes: usize,
    /// How long fdatasync took; nothing where the level needs none or nothing was written.
    pub sync: Option<Duration>,
    /// Whether the log failed with this batch, or before.
    pub failed: bool,
}

impl Sequencer {
    /// A sequencer over restored streams. `outlets` are the shards, in the order of their numbers.
    pub fn new(
        machine: Machine,
        log: Log,
        mailbox: Receiver<Request>,
        outlets: Vec<Box<dyn Outlet>>,
        level: AckLevel,
        watch: Box<dyn FnMut(&Committed) + Send>,
    ) -> Self {
        Sequencer {
            machine,
            log,
            mailbox,
            outlets,
            level,
            watch,
            failed: None,
            unsynced: false,
            synced_at: Instant::now(),
        }
    }

    /// Works until all senders of the mailbox are gone and everything in it is done, then closes
    /// the log. `clock` tells milliseconds since 1970.
    pub fn run(mut self, clock: impl Fn() -> u64) -> Result<(), CommitError> {
        let mut requests = Vec::new();
        loop {
            let patience = self.patience(clock());
            let open = match patience {
                None => self.mailbox.recv_batch(&mut requests).is_ok(),
                Some(patience) => self
                    .mailbox
                    .recv_batch_timeout(&mut requests, patience)
                    .is_ok(),
            };
            if !open {
                break;
            }
            let taken = requests.len();
            if taken == 0 || self.synced_at.elapsed() > SYNC_EVERY_MAX {
                self.settle();
            }
            self.batch(&mut requests, clock());
            self.mailbox.handled(taken);
            for outlet in &self.outlets {
                outlet.admit();
            }
        }
        self.log.close()
    }

    /// How long the mailbox may be waited for; forever if nothing else is to do.
    fn patience(&self, now_ms: u64) -> Option<Duration> {
        // A failed log takes nothing more, no expiry either.
        if self.failed.is_some() {
            return None;
        }
        let expiry = self.machine.next_deadline_ms().map(|deadline_ms| {
            let wait_ms = deadline_ms.saturating_sub(now_ms);
            Duration::from_millis(wait_ms.clamp(1, EXPIRY_WAIT_MS_MAX))
        });
        match expiry {
            _ if !self.unsynced => expiry,
            Some(expiry) => Some(expiry.min(SYNC_WHEN_IDLE)),
            None => Some(SYNC_WHEN_IDLE),
        }
    }

    /// Syncs what was acknowledged before it was synced, when there is time or when it is due.
    fn settle(&mut self) {
        self.synced_at = Instant::now();
        if !std::mem::take(&mut self.unsynced) || self.failed.is_some() {
            return;
        }
        if let Err(error) = self.log.sync() {
            self.fail(&error);
        }
    }

    fn batch(&mut self, requests: &mut Vec<Request>, now_ms: u64) {
        let commands = requests.len();
        let mut draft = Draft {
            log: &mut self.log,
            records: Vec::with_capacity(commands),
            now_ms,
            bytes: 0,
        };
        let mut outcomes = Vec::with_capacity(commands);
        if let Some(reason) = &self.failed {
            outcomes.extend(requests.drain(..).map(|request| {
                let refusal = Refusal::LogFailed(Arc::clone(reason));
                (request.from, Outcome::Refused(refusal))
            }));
        } else {
            if self.machine.expire(now_ms, &mut draft).is_err() {
                tracing::error!("streams whose lifetime is over could not be ended");
            }
            outcomes.extend(requests.drain(..).map(|request| {
                let outcome = self.machine.apply(request.command, now_ms, &mut draft);
                (request.from, outcome)
            }));
        }
        let Draft { records, bytes, .. } = draft;
        let mut replies: Vec<Vec<Reply>> = self.outlets.iter().map(|_| Vec::new()).collect();
        for (from, outcome) in outcomes {
            if let Some(replies) = replies.get_mut(usize::from(from.shard)) {
                let token = from.token;
                replies.push(Reply { token, outcome });
            }
        }
        let mut committed = Committed {
            commands,
            records: records.len(),
            bytes: self.log.batch_bytes(),
            sync: None,
            failed: false,
        };
        if let Err(error) = self.commit(records, bytes, &mut replies, &mut committed) {
            committed.records = 0;
            self.refuse(&error, replies);
        }
        committed.failed = self.failed.is_some();
        (self.watch)(&committed);
        self.checkpoint();
    }

    /// Makes the batch as safe as the level asks and hands it out as soon as it is.
    fn commit(
        &mut self,
        records: Vec<Record>,
        bytes: usize,
        replies: &mut Vec<Vec<Reply>>,
        committed: &mut Committed,
    ) -> Result<(), CommitError> {
        if records.is_empty() {
            self.hand_out(None, replies);
            return Ok(());
        }
        let mut batch = Some(Arc::new(Batch {
            records,
            bytes,
            published: Instant::now(),
        }));
        if self.level == AckLevel::Accepted {
            self.machine.publish(self.log.next_sequence() - 1);
            self.hand_out(batch.take(), replies);
        }
        self.log.write()?;
        if self.level <= AckLevel::Written {
            self.log.publish();
            self.unsynced = true;
            if let Some(batch) = batch.take() {
                self.machine.publish(self.log.next_sequence() - 1);
                self.hand_out(Some(batch), replies);
            }
            return Ok(());
        }
        let start = Instant::now();
        self.log.sync()?;
        committed.sync = Some(start.elapsed());
        self.log.publish();
        self.machine.publish(self.log.next_sequence() - 1);
        self.hand_out(batch, replies);
        Ok(())
    }

    /// Gives each shard its replies, and the records if some of them have subscribers there.
    fn hand_out(&mut self, batch: Option<Arc<Batch>>, replies: &mut Vec<Vec<Reply>>) {
        let watchers = batch.as_ref().map_or(0, |batch| batch.watchers());
        for (shard, (outlet, replies)) in self.outlets.iter().zip(replies.drain(..)).enumerate() {
            let watches = watchers & watcher(shard as u16) != 0;
            let batch = batch.as_ref().filter(|_| watches);
            if batch.is_some() || !replies.is_empty() {
                outlet.deliver(batch.cloned(), replies);
            }
        }
    }

    /// The batch could not be stored: nobody is told that anything changed.
    fn refuse(&mut self, error: &CommitError, mut replies: Vec<Vec<Reply>>) {
        self.machine.abandon();
        self.log.abandon();
        let refusal = match error {
            CommitError::NoSpace { .. } => {
                tracing::error!(%error, "the disk is full");
                Refusal::NoSpace
            }
            _ => Refusal::LogFailed(self.fail(error)),
        };
        for reply in replies.iter_mut().flatten() {
            reply.outcome = Outcome::Refused(refusal.clone());
        }
        self.hand_out(None, &mut replies);
    }

    fn fail(&mut self, error: &CommitError) -> Arc<str> {
        tracing::error!(%error, "the log has failed; reads go on, writes are refused");
        let reason: Arc<str> = error.to_string().into();
        self.failed = Some(Arc::clone(&reason));
        reason
    }

    fn checkpoint(&mut self) {
        if self.failed.is_some() || !self.log.wants_checkpoint() {
            return;
        }
        let applied = self.log.next_sequence() - 1;
        let entries = self
            .machine
            .take_dirty()
            .into_values()
            .map(|stream| stored::entry(&stream, applied))
            .collect();
        self.log.checkpoint(entries);
    }
}

/// The batch that is being built.
struct Draft<'a> {
    log: &'a mut Log,
    records: Vec<Record>,
    now_ms: u64,
    bytes: usize,
}

impl Journal for Draft<'_> {
    fn next_sequence(&self) -> Sequence {
        self.log.next_sequence()
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        let header = change.encode();
        let frame = Frame {
            kind: KIND_CHANGE,
            time_ms: self.now_ms,
            streams: &[stream.no],
            payload: &[&header, &data],
        };
        let sequence = self.log.append(&frame).map_err(|error| match error {
            AppendError::TooLarge {
                bytes,
                max: bytes_max,
            } => Refusal::TooLarge { bytes, bytes_max },
            error => Refusal::LogFailed(error.to_string().into()),
        })?;
        self.bytes += data.len();
        self.records.push(Record {
            sequence,
            stream: Arc::clone(stream),
            data,
            units: change.units(),
            closes: change.closes(),
            deletes: matches!(change, Change::Delete),
        });
        Ok(sequence)
    }
}

/// Below level `synced`, what was acknowledged is synced when nothing came for so long…
const SYNC_WHEN_IDLE: Duration = Duration::from_millis(20);

/// …and at least this often.
const SYNC_EVERY_MAX: Duration = Duration::from_secs(1);

/// Expiry is looked at this often at least, because reads may have moved deadlines.
const EXPIRY_WAIT_MS_MAX: u64 = 60_000;
