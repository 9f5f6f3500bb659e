//! Commands on their way to the log, and what follows when they are there.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_stream::{Append, Command, Create, Data, Lifetime, Outcome, Refusal, Target};

use crate::error::JobError;
use crate::machine::{Due, Effect, Machine, PoolNo};
use crate::post::Posted;
use crate::request::PoolClient;
use crate::settings::PoolSettings;
use crate::shop::Step;

/// What a command to the log was for.
#[derive(Debug)]
pub(crate) enum Op {
    /// The stream of pools, made if it was not there.
    Registry,
    /// One of the streams of a pool that is being made.
    Side(Arc<Making>),
    /// A pool was announced.
    Announced(Arc<Making>),
    /// A pool's first chapter.
    First(Arc<Making>, PoolNo),
    /// The first chapter is where the pool begins.
    Opened(Arc<Making>, PoolNo, u64),
    /// A chapter of a pool that is there already.
    /// The other parts of what it begins with are to follow.
    Chapter(PoolNo, u32, VecDeque<Vec<u8>>),
    /// A part of what a chapter begins with, the chapter's first record, and the parts that follow.
    Part(PoolNo, u32, u64, VecDeque<Vec<u8>>),
    /// The pool goes on in that chapter, which begins with that record.
    TurnedTo(PoolNo, u32, u64),
    /// A pool is removed.
    Gone(PoolNo, PoolClient),
    /// A job.
    Post(PoolNo, Posted),
    /// A record of what was decided.
    Turn(PoolNo, Vec<Step>),
    /// Messages for a stream that everybody may read.
    Messages(Arc<str>, &'static str, Data),
    /// The same, after the stream was found to be gone and is made anew.
    Again(Arc<str>),
    /// A chapter that nobody needs.
    Forget(String),
    /// Nothing follows.
    Nothing,
}

/// A pool that is being made.
#[derive(Debug)]
pub(crate) struct Making {
    pub(crate) name: Box<str>,
    pub(crate) settings: PoolSettings,
    pub(crate) from: PoolClient,
    /// A stream that it needs can't be had.
    pub(crate) taken: parking_lot::Mutex<Option<JobError>>,
}

impl Machine {
    /// What became of a command.
    pub fn committed(&mut self, now_ms: u64, op: u64, outcome: Outcome) {
        let Some(op) = self.ops.remove(&op) else {
            return;
        };
        let outcome = match outcome {
            Outcome::Refused(refusal) => Err(JobError::Log(refusal)),
            // One that could not be made known before: what it begins with is not what is now.
            Outcome::Created { existed: true, .. } if matches!(op, Op::Chapter(..)) => {
                Err(JobError::PoolChanging)
            }
            outcome => Ok(tail(&outcome)),
        };
        self.follow(now_ms, op, outcome);
    }

    /// The log has no room for a command now.
    pub fn unsent(&mut self, now_ms: u64, op: u64) {
        if let Some(op) = self.ops.remove(&op) {
            self.follow(now_ms, op, Err(JobError::Overloaded));
        }
    }

    fn follow(&mut self, now_ms: u64, op: Op, outcome: Result<u64, JobError>) {
        match op {
            Op::Registry => self.registered = outcome.is_ok(),
            Op::Side(making) => side_made(&making, outcome),
            Op::Announced(making) => self.announced(&making, outcome),
            Op::First(making, no) => self.first_chapter(&making, no, outcome),
            Op::Opened(making, no, first) => self.opened(&making, no, first, outcome),
            Op::Chapter(no, chapter, parts) => self.chapter(now_ms, no, chapter, parts, outcome),
            Op::Part(no, chapter, first, parts) => {
                self.part(now_ms, no, chapter, first, parts, outcome);
            }
            Op::TurnedTo(no, chapter, first) => {
                self.turned_to(now_ms, no, chapter, first, outcome);
            }
            Op::Gone(no, from) => self.removed(no, from, outcome),
            Op::Post(no, posted) => self.posted(now_ms, no, posted, outcome),
            Op::Turn(no, steps) => self.turned(now_ms, no, steps, outcome),
            Op::Messages(name, what, data) => self.told_all(&name, what, data, outcome),
            Op::Again(name) => {
                if let Err(error) = outcome {
                    tracing::error!(stream = %name, %error, "messages of a pool are lost");
                }
            }
            Op::Forget(stream) => {
                let found = !matches!(outcome, Err(JobError::Log(Refusal::NotFound)));
                if outcome.is_err() && found && !self.stopping {
                    self.due.insert((now_ms + FORGET_MS, Due::Forget));
                    self.forgotten.push(stream);
                }
            }
            Op::Nothing => {}
        }
    }

    /// Whether anything is on its way to the log.
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

    /// Deletes a stream that nobody needs.
    pub(crate) fn forget(&mut self, stream: String) {
        let target = Target::Named(stream.as_str().into());
        self.commit(Command::Delete { target, ack: None }, Op::Forget(stream));
    }
}

fn side_made(making: &Making, outcome: Result<u64, JobError>) {
    let error = match outcome {
        // One that is there and ends by itself some day is as good.
        Ok(_) => return,
        Err(JobError::Log(Refusal::Differs { what, .. })) if what != "content type" => return,
        Err(JobError::Log(Refusal::Differs { .. })) => JobError::StreamTaken(making.name.clone()),
        Err(error) => error,
    };
    making.taken.lock().get_or_insert(error);
}

/// The last record that an outcome tells of.
fn tail(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Created { tail, .. } | Outcome::Appended { tail, .. } => tail.sequence,
        Outcome::Truncated { .. } | Outcome::Deleted | Outcome::Refused(_) => 0,
    }
}

/// A stream to be made, of bytes or of JSON messages.
pub(crate) fn create(name: &str, content_type: &str, data: Data) -> Command {
    Command::Create(Create {
        name: name.into(),
        content_type: Some(content_type.into()),
        lifetime: Some(Lifetime::Unbounded),
        closed: false,
        fork: None,
        data,
        ack: None,
        retention: None,
        known: Vec::new(),
    })
}

/// Data for a stream that is there.
pub(crate) fn append(name: &str, data: Data) -> Command {
    Command::Append(Append {
        target: Target::Named(name.into()),
        content_type: None,
        producer: None,
        writer_seq: None,
        closes: false,
        ack: None,
        data,
    })
}

pub(crate) fn bytes(bytes: Vec<u8>) -> Data {
    let units = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Data { bytes, units }
}

/// The type of streams that are for the pools alone.
pub(crate) const BYTES: &str = "application/octet-stream";
/// The type of streams that everybody may read.
pub(crate) const JSON: &str = "application/json";

/// When a chapter could not be deleted, it is tried again after so long, in milliseconds.
const FORGET_MS: u64 = 5_000;
