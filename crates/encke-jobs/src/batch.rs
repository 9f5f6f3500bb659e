//! Decisions become records, and take effect when these are in the log.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::Now;
use encke_stream::{Data, Refusal};

use crate::error::JobError;
use crate::machine::{JobMachine, JobTimer};
use crate::op::{JSON, Op, PoolNo, append, append_to, bytes, create, series};
use crate::pool_state::{AttemptStage, Decision, MESSAGES_BYTES, Messages, PoolPhase};
use crate::record::{ENTRY_BYTES, JournalEntry, JournalRecord, segment_name};
use crate::response::DispatchResponse;
use crate::streams::PublicStream;

impl JobMachine {
    /// Writes the decisions on a pool. The messages for its public streams are in one series with the record of the journal and before
    /// it: the log has the end of a job only if it has the result or the dead letter.
    pub(crate) fn write_batch(&mut self, no: PoolNo) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        if matches!(pool.phase, PoolPhase::Draining | PoolPhase::Rotating) {
            return;
        }
        let name = Arc::clone(&pool.name);
        let events = std::mem::take(&mut pool.draft.events);
        let decisions = std::mem::take(&mut pool.draft.decisions);
        let segment = segment_name(&name, no, pool.segments.last());
        let parts = parts(decisions, (self.limits.record_bytes / ENTRY_BYTES).max(1));
        pool.pending_records += parts.len();
        for mut decisions in parts {
            let mut appends = Vec::new();
            for stream in [PublicStream::Results, PublicStream::Dead] {
                let mut messages = Messages::default();
                for decision in &mut decisions {
                    if let Some((_, message)) =
                        decision.message.take_if(|(what, _)| *what == stream)
                    {
                        messages.push(&message);
                    }
                }
                let name = stream.of(&name);
                appends.extend(messages.0.into_iter().map(|data| append_to(&name, data)));
            }
            let entries = decisions.iter().map(|decision| decision.entry.clone());
            let record = bytes(JournalRecord::Batch(entries.collect()).encode());
            appends.push(append_to(&segment, record));
            self.commit(series(appends), Op::Batch(no, decisions));
        }
        for data in events.0 {
            let copy = Data {
                bytes: data.bytes.clone(),
                units: data.units,
            };
            let command = append(&PublicStream::Events.of(&name), data);
            self.commit(command, Op::Events(Arc::clone(&name), copy));
        }
    }

    /// Handles the outcome of events. A stream that was deleted is created again; otherwise events are sent without a guarantee.
    pub(crate) fn events_committed(
        &mut self,
        name: &Arc<str>,
        data: Data,
        outcome: Result<u64, JobError>,
    ) {
        match outcome {
            Err(JobError::Log(Refusal::NotFound | Refusal::Gone))
                if self.names.contains_key(&**name) =>
            {
                self.make_again(&PublicStream::Events.of(name), data);
            }
            // An overloaded log says so elsewhere.
            Ok(_) | Err(JobError::Overloaded) => {}
            Err(error) => tracing::warn!(pool = %name, %error, "lost events of a pool"),
        }
    }

    /// Creates a public stream that was deleted, with this in it.
    pub(crate) fn make_again(&mut self, stream: &str, data: Data) {
        self.commit(create(stream, JSON, data), Op::Recreated(stream.into()));
    }

    /// Makes the streams again that the records of a batch need: one was deleted, or its lifetime was over.
    fn make_streams_again(&mut self, pool: &str) {
        for stream in [PublicStream::Results, PublicStream::Dead] {
            self.make_again(&stream.of(pool), Data::default());
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
                self.respond(client, DispatchResponse::Refused(JobError::PoolChanging));
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
                let name = Arc::clone(&pool.name);
                let error = match error {
                    JobError::Log(Refusal::NotFound | Refusal::Gone) => JobError::StreamMissing,
                    JobError::Log(Refusal::Closed { .. }) => {
                        pool.has_closed_stream = true;
                        JobError::StreamClosed((*name).into())
                    }
                    error => error,
                };
                pool.pause_until = now.steady.after(RETRY);
                self.due.insert((pool.pause_until, JobTimer::Pause(no)));
                // In reverse order, because a decision may build on an earlier one.
                for decision in decisions.into_iter().rev() {
                    self.revert(now, no, decision, &error);
                }
                if error == JobError::StreamMissing {
                    self.make_streams_again(&name);
                }
            }
        }
    }

    /// A decision is in the log.
    fn apply(&mut self, now: Now, no: PoolNo, decision: Decision) {
        let mut response = DispatchResponse::Reported { deadline: None };
        match decision.entry {
            JournalEntry::Leased { id, .. } => self.leased(now, no, id),
            JournalEntry::Extended {
                id,
                attempt,
                deadline,
            } => {
                let deadline = decision.until.unwrap_or_else(|| now.steady_at(deadline));
                response = DispatchResponse::Reported {
                    deadline: Some(now.wall_at(deadline)),
                };
                let pool = self.pools.get_mut(&no);
                if let Some(running) = pool.and_then(|pool| pool.running.get_mut(&id))
                    && running.job.attempts == attempt
                    && running.stage == AttemptStage::Running
                {
                    self.due
                        .remove(&(running.deadline, JobTimer::Attempt(no, id)));
                    running.deadline = deadline;
                    self.due.insert((deadline, JobTimer::Attempt(no, id)));
                }
            }
            JournalEntry::Back { id, attempt } => self.returned(now, no, (id, attempt), None),
            JournalEntry::Delayed { id, attempt, until } => {
                let until = decision.until.unwrap_or_else(|| now.steady_at(until));
                self.returned(now, no, (id, attempt), Some(until));
            }
            JournalEntry::Done { id, .. } => self.finish(now, no, id, false, decision.result),
            JournalEntry::Dead { id, .. } => self.finish(now, no, id, true, decision.result),
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
                        .remove(&(running.deadline, JobTimer::Attempt(no, id)));
                    // A failed attempt fails again when the timer fires.
                    let retry = now.steady.after(RETRY);
                    running.deadline = match decision.entry {
                        JournalEntry::Done { .. } => running.deadline.max(retry),
                        _ => retry,
                    };
                    self.due
                        .insert((running.deadline, JobTimer::Attempt(no, id)));
                }
            }
            JournalEntry::Extended { .. } => {}
        }
        if let Some(client) = decision.client {
            self.respond(client, DispatchResponse::Refused(error.clone()));
        }
    }
}

/// Decisions in parts, so that those of a part and their messages fit into records.
fn parts(decisions: Vec<Decision>, entries_max: usize) -> Vec<Vec<Decision>> {
    let mut parts: Vec<Vec<Decision>> = Vec::new();
    let mut bytes = 0;
    for decision in decisions {
        let message = decision.message.as_ref();
        let message_bytes = message.map_or(0, |(_, message)| message.len());
        let fits = bytes + message_bytes < MESSAGES_BYTES;
        match parts.last_mut() {
            Some(part) if fits && part.len() < entries_max => {
                bytes += message_bytes;
                part.push(decision);
            }
            _ => {
                bytes = message_bytes;
                parts.push(vec![decision]);
            }
        }
    }
    parts
}

/// The pause before the log is tried again after a refusal.
pub(crate) const RETRY: Duration = Duration::from_millis(250);
