//! What was decided becomes a record, and holds when that is in the log.

use std::sync::Arc;

use encke_stream::{Data, Refusal};

use crate::end::release;
use crate::error::JobError;
use crate::machine::{Due, Machine, PoolNo};
use crate::op::{JSON, Op, append, bytes, create};
use crate::record::{ENTRY_BYTES, Entry, Record, chapter_name, side_name};
use crate::response::PoolResponse;
use crate::shop::{Phase, Stage, Step};

impl Machine {
    /// Writes down what was decided on a pool: its public words first, so that a result is never
    /// acknowledged and missing.
    pub(crate) fn write_turn(&mut self, no: PoolNo) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        if matches!(shop.phase, Phase::Quiet | Phase::Turning) {
            return;
        }
        let name = Arc::clone(&shop.name);
        let results = std::mem::take(&mut shop.draft.results);
        let dead = std::mem::take(&mut shop.draft.dead);
        let events = std::mem::take(&mut shop.draft.events);
        let steps = std::mem::take(&mut shop.draft.steps);
        let chapter = chapter_name(&name, no, shop.chapters.last());
        // What was decided at once may be more than one record takes.
        let many = (self.limits.record_bytes / ENTRY_BYTES).max(1);
        shop.flying += steps.len().div_ceil(many);
        for (what, messages) in [("results", results), ("dead", dead)] {
            for data in messages.0 {
                self.tell_everybody(&name, what, data);
            }
        }
        let mut steps = steps.into_iter().peekable();
        while steps.peek().is_some() {
            let steps: Vec<Step> = steps.by_ref().take(many).collect();
            let entries = steps.iter().map(|step| step.entry.clone()).collect();
            let record = bytes(Record::Turn(entries).encode());
            self.commit(append(&chapter, record), Op::Turn(no, steps));
        }
        for data in events.0 {
            self.tell_everybody(&name, "events", data);
        }
    }

    fn tell_everybody(&mut self, name: &Arc<str>, what: &'static str, data: Data) {
        let copy = Data {
            bytes: data.bytes.clone(),
            units: data.units,
        };
        let op = Op::Messages(Arc::clone(name), what, copy);
        self.commit(append(&side_name(name, what), data), op);
    }

    /// What became of messages for everybody. A stream that somebody deleted is made anew.
    pub(crate) fn told_all(
        &mut self,
        name: &Arc<str>,
        what: &'static str,
        data: Data,
        outcome: Result<u64, JobError>,
    ) {
        let Err(error) = outcome else { return };
        let stream = side_name(name, what);
        match error {
            JobError::Log(Refusal::NotFound | Refusal::Gone) => {
                self.commit(create(&stream, JSON, data), Op::Again(stream.into()));
            }
            // The record behind them was not written either; events are told as well as can be.
            JobError::Overloaded => {}
            JobError::Log(Refusal::NoSpace | Refusal::Stalled(_) | Refusal::LetGo)
                if what != "events" =>
            {
                let shop = self
                    .names
                    .get(&**name)
                    .and_then(|no| self.pools.get_mut(no));
                if let Some(shop) = shop {
                    let draft = match what {
                        "results" => &mut shop.draft.results,
                        _ => &mut shop.draft.dead,
                    };
                    draft.0.insert(0, data);
                }
            }
            error => tracing::error!(%stream, %error, "messages of a pool are lost"),
        }
    }

    /// What became of a record.
    pub(crate) fn turned(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        steps: Vec<Step>,
        outcome: Result<u64, JobError>,
    ) {
        self.touched.insert(no);
        let Some(shop) = self.pools.get_mut(&no) else {
            for client in steps.iter().filter_map(|step| step.client) {
                self.respond(client, PoolResponse::Refused(JobError::PoolChanging));
            }
            return;
        };
        shop.flying -= 1;
        match outcome {
            Ok(_) => {
                shop.chapters.records += 1;
                for step in steps {
                    self.holds(now_ms, no, step);
                }
            }
            Err(error) => {
                shop.pause_until_ms = now_ms + RETRY_MS;
                self.due.insert((now_ms + RETRY_MS, Due::Pause(no)));
                // The last first, so that what was decided on top of the others is gone before them.
                for step in steps.into_iter().rev() {
                    self.holds_not(now_ms, no, step, &error);
                }
            }
        }
    }

    /// A step is in the log.
    fn holds(&mut self, now_ms: u64, no: PoolNo, step: Step) {
        let mut response = PoolResponse::Reported { deadline_ms: None };
        match step.entry {
            Entry::Leased { id, .. } => self.leased(now_ms, no, id),
            Entry::Extended {
                id,
                attempt,
                deadline_ms,
            } => {
                response = PoolResponse::Reported {
                    deadline_ms: Some(deadline_ms),
                };
                let shop = self.pools.get_mut(&no);
                if let Some(running) = shop.and_then(|shop| shop.running.get_mut(&id))
                    && running.job.attempts == attempt
                    && running.stage == Stage::Running
                {
                    self.due
                        .remove(&(running.deadline_ms, Due::Attempt(no, id)));
                    running.deadline_ms = deadline_ms;
                    self.due.insert((deadline_ms, Due::Attempt(no, id)));
                }
            }
            Entry::Back { id, .. } => self.back(now_ms, no, id),
            Entry::Done { id, .. } => self.finish(now_ms, no, id, false, step.result),
            Entry::Dead { id, .. } => self.finish(now_ms, no, id, true, None),
        }
        if let Some(client) = step.client {
            self.respond(client, response);
        }
    }

    /// A step is not in the log, and never will be: all is as before it.
    fn holds_not(&mut self, now_ms: u64, no: PoolNo, step: Step, error: &JobError) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        match step.entry {
            Entry::Leased { id, .. } => {
                release(shop, id, false);
                if let Some(mut running) = shop.running.remove(&id) {
                    running.job.attempts -= 1;
                    shop.lines.put_back(running.job);
                    if let Some(seat) = running.seat {
                        self.unseat(seat);
                    }
                }
            }
            Entry::Back { id, .. } | Entry::Done { id, .. } | Entry::Dead { id, .. } => {
                if let Some(running) = shop.running.get_mut(&id) {
                    running.stage = Stage::Running;
                    self.due
                        .remove(&(running.deadline_ms, Due::Attempt(no, id)));
                    // An attempt that has failed is found to have done so again.
                    running.deadline_ms = match step.entry {
                        Entry::Done { .. } => running.deadline_ms.max(now_ms + RETRY_MS),
                        _ => now_ms + RETRY_MS,
                    };
                    self.due.insert((running.deadline_ms, Due::Attempt(no, id)));
                }
            }
            Entry::Extended { .. } => {}
        }
        if let Some(client) = step.client {
            self.respond(client, PoolResponse::Refused(error.clone()));
        }
    }
}

/// What the log refused is tried again after so long, in milliseconds.
const RETRY_MS: u64 = 250;
