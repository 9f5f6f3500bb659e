//! Decisions become records, and take effect when these are in the log.

use std::sync::Arc;

use encke_stream::{Data, Now, Refusal};

use crate::error::JobError;
use crate::machine::{JobMachine, JobTimer};
use crate::op::{JSON, Op, PoolNo, append, bytes, create};
use crate::pool_state::{AttemptStage, Decision, PoolPhase};
use crate::record::{ENTRY_BYTES, JournalEntry, JournalRecord, public_stream_name, segment_name};
use crate::response::PoolResponse;

impl JobMachine {
    /// Writes the decisions on a pool: first the public messages, so that no result is acknowledged and missing.
    pub(crate) fn write_batch(&mut self, no: PoolNo) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        if matches!(pool.phase, PoolPhase::Draining | PoolPhase::Rotating) {
            return;
        }
        let name = Arc::clone(&pool.name);
        let results = std::mem::take(&mut pool.draft.results);
        let dead = std::mem::take(&mut pool.draft.dead);
        let events = std::mem::take(&mut pool.draft.events);
        let decisions = std::mem::take(&mut pool.draft.decisions);
        let segment = segment_name(&name, no, pool.segments.last());
        // The decisions of one batch may exceed one record.
        let many = (self.limits.record_bytes / ENTRY_BYTES).max(1);
        pool.pending_records += decisions.len().div_ceil(many);
        for (what, messages) in [("results", results), ("dead", dead)] {
            for data in messages.0 {
                self.publish(&name, what, data);
            }
        }
        let mut decisions = decisions.into_iter().peekable();
        while decisions.peek().is_some() {
            let decisions: Vec<Decision> = decisions.by_ref().take(many).collect();
            let entries = decisions
                .iter()
                .map(|decision| decision.entry.clone())
                .collect();
            let record = bytes(JournalRecord::Batch(entries).encode());
            self.commit(append(&segment, record), Op::Batch(no, decisions));
        }
        for data in events.0 {
            self.publish(&name, "events", data);
        }
    }

    fn publish(&mut self, name: &Arc<str>, what: &'static str, data: Data) {
        let copy = Data {
            bytes: data.bytes.clone(),
            units: data.units,
        };
        let op = Op::Messages(Arc::clone(name), what, copy);
        self.commit(append(&public_stream_name(name, what), data), op);
    }

    /// Handles the outcome of messages for a public stream. A stream that was deleted is created again.
    pub(crate) fn messages_committed(
        &mut self,
        name: &Arc<str>,
        what: &'static str,
        data: Data,
        outcome: Result<u64, JobError>,
    ) {
        let Err(error) = outcome else { return };
        let stream = public_stream_name(name, what);
        match error {
            JobError::Log(Refusal::NotFound | Refusal::Gone) => {
                self.commit(create(&stream, JSON, data), Op::Again(stream.into()));
            }
            // The record that follows was refused, too; events are sent without a guarantee.
            JobError::Overloaded => {}
            JobError::Log(Refusal::NoSpace | Refusal::Stalled(_) | Refusal::Evicted)
                if what != "events" =>
            {
                let pool = self
                    .names
                    .get(&**name)
                    .and_then(|no| self.pools.get_mut(no));
                if let Some(pool) = pool {
                    let draft = match what {
                        "results" => &mut pool.draft.results,
                        _ => &mut pool.draft.dead,
                    };
                    draft.0.insert(0, data);
                }
            }
            error => tracing::error!(%stream, %error, "lost messages of a pool"),
        }
    }

    /// Handles the outcome of a record.
    pub(crate) fn batch_committed(
        &mut self,
        now: Now,
        no: PoolNo,
        decisions: Vec<Decision>,
        outcome: Result<u64, JobError>,
    ) {
        self.touched.insert(no);
        let Some(pool) = self.pools.get_mut(&no) else {
            for client in decisions.iter().filter_map(|decision| decision.client) {
                self.respond(client, PoolResponse::Refused(JobError::PoolChanging));
            }
            return;
        };
        pool.pending_records -= 1;
        match outcome {
            Ok(_) => {
                pool.segments.records += 1;
                for decision in decisions {
                    self.apply(now, no, decision);
                }
            }
            Err(error) => {
                pool.pause_until_ms = now.steady_ms + RETRY_MS;
                self.due
                    .insert((now.steady_ms + RETRY_MS, JobTimer::Pause(no)));
                // In reverse order, because a decision may build on an earlier one.
                for decision in decisions.into_iter().rev() {
                    self.revert(now, no, decision, &error);
                }
            }
        }
    }

    /// A decision is in the log.
    fn apply(&mut self, now: Now, no: PoolNo, decision: Decision) {
        let mut response = PoolResponse::Reported { deadline_ms: None };
        match decision.entry {
            JournalEntry::Leased { id, .. } => self.leased(now, no, id),
            JournalEntry::Extended {
                id,
                attempt,
                deadline_ms,
            } => {
                let until_ms = decision.until_ms;
                let deadline_ms = until_ms.unwrap_or_else(|| now.steady_at(deadline_ms));
                response = PoolResponse::Reported {
                    deadline_ms: Some(now.wall_at(deadline_ms)),
                };
                let pool = self.pools.get_mut(&no);
                if let Some(running) = pool.and_then(|pool| pool.running.get_mut(&id))
                    && running.job.attempts == attempt
                    && running.stage == AttemptStage::Running
                {
                    self.due
                        .remove(&(running.deadline_ms, JobTimer::Attempt(no, id)));
                    running.deadline_ms = deadline_ms;
                    self.due.insert((deadline_ms, JobTimer::Attempt(no, id)));
                }
            }
            JournalEntry::Back { id, .. } => self.returned(now, no, id, None),
            JournalEntry::Delayed { id, until_ms, .. } => {
                let until_ms = decision.until_ms.unwrap_or_else(|| now.steady_at(until_ms));
                self.returned(now, no, id, Some(until_ms));
            }
            JournalEntry::Done { id, .. } => self.finish(now, no, id, false, decision.result),
            JournalEntry::Dead { id, .. } => self.finish(now, no, id, true, None),
        }
        if let Some(client) = decision.client {
            self.respond(client, response);
        }
    }

    /// A decision was refused: restores the state before it.
    fn revert(&mut self, now: Now, no: PoolNo, decision: Decision, error: &JobError) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        match decision.entry {
            JournalEntry::Leased { id, .. } => {
                pool.release(id, false);
                if let Some(mut running) = pool.running.remove(&id) {
                    running.job.attempts -= 1;
                    pool.queues.put_back(running.job);
                    if let Some(connection) = running.connection {
                        self.end_poll(connection);
                    }
                }
            }
            JournalEntry::Back { id, .. }
            | JournalEntry::Delayed { id, .. }
            | JournalEntry::Done { id, .. }
            | JournalEntry::Dead { id, .. } => {
                if let Some(running) = pool.running.get_mut(&id) {
                    running.stage = AttemptStage::Running;
                    self.due
                        .remove(&(running.deadline_ms, JobTimer::Attempt(no, id)));
                    // A failed attempt fails again when the timer fires.
                    running.deadline_ms = match decision.entry {
                        JournalEntry::Done { .. } => {
                            running.deadline_ms.max(now.steady_ms + RETRY_MS)
                        }
                        _ => now.steady_ms + RETRY_MS,
                    };
                    self.due
                        .insert((running.deadline_ms, JobTimer::Attempt(no, id)));
                }
            }
            JournalEntry::Extended { .. } => {}
        }
        if let Some(client) = decision.client {
            self.respond(client, PoolResponse::Refused(error.clone()));
        }
    }
}

/// The pause before the log is tried again after a refusal, in milliseconds.
const RETRY_MS: u64 = 250;
