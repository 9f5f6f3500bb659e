//! One pool: its jobs, its workers, and its decisions on their way to the log.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_pool::Picked;
use encke_stream::Data;

use crate::delayed::DelayedJobs;
use crate::json;
use crate::queue::JobQueues;
use crate::record::{CarriedJobs, JobCounts, JournalEntry, LeasedJob, PoolSnapshot, WaitingJob};
use crate::request::{DispatchClient, JobId, Payload, PoolRequest};
use crate::response::{JobInfo, JobState, PoolStats, PoolStatus};
use crate::settings::{PoolLimits, PoolSettings};
use crate::stats::PublishedPool;
use crate::streams::PublicStream;
use crate::token::PoolKey;
use crate::workers::Workers;

/// A pool.
#[derive(Debug)]
pub(crate) struct PoolState {
    pub(crate) name: Arc<str>,
    pub(crate) key: PoolKey,
    /// The journal holds the key. Journals of earlier versions have none.
    pub(crate) key_is_stored: bool,
    /// The log has refused results or dead letters because their stream is closed.
    pub(crate) has_closed_stream: bool,
    pub(crate) settings: PoolSettings,
    pub(crate) queues: JobQueues,
    /// Waiting jobs that may not be dispatched yet.
    pub(crate) delayed: DelayedJobs,
    pub(crate) running: HashMap<JobId, RunningJob>,
    pub(crate) finished: FinishedJobs,
    pub(crate) counts: JobCounts,
    pub(crate) workers: Workers,
    /// The worker that failed last at a job, for unfinished jobs.
    pub(crate) avoid: HashMap<JobId, u32>,
    /// The clients that wait for the end of a job.
    pub(crate) waiters: HashMap<JobId, Vec<DispatchClient>>,
    pub(crate) segments: JournalSegments,
    pub(crate) draft: BatchDraft,
    /// Records of the journal on their way to the log, and the jobs among them.
    pub(crate) pending_records: usize,
    pub(crate) pending_posts: usize,
    pub(crate) phase: PoolPhase,
    /// Requests that came while the pool may not change.
    pub(crate) held_requests: Vec<(DispatchClient, PoolRequest)>,
    /// No job is dispatched before this time, because the log refused.
    pub(crate) pause_until: SteadyTime,
    pub(crate) published: Arc<PublishedPool>,
}

/// Whether a pool may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolPhase {
    Open,
    /// A new segment begins when all records on their way are in the log.
    Draining,
    /// The new segment is on its way.
    Rotating,
    Removing,
}

/// A job that a worker has or is about to get.
#[derive(Debug)]
pub(crate) struct RunningJob {
    /// Its attempts include this one.
    pub(crate) job: WaitingJob,
    pub(crate) worker: Arc<str>,
    /// The worker's connection; None once it is closed, or after a restart.
    pub(crate) connection: Option<DispatchClient>,
    /// The job's place at its worker, as long as the job occupies it.
    pub(crate) place: Option<Picked<u32>>,
    pub(crate) deadline: SteadyTime,
    pub(crate) stage: AttemptStage,
    /// The content, until it is sent.
    pub(crate) payload: Option<Payload>,
}

/// The progress of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptStage {
    /// The lease is on its way to the log.
    Leasing,
    /// The same, and the content cannot be read.
    Unreadable,
    /// The lease is in the log; the content is being read.
    Loading,
    /// The worker has the job.
    Running,
    /// The end is on its way to the log.
    Ending,
    /// The last attempt has failed; the content is being read for the dead letter.
    Dying {
        reason: Box<str>,
        client: Option<DispatchClient>,
    },
}

/// Decisions since the last record.
#[derive(Debug, Default)]
pub(crate) struct BatchDraft {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) events: Messages,
}

/// An entry, and what follows when it is in the log.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) entry: JournalEntry,
    /// The time in the entry by the steady clock: when an extended attempt times out, or a delay is over.
    pub(crate) until: Option<SteadyTime>,
    /// The client that gets a response.
    pub(crate) client: Option<DispatchClient>,
    /// The result of the job.
    pub(crate) result: Option<Payload>,
    /// What a public stream gets before the journal says that the job has ended.
    pub(crate) message: Option<(PublicStream, Vec<u8>)>,
}

