//! The view: the streams in memory by name. Shards look streams up here without a wait for the sequencer or for a file.
//!
//! `views.rs` joins the views of several logs, `lookup.rs` is the result of a look-up. `watchers.rs`, `pattern.rs` and `awaited.rs` say which
//! shards have subscribers, and `unstored_names.rs` which names the store lacks.

pub(crate) mod awaited;
pub(crate) mod counts;
mod log_bounds;
pub(crate) mod lookup;
pub(crate) mod pattern;
mod replica;
mod shared_media;
mod timed;
mod unstored_names;
pub(crate) mod views;
pub(crate) mod watchers;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::RwLock;

use encke_clock::Now;
use encke_log::{Disk, Reader, Sequence, StreamNo};

use crate::Stream;
use crate::replicated::{Chain, DispatcherTerm, Reads};
use crate::stream::account::Accounts;
use crate::stream::media::Media;
use crate::stream::own::is_own;
use crate::stream::producers::ProducerMemory;
use crate::view::awaited::AwaitedNames;
use crate::view::counts::Counts;
use crate::view::log_bounds::LogBounds;
use crate::view::lookup::{FreeNames, Lookup};
use crate::view::pattern::{Pattern, PatternWatchers};
use crate::view::replica::ReplicaView;
use crate::view::shared_media::SharedMedia;
use crate::view::timed::TimedStreams;
use crate::view::unstored_names::UnstoredNames;
use crate::view::watchers::{Watchers, has_own_bit};

/// The state of names without a look into the store: the streams in memory, and names that are known to be free.
///
/// Many threads look names up. The sequencer's thread changes the view once per committed batch and evicts idle
/// streams; reader threads add what the store has ([`Loader`](crate::Loader)). The table is split into parts, so that a
/// part that grows delays look-ups in that part only.
///
/// Invariant: a stream that is not here is in the store in its current state. A stream or name that changed since the
/// last checkpoint is never evicted, nor is one that is in use.
#[derive(Debug)]
pub struct View {
    parts: Vec<RwLock<HashTable<Lookup>>>,
    hasher: RandomState,
    /// Streams and free names in memory.
    streams: AtomicUsize,
    free: FreeNames,
    /// Names that are taken, in memory or in the store.
    total: AtomicU64,
    committed: AtomicU64,
    delivered: AtomicU64,
    /// The store has no stream that is not in memory.
    complete: AtomicBool,
    /// There are, or were, streams here whose names have other homes.
    strays: AtomicBool,
    /// The number of sweeps that evicted something. A load during which it changes is void.
    evictions: AtomicU64,
    /// Content types that streams share.
    media: SharedMedia,
    /// The streams in memory that end by themselves.
    timed: TimedStreams,
    unstored: UnstoredNames,
    watchers: Watchers,
    patterns: PatternWatchers,
    awaited: AwaitedNames,
    counts: Counts,
    /// Memory of the producers of the streams in memory.
    pub(crate) producers: Arc<ProducerMemory>,
    /// Who pays for the streams.
    pub(crate) accounts: Accounts,
    log_bounds: OnceLock<LogBounds>,
    /// Only on a node of a fleet.
    replica: Option<ReplicaView>,
}

impl Default for View {
    fn default() -> Self {
        View {
            parts: (0..PARTS).map(|_| RwLock::default()).collect(),
            hasher: RandomState::default(),
            streams: AtomicUsize::new(0),
            free: FreeNames::default(),
            total: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            complete: AtomicBool::new(true),
            strays: AtomicBool::new(false),
            evictions: AtomicU64::new(0),
            media: SharedMedia::default(),
            timed: TimedStreams::new(PARTS),
            unstored: UnstoredNames::default(),
            watchers: Watchers::default(),
            patterns: PatternWatchers::default(),
            awaited: AwaitedNames::default(),
            counts: Counts::default(),
            producers: Arc::default(),
            accounts: Accounts::default(),
            log_bounds: OnceLock::new(),
            replica: None,
        }
    }
}

impl View {
    /// Looks a name up. None if the store must be read ([`Loader`](crate::Loader)).
    pub fn look(&self, name: &str) -> Option<Lookup> {
        let hash = self.hasher.hash_one(name);
        let part = self.part(hash).read();
        if let Some(known) = part.find(hash, |known| known.name() == name) {
            known.mark_used();
            return Some(known.clone());
        }
        // Before the lock is released, so that no eviction is missed.
        let complete = self.is_complete();
        drop(part);
        if complete {
            self.note_free(hash, name)
        } else {
            None
        }
    }

    /// The stream of that name if it is in memory. It may be expired, or exist for its forks only.
    pub fn find(&self, name: &str) -> Option<Arc<Stream>> {
        let hash = self.hasher.hash_one(name);
        let part = self.part(hash).read();
        let known = part.find(hash, |known| known.name() == name)?;
        known.mark_used();
        known.stream().cloned()
    }

