//! The workers of a pool: their connections, and which of them gets a job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_pool::{Connected, Picked, Pool, PoolError, Strategy};

use crate::request::{DispatchClient, Registration, WorkerCaller};
use crate::response::WorkerStatus;
use crate::settings::PoolSettings;

/// The workers of a pool, by slot.
#[derive(Debug)]
pub(crate) struct Workers {
    strategy: Strategy,
    growing: bool,
    pool: Pool<u32>,
    workers: BTreeMap<u32, WorkerState>,
    names: BTreeMap<Arc<str>, u32>,
    /// Workers whose link is not [`WorkerLink::None`].
    connected: usize,
    /// The set of connected workers has changed, and with it the workers of keys in a `hash` pool.
    pub(crate) changed: bool,
}

/// A worker.
#[derive(Debug)]
struct WorkerState {
    name: Arc<str>,
    /// Who registered it.
    caller: WorkerCaller,
    /// When it took the place of its own earlier connection.
    replaced_at: Option<SteadyTime>,
    link: WorkerLink,
    /// Its membership in the pool that picks.
    connected: Option<Connected<u32>>,
    paused: bool,
    /// When it was last connected.
    seen_at: SteadyTime,
    /// A timer will check whether it is still away.
    watched: bool,
    running: u32,
    given: u64,
    done: u64,
}

/// How jobs reach a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerLink {
    /// The worker is not connected.
    None,
    /// It receives all jobs as events.
    Stream(DispatchClient),
    /// It waits for one job until this time.
    Poll(DispatchClient, SteadyTime),
    /// Its poll is over, and it is expected to poll again.
    Away,
}

impl Workers {
    pub(crate) fn new(settings: &PoolSettings, worker_bytes_max: u64) -> Self {
        Workers {
            strategy: settings.strategy,
            growing: settings.size.is_none(),
            pool: Pool::new(settings.options(worker_bytes_max)),
            workers: BTreeMap::new(),
            names: BTreeMap::new(),
            connected: 0,
            changed: false,
        }
    }

    /// The connection of a worker that this registration replaces. Of a worker that vanished the connection may still
    /// seem to be there; its successor does not wait until that is found out. Another caller replaces nothing, and no
    /// caller replaces a connection that has just replaced another: two that run under one name would take turns for ever, and their jobs fail with each.
    pub(crate) fn replaced_by(
        &self,
        work: &Registration,
        now: SteadyTime,
    ) -> Option<DispatchClient> {
        let slot = *self.names.get(&*work.worker)?;
        let worker = self.workers.get(&slot)?;
        let has_slot = work.slot.is_none_or(|wanted| wanted == slot);
        let client = worker.link.client()?;
        let rests = |at: SteadyTime| now < at.after(REPLACED_REST);
        let may = has_slot && work.caller.is_same(&worker.caller);
        (may && !worker.replaced_at.is_some_and(rests)).then_some(client)
    }

