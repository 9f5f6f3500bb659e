//! Workers that come and go, and jobs that are handed out.

use std::sync::Arc;

use encke_pool::Claim;

use crate::crew::Link;
use crate::error::JobError;
use crate::line::Lines;
use crate::machine::{Due, Machine, PoolNo};
use crate::record::{Entry, Waiting, chapter_name};
use crate::request::{JobId, Payload, PoolClient, Registration};
use crate::response::{DispatchedJob, PoolResponse};
use crate::shop::{Member, Phase, Running, Shop, Stage, Step};

impl Machine {
    /// A worker wants jobs.
    pub(crate) fn work(
        &mut self,
        now_ms: u64,
        from: PoolClient,
        no: PoolNo,
        work: Registration,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        let Some(shop) = self.pools.get_mut(&no) else {
            return Err(JobError::UnknownPool(work.pool));
        };
        let link = match work.poll_ms {
            None => Link::Stream(from),
            Some(ms) => Link::Poll(from, now_ms + ms.min(self.limits.wait_ms_max)),
        };
        let was_away = shop.crew.is_away(&work.worker);
        let slot = shop.crew.join(&work.worker, work.slot, link, now_ms)?;
        if !was_away {
            shop.tell_worker("joined", slot, now_ms);
        }
        self.seats.insert(from, (no, slot));
        match link {
            Link::Poll(_, until_ms) => {
                self.due.insert((until_ms, Due::Poll(no, slot, from)));
            }
            _ => self.respond(from, PoolResponse::Registered { slot }),
        }
        Ok(())
    }

    /// Hands out jobs as long as there are any and workers have room.
    pub(crate) fn dispatch(&mut self, now_ms: u64, no: PoolNo) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        if self.stopping || shop.phase != Phase::Open || now_ms < shop.pause_until_ms {
            return;
        }
        for matched in matches(shop) {
            self.lease(now_ms, no, matched);
        }
    }

    /// Writes down that a worker gets a job; the job is handed out when that is in the log.
    fn lease(&mut self, now_ms: u64, no: PoolNo, matched: Matched) {
        let Matched {
            mut job,
            slot,
            link,
            claim,
        } = matched;
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        job.attempts += 1;
        let deadline_ms = now_ms + shop.settings.ack_ms;
        let worker = shop.crew.name(slot).unwrap_or_else(|| "".into());
        shop.draft.steps.push(Step {
            entry: Entry::Leased {
                id: job.id,
                attempt: job.attempts,
                worker: (*worker).into(),
                deadline_ms,
            },
            client: None,
            result: None,
        });
        let seat = match link {
            Link::Stream(client) => Some(client),
            Link::Poll(client, until_ms) => {
                self.due.remove(&(until_ms, Due::Poll(no, slot, client)));
                if shop.crew.is_newly_away(slot) {
                    self.due.insert((now_ms + AWAY_MS, Due::Away(no, slot)));
                }
                Some(client)
            }
            Link::None | Link::Away => None,
        };
        let payload = self.cache.find(job.id).cloned();
        let unread = payload.is_none();
        let stream = chapter_name(&shop.name, no, shop.chapters.of(job.id));
        let running = Running {
            job,
            worker,
            slot: Some(slot),
            seat,
            claim,
            deadline_ms,
            stage: Stage::Leasing,
            payload,
        };
        shop.running.insert(job.id, running);
        if unread {
            self.load(no, job.id, stream);
        }
    }

    /// A lease is in the log.
    pub(crate) fn leased(&mut self, now_ms: u64, no: PoolNo, id: JobId) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        let Some(running) = shop.running.get_mut(&id) else {
            return;
        };
        self.due.insert((running.deadline_ms, Due::Attempt(no, id)));
        running.stage = Stage::Loading;
        let worker = Arc::clone(&running.worker);
        let more = [
            Member::Text("worker", &worker),
            Member::Number("attempt", running.job.attempts.into()),
        ];
        shop.tell_job("started", id, &more, now_ms);
        self.hand(now_ms, no, id);
    }

    /// Hands a job to its worker, if it is in the log that it does, its content is there, and so is
    /// the worker.
    fn hand(&mut self, now_ms: u64, no: PoolNo, id: JobId) {
        let shop = self.pools.get_mut(&no);
        let Some(running) = shop.and_then(|shop| shop.running.get_mut(&id)) else {
            return;
        };
        if running.stage != Stage::Loading {
            return;
        }
        let Some(seat) = running.seat.filter(|seat| self.seats.contains_key(seat)) else {
            // When the server goes away, whoever was to get it does when it is back.
            if !self.stopping {
                self.fail(now_ms, no, id, "gone", None, None);
            }
            return;
        };
        let Some(payload) = running.payload.take() else {
            return;
        };
        running.stage = Stage::Running;
        let handed = DispatchedJob {
            id,
            attempt: running.job.attempts,
            deadline_ms: running.deadline_ms,
            payload,
        };
        self.respond(seat, PoolResponse::Dispatched(handed));
    }

    /// A job's content was read.
    pub(crate) fn content(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        id: JobId,
        content: Result<Payload, String>,
    ) {
        let shop = self.pools.get_mut(&no);
        let Some(running) = shop.and_then(|shop| shop.running.get_mut(&id)) else {
            return;
        };
        if let Err(error) = &content {
            tracing::error!(job = id, %error, "a job could not be read");
        }
        match (&running.stage, content) {
            (Stage::Dying { reason, client }, content) => {
                let (reason, client) = (reason.clone(), *client);
                self.bury(no, id, &reason, client, content.ok().as_ref());
            }
            (Stage::Leasing, Ok(payload)) => running.payload = Some(payload),
            (Stage::Loading, Ok(payload)) => {
                running.payload = Some(payload);
                self.hand(now_ms, no, id);
            }
            (Stage::Loading, Err(_)) => self.fail(now_ms, no, id, "unreadable", None, None),
            // The lease is given up when it is in the log.
            (Stage::Leasing, Err(_)) => running.seat = None,
            (Stage::Running | Stage::Ending, _) => {}
        }
    }

    /// A worker's connection is gone, and what it had goes to others.
    pub(crate) fn worker_gone(&mut self, now_ms: u64, client: PoolClient) {
        let Some((no, slot)) = self.seats.remove(&client) else {
            return;
        };
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        self.touched.insert(no);
        if shop.crew.link(slot).is_with(client) {
            shop.crew.relink(slot, Link::None, now_ms);
            shop.tell_worker("left", slot, now_ms);
        }
        let had = shop.running.iter_mut();
        let had: Vec<JobId> = had
            .filter(|(_, running)| running.seat == Some(client))
            .map(|(id, running)| {
                running.seat = None;
                *id
            })
            .collect();
        for id in had {
            // What is not in the log yet is given up when it is.
            self.fail(now_ms, no, id, "gone", None, None);
        }
    }

    /// A worker's poll has brought nothing.
    pub(crate) fn poll_over(&mut self, now_ms: u64, no: PoolNo, slot: u32, client: PoolClient) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        if shop.crew.link(slot).is_with(client) {
            shop.crew.relink(slot, Link::Away, now_ms);
            if shop.crew.is_newly_away(slot) {
                self.due.insert((now_ms + AWAY_MS, Due::Away(no, slot)));
            }
            self.seats.remove(&client);
            self.touched.insert(no);
            self.respond(client, PoolResponse::NoJob);
        }
    }

    /// A worker may have stayed away for too long.
    pub(crate) fn away(&mut self, now_ms: u64, no: PoolNo, slot: u32) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        if shop.crew.link(slot) != Link::Away {
            shop.crew.unwatch(slot);
            return;
        }
        let until_ms = shop.crew.idle_since_ms(slot).unwrap_or(now_ms) + AWAY_MS;
        if until_ms > now_ms {
            self.due.insert((until_ms, Due::Away(no, slot)));
        } else {
            shop.crew.unwatch(slot);
            shop.crew.relink(slot, Link::None, now_ms);
            shop.tell_worker("left", slot, now_ms);
            self.touched.insert(no);
        }
    }
}