    /// What is known of a name in memory. This is no use of the stream: it may be evicted as before.
    pub(crate) fn peek(&self, name: &str) -> Option<Lookup> {
        let hash = self.hasher.hash_one(name);
        let part = self.part(hash).read();
        part.find(hash, |known| known.name() == name).cloned()
    }

    /// The stream with that number if it is in memory. Visits all streams.
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

    /// Every record up to this one is with the shards that have subscribers: in the mailbox of each of them, or beyond.
    pub fn delivered(&self) -> Sequence {
        self.delivered.load(Ordering::Acquire)
    }

    pub(crate) fn set_delivered(&self, sequence: Sequence) {
        self.delivered.store(sequence, Ordering::Release);
    }

    pub(crate) fn set_committed(&self, sequence: Sequence) {
        self.committed.store(sequence, Ordering::SeqCst);
    }

    /// Readers must not see the records of the stream up to this one; 0 when nothing is removed.
    pub fn kept_behind(&self, stream: &Stream) -> Sequence {
        let of_log = self.log_bounds.get().map_or(0, LogBounds::retention_floor);
        let floor = stream.facts().floor;
        match of_log > floor && !is_own(&stream.name) {
            true => of_log,
            false => floor,
        }
    }

    /// The first record that the global order of the log has.
    pub fn order_from(&self) -> Sequence {
        self.log_bounds.get().map_or(0, LogBounds::order_begin)
    }

    /// Sets the log whose retention floor and global order count. Only the first call has an effect.
    pub(crate) fn set_log_bounds<D: Disk>(&self, log: Reader<D>) {
        let _ = self.log_bounds.set(LogBounds::of(log));
    }

    /// The view of streams in memory. Something is committed from the beginning, so that who begins at 0 lacks it.
    pub(crate) fn of_memory() -> Arc<Self> {
        let view = View::default();
        view.set_committed(1);
        Arc::new(view)
    }

    /// A view of a node of a fleet, where reads change streams through commands only.
    pub(crate) fn replicated() -> Self {
        View {
            replica: Some(ReplicaView::default()),
            ..View::default()
        }
    }

    /// Notes a read of a stream: a sliding lifetime begins again.
    pub fn touch(&self, stream: &Arc<Stream>, now: Now) {
        match &self.replica {
            None => stream.touch(now),
            Some(replica) if stream.is_renewal_due(self.time(now)) => {
                replica.reads.note(stream);
            }
            Some(_) => {}
        }
    }

    /// The time by which streams end: on a node of a fleet that of the order, otherwise `now`.
    pub fn time(&self, now: Now) -> Now {
        match &self.replica {
            None => now,
            Some(replica) => replica.time(),
        }
    }

    /// Sets what is known of the order: its time, and the dispatcher.
    pub(crate) fn set_order(&self, chain: &Chain) {
        if let Some(replica) = &self.replica {
            replica.set_order(chain);
        }
    }

    /// The node that dispatches the jobs of the pools, as far as this node has followed the order.
    pub fn dispatcher(&self) -> Option<DispatcherTerm> {
        self.replica.as_ref()?.dispatcher()
    }

    /// On a node of a fleet: the reads that must renew sliding lifetimes.
    pub(crate) fn reads(&self) -> Option<&Reads> {
        self.replica.as_ref().map(|replica| &replica.reads)
    }

    /// Notes that a shard has subscribers of a stream, whether it stays in memory or not. The shard gets every commit
    /// with records of the stream, except for those up to [`View::committed`], read after this call.
    pub fn watch(&self, stream: &Arc<Stream>, shard: u16) {
        self.watchers.add(stream, shard);
        if let Some(reads) = self.reads() {
            reads.begin_live(stream);
        }
    }

    /// Notes that a shard has no subscribers of a stream any more. They have read it until now, so the caller has noted a read
    /// ([`View::touch`]).
    pub fn unwatch(&self, no: StreamNo, shard: u16) {
        self.watchers.remove(no, shard);
        if let Some(reads) = self.reads() {
            reads.end_live(no, || self.watchers.has(no));
        }
    }

    /// Whether the stream has live readers: subscribers by its name, or long polls; or by a pattern, if it belongs to nobody: patterns do
    /// not know whose subscribers may use the streams of whom. Asked only about few streams at a time, when their lifetimes end.
    pub(crate) fn has_live_readers(&self, stream: &Stream) -> bool {
        self.watchers.of(stream) != 0 || stream.owner().is_none() && self.is_matched(&stream.name)
    }

