//! Waiting jobs, in the order in which they were posted.

use std::collections::{BTreeMap, VecDeque};

use crate::record::WaitingJob;
use encke_clock::SteadySeconds;
use encke_pool::Strategy;

/// One queue of jobs. A job that returns from a failed attempt gets its former place.
#[derive(Debug, Default)]
pub(crate) struct JobQueue {
    /// In the order in which they were posted.
    fresh: VecDeque<WaitingJob>,
    /// Jobs that returned: few.
    back: BTreeMap<u64, WaitingJob>,
}

impl JobQueue {
    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.back.len()
    }

    /// Adds a job that is newer than all others.
    pub(crate) fn push(&mut self, job: WaitingJob) {
        debug_assert!(self.fresh.back().is_none_or(|last| last.id < job.id));
        self.fresh.push_back(job);
    }

    /// Returns a job to its place.
    pub(crate) fn put_back(&mut self, job: WaitingJob) {
        self.back.insert(job.id, job);
    }

    pub(crate) fn first(&self) -> Option<&WaitingJob> {
        let fresh = self.fresh.front();
        match (fresh, self.back.values().next()) {
            (Some(fresh), Some(back)) if fresh.id < back.id => Some(fresh),
            (fresh, back) => back.or(fresh),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<WaitingJob> {
        let first = self.first()?.id;
        if self.fresh.front().is_some_and(|fresh| fresh.id == first) {
            let job = self.fresh.pop_front();
            if self.fresh.len() * 4 < self.fresh.capacity() && self.fresh.capacity() > KEPT {
                self.fresh.shrink_to(self.fresh.len() * 2);
            }
            return job;
        }
        self.back.pop_first().map(|(_, job)| job)
    }

    /// Finds a job by its name.
    fn find(&self, id: u64) -> Option<&WaitingJob> {
        let fresh = self.fresh.binary_search_by_key(&id, |job| job.id);
        fresh
            .ok()
            .map(|at| &self.fresh[at])
            .or_else(|| self.back.get(&id))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &WaitingJob> {
        self.back.values().chain(&self.fresh)
    }

    fn drain(&mut self) -> impl Iterator<Item = WaitingJob> {
        let back = std::mem::take(&mut self.back).into_values();
        back.chain(std::mem::take(&mut self.fresh))
    }
}

/// All waiting jobs of a pool.
#[derive(Debug)]
pub(crate) enum JobQueues {
    /// Any worker takes any job.
    One(JobQueue),
    /// One queue for each slot; none is empty.
    BySlot(BTreeMap<u32, JobQueue>),
    /// The worker of a job depends on which workers are connected: only the first jobs are assigned.
    ByKey(KeyedQueue),
}

/// Jobs whose worker is selected by a key.
#[derive(Debug, Default)]
pub(crate) struct KeyedQueue {
    /// Not assigned yet.
    common: JobQueue,
    /// Assigned, by the worker's slot.
    assigned: BTreeMap<u32, JobQueue>,
    ahead: usize,
    /// The selectors of jobs that are assigned or run.
    places: BTreeMap<u32, SelectorPlace>,
}

/// Where the jobs of a selector are.
#[derive(Clone, Copy, Debug)]
struct SelectorPlace {
    /// The worker's slot.
    slot: u32,
    /// Jobs that are assigned or run.
    jobs: u32,
}

impl JobQueues {
    /// Empty queues.
    pub(crate) fn new(strategy: Strategy) -> Self {
        match strategy {
            Strategy::RoundRobin | Strategy::Random | Strategy::Claim => {
                JobQueues::One(JobQueue::default())
            }
            Strategy::Direct => JobQueues::BySlot(BTreeMap::new()),
            Strategy::Hash => JobQueues::ByKey(KeyedQueue::default()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            JobQueues::One(line) => line.len(),
            JobQueues::BySlot(lines) => lines.values().map(JobQueue::len).sum(),
            JobQueues::ByKey(keyed) => keyed.common.len() + keyed.ahead,
        }
    }

    /// Adds a job that is newer than all others.
    pub(crate) fn push(&mut self, job: WaitingJob) {
        match self {
            JobQueues::One(line) => line.push(job),
            JobQueues::BySlot(lines) => lines.entry(job.selector).or_default().push(job),
            JobQueues::ByKey(keyed) => keyed.common.push(job),
        }
    }

    /// Returns a job to its place.
    pub(crate) fn put_back(&mut self, job: WaitingJob) {
        match self {
            JobQueues::One(line) => line.put_back(job),
            JobQueues::BySlot(lines) => lines.entry(job.selector).or_default().put_back(job),
            JobQueues::ByKey(keyed) => keyed.common.put_back(job),
        }
    }

    /// A job with this selector does not run any longer.
    pub(crate) fn ended(&mut self, selector: u32) {
        if let JobQueues::ByKey(keyed) = self {
            keyed.leave(selector);
        }
    }

    /// The jobs, in no order.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = &WaitingJob> + '_> {
        match self {
            JobQueues::One(line) => Box::new(line.iter()),
            JobQueues::BySlot(lines) => Box::new(lines.values().flat_map(JobQueue::iter)),
            JobQueues::ByKey(keyed) => {
                let assigned = keyed.assigned.values().flat_map(JobQueue::iter);
                Box::new(keyed.common.iter().chain(assigned))
            }
        }
    }

    /// Finds a job by its name.
    pub(crate) fn find(&self, id: u64) -> Option<&WaitingJob> {
        match self {
            JobQueues::One(line) => line.find(id),
            JobQueues::BySlot(lines) => lines.values().find_map(|line| line.find(id)),
            JobQueues::ByKey(keyed) => {
                let mut assigned = keyed.assigned.values();
                let assigned = assigned.find_map(|line| line.find(id));
                assigned.or_else(|| keyed.common.find(id))
            }
        }
    }

    /// When the oldest job was posted.
    pub(crate) fn oldest(&self) -> Option<SteadySeconds> {
        let first = |line: &JobQueue| line.first().map(|job| job.posted);
        match self {
            JobQueues::One(line) => first(line),
            JobQueues::BySlot(lines) => lines.values().filter_map(first).min(),
            JobQueues::ByKey(keyed) => {
                let assigned = keyed.assigned.values().filter_map(first).min();
                assigned.into_iter().chain(first(&keyed.common)).min()
            }
        }
    }
}

impl KeyedQueue {
    /// Assigns jobs in order until the window is full. `choose` gets the selector of a job, and the slot of the worker that has others of it.
    pub(crate) fn assign(&mut self, mut choose: impl FnMut(u32, Option<u32>) -> Option<u32>) {
        while self.ahead < AHEAD_MAX
            && let Some(job) = self.common.first()
            && let place = self.places.get(&job.selector).copied()
            && let Some(slot) = choose(job.selector, place.map(|place| place.slot))
            && let Some(job) = self.common.pop()
        {
            let jobs = place.map_or(0, |place| place.jobs) + 1;
            self.places
                .insert(job.selector, SelectorPlace { slot, jobs });
            self.assigned.entry(slot).or_default().put_back(job);
            self.ahead += 1;
        }
    }

    /// A job with this selector is not assigned any longer, and does not run.
    fn leave(&mut self, selector: u32) {
        if let Some(place) = self.places.get_mut(&selector) {
            place.jobs -= 1;
            if place.jobs == 0 {
                self.places.remove(&selector);
            }
        }
    }

    /// Makes all jobs unassigned, because the set of connected workers has changed.
    pub(crate) fn unassign(&mut self) {
        for mut line in std::mem::take(&mut self.assigned).into_values() {
            for job in line.drain() {
                self.leave(job.selector);
                self.common.put_back(job);
            }
        }
        self.ahead = 0;
    }

    /// The slots that jobs are assigned to.
    pub(crate) fn slots(&self) -> Vec<u32> {
        self.assigned.keys().copied().collect()
    }

    pub(crate) fn first(&self, slot: u32) -> Option<&WaitingJob> {
        self.assigned.get(&slot)?.first()
    }

    pub(crate) fn pop(&mut self, slot: u32) -> Option<WaitingJob> {
        let line = self.assigned.get_mut(&slot)?;
        let job = line.pop();
        if line.len() == 0 {
            self.assigned.remove(&slot);
        }
        self.ahead -= usize::from(job.is_some());
        job
    }
}

/// The maximum number of assigned jobs in a `hash` pool. A slow worker holds up the others only when this many wait for it.
const AHEAD_MAX: usize = 4_096;

/// A short queue keeps memory for this many jobs.
const KEPT: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64) -> WaitingJob {
        WaitingJob {
            id,
            selector: id as u32 % 3,
            posted: SteadySeconds::from_s(id as u32),
            bytes: 0,
            attempts: 0,
        }
    }

    #[test]
    fn what_comes_back_stands_where_it_stood() {
        let mut line = JobQueue::default();
        (1..=4).for_each(|id| line.push(job(id)));
        let first = line.pop().unwrap();
        let second = line.pop().unwrap();
        line.put_back(second);
        line.put_back(first);
        let order: Vec<u64> = std::iter::from_fn(|| line.pop())
            .map(|job| job.id)
            .collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[test]
    fn jobs_are_assigned_anew_in_their_order() {
        let mut keyed = KeyedQueue::default();
        (1..=9).for_each(|id| keyed.common.push(job(id)));
        keyed.assign(|selector, _| Some(selector % 2));
        assert_eq!(keyed.slots(), [0, 1]);
        assert_eq!(keyed.first(1).map(|job| job.id), Some(1));
        keyed.unassign();
        keyed.assign(|_, _| Some(7));
        let order: Vec<u64> = std::iter::from_fn(|| keyed.pop(7))
            .map(|job| job.id)
            .collect();
        assert_eq!(order, (1..=9).collect::<Vec<_>>());
        assert_eq!(keyed.ahead, 0);
        (0..9).for_each(|selector| keyed.leave(selector % 3));
        assert!(keyed.places.is_empty());
    }

    #[test]
    fn a_full_window_leaves_the_rest() {
        let mut keyed = KeyedQueue::default();
        (0..AHEAD_MAX as u64 + 5).for_each(|id| keyed.common.push(job(id)));
        keyed.assign(|_, _| Some(0));
        assert_eq!((keyed.ahead, keyed.common.len()), (AHEAD_MAX, 5));
    }
}
