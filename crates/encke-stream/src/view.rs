//! The streams in memory by name: what shards look up without waiting for the sequencer, and
//! without touching a file.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

use foldhash::fast::FixedState;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::{Mutex, RwLock};

use encke_log::{Sequence, StreamNo};

use crate::Stream;
use crate::lookup::Lookup;
use crate::stream::Media;
use crate::watchers::Watchers;

/// What is known of names, without looking into the store: the streams in memory, and names that
/// are known to be free.
///
/// Many threads look up; one, the sequencer's, changes it once per committed batch and lets go of
/// what nobody uses; reader threads put in what the store says ([`Loader`](crate::Loader)). The
/// table is split, so that one part that grows holds up look-ups in that part only.
///
/// Invariant: what is not here is in the store as it is. A stream or a name that changed since the
/// log last took a checkpoint is never let go of, nor is one that somebody holds.
#[derive(Debug)]
pub struct View {
    parts: Vec<RwLock<HashTable<Lookup>>>,
    hasher: RandomState,
    /// Streams here; names here that are free.
    streams: AtomicUsize,
    free: AtomicUsize,
    /// Names that are taken, here or in the store.
    total: AtomicU64,
    committed: AtomicU64,
    /// Nothing is in the store that is not here.
    complete: AtomicBool,
    /// Streams are here, or were, whose names are at home in other logs.
    strays: AtomicBool,
    /// Counts the times that something was let go of; a load that saw another count is void.
    evictions: AtomicU64,
    /// Types that streams share.
    media: RwLock<HashMap<Box<str>, Arc<Media>>>,
    /// The streams here that end by themselves, in parts as all are.
    timed: Vec<Mutex<Timed>>,
    watchers: Watchers,
    counts: Counts,
    kept: OnceLock<KeptBehind>,
}

type Timed = HashMap<StreamNo, Weak<Stream>, FixedState>;

/// Behind which record those of a stream are kept.
struct KeptBehind(Box<dyn Fn(StreamNo) -> Sequence + Send + Sync>);

impl std::fmt::Debug for KeptBehind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeptBehind")
    }
}

/// What happened to the streams of a log, for metrics.
#[derive(Debug, Default)]
pub struct Counts {
    /// Names that were looked up in the store and found.
    pub loads: AtomicU64,
    /// Names that were looked up in the store and are free.
    pub absences: AtomicU64,
    /// Streams that were let go of.
    pub evictions: AtomicU64,
    /// Producers that were forgotten because a stream had more than [`Limits::producers_max`](crate::Limits::producers_max).
    pub producers_forgotten: AtomicU64,
    /// Changes that were acknowledged, by the level that they had reached then ([`AckLevel`](crate::AckLevel) as an index).
    pub acknowledged: [AtomicU64; 3],
}

impl Default for View {
    fn default() -> Self {
        View {
            parts: (0..PARTS).map(|_| RwLock::default()).collect(),
            hasher: RandomState::default(),
            streams: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            complete: AtomicBool::new(true),
            strays: AtomicBool::new(false),
            evictions: AtomicU64::new(0),
            media: RwLock::default(),
            timed: (0..PARTS).map(|_| Mutex::default()).collect(),
            watchers: Watchers::default(),
            counts: Counts::default(),
            kept: OnceLock::new(),
        }
    }
}

impl View {
    /// What is known of a name; nothing if the store must be asked ([`Loader`](crate::Loader)).
    pub fn look(&self, name: &str) -> Option<Lookup> {
        let hash = self.hasher.hash_one(name);
        let part = self.part(hash).read();
        if let Some(known) = part.find(hash, |known| known.name() == name) {
            known.mark_used();
            return Some(known.clone());
        }
        // Asked while the part is locked: nothing was let go of unseen.
        let complete = self.is_complete();
        drop(part);
        if complete {
            self.note_free(hash, name)
        } else {
            None
        }
    }

    /// The stream of that name if it is in memory, expired or kept for its forks though it may be.
    pub fn find(&self, name: &str) -> Option<Arc<Stream>> {
        let hash = self.hasher.hash_one(name);
        let part = self.part(hash).read();
        let known = part.find(hash, |known| known.name() == name)?;
        known.mark_used();
        known.stream().cloned()
    }

    /// The stream with that number if it is in memory. Looks at all of them.
    pub(crate) fn find_number(&self, no: StreamNo) -> Option<Arc<Stream>> {
        self.parts.iter().find_map(|part| {
            let part = part.read();
            let mut streams = part.iter().filter_map(Lookup::stream);
            streams.find(|stream| stream.no == no).cloned()
        })
    }

    /// Every record up to this one is visible in the facts of its stream.
    pub fn committed(&self) -> Sequence {
        self.committed.load(Ordering::SeqCst)
    }

    pub(crate) fn set_committed(&self, sequence: Sequence) {
        self.committed.store(sequence, Ordering::SeqCst);
    }

