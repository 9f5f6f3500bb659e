//! Runs of records that were read more than once, in memory for all readers.
//!
//! A run holds the verified and decoded records themselves, so a reader that finds one reads nothing of the log. The cache keeps
//! no run of a first read, so a stream that is read only once takes no memory here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use encke_log::{Disk, Files, ReadError, Reader, Sequence, StreamNo};
use parking_lot::Mutex;

use super::piece::{Fetch, Piece};
use super::record_run::{PieceRecords, RecordRun};
use crate::Offset;

/// Runs of records that were read more than once, for all readers.
#[derive(Debug)]
pub struct RunCache<D: Disk = Files> {
    /// By their indices.
    logs: Arc<[Reader<D>]>,
    bounds: RunCacheBounds,
    kept: Mutex<KeptRuns>,
    hits: AtomicU64,
}

/// The bounds of a [`RunCache`].
#[derive(Clone, Copy, Debug)]
pub struct RunCacheBounds {
    /// Bytes of memory that all runs take at most.
    pub bytes_max: usize,
    /// A run with fewer records, and less data than `data_min`, is not kept: it is read from the log within a few microseconds. It also
    /// bounds the number of runs.
    pub records_min: usize,
    /// See `records_min`.
    pub data_min: usize,
}

impl Default for RunCacheBounds {
    fn default() -> Self {
        RunCacheBounds {
            bytes_max: 48 << 20,
            records_min: 64,
            data_min: 16 << 10,
        }
    }
}

/// A run of a stream that is kept.
#[derive(Debug)]
struct KeptRun {
    stream: StreamNo,
    /// The run has all records of the stream with `after` < sequence <= `upto`.
    after: Sequence,
    upto: Sequence,
    run: Arc<RecordRun>,
    bytes: usize,
    /// How much was asked for by the read that gave the run.
    bytes_asked: usize,
    /// The floor of the stream at the time of `compared_at`.
    floor: AtomicU64,
    /// [`Reader::removals`] before the run was last compared with the floor.
    compared_at: AtomicU64,
}

#[derive(Debug, Default)]
struct KeptRuns {
    /// By stream and `upto`, so that the first run behind a position is the one that may contain it. Each with its place in `order`.
    runs: BTreeMap<(StreamNo, Sequence), (Arc<KeptRun>, u64)>,
    /// The runs by their last use.
    order: BTreeMap<u64, (StreamNo, Sequence)>,
    /// How often a run was used or kept.
    uses: u64,
    /// The sum of the memory of all runs.
    bytes: usize,
    seen: SeenStreams,
}

/// A part of a stream that one reader has read, or several readers one after another.
#[derive(Clone, Copy, Debug, Default)]
struct SeenPart {
    after: Sequence,
    upto: Sequence,
    /// The data of its records.
    bytes: u64,
}

/// The two latest parts that were read of each recent stream, the newer one last. There are two because, in a large stream, readers that begin
/// again are far from readers that reach the end.
#[derive(Debug, Default)]
struct SeenStreams {
    newer: HashMap<StreamNo, [SeenPart; 2]>,
    older: HashMap<StreamNo, [SeenPart; 2]>,
}

impl SeenStreams {
    /// The parts of a stream. When there are [`SEEN_STREAMS`] newer ones, they become the older ones, and the older ones are forgotten.
    fn of(&mut self, stream: StreamNo) -> &mut [SeenPart; 2] {
        if self.newer.len() >= SEEN_STREAMS {
            self.older = std::mem::take(&mut self.newer);
        }
        let known = self.older.remove(&stream).unwrap_or_default();
        self.newer.entry(stream).or_insert(known)
    }
}

/// The part of a stream that a read wants, where it is one that runs can serve.
#[derive(Clone, Copy)]
struct WantedPart {
    stream: StreamNo,
    after: Sequence,
    upto: Sequence,
    bytes_max: usize,
}

impl<D: Disk> RunCache<D> {
    /// A cache in front of these logs.
    pub fn new(logs: Arc<[Reader<D>]>, bounds: RunCacheBounds) -> Self {
        RunCache {
            logs,
            bounds,
            kept: Mutex::default(),
            hits: AtomicU64::new(0),
        }
    }

