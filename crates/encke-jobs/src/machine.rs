//! All pools, and the rules by which their jobs move.
//!
//! The rules themselves are beside: `make.rs` makes and removes pools, `post.rs` takes jobs, `work.rs`
//! hands them out, `end.rs` ends attempts, `turn.rs` writes down what was decided, `op.rs` takes it to the log.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use encke_stream::Command;

use crate::ask::{Ask, Client, JobError, JobId, JobInfo, Payload, Told};
use crate::cache::Cache;
use crate::figures::Board;
use crate::op::Op;
use crate::settings::Limits;
use crate::shop::{Phase, Shop};

/// A pool's number: the sequence of the record that announced it.
pub(crate) type PoolNo = u64;

/// The pools: what is asked, what the log took and the time in; commands for the log, jobs to read
/// and words for clients out.
///
/// What is asked is decided at once and written down with [`Machine::flush`]; it holds, and is told,
/// when [`Machine::committed`] says that it is in the log.
#[derive(Debug)]
pub struct Machine {
    pub(crate) limits: Limits,
    pub(crate) board: Arc<Board>,
    pub(crate) pools: HashMap<PoolNo, Shop>,
    pub(crate) names: HashMap<Box<str>, PoolNo>,
    /// Names of pools that are being made.
    pub(crate) making: HashSet<Box<str>>,
    /// The stream of pools is there.
    pub(crate) registered: bool,
    /// What is on its way to the log, by the numbers that commands have.
    pub(crate) ops: HashMap<u64, Op>,
    pub(crate) next_op: u64,
    /// Workers' connections: their pool and slot.
    pub(crate) seats: HashMap<Client, (PoolNo, u32)>,
    /// Clients that wait for a job to be over, and when they will have waited long enough.
    pub(crate) waits: HashMap<Client, (PoolNo, JobId, u64)>,
    pub(crate) due: BTreeSet<(u64, Due)>,
    /// Pools that something happened to since the last flush.
    pub(crate) touched: BTreeSet<PoolNo>,
    /// Content of jobs that wait or run.
    pub(crate) cache: Cache,
    pub(crate) effects: Vec<Effect>,
    /// Chapters that nobody needs and that could not be deleted yet.
    pub(crate) forgotten: Vec<String>,
    pub(crate) stopping: bool,
}

/// Something to be done for the machine.
#[derive(Debug)]
pub enum Effect {
    /// Commit this, then say what became of it by that number, in the order of the commits.
    Commit {
        /// The number.
        op: u64,
        /// The command.
        command: Command,
    },
    /// Read a job's record, then say what it is.
    Load {
        /// The pool's number.
        pool: u64,
        /// The job: the record's sequence.
        id: JobId,
        /// The name of the stream that holds it.
        stream: String,
    },
    /// Tell a client.
    Tell {
        /// Whom.
        to: Client,
        /// What.
        told: Told,
    },
}

/// What comes due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// An attempt.
    Attempt(PoolNo, JobId),
    /// A worker's poll.
    Poll(PoolNo, u32, Client),
    /// A worker that has not asked again.
    Away(PoolNo, u32),
    /// A client that waits for a result.
    Wait(Client),
    /// A pool that was paused.
    Pause(PoolNo),
    /// A pool's figures.
    Show(PoolNo),
    /// Chapters that could not be deleted.
    Forget,
}

impl Machine {
    /// No pools.
    pub fn new(limits: Limits, board: Arc<Board>) -> Self {
        Machine {
            limits,
            board,
            pools: HashMap::new(),
            names: HashMap::new(),
            making: HashSet::new(),
            registered: false,
            ops: HashMap::new(),
            next_op: 0,
            seats: HashMap::new(),
            waits: HashMap::new(),
            due: BTreeSet::new(),
            touched: BTreeSet::new(),
            cache: Cache::default(),
            effects: Vec::new(),
            forgotten: Vec::new(),
            stopping: false,
        }
    }