/// Messages for a stream, in few records.
#[derive(Debug, Default)]
pub(crate) struct Messages(pub(crate) Vec<Data>);

impl Messages {
    pub(crate) fn push(&mut self, message: &[u8]) {
        match self.0.last_mut() {
            Some(last) if last.bytes.len() + message.len() < MESSAGES_BYTES => {
                last.bytes.push(b',');
                last.bytes.extend_from_slice(message);
                last.units += 1;
            }
            _ => self.0.push(Data {
                bytes: message.to_vec(),
                units: 1,
            }),
        }
    }
}

/// The maximum of bytes in a record of several messages, so that it fits into the smallest segment.
pub(crate) const MESSAGES_BYTES: usize = 256 << 10;

/// The most recently finished jobs.
#[derive(Debug, Default)]
pub(crate) struct FinishedJobs {
    jobs: HashMap<JobId, FinishedJob>,
    order: VecDeque<JobId>,
    /// The jobs whose results are in memory.
    kept: VecDeque<JobId>,
    bytes: usize,
}

/// A finished job.
#[derive(Clone, Debug)]
pub(crate) struct FinishedJob {
    pub(crate) attempt: u16,
    pub(crate) dead: bool,
    /// Of a dead job, why its last attempt failed.
    pub(crate) result: Option<Payload>,
}

impl FinishedJob {
    pub(crate) fn state(&self) -> JobState {
        let result = self.result.clone();
        match self.dead {
            true => JobState::Dead {
                reason: result.map(|reason| String::from_utf8_lossy(&reason.body).into()),
            },
            false => JobState::Done { result },
        }
    }
}

impl FinishedJobs {
    pub(crate) fn add(&mut self, id: JobId, ended: FinishedJob, limits: &PoolLimits) {
        if let Some(result) = &ended.result {
            self.bytes += result.body.len();
            self.kept.push_back(id);
        }
        self.jobs.insert(id, ended);
        self.order.push_back(id);
        while self.order.len() > limits.finished_max
            && let Some(oldest) = self.order.pop_front()
        {
            let ended = self.jobs.remove(&oldest);
            if let Some(result) = ended.and_then(|ended| ended.result) {
                self.bytes -= result.body.len();
            }
        }
        while self.bytes > limits.finished_bytes
            && let Some(oldest) = self.kept.pop_front()
        {
            let ended = self.jobs.get_mut(&oldest);
            if let Some(result) = ended.and_then(|ended| ended.result.take()) {
                self.bytes -= result.body.len();
            }
        }
        if self.kept.len() > 2 * limits.finished_max {
            self.kept.retain(|id| self.jobs.contains_key(id));
        }
    }

    pub(crate) fn find(&self, id: JobId) -> Option<&FinishedJob> {
        self.jobs.get(&id)
    }

    fn list(&self) -> Vec<(JobId, u16, bool)> {
        let jobs = self.order.iter();
        jobs.filter_map(|id| {
            let ended = self.jobs.get(id)?;
            Some((*id, ended.attempt, ended.dead))
        })
        .collect()
    }
}

/// The segments of a pool's journal. The last one grows.
#[derive(Debug)]
pub(crate) struct JournalSegments {
    /// Number, first record, and unfinished jobs in it.
    list: Vec<(u32, u64, usize)>,
    /// The number of the next segment.
    pub(crate) next: u32,
    /// Records in the last segment.
    pub(crate) records: u64,
    /// The time of day was set since the last segment began, so that its deadlines lie elsewhere now.
    pub(crate) is_stale: bool,
}

impl JournalSegments {
    /// These segments, in order, without jobs.
    pub(crate) fn new(segments: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let list: Vec<_> = segments
            .into_iter()
            .map(|(number, first)| (number, first, 0))
            .collect();
        let next = list.last().map_or(1, |(number, _, _)| number + 1);
        JournalSegments {
            list,
            next,
            records: 0,
            is_stale: false,
        }
    }

    pub(crate) fn last(&self) -> u32 {
        self.list.last().map_or(0, |(number, _, _)| *number)
    }

