//! The ends of attempts: acknowledged, refused, timed out, or without their worker.

use std::time::Duration;

use encke_clock::{Now, SteadyTime};

use crate::delayed::retry_delay;
use crate::error::JobError;
use crate::json;
use crate::machine::{JobMachine, JobTimer};
use crate::op::PoolNo;
use crate::pool_state::{AttemptStage, Decision, EventField, FinishedJob, RunningJob};
use crate::record::{JournalEntry, segment_name};
use crate::request::{AttemptAction, AttemptReport, DispatchClient, JobId, Payload};
use crate::response::{DispatchResponse, JobInfo};
use crate::settings::DELAY_MS_MAX;
use crate::streams::PublicStream;

impl JobMachine {
    /// Handles a worker's report on an attempt.
    pub(crate) fn report(
        &mut self,
        now: Now,
        from: DispatchClient,
        no: PoolNo,
        report: AttemptReport,
    ) -> Result<(), JobError> {
        let AttemptReport {
            pool,
            id,
            attempt,
            token,
            action,
        } = report;
        let Some(pool) = self.pools.get_mut(&no) else {
            return Err(JobError::UnknownPool(pool));
        };
        // Before anything is said of the job.
        if token.is_some_and(|token| token != pool.key.of_attempt(id, attempt)) {
            return Err(JobError::WrongToken { id, attempt });
        }
        let over = |state: &'static str| JobError::AttemptOver {
            id,
            attempt,
            state: state.into(),
        };
        let Some(running) = pool.running.get_mut(&id) else {
            let ended = pool.finished.find(id);
            if let Some(ended) = ended {
                if ended.dead {
                    return Err(over("all attempts have failed"));
                }
                // The response to the first acknowledgement may have been lost.
                if ended.attempt == attempt && matches!(action, AttemptAction::Ack { .. }) {
                    self.respond(from, DispatchResponse::Reported { deadline: None });
                    return Ok(());
                }
                return Err(over("the job is done"));
            }
            return match pool
                .queues
                .find(id)
                .or(pool.delayed.find(id).map(|found| found.0))
            {
                Some(_) => Err(over("the job waits for another worker")),
                None => Err(JobError::UnknownJob(id)),
            };
        };
        if running.job.attempts != attempt || running.stage == AttemptStage::Leasing {
            return Err(over("another worker has the job"));
        }
        if running.stage != AttemptStage::Running {
            return Err(over("a report on it is being committed"));
        }
        match action {
            AttemptAction::Ack { result } => {
                running.stage = AttemptStage::Ending;
                let worker = std::sync::Arc::clone(&running.worker);
                pool.release(id, true);
                let mut line = Vec::with_capacity(result.body.len() + 128);
                line.extend_from_slice(
                    format!("{{\"job\":{id},\"attempt\":{attempt},\"worker\":").as_bytes(),
                );
                json::string(&worker, &mut line);
                line.extend_from_slice(format!(",\"time_ms\":{},", now.wall.as_ms()).as_bytes());
                json::content(&result, &mut line);
                line.push(b'}');
                pool.draft.decisions.push(Decision {
                    entry: JournalEntry::Done { id, attempt },
                    until: None,
                    client: Some(from),
                    result: Some(result),
                    message: Some((PublicStream::Results, line)),
                });
            }
            AttemptAction::Refuse { reason, after_ms } => {
                let failure = AttemptFailure {
                    why: "refused",
                    reason,
                    client: Some(from),
                    delay: RetryDelay::AsAsked(after_ms),
                    needs_sending: false,
                };
                self.fail(now, no, id, failure);
            }
            AttemptAction::Extend { ms } => {
                let ms = ms.unwrap_or(pool.settings.ack_ms).min(EXTENSION_MS_MAX);
                let time = Duration::from_millis(ms);
                pool.draft.decisions.push(Decision {
                    entry: JournalEntry::Extended {
                        id,
                        attempt,
                        deadline: now.wall.after(time),
                    },
                    until: Some(now.steady.after(time)),
                    client: Some(from),
                    result: None,
                    message: None,
                });
            }
        }
        Ok(())
    }

    /// An attempt has timed out.
    pub(crate) fn attempt_timed_out(&mut self, now: Now, no: PoolNo, id: JobId) {
        self.touched.insert(no);
        self.fail(now, no, id, AttemptFailure::timeout());
    }

    /// An attempt has failed: the job waits again, or this was its last attempt.
    pub(crate) fn fail(&mut self, now: Now, no: PoolNo, id: JobId, failure: AttemptFailure) {
        let AttemptFailure {
            why,
            reason,
            client,
            delay,
            needs_sending,
        } = failure;
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let Some(running) = pool.running.get_mut(&id) else {
            return;
        };
        let unread = match running.stage {
            AttemptStage::Loading => true,
            AttemptStage::Running => false,
            AttemptStage::Leasing
            | AttemptStage::Unreadable
            | AttemptStage::Ending
            | AttemptStage::Dying { .. } => return,
        };
        let attempt = running.job.attempts;
        let connection = running.connection;
        let worker = std::sync::Arc::clone(&running.worker);
        running.stage = AttemptStage::Ending;
        self.due
            .remove(&(running.deadline, JobTimer::Attempt(no, id)));
        if let Some(slot) = pool.release(id, false) {
            pool.avoid.insert(id, slot);
        }
        let more = [
            EventField::Text("worker", &worker),
            EventField::Number("attempt", attempt.into()),
            EventField::Text("why", why),
            EventField::Text("reason", &reason),
        ];
        pool.job_event("failed", id, &more, now);
        let attempt = attempt - u16::from(unread && needs_sending);
        let last = attempt >= pool.settings.attempts;
        if !last {
            let backoff = || retry_delay(&pool.settings, id, attempt);
            let delay = match delay {
                RetryDelay::None => Duration::ZERO,
                RetryDelay::AsAsked(asked_ms) => {
                    asked_ms.map_or_else(backoff, Duration::from_millis)
                }
            };
            let (entry, until) = match delay.min(Duration::from_millis(DELAY_MS_MAX)) {
                Duration::ZERO => (JournalEntry::Back { id, attempt }, None),
                delay => {
                    let entry = JournalEntry::Delayed {
                        id,
                        attempt,
                        until: now.wall.after(delay),
                    };
                    (entry, Some(now.steady.after(delay)))
                }
            };
            pool.draft.decisions.push(Decision {
                entry,
                until,
                client,
                result: None,
                message: None,
            });
        }
        if unread && let Some(connection) = connection {
            // The worker's poll ends without a job.
            self.end_poll(connection);
        }
        if last {
            let why: Box<str> = match reason.is_empty() {
                true => why.into(),
                false => format!("{why}: {reason}").into(),
            };
            self.give_up(no, id, why, client);
        }
    }

    /// Ends a worker's poll without a job.
    pub(crate) fn end_poll(&mut self, connection: DispatchClient) {
        let Some((no, slot)) = self.worker_connections.get(&connection).copied() else {
            return;
        };
        let pool = self.pools.get(&no);
        if pool.is_some_and(|pool| !pool.workers.link(slot).is_with(connection)) {
            self.worker_connections.remove(&connection);
            self.respond(connection, DispatchResponse::NoJob);
        }
    }

    /// The last attempt has failed: the job goes to the dead letters with its content.
    fn give_up(&mut self, no: PoolNo, id: JobId, reason: Box<str>, client: Option<DispatchClient>) {
        let content = self.cache.find(id).cloned();
        if let Some(content) = content {
            return self.write_dead_letter(no, id, &reason, client, Some(&content));
        }
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let stream = segment_name(&pool.name, no, pool.segments.of(id));
        if let Some(running) = pool.running.get_mut(&id) {
            running.stage = AttemptStage::Dying { reason, client };
            self.load(no, id, stream);
        }
    }

    /// Writes the dead letter.
    pub(crate) fn write_dead_letter(
        &mut self,
        no: PoolNo,
        id: JobId,
        reason: &str,
        client: Option<DispatchClient>,
        content: Option<&Payload>,
    ) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let Some(running) = pool.running.get_mut(&id) else {
            return;
        };
        running.stage = AttemptStage::Ending;
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
        let why = Payload {
            content_type: "text/plain".into(),
            key: None,
            body: reason.as_bytes().into(),
        };
        pool.draft.decisions.push(Decision {
            entry: JournalEntry::Dead { id, attempt },
            until: None,
            client,
            result: Some(why),
            message: Some((PublicStream::Dead, letter)),
        });
    }

    /// The end of a job is in the log. The result of a dead one is why its last attempt failed.
    pub(crate) fn finish(
        &mut self,
        now: Now,
        no: PoolNo,
        id: JobId,
        dead: bool,
        result: Option<Payload>,
    ) {
        self.cache.remove(id);
        let Some(running) = self.take_running(no, id) else {
            return;
        };
        self.remove_poll(&running);
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let attempt = running.job.attempts;
        match dead {
            true => pool.counts.dead += 1,
            false => pool.counts.done += 1,
        }
        pool.avoid.remove(&id);
        pool.segments.remove(id);
        let more = [
            EventField::Text("worker", &running.worker),
            EventField::Number("attempt", attempt.into()),
        ];
        let event = if dead { "dead" } else { "done" };
        pool.job_event(event, id, &more, now);
        let ended = FinishedJob {
            attempt,
            dead,
            result,
        };
        let state = ended.state();
        pool.finished.add(id, ended, &self.limits);
        let waiters = pool.waiters.remove(&id).unwrap_or_default();
        let job = JobInfo {
            id,
            state,
            attempts: attempt,
            token: pool.key.of_job(id),
        };
        self.respond_to_waiters(waiters, &job);
    }

    /// The return of a job is in the log, with its attempts so far: to its queue, or to the delayed jobs until this time.
    pub(crate) fn returned(
        &mut self,
        now: Now,
        no: PoolNo,
        (id, attempts): (JobId, u16),
        until: Option<SteadyTime>,
    ) {
        let Some(mut running) = self.take_running(no, id) else {
            return;
        };
        running.job.attempts = attempts;
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        pool.counts.retried += 1;
        let attempt = EventField::Number("attempt", running.job.attempts.into());
        match until {
            None => {
                pool.queues.put_back(running.job);
                pool.job_event("waits", id, &[attempt], now);
            }
            Some(until) => {
                pool.delayed.add(running.job, until);
                self.due.insert((until, JobTimer::Retry(no, id)));
                let until = EventField::Number("until_ms", now.wall_at(until).as_ms());
                pool.job_event("waits", id, &[attempt, until], now);
            }
        }
        self.remove_poll(&running);
    }

    /// The delay of a job is over: it gets its former place in its queue.
    pub(crate) fn delay_over(&mut self, now: Now, no: PoolNo, id: JobId) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        if let Some(job) = pool.delayed.take(id, now.steady) {
            pool.queues.put_back(job);
            self.touched.insert(no);
        }
    }

    /// Removes a finished attempt and its timer.
    fn take_running(&mut self, no: PoolNo, id: JobId) -> Option<RunningJob> {
        let running = self.pools.get_mut(&no)?.running.remove(&id)?;
        self.due
            .remove(&(running.deadline, JobTimer::Attempt(no, id)));
        Some(running)
    }

    /// Removes the connection of a poll whose job is on its way.
    pub(crate) fn remove_poll(&mut self, running: &RunningJob) {
        if let Some(connection) = running.connection
            && let Some((no, slot)) = self.worker_connections.get(&connection)
            && let Some(pool) = self.pools.get(no)
            && !pool.workers.link(*slot).is_with(connection)
        {
            self.worker_connections.remove(&connection);
        }
    }
}