    /// Reads as [`Piece::read`] does, from a kept run if there is one.
    ///
    /// # Errors
    /// Those of [`Piece::read`].
    pub fn read(&self, fetch: &Fetch) -> Result<Piece, ReadError> {
        let log = self.log(fetch);
        let Some(wanted) = WantedPart::of(fetch) else {
            return Piece::read(log, fetch);
        };
        let removals = log.removals(wanted.stream);
        let kept = self.kept.lock().find(wanted);
        if let Some(kept) = kept {
            // Records that were removed since the run was read must not be given.
            let floor = log.floor(wanted.stream)?;
            kept.floor.fetch_max(floor, Ordering::AcqRel);
            kept.compared_at.fetch_max(removals, Ordering::AcqRel);
            if let Some(piece) = kept.piece(wanted, fetch) {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(piece);
            }
        }
        let mut piece = Piece::read(log, fetch)?;
        if let Some((read, run)) = self.share(wanted, &mut piece) {
            let floor = log.floor(wanted.stream)?;
            let kept = KeptRun {
                stream: wanted.stream,
                after: read.after,
                upto: read.upto,
                bytes: run.memory() + size_of::<KeptRun>(),
                run,
                bytes_asked: wanted.bytes_max,
                floor: AtomicU64::new(floor),
                compared_at: AtomicU64::new(removals),
            };
            self.kept.lock().keep(kept, self.bounds.bytes_max);
        }
        Ok(piece)
    }

    /// The records from a kept run, if that needs no wait. `None`: [`RunCache::read`] reads them.
    pub fn kept(&self, fetch: &Fetch) -> Option<Piece> {
        let wanted = WantedPart::of(fetch)?;
        let kept = self.kept.try_lock()?.find(wanted)?;
        let removals = self.log(fetch).removals(wanted.stream);
        let is_compared = kept.compared_at.load(Ordering::Acquire) == removals;
        let piece = kept.piece(wanted, fetch).filter(|_| is_compared)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(piece)
    }

    /// The records of a piece as a run that is to be kept, if that part of the stream was read before.
    fn share(&self, wanted: WantedPart, piece: &mut Piece) -> Option<(SeenPart, Arc<RecordRun>)> {
        let (records, data) = (piece.records.len(), piece.bytes());
        let is_long = records >= self.bounds.records_min.max(1) || data >= self.bounds.data_min;
        let read = SeenPart {
            after: wanted.after,
            upto: piece.end.sequence,
            bytes: data as u64,
        };
        if !is_long || !piece.large.is_empty() || read.upto <= read.after {
            return None;
        }
        let mut kept = self.kept.lock();
        let is_again = kept.note_seen(wanted.stream, read, self.bounds.bytes_max);
        drop(kept);
        // Some reads give a large record, or one with a cut end, in another way. No run has such a record, so all kinds of reads can share runs.
        (is_again && piece.records.are_plain()).then(|| (read, piece.records.share()))
    }

    /// The log of a stream that was found is one of them.
    fn log(&self, fetch: &Fetch) -> &Reader<D> {
        self.logs.get(fetch.log()).unwrap_or(&self.logs[0])
    }

