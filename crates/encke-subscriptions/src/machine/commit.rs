//! Decisions on their way to the log, and the outcomes of commands.

use std::time::Duration;

use encke_clock::Now;
use encke_stream::{Command, Outcome, Refusal};

use super::decision::{Answer, Decision};
use super::op::{Op, SegmentPhase, append, series};
use super::state::{SubscriptionEffect, SubscriptionMachine};
use crate::entry::SubscriptionEntry;
use crate::error::SubscriptionError;
use crate::record::{SubscriptionRecord, segment_name};
use crate::response::SubscriptionResponse;

impl SubscriptionMachine {
    /// Adds a decision to those that are written next. Nothing else is decided about its subscription until it is in the log.
    pub(super) fn decide(&mut self, mut decision: Decision) {
        let Some(subscription) = self.subscriptions.get_mut(&decision.no) else {
            return;
        };
        subscription.live.is_busy = true;
        decision.observed = subscription.links.take_unwritten();
        self.decisions.push(decision);
    }

    /// Writes the decisions, unless the journal is just changing its segment. Each wake with an event is a command of its own, because
    /// the stream for the event may refuse it; the others share records.
    pub(super) fn write_decisions(&mut self) {
        let Some(segment) = self.segments.current else {
            return;
        };
        if self.segments.phase != SegmentPhase::Open {
            return;
        }
        let record_bytes = self.limits.record_bytes;
        let mut batch: Vec<Decision> = Vec::new();
        let mut batch_bytes = 0;
        for decision in std::mem::take(&mut self.decisions) {
            if decision.event.is_some() {
                self.write_wake(segment, decision);
                continue;
            }
            let entries = decision.all_entries(record_bytes);
            let bytes: usize = entries.iter().map(SubscriptionEntry::weight_bytes).sum();
            if batch_bytes + bytes > record_bytes && !batch.is_empty() {
                self.write_batch(segment, std::mem::take(&mut batch));
                batch_bytes = 0;
            }
            batch_bytes += bytes;
            batch.push(decision);
        }
        if !batch.is_empty() {
            self.write_batch(segment, batch);
        }
    }

    fn write_batch(&mut self, segment: u32, decisions: Vec<Decision>) {
        let record_bytes = self.limits.record_bytes;
        let entries = decisions
            .iter()
            .flat_map(|decision| decision.all_entries(record_bytes));
        let records = SubscriptionRecord::of_entries(entries, record_bytes);
        self.segments.count(&records);
        let appends = records
            .into_iter()
            .map(|record| append(&segment_name(segment), record));
        let command = series(appends.collect());
        self.commit(command, Op::Decisions(decisions));
    }

    /// Writes the event of a wake and the decision about it in one series: the log has the wake only if it has the event.
    fn write_wake(&mut self, segment: u32, decision: Decision) {
        let records = decision.records(self.limits.record_bytes);
        self.segments.count(&records);
        let behind = records.len() as u64;
        let event = decision.event.as_ref().map(|event| event.append());
        let records = records
            .into_iter()
            .map(|record| append(&segment_name(segment), record));
        let command = series(event.into_iter().chain(records).collect());
        self.commit(command, Op::Wake(Box::new(decision), behind));
    }

    /// Handles the outcome of a command.
    pub fn committed(&mut self, now: Now, op: u64, outcome: Outcome) {
        let Some(op) = self.ops.remove(&op) else {
            return;
        };
        match outcome {
            Outcome::Refused(refusal) => {
                self.refused(
                    now,
                    op,
                    SubscriptionError::Log(refusal.clone()),
                    Some(refusal),
                );
            }
            outcome => self.accepted(now, op, &outcome),
        }
    }

    /// The log has no room for a command now.
    pub fn unsent(&mut self, now: Now, op: u64) {
        if let Some(op) = self.ops.remove(&op) {
            self.refused(now, op, SubscriptionError::Overloaded, None);
        }
    }

    fn accepted(&mut self, now: Now, op: Op, outcome: &Outcome) {
        match op {
            Op::Decisions(decisions) => {
                self.segments.under_way -= 1;
                for decision in decisions {
                    self.apply(now, decision);
                }
            }
            Op::Wake(decision, behind) => {
                self.segments.under_way -= 1;
                if let Some(event) = &decision.event {
                    // The records of a series follow each other. If the stream has removed a record for its retention, this is none of
                    // its events, and nothing comes of it.
                    let at = sequence(outcome).saturating_sub(behind);
                    self.event_streams
                        .written(&event.stream, event.stream_no, at);
                }
                self.apply(now, *decision);
            }
            Op::Event {
                no,
                generation,
                event,
            } => {
                let stream = event.stream_no;
                self.event_streams
                    .written(&event.stream, stream, sequence(outcome));
                if let Some(subscription) = self.subscriptions.get_mut(&no) {
                    subscription.live.event.is_under_way = false;
                    subscription.live.event.written = Some((generation, stream));
                    subscription.live.event.failures = 0;
                    self.touched.insert(no);
                }
            }
            op => self.segment_op_accepted(op, outcome),
        }
    }

