//! A machine over a log on a simulated disk: the steps of the sequencer, driven by hand.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use encke_clock::{Now, SteadyTime};
use encke_log::simulated::SimulatedDisk;
use encke_log::{Log, Options, ReadError, Reader, Sequence};
use encke_stream::{
    Change, Command, Fetch, Journal, LargeData, LargeRecords, LastMessages, LastMessagesBounds,
    Limits, ListFetch, ListedStream, Loader, LogJournal, Lookup, Machine, Offset, Outcome,
    PartRead, Piece, Refusal, RunCache, RunCacheBounds, Stream, Target, View, Viewer, restore_on,
};

use crate::naive::{Unit, is_json, units};

pub struct Rig {
    pub machine: Machine,
    pub view: Arc<View>,
    pub log: Log<SimulatedDisk>,
    disk: SimulatedDisk,
    limits: Limits,
    loader: Loader<Reader<SimulatedDisk>>,
    /// So small that runs are removed again.
    runs: RunCache<SimulatedDisk>,
    /// All streams with records since the log was opened, and those found then; None for an evicted stream.
    seen: RefCell<BTreeMap<u64, Option<Arc<Stream>>>>,
}

/// Small enough that segments roll, and that a record can be too large.
pub const SEGMENT_BYTES: u64 = 4096;

impl Rig {
    pub fn new(limits: Limits, now_ms: u64) -> Self {
        Self::open(SimulatedDisk::new(7), limits, now_ms)
    }

    /// The same disk, opened again: everything that was not committed is gone.
    pub fn reopen(self, now_ms: u64) -> Self {
        let Rig { disk, limits, .. } = self;
        drop((self.machine, self.view, self.log, self.seen, self.loader));
        Self::open(disk, limits, now_ms)
    }

    fn open(disk: SimulatedDisk, limits: Limits, now_ms: u64) -> Self {
        let options = Options {
            segment_bytes: SEGMENT_BYTES,
            history: false,
            ..Options::default()
        };
        let (machine, view, log) =
            restore_on(disk.clone(), options, limits, SteadyTime::from_ms(now_ms)).unwrap();
        let mut seen = BTreeMap::new();
        view.for_each(&mut |stream| {
            seen.insert(stream.no, Some(Arc::clone(stream)));
        });
        let loader = Loader::new(
            Arc::clone(&view),
            log.reader(),
            limits,
            Some(SteadyTime::from_ms(now_ms)),
        );
        let bounds = RunCacheBounds {
            bytes_max: 4096,
            records_min: 1,
            data_min: 1,
        };
        Rig {
            loader,
            runs: RunCache::new([log.reader()].into(), bounds),
            machine,
            view,
            log,
            disk,
            limits,
            seen: RefCell::new(seen),
        }
    }

    /// Looks a name up, in memory or in the store.
    pub fn look(&self, name: &str) -> Option<Arc<Stream>> {
        let known = self.view.look(name);
        let known = known.unwrap_or_else(|| self.loader.load(name).unwrap());
        known.stream().cloned()
    }

    /// A stream, loaded if it is not in memory; None if it has ended.
    pub fn load(&self, no: u64) -> Option<Arc<Stream>> {
        let is_seen = self.seen.borrow().contains_key(&no);
        match is_seen {
            true => self.stream(no),
            false => self.loader.load_number(no).unwrap(),
        }
    }

    /// The numbers of all streams that were seen.
    /// All pages of a list.
    pub fn list(
        &self,
        prefix: &str,
        count_max: usize,
        viewer: &Viewer,
        now: Now,
    ) -> Vec<ListedStream> {
        let mut fetch = ListFetch {
            prefix: prefix.into(),
            behind: None,
            count_max,
            viewer: viewer.clone(),
            now,
        };
        let mut all = Vec::new();
        loop {
            let page = self.loader.list(&fetch).unwrap();
            assert!(page.streams.len() <= count_max);
            all.extend(page.streams);
            match page.next {
                Some(next) => fetch.behind = Some(next),
                None => return all,
            }
        }
    }

    pub fn seen(&self) -> Vec<u64> {
        self.seen.borrow().keys().copied().collect()
    }

    /// A stream that was seen, loaded if it was evicted; None if it has ended since.
    pub fn stream(&self, no: u64) -> Option<Arc<Stream>> {
        let mut seen = self.seen.borrow_mut();
        let stream = seen.get_mut(&no).unwrap();
        if stream.is_none() {
            *stream = self.loader.load_number(no).unwrap();
        }
        stream.clone()
    }

