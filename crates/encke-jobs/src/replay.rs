//! How the pools come back when the server starts: from what they wrote down.

use std::collections::BTreeMap;
use std::sync::Arc;

use encke_stream::{Fetch, Offset, Piece, Stream};

use crate::machine::{Due, Machine, PoolNo};
use crate::record::{
    BadRecord, Counts, Entry, Jobs, REGISTRY, Record, Register, Waiting, chapter_name,
};
use crate::request::JobId;
use crate::settings::{PoolLimits, PoolSettings};
use crate::shop::{Chapters, Ended, Finished, Running, Shop, Stage};
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
        source: BadRecord,
    },
    /// A chapter that the pools' registry names is not there.
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
type Each<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), BadRecord>;

impl Machine {
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
    ) -> Result<Machine, ReplayError> {
        let mut machine = Machine::new(limits, published);
        let find = &seek(find);
        let Some(registry) = Registry::read(find, read)? else {
            return Ok(machine);
        };
        machine.registered = true;
        for (no, (name, chapter)) in registry.gone {
            // A crash may have come before they were deleted.
            for chapter in chapter.saturating_sub(CHAPTERS_NEAR)..=chapter {
                if find(&chapter_name(&name, no, chapter))?.is_some() {
                    machine.forget_chapter(&name, no, chapter);
                }
            }
        }
        for (no, (name, chapter)) in registry.pools {
            // One that was never finished was never acknowledged.
            if chapter > 0 {
                machine.bring_back(find, read, now_ms, no, &name, chapter)?;
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
        chapter: u32,
    ) -> Result<(), ReplayError> {
        let stream_name = chapter_name(name, no, chapter);
        let stream = find(&stream_name)?.ok_or(ReplayError::Missing {
            stream: stream_name,
        })?;
        let mut replay = Replay::new(chapter, self.limits.clone());
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
        let chapters = Chapters::new(replay.chapters.iter().copied());
        let mut shop = Shop::new(name, settings, &self.limits, chapters, published);
        shop.counts = replay.counts;
        shop.finished = replay.finished;
        shop.chapters.records = replay.records;
        let grace_ms = now_ms + GRACE_MS.min(shop.settings.ack_ms);
        for (id, (job, held)) in replay.jobs {
            shop.chapters.add(id);
            let Some((worker, deadline_ms)) = held else {
                shop.lines.push(job);
                continue;
            };
            // Nobody could be told that it is done while nobody listened.
            let deadline_ms = deadline_ms.max(grace_ms);
            self.due.insert((deadline_ms, Due::Attempt(no, id)));
            let running = Running {
                job,
                worker,
                slot: None,
                seat: None,
                claim: None,
                deadline_ms,
                stage: Stage::Running,
                payload: None,
            };
            shop.running.insert(id, running);
        }
        // Chapters that hold nothing any more, and such as could not be begun whole.
        let needed = shop.chapters.all();
        let mut taken = Vec::new();
        for other in chapter.saturating_sub(CHAPTERS_NEAR)..chapter + CHAPTERS_NEAR {
            if find(&chapter_name(name, no, other))?.is_none() {
                continue;
            }
            taken.push(other);
            if !needed.iter().any(|(number, _)| *number == other) {
                self.forget_chapter(name, no, other);
            }
        }
        // The nearest number, so that what crash after crash leaves behind stays where it is looked for.
        while taken.contains(&shop.chapters.next) {
            shop.chapters.next += 1;
        }
        self.names.insert(name.into(), no);
        self.pools.insert(no, shop);
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
        .filter(|(_, chapter)| *chapter > 0)
        .map(|(name, _)| name)
        .collect())
}

/// Which pools there are, and which are gone: their names and last chapters.
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
            match Register::decode(bytes)? {
                Register::Made { name } => {
                    pools.insert(sequence, (name.to_owned(), 0));
                }
                Register::Chapter { no, chapter } => {
                    if let Some(pool) = pools.get_mut(&no) {
                        pool.1 = chapter;
                    }
                }
                Register::Gone { no } => gone.extend(pools.remove(&no).map(|pool| (no, pool))),
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
    chapter: u32,
    limits: PoolLimits,
    settings: Option<PoolSettings>,
    counts: Counts,
    chapters: Vec<(u32, u64)>,
    finished: Finished,
    /// Jobs that are not over, and who has them, until when in milliseconds since 1970.
    jobs: BTreeMap<JobId, (Waiting, Option<Lease>)>,
    records: u64,
}

impl Replay {
    fn new(chapter: u32, limits: PoolLimits) -> Self {
        Replay {
            chapter,
            limits,
            settings: None,
            counts: Counts::default(),
            chapters: Vec::new(),
            finished: Finished::default(),
            jobs: BTreeMap::new(),
            records: 0,
        }
    }

    fn record(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), BadRecord> {
        let (record, content) = Record::decode(bytes)?;
        self.records += 1;
        match record {
            Record::Begin(snapshot) => {
                self.records = 0;
                let settings = serde_json::from_str(&snapshot.settings);
                self.settings = Some(settings.map_err(|_| BadRecord)?);
                self.counts = snapshot.counts;
                self.chapters = snapshot.chapters;
                self.chapters.push((self.chapter, sequence));
                self.add(snapshot.jobs);
            }
            Record::More(jobs) => {
                self.records = 0;
                self.add(jobs);
            }
            Record::Post { aim, posted_s, .. } => {
                let job = Waiting {
                    id: sequence,
                    aim,
                    posted_s,
                    bytes: content.len() as u32,
                    attempts: 0,
                };
                self.jobs.insert(sequence, (job, None));
            }
            Record::Turn(entries) => entries.into_iter().for_each(|entry| self.entry(entry)),
        }
        Ok(())
    }

    /// What is left of the chapters before.
    fn add(&mut self, jobs: Jobs) {
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

    fn entry(&mut self, entry: Entry) {
        match entry {
            Entry::Leased {
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
            Entry::Extended {
                id, deadline_ms, ..
            } => {
                if let Some((_, Some((_, until_ms)))) = self.jobs.get_mut(&id) {
                    *until_ms = deadline_ms;
                }
            }
            Entry::Back { id, .. } => {
                if let Some((_, held)) = self.jobs.get_mut(&id) {
                    *held = None;
                    self.counts.retried += 1;
                }
            }
            Entry::Done { id, attempt } => self.over(id, attempt, false),
            Entry::Dead { id, attempt } => self.over(id, attempt, true),
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
        let ended = Ended {
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

/// How far from the last chapter one is looked for that was not deleted, or not begun whole.
const CHAPTERS_NEAR: u32 = 8;

/// Read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Workers that had jobs when the server went away have at least so long to say so, in milliseconds.
const GRACE_MS: u64 = 5_000;