    /// Whether a pattern with subscribers matches a name.
    fn is_matched(&self, name: &str) -> bool {
        !self.patterns.is_empty() && !self.patterns.of(name).shards.is_empty()
    }

    /// Whether the lifetime of a stream is over, at a time as [`View::time`] has it. A sliding one is not while the stream has live
    /// readers; on a node of a fleet they renew it by commands before, because all nodes decide the same.
    pub fn has_expired(&self, stream: &Stream, now: Now) -> bool {
        let is_kept =
            || self.replica.is_none() && stream.is_sliding() && self.has_live_readers(stream);
        stream.expired(now) && !is_kept()
    }

    /// Notes that a shard has subscribers of a pattern. The shard gets every commit with records of matching streams, except
    /// for those up to [`View::committed`], read after this call. Returns the pattern's number; `log` is the index of the
    /// view's log.
    pub fn watch_pattern(&self, pattern: &Pattern, log: usize, shard: u16) -> StreamNo {
        self.patterns.add(pattern, log, shard)
    }

    /// Notes that a shard has no subscribers of a pattern any more.
    pub fn unwatch_pattern(&self, no: StreamNo, shard: u16) {
        self.patterns.remove(no, shard);
    }

    /// The number of patterns that have subscribers.
    pub fn pattern_len(&self) -> usize {
        self.patterns.len()
    }

    /// The patterns that have subscribers.
    pub(crate) fn patterns(&self) -> &PatternWatchers {
        &self.patterns
    }

    /// Notes that a shard has subscribers of a name that no stream has yet, in the log that is its home. When a stream of that name is
    /// created here, the shard becomes its watcher and gets the commit ([`Batch::awaited`](crate::Batch::awaited)). A stream that is in the
    /// view by now may have been created before. Returns the number of the name. Names are counted by their group.
    pub fn await_name(&self, name: &Arc<str>, log: usize, group: u64, shard: u16) -> StreamNo {
        self.awaited.add(name, log, group, shard)
    }

    /// Notes that a shard has no subscribers of a name any more. False: a stream was created, the shard is its watcher, and the commit
    /// comes.
    pub fn leave_name(&self, no: StreamNo, shard: u16) -> bool {
        self.awaited.remove(no, shard)
    }

    /// Notes that a shard was made a watcher of a stream that it had not asked for, or had asked for by itself as well.
    pub fn unwatch_awaited(&self, no: StreamNo, shard: u16, watches_itself: bool) {
        if !watches_itself || !has_own_bit(shard) {
            self.unwatch(no, shard);
        }
    }

    /// How many names are awaited.
    pub fn awaited_len(&self) -> usize {
        self.awaited.len()
    }

    /// Whether a stream has subscribers by its name.
    pub fn has_watchers(&self, stream: &Stream) -> bool {
        self.watchers.of(stream) != 0
    }

    /// The names that are awaited.
    pub(crate) fn awaited(&self) -> &AwaitedNames {
        &self.awaited
    }

    /// The shards that have subscribers of a stream, one bit each. The last bit is for all further shards.
    pub(crate) fn watchers(&self, stream: &Stream) -> u64 {
        self.watchers.of(stream)
    }

    /// The same for the stream with that number, which need not be in memory.
    pub(crate) fn watchers_of(&self, no: StreamNo) -> u64 {
        self.watchers.of_number(no)
    }

    /// The number of streams in memory.
    pub fn len(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Whether no stream is in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the producers of the streams in memory take.
    pub fn producer_bytes(&self) -> usize {
        self.producers.bytes()
    }

    /// Sets when streams with producers are evicted sooner, see [`Eviction::producer_bytes_max`](crate::Eviction::producer_bytes_max).
    pub fn set_producer_bytes_max(&self, bytes_max: usize) {
        self.producers.set_bytes_max(bytes_max);
    }

    /// The number of names that are known to be free.
    pub fn free_len(&self) -> usize {
        self.free.len()
    }

    /// As how many streams the names count that are known to be free.
    pub(crate) fn free_weight(&self) -> usize {
        self.free.weight()
    }

    /// The number of taken names, in memory or in the store.
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

    /// Sets the number of taken names. `complete`: all of them are in memory.
    pub(crate) fn set_total(&self, total: u64, complete: bool) {
        self.total.store(total, Ordering::Relaxed);
        self.complete.store(complete, Ordering::SeqCst);
    }

    /// Whether there are, or were, streams here whose names have other homes.
    pub(crate) fn has_strays(&self) -> bool {
        self.strays.load(Ordering::SeqCst)
    }

    /// Notes that such a stream is created.
    pub(crate) fn note_strays(&self) {
        self.strays.store(true, Ordering::SeqCst);
    }

    /// Whether the store has no stream that is not in memory, so that it need not be read.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::SeqCst)
    }