    /// Gives changes to the store, or some of them.
    pub fn checkpoint(&mut self, count_max: usize) {
        let mut entries = Vec::new();
        let committed = self.log.next_sequence() - 1;
        while !self
            .machine
            .take_changed(committed, count_max, &mut entries)
        {
            // What was taken cannot be evicted yet.
            self.machine.sweep(true);
        }
        self.log.checkpoint(entries);
        self.machine.stored();
    }

    /// Evicts every stream that can be evicted. Returns the number.
    pub fn evict(&mut self) -> usize {
        for stream in self.seen.borrow_mut().values_mut() {
            // A stream that has ended or is not committed is only in memory.
            if let Some(known) = stream
                && let Some(found) = self.view.find(&known.name)
                && Arc::ptr_eq(known, &found)
            {
                *stream = None;
            }
        }
        let before = self.view.len();
        for _ in 0..Machine::sweeps() {
            self.machine.sweep(true);
        }
        before - self.view.len()
    }

    /// Like a shard: the named stream is loaded before the command is judged.
    fn pin(&self, command: &mut Command) -> Option<Lookup> {
        let load = |name: &str| self.loader.load(name).unwrap();
        match command {
            Command::Create(create) => {
                create.known = vec![load(&create.name)];
                let source = create.fork.as_ref().map(|fork| load(&fork.source));
                create.known.extend(source);
                None
            }
            Command::Truncate {
                target: Target::Named(name),
                ..
            } => Some(load(name)),
            Command::Truncate { .. } => None,
            Command::Append(append) => match &append.target {
                Target::Named(name) | Target::Read { name, .. } | Target::Owned { name, .. } => {
                    Some(load(name))
                }
                Target::Known(_) => None,
            },
            Command::Delete {
                target: Target::Named(name),
                ..
            } => Some(load(name)),
            Command::Delete { .. } | Command::Fleet(_) | Command::Series(_) => None,
        }
    }

    pub fn apply(&mut self, mut command: Command, now: Now) -> Outcome {
        let _held = self.pin(&mut command);
        let mut journal = Recorder {
            log: LogJournal {
                log: &mut self.log,
                now: now.wall,
            },
            seen: self.seen.get_mut(),
        };
        self.machine.apply(command, now, &mut journal)
    }

    pub fn expire(&mut self, now: Now) {
        let mut journal = Recorder {
            log: LogJournal {
                log: &mut self.log,
                now: now.wall,
            },
            seen: self.seen.get_mut(),
        };
        let mut loads = Vec::new();
        let mut load = |no| loads.push(no);
        self.machine.expire(now, &mut journal, &mut load).unwrap();
        if !loads.is_empty() {
            for no in loads {
                self.loader
                    .load_number(no)
                    .unwrap()
                    .expect("it has not ended");
            }
            self.machine
                .expire(now, &mut journal, &mut |no| panic!("{no} was loaded"))
                .unwrap();
        }
    }

    pub fn commit(&mut self) {
        self.log.write().unwrap();
        self.log.sync().unwrap();
        self.log.publish();
        self.machine.publish(self.log.next_sequence() - 1);
        for (stream, floor) in self.machine.take_floors() {
            self.log.set_floor(stream, floor);
        }
    }

    pub fn abandon(&mut self) {
        self.machine.abandon();
        self.log.abandon();
        let next = self.log.next_sequence();
        self.seen.get_mut().retain(|no, _| *no < next);
    }

    /// The data between `from` and the stream's tail as one body, read in pieces that cut records.
    pub fn read_body(&self, stream: &Stream, from: Offset, bytes_max: usize) -> Vec<u8> {
        let reader = self.log.reader();
        let tail = stream.facts().tail;
        let json = is_json(&stream.media.name);
        let mut body: Vec<u8> = Vec::new();
        let (mut at, mut had) = (from, 0);
        loop {
            let mut fetch = Fetch::new(stream, at, tail, bytes_max);
            fetch.large = LargeRecords::Parts(PartRead {
                large_bytes: 60,
                is_bounded: bytes_max.is_multiple_of(2),
                ..PartRead::behind(had)
            });
            let piece = Piece::read(&reader, &fetch).unwrap();
            for item in piece.items() {
                let all = units(json, item.data, 1);
                for unit in &all[item.skip as usize..item.take as usize] {
                    if json && !body.is_empty() {
                        body.push(b',');
                    }
                    body.extend_from_slice(&unit.bytes);
                }
            }
            assert!(piece.large.len() <= 1);
            for large in &piece.large {
                assert!(piece.items().next().is_none(), "a part is alone");
                let LargeData::Bytes(bytes) = &large.data else {
                    panic!("it was to be read");
                };
                if json && large.begins && !body.is_empty() {
                    body.push(b',');
                }
                assert!(!bytes.is_empty());
                body.extend_from_slice(bytes);
            }
            if !piece.more {
                return body;
            }
            let reached = |at: Offset, had: u64| (at.sequence, had.max(at.units.into()));
            let (before, behind) = (reached(at, had), reached(piece.end, piece.cut));
            assert!(before < behind, "a piece that leads nowhere");
            (at, had) = (piece.end, piece.cut);
        }
    }

