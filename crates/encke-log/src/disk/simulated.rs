//! A disk in memory that fails as disks do, for tests.
//!
//! It separates what the running system sees from what is durable. A power cut ([`SimulatedDisk::cut_power`]) loses
//! unsynced data, or some sectors of it in any order, and may tear one; of unsynced names it loses all after some
//! point. Writes and syncs fail on request, and a failed sync does what Linux does: dirty data counts as clean, whether
//! or not it reached the disk. Room ends at a capacity, and bits flip in durable data.
//!
//! Everything follows from a seed, and nothing runs in the background.

use crate::disk::{Disk, DiskFile};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

/// A file of a [`SimulatedDisk`].
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    state: Arc<Mutex<State>>,
    inode: usize,
}

/// The faults to inject. Operations are counted from 1 since the faults were set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The write or sync that fails, if any.
    pub failing_operation: Option<u64>,
    /// The read that fails, if any.
    pub failing_read: Option<u64>,
}

#[derive(Debug)]
struct State {
    inodes: Vec<Inode>,
    /// The names as the running system sees them, the durable names, and the changes in between, in order.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    name_changes: Vec<NameChange>,
    capacity_bytes: u64,
    /// A real directory, outside of this disk, for history.
    history: Option<PathBuf>,
    now: SystemTime,
    faults: Faults,
    operations: u64,
    reads: u64,
    /// Whether syncs wait, and how many do.
    held: bool,
    /// The time that each sync of a file takes.
    sync_time: Duration,
    waiting: usize,
    random: Random,
}

#[derive(Debug, Default)]
struct Inode {
    /// What the running system sees.
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// The sectors that were written since the last sync, in the order of their last write.
    dirty: Vec<usize>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Give(String, usize),
    Remove(String),
    /// One change, as in a journal: never both names, never none.
    Rename(String, String, usize),
}

impl SimulatedDisk {
    /// An empty disk; all its randomness follows from the seed.
    pub fn new(seed: u64) -> SimulatedDisk {
        let state = State {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            capacity_bytes: u64::MAX,
            history: None,
            now: SystemTime::UNIX_EPOCH,
            faults: Faults::default(),
            operations: 0,
            reads: 0,
            held: false,
            sync_time: Duration::ZERO,
            waiting: 0,
            random: Random::new(seed),
        };
        SimulatedDisk {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Gives history a real directory. It is not part of the simulation: a power cut does not change it.
    pub fn set_history(&self, directory: PathBuf) {
        self.state.lock().history = Some(directory);
    }

    /// Sets the clock, which otherwise stands still, to milliseconds after 1970.
    pub fn set_now(&self, ms: u64) {
        self.state.lock().now = SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
    }

    /// Sets the capacity of all files together, in bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = bytes;
    }

    /// The size of all files that have a name, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    /// Sets the faults, and begins to count operations from 1.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state.lock();
        state.faults = faults;
        (state.operations, state.reads) = (0, 0);
    }

    /// Holds or releases all syncs of files.
    pub fn hold_syncs(&self, held: bool) {
        self.state.lock().held = held;
    }

    /// Sets the time that each sync of a file takes.
    pub fn slow_syncs(&self, time: Duration) {
        self.state.lock().sync_time = time;
    }

    /// How many syncs wait.
    pub fn held_syncs(&self) -> usize {
        self.state.lock().waiting
    }

    /// How many writes and syncs there were since the faults were set.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Cuts the power and restores it: unsynced data is lost, all or in part. No log may be open.
    pub fn cut_power(&self) {
        let mut state = self.state.lock();
        let State { inodes, random, .. } = &mut *state;
        for inode in inodes {
            inode.cut_power(random);
        }
        let changes = state.name_changes.len() as u64;
        let kept = state.random.below(changes + 1) as usize;
        let changes: Vec<_> = state.name_changes.drain(..).take(kept).collect();
        for change in changes {
            change.apply(&mut state.durable_names);
        }
        state.names = state.durable_names.clone();
    }

    /// Flips a bit of durable data, up to a sector behind the last nonzero byte of a file. Returns the place, or `None`
    /// when there is no data.
    pub fn flip_bit(&self) -> Option<(String, u64)> {
        let mut state = self.state.lock();
        let files: Vec<_> = state.durable_names.clone().into_iter().collect();
        let file = state.random.below(files.len().max(1) as u64) as usize;
        let (name, inode) = files.get(file)?.clone();
        let used = state.inodes[inode]
            .durable
            .iter()
            .rposition(|byte| *byte != 0)?
            + 1;
        let end = state.inodes[inode].durable.len().min(used + SECTOR_BYTES);
        let position = state.random.below(end as u64) as usize;
        let bit = 1 << state.random.below(8);
        let Inode { cache, durable, .. } = &mut state.inodes[inode];
        durable[position] ^= bit;
        if let Some(byte) = cache.get_mut(position) {
            *byte ^= bit;
        }
        Some((name, position as u64))
    }

