//! How the pools come back when the server starts: from what they wrote down.

use std::collections::BTreeMap;
use std::sync::Arc;

use encke_stream::{Fetch, Offset, Piece, Stream};

use crate::machine::{JobMachine, JobTimer};
use crate::op::PoolNo;
use crate::pool_state::{
    AttemptStage, FinishedJob, FinishedJobs, JournalSegments, PoolState, RunningJob,
};
use crate::record::{
    BadJournalRecord, CarriedJobs, JobCounts, JournalEntry, JournalRecord, REGISTRY,
    RegistryRecord, WaitingJob, segment_name,
};
use crate::request::JobId;
use crate::settings::{PoolLimits, PoolSettings};
use crate::stats::PublishedStats;

/// Why the pools can't be brought back.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A stream of theirs can't be read.
    #[error("the stream {stream:?} of the pools can't be read: {reason}")]
    Unreadable {
        /// Which one.
        stream: String,
        /// What the log says.
        reason: String,
    },
    /// A record that this version does not write.
    #[error("record {sequence} of the stream {stream:?} of the pools: {source}")]
    Record {
        /// Which stream.
        stream: String,
        /// Which record.
        sequence: u64,
        /// What is wrong with it.
        source: BadJournalRecord,
    },
    /// A segment that the pools' registry names is not there.
    #[error("the stream {stream:?}, where a pool's journal goes on, is not there")]
    Missing {
        /// Which one.
        stream: String,
    },
}

/// Reads a part of a stream, or says why it can't.
pub type Read<'a> = &'a dyn Fn(&Fetch) -> Result<Piece, String>;

/// Finds a stream by its name, or says why it can't.
pub type Find<'a> = &'a dyn Fn(&str) -> Result<Option<Arc<Stream>>, String>;

type Seek<'a> = &'a dyn Fn(&str) -> Result<Option<Arc<Stream>>, ReplayError>;
type Each<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), BadJournalRecord>;

impl JobMachine {
    /// Brings the pools back, as they were when the last record was written.
    ///
    /// # Errors
    /// Something of them can't be read.
    pub fn replay(
        limits: PoolLimits,
        published: Arc<PublishedStats>,
        find: Find<'_>,
        read: Read<'_>,
        now_ms: u64,
    ) -> Result<JobMachine, ReplayError> {
        let mut machine = JobMachine::new(limits, published);
        let find = &seek(find);
        let Some(registry) = Registry::read(find, read)? else {
            return Ok(machine);
        };
        machine.registered = true;
        for (no, (name, segment)) in registry.gone {
            // A crash may have come before they were deleted.
            for segment in segment.saturating_sub(SEGMENTS_NEAR)..=segment {
                if find(&segment_name(&name, no, segment))?.is_some() {
                    machine.delete_segment(&name, no, segment);
                }
            }
        }
        for (no, (name, segment)) in registry.pools {
            // One that was never finished was never acknowledged.
            if segment > 0 {
                machine.bring_back(find, read, now_ms, no, &name, segment)?;
            }
        }
        Ok(machine)
    }