    /// Bytes of memory that the runs take.
    pub fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    /// How many reads were served from runs.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

impl WantedPart {
    fn of(fetch: &Fetch) -> Option<WantedPart> {
        let [span] = &fetch.spans[..] else {
            return None;
        };
        let is_beginning = fetch.large.parts().is_none_or(|parts| parts.had == 0);
        // Reads without a bound are those of the server for itself.
        let is_page = fetch.bytes_max <= PAGE_BYTES_MAX;
        // Positions inside of records are those of readers of forks and of the first page of some clients.
        let is_whole = span.from.units == 0 && span.upto.units == 0;
        // The log may have records below the floor for forks of the stream, and not for its own readers.
        let is_above_floor = fetch.floor <= span.from.sequence;
        let is_served =
            is_beginning && is_page && is_whole && is_above_floor && fetch.last.is_none();
        is_served.then_some(WantedPart {
            stream: span.stream,
            after: span.from.sequence,
            upto: span.upto.sequence,
            bytes_max: fetch.bytes_max,
        })
    }
}

impl KeptRun {
    /// The records that are wanted, as a piece that shares them. `None`: the wanted ones are behind the run, or removed.
    fn piece(&self, wanted: WantedPart, fetch: &Fetch) -> Option<Piece> {
        if self.floor.load(Ordering::Acquire) > wanted.after {
            return None;
        }
        let (range, is_all) = self
            .run
            .between(wanted.after, wanted.upto, wanted.bytes_max);
        let end = match is_all {
            true => self.upto,
            false => self.run.sequence(range.end - 1),
        };
        let more = end < wanted.upto;
        (!more || !range.is_empty()).then(|| {
            let end = if more {
                Offset::behind(end)
            } else {
                fetch.upto
            };
            let records = PieceRecords::shared(Arc::clone(&self.run), range);
            Piece::of_shared(records, end, more)
        })
    }
}

impl KeptRuns {
    /// The run that has the first wanted records.
    fn find(&mut self, wanted: WantedPart) -> Option<Arc<KeptRun>> {
        let from = (wanted.stream, wanted.after.saturating_add(1));
        let (key, (run, place)) = self.runs.range_mut(from..).next()?;
        let fits = run.stream == wanted.stream && run.after <= wanted.after;
        // The run of a small page would have its reader come again for what one read of the log gives.
        let is_short = run.upto < wanted.upto && run.bytes_asked < wanted.bytes_max / 4;
        if !fits || is_short {
            return None;
        }
        self.uses += 1;
        self.order.remove(place);
        *place = self.uses;
        self.order.insert(*place, *key);
        Some(Arc::clone(run))
    }

    /// Notes the part `read` of a stream. Returns whether its beginning was read before, and at most `bytes_max` of the stream was read
    /// since: a cache of this size can keep it until it is read again.
    fn note_seen(&mut self, stream: StreamNo, read: SeenPart, bytes_max: usize) -> bool {
        let seen = self.seen.of(stream);
        let overlaps = |part: &&mut SeenPart| (part.after..=part.upto).contains(&read.after);
        // The newer one first.
        if let Some(part) = seen.iter_mut().rev().find(overlaps) {
            // How much was read between the two reads of this position, if the records are of one size.
            let share = (part.upto - read.after) as f64 / (part.upto - part.after).max(1) as f64;
            if part.bytes as f64 * share <= bytes_max as f64 {
                let is_again = read.after < part.upto;
                if read.upto > part.upto {
                    part.upto = read.upto;
                    part.bytes += read.bytes;
                }
                return is_again;
            }
        }
        // Another reader begins, of a part that was not read yet or is read again too late.
        seen.swap(0, 1);
        seen[1] = read;
        false
    }

    fn keep(&mut self, kept: KeptRun, bytes_max: usize) {
        let (after, key) = (kept.after, (kept.stream, kept.upto));
        // Of two runs that end at the same record, the longer one has all of the other.
        if self
            .runs
            .get(&key)
            .is_some_and(|(other, _)| other.after < after)
        {
            return;
        }
        // Runs inside of this one would be found in front of it.
        let begin = (kept.stream, after.saturating_add(1));
        let inside = self.runs.range(begin..=key);
        let inside = inside.filter(|(_, (other, _))| other.after >= after);
        for key in inside.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remove(key);
        }
        self.bytes += kept.bytes;
        self.uses += 1;
        self.order.insert(self.uses, key);
        self.runs.insert(key, (Arc::new(kept), self.uses));
        while self.bytes > bytes_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: (StreamNo, Sequence)) {
        if let Some((removed, place)) = self.runs.remove(&key) {
            self.order.remove(&place);
            self.bytes -= removed.bytes;
        }
    }
}

/// The cache remembers the parts of at least this many streams, and of at most twice as many. Each stream takes 56 bytes in a table.
const SEEN_STREAMS: usize = 8 << 10;

/// The largest page that is kept.
const PAGE_BYTES_MAX: usize = 4 << 20;
