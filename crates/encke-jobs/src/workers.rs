//! The workers of a pool: who is there, who has room, and who gets a job.

use std::collections::BTreeMap;
use std::sync::Arc;

use encke_pool::{Claim, Connected, Pool, PoolError};

use crate::request::PoolClient;
use crate::response::WorkerStatus;
use crate::settings::{Kind, PoolSettings};

/// The workers of a pool, by their slots.
#[derive(Debug)]
pub(crate) struct Workers {
    kind: Kind,
    growing: bool,
    in_flight_max: u32,
    worker_bytes_max: u64,
    pool: Pool<u32>,
    workers: BTreeMap<u32, Worker>,
    names: BTreeMap<Arc<str>, u32>,
    /// Who is connected to a `hash` pool has changed.
    pub(crate) changed: bool,
}

/// A worker.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: Arc<str>,
    link: WorkerLink,
    /// What keeps it in the pool's picks.
    connected: Option<Connected<u32>>,
    /// When it was last there, in milliseconds since 1970.
    seen_ms: u64,
    /// Something will look whether it is still away.
    watched: bool,
    running: u32,
    bytes: u64,
    given: u64,
    done: u64,
}

/// How a worker is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerLink {
    /// Not at all.
    None,
    /// It is told of all jobs.
    Stream(PoolClient),
    /// It waits for one, until then, in milliseconds since 1970.
    Poll(PoolClient, u64),
    /// It has got the one that it waited for, and is expected to ask again.
    Away,
}

impl Workers {
    pub(crate) fn new(name: &str, settings: &PoolSettings, worker_bytes_max: u64) -> Self {
        Workers {
            kind: settings.kind,
            growing: settings.size.is_none(),
            in_flight_max: settings.in_flight_max(),
            worker_bytes_max,
            pool: Pool::new(name, settings.options()),
            workers: BTreeMap::new(),
            names: BTreeMap::new(),
            changed: false,
        }
    }

    /// Lets a worker in, under a name that nobody else is connected with. Returns its slot.
    pub(crate) fn join(
        &mut self,
        name: &str,
        slot: Option<u32>,
        link: WorkerLink,
        now_ms: u64,
    ) -> Result<u32, PoolError> {
        let slot = match self.names.get(name) {
            Some(&has) if slot.is_none_or(|slot| slot == has) => has,
            Some(&has) => {
                return Err(PoolError::NameTaken {
                    name: name.into(),
                    slot: has as usize,
                });
            }
            None => self.add(name, slot, now_ms)?,
        };
        if let Some(worker) = self.workers.get_mut(&slot) {
            if matches!(worker.link, WorkerLink::Stream(_) | WorkerLink::Poll(..)) {
                let name = name.into();
                return Err(PoolError::WorkerConnected { name });
            }
            worker.link = link;
            worker.seen_ms = now_ms;
        }
        self.settle(slot);
        Ok(slot)
    }