    /// Registers a worker under a name that no connected worker has. Returns its slot.
    pub(crate) fn register(
        &mut self,
        work: &Registration,
        link: WorkerLink,
        now: SteadyTime,
    ) -> Result<u32, PoolError> {
        let name = &*work.worker;
        let slot = match self.names.get(name) {
            Some(&has) if work.slot.is_none_or(|slot| slot == has) => has,
            Some(&has) => {
                return Err(PoolError::NameTaken {
                    name: name.into(),
                    slot: has as usize,
                });
            }
            None => self.add(name, work.slot, now)?,
        };
        if self.link(slot).client().is_some() {
            let name = name.into();
            return Err(PoolError::WorkerConnected { name });
        }
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.caller.clone_from(&work.caller);
            worker.replaced_at = None;
        }
        self.set_link(slot, link, now);
        Ok(slot)
    }

    fn add(&mut self, name: &str, slot: Option<u32>, now: SteadyTime) -> Result<u32, PoolError> {
        let slot = match slot {
            Some(slot) => {
                self.pool.add_at(name, slot as usize)?;
                slot
            }
            None => {
                let added = match self.pool.add(name) {
                    Err(PoolError::Full { .. }) if self.growing && self.remove_oldest() => {
                        self.pool.add(name)
                    }
                    added => added,
                };
                added? as u32
            }
        };
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name), slot);
        let worker = WorkerState {
            name,
            caller: WorkerCaller::Unknown,
            replaced_at: None,
            link: WorkerLink::None,
            connected: None,
            paused: false,
            seen_at: now,
            watched: false,
            running: 0,
            given: 0,
            done: 0,
        };
        self.workers.insert(slot, worker);
        Ok(slot)
    }

    /// Removes the worker that has been disconnected for the longest time. False: there is none.
    fn remove_oldest(&mut self) -> bool {
        let gone = self.workers.values();
        let gone = gone.filter(|worker| worker.link == WorkerLink::None && worker.running == 0);
        let oldest = gone.min_by_key(|worker| worker.seen_at);
        let Some(name) = oldest.map(|worker| Arc::clone(&worker.name)) else {
            return false;
        };
        self.remove(&name).is_ok()
    }

    /// Notes that a worker has taken the place of its own earlier connection.
    pub(crate) fn has_replaced(&mut self, slot: u32, now: SteadyTime) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.replaced_at = Some(now);
        }
    }

    /// Takes the settings after a change.
    pub(crate) fn take_settings(&mut self, settings: &PoolSettings) {
        self.pool.set_jobs_max(settings.jobs_of_a_worker());
    }

    /// Removes a worker that is not connected and has no jobs.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), PoolError> {
        let unknown = || PoolError::UnknownWorker { name: name.into() };
        let slot = *self.names.get(name).ok_or_else(unknown)?;
        let worker = self.workers.get(&slot).ok_or_else(unknown)?;
        if worker.link != WorkerLink::None || worker.running > 0 {
            return Err(PoolError::WorkerConnected { name: name.into() });
        }
        self.pool.remove(name)?;
        self.workers.remove(&slot);
        self.names.remove(name);
        Ok(())
    }

    /// Changes how jobs reach a worker.
    pub(crate) fn set_link(&mut self, slot: u32, link: WorkerLink, now: SteadyTime) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            self.connected -= usize::from(worker.link != WorkerLink::None);
            self.connected += usize::from(link != WorkerLink::None);
            worker.link = link;
            worker.seen_at = now;
        }
        self.update(slot);
    }

    pub(crate) fn link(&self, slot: u32) -> WorkerLink {
        self.workers
            .get(&slot)
            .map_or(WorkerLink::None, |worker| worker.link)
    }

    /// Whether this worker is expected to poll again.
    pub(crate) fn is_away(&self, name: &str) -> bool {
        let slot = self.names.get(name);
        slot.is_some_and(|slot| self.link(*slot) == WorkerLink::Away)
    }

    pub(crate) fn name(&self, slot: u32) -> Option<Arc<str>> {
        Some(Arc::clone(&self.workers.get(&slot)?.name))
    }

    /// Makes the pool that picks agree with the worker's link.
    fn update(&mut self, slot: u32) {
        let Some(worker) = self.workers.get_mut(&slot) else {
            return;
        };
        let connected = worker.link != WorkerLink::None;
        if connected != worker.connected.is_some() {
            self.changed = true;
            worker.connected = None;
            worker.paused = false;
            if connected {
                match self.pool.connect(&worker.name, slot) {
                    Ok(connected) => worker.connected = Some(connected),
                    Err(error) => {
                        tracing::warn!(worker = %worker.name, %error, "the worker gets no jobs");
                    }
                }
            }
        }
        // A claimed worker may connect again before its job is over.
        let claimed = self.strategy == Strategy::Claim && worker.running > 0;
        let paused = claimed || worker.link == WorkerLink::Away;
        if let Some(connected) = &worker.connected
            && paused != worker.paused
        {
            worker.paused = paused;
            match paused {
                true => connected.pause(),
                false => connected.resume(),
            }
        }
    }

    /// Picks a worker for a job that any worker may have. The worker `avoid` gets it only if no other one is connected.
    pub(crate) fn pick(&self, bytes: u32, avoid: Option<u32>) -> Option<Picked<u32>> {
        let avoid = avoid.filter(|_| self.connected > 1);
        self.pool.pick(bytes, avoid.map(|slot| slot as usize)).ok()
    }

    /// Picks the worker at a slot, if it has room for the job.
    pub(crate) fn pick_at(&self, slot: u32, bytes: u32) -> Option<Picked<u32>> {
        self.pool.pick_at(slot as usize, bytes).ok()
    }

    /// The slot of the worker for a job with this selector, in a `hash` pool.
    pub(crate) fn slot_for(&self, selector: u32) -> Option<u32> {
        self.pool.slot_for(&selector).ok().map(|slot| slot as u32)
    }

    pub(crate) fn is_connected(&self, slot: u32) -> bool {
        self.link(slot) != WorkerLink::None
    }

    /// Whether a worker that may have a job with this selector is connected.
    pub(crate) fn is_connected_for(&self, selector: u32) -> bool {
        match self.strategy {
            Strategy::Direct => self.is_connected(selector),
            _ => self.connected > 0,
        }
    }

    /// Counts a job of a picked worker. Returns how to reach the worker; after a poll it is away.
    pub(crate) fn give(&mut self, slot: u32) -> WorkerLink {
        let Some(worker) = self.workers.get_mut(&slot) else {
            return WorkerLink::None;
        };
        worker.running += 1;
        worker.given += 1;
        let link = worker.link;
        if matches!(link, WorkerLink::Poll(..)) {
            worker.link = WorkerLink::Away;
        }
        self.update(slot);
        link
    }

    /// Marks an away worker as watched. Returns true if it was not, so that a timer is needed.
    pub(crate) fn watch(&mut self, slot: u32) -> bool {
        let worker = self.workers.get_mut(&slot);
        worker.is_some_and(|worker| !std::mem::replace(&mut worker.watched, true))
    }

    pub(crate) fn unwatch(&mut self, slot: u32) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.watched = false;
        }
    }

    /// When a worker was last connected. None: it has jobs.
    pub(crate) fn idle_since(&self, slot: u32) -> Option<SteadyTime> {
        let worker = self.workers.get(&slot)?;
        (worker.running == 0).then_some(worker.seen_at)
    }

    /// Counts the end of a job, behind the release of its place.
    pub(crate) fn take(&mut self, slot: u32, done: bool) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.running = worker.running.saturating_sub(1);
            worker.done += u64::from(done);
        }
        self.update(slot);
    }

    /// How many workers are connected.
    pub(crate) fn connected(&self) -> usize {
        self.connected
    }

    /// All workers, in the order of slots.
    pub(crate) fn status(&self) -> Vec<WorkerStatus> {
        let status = |(slot, worker): (&u32, &WorkerState)| WorkerStatus {
            name: Arc::clone(&worker.name),
            slot: *slot,
            connected: worker.link != WorkerLink::None,
            running: worker.running,
            given: worker.given,
            done: worker.done,
        };
        self.workers.iter().map(status).collect()
    }
}