    fn refused(&mut self, now: Now, op: Op, error: SubscriptionError, refusal: Option<Refusal>) {
        let is_of_event = refusal.as_ref().is_some_and(is_of_event);
        match op {
            Op::Wake(decision, _) if is_of_event => {
                self.segments.under_way -= 1;
                self.event_refused(now, decision.no, &error);
                let decision = decision.without_event();
                if decision.is_empty() && decision.answers.is_empty() {
                    self.undo(now, decision, &error);
                } else {
                    self.decisions.push(decision);
                }
            }
            Op::Wake(decision, _) => {
                self.segments.under_way -= 1;
                self.paused_until = now.steady.after(LOG_PAUSE);
                self.undo(now, *decision, &error);
            }
            Op::Decisions(decisions) => {
                self.segments.under_way -= 1;
                self.paused_until = now.steady.after(LOG_PAUSE);
                for decision in decisions {
                    self.undo(now, decision, &error);
                }
            }
            Op::Event { no, .. } => {
                if let Some(subscription) = self.subscriptions.get_mut(&no) {
                    subscription.live.event.is_under_way = false;
                    self.touched.insert(no);
                }
                self.event_refused(now, no, &error);
            }
            op => self.segment_op_refused(now, op, &error),
        }
    }

    /// A stream has refused the event of a wake: it is tried again behind a pause.
    fn event_refused(&mut self, now: Now, no: u64, error: &SubscriptionError) {
        self.counts.events_refused += 1;
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        if let Some(attempts) = subscription.live.event_warning.count(now) {
            tracing::warn!(
                subscription = &*subscription.id,
                stream = subscription.config.wake_stream.as_deref(),
                %error,
                attempts,
                "the event of a wake cannot be written; trying again"
            );
        }
        let failures = subscription.live.event.failures.saturating_add(1);
        let at = now.steady.after(self.pause(no, failures));
        if let Some(subscription) = self.subscriptions.get_mut(&no) {
            subscription.live.event.failures = failures;
            subscription.live.event.at = at;
        }
    }

    /// A decision is in the log.
    fn apply(&mut self, now: Now, decision: Decision) {
        let no = decision.no;
        let is_deleted = decision
            .entries
            .iter()
            .any(|entry| matches!(entry, SubscriptionEntry::Deleted { .. }));
        if let Some(subscription) = self.subscriptions.get_mut(&no) {
            let live = &mut subscription.live;
            live.is_busy = false;
            live.is_creating = false;
            live.has_lost_links = false;
            if decision.event.is_some() {
                live.event.failures = 0;
            }
            subscription.links.confirm(&decision.requested);
            for entry in &decision.entries {
                match entry {
                    SubscriptionEntry::Unlinked { links, .. } => subscription.unlink(links),
                    SubscriptionEntry::Woken { .. } => {
                        self.counts.wakes += 1;
                        subscription.apply(now, entry);
                    }
                    entry => subscription.apply(now, entry),
                }
            }
            self.touched.insert(no);
        }
        let mut requests = Vec::new();
        for (to, answer) in decision.answers {
            let response = match answer {
                Answer::Response(response) => Some(response),
                Answer::Created => {
                    self.status(no)
                        .map(|subscription| SubscriptionResponse::Created {
                            existed: false,
                            subscription,
                        })
                }
                Answer::Claimed => self.claimed(no).map(SubscriptionResponse::Claimed),
            };
            requests.push((to, response));
        }
        for (to, response) in requests {
            let none = || SubscriptionResponse::Refused(SubscriptionError::NotFound);
            self.respond(to, response.unwrap_or_else(none));
        }
        if is_deleted {
            self.remove(now, no);
        }
    }

    /// A decision was refused: nothing has changed, and it may be made again.
    pub(super) fn undo(&mut self, now: Now, decision: Decision, error: &SubscriptionError) {
        if let Some(subscription) = self.subscriptions.get_mut(&decision.no) {
            let (links, removed) = decision.observed;
            subscription.links.not_written(&links, removed);
        }
        let from = decision.answers.into_iter().map(|(from, _)| from).collect();
        self.withdraw(now, decision.no, from, error);
    }

    pub(super) fn commit(&mut self, command: Command, op: Op) {
        if matches!(op, Op::Decisions(_) | Op::Wake(..)) {
            self.segments.under_way += 1;
        }
        let number = self.next_op;
        self.next_op += 1;
        self.ops.insert(number, op);
        self.effects.push(SubscriptionEffect::Commit {
            op: number,
            command: Box::new(command),
        });
    }
}

/// Whether a series was refused because of the stream for the event: the streams of the journal do not end, and are never evicted
/// while the machine uses them.
fn is_of_event(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::NotFound
            | Refusal::Gone
            | Refusal::Closed { .. }
            | Refusal::TypeDiffers { .. }
            | Refusal::StorageExceeded(_)
            | Refusal::NotOwner
            | Refusal::Evicted
    )
}

/// The sequence of the last record of an outcome.
fn sequence(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Created { tail, .. } | Outcome::Appended { tail, .. } => tail.sequence,
        Outcome::Truncated { .. } | Outcome::Deleted | Outcome::Done | Outcome::Refused(_) => 0,
    }
}

/// The pause before the log is tried again after a refusal.
pub(super) const LOG_PAUSE: Duration = Duration::from_millis(250);