    fn add(&mut self, name: &str, slot: Option<u32>, now_ms: u64) -> Result<u32, PoolError> {
        let slot = match slot {
            Some(slot) => {
                self.pool.add_at(name, slot as usize)?;
                slot
            }
            None => {
                let added = match self.pool.add(name) {
                    Err(PoolError::Full { .. }) if self.growing && self.forget() => {
                        self.pool.add(name)
                    }
                    added => added,
                };
                added? as u32
            }
        };
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name), slot);
        let worker = Worker {
            name,
            link: WorkerLink::None,
            connected: None,
            seen_ms: now_ms,
            watched: false,
            running: 0,
            bytes: 0,
            given: 0,
            done: 0,
        };
        self.workers.insert(slot, worker);
        Ok(slot)
    }

    /// Makes room where only those who are gone take it: the one gone longest is undeleted.
    fn forget(&mut self) -> bool {
        let gone = self.workers.values();
        let gone = gone.filter(|worker| worker.link == WorkerLink::None && worker.running == 0);
        let oldest = gone.min_by_key(|worker| worker.seen_ms);
        let Some(name) = oldest.map(|worker| Arc::clone(&worker.name)) else {
            return false;
        };
        self.dismiss(&name).is_ok()
    }

    /// Takes a worker off the list that is not connected and has no jobs.
    pub(crate) fn dismiss(&mut self, name: &str) -> Result<(), PoolError> {
        let unknown = || PoolError::UnknownWorker { name: name.into() };
        let slot = *self.names.get(name).ok_or_else(unknown)?;
        let worker = self.workers.get_mut(&slot).ok_or_else(unknown)?;
        if worker.link != WorkerLink::None || worker.running > 0 {
            return Err(PoolError::WorkerConnected { name: name.into() });
        }
        worker.connected = None;
        self.pool.remove(name)?;
        self.workers.remove(&slot);
        self.names.remove(name);
        Ok(())
    }

    /// Changes how a worker is reached.
    pub(crate) fn relink(&mut self, slot: u32, link: WorkerLink, now_ms: u64) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.link = link;
            worker.seen_ms = now_ms;
        }
        self.settle(slot);
    }

    pub(crate) fn link(&self, slot: u32) -> WorkerLink {
        self.workers
            .get(&slot)
            .map_or(WorkerLink::None, |worker| worker.link)
    }

    /// Whether that worker is expected to poll again.
    pub(crate) fn is_away(&self, name: &str) -> bool {
        let slot = self.names.get(name);
        slot.is_some_and(|slot| self.link(*slot) == WorkerLink::Away)
    }

    pub(crate) fn name(&self, slot: u32) -> Option<Arc<str>> {
        Some(Arc::clone(&self.workers.get(&slot)?.name))
    }

    /// Has the pool's picks know what is known here.
    fn settle(&mut self, slot: u32) {
        let kind = self.kind;
        let Some(worker) = self.workers.get_mut(&slot) else {
            return;
        };
        let in_picks = match (kind, worker.link) {
            (_, WorkerLink::None) => false,
            // Who comes anew with a job that it got before can be claimed when that is over.
            (Kind::Claim, WorkerLink::Stream(_)) => {
                worker.running == 0 || worker.connected.is_some()
            }
            (_, WorkerLink::Stream(_)) => true,
            // Between two polls nobody else gets its keys, unless it stays away.
            (Kind::Hash, WorkerLink::Poll(..) | WorkerLink::Away) => true,
            // Who is claimed by an older poll's job is free for another only when that is over.
            (Kind::Claim, WorkerLink::Poll(..)) => worker.running == 0,
            (_, WorkerLink::Poll(..)) => true,
            (_, WorkerLink::Away) => false,
        };
        if in_picks == worker.connected.is_some() {
            return;
        }
        self.changed = true;
        worker.connected = None;
        if in_picks {
            let name = Arc::clone(&worker.name);
            match self.pool.connect(&name, slot) {
                Ok(connected) => worker.connected = Some(connected),
                Err(error) => tracing::warn!(%error, "a worker can't be picked"),
            }
        }
    }

    /// Whether a worker takes another job of that size now.
    pub(crate) fn has_room(&self, slot: u32, bytes: u32) -> bool {
        self.workers
            .get(&slot)
            .is_some_and(|worker| match worker.link {
                WorkerLink::Stream(_) | WorkerLink::Poll(..) => {
                    worker.running == 0
                        || worker.running < self.in_flight_max
                            && worker.bytes + u64::from(bytes) <= self.worker_bytes_max
                }
                WorkerLink::None | WorkerLink::Away => false,
            })
    }

    /// Whether a worker has room for a job of that size.
    pub(crate) fn somebody_has_room(&self, bytes: u32) -> bool {
        self.slots().any(|slot| self.has_room(slot, bytes))
    }

    /// Picks a worker with room for a job of a pool where any worker takes any job. `avoid` gets it
    /// only if nobody else is connected; nothing if it should wait for somebody else.
    pub(crate) fn pick(
        &mut self,
        bytes: u32,
        avoid: Option<u32>,
    ) -> Option<(u32, Option<Claim<u32>>)> {
        let avoid = avoid.filter(|_| self.connected() > 1);
        if self.kind == Kind::Claim {
            let mut avoided = None;
            while let Ok(claim) = self.pool.try_claim() {
                if avoid == Some(*claim) && avoided.is_none() {
                    avoided = Some(claim);
                } else {
                    return Some((*claim, Some(claim)));
                }
            }
            return None;
        }
        for _ in 0..PICKS_PER_WORKER * self.workers.len() {
            let picked = *self.pool.pick().ok()?;
            if Some(picked) != avoid && self.has_room(picked, bytes) {
                return Some((picked, None));
            }
        }
        // Chance has missed those that have room, if there are any.
        let mut slots = self.slots();
        let found = slots.find(|slot| Some(*slot) != avoid && self.has_room(*slot, bytes));
        found.map(|slot| (slot, None))
    }

    /// The worker that a job with that aim belongs to, of a `hash` pool.
    pub(crate) fn pick_for(&self, aim: u32) -> Option<u32> {
        self.pool.pick_for(&aim).ok().map(|picked| *picked)
    }

    /// Whether there is a worker that a job with that aim could go to.
    pub(crate) fn somebody_for(&self, aim: u32) -> bool {
        match self.kind {
            Kind::Direct => !matches!(self.link(aim), WorkerLink::None),
            _ => self.connected() > 0,
        }
    }

    /// A worker gets a job. Returns how it is reached; one that polls is away then.
    pub(crate) fn give(&mut self, slot: u32, bytes: u32) -> WorkerLink {
        let Some(worker) = self.workers.get_mut(&slot) else {
            return WorkerLink::None;
        };
        worker.running += 1;
        worker.bytes += u64::from(bytes);
        worker.given += 1;
        let link = worker.link;
        if matches!(link, WorkerLink::Poll(..)) {
            worker.link = WorkerLink::Away;
            self.settle(slot);
        }
        link
    }

    /// A worker is away: whether that is to be looked at later, because nothing will do so yet.
    pub(crate) fn is_newly_away(&mut self, slot: u32) -> bool {
        let worker = self.workers.get_mut(&slot);
        worker.is_some_and(|worker| !std::mem::replace(&mut worker.watched, true))
    }

    /// Nothing looks at the worker later any more.
    pub(crate) fn unwatch(&mut self, slot: u32) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.watched = false;
        }
    }

    /// When a worker was last heard of, or nothing while it has jobs.
    pub(crate) fn idle_since_ms(&self, slot: u32) -> Option<u64> {
        let worker = self.workers.get(&slot)?;
        (worker.running == 0).then_some(worker.seen_ms)
    }

    /// A worker has a job no longer.
    pub(crate) fn take(&mut self, slot: u32, bytes: u32, done: bool) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.running = worker.running.saturating_sub(1);
            worker.bytes = worker.bytes.saturating_sub(bytes.into());
            worker.done += u64::from(done);
        }
        self.settle(slot);
    }

    /// How many workers are there.
    pub(crate) fn connected(&self) -> usize {
        let workers = self.workers.values();
        workers
            .filter(|worker| worker.link != WorkerLink::None)
            .count()
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.workers.keys().copied()
    }

    /// All workers, in the order of slots.
    pub(crate) fn status(&self) -> Vec<WorkerStatus> {
        let info = |(slot, worker): (&u32, &Worker)| WorkerStatus {
            name: Arc::clone(&worker.name),
            slot: *slot,
            connected: worker.link != WorkerLink::None,
            running: worker.running,
            given: worker.given,
            done: worker.done,
        };
        self.workers.iter().map(info).collect()
    }
}