    pub(crate) fn begin(&mut self, number: u32, first: u64) {
        self.list.push((number, first, 0));
        self.records = 0;
        self.is_stale = false;
    }

    fn at(&self, id: JobId) -> usize {
        let behind = self.list.partition_point(|(_, first, _)| *first <= id);
        behind.saturating_sub(1)
    }

    /// The segment that holds a job.
    pub(crate) fn of(&self, id: JobId) -> u32 {
        self.list.get(self.at(id)).map_or(0, |segment| segment.0)
    }

    pub(crate) fn add(&mut self, id: JobId) {
        let at = self.at(id);
        if let Some((_, _, jobs)) = self.list.get_mut(at) {
            *jobs += 1;
        }
    }

    /// A job is finished.
    pub(crate) fn remove(&mut self, id: JobId) {
        let at = self.at(id);
        if let Some((_, _, jobs)) = self.list.get_mut(at) {
            *jobs -= 1;
        }
    }

    /// Removes and returns all segments but the last that hold no unfinished jobs.
    pub(crate) fn done(&mut self) -> Vec<u32> {
        let last = self.last();
        let (done, left) = std::mem::take(&mut self.list)
            .into_iter()
            .partition(|(number, _, jobs)| *jobs == 0 && *number != last);
        self.list = left;
        let done: Vec<(u32, u64, usize)> = done;
        done.into_iter().map(|(number, _, _)| number).collect()
    }

    pub(crate) fn all(&self) -> Vec<(u32, u64)> {
        let segments = self.list.iter();
        segments
            .map(|(number, first, _)| (*number, *first))
            .collect()
    }
}

impl PoolState {
    /// A pool without jobs.
    pub(crate) fn new(
        name: &str,
        settings: PoolSettings,
        limits: &PoolLimits,
        segments: JournalSegments,
        key: PoolKey,
        published: Arc<PublishedPool>,
    ) -> Self {
        PoolState {
            name: name.into(),
            key,
            key_is_stored: true,
            has_closed_stream: false,
            queues: JobQueues::new(settings.strategy),
            delayed: DelayedJobs::default(),
            running: HashMap::new(),
            finished: FinishedJobs::default(),
            counts: JobCounts::default(),
            workers: Workers::new(&settings, limits.worker_bytes_max),
            avoid: HashMap::new(),
            waiters: HashMap::new(),
            segments,
            draft: BatchDraft::default(),
            pending_records: 0,
            pending_posts: 0,
            phase: PoolPhase::Open,
            held_requests: Vec::new(),
            pause_until: SteadyTime::default(),
            published,
            settings,
        }
    }

    /// Releases the place of a job at its worker. Returns the worker's slot. None: the job has no place.
    pub(crate) fn release(&mut self, id: JobId, done: bool) -> Option<u32> {
        let running = self.running.get_mut(&id)?;
        let place = running.place.take()?;
        self.queues.ended(running.job.selector);
        let slot = *place;
        drop(place);
        self.workers.take(slot, done);
        Some(slot)
    }

    /// The number of unfinished jobs.
    pub(crate) fn live(&self) -> usize {
        self.waiting_len() + self.running.len()
    }

    /// The number of waiting jobs.
    pub(crate) fn waiting_len(&self) -> usize {
        self.queues.len() + self.delayed.len()
    }

