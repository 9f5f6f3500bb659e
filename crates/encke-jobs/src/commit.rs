//! Commands on their way to the log, and their outcomes.

use std::time::Duration;

use encke_clock::Now;
use encke_stream::{Command, Outcome, Refusal, Target, born};

use crate::error::JobError;
use crate::machine::{Effect, JobMachine, JobTimer};
use crate::op::Op;
use crate::response::DispatchResponse;

impl JobMachine {
    /// Handles the outcome of a command.
    pub fn committed(&mut self, now: Now, op: u64, outcome: Outcome) {
        let Some(op) = self.ops.remove(&op) else {
            return;
        };
        let outcome = match outcome {
            Outcome::Refused(refusal) => Err(JobError::Log(refusal)),
            // The segment was left by an earlier attempt, so it begins with an older snapshot.
            Outcome::Created { existed: true, .. } if matches!(op, Op::Segment(..)) => {
                Err(JobError::PoolChanging)
            }
            Outcome::Created { no, .. } if matches!(op, Op::PublicStream(..)) => Ok(born(no)),
            outcome => Ok(tail(&outcome)),
        };
        self.follow(now, op, outcome);
    }

    /// The sequencer has no room for a command now.
    pub fn unsent(&mut self, now: Now, op: u64) {
        if let Some(op) = self.ops.remove(&op) {
            self.follow(now, op, Err(JobError::Overloaded));
        }
    }

    fn follow(&mut self, now: Now, op: Op, outcome: Result<u64, JobError>) {
        match op {
            Op::Registry => self.registered = outcome.is_ok(),
            Op::Announced(making) => self.announced(&making, outcome),
            Op::PublicStream(making, no, what) => self.public_stream(&making, no, what, outcome),
            Op::FirstSegment(making, no) => self.first_segment(&making, no, outcome),
            Op::Opened(making, no, first) => self.opened(&making, no, first, outcome),
            Op::Segment(no, segment, parts) => self.segment(now, no, segment, parts, outcome),
            Op::SnapshotPart(no, segment, first, parts) => {
                self.part(now, no, segment, first, parts, outcome);
            }
            Op::Rotated(no, segment, first) => {
                self.rotated(now, no, segment, first, outcome);
            }
            Op::Changed(no, from, change) => self.changed(now, no, from, &change, outcome),
            Op::Removed(no, from) => self.removed(no, from, outcome),
            Op::Post(no, posted) => self.posted(now, no, posted, outcome),
            Op::Batch(no, decisions) => self.batch_committed(now, no, decisions, outcome),
            Op::Events(name, data) => self.events_committed(&name, data, outcome),
            Op::Recreated(name) => {
                if let Err(error) = outcome {
                    tracing::error!(stream = %name, %error, "could not make a stream of a pool again");
                }
            }
            Op::DeletePublic(from) => {
                let response = match outcome {
                    Ok(_) => DispatchResponse::Removed,
                    Err(error) => DispatchResponse::Refused(error),
                };
                self.respond(from, response);
            }
            Op::Delete(stream) => {
                let found = !matches!(outcome, Err(JobError::Log(Refusal::NotFound)));
                if outcome.is_err() && found && !self.stopping {
                    self.due
                        .insert((now.steady.after(DELETE_RETRY), JobTimer::DeleteStreams));
                    self.undeleted.push(stream);
                }
            }
            Op::Nothing => {}
        }
    }

    /// Whether no command is on its way to the log.
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn commit(&mut self, command: Command, op: Op) {
        let number = self.next_op;
        self.next_op += 1;
        self.ops.insert(number, op);
        self.effects.push(Effect::Commit {
            op: number,
            command,
        });
    }

    /// Deletes a stream.
    pub(crate) fn delete_stream(&mut self, stream: String) {
        let target = Target::Named(stream.as_str().into());
        self.commit(Command::Delete { target, ack: None }, Op::Delete(stream));
    }
}

/// The sequence of the last record of an outcome.
fn tail(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Created { tail, .. } | Outcome::Appended { tail, .. } => tail.sequence,
        Outcome::Truncated { .. } | Outcome::Deleted | Outcome::Done | Outcome::Refused(_) => 0,
    }
}

/// The pause before the deletion of a stream is tried again.
const DELETE_RETRY: Duration = Duration::from_secs(5);
