//! Batches of the replicated order through the same stages: decided, written, durable, visible.
//!
//! What the order has taken cannot be refused any more: the other nodes have it. So a group is never undone because the
//! disk is full; it waits until the disk takes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_clock::Now;
use encke_log::Disk;

use super::decide::{Decided, Draft, Judged};
use super::{Commit, publish, sync, write};
use crate::at_rest::load::{LoadError, Loader, Store};
use crate::commit::batch::Batch;
use crate::machine::journal::LogJournal;
use crate::order::submission::Submitter;
use crate::replicated::{Chain, OrderedBatch, Tip, append_mark};
use crate::view::lookup::Lookup;
use crate::{AckLevel, Command, Committed, FleetCommand, Outcome, Refusal};

/// Why a node cannot apply batches.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CannotApply {
    /// For now. The batches are not applied.
    #[error("{0}")]
    Stalled(Arc<str>),
    /// For good: the log failed, or holds something else than the order.
    #[error("{0}")]
    Failed(Arc<str>),
}

/// What to do while the disk takes nothing, or a stream cannot be read.
pub(crate) trait Stall {
    /// Waits for the next attempt. True: gives up.
    fn wait(&mut self, reason: &Arc<str>) -> bool;

    /// The clients of batches behind the one that waits.
    fn take_waiting(&mut self) -> Vec<Submitter>;
}

impl<D: Disk> Commit<D> {
    /// Applies batches and sends the replies to this node's own. Syncs them before, if one of this node's own changes something: a
    /// majority of the brokers has all of them, and their own nodes sync the others.
    pub(crate) fn replicate<S: Store>(
        &mut self,
        mut batches: Vec<OrderedBatch>,
        loader: &Loader<S>,
        stall: &mut dyn Stall,
    ) -> Result<Committed, CannotApply> {
        let mut committed = Committed {
            commands: batches.iter().map(|one| one.batch.commands.len()).sum(),
            ..Committed::default()
        };
        let before = self.machine.chain().cloned();
        let mut stalled_at = None;
        let held = loop {
            let error = match load(&batches, loader) {
                Ok(held) => break held,
                Err(error) => error,
            };
            let reason: Arc<str> = error.to_string().into();
            let unknown = Refusal::Unknown(Arc::clone(&reason));
            if matches!(error, LoadError::Damaged(_) | LoadError::SourceLost { .. }) {
                self.refuse_submitters(take_submitters(&mut batches), &unknown);
                return Err(CannotApply::Failed(reason));
            }
            let gives_up = stall.wait(&reason);
            if gives_up || is_long(&mut stalled_at) {
                self.refuse_submitters(take_submitters(&mut batches), &unknown);
                self.refuse_submitters(stall.take_waiting(), &unknown);
            }
            if gives_up {
                return Err(CannotApply::Stalled(reason));
            }
        };
        let submitters: Vec<Submitter> = batches
            .iter()
            .flat_map(|one| one.submitters.iter().flatten().copied())
            .collect();
        let (mut decided, awaited) = match self.decide_batches(batches) {
            Ok(decided) => decided,
            Err(error) => {
                self.machine.abandon();
                self.log.abandon();
                self.set_chain(before);
                let reason = error.to_string().into();
                self.refuse_submitters(submitters, &Refusal::Unknown(reason));
                return Err(error);
            }
        };
        drop(held);
        committed.records = decided.records();
        committed.bytes = decided.log_bytes;
        if !decided.needs_file() {
            // A reply may be about what an earlier group has only written, such as the repetition of an append.
            if awaited && !self.log.is_synced() && !self.sync_written() {
                let reason = self
                    .failed
                    .clone()
                    .unwrap_or_else(|| "the log failed".into());
                self.take_back(decided, &Refusal::LogFailed(Arc::clone(&reason)));
                self.set_chain(before);
                return Err(CannotApply::Failed(reason));
            }
            self.publish_replicated(sync::Durable::without_file(decided));
            return Ok(committed);
        }
        let written = loop {
            let error = match write::write(decided, &mut self.log) {
                Ok(written) => break written,
                Err((back, error)) => {
                    decided = *back;
                    error
                }
            };
            let refusal = self.refusal_for(&error);
            let reason: Arc<str> = refusal.to_string().into();
            let unknown = Refusal::Unknown(Arc::clone(&reason));
            if self.failed.is_some() {
                self.take_back(decided, &unknown);
                self.set_chain(before);
                return Err(CannotApply::Failed(reason));
            }
            let gives_up = stall.wait(&reason);
            if gives_up || is_long(&mut stalled_at) {
                // The fleet has the batches. Their clients do not wait for this node's disk.
                decided.replies.refuse(&unknown);
                self.outlets.refuse(std::mem::take(&mut decided.replies));
                self.refuse_submitters(stall.take_waiting(), &unknown);
            }
            if gives_up {
                decided.revocable = true;
                self.take_back(decided, &unknown);
                self.set_chain(before);
                return Err(CannotApply::Stalled(reason));
            }
        };
        self.syncs.unsettled = true;
        match sync::sync(written, &mut self.log) {
            Ok((durable, took)) => {
                committed.sync = took;
                self.publish_replicated(durable);
                Ok(committed)
            }
            Err((back, error)) => {
                let refusal = self.refusal_for(&error);
                self.take_back(*back, &refusal);
                self.set_chain(before);
                Err(CannotApply::Failed(refusal.to_string().into()))
            }
        }
    }

