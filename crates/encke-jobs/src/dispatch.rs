//! Workers that register, and jobs that are dispatched to them.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::Now;
use encke_pool::Picked;

use crate::error::JobError;
use crate::machine::{JobMachine, JobTimer};
use crate::op::PoolNo;
use crate::pool_state::{AttemptStage, Decision, EventField, PoolPhase, PoolState, RunningJob};
use crate::queue::JobQueues;
use crate::record::{JournalEntry, WaitingJob, segment_name};
use crate::report::AttemptFailure;
use crate::request::{DispatchClient, JobId, Payload, Registration};
use crate::response::{DispatchResponse, DispatchedJob};
use crate::workers::{WorkerLink, Workers};

impl JobMachine {
    /// Registers a worker for jobs.
    pub(crate) fn register(
        &mut self,
        now: Now,
        from: DispatchClient,
        no: PoolNo,
        registration: Registration,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        let Some(pool) = self.pools.get(&no) else {
            return Err(JobError::UnknownPool(registration.pool));
        };
        let replaced = pool.workers.replaced_by(&registration, now.steady);
        if let Some(before) = replaced {
            self.worker_disconnected(now, before);
            self.respond(before, DispatchResponse::Replaced);
        }
        let Some(pool) = self.pools.get_mut(&no) else {
            return Err(JobError::UnknownPool(registration.pool));
        };
        let link = match registration.poll_ms {
            None => WorkerLink::Stream(from),
            Some(ms) => {
                let wait = Duration::from_millis(ms.min(self.limits.wait_ms_max));
                WorkerLink::Poll(from, now.steady.after(wait))
            }
        };
        let was_away = pool.workers.is_away(&registration.worker);
        let slot = pool.workers.register(&registration, link, now.steady)?;
        if replaced.is_some() {
            pool.workers.has_replaced(slot, now.steady);
        }
        if !was_away {
            pool.worker_event("joined", slot, now);
        }
        self.worker_connections.insert(from, (no, slot));
        match link {
            WorkerLink::Poll(_, until) => {
                self.due.insert((until, JobTimer::Poll(no, slot, from)));
            }
            _ => self.respond(from, DispatchResponse::Registered { slot }),
        }
        Ok(())
    }

