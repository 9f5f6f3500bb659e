//! Attempts that end: acknowledged, refused, too late, or with their worker.

use crate::error::JobError;
use crate::json;
use crate::machine::{Due, Machine, PoolNo};
use crate::record::{Entry, chapter_name};
use crate::request::{AttemptAction, AttemptReport, JobId, Payload, PoolClient};
use crate::response::{JobInfo, JobState, PoolResponse};
use crate::shop::{Ended, Member, Running, Shop, Stage, Step};

impl Machine {
    /// A worker has a word to say on an attempt.
    pub(crate) fn end(
        &mut self,
        now_ms: u64,
        from: PoolClient,
        no: PoolNo,
        end: AttemptReport,
    ) -> Result<(), JobError> {
        let AttemptReport {
            pool,
            id,
            attempt,
            action,
        } = end;
        let Some(shop) = self.pools.get_mut(&no) else {
            return Err(JobError::UnknownPool(pool));
        };
        let over = |state| JobError::AttemptOver { id, attempt, state };
        let Some(running) = shop.running.get_mut(&id) else {
            let ended = shop.finished.find(id);
            if let Some(ended) = ended {
                if ended.dead {
                    return Err(over("it has failed as often as it may"));
                }
                // The answer to the first word may have been lost.
                if ended.attempt == attempt && matches!(action, AttemptAction::Ack { .. }) {
                    self.respond(from, PoolResponse::Reported { deadline_ms: None });
                    return Ok(());
                }
                return Err(over("it is done"));
            }
            return match shop.lines.find(id) {
                Some(_) => Err(over("it waits for another worker")),
                None => Err(JobError::UnknownJob(id)),
            };
        };
        if running.job.attempts != attempt || running.stage == Stage::Leasing {
            return Err(over("another worker has it"));
        }
        if running.stage != Stage::Running {
            return Err(over("it is just ending"));
        }
        match action {
            AttemptAction::Ack { result } => {
                running.stage = Stage::Ending;
                let worker = std::sync::Arc::clone(&running.worker);
                release(shop, id, true);
                let mut line = Vec::with_capacity(result.body.len() + 128);
                line.extend_from_slice(
                    format!("{{\"job\":{id},\"attempt\":{attempt},\"worker\":").as_bytes(),
                );
                json::string(&worker, &mut line);
                line.extend_from_slice(format!(",\"time_ms\":{now_ms},").as_bytes());
                json::content(&result, &mut line);
                line.push(b'}');
                shop.draft.results.push(&line);
                shop.draft.steps.push(Step {
                    entry: Entry::Done { id, attempt },
                    client: Some(from),
                    result: Some(result),
                });
            }
            AttemptAction::Refuse { reason } => {
                self.fail(now_ms, no, id, "refused", Some(reason), Some(from));
            }
            AttemptAction::Extend { ms } => {
                let ms = ms.unwrap_or(shop.settings.ack_ms).min(EXTENSION_MS_MAX);
                shop.draft.steps.push(Step {
                    entry: Entry::Extended {
                        id,
                        attempt,
                        deadline_ms: now_ms + ms,
                    },
                    client: Some(from),
                    result: None,
                });
            }
        }
        Ok(())
    }

    /// An attempt was not acknowledged in time.
    pub(crate) fn overdue(&mut self, now_ms: u64, no: PoolNo, id: JobId) {
        self.touched.insert(no);
        self.fail(now_ms, no, id, "timeout", None, None);
    }