    /// Up to this record nothing is left of what a stream had; 0 when nothing is gone.
    pub fn kept_behind(&self, stream: &Stream) -> Sequence {
        let of_class = self.kept.get().map_or(0, |kept| (kept.0)(stream.no));
        stream.facts().floor.max(of_class)
    }

    /// Says where to ask up to where streams are gone. Only the first one to say so counts.
    pub(crate) fn set_kept(&self, behind: impl Fn(StreamNo) -> Sequence + Send + Sync + 'static) {
        let _ = self.kept.set(KeptBehind(Box::new(behind)));
    }

    /// A shard has subscribers of a stream from now on, whether it stays in memory or not: the shard
    /// is handed every commit with records of it but those up to [`View::committed`], read after this.
    pub fn watch(&self, stream: &Stream, shard: u16) {
        self.watchers.add(stream, shard);
    }

    /// A shard has no subscribers of a stream any more.
    pub fn unwatch(&self, no: StreamNo, shard: u16) {
        self.watchers.remove(no, shard);
    }

    /// The shards that have subscribers of a stream, a bit each; the last stands for all further ones.
    pub(crate) fn watchers(&self, stream: &Stream) -> u64 {
        self.watchers.of(stream)
    }

    /// How many streams are in memory.
    pub fn len(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Whether no stream is in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many names are known to be free.
    pub fn free_len(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// How many names are taken, in memory or in the store.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// What happened to the streams.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Calls `each` for every stream in memory, in no order.
    pub fn for_each(&self, each: &mut dyn FnMut(&Arc<Stream>)) {
        for part in &self.parts {
            part.read()
                .iter()
                .filter_map(Lookup::stream)
                .for_each(&mut *each);
        }
    }

    /// Says how many names are taken, and that not all of them are here if `complete` is not so.
    pub(crate) fn set_total(&self, total: u64, complete: bool) {
        self.total.store(total, Ordering::Relaxed);
        self.complete.store(complete, Ordering::SeqCst);
    }

    /// Whether there ever were streams here whose names are at home in other logs.
    pub(crate) fn has_strays(&self) -> bool {
        self.strays.load(Ordering::SeqCst)
    }

    /// Such a stream comes.
    pub(crate) fn note_strays(&self) {
        self.strays.store(true, Ordering::SeqCst);
    }

    /// Nothing is in the store that is not here: then nobody has to look there.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::SeqCst)
    }

    /// Puts in a stream whose record is committed.
    pub(crate) fn insert(&self, stream: Arc<Stream>) {
        if self.place(stream) {
            self.total.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Puts in a stream that is counted already, or will be.
    pub(crate) fn restore(&self, stream: Arc<Stream>) {
        self.place(stream);
    }

    /// True if no stream had the name.
    fn place(&self, stream: Arc<Stream>) -> bool {
        self.note_timed(&stream);
        let hash = self.hasher.hash_one(&*stream.name);
        let mut part = self.part(hash).write();
        let taken = self.take(&mut part, hash, &stream.name);
        part.insert_unique(hash, Lookup::Stream(stream), |other| self.hash(other));
        self.streams.fetch_add(1, Ordering::Relaxed);
        match taken {
            Some(Lookup::Stream(ended)) => {
                self.forget_timed(&ended);
                false
            }
            _ => true,
        }
    }

    /// The stream of that name has ended. The store may still have it, so this is remembered.
    pub(crate) fn remove(&self, name: &str) {
        let hash = self.hasher.hash_one(name);
        let mut part = self.part(hash).write();
        if let Some(Lookup::Stream(ended)) = self.take(&mut part, hash, name) {
            self.total.fetch_sub(1, Ordering::Relaxed);
            self.forget_timed(&ended);
        }
        part.insert_unique(hash, Lookup::freed(name), |other| self.hash(other));
        self.free.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a name is free, as far as is known here, and if so, that the store will know.
    pub(crate) fn is_free_and_stored(&self, name: &str) -> bool {
        let hash = self.hasher.hash_one(name);
        let part = self.part(hash).read();
        match part.find(hash, |known| known.name() == name) {
            Some(Lookup::Free(free)) => {
                free.dirty.store(false, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// What must be the same when what was loaded meanwhile is put in.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::SeqCst)
    }

    /// Puts in what the store said of a name, unless something is known already, which is newer.
    /// Nothing if it may be out of date: something was let go of since `evictions` was read.
    pub(crate) fn admit(&self, loaded: Lookup, evictions: u64) -> Option<Lookup> {
        let hash = self.hash(&loaded);
        let mut part = self.part(hash).write();
        match part.entry(
            hash,
            |known| known.name() == loaded.name(),
            |other| self.hash(other),
        ) {
            Entry::Occupied(known) => {
                known.get().mark_used();
                Some(known.get().clone())
            }
            Entry::Vacant(_) if self.evictions() != evictions => None,
            Entry::Vacant(vacant) => {
                match &loaded {
                    Lookup::Stream(stream) => {
                        self.note_timed(stream);
                        self.streams.fetch_add(1, Ordering::Relaxed);
                    }
                    Lookup::Free(_) => {
                        self.free.fetch_add(1, Ordering::Relaxed);
                    }
                }
                vacant.insert(loaded.clone());
                Some(loaded)
            }
        }
    }

    /// A stream in memory that ends by itself.
    pub(crate) fn timed(&self, no: StreamNo) -> Option<Arc<Stream>> {
        self.timed_part(no).lock().get(&no)?.upgrade()
    }

    /// Lets go of what one part holds and nobody holds, what was used since the last time only if
    /// `all`. Free names go whatever `may_go` says, unless the store does not know of them. Returns how
    /// many streams and free names went.
    pub(crate) fn sweep(
        &self,
        part: usize,
        all: bool,
        may_go: &mut dyn FnMut(&Arc<Stream>) -> bool,
        streams_may_go: bool,
    ) -> usize {
        let mut gone = Vec::new();
        let mut part = self.parts[part % PARTS].write();
        let mut counted = false;
        part.retain(|known| {
            if known.was_used() && !all {
                return true;
            }
            let goes = match known {
                Lookup::Stream(stream) => {
                    streams_may_go && Arc::strong_count(stream) == 1 && {
                        // What those did who held it last is seen.
                        fence(Ordering::Acquire);
                        may_go(stream)
                    }
                }
                Lookup::Free(free) => {
                    Arc::strong_count(free) == 1
                        && !free.dirty.load(Ordering::Relaxed)
                        && (streams_may_go || !free.freed)
                }
            };
            if !goes {
                return true;
            }
            if !counted {
                // Before anything is gone: who looked before this must look again.
                counted = true;
                self.evictions.fetch_add(1, Ordering::SeqCst);
            }
            if let Lookup::Stream(stream) = known {
                self.complete.store(false, Ordering::SeqCst);
                self.forget_timed(stream);
            }
            gone.push(known.clone());
            false
        });
        if part.len() < part.capacity() / 4 {
            let room = part.len() * 2;
            part.shrink_to(room, |other| self.hash(other));
        }
        drop(part);
        let streams = gone.iter().filter(|known| known.stream().is_some()).count();
        self.streams.fetch_sub(streams, Ordering::Relaxed);
        self.free.fetch_sub(gone.len() - streams, Ordering::Relaxed);
        self.counts
            .evictions
            .fetch_add(streams as u64, Ordering::Relaxed);
        gone.len()
    }

    /// The type of that name, shared where possible.
    pub(crate) fn media(&self, name: &str) -> Arc<Media> {
        if let Some(media) = self.media.read().get(name) {
            return Arc::clone(media);
        }
        let media = Arc::new(Media::new(name));
        let mut shared = self.media.write();
        if shared.len() < MEDIA_SHARED_MAX {
            return Arc::clone(shared.entry(name.into()).or_insert(media));
        }
        media
    }

    /// Notes that a name is free, if still nothing is known of it.
    fn note_free(&self, hash: u64, name: &str) -> Option<Lookup> {
        let mut part = self.part(hash).write();
        match part.entry(hash, |known| known.name() == name, |other| self.hash(other)) {
            Entry::Occupied(known) => Some(known.get().clone()),
            Entry::Vacant(_) if !self.is_complete() => None,
            Entry::Vacant(vacant) => {
                self.free.fetch_add(1, Ordering::Relaxed);
                let free = Lookup::free(name);
                vacant.insert(free.clone());
                Some(free)
            }
        }
    }

    fn take(&self, part: &mut HashTable<Lookup>, hash: u64, name: &str) -> Option<Lookup> {
        let entry = part.find_entry(hash, |known| known.name() == name).ok()?;
        let (known, _) = entry.remove();
        match &known {
            Lookup::Stream(_) => self.streams.fetch_sub(1, Ordering::Relaxed),
            Lookup::Free(_) => self.free.fetch_sub(1, Ordering::Relaxed),
        };
        Some(known)
    }

    fn note_timed(&self, stream: &Arc<Stream>) {
        if stream.is_timed() {
            let weak = Arc::downgrade(stream);
            self.timed_part(stream.no).lock().insert(stream.no, weak);
        }
    }

    fn forget_timed(&self, stream: &Stream) {
        if stream.is_timed() {
            self.timed_part(stream.no).lock().remove(&stream.no);
        }
    }

    fn timed_part(&self, no: StreamNo) -> &Mutex<Timed> {
        &self.timed[no as usize % PARTS]
    }

    fn hash(&self, known: &Lookup) -> u64 {
        self.hasher.hash_one(known.name())
    }

    fn part(&self, hash: u64) -> &RwLock<HashTable<Lookup>> {
        // The table itself uses the low and the topmost bits.
        &self.parts[(hash >> 40) as usize % PARTS]
    }
}

/// In how many parts the view is, and in how many steps it is gone through.
pub(crate) const PARTS: usize = 256;

/// Types that streams share; more are legal, but each stream then holds its own.
const MEDIA_SHARED_MAX: usize = 1000;