    /// Dispatches jobs while there are any and workers have room.
    pub(crate) fn dispatch(&mut self, now: Now, no: PoolNo) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        // What a worker gets must be acceptable after a crash, too.
        let may_dispatch =
            pool.phase == PoolPhase::Open && pool.key_is_stored && !pool.settings.paused;
        if self.stopping || !may_dispatch || now.steady < pool.pause_until {
            return;
        }
        for assignment in assign(pool) {
            self.lease(now, no, assignment);
        }
    }

    /// Decides that a worker gets a job. The job is sent when that is in the log.
    fn lease(&mut self, now: Now, no: PoolNo, assignment: Assignment) {
        let Assignment {
            mut job,
            place,
            link,
        } = assignment;
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let slot = *place;
        job.attempts += 1;
        let ack = Duration::from_millis(pool.settings.ack_ms);
        let deadline = now.steady.after(ack);
        let worker = pool.workers.name(slot).unwrap_or_else(|| "".into());
        pool.draft.decisions.push(Decision {
            entry: JournalEntry::Leased {
                id: job.id,
                attempt: job.attempts,
                worker: (*worker).into(),
                deadline: now.wall_at(deadline),
            },
            until: None,
            client: None,
            result: None,
            message: None,
        });
        let connection = match link {
            WorkerLink::Stream(client) => Some(client),
            WorkerLink::Poll(client, until) => {
                self.due.remove(&(until, JobTimer::Poll(no, slot, client)));
                if pool.workers.watch(slot) {
                    self.due
                        .insert((now.steady.after(AWAY), JobTimer::Away(no, slot)));
                }
                Some(client)
            }
            WorkerLink::None | WorkerLink::Away => None,
        };
        let payload = self.cache.find(job.id).cloned();
        let unread = payload.is_none();
        let stream = segment_name(&pool.name, no, pool.segments.of(job.id));
        let running = RunningJob {
            job,
            worker,
            place: Some(place),
            connection,
            deadline,
            stage: AttemptStage::Leasing,
            payload,
        };
        pool.running.insert(job.id, running);
        if unread {
            self.load(no, job.id, stream);
        }
    }

    /// The lease is in the log.
    pub(crate) fn leased(&mut self, now: Now, no: PoolNo, id: JobId) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let Some(running) = pool.running.get_mut(&id) else {
            return;
        };
        self.due
            .insert((running.deadline, JobTimer::Attempt(no, id)));
        let stage = std::mem::replace(&mut running.stage, AttemptStage::Loading);
        let worker = Arc::clone(&running.worker);
        let more = [
            EventField::Text("worker", &worker),
            EventField::Number("attempt", running.job.attempts.into()),
        ];
        pool.job_event("started", id, &more, now);
        match stage {
            AttemptStage::Unreadable => self.fail(now, no, id, AttemptFailure::unreadable()),
            _ => self.send_job(now, no, id),
        }
    }

    /// Sends a job to its worker, as soon as the lease is in the log and the content is in memory, if the worker is still connected.
    fn send_job(&mut self, now: Now, no: PoolNo, id: JobId) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let Some(running) = pool.running.get_mut(&id) else {
            return;
        };
        if running.stage != AttemptStage::Loading {
            return;
        }
        let Some(connection) = running
            .connection
            .filter(|connection| self.worker_connections.contains_key(connection))
        else {
            // A worker that the stopping server cannot reach keeps the job until the server is back.
            if !self.stopping {
                self.fail(now, no, id, AttemptFailure::gone());
            }
            return;
        };
        let Some(payload) = running.payload.take() else {
            return;
        };
        running.stage = AttemptStage::Running;
        let handed = DispatchedJob {
            id,
            attempt: running.job.attempts,
            token: pool.key.of_attempt(id, running.job.attempts),
            deadline: now.wall_at(running.deadline),
            payload,
        };
        self.respond(connection, DispatchResponse::Dispatched(handed));
    }

    /// Handles the content of a job.
    pub(crate) fn content_loaded(
        &mut self,
        now: Now,
        no: PoolNo,
        id: JobId,
        content: Result<Payload, String>,
    ) {
        let pool = self.pools.get_mut(&no);
        let Some(running) = pool.and_then(|pool| pool.running.get_mut(&id)) else {
            return;
        };
        if let Err(error) = &content {
            tracing::error!(job = id, %error, "could not read a job");
        }
        match (&running.stage, content) {
            (AttemptStage::Dying { reason, client }, content) => {
                let (reason, client) = (reason.clone(), *client);
                self.write_dead_letter(no, id, &reason, client, content.ok().as_ref());
            }
            (AttemptStage::Leasing, Ok(payload)) => running.payload = Some(payload),
            (AttemptStage::Loading, Ok(payload)) => {
                running.payload = Some(payload);
                self.send_job(now, no, id);
            }
            (AttemptStage::Loading, Err(_)) => {
                self.fail(now, no, id, AttemptFailure::unreadable());
            }
            // Gives the lease up as soon as it is in the log.
            (AttemptStage::Leasing, Err(_)) => running.stage = AttemptStage::Unreadable,
            (AttemptStage::Unreadable | AttemptStage::Running | AttemptStage::Ending, _) => {}
        }
    }

    /// Handles the disconnection of a worker: its jobs go to others.
    pub(crate) fn worker_disconnected(&mut self, now: Now, client: DispatchClient) {
        let Some((no, slot)) = self.worker_connections.remove(&client) else {
            return;
        };
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        self.touched.insert(no);
        if pool.workers.link(slot).is_with(client) {
            pool.workers.set_link(slot, WorkerLink::None, now.steady);
            pool.worker_event("left", slot, now);
        }
        let had = pool.running.iter_mut();
        let had: Vec<JobId> = had
            .filter(|(_, running)| running.connection == Some(client))
            .map(|(id, running)| {
                running.connection = None;
                *id
            })
            .collect();
        for id in had {
            // A lease that is not in the log yet is given up as soon as it is.
            self.fail(now, no, id, AttemptFailure::gone());
        }
    }

    /// A worker's poll has timed out without a job.
    pub(crate) fn poll_timed_out(
        &mut self,
        now: Now,
        no: PoolNo,
        slot: u32,
        client: DispatchClient,
    ) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        if pool.workers.link(slot).is_with(client) {
            pool.workers.set_link(slot, WorkerLink::Away, now.steady);
            if pool.workers.watch(slot) {
                self.due
                    .insert((now.steady.after(AWAY), JobTimer::Away(no, slot)));
            }
            self.worker_connections.remove(&client);
            self.touched.insert(no);
            self.respond(client, DispatchResponse::NoJob);
        }
    }

    /// Disconnects a worker that has not polled again in time.
    pub(crate) fn check_away(&mut self, now: Now, no: PoolNo, slot: u32) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        if pool.workers.link(slot) != WorkerLink::Away {
            pool.workers.unwatch(slot);
            return;
        }
        let idle_since = pool.workers.idle_since(slot).unwrap_or(now.steady);
        let until = idle_since.after(AWAY);
        if until > now.steady {
            self.due.insert((until, JobTimer::Away(no, slot)));
        } else {
            pool.workers.unwatch(slot);
            pool.workers.set_link(slot, WorkerLink::None, now.steady);
            pool.worker_event("left", slot, now);
            self.touched.insert(no);
        }
    }
}