    /// Somebody asks for something.
    pub fn ask(&mut self, now_ms: u64, from: Client, ask: Ask) {
        if let Err(error) = self.try_ask(now_ms, from, ask) {
            self.tell(from, Told::No(error));
        }
    }

    fn try_ask(&mut self, now_ms: u64, from: Client, ask: Ask) -> Result<(), JobError> {
        let no = match &ask {
            Ask::Make { .. } | Ask::List => 0,
            Ask::Show { pool } | Ask::Remove { pool, .. } | Ask::Dismiss { pool, .. } => {
                self.number(pool)?
            }
            Ask::Post(post) => self.number(&post.pool)?,
            Ask::Find { pool, .. } => self.number(pool)?,
            Ask::Work(work) => self.number(&work.pool)?,
            Ask::End(end) => self.number(&end.pool)?,
        };
        if let Some(shop) = self.pools.get_mut(&no) {
            let reads = matches!(ask, Ask::Show { .. } | Ask::Find { .. });
            match shop.phase {
                Phase::Removing if !reads => return Err(JobError::Changing),
                Phase::Quiet | Phase::Turning if !reads => {
                    shop.held.push((from, ask));
                    return Ok(());
                }
                _ => {}
            }
        }
        self.touched.insert(no);
        match ask {
            Ask::Make { pool, settings } => self.make(from, pool, settings),
            Ask::List => {
                let pools = self.pools.values();
                let mut pools: Vec<_> = pools
                    .map(|shop| (Arc::clone(&shop.name), shop.settings.clone()))
                    .collect();
                pools.sort_by(|one, other| one.0.cmp(&other.0));
                self.tell(from, Told::Listed(pools));
                Ok(())
            }
            Ask::Show { pool } => {
                let shop = self.pools.get(&no);
                let shop = shop.ok_or(JobError::UnknownPool(pool))?;
                let info = shop.info();
                self.tell(from, Told::Shown(info));
                Ok(())
            }
            Ask::Find { pool, id } => {
                let shop = self.pools.get(&no);
                let shop = shop.ok_or(JobError::UnknownPool(pool))?;
                let job = shop.job(id).ok_or(JobError::UnknownJob(id))?;
                self.tell(from, Told::Job(job));
                Ok(())
            }
            Ask::Dismiss { pool, worker } => {
                let shop = self.pools.get_mut(&no);
                let shop = shop.ok_or(JobError::UnknownPool(pool))?;
                shop.crew.dismiss(&worker)?;
                self.tell(from, Told::Removed);
                Ok(())
            }
            Ask::Remove { force, .. } => self.remove(from, no, force),
            Ask::Post(post) => self.post(now_ms, from, no, post),
            Ask::Work(work) => self.work(now_ms, from, no, work),
            Ask::End(end) => self.end(now_ms, from, no, end),
        }
    }

    fn number(&self, pool: &str) -> Result<PoolNo, JobError> {
        match self.names.get(pool) {
            Some(no) => Ok(*no),
            None if self.making.contains(pool) => Err(JobError::Changing),
            None => Err(JobError::UnknownPool(pool.into())),
        }
    }

    /// A client has hung up, or was gone when it was told something.
    pub fn gone(&mut self, now_ms: u64, client: Client) {
        self.wait_no_more(client);
        // What workers have is theirs until the server is back.
        if !self.stopping {
            self.worker_gone(now_ms, client);
        }
    }

    /// A job's content was read, or why it could not be.
    pub fn loaded(&mut self, now_ms: u64, pool: u64, id: JobId, payload: Result<Payload, String>) {
        self.touched.insert(pool);
        self.content(now_ms, pool, id, payload);
    }

    /// Does what has come due.
    pub fn tick(&mut self, now_ms: u64) {
        while let Some((at_ms, due)) = self.due.first().copied()
            && at_ms <= now_ms
        {
            self.due.pop_first();
            match due {
                Due::Attempt(no, id) => self.overdue(now_ms, no, id),
                Due::Poll(no, slot, client) => self.poll_over(now_ms, no, slot, client),
                Due::Away(no, slot) => self.away(now_ms, no, slot),
                Due::Wait(client) => self.wait_over(client),
                Due::Pause(no) => {
                    self.touched.insert(no);
                }
                Due::Show(no) => self.show(no),
                Due::Forget => {
                    for stream in std::mem::take(&mut self.forgotten) {
                        self.forget(stream);
                    }
                }
            }
        }
    }

