//! What is decided while the disk makes the batch before it durable.
//!
//! A sync takes the disk some hundred microseconds or many milliseconds, and the sequencer nothing: so when a batch was
//! large, another thread syncs it, and the sequencer decides what has come meanwhile. That is neither written nor shown
//! before the sync is over, for a failure takes it back as well, and then goes out with what came last, in one write. Where
//! there is little to decide, handing the sync over would cost more than it brings.
//!
//! Only commands that are told after a sync are decided ahead: one at another level would wait for the next sync behind
//! them, though it could have been shown before it.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_log::{CommitError, Disk, LateSync, LateSynced};
use encke_mailbox::{Bounds, Lane, Options, Reply, ReplyTo, Sender, mailbox, reply};

use crate::AckLevel;
use crate::batch::Request;
use crate::commit::Group;
use crate::sequencer::Sequencer;

/// What was decided and is not committed, with figures for metrics.
pub(crate) struct Decided {
    pub(crate) group: Group,
    pub(crate) commands: usize,
    pub(crate) records: usize,
    /// What the records take in the log's batch.
    pub(crate) bytes: usize,
}

impl Decided {
    /// With what was decided behind it.
    pub(crate) fn joined(mut self, next: Decided) -> Decided {
        self.group.join(next.group);
        Decided {
            group: self.group,
            commands: self.commands + next.commands,
            records: self.records + next.records,
            bytes: self.bytes + next.bytes,
        }
    }
}

impl<D: Disk> Sequencer<D> {
    /// Whether something came during the last sync and is not committed yet.
    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead.is_some() || !self.held.is_empty()
    }

    /// Whether more is to be decided while this group is synced.
    pub(crate) fn goes_ahead_of(&self, group: &Group) -> bool {
        group.commands() >= AHEAD_MIN && self.last && !self.shared && !self.tidies()
    }

    /// Has the log synced and decides meanwhile what comes. How long the disk took.
    pub(crate) fn sync_meanwhile(&mut self) -> Result<Duration, CommitError> {
        let begun = Instant::now();
        let Some(late) = self.log.late_sync() else {
            self.log.sync()?;
            return Ok(begun.elapsed());
        };
        let syncer = self.syncer.get_or_insert_with(Syncer::start);
        let mut answer = syncer.sync(late);
        // What comes in the first half is decided in the second.
        let synced = answer.wait_a_while(syncer.usual / 2).unwrap_or_else(|| {
            self.decide_ahead();
            answer.wait()
        });
        let Ok(synced) = synced else {
            let reason = "the thread that syncs has died".into();
            return Err(CommitError::Poisoned { reason });
        };
        let took = synced.took();
        if let Some(syncer) = &mut self.syncer {
            syncer.usual = took;
        }
        self.log.late_synced(synced)?;
        Ok(took)
    }

    fn decide_ahead(&mut self) {
        let mut requests = Vec::new();
        self.mailbox.drain_beside(&mut requests);
        if requests.is_empty() {
            return;
        }
        if !self.may_go_ahead(&requests) {
            self.held = requests;
            return;
        }
        self.machine.cut();
        self.ahead = Some(self.draft(&mut requests, (self.now_ms, false)));
    }

    /// Whether all of these are told after a sync, and after nothing else.
    pub(crate) fn may_go_ahead(&self, requests: &[Request]) -> bool {
        requests.iter().all(|Request { command, .. }| {
            let level = self.level_of(command);
            level == AckLevel::Synced && command.ack().is_none_or(|ack| ack == level)
        })
    }
}

/// A thread that makes what was written durable.
pub(crate) struct Syncer<D: Disk> {
    sender: Option<Sender<Job<D>>>,
    thread: Option<JoinHandle<()>>,
    /// How long the last sync took.
    usual: Duration,
}

struct Job<D: Disk> {
    late: LateSync<D>,
    done: ReplyTo<LateSynced>,
}

impl<D: Disk> Syncer<D> {
    fn start() -> Self {
        let options = Options::new(Bounds {
            items_max: 1,
            bytes_max: 1,
        });
        let (sender, mut receiver) = mailbox::<Job<D>>("sync", options);
        let thread = std::thread::Builder::new()
            .name("encke-sync".into())
            .spawn(move || {
                while let Ok(Job { late, done }) = receiver.recv() {
                    // The sequencer waits for it.
                    let _ = done.send(late.run());
                }
            });
        Syncer {
            sender: Some(sender),
            thread: thread.ok(),
            usual: Duration::ZERO,
        }
    }

    /// Has it synced; if there is no thread to be had, here and now.
    fn sync(&self, late: LateSync<D>) -> Reply<LateSynced> {
        let (done, answer) = reply();
        let job = Job { late, done };
        let sent = match (&self.sender, &self.thread) {
            (Some(sender), Some(_)) => sender
                .try_send(Lane::Data, job, 1)
                .map_err(|refused| refused.item),
            _ => Err(job),
        };
        if let Err(Job { late, done }) = sent {
            let _ = done.send(late.run());
        }
        answer
    }
}

impl<D: Disk> Drop for Syncer<D> {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // It ends with its mailbox; it has nothing that could panic.
            let _ = thread.join();
        }
    }
}

/// From so many commands in a batch on it is worth while: what is to be decided next takes about as long as this one did,
/// and that is more than handing the sync to another thread and back.
const AHEAD_MIN: usize = 32;