impl WorkerLink {
    /// The link's connection.
    fn client(self) -> Option<DispatchClient> {
        match self {
            WorkerLink::Stream(has) | WorkerLink::Poll(has, _) => Some(has),
            WorkerLink::None | WorkerLink::Away => None,
        }
    }

    /// Whether this is the link's connection.
    pub(crate) fn is_with(self, client: DispatchClient) -> bool {
        self.client() == Some(client)
    }
}

/// How long a worker that has replaced its earlier connection cannot be replaced itself.
const REPLACED_REST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PoolLimits;

    fn workers(settings: &str) -> Workers {
        let settings: PoolSettings = serde_json::from_str(settings).unwrap();
        let settings = settings.checked(&PoolLimits::default()).unwrap();
        Workers::new(&settings, 100)
    }

    fn client(token: u64) -> DispatchClient {
        DispatchClient {
            node: 0,
            shard: 0,
            token,
            request: 0,
        }
    }

    fn named(worker: &str, slot: Option<u32>) -> Registration {
        Registration {
            pool: "p".into(),
            worker: worker.into(),
            slot,
            poll_ms: None,
            caller: WorkerCaller::Anyone,
        }
    }

    #[test]
    fn a_name_is_one_workers_and_a_slot_too() {
        let mut workers = workers(r#"{"type":"direct","size":2}"#);
        assert_eq!(
            workers.register(
                &named("a", Some(1)),
                WorkerLink::Stream(client(1)),
                SteadyTime::from_ms(0)
            ),
            Ok(1)
        );
        let taken = workers.register(
            &named("a", None),
            WorkerLink::Stream(client(2)),
            SteadyTime::from_ms(0),
        );
        assert!(matches!(taken, Err(PoolError::WorkerConnected { .. })));
        let taken = workers.register(
            &named("a", Some(0)),
            WorkerLink::Stream(client(2)),
            SteadyTime::from_ms(0),
        );
        assert!(matches!(taken, Err(PoolError::NameTaken { slot: 1, .. })));
        let taken = workers.register(
            &named("b", Some(1)),
            WorkerLink::Stream(client(2)),
            SteadyTime::from_ms(0),
        );
        assert!(matches!(taken, Err(PoolError::SlotTaken { slot: 1, .. })));
        let beyond = workers.register(
            &named("b", Some(2)),
            WorkerLink::Stream(client(2)),
            SteadyTime::from_ms(0),
        );
        assert!(matches!(beyond, Err(PoolError::OutOfRange { .. })));
        assert_eq!(
            workers.register(
                &named("b", None),
                WorkerLink::Stream(client(2)),
                SteadyTime::from_ms(0)
            ),
            Ok(0)
        );
        let full = workers.register(
            &named("c", None),
            WorkerLink::Stream(client(3)),
            SteadyTime::from_ms(0),
        );
        assert!(matches!(full, Err(PoolError::Full { size: 2 })));
    }

    #[test]
    fn a_disconnected_worker_makes_room_in_a_growing_pool() {
        let mut workers = workers(r#"{"type":"claim","size_max":2}"#);
        workers
            .register(
                &named("a", None),
                WorkerLink::Stream(client(1)),
                SteadyTime::from_ms(1),
            )
            .unwrap();
        workers
            .register(
                &named("b", None),
                WorkerLink::Stream(client(2)),
                SteadyTime::from_ms(2),
            )
            .unwrap();
        assert!(
            workers
                .register(
                    &named("c", None),
                    WorkerLink::Stream(client(3)),
                    SteadyTime::from_ms(3)
                )
                .is_err()
        );
        workers.set_link(1, WorkerLink::None, SteadyTime::from_ms(4));
        workers.set_link(0, WorkerLink::None, SteadyTime::from_ms(5));
        assert_eq!(
            workers.register(
                &named("c", None),
                WorkerLink::Stream(client(3)),
                SteadyTime::from_ms(6)
            ),
            Ok(1)
        );
        assert_eq!(workers.name(0).as_deref(), Some("a"));
    }

    #[test]
    fn room_ends_with_the_number_and_with_the_bytes() {
        let mut workers = workers(r#"{"type":"round_robin","in_flight":2}"#);
        let link = WorkerLink::Stream(client(1));
        workers
            .register(&named("a", None), link, SteadyTime::from_ms(0))
            .unwrap();
        assert!(workers.pick(1_000, None).is_some());
        let first = workers.pick(90, None).unwrap();
        workers.give(*first);
        assert!(workers.pick(10, None).is_some() && workers.pick(11, None).is_none());
        let second = workers.pick(1, None).unwrap();
        workers.give(*second);
        assert!(workers.pick(0, None).is_none());
        drop(first);
        workers.take(0, true);
        assert!(workers.pick(10, None).is_some());
    }

    #[test]
    fn a_worker_between_two_polls_gets_no_job_and_keeps_its_keys() {
        for kind in ["round_robin", "random", "hash", "claim"] {
            let mut workers = workers(&format!(r#"{{"type":"{kind}"}}"#));
            let pick = |workers: &Workers| match kind {
                "hash" => workers.pick_at(workers.slot_for(7)?, 1),
                _ => workers.pick(1, None),
            };
            let poll = |token| WorkerLink::Poll(client(token), SteadyTime::from_ms(9));
            workers
                .register(&named("a", None), poll(1), SteadyTime::from_ms(0))
                .unwrap();
            let place = pick(&workers).unwrap();
            workers.give(*place);
            assert!(workers.is_away("a"));
            assert!(pick(&workers).is_none(), "{kind}");
            drop(place);
            workers.take(0, true);
            assert!(pick(&workers).is_none(), "{kind}");
            assert_eq!(workers.slot_for(7).is_some(), kind == "hash");
            workers
                .register(&named("a", None), poll(2), SteadyTime::from_ms(0))
                .unwrap();
            assert!(pick(&workers).is_some(), "{kind}");
        }
    }

    #[test]
    fn a_claimed_worker_that_connects_again_waits_for_its_job_to_end() {
        for link in [
            WorkerLink::Poll(client(2), SteadyTime::from_ms(9)),
            WorkerLink::Stream(client(2)),
        ] {
            let mut workers = workers(r#"{"type":"claim"}"#);
            let first = match link {
                WorkerLink::Poll(..) => WorkerLink::Poll(client(1), SteadyTime::from_ms(9)),
                _ => WorkerLink::Stream(client(1)),
            };
            workers
                .register(&named("a", None), first, SteadyTime::from_ms(0))
                .unwrap();
            let place = workers.pick(1, None).unwrap();
            let slot = *place;
            assert_eq!(workers.give(slot), first);
            if let WorkerLink::Stream(_) = link {
                workers.set_link(slot, WorkerLink::None, SteadyTime::from_ms(1));
            }
            workers
                .register(&named("a", None), link, SteadyTime::from_ms(2))
                .unwrap();
            assert!(workers.pick(1, None).is_none(), "{link:?}");
            drop(place);
            workers.take(slot, true);
            assert!(workers.pick(1, None).is_some(), "{link:?}");
        }
    }

    #[test]
    fn a_worker_that_refused_a_job_gets_it_again_only_when_it_is_alone() {
        for kind in ["claim", "round_robin", "random"] {
            let mut workers = workers(&format!(r#"{{"type":"{kind}"}}"#));
            let link = WorkerLink::Stream(client(1));
            workers
                .register(&named("a", None), link, SteadyTime::from_ms(0))
                .unwrap();
            assert!(workers.pick(1, Some(0)).is_some());
            let link = WorkerLink::Stream(client(2));
            workers
                .register(&named("b", None), link, SteadyTime::from_ms(0))
                .unwrap();
            for _ in 0..20 {
                assert_eq!(*workers.pick(1, Some(0)).unwrap(), 1, "{kind}");
            }
        }
    }
}
