//! New jobs.

use std::time::Duration;

use encke_clock::Now;
use encke_pool::PoolError;

use crate::error::JobError;
use crate::machine::{JobMachine, JobTimer};
use crate::op::{Op, PendingPost, PoolNo, append, bytes};
use crate::pool_state::{EventField, PoolState};
use crate::record::{JournalRecord, WaitingJob, segment_name};
use crate::request::{DispatchClient, NewJob};
use crate::response::DispatchResponse;
use encke_pool::Strategy;

impl JobMachine {
    pub(crate) fn post(
        &mut self,
        now: Now,
        from: DispatchClient,
        no: PoolNo,
        post: NewJob,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        let Some(pool) = self.pools.get_mut(&no) else {
            return Err(JobError::UnknownPool(post.pool));
        };
        let selector = selector(pool, &post)?;
        let bytes_max = pool.settings.job_bytes_max;
        if post.payload.body.len() > bytes_max as usize {
            return Err(JobError::TooLarge {
                bytes: post.payload.body.len(),
                bytes_max,
            });
        }
        let waiting_max = pool.settings.waiting_max();
        if pool.waiting_len() + pool.pending_posts >= waiting_max {
            return Err(JobError::TooManyJobs { waiting_max });
        }
        if post.if_connected && !pool.workers.is_connected_for(selector) {
            return Err(PoolError::NoWorkerConnected.into());
        }
        let name = segment_name(&pool.name, no, pool.segments.last());
        let record = bytes(JournalRecord::post(
            selector,
            now.wall.in_seconds(),
            &post.payload,
        ));
        pool.pending_records += 1;
        pool.pending_posts += 1;
        let posted = PendingPost {
            from,
            selector,
            posted: now.steady.in_seconds(),
            wait_ms: post.wait_ms.map(|ms| ms.min(self.limits.wait_ms_max)),
            payload: post.payload,
        };
        self.commit(append(&name, record), Op::Post(no, posted));
        Ok(())
    }

    pub(crate) fn posted(
        &mut self,
        now: Now,
        no: PoolNo,
        posted: PendingPost,
        outcome: Result<u64, JobError>,
    ) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return self.respond(
                posted.from,
                DispatchResponse::Refused(JobError::PoolChanging),
            );
        };
        self.touched.insert(no);
        pool.pending_records -= 1;
        pool.pending_posts -= 1;
        let id = match outcome {
            Ok(id) => id,
            Err(error) => return self.respond(posted.from, DispatchResponse::Refused(error)),
        };
        pool.segments.records += 1;
        pool.segments.add(id);
        pool.queues.push(WaitingJob {
            id,
            selector: posted.selector,
            posted: posted.posted,
            bytes: posted.payload.body.len() as u32,
            attempts: 0,
        });
        let key = posted.payload.key.as_deref();
        let key = key.map(|key| EventField::Text("key", key));
        pool.job_event("posted", id, key.as_slice(), now);
        let wait_ms = posted.wait_ms.filter(|_| !self.stopping);
        match wait_ms {
            None => {
                let token = pool.key.of_job(id);
                self.respond(posted.from, DispatchResponse::Posted { id, token });
            }
            Some(wait_ms) => {
                pool.waiters.entry(id).or_default().push(posted.from);
                let until = now.steady.after(Duration::from_millis(wait_ms));
                self.waits.insert(posted.from, (no, id, until));
                self.due.insert((until, JobTimer::Wait(posted.from)));
            }
        }
        self.cache.add(id, posted.payload, self.limits.cache_bytes);
    }
}

/// What selects the job's worker: the slot, or the checksum of the key.
fn selector(pool: &PoolState, job: &NewJob) -> Result<u32, JobError> {
    match (pool.settings.strategy, &job.payload.key, job.slot) {
        (Strategy::Hash, Some(key), None) => Ok(crc32c::crc32c(key.as_bytes())),
        (Strategy::Hash, _, _) => Err(JobError::WrongSelector(
            "a job of a hash pool requires ?key= and no ?slot=".into(),
        )),
        (Strategy::Direct, _, Some(slot)) if slot >= pool.settings.size_max => {
            Err(JobError::Pool(PoolError::OutOfRange {
                slot: slot as usize,
                size: pool.settings.size_max as usize,
            }))
        }
        (Strategy::Direct, _, Some(slot)) => Ok(slot),
        (Strategy::Direct, _, None) => Err(JobError::WrongSelector(
            "a job of a direct pool requires ?slot=".into(),
        )),
        (_, _, Some(_)) => Err(JobError::WrongSelector(
            "only a job of a direct pool may have ?slot=".into(),
        )),
        (_, _, None) => Ok(0),
    }
}
