//! The journal: its first segment, and the change to a new one when it is long, so that a start reads little.

use std::collections::VecDeque;
use std::time::Duration;

use encke_clock::Now;
use encke_stream::{Command, Outcome, Refusal, Target};

use super::commit::LOG_PAUSE;
use super::op::{Op, SegmentPhase, SegmentState, append, create, series};
use super::state::SubscriptionMachine;
use crate::error::SubscriptionError;
use crate::record::{SEGMENTS, SegmentsRecord, SubscriptionRecord, segment_name};

impl SubscriptionMachine {
    /// Begins a new segment when there is none and a decision needs it, or when the present one is long, or has times of before a step
    /// of the time of day, and no decision is on its way.
    pub(super) fn rotate(&mut self, now: Now) {
        self.segments.is_stale |= self.segments.steps.has_stepped(now);
        let is_needed = match self.segments.current {
            None => !self.decisions.is_empty(),
            Some(_) => {
                let is_long = self.segments.is_long(self.limits.segment_bytes);
                let is_stale =
                    self.segments.is_stale && (self.is_stopping || now.steady >= self.paused_until);
                is_long && !self.is_stopping || is_stale
            }
        };
        if is_needed && self.segments.phase == SegmentPhase::Open {
            self.segments.phase = SegmentPhase::Draining;
        }
        if self.segments.phase != SegmentPhase::Draining || self.segments.under_way > 0 {
            return;
        }
        self.segments.phase = SegmentPhase::Rotating;
        if !self.segments.has_registry {
            self.commit(create(SEGMENTS, Vec::new()), Op::Registry);
        }
        let segment = self.segments.next;
        // One that cannot be completed is abandoned.
        self.segments.next += 1;
        let mut parts = self.snapshot(now);
        let begin = parts.pop_front().unwrap_or_default();
        let command = create(&segment_name(segment), begin);
        self.commit(command, Op::Segment(segment, parts));
    }

    /// The state of all subscriptions as the first records of a segment.
    fn snapshot(&mut self, now: Now) -> VecDeque<Vec<u8>> {
        let record_bytes = self.limits.record_bytes;
        let begin = SubscriptionRecord::Begin {
            secrets: self.secrets.clone(),
            next_no: self.next_no,
        };
        let mut parts = VecDeque::from([begin.encode()]);
        let complete = self.subscriptions.values();
        let complete = complete.filter(|subscription| !subscription.live.is_creating);
        let entries = complete.flat_map(|subscription| subscription.entries(now, record_bytes));
        parts.extend(SubscriptionRecord::of_entries(entries, record_bytes));
        self.segments.begin_bytes = bytes(&parts);
        parts
    }

    /// Handles the outcome of a command for the journal itself.
    pub(super) fn segment_op_accepted(&mut self, op: Op, outcome: &Outcome) {
        match op {
            Op::Registry => self.segments.has_registry = true,
            Op::Segment(segment, _)
                if matches!(outcome, Outcome::Created { existed: true, .. }) =>
            {
                // It was left by an earlier run, and begins with an older state.
                self.segments.old.push(segment);
                self.segments.phase = SegmentPhase::Draining;
            }
            Op::Segment(segment, parts) | Op::SegmentPart(segment, parts) => {
                self.write_next_part(segment, parts);
            }
            Op::Current(segment) => {
                let before = self.segments.current.replace(segment);
                self.segments.old.extend(before);
                self.segments.bytes = 0;
                self.segments.is_stale = false;
                self.segments.phase = SegmentPhase::Open;
                self.delete_segments();
            }
            Op::DeleteSegment(_) | Op::Decisions(_) | Op::Wake(..) | Op::Event { .. } => {}
        }
    }

    /// Writes the next part of what begins a segment; behind the last part, makes the segment the current one.
    fn write_next_part(&mut self, segment: u32, mut parts: VecDeque<Vec<u8>>) {
        match parts.pop_front() {
            Some(part) => {
                let command = series(vec![append(&segment_name(segment), part)]);
                self.commit(command, Op::SegmentPart(segment, parts));
            }
            None => {
                let current = SegmentsRecord::Current { segment }.encode();
                let command = series(vec![append(SEGMENTS, current)]);
                self.commit(command, Op::Current(segment));
            }
        }
    }

    pub(super) fn segment_op_refused(&mut self, now: Now, op: Op, error: &SubscriptionError) {
        match op {
            Op::Segment(segment, _) | Op::SegmentPart(segment, _) | Op::Current(segment) => {
                tracing::warn!(%error, "cannot begin a segment of the journal of subscriptions");
                self.segments.old.push(segment);
                self.segments.delete_at = now.steady.after(DELETE_PAUSE);
                self.segments.phase = SegmentPhase::Open;
                self.segments.bytes /= 2;
                self.segments.is_stale &= !self.is_stopping;
                self.paused_until = now.steady.after(LOG_PAUSE);
                if self.segments.current.is_none() {
                    for decision in std::mem::take(&mut self.decisions) {
                        self.undo(now, decision, error);
                    }
                }
            }
            Op::DeleteSegment(segment) => {
                let is_gone = matches!(
                    error,
                    SubscriptionError::Log(Refusal::NotFound | Refusal::Gone)
                );
                if !is_gone && !self.is_stopping {
                    self.segments.old.push(segment);
                    self.segments.delete_at = now.steady.after(DELETE_PAUSE);
                }
            }
            Op::Registry | Op::Decisions(_) | Op::Wake(..) | Op::Event { .. } => {}
        }
    }

    /// Deletes segments that are not needed any more, if it is time to try that again.
    pub(super) fn delete_old_segments(&mut self, now: Now) {
        if now.steady >= self.segments.delete_at {
            self.delete_segments();
        }
    }

    fn delete_segments(&mut self) {
        for segment in std::mem::take(&mut self.segments.old) {
            let target = Target::Named(segment_name(segment).into());
            let command = Command::Delete { target, ack: None };
            self.commit(command, Op::DeleteSegment(segment));
        }
    }
}

impl SegmentState {
    /// Counts records of decisions.
    pub(super) fn count<'a>(&mut self, records: impl IntoIterator<Item = &'a Vec<u8>>) {
        self.bytes += bytes(records);
    }

    /// Whether the current segment is so long that a new one begins.
    fn is_long(&self, segment_bytes: u64) -> bool {
        self.bytes >= segment_bytes.max(4 * self.begin_bytes)
    }
}

fn bytes<'a>(records: impl IntoIterator<Item = &'a Vec<u8>>) -> u64 {
    let bytes = records.into_iter().map(Vec::len);
    bytes.sum::<usize>() as u64
}

/// The pause before the deletion of a segment is tried again.
const DELETE_PAUSE: Duration = Duration::from_secs(5);