/// How an attempt has failed.
pub(crate) struct AttemptFailure {
    /// One word.
    pub(crate) why: &'static str,
    /// What the worker says; empty if it says nothing.
    pub(crate) reason: Box<str>,
    /// The client that gets a response.
    pub(crate) client: Option<DispatchClient>,
    pub(crate) delay: RetryDelay,
    /// It counts as an attempt only if the job was sent: nothing was tried otherwise.
    pub(crate) needs_sending: bool,
}

/// How long a job waits before its next attempt.
pub(crate) enum RetryDelay {
    /// Not at all: the attempt did not fail by the job.
    None,
    /// As long as the worker asks for, in milliseconds, or as long as the pool's settings say.
    AsAsked(Option<u64>),
}

impl AttemptFailure {
    /// The worker has disconnected.
    pub(crate) fn gone() -> Self {
        AttemptFailure {
            needs_sending: true,
            ..Self::of_server("gone")
        }
    }

    /// The content of the job cannot be read.
    pub(crate) fn unreadable() -> Self {
        Self::of_server("unreadable")
    }

    fn timeout() -> Self {
        AttemptFailure {
            delay: RetryDelay::AsAsked(None),
            ..Self::of_server("timeout")
        }
    }

    /// A failure that the server has found. It counts as an attempt, and the next one follows at once.
    fn of_server(why: &'static str) -> Self {
        AttemptFailure {
            why,
            reason: "".into(),
            client: None,
            delay: RetryDelay::None,
            needs_sending: false,
        }
    }
}

/// A day.
const EXTENSION_MS_MAX: u64 = 86_400_000;