    /// Sets the chain back to what the state of the streams includes.
    fn set_chain(&mut self, chain: Option<Chain>) {
        if let (Some(replica), Some(chain)) = (&mut self.machine.replica, chain) {
            replica.chain = chain;
        }
    }

    fn publish_replicated(&mut self, durable: sync::Durable) {
        // Before the replies: a request that has waited for a barrier sees the streams as they are at its time.
        if let Some(chain) = self.machine.chain() {
            self.machine.view.set_order(chain);
        }
        let late = publish::publish(durable, &mut self.machine, &mut self.log, &mut self.outlets);
        debug_assert!(
            late.is_empty(),
            "a node syncs its own batches before its replies"
        );
    }

    /// Judges the batches in their order, as one group. Also returns whether a reply of this node promises that something is durable.
    fn decide_batches(
        &mut self,
        batches: Vec<OrderedBatch>,
    ) -> Result<(Decided, bool), CannotApply> {
        let before = self.log.batch_bytes();
        let mut judged = Vec::new();
        let mut records = Vec::new();
        let mut streams = Vec::new();
        let (mut marked, mut awaited) = (false, false);
        let mut holds = Vec::new();
        for OrderedBatch {
            batch,
            submitters,
            holds: held,
        } in batches
        {
            holds.extend(held);
            let time = batch.time;
            let mut draft = Draft::new(
                LogJournal {
                    log: &mut self.log,
                    now: time,
                },
                &mut self.cut,
            );
            let mut submitters = submitters.into_iter();
            let mut failed = None;
            for command in batch.commands {
                // A new dispatcher answers from what it restores. Other commands for the log only wait for their place.
                let promises = !command.is_for_log()
                    || matches!(command, Command::Fleet(FleetCommand::Dispatch { .. }));
                let outcome = match self.machine.may_change(&batch.batch, &command) {
                    true => self.machine.apply(command, Now::at(time), &mut draft),
                    false => Outcome::Refused(Refusal::NotDispatcher),
                };
                // Other nodes may have room for it, so this one must not continue without it.
                if let Outcome::Refused(
                    refusal @ (Refusal::TooLarge { .. } | Refusal::LogFailed(_)),
                ) = &outcome
                {
                    failed.get_or_insert_with(|| {
                        format!("{refusal}; --segment must be the same on all nodes")
                    });
                }
                if let Some(Some(from)) = submitters.next() {
                    awaited |= promises;
                    judged.push(Judged {
                        from,
                        ack: None,
                        may_be_early: false,
                        outcome,
                    });
                }
            }
            let differs = draft
                .differs
                .map(|sequence| format!("record {sequence} differs; {DIFFERS}"));
            let made = !draft.records.is_empty();
            records.append(&mut draft.records);
            streams.append(&mut draft.streams);
            if let Some(reason) = failed.or(differs) {
                return Err(CannotApply::Failed(reason.into()));
            }
            let Some(replica) = &mut self.machine.replica else {
                continue;
            };
            let chain = &mut replica.chain;
            chain.apply(batch.tip, batch.resume, time, &batch.batch);
            chain.leave(&batch.left);
            // A repair continues behind a mark, and a name that has left must not be known again.
            let leaves = !batch.left.is_empty();
            if made || leaves || chain.is_mark_due() {
                // A mark behind them would make them part of the order, which has not made them.
                if !self.cut.is_empty() {
                    return Err(CannotApply::Failed(DIFFERS.into()));
                }
                let mark = chain.mark();
                marked = true;
                let appended = append_mark(&mut self.log, &mark, time);
                appended.map_err(|error| CannotApply::Failed(error.to_string().into()))?;
            }
        }
        let level = match (marked, awaited) {
            (true, true) => AckLevel::Synced,
            (true, false) => AckLevel::Written,
            (false, _) => AckLevel::Accepted,
        };
        let mut decided = Decided::new(level, judged);
        decided.batch = marked.then(|| Arc::new(Batch::new(records)));
        decided.streams = streams;
        decided.holds = holds;
        decided.log_bytes = self.log.batch_bytes() - before;
        Ok((decided, awaited))
    }