    /// When [`Machine::tick`] has something to do next, in milliseconds since 1970.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _)| *at_ms)
    }

    /// Hands out what can be, and writes down what was decided since the last time.
    pub fn flush(&mut self, now_ms: u64) {
        while let Some(no) = self.touched.pop_first() {
            self.dispatch(now_ms, no);
            self.write_turn(no);
            self.mind_chapters(no);
            let at_ms = now_ms / SHOW_MS * SHOW_MS + SHOW_MS;
            if self.pools.contains_key(&no) {
                self.due.insert((at_ms, Due::Show(no)));
            }
        }
        self.board.cached(self.cache.bytes());
    }

    /// What is to be done, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The server is going away: whoever waits is told, and nothing more is handed out. Attempts that
    /// are under way can be acknowledged now, or when the server is back.
    pub fn stop(&mut self) {
        self.stopping = true;
        for (client, (no, id, _)) in std::mem::take(&mut self.waits) {
            let told = self.job_now(no, id);
            self.tell(client, told);
        }
        for (client, (no, slot)) in std::mem::take(&mut self.seats) {
            let shop = self.pools.get(&no);
            // Not those who have got the job that they waited for.
            if shop.is_some_and(|shop| shop.crew.link(slot).is_with(client)) {
                self.tell(client, Told::Stopping);
            }
        }
        for shop in self.pools.values_mut() {
            let held = std::mem::take(&mut shop.held);
            for (client, _) in held {
                self.effects.push(Effect::Tell {
                    to: client,
                    told: Told::Stopping,
                });
            }
        }
        self.due.clear();
    }

    pub(crate) fn show(&mut self, no: PoolNo) {
        if let Some(shop) = self.pools.get(&no) {
            shop.shown.set(shop.figures(), shop.crew.info());
        }
    }

    pub(crate) fn job_now(&self, no: PoolNo, id: JobId) -> Told {
        let job = self.pools.get(&no).and_then(|shop| shop.job(id));
        match job {
            Some(job) => Told::Job(job),
            None => Told::No(JobError::UnknownJob(id)),
        }
    }

    fn wait_over(&mut self, client: Client) {
        if let Some((no, id)) = self.wait_no_more(client) {
            let told = self.job_now(no, id);
            self.tell(client, told);
        }
    }

    /// A client waits for its job no longer. Returns the job, if there was one.
    fn wait_no_more(&mut self, client: Client) -> Option<(PoolNo, JobId)> {
        let (no, id, until_ms) = self.waits.remove(&client)?;
        self.due.remove(&(until_ms, Due::Wait(client)));
        if let Some(shop) = self.pools.get_mut(&no)
            && let Some(waiters) = shop.waiters.get_mut(&id)
        {
            waiters.retain(|waiter| *waiter != client);
            if waiters.is_empty() {
                shop.waiters.remove(&id);
            }
        }
        Some((no, id))
    }

    /// A job is over: whoever waits for it is told.
    pub(crate) fn tell_waiters(&mut self, waiters: Vec<Client>, job: &JobInfo) {
        for client in waiters {
            if let Some((_, _, until_ms)) = self.waits.remove(&client) {
                self.due.remove(&(until_ms, Due::Wait(client)));
                self.tell(client, Told::Job(job.clone()));
            }
        }
    }

    pub(crate) fn tell(&mut self, to: Client, told: Told) {
        self.effects.push(Effect::Tell { to, told });
    }

    pub(crate) fn load(&mut self, pool: PoolNo, id: JobId, stream: String) {
        self.board.loaded_one();
        self.effects.push(Effect::Load { pool, id, stream });
    }
}

/// Figures are shown so often.
const SHOW_MS: u64 = 100;