    /// Adds a durable file.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state.lock();
        let inode = state.inodes.len();
        state.inodes.push(Inode {
            cache: bytes.to_vec(),
            durable: bytes.to_vec(),
            dirty: Vec::new(),
        });
        state.names.insert(name.to_owned(), inode);
        state.durable_names.insert(name.to_owned(), inode);
    }

    /// The content of a file, if there is one.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let inode = *state.names.get(name)?;
        Some(state.inodes[inode].cache.clone())
    }
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;
    const BACKGROUND: bool = false;

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<SimulatedFile> {
        let mut state = self.state.lock();
        state.operation()?;
        if state.used_bytes().saturating_add(bytes) > state.capacity_bytes {
            return Err(Errno::NOSPC.into());
        }
        let inode = state.inodes.len();
        state.inodes.push(Inode {
            cache: vec![0; bytes as usize],
            ..Inode::default()
        });
        state.change(NameChange::Give(name.to_owned(), inode));
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> io::Result<SimulatedFile> {
        let state = self.state.lock();
        let inode = state.names.get(name).copied().ok_or(Errno::NOENT)?;
        Ok(self.file(inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operation()?;
        let inode = state.names.get(from).copied().ok_or(Errno::NOENT)?;
        state.change(NameChange::Rename(from.to_owned(), to.to_owned(), inode));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operation()?;
        if !state.names.contains_key(name) {
            return Err(Errno::NOENT.into());
        }
        state.change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operation()?;
        state.durable_names = state.names.clone();
        state.name_changes.clear();
        Ok(())
    }

    fn salt(&self) -> io::Result<u64> {
        Ok(self.state.lock().random.next())
    }

    fn history(&self) -> Option<PathBuf> {
        self.state.lock().history.clone()
    }

    fn now(&self) -> SystemTime {
        self.state.lock().now
    }

    fn between_steps(&self) -> io::Result<()> {
        self.state.lock().operation()
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("simulated").join(name)
    }
}

impl SimulatedDisk {
    fn file(&self, inode: usize) -> SimulatedFile {
        SimulatedFile {
            state: self.state.clone(),
            inode,
        }
    }
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state.lock();
        state.reads += 1;
        if state.faults.failing_read == Some(state.reads) {
            return Err(Errno::IO.into());
        }
        let cache = &state.inodes[self.inode].cache;
        let from = cache
            .len()
            .min(usize::try_from(offset).unwrap_or(usize::MAX));
        let read = bytes.len().min(cache.len() - from);
        bytes[..read].copy_from_slice(&cache[from..from + read]);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let failed = state.operation();
        // A failed write may have been done in part.
        let done = match failed {
            Ok(()) => bytes.len(),
            Err(_) => state.random.below(bytes.len() as u64 + 1) as usize,
        };
        state.inodes[self.inode].write(&bytes[..done], offset as usize);
        failed
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let time = state.sync_time;
        if !time.is_zero() {
            parking_lot::MutexGuard::unlocked(&mut state, || std::thread::sleep(time));
        }
        state.waiting += 1;
        while state.held {
            parking_lot::MutexGuard::unlocked(&mut state, || {
                std::thread::sleep(Duration::from_millis(1));
            });
        }
        state.waiting -= 1;
        let failed = state.operation();
        let State { inodes, random, .. } = &mut *state;
        let inode = &mut inodes[self.inode];
        if failed.is_ok() {
            inode.keep_all();
        } else {
            inode.keep_some(random);
        }
        inode.dirty.clear();
        failed
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operation()?;
        state.inodes[self.inode].cache.resize(bytes as usize, 0);
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.state.lock().inodes[self.inode].cache.len() as u64)
    }

    fn written_at(&self) -> io::Result<SystemTime> {
        // Files are as old as possible.
        Ok(SystemTime::UNIX_EPOCH)
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        self.names
            .values()
            .map(|inode| self.inodes[*inode].cache.len() as u64)
            .sum()
    }

    /// Counts an operation. It fails if a fault is set for it.
    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.faults.failing_operation {
            Some(failing) if failing == self.operations => Err(Errno::IO.into()),
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.name_changes.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Give(name, inode) => names.insert(name.clone(), *inode),
            NameChange::Remove(name) => names.remove(name),
            NameChange::Rename(from, to, inode) => {
                names.remove(from);
                names.insert(to.clone(), *inode)
            }
        };
    }
}

impl Inode {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if end > self.cache.len() {
            self.cache.resize(end, 0);
        }
        self.cache[offset..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            let sectors = offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES;
            self.dirty.retain(|sector| !sectors.contains(sector));
            self.dirty.extend(sectors);
        }
    }

    fn cut_power(&mut self, random: &mut Random) {
        self.keep_some(random);
        self.dirty.clear();
        self.cache.clone_from(&self.durable);
    }

    /// Makes dirty data durable, and only that: what a failed sync counted as clean stays lost.
    fn keep_all(&mut self) {
        self.durable.resize(self.cache.len(), 0);
        for sector in &self.dirty {
            let from = self.cache.len().min(sector * SECTOR_BYTES);
            let to = self.cache.len().min(from + SECTOR_BYTES);
            self.durable[from..to].copy_from_slice(&self.cache[from..to]);
        }
    }

    /// Makes some dirty data durable: nothing, everything, the first writes, or random sectors; of one sector perhaps
    /// only the beginning.
    fn keep_some(&mut self, random: &mut Random) {
        if self.cache.len() != self.durable.len() && random.below(2) == 0 {
            self.durable.resize(self.cache.len(), 0);
        }
        let way = random.below(4);
        let first = random.below(self.dirty.len() as u64 + 1) as usize;
        for (i, sector) in self.dirty.iter().enumerate() {
            let kept = match way {
                0 => false,
                1 => true,
                2 => i < first,
                _ => random.below(2) == 0,
            };
            let torn = i == first && random.below(2) == 0;
            let bytes = match (kept, torn) {
                (_, true) => random.below(SECTOR_BYTES as u64) as usize,
                (true, false) => SECTOR_BYTES,
                (false, false) => 0,
            };
            let from = sector * SECTOR_BYTES;
            let to = (from + bytes).min(self.durable.len()).min(self.cache.len());
            if from < to {
                self.durable[from..to].copy_from_slice(&self.cache[from..to]);
            }
        }
    }
}

/// Random numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "there is always a next one")]
    pub fn next(&mut self) -> u64 {
        // SplitMix64: good numbers from every seed, including 0.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `end`; 0 when `end` is.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

const SECTOR_BYTES: usize = 512;