/// A job that waited, and the worker that gets it.
struct Matched {
    job: Waiting,
    slot: u32,
    link: Link,
    claim: Option<Claim<u32>>,
}

/// Takes jobs off the lines and finds workers for them, until one of the two runs out.
fn matches(shop: &mut Shop) -> Vec<Matched> {
    let mut matched = Vec::new();
    let Shop {
        lines, crew, avoid, ..
    } = shop;
    let mut give = |crew: &mut crate::crew::Crew, job: Waiting, slot, claim| {
        let link = crew.give(slot, job.bytes);
        matched.push(Matched {
            job,
            slot,
            link,
            claim,
        });
    };
    match lines {
        Lines::One(line) => {
            let mut skipped = Vec::new();
            while skipped.len() < SKIPPED_MAX
                && let Some(first) = line.first()
                && crew.somebody_has_room(first.bytes)
            {
                let found = crew.pick(first.bytes, avoid.get(&first.id).copied());
                let Some(job) = line.pop() else { break };
                match found {
                    Some((slot, claim)) => give(crew, job, slot, claim),
                    None => skipped.push(job),
                }
            }
            for job in skipped {
                line.put_back(job);
            }
        }
        Lines::BySlot(lines) => {
            for (slot, line) in lines.iter_mut() {
                while let Some(first) = line.first()
                    && crew.has_room(*slot, first.bytes)
                    && let Some(job) = line.pop()
                {
                    give(crew, job, *slot, None);
                }
            }
            lines.retain(|_, line| line.len() > 0);
        }
        Lines::ByKey(keyed) => {
            if std::mem::take(&mut crew.changed) {
                keyed.unassign();
            }
            loop {
                keyed.assign(|aim| crew.pick_for(aim));
                let mut moved = false;
                for slot in keyed.slots() {
                    while let Some(first) = keyed.first(slot)
                        && crew.has_room(slot, first.bytes)
                        && let Some(job) = keyed.pop(slot)
                    {
                        give(crew, job, slot, None);
                        moved = true;
                    }
                }
                if !moved {
                    break;
                }
            }
        }
    }
    matched
}

impl Link {
    /// Whether that is the connection.
    pub(crate) fn is_with(self, client: PoolClient) -> bool {
        match self {
            Link::Stream(has) | Link::Poll(has, _) => has == client,
            Link::None | Link::Away => false,
        }
    }
}

/// How long a worker that polls may be away before it counts as gone, in milliseconds.
const AWAY_MS: u64 = 10_000;

/// Jobs at the head of a line that wait for another worker than the one that has room, because that
/// one failed at them; behind so many the others wait too.
const SKIPPED_MAX: usize = 16;