    /// An attempt has failed: the job waits again, or it was the last one.
    pub(crate) fn fail(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        id: JobId,
        why: &'static str,
        reason: Option<Box<str>>,
        client: Option<PoolClient>,
    ) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        let Some(running) = shop.running.get_mut(&id) else {
            return;
        };
        let unread = match running.stage {
            Stage::Loading => true,
            Stage::Running => false,
            Stage::Leasing | Stage::Ending | Stage::Dying { .. } => return,
        };
        let attempt = running.job.attempts;
        let seat = running.seat;
        let worker = std::sync::Arc::clone(&running.worker);
        running.stage = Stage::Ending;
        self.due
            .remove(&(running.deadline_ms, Due::Attempt(no, id)));
        if let Some(slot) = release(shop, id, false) {
            shop.avoid.insert(id, slot);
        }
        let reason = reason.unwrap_or_default();
        let more = [
            Member::Text("worker", &worker),
            Member::Number("attempt", attempt.into()),
            Member::Text("why", why),
            Member::Text("reason", &reason),
        ];
        shop.tell_job("failed", id, &more, now_ms);
        let last = attempt >= shop.settings.attempts;
        if !last {
            shop.draft.steps.push(Step {
                entry: Entry::Back { id, attempt },
                client,
                result: None,
            });
        }
        if unread && let Some(seat) = seat {
            // Whoever polls has waited in vain.
            self.unseat(seat);
        }
        if last {
            let why: Box<str> = match reason.is_empty() {
                true => why.into(),
                false => format!("{why}: {reason}").into(),
            };
            self.die(no, id, why, client);
        }
    }

    /// A worker that polls gets no job after all.
    pub(crate) fn unseat(&mut self, seat: PoolClient) {
        let Some((no, slot)) = self.seats.get(&seat).copied() else {
            return;
        };
        let shop = self.pools.get(&no);
        if shop.is_some_and(|shop| !shop.crew.link(slot).is_with(seat)) {
            self.seats.remove(&seat);
            self.respond(seat, PoolResponse::NoJob);
        }
    }

    /// The last attempt has failed: the job goes to the dead letters with its content.
    fn die(&mut self, no: PoolNo, id: JobId, reason: Box<str>, client: Option<PoolClient>) {
        let content = self.cache.find(id).cloned();
        if let Some(content) = content {
            return self.bury(no, id, &reason, client, Some(&content));
        }
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        let stream = chapter_name(&shop.name, no, shop.chapters.of(id));
        if let Some(running) = shop.running.get_mut(&id) {
            running.stage = Stage::Dying { reason, client };
            self.load(no, id, stream);
        }
    }

    /// Writes the dead letter.
    pub(crate) fn bury(
        &mut self,
        no: PoolNo,
        id: JobId,
        reason: &str,
        client: Option<PoolClient>,
        content: Option<&Payload>,
    ) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        let Some(running) = shop.running.get_mut(&id) else {
            return;
        };
        running.stage = Stage::Ending;
        let attempt = running.job.attempts;
        let mut letter = format!("{{\"job\":{id},\"attempts\":{attempt},\"worker\":").into_bytes();
        json::string(&running.worker, &mut letter);
        letter.extend_from_slice(b",\"reason\":");
        json::string(reason, &mut letter);
        if let Some(key) = content.and_then(|content| content.key.as_deref()) {
            letter.extend_from_slice(b",\"key\":");
            json::string(key, &mut letter);
        }
        if let Some(content) = content {
            letter.push(b',');
            json::content(content, &mut letter);
        }
        letter.push(b'}');
        shop.draft.dead.push(&letter);
        shop.draft.steps.push(Step {
            entry: Entry::Dead { id, attempt },
            client,
            result: None,
        });
    }

    /// A job is over, in the log too.
    pub(crate) fn finish(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        id: JobId,
        dead: bool,
        result: Option<Payload>,
    ) {
        self.cache.remove(id);
        let Some(running) = self.take_running(no, id) else {
            return;
        };
        self.forget_seat(&running);
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        let attempt = running.job.attempts;
        match dead {
            true => shop.counts.dead += 1,
            false => shop.counts.done += 1,
        }
        shop.avoid.remove(&id);
        shop.chapters.remove(id);
        let more = [
            Member::Text("worker", &running.worker),
            Member::Number("attempt", attempt.into()),
        ];
        let event = if dead { "dead" } else { "done" };
        shop.tell_job(event, id, &more, now_ms);
        let ended = Ended {
            attempt,
            dead,
            result: result.clone(),
        };
        shop.finished.add(id, ended, &self.limits);
        let waiters = shop.waiters.remove(&id).unwrap_or_default();
        let state = match dead {
            true => JobState::Dead,
            false => JobState::Done { result },
        };
        let job = JobInfo {
            id,
            state,
            attempts: attempt,
        };
        self.respond_to_waiters(waiters, &job);
    }

    /// A job waits again, in the log too.
    pub(crate) fn back(&mut self, now_ms: u64, no: PoolNo, id: JobId) {
        let Some(running) = self.take_running(no, id) else {
            return;
        };
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        shop.counts.retried += 1;
        shop.lines.put_back(running.job);
        let attempt = Member::Number("attempt", running.job.attempts.into());
        shop.tell_job("waits", id, &[attempt], now_ms);
        self.forget_seat(&running);
    }

    /// Takes an attempt that is over, and that nothing is due for any more.
    fn take_running(&mut self, no: PoolNo, id: JobId) -> Option<Running> {
        let running = self.pools.get_mut(&no)?.running.remove(&id)?;
        self.due
            .remove(&(running.deadline_ms, Due::Attempt(no, id)));
        Some(running)
    }

    /// Nothing can go wrong any more on a polling worker's way to its job.
    pub(crate) fn forget_seat(&mut self, running: &Running) {
        if let Some(seat) = running.seat
            && let Some((no, slot)) = self.seats.get(&seat)
            && let Some(shop) = self.pools.get(no)
            && !shop.crew.link(*slot).is_with(seat)
        {
            self.seats.remove(&seat);
        }
    }
}

/// Frees the worker of a job. Returns its slot.
pub(crate) fn release(shop: &mut Shop, id: JobId, done: bool) -> Option<u32> {
    let running = shop.running.get_mut(&id)?;
    running.claim = None;
    let slot = running.slot.take()?;
    shop.crew.take(slot, running.job.bytes, done);
    Some(slot)
}

/// A day.
const EXTENSION_MS_MAX: u64 = 86_400_000;