    /// Adds a stream whose record is committed.
    pub(crate) fn insert(&self, stream: Arc<Stream>) {
        if self.place(stream) {
            self.total.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds a stream that is counted already or counted later.
    pub(crate) fn restore(&self, stream: Arc<Stream>) {
        self.place(stream);
    }

    /// True if no stream had the name.
    fn place(&self, stream: Arc<Stream>) -> bool {
        self.timed.insert(&stream);
        self.unstored.add(&stream);
        let hash = self.hasher.hash_one(&*stream.name);
        let mut part = self.part(hash).write();
        let taken = self.take(&mut part, hash, &stream.name);
        part.insert_unique(hash, Lookup::Stream(stream), |other| self.hash(other));
        self.streams.fetch_add(1, Ordering::Relaxed);
        match taken {
            Some(Lookup::Stream(ended)) => {
                self.timed.remove(&ended);
                false
            }
            _ => true,
        }
    }

    /// Frees the name of an ended stream. The name stays in memory, because the store may still have the stream.
    pub(crate) fn remove(&self, name: &str) {
        self.unstored.remove(name);
        let hash = self.hasher.hash_one(name);
        let mut part = self.part(hash).write();
        if let Some(Lookup::Stream(ended)) = self.take(&mut part, hash, name) {
            self.total.fetch_sub(1, Ordering::Relaxed);
            self.timed.remove(&ended);
        }
        part.insert_unique(hash, Lookup::freed(name), |other| self.hash(other));
        self.free.add(name);
    }

    /// Whether a name is known to be free. If so, the store is about to know it.
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

    /// Notes that the store has a stream.
    pub(crate) fn note_stored(&self, stream: &Stream) {
        self.unstored.stored(stream);
    }

    /// Up to `count_max` names that begin with `prefix`, behind `behind`, of streams that the store does not have; in their order.
    pub(crate) fn unstored_names(
        &self,
        prefix: &str,
        behind: Option<&str>,
        count_max: usize,
    ) -> Vec<Box<str>> {
        self.unstored.page(prefix, behind, count_max)
    }

    /// The count of evictions for [`View::admit`].
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::SeqCst)
    }

    /// Adds what the store has of a name, unless the name is in memory, where its state is newer. None if the loaded
    /// state may be stale: something was evicted since `evictions` was read.
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
                        self.timed.insert(stream);
                        self.streams.fetch_add(1, Ordering::Relaxed);
                    }
                    Lookup::Free(_) => self.free.add(loaded.name()),
                }
                vacant.insert(loaded.clone());
                Some(loaded)
            }
        }
    }

    /// A stream in memory that ends by itself.
    pub(crate) fn timed(&self, no: StreamNo) -> Option<Arc<Stream>> {
        self.timed.get(no)
    }

    /// Evicts what is not in use from one part; what was used since the last sweep only with `all`. Free names are
    /// evicted whatever `may_go` returns, unless the store does not know them. Returns the number of evicted streams
    /// and free names.
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
                        // Changes by the last holder are visible after this.
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
                // Before the first eviction, so that a load that read the store earlier is void.
                counted = true;
                self.evictions.fetch_add(1, Ordering::SeqCst);
            }
            if let Lookup::Stream(stream) = known {
                self.complete.store(false, Ordering::SeqCst);
                self.timed.remove(stream);
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
        for free in gone.iter().filter(|known| known.stream().is_none()) {
            self.free.remove(free.name());
        }
        self.counts
            .evictions
            .fetch_add(streams as u64, Ordering::Relaxed);
        gone.len()
    }

    /// The content type of that name, shared where possible.
    pub(crate) fn media(&self, name: &str) -> Arc<Media> {
        self.media.get(name)
    }

    /// Notes that a name is free, unless its state is known by now.
    fn note_free(&self, hash: u64, name: &str) -> Option<Lookup> {
        let mut part = self.part(hash).write();
        match part.entry(hash, |known| known.name() == name, |other| self.hash(other)) {
            Entry::Occupied(known) => Some(known.get().clone()),
            Entry::Vacant(_) if !self.is_complete() => None,
            Entry::Vacant(vacant) => {
                self.free.add(name);
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
            Lookup::Stream(_) => {
                self.streams.fetch_sub(1, Ordering::Relaxed);
            }
            Lookup::Free(_) => self.free.remove(name),
        }
        Some(known)
    }

    fn hash(&self, known: &Lookup) -> u64 {
        self.hasher.hash_one(known.name())
    }

    fn part(&self, hash: u64) -> &RwLock<HashTable<Lookup>> {
        // The table uses the low bits and the topmost bits.
        &self.parts[(hash >> 40) as usize % PARTS]
    }
}

/// The number of parts of the view, and of the steps in which sweeps visit it.
pub(crate) const PARTS: usize = 256;