    /// Refuses commands of this node that the order does not answer.
    pub(crate) fn refuse_submitters(&mut self, submitters: Vec<Submitter>, refusal: &Refusal) {
        let mut replies = super::replies::Replies::default();
        for Submitter { shard, token } in submitters {
            let outcome = Outcome::Refused(refusal.clone());
            replies.push(shard, crate::Reply { token, outcome });
        }
        self.outlets.refuse(replies);
    }

    /// A command that makes a mark due, if the last batches have none and nothing has followed them for so long.
    pub(crate) fn settling(&self, now: Now, idle_min: Duration) -> Option<FleetCommand> {
        let chain = self.machine.chain()?;
        let idle = chain.unmarked > 0 && now.wall.since(chain.time) >= idle_min;
        let log = self.machine.place.log;
        idle.then_some(FleetCommand::Barrier { log })
    }

    /// The last mark in the log. None while it is not durable.
    pub(crate) fn durable_mark(&self) -> Option<Tip> {
        let is_durable = self.failed.is_none() && self.log.is_synced();
        let chain = self.machine.chain().filter(|_| is_durable);
        chain.map(Chain::marked_tip)
    }

    /// What this node proposes by its own clock, and because of what it has applied.
    pub(crate) fn proposals(&mut self, now: Now, own: bool) -> Vec<FleetCommand> {
        let mut proposals = self.expiry.propose(now, &mut self.machine);
        let trims = self.machine.trims(now);
        if own {
            proposals.extend(trims);
        }
        proposals
    }
}

/// Whether clients have waited for long enough. Notes the first attempt.
fn is_long(stalled_at: &mut Option<Instant>) -> bool {
    stalled_at.get_or_insert_with(Instant::now).elapsed() > ANSWER_WITHIN
}

/// The clients of batches, which get no other reply.
fn take_submitters(batches: &mut [OrderedBatch]) -> Vec<Submitter> {
    let taken = batches
        .iter_mut()
        .flat_map(|one| std::mem::take(&mut one.submitters));
    taken.flatten().collect()
}

/// Brings every stream that the batches name into memory, where the machine finds it. The result keeps them there.
fn load<S: Store>(batches: &[OrderedBatch], loader: &Loader<S>) -> Result<Vec<Lookup>, LoadError> {
    let mut held = Vec::new();
    let mut names = std::collections::HashSet::new();
    for command in batches.iter().flat_map(|one| &one.batch.commands) {
        let source = match command {
            Command::Create(create) => create.fork.as_ref().map(|fork| &*fork.source),
            _ => None,
        };
        let name = Some(command.name()).filter(|_| !command.is_for_log());
        let before = match command {
            Command::Series(appends) => appends.as_slice(),
            _ => &[],
        };
        let before = before.iter().map(|append| append.target.name());
        for name in source.into_iter().chain(name).chain(before) {
            if names.insert(name) {
                held.push(loader.load(name)?);
            }
        }
    }
    Ok(held)
}

/// While the disk takes nothing, clients wait at most this long.
const ANSWER_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

const DIFFERS: &str = "the records behind the last applied batch differ from those that the order makes: this directory \
                       belongs to another fleet, or the order has lost messages";
