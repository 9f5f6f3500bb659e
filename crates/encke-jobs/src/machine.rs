//! All pools, and the rules by which their jobs move.
//!
//! The rules are in files of their own: `create.rs` (pools and journal segments), `post.rs` (new jobs), `dispatch.rs` (workers and
//! picks), `report.rs` (the ends of attempts), `batch.rs` (decisions become records), `commit.rs` (commands and their outcomes).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use encke_clock::{Now, SteadyTime, StepDetector};
use encke_stream::Command;
use encke_subscriptions::KeySeed;

use crate::cache::PayloadCache;
use crate::error::JobError;
use crate::op::{Op, PoolNo};
use crate::pool_state::{PoolPhase, PoolState};
use crate::request::{DispatchClient, JobId, Payload, PoolRequest};
use crate::response::{DispatchResponse, JobInfo};
use crate::settings::PoolLimits;
use crate::stats::PublishedStats;
use crate::streams::StreamOwners;
use crate::workers::WorkerLink;

/// The pools: requests, outcomes of commands and the time go in; commands, jobs to read and responses come out.
///
/// A request is decided at once. [`JobMachine::flush`] writes the decisions; they take effect and are answered when
/// [`JobMachine::committed`] reports that they are in the log.
#[derive(Debug)]
pub struct JobMachine {
    pub(crate) limits: PoolLimits,
    pub(crate) published: Arc<PublishedStats>,
    /// What the keys of new pools are made of.
    pub(crate) seed: KeySeed,
    /// Which public streams belong to pools.
    pub(crate) owners: StreamOwners,
    pub(crate) pools: HashMap<PoolNo, PoolState>,
    pub(crate) names: HashMap<Box<str>, PoolNo>,
    /// Names of pools that are being created.
    pub(crate) making: HashSet<Box<str>>,
    /// The registry of pools exists.
    pub(crate) registered: bool,
    /// Commands on their way to the log, by number.
    pub(crate) ops: HashMap<u64, Op>,
    pub(crate) next_op: u64,
    /// The pool and slot of each worker's connection.
    pub(crate) worker_connections: HashMap<DispatchClient, (PoolNo, u32)>,
    /// Clients that wait for the end of a job, and until when.
    pub(crate) waits: HashMap<DispatchClient, (PoolNo, JobId, SteadyTime)>,
    /// By the steady clock, as all times in memory are: waits, polls and attempts have durations. The journal, the events and
    /// what clients see have the time of day.
    pub(crate) due: BTreeSet<(SteadyTime, JobTimer)>,
    /// Pools that changed since the last flush.
    pub(crate) touched: BTreeSet<PoolNo>,
    /// The content of unfinished jobs.
    pub(crate) cache: PayloadCache,
    pub(crate) effects: Vec<Effect>,
    /// Streams that could not be deleted yet.
    pub(crate) undeleted: Vec<String>,
    pub(crate) stopping: bool,
    steps: StepDetector,
}

/// Work for the dispatcher.
#[derive(Debug)]
pub enum Effect {
    /// Commit this command, then report its outcome under this number, in the order of the commits.
    Commit {
        /// The number.
        op: u64,
        /// The command.
        command: Command,
    },
    /// Read a job's record, then report its content.
    Load {
        /// The pool's number.
        pool: u64,
        /// The job: the record's sequence.
        id: JobId,
        /// The stream that holds the record.
        stream: String,
    },
    /// Send a response.
    Respond {
        /// The client.
        to: DispatchClient,
        /// The response.
        response: DispatchResponse,
    },
}

/// What becomes due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobTimer {
    /// An attempt times out.
    Attempt(PoolNo, JobId),
    /// A delayed job may be dispatched.
    Retry(PoolNo, JobId),
    /// A worker's poll times out.
    Poll(PoolNo, u32, DispatchClient),
    /// A worker that polls has not polled again.
    Away(PoolNo, u32),
    /// A client has waited long enough for a result.
    Wait(DispatchClient),
    /// A pool's pause is over.
    Pause(PoolNo),
    /// A pool's state is to be published.
    Show(PoolNo),
    /// The deletion of streams is to be tried again.
    DeleteStreams,
}

