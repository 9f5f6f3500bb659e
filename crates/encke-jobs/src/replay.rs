//! Recovery of the pools from their streams at the start of the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, WallSeconds, WallTime};
use encke_stream::{Fetch, Offset, Piece, Stream, each_record};
use encke_subscriptions::KeySeed;

use crate::machine::{JobMachine, JobTimer};
use crate::op::PoolNo;
use crate::pool_state::{
    AttemptStage, FinishedJob, FinishedJobs, JournalSegments, PoolState, RunningJob,
};
use crate::record::{
    BadJournalRecord, CarriedJobs, JobCounts, JournalEntry, JournalRecord, PoolSnapshot, REGISTRY,
    RegistryRecord, WaitingJob, segment_name,
};
use crate::request::JobId;
use crate::settings::{PoolLimits, PoolSettings};
use crate::stats::PublishedStats;
use crate::streams::StreamOwners;
use crate::token::PoolKey;

/// Why the pools could not be recovered.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A stream could not be read.
    #[error("cannot read the stream {stream:?} of the pools: {reason}")]
    Unreadable {
        /// The stream.
        stream: String,
        /// The reason.
        reason: String,
    },
    /// A record that this version does not write.
    #[error("record {sequence} of the stream {stream:?} of the pools: {source}")]
    Record {
        /// The stream.
        stream: String,
        /// The record's sequence.
        sequence: u64,
        /// The reason.
        source: BadJournalRecord,
    },
    /// A segment that the registry names does not exist.
    #[error("missing stream {stream:?}, the current segment of a pool's journal")]
    Missing {
        /// The stream.
        stream: String,
    },
}

/// Reads a part of a stream.
pub type ReadStream<'a> = &'a dyn Fn(&Fetch) -> Result<Piece, String>;

/// Finds a stream by its name.
pub type FindStream<'a> = &'a dyn Fn(&str) -> Result<Option<Arc<Stream>>, String>;

type FindForReplay<'a> = &'a dyn Fn(&str) -> Result<Option<Arc<Stream>>, ReplayError>;
type OnRecord<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), BadJournalRecord>;

impl JobMachine {
    /// Recovers the pools as of their last record.
    ///
    /// # Errors
    /// A stream could not be read or decoded.
    pub fn replay(
        limits: PoolLimits,
        published: Arc<PublishedStats>,
        seed: KeySeed,
        find: FindStream<'_>,
        read: ReadStream<'_>,
        now: Now,
    ) -> Result<JobMachine, ReplayError> {
        let mut machine = JobMachine::new(limits, published, seed);
        let find = &seek(find);
        let Some(registry) = Registry::read(find, read)? else {
            return Ok(machine);
        };
        machine.registered = true;
        machine.owners = registry.owners;
        for (no, (name, segment)) in registry.gone {
            // A crash may have come before their deletion.
            for segment in segment.saturating_sub(SEGMENTS_NEAR)..=segment {
                if find(&segment_name(&name, no, segment))?.is_some() {
                    machine.delete_segment(&name, no, segment);
                }
            }
        }
        for (no, (name, segment)) in registry.pools {
            // The creation of an incomplete pool was never acknowledged.
            if segment > 0 {
                machine.bring_back(find, read, now, no, &name, segment)?;
            }
        }
        Ok(machine)
    }