    fn bring_back(
        &mut self,
        find: Seek<'_>,
        read: Read<'_>,
        now_ms: u64,
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
            // The other pools, and all streams, are served all the same.
            tracing::error!(
                pool = name,
                "a pool is left out: the record that its journal begins with is gone, as retention takes what is old"
            );
            return Ok(());
        };
        let published = self.published.add(name);
        let segments = JournalSegments::new(replay.segments.iter().copied());
        let mut pool = PoolState::new(name, settings, &self.limits, segments, published);
        pool.counts = replay.counts;
        pool.finished = replay.finished;
        pool.segments.records = replay.records;
        let grace_ms = now_ms + GRACE_MS.min(pool.settings.ack_ms);
        for (id, (job, held)) in replay.jobs {
            pool.segments.add(id);
            let Some((worker, deadline_ms)) = held else {
                pool.queues.push(job);
                continue;
            };
            // Nobody could be told that it is done while nobody listened.
            let deadline_ms = deadline_ms.max(grace_ms);
            self.due.insert((deadline_ms, JobTimer::Attempt(no, id)));
            let running = RunningJob {
                job,
                worker,
                seat: None,
                place: None,
                deadline_ms,
                stage: AttemptStage::Running,
                payload: None,
            };
            pool.running.insert(id, running);
        }
        // JournalSegments that hold nothing any more, and such as could not be begun whole.
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
        // The nearest number, so that what crash after crash leaves behind stays where it is looked for.
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

/// The names of all pools, for whoever wants to know before the log lets go of anything.
///
/// # Errors
/// The stream of pools can't be read.
pub fn pools(find: Find<'_>, read: Read<'_>) -> Result<Vec<String>, ReplayError> {
    let registry = Registry::read(&seek(find), read)?.unwrap_or_default();
    let pools = registry.pools.into_values();
    Ok(pools
        .filter(|(_, segment)| *segment > 0)
        .map(|(name, _)| name)
        .collect())
}

/// Which pools there are, and which are gone: their names and last segments.
#[derive(Default)]
struct Registry {
    pools: BTreeMap<PoolNo, (String, u32)>,
    gone: Vec<(PoolNo, (String, u32))>,
}

impl Registry {
    fn read(find: Seek<'_>, read: Read<'_>) -> Result<Option<Registry>, ReplayError> {
        let Some(stream) = find(REGISTRY)? else {
            return Ok(None);
        };
        let Registry {
            mut pools,
            mut gone,
        } = Registry::default();
        each(&stream, read, &mut |sequence, bytes| {
            match RegistryRecord::decode(bytes)? {
                RegistryRecord::Made { name } => {
                    pools.insert(sequence, (name.to_owned(), 0));
                }
                RegistryRecord::Segment { no, segment } => {
                    if let Some(pool) = pools.get_mut(&no) {
                        pool.1 = segment;
                    }
                }
                RegistryRecord::Gone { no } => {
                    gone.extend(pools.remove(&no).map(|pool| (no, pool)));
                }
            }
            Ok(())
        })?;
        Ok(Some(Registry { pools, gone }))
    }
}

fn seek(find: Find<'_>) -> impl Fn(&str) -> Result<Option<Arc<Stream>>, ReplayError> {
    move |name| {
        find(name).map_err(|reason| ReplayError::Unreadable {
            stream: name.to_owned(),
            reason,
        })
    }
}

type Lease = (Arc<str>, u64);

/// What is known of a pool, record by record.
struct Replay {
    segment: u32,
    limits: PoolLimits,
    settings: Option<PoolSettings>,
    counts: JobCounts,
    segments: Vec<(u32, u64)>,
    finished: FinishedJobs,
    /// Jobs that are not over, and who has them, until when in milliseconds since 1970.
    jobs: BTreeMap<JobId, (WaitingJob, Option<Lease>)>,
    records: u64,
}

impl Replay {
    fn new(segment: u32, limits: PoolLimits) -> Self {
        Replay {
            segment,
            limits,
            settings: None,
            counts: JobCounts::default(),
            segments: Vec::new(),
            finished: FinishedJobs::default(),
            jobs: BTreeMap::new(),
            records: 0,
        }
    }

    fn record(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), BadJournalRecord> {
        let (record, content) = JournalRecord::decode(bytes)?;
        self.records += 1;
        match record {
            JournalRecord::Begin(snapshot) => {
                self.records = 0;
                let settings = serde_json::from_str(&snapshot.settings);
                self.settings = Some(settings.map_err(|_| BadJournalRecord)?);
                self.counts = snapshot.counts;
                self.segments = snapshot.segments;
                self.segments.push((self.segment, sequence));
                self.add(snapshot.jobs);
            }
            JournalRecord::More(jobs) => {
                self.records = 0;
                self.add(jobs);
            }
            JournalRecord::Post { aim, posted_s, .. } => {
                let job = WaitingJob {
                    id: sequence,
                    aim,
                    posted_s,
                    bytes: content.len() as u32,
                    attempts: 0,
                };
                self.jobs.insert(sequence, (job, None));
            }
            JournalRecord::Batch(entries) => {
                entries.into_iter().for_each(|entry| self.entry(entry));
            }
        }
        Ok(())
    }

    /// What is left of the segments before.
    fn add(&mut self, jobs: CarriedJobs) {
        for job in jobs.waiting {
            self.jobs.insert(job.id, (job, None));
        }
        for held in jobs.running {
            let lease = (held.worker.into(), held.deadline_ms);
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
                deadline_ms,
            } => {
                if let Some((job, held)) = self.jobs.get_mut(&id) {
                    job.attempts = attempt;
                    *held = Some((worker.into(), deadline_ms));
                }
            }
            JournalEntry::Extended {
                id, deadline_ms, ..
            } => {
                if let Some((_, Some((_, until_ms)))) = self.jobs.get_mut(&id) {
                    *until_ms = deadline_ms;
                }
            }
            JournalEntry::Back { id, .. } => {
                if let Some((_, held)) = self.jobs.get_mut(&id) {
                    *held = None;
                    self.counts.retried += 1;
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
fn each(stream: &Arc<Stream>, read: Read<'_>, each: Each<'_>) -> Result<(), ReplayError> {
    let mut from = Offset::START;
    let tail = stream.facts().tail;
    loop {
        let fetch = Fetch::new(stream, from, tail, PIECE_BYTES);
        let piece = read(&fetch).map_err(|reason| ReplayError::Unreadable {
            stream: stream.name.to_string(),
            reason,
        })?;
        for item in piece.items() {
            let sequence = item.end.sequence;
            each(sequence, item.data).map_err(|source| ReplayError::Record {
                stream: stream.name.to_string(),
                sequence,
                source,
            })?;
        }
        if !piece.more {
            return Ok(());
        }
        from = piece.end;
    }
}

/// How far from the last segment one is looked for that was not deleted, or not begun whole.
const SEGMENTS_NEAR: u32 = 8;

/// Read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Workers that had jobs when the server went away have at least so long to say so, in milliseconds.
const GRACE_MS: u64 = 5_000;