impl JobMachine {
    /// A machine without pools.
    pub fn new(limits: PoolLimits, published: Arc<PublishedStats>, seed: KeySeed) -> Self {
        JobMachine {
            limits,
            published,
            seed,
            owners: StreamOwners::default(),
            pools: HashMap::new(),
            names: HashMap::new(),
            making: HashSet::new(),
            registered: false,
            ops: HashMap::new(),
            next_op: 0,
            worker_connections: HashMap::new(),
            waits: HashMap::new(),
            due: BTreeSet::new(),
            touched: BTreeSet::new(),
            cache: PayloadCache::default(),
            effects: Vec::new(),
            undeleted: Vec::new(),
            stopping: false,
            steps: StepDetector::default(),
        }
    }

    /// Handles a request.
    pub fn request(&mut self, now: Now, from: DispatchClient, request: PoolRequest) {
        if let Err(error) = self.try_request(now, from, request) {
            self.respond(from, DispatchResponse::Refused(error));
        }
    }

    fn try_request(
        &mut self,
        now: Now,
        from: DispatchClient,
        request: PoolRequest,
    ) -> Result<(), JobError> {
        let no = match &request {
            PoolRequest::Create { .. } | PoolRequest::List | PoolRequest::DeleteStream { .. } => 0,
            PoolRequest::Describe { pool }
            | PoolRequest::Change { pool, .. }
            | PoolRequest::Remove { pool, .. }
            | PoolRequest::RemoveWorker { pool, .. } => self.number(pool)?,
            PoolRequest::Post(post) => self.number(&post.pool)?,
            PoolRequest::DescribeJob { pool, .. } => self.number(pool)?,
            PoolRequest::Register(registration) => self.number(&registration.pool)?,
            PoolRequest::Report(report) => self.number(&report.pool)?,
        };
        if let Some(pool) = self.pools.get_mut(&no) {
            let reads = matches!(
                request,
                PoolRequest::Describe { .. } | PoolRequest::DescribeJob { .. }
            );
            match pool.phase {
                PoolPhase::Removing if !reads => return Err(JobError::PoolChanging),
                PoolPhase::Draining | PoolPhase::Rotating if !reads => {
                    pool.held_requests.push((from, request));
                    return Ok(());
                }
                _ => {}
            }
        }
        self.touched.insert(no);
        match request {
            PoolRequest::Create { pool, settings } => self.create_pool(now, from, pool, settings),
            PoolRequest::List => {
                let pools = self.pools.values();
                let mut pools: Vec<_> = pools
                    .map(|pool| (Arc::clone(&pool.name), pool.settings.clone()))
                    .collect();
                pools.sort_by(|one, other| one.0.cmp(&other.0));
                self.respond(from, DispatchResponse::Listed(pools));
                Ok(())
            }
            PoolRequest::Change { change, .. } => self.change(now, from, no, change),
            PoolRequest::Describe { pool } => {
                let found = self.pools.get(&no);
                let pool = found.ok_or(JobError::UnknownPool(pool))?;
                let status = pool.status(now);
                self.respond(from, DispatchResponse::Described(status));
                Ok(())
            }
            PoolRequest::DescribeJob { pool, id, token } => {
                let found = self.pools.get(&no);
                let pool = found.ok_or(JobError::UnknownPool(pool))?;
                let job = pool.job(id, now);
                let shown = job.filter(|job| token.is_none_or(|token| token == job.token));
                let job = shown.ok_or(JobError::UnknownJob(id))?;
                self.respond(from, DispatchResponse::Job(job));
                Ok(())
            }
            PoolRequest::RemoveWorker { pool, worker } => {
                let found = self.pools.get_mut(&no);
                let pool = found.ok_or(JobError::UnknownPool(pool))?;
                pool.workers.remove(&worker)?;
                self.respond(from, DispatchResponse::Removed);
                Ok(())
            }
            PoolRequest::Remove { force, .. } => self.remove(from, no, force),
            PoolRequest::Post(post) => self.post(now, from, no, post),
            PoolRequest::Register(registration) => self.register(now, from, no, registration),
            PoolRequest::Report(report) => self.report(now, from, no, report),
            PoolRequest::DeleteStream { pool, stream } => self.delete_public(from, &pool, stream),
        }
    }