    fn bring_back(
        &mut self,
        find: FindForReplay<'_>,
        read: ReadStream<'_>,
        now: Now,
        no: PoolNo,
        name: &str,
        segment: u32,
    ) -> Result<(), ReplayError> {
        let stream_name = segment_name(name, no, segment);
        let stream = find(&stream_name)?.ok_or(ReplayError::Missing {
            stream: stream_name,
        })?;
        let mut replay = Replay::new(segment, self.limits.clone());
        each(&stream, read, &mut |sequence, bytes| {
            replay.record(sequence, bytes)
        })?;
        let Some(settings) = replay.settings.take() else {
            // The server serves all other pools and streams.
            tracing::error!(
                pool = name,
                "skipped a pool: retention of an earlier version has removed the first record of its journal"
            );
            return Ok(());
        };
        let published = self.published.add(name);
        let segments = JournalSegments::new(replay.segments.iter().copied());
        // A journal of an earlier version gets a key with its next segment, which begins at once.
        let key_is_stored = replay.key.is_some();
        let key = replay.key.unwrap_or_else(|| PoolKey::new(&self.seed, no));
        let mut pool = PoolState::new(name, settings, &self.limits, segments, key, published);
        pool.key_is_stored = key_is_stored;
        pool.counts = replay.counts;
        pool.finished = replay.finished;
        pool.segments.records = replay.records;
        let ack = Duration::from_millis(pool.settings.ack_ms);
        let grace = now.steady.after(GRACE.min(ack));
        for (id, (job, held)) in replay.jobs {
            let job = job.restored(now);
            pool.segments.add(id);
            let Some((worker, deadline)) = held else {
                match replay.delays.get(&id) {
                    Some(until) if *until > now.wall => {
                        let until = now.steady_at(*until);
                        pool.delayed.add(job, until);
                        self.due.insert((until, JobTimer::Retry(no, id)));
                    }
                    _ => pool.queues.push(job),
                }
                continue;
            };
            // Workers could not acknowledge while the server was down.
            let deadline = now.steady_at(deadline).max(grace);
            self.due.insert((deadline, JobTimer::Attempt(no, id)));
            let running = RunningJob {
                job,
                worker,
                connection: None,
                place: None,
                deadline,
                stage: AttemptStage::Running,
                payload: None,
            };
            pool.running.insert(id, running);
        }
        // Segments without unfinished jobs, and incomplete ones.
        let needed = pool.segments.all();
        let mut taken = Vec::new();
        for other in segment.saturating_sub(SEGMENTS_NEAR)..segment + SEGMENTS_NEAR {
            if find(&segment_name(name, no, other))?.is_none() {
                continue;
            }
            taken.push(other);
            if !needed.iter().any(|(number, _)| *number == other) {
                self.delete_segment(name, no, other);
            }
        }
        // The nearest free number, so that the search above finds what repeated crashes leave behind.
        while taken.contains(&pool.segments.next) {
            pool.segments.next += 1;
        }
        self.names.insert(name.into(), no);
        self.pools.insert(no, pool);
        self.touched.insert(no);
        self.show(no);
        Ok(())
    }
}

/// Existing and removed pools: their names and last segments.
#[derive(Default)]
struct Registry {
    owners: StreamOwners,
    pools: BTreeMap<PoolNo, (String, u32)>,
    gone: Vec<(PoolNo, (String, u32))>,
}

impl Registry {
    fn read(
        find: FindForReplay<'_>,
        read: ReadStream<'_>,
    ) -> Result<Option<Registry>, ReplayError> {
        let Some(stream) = find(REGISTRY)? else {
            return Ok(None);
        };
        let mut registry = Registry::default();
        each(&stream, read, &mut |sequence, bytes| {
            registry.add(sequence, bytes)
        })?;
        Ok(Some(registry))
    }

    fn add(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), BadJournalRecord> {
        match RegistryRecord::decode(bytes)? {
            RegistryRecord::Made { name } => {
                self.owners.announced(name, sequence);
                self.pools.insert(sequence, (name.to_owned(), 0));
            }
            RegistryRecord::Segment { no, segment } => {
                if let Some(pool) = self.pools.get_mut(&no) {
                    self.owners.opened(&pool.0);
                    pool.1 = segment;
                }
            }
            RegistryRecord::Gone { no } => {
                let gone = self.pools.remove(&no).map(|pool| (no, pool));
                self.gone.extend(gone);
            }
        }
        Ok(())
    }
}

fn seek(find: FindStream<'_>) -> impl Fn(&str) -> Result<Option<Arc<Stream>>, ReplayError> {
    move |name| {
        find(name).map_err(|reason| ReplayError::Unreadable {
            stream: name.to_owned(),
            reason,
        })
    }
}

type Lease = (Arc<str>, WallTime);

/// The state of a pool while its records are replayed.
struct Replay {
    segment: u32,
    limits: PoolLimits,
    settings: Option<PoolSettings>,
    key: Option<PoolKey>,
    counts: JobCounts,
    segments: Vec<(u32, u64)>,
    finished: FinishedJobs,
    /// Unfinished jobs, and their workers and deadlines.
    jobs: BTreeMap<JobId, (WaitingJob<WallSeconds>, Option<Lease>)>,
    records: u64,
    /// Waiting jobs that may not be dispatched before this time.
    delays: BTreeMap<JobId, WallTime>,
}

impl Replay {
    fn new(segment: u32, limits: PoolLimits) -> Self {
        Replay {
            segment,
            limits,
            settings: None,
            key: None,
            counts: JobCounts::default(),
            segments: Vec::new(),
            finished: FinishedJobs::default(),
            jobs: BTreeMap::new(),
            delays: BTreeMap::new(),
            records: 0,
        }
    }