/// A job from a queue, and its place at the picked worker.
struct Assignment {
    job: WaitingJob,
    place: Picked<u32>,
    link: WorkerLink,
}

/// Takes jobs from the queues and picks workers for them until either runs out.
fn assign(pool: &mut PoolState) -> Vec<Assignment> {
    let mut assigned = Vec::new();
    let PoolState {
        queues,
        workers,
        avoid,
        ..
    } = pool;
    let mut give = |workers: &mut Workers, job, place: Picked<u32>| {
        let link = workers.give(*place);
        assigned.push(Assignment { job, place, link });
    };
    match queues {
        JobQueues::One(queue) => {
            let mut skipped = Vec::new();
            while skipped.len() < SKIPPED_MAX
                && let Some(&first) = queue.first()
            {
                let avoided = avoid.get(&first.id).copied();
                match workers.pick(first.bytes, avoided) {
                    Some(place) => {
                        queue.pop();
                        give(workers, first, place);
                    }
                    // Only the worker that failed at this job has room for it.
                    None if avoided.is_some() && workers.pick(first.bytes, None).is_some() => {
                        skipped.extend(queue.pop());
                    }
                    None => break,
                }
            }
            for job in skipped {
                queue.put_back(job);
            }
        }
        JobQueues::BySlot(queues) => {
            for (slot, queue) in queues.iter_mut() {
                while let Some(&first) = queue.first()
                    && let Some(place) = workers.pick_at(*slot, first.bytes)
                {
                    queue.pop();
                    give(workers, first, place);
                }
            }
            queues.retain(|_, queue| queue.len() > 0);
        }
        JobQueues::ByKey(keyed) => {
            if std::mem::take(&mut workers.changed) {
                keyed.unassign();
            }
            loop {
                keyed.assign(|selector, slot| {
                    let has_others = slot.filter(|slot| workers.is_connected(*slot));
                    has_others.or_else(|| workers.slot_for(selector))
                });
                let mut moved = false;
                for slot in keyed.slots() {
                    while let Some(&first) = keyed.first(slot)
                        && let Some(place) = workers.pick_at(slot, first.bytes)
                    {
                        keyed.pop(slot);
                        give(workers, first, place);
                        moved = true;
                    }
                }
                if !moved {
                    break;
                }
            }
        }
    }
    assigned
}

/// How long a worker may stay away between two polls before it counts as disconnected.
const AWAY: Duration = Duration::from_secs(10);

/// The maximum number of jobs at the head of a queue that are passed over because only the worker that failed at them has room.
const SKIPPED_MAX: usize = 16;