    fn number(&self, pool: &str) -> Result<PoolNo, JobError> {
        match self.names.get(pool) {
            Some(no) => Ok(*no),
            None if self.making.contains(pool) => Err(JobError::PoolChanging),
            None => Err(JobError::UnknownPool(pool.into())),
        }
    }

    /// Handles the disconnection of a client.
    pub fn disconnected(&mut self, now: Now, client: DispatchClient) {
        self.remove_waiter(client);
        // Running jobs stay with their workers until the server is back.
        if !self.stopping {
            self.worker_disconnected(now, client);
        }
    }

    /// Handles the end of a client's credentials: what the client waits for ends now. What it has done before goes on.
    pub fn caller_ended(&mut self, now: Now, client: DispatchClient) {
        // The result of a job: the answer is the job's state, as when the time is over.
        if self.waits.contains_key(&client) {
            return self.wait_timed_out(now, client);
        }
        // A job that is on its way to the log: the answer does not wait for its result.
        for op in self.ops.values_mut() {
            if let Op::Post(_, posted) = op
                && posted.from == client
            {
                posted.wait_ms = None;
                return;
            }
        }
        // A request that nothing was done for.
        for pool in self.pools.values_mut() {
            let held = pool.held_requests.len();
            pool.held_requests.retain(|(from, _)| *from != client);
            if pool.held_requests.len() < held {
                return self.respond(client, DispatchResponse::Refused(JobError::CallerEnded));
            }
        }
        // A worker: it gets no job any more, and one that is on its way goes to another worker.
        if let Some((no, slot)) = self.worker_connections.get(&client).copied()
            && !self.stopping
        {
            let link = self.pools.get(&no).map(|pool| pool.workers.link(slot));
            match link {
                Some(WorkerLink::Poll(polls, _)) if polls == client => {
                    self.poll_timed_out(now, no, slot, client);
                }
                _ => {
                    self.worker_disconnected(now, client);
                    self.respond(client, DispatchResponse::NoJob);
                }
            }
        }
    }

    /// Handles the loss of a node of the fleet: its clients are disconnected.
    pub(crate) fn node_gone(&mut self, now: Now, node: u16) {
        let waiting = self.waits.keys().copied();
        let clients = waiting.chain(self.worker_connections.keys().copied());
        let clients: Vec<_> = clients.filter(|client| client.node == node).collect();
        for client in clients {
            self.disconnected(now, client);
        }
    }

    /// Numbers the commands from here on: outcomes of commands of another term have other numbers.
    pub(crate) fn number_from(&mut self, first_op: u64) {
        let ops = std::mem::take(&mut self.ops);
        self.ops = ops
            .into_iter()
            .map(|(op, what)| (first_op + op, what))
            .collect();
        for effect in &mut self.effects {
            if let Effect::Commit { op, .. } = effect {
                *op += first_op;
            }
        }
        self.next_op += first_op;
    }

    /// Handles the content of a job, or the reason why it could not be read.
    pub fn loaded(&mut self, now: Now, pool: u64, id: JobId, payload: Result<Payload, String>) {
        self.touched.insert(pool);
        self.content_loaded(now, pool, id, payload);
    }

    /// Handles all that is due.
    pub fn tick(&mut self, now: Now) {
        while let Some((at, due)) = self.due.first().copied()
            && at <= now.steady
        {
            self.due.pop_first();
            match due {
                JobTimer::Attempt(no, id) => self.attempt_timed_out(now, no, id),
                JobTimer::Retry(no, id) => self.delay_over(now, no, id),
                JobTimer::Poll(no, slot, client) => self.poll_timed_out(now, no, slot, client),
                JobTimer::Away(no, slot) => self.check_away(now, no, slot),
                JobTimer::Wait(client) => self.wait_timed_out(now, client),
                JobTimer::Pause(no) => {
                    self.touched.insert(no);
                }
                JobTimer::Show(no) => self.show(no),
                JobTimer::DeleteStreams => {
                    for stream in std::mem::take(&mut self.undeleted) {
                        self.delete_stream(stream);
                    }
                }
            }
        }
    }