    /// Whether a read was served from memory, for the list of what the steps meet.
    pub fn met_kept(&self) -> Option<String> {
        (self.runs.hits() > 0).then(|| "records from memory".to_owned())
    }

    /// Pieces of kept records have the records of the log, as far as they reach.
    fn compare_kept(&self, fetch: &Fetch, piece: &Piece) {
        let of_log: Vec<_> = piece.items().collect();
        let compare = |kept: &Piece| {
            let kept_items: Vec<_> = kept.items().collect();
            let shared = kept_items.len().min(of_log.len());
            assert_eq!(kept_items[..shared], of_log[..shared]);
            assert!(kept.more || kept_items.len() >= of_log.len());
            match kept.more {
                true if kept_items.is_empty() => assert_eq!(kept.end, piece.end),
                true => assert!(fetch.from < kept.end && kept.end <= fetch.upto),
                false => assert_eq!(kept.end, fetch.upto),
            }
            if !kept.more && !piece.more {
                assert_eq!(kept_items.len(), of_log.len());
            }
        };
        compare(&self.runs.read(fetch).unwrap());
        if let Some(kept) = self.runs.kept(fetch) {
            compare(&kept);
        }
    }

    /// What a reader gets between `from` and the stream's tail, in pieces of about `bytes_max`. Wherever a piece ends,
    /// the rest must follow from there. None if records after `from` are removed.
    pub fn read(&self, stream: &Stream, from: Offset, bytes_max: usize) -> Option<Vec<Unit>> {
        let reader = self.log.reader();
        let tail = stream.facts().tail;
        let json = is_json(&stream.media.name);
        let mut read = Vec::new();
        let mut at = from;
        loop {
            let fetch = Fetch::new(stream, at, tail, bytes_max);
            let piece = match Piece::read(&reader, &fetch) {
                Err(ReadError::BelowFloor { .. }) if at == from => {
                    assert!(self.runs.read(&fetch).is_err());
                    assert!(self.runs.kept(&fetch).is_none());
                    return None;
                }
                piece => piece.unwrap(),
            };
            self.compare_kept(&fetch, &piece);
            let mut reached = at;
            for item in piece.items() {
                assert!(item.skip < item.take, "an item without data");
                assert!(reached < item.end, "{reached} is not before {}", item.end);
                assert!(item.end <= piece.end.max(tail));
                reached = item.end;
                // The position after the record identifies it.
                let record = item.end.sequence + u64::from(item.end.units > 0);
                let all = units(json, item.data, record);
                let (skip, take) = (item.skip as usize, item.take as usize);
                read.extend_from_slice(&all[skip..take]);
            }
            if !piece.more {
                assert_eq!(piece.end, tail);
                return Some(read);
            }
            assert!(at < piece.end, "a piece that leads nowhere");
            at = piece.end;
        }
    }
}

impl Rig {
    /// Where the last messages of a stream begin.
    pub fn last(&self, stream: &Stream, count: usize, bounds: LastMessagesBounds) -> Offset {
        let reader = self.log.reader();
        let mut search = LastMessages::new(stream, stream.facts(), count, bounds);
        loop {
            if let Some(found) = search.found() {
                return found;
            }
            let piece = Piece::read(&reader, &search.fetch()).unwrap();
            let items: Vec<_> = piece.items().collect();
            assert!(items.iter().all(|item| item.skip < item.take));
            assert!(items.windows(2).all(|pair| pair[0].end < pair[1].end));
            search.take(&items, piece.end, piece.more);
        }
    }
}

struct Recorder<'a> {
    log: LogJournal<'a, SimulatedDisk>,
    seen: &'a mut BTreeMap<u64, Option<Arc<Stream>>>,
}

impl Journal for Recorder<'_> {
    fn next_sequence(&self) -> Sequence {
        self.log.next_sequence()
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        let sequence = self.log.record(stream, change, data)?;
        self.seen.insert(stream.no, Some(Arc::clone(stream)));
        Ok(sequence)
    }
}