    /// The waiting jobs, in no order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &WaitingJob> {
        self.queues.iter().chain(self.delayed.jobs())
    }

    /// The whole state but the content of jobs. No record may be on its way to the log.
    pub(crate) fn snapshot(&self, now: Now) -> PoolSnapshot {
        let waiting = self.waiting();
        let mut waiting: Vec<_> = waiting.map(|job| job.stored(now)).collect();
        waiting.sort_unstable_by_key(|job| job.id);
        let mut running: Vec<LeasedJob> = self
            .running
            .values()
            .map(|running| LeasedJob {
                job: running.job.stored(now),
                worker: (*running.worker).into(),
                deadline: now.wall_at(running.deadline),
            })
            .collect();
        running.sort_unstable_by_key(|held| held.job.id);
        PoolSnapshot {
            settings: serde_json::to_string(&self.settings).unwrap_or_default(),
            counts: self.counts,
            segments: self.segments.all(),
            jobs: CarriedJobs {
                waiting,
                running,
                finished: self.finished.list(),
            },
        }
    }

    /// The state of a job.
    pub(crate) fn job(&self, id: JobId, now: Now) -> Option<JobInfo> {
        let token = self.key.of_job(id);
        if let Some(running) = self.running.get(&id) {
            // Before the lease is in the log the job counts as waiting.
            let (state, attempts) = match running.stage {
                AttemptStage::Leasing | AttemptStage::Unreadable => (
                    JobState::Waiting { not_before: None },
                    running.job.attempts - 1,
                ),
                _ => (
                    JobState::Running {
                        worker: Arc::clone(&running.worker),
                        deadline: now.wall_at(running.deadline),
                    },
                    running.job.attempts,
                ),
            };
            return Some(JobInfo {
                id,
                state,
                attempts,
                token,
            });
        }
        if let Some(ended) = self.finished.find(id) {
            return Some(JobInfo {
                id,
                state: ended.state(),
                attempts: ended.attempt,
                token,
            });
        }
        let delayed = self.delayed.find(id);
        let not_before = delayed.map(|(_, until)| now.wall_at(until));
        let waiting = delayed
            .map(|(job, _)| job)
            .or_else(|| self.queues.find(id))?;
        Some(JobInfo {
            id,
            state: JobState::Waiting { not_before },
            attempts: waiting.attempts,
            token,
        })
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let running = self.running.values().map(|running| running.job.posted);
        let delayed = self.delayed.jobs().map(|job| job.posted);
        let unfinished = self.queues.oldest().into_iter().chain(running);
        let oldest = unfinished.chain(delayed).min();
        PoolStats {
            waiting: self.waiting_len() as u64,
            running: self.running.len() as u64,
            done: self.counts.done,
            retried: self.counts.retried,
            dead: self.counts.dead,
            oldest_posted: oldest.unwrap_or_default(),
            connected: self.workers.connected() as u64,
        }
    }

    pub(crate) fn status(&self, now: Now) -> Box<PoolStatus> {
        let stats = self.stats();
        Box::new(PoolStatus {
            name: Arc::clone(&self.name),
            settings: self.settings.clone(),
            stats,
            oldest_age_s: stats.oldest_age_s(now.steady),
            workers: self.workers.status(),
        })
    }

    /// The clients that wait for the end of a job.
    pub(crate) fn clients(&self) -> BTreeSet<DispatchClient> {
        self.waiters.values().flatten().copied().collect()
    }

    /// Adds an event about a job.
    pub(crate) fn job_event(&mut self, what: &str, id: JobId, more: &[EventField<'_>], now: Now) {
        if self.settings.events {
            let mut message = format!("{{\"event\":\"{what}\",\"job\":{id}").into_bytes();
            members(more, now.wall, &mut message);
            self.draft.events.push(&message);
        }
    }

    /// Adds an event about a worker.
    pub(crate) fn worker_event(&mut self, what: &str, slot: u32, now: Now) {
        if self.settings.events
            && let Some(name) = self.workers.name(slot)
        {
            let mut message = format!("{{\"event\":\"{what}\",\"slot\":{slot}").into_bytes();
            let worker = [EventField::Text("worker", &name)];
            members(&worker, now.wall, &mut message);
            self.draft.events.push(&message);
        }
    }
}

/// A member of an event's JSON object.
pub(crate) enum EventField<'a> {
    Text(&'static str, &'a str),
    Number(&'static str, u64),
}

fn members(members: &[EventField<'_>], time: WallTime, out: &mut Vec<u8>) {
    for member in members {
        let (EventField::Text(name, _) | EventField::Number(name, _)) = member;
        out.push(b',');
        json::string(name, out);
        out.push(b':');
        match member {
            EventField::Text(_, text) => json::string(text, out),
            EventField::Number(_, number) => out.extend_from_slice(number.to_string().as_bytes()),
        }
    }
    out.extend_from_slice(format!(",\"time_ms\":{}}}", time.as_ms()).as_bytes());
}