    fn record(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), BadJournalRecord> {
        let (record, content) = JournalRecord::decode(bytes)?;
        self.records += 1;
        match record {
            JournalRecord::Begin(snapshot) => self.begin(sequence, snapshot)?,
            JournalRecord::Start(snapshot, key) => {
                self.begin(sequence, snapshot)?;
                self.key = Some(key);
            }
            JournalRecord::More(jobs) => {
                self.records = 0;
                self.add(jobs);
            }
            JournalRecord::Post {
                selector, posted, ..
            } => {
                let job = WaitingJob {
                    id: sequence,
                    selector,
                    posted,
                    bytes: content.len() as u32,
                    attempts: 0,
                };
                self.jobs.insert(sequence, (job, None));
            }
            JournalRecord::Changed(text) => {
                let change = serde_json::from_str(text).map_err(|_| BadJournalRecord)?;
                self.settings = self.settings.as_ref().map(|has| has.changed(&change));
            }
            JournalRecord::Batch(entries) => {
                entries.into_iter().for_each(|entry| self.entry(entry));
            }
        }
        Ok(())
    }

    fn begin(&mut self, sequence: u64, snapshot: PoolSnapshot) -> Result<(), BadJournalRecord> {
        self.records = 0;
        let settings = serde_json::from_str(&snapshot.settings);
        self.settings = Some(settings.map_err(|_| BadJournalRecord)?);
        self.counts = snapshot.counts;
        self.segments = snapshot.segments;
        self.segments.push((self.segment, sequence));
        self.add(snapshot.jobs);
        Ok(())
    }

    /// Adds the jobs that earlier segments left.
    fn add(&mut self, jobs: CarriedJobs) {
        for job in jobs.waiting {
            self.jobs.insert(job.id, (job, None));
        }
        for held in jobs.running {
            let lease = (held.worker.into(), held.deadline);
            self.jobs.insert(held.job.id, (held.job, Some(lease)));
        }
        for (id, attempt, dead) in jobs.finished {
            self.add_finished(id, attempt, dead);
        }
    }

    fn entry(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Leased {
                id,
                attempt,
                worker,
                deadline,
            } => {
                self.delays.remove(&id);
                if let Some((job, held)) = self.jobs.get_mut(&id) {
                    job.attempts = attempt;
                    *held = Some((worker.into(), deadline));
                }
            }
            JournalEntry::Extended { id, deadline, .. } => {
                if let Some((_, Some((_, until)))) = self.jobs.get_mut(&id) {
                    *until = deadline;
                }
            }
            JournalEntry::Back { id, attempt } => {
                if let Some((job, held)) = self.jobs.get_mut(&id) {
                    job.attempts = attempt;
                    *held = None;
                    self.counts.retried += 1;
                }
            }
            JournalEntry::Delayed { id, attempt, until } => {
                if let Some((job, held)) = self.jobs.get_mut(&id) {
                    job.attempts = attempt;
                    // In a snapshot, the job waits already.
                    self.counts.retried += u64::from(held.take().is_some());
                    self.delays.insert(id, until);
                }
            }
            JournalEntry::Done { id, attempt } => self.over(id, attempt, false),
            JournalEntry::Dead { id, attempt } => self.over(id, attempt, true),
        }
    }

    fn over(&mut self, id: JobId, attempt: u16, dead: bool) {
        if self.jobs.remove(&id).is_some() {
            match dead {
                true => self.counts.dead += 1,
                false => self.counts.done += 1,
            }
            self.add_finished(id, attempt, dead);
        }
    }

    fn add_finished(&mut self, id: JobId, attempt: u16, dead: bool) {
        let ended = FinishedJob {
            attempt,
            dead,
            result: None,
        };
        self.finished.add(id, ended, &self.limits);
    }
}

/// Calls `each` for all records of a stream that hold data.
fn each(stream: &Arc<Stream>, read: ReadStream<'_>, each: OnRecord<'_>) -> Result<(), ReplayError> {
    let read = |fetch: &Fetch| {
        read(fetch).map_err(|reason| ReplayError::Unreadable {
            stream: stream.name.to_string(),
            reason,
        })
    };
    each_record(stream, Offset::START, read, |sequence, data| {
        each(sequence, data).map_err(|source| ReplayError::Record {
            stream: stream.name.to_string(),
            sequence,
            source,
        })
    })?;
    Ok(())
}

/// How far from the current segment the recovery looks for segments that were not deleted or not completed.
const SEGMENTS_NEAR: u32 = 8;

/// The minimum time that workers have after a start to acknowledge their jobs.
const GRACE: Duration = Duration::from_secs(5);