/// How often the pool is asked, for each of its workers, until one with room comes up. Taking turns
/// needs one round; chance misses a worker so often once in fifty times.
const PICKS_PER_WORKER: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PoolLimits;

    fn workers(settings: &str) -> Workers {
        let settings: PoolSettings = serde_json::from_str(settings).unwrap();
        let settings = settings.checked(&PoolLimits::default()).unwrap();
        Workers::new("test", &settings, 100)
    }

    fn client(token: u64) -> PoolClient {
        PoolClient {
            shard: 0,
            token,
            request: 0,
        }
    }

    #[test]
    fn a_name_is_one_workers_and_a_slot_too() {
        let mut workers = workers(r#"{"type":"direct","size":2}"#);
        assert_eq!(
            workers.join("a", Some(1), WorkerLink::Stream(client(1)), 0),
            Ok(1)
        );
        let taken = workers.join("a", None, WorkerLink::Stream(client(2)), 0);
        assert!(matches!(taken, Err(PoolError::WorkerConnected { .. })));
        let taken = workers.join("a", Some(0), WorkerLink::Stream(client(2)), 0);
        assert!(matches!(taken, Err(PoolError::NameTaken { slot: 1, .. })));
        let taken = workers.join("b", Some(1), WorkerLink::Stream(client(2)), 0);
        assert!(matches!(taken, Err(PoolError::SlotTaken { slot: 1, .. })));
        let beyond = workers.join("b", Some(2), WorkerLink::Stream(client(2)), 0);
        assert!(matches!(beyond, Err(PoolError::OutOfRange { .. })));
        assert_eq!(
            workers.join("b", None, WorkerLink::Stream(client(2)), 0),
            Ok(0)
        );
        let full = workers.join("c", None, WorkerLink::Stream(client(3)), 0);
        assert!(matches!(full, Err(PoolError::Full { size: 2 })));
    }

    #[test]
    fn who_is_gone_makes_room_in_a_growing_pool() {
        let mut workers = workers(r#"{"type":"claim","size_max":2}"#);
        workers
            .join("a", None, WorkerLink::Stream(client(1)), 1)
            .unwrap();
        workers
            .join("b", None, WorkerLink::Stream(client(2)), 2)
            .unwrap();
        assert!(
            workers
                .join("c", None, WorkerLink::Stream(client(3)), 3)
                .is_err()
        );
        workers.relink(1, WorkerLink::None, 4);
        workers.relink(0, WorkerLink::None, 5);
        assert_eq!(
            workers.join("c", None, WorkerLink::Stream(client(3)), 6),
            Ok(1)
        );
        assert_eq!(workers.name(0).as_deref(), Some("a"));
    }

    #[test]
    fn room_ends_with_the_number_and_with_the_bytes() {
        let mut workers = workers(r#"{"type":"round_robin","in_flight":2}"#);
        workers
            .join("a", None, WorkerLink::Stream(client(1)), 0)
            .unwrap();
        assert!(workers.somebody_has_room(1_000));
        workers.give(0, 90);
        assert!(workers.somebody_has_room(10) && !workers.somebody_has_room(11));
        workers.give(0, 1);
        assert!(!workers.somebody_has_room(0));
        workers.take(0, 90, true);
        assert!(workers.somebody_has_room(10));
    }

    #[test]
    fn a_claimed_worker_that_polls_again_waits_for_its_job_to_end() {
        let mut workers = workers(r#"{"type":"claim"}"#);
        workers
            .join("a", None, WorkerLink::Poll(client(1), 9), 0)
            .unwrap();
        let (slot, claim) = workers.pick(1, None).unwrap();
        assert_eq!(workers.give(slot, 1), WorkerLink::Poll(client(1), 9));
        assert_eq!(workers.link(slot), WorkerLink::Away);
        workers
            .join("a", None, WorkerLink::Poll(client(2), 9), 0)
            .unwrap();
        assert!(workers.pick(1, None).is_none());
        drop(claim);
        workers.take(slot, 1, true);
        assert!(workers.pick(1, None).is_some());
    }

    #[test]
    fn who_refused_a_job_is_asked_again_only_when_alone() {
        for kind in ["claim", "round_robin", "random"] {
            let mut workers = workers(&format!(r#"{{"type":"{kind}"}}"#));
            workers
                .join("a", None, WorkerLink::Stream(client(1)), 0)
                .unwrap();
            assert!(workers.pick(1, Some(0)).is_some());
            workers
                .join("b", None, WorkerLink::Stream(client(2)), 0)
                .unwrap();
            for _ in 0..20 {
                assert_eq!(workers.pick(1, Some(0)).unwrap().0, 1, "{kind}");
            }
        }
    }
}
