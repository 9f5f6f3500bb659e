//! Taking jobs.

use encke_pool::PoolError;

use crate::error::JobError;
use crate::machine::{Due, Machine, PoolNo};
use crate::op::{Op, append, bytes};
use crate::record::{Record, Waiting, chapter_name};
use crate::request::{NewJob, Payload, PoolClient};
use crate::response::PoolResponse;
use crate::settings::Kind;
use crate::shop::{Member, Shop};

/// A job on its way to the log.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) from: PoolClient,
    pub(crate) aim: u32,
    pub(crate) posted_s: u32,
    pub(crate) wait_ms: Option<u64>,
    pub(crate) payload: Payload,
}

impl Machine {
    pub(crate) fn post(
        &mut self,
        now_ms: u64,
        from: PoolClient,
        no: PoolNo,
        post: NewJob,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        let Some(shop) = self.pools.get_mut(&no) else {
            return Err(JobError::UnknownPool(post.pool));
        };
        let aim = aim(shop, &post)?;
        let bytes_max = shop.settings.job_bytes_max;
        if post.payload.body.len() > bytes_max as usize {
            return Err(JobError::TooLarge {
                bytes: post.payload.body.len(),
                bytes_max,
            });
        }
        let waiting_max = shop.settings.waiting_max();
        if shop.lines.len() + shop.posting >= waiting_max {
            return Err(JobError::TooManyJobs { waiting_max });
        }
        if post.if_connected && !shop.crew.somebody_for(aim) {
            return Err(PoolError::NobodyConnected.into());
        }
        let posted_s = u32::try_from(now_ms / 1_000).unwrap_or(u32::MAX);
        let name = chapter_name(&shop.name, no, shop.chapters.last());
        let record = bytes(Record::post(aim, posted_s, &post.payload));
        shop.flying += 1;
        shop.posting += 1;
        let posted = Posted {
            from,
            aim,
            posted_s,
            wait_ms: post.wait_ms.map(|ms| ms.min(self.limits.wait_ms_max)),
            payload: post.payload,
        };
        self.commit(append(&name, record), Op::Post(no, posted));
        Ok(())
    }

    pub(crate) fn posted(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        posted: Posted,
        outcome: Result<u64, JobError>,
    ) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return self.respond(posted.from, PoolResponse::Refused(JobError::PoolChanging));
        };
        self.touched.insert(no);
        shop.flying -= 1;
        shop.posting -= 1;
        let id = match outcome {
            Ok(id) => id,
            Err(error) => return self.respond(posted.from, PoolResponse::Refused(error)),
        };
        shop.chapters.records += 1;
        shop.chapters.add(id);
        shop.lines.push(Waiting {
            id,
            aim: posted.aim,
            posted_s: posted.posted_s,
            bytes: posted.payload.body.len() as u32,
            attempts: 0,
        });
        let key = posted.payload.key.as_deref();
        let key = key.map(|key| Member::Text("key", key));
        shop.tell_job("posted", id, key.as_slice(), now_ms);
        let wait_ms = posted.wait_ms.filter(|_| !self.stopping);
        match wait_ms {
            None => self.respond(posted.from, PoolResponse::Posted { id }),
            Some(wait_ms) => {
                shop.waiters.entry(id).or_default().push(posted.from);
                let until_ms = now_ms + wait_ms;
                self.waits.insert(posted.from, (no, id, until_ms));
                self.due.insert((until_ms, Due::Wait(posted.from)));
            }
        }
        self.cache.add(id, posted.payload, self.limits.cache_bytes);
    }
}

/// What a job's worker is chosen by.
fn aim(shop: &Shop, job: &NewJob) -> Result<u32, JobError> {
    match (shop.settings.kind, &job.payload.key, job.slot) {
        (Kind::Hash, Some(key), None) => Ok(crc32c::crc32c(key.as_bytes())),
        (Kind::Hash, _, _) => Err(JobError::WrongSelector(
            "a job of a hash pool needs a key, and no slot: ?key=",
        )),
        (Kind::Direct, _, Some(slot)) if slot >= shop.settings.size_max => {
            Err(JobError::Pool(PoolError::OutOfRange {
                slot: slot as usize,
                size: shop.settings.size_max as usize,
            }))
        }
        (Kind::Direct, _, Some(slot)) => Ok(slot),
        (Kind::Direct, _, None) => Err(JobError::WrongSelector(
            "a job of a direct pool needs a slot: ?slot=",
        )),
        (_, _, Some(_)) => Err(JobError::WrongSelector(
            "only jobs of a direct pool have a slot",
        )),
        (_, _, None) => Ok(0),
    }
}