    /// When [`JobMachine::tick`] has work next.
    pub fn next_due(&self) -> Option<SteadyTime> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Dispatches jobs and writes the decisions since the last flush.
    pub fn flush(&mut self, now: Now) {
        if self.steps.has_stepped(now) {
            let with_jobs = self.pools.iter_mut().filter(|(_, pool)| pool.live() > 0);
            for (no, pool) in with_jobs {
                pool.segments.is_stale = true;
                self.touched.insert(*no);
            }
        }
        while let Some(no) = self.touched.pop_first() {
            self.dispatch(now, no);
            self.write_batch(no);
            self.rotate_segments(now, no);
            let at = SteadyTime::from_ms(now.steady.as_ms() / SHOW_MS * SHOW_MS + SHOW_MS);
            if self.pools.contains_key(&no) {
                self.due.insert((at, JobTimer::Show(no)));
            }
        }
        self.published.cached(self.cache.bytes());
    }

    /// Takes the effects, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The server is stopping: answers all clients that wait and stops dispatching. Running attempts can be acknowledged now, or when
    /// the server is back.
    pub fn stop(&mut self, now: Now) {
        self.stopping = true;
        for (client, (no, id, _)) in std::mem::take(&mut self.waits) {
            let response = self.job_now(now, no, id);
            self.respond(client, response);
        }
        for (client, (no, slot)) in std::mem::take(&mut self.worker_connections) {
            let pool = self.pools.get(&no);
            // A worker that already got its job does not wait any more.
            if pool.is_some_and(|pool| pool.workers.link(slot).is_with(client)) {
                self.respond(client, DispatchResponse::Stopping);
            }
        }
        for pool in self.pools.values_mut() {
            let held = std::mem::take(&mut pool.held_requests);
            for (client, _) in held {
                // A relay sends it to the next dispatcher.
                self.effects.push(Effect::Respond {
                    to: client,
                    response: DispatchResponse::Refused(JobError::Stopping),
                });
            }
        }
        self.due.clear();
    }

    pub(crate) fn show(&mut self, no: PoolNo) {
        if let Some(pool) = self.pools.get(&no) {
            pool.published.set(pool.stats(), pool.workers.status());
        }
    }

    pub(crate) fn job_now(&self, now: Now, no: PoolNo, id: JobId) -> DispatchResponse {
        let job = self.pools.get(&no).and_then(|pool| pool.job(id, now));
        match job {
            Some(job) => DispatchResponse::Job(job),
            None => DispatchResponse::Refused(JobError::UnknownJob(id)),
        }
    }

    fn wait_timed_out(&mut self, now: Now, client: DispatchClient) {
        if let Some((no, id)) = self.remove_waiter(client) {
            let response = self.job_now(now, no, id);
            self.respond(client, response);
        }
    }

    /// Removes a client from the waiters of its job. Returns the job.
    fn remove_waiter(&mut self, client: DispatchClient) -> Option<(PoolNo, JobId)> {
        let (no, id, until) = self.waits.remove(&client)?;
        self.due.remove(&(until, JobTimer::Wait(client)));
        if let Some(pool) = self.pools.get_mut(&no)
            && let Some(waiters) = pool.waiters.get_mut(&id)
        {
            waiters.retain(|waiter| *waiter != client);
            if waiters.is_empty() {
                pool.waiters.remove(&id);
            }
        }
        Some((no, id))
    }

    /// Answers the clients that wait for this job.
    pub(crate) fn respond_to_waiters(&mut self, waiters: Vec<DispatchClient>, job: &JobInfo) {
        for client in waiters {
            if let Some((_, _, until)) = self.waits.remove(&client) {
                self.due.remove(&(until, JobTimer::Wait(client)));
                self.respond(client, DispatchResponse::Job(job.clone()));
            }
        }
    }

    pub(crate) fn respond(&mut self, to: DispatchClient, response: DispatchResponse) {
        self.effects.push(Effect::Respond { to, response });
    }

    pub(crate) fn load(&mut self, pool: PoolNo, id: JobId, stream: String) {
        self.published.loaded_one();
        self.effects.push(Effect::Load { pool, id, stream });
    }
}

/// The interval at which a pool's state is published.
const SHOW_MS: u64 = 100;
