//! A pool and its workers' connections.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;

use encke_mailbox::ReplyTo;

use crate::error::PoolError;
use crate::open_slots::OpenSlots;
use crate::options::{Capacity, PoolOptions, Strategy};
use crate::parts::{self, PARTS};
use crate::roster::{ClaimSeat, Roster};
use crate::seats::Seats;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, SnapshotCell};
use crate::turns::Turns;
use crate::worker::PoolWorker;

/// Named workers of which each job goes to one. Clones are the same pool.
///
/// `W` is what a worker connects with: whatever it takes to give it work.
///
/// Picks read a snapshot behind an atomic pointer. They never wait for each other or for workers that connect and
/// disconnect.
pub struct Pool<W> {
    pub(crate) inner: Arc<Inner<W>>,
}

/// The state that the clones of a pool share.
pub(crate) struct Inner<W> {
    pub(crate) options: PoolOptions,
    /// The number of jobs in the capacity of a worker, if it is limited.
    jobs_max: AtomicUsize,
    roster: Mutex<Roster<Arc<Shares<W>>>>,
    pub(crate) snapshot: SnapshotCell<Snapshot<W>>,
    pub(crate) turns: Turns,
    pub(crate) open: OpenSlots,
    pub(crate) seats: Seats,
    /// Claims that wait for a free worker, in order.
    pub(crate) claims: Mutex<VecDeque<ReplyTo<Picked<W>>>>,
}

/// The connected workers at one moment.
pub(crate) struct Snapshot<W> {
    /// In the order of slots.
    pub(crate) connected: Box<[Arc<Shares<W>>]>,
    /// The seed of each of those.
    pub(crate) seeds: Box<[u64]>,
    /// The slot of each of those.
    pub(crate) slots: Box<[usize]>,
    /// By seat in pools that `claim`, by slot in all others.
    pub(crate) places: Box<[Option<Arc<Shares<W>>>]>,
    pub(crate) slot_count: usize,
}

/// A worker from when it connects until it disconnects, and the value that it connected with.
pub(crate) struct WorkerConnection<W> {
    pub(crate) worker: Arc<PoolWorker>,
    value: W,
    pub(crate) pool: Arc<Inner<W>>,
    /// Its seat in a pool that claims, unused in all others.
    pub(crate) seat: ClaimSeat,
    /// [`GONE`], [`PAUSED`] and [`PARKED`].
    state: AtomicUsize,
}

/// The worker has disconnected.
const GONE: usize = 1;
/// The worker takes no jobs.
const PAUSED: usize = 2;
/// A claim found the connection paused and left it its seat.
const PARKED: usize = 4;

/// The outcome of a claim by the owner of the seat.
pub(crate) enum ClaimOutcome {
    Claimed,
    /// The worker is paused, and its connection owns the seat now.
    Parked,
    /// The worker has disconnected.
    Gone,
}

/// A connection as the pool and its worker hold it: a share for each part.
pub(crate) struct Shares<W> {
    connection: Arc<WorkerConnection<W>>,
    parts: [Arc<Share<W>>; PARTS],
}

/// A connection as a pick holds it; see [`parts`]. Alone in its cache lines, because each pick writes its reference count.
#[repr(align(128))]
pub(crate) struct Share<W> {
    connection: Arc<WorkerConnection<W>>,
}

/// A worker that was picked for a job; it dereferences to the value that the worker connected with. It occupies the
/// job's place in the worker's capacity until it is dropped.
///
/// The worker may disconnect at any time. The value lives as long as this does.
pub struct Picked<W> {
    share: Arc<Share<W>>,
    place: PickedPlace,
}

/// What a pick occupies: a job of this many bytes, or one of the constants. One number, because an enum with a field is
/// copied in parts of different widths, which costs as much as the rest of a pick.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PickedPlace(u64);

impl PickedPlace {
    /// Nothing: the capacity is unlimited.
    pub(crate) const UNLIMITED: Self = Self(u64::MAX);
    /// The seat of the connection.
    pub(crate) const SEAT: Self = Self(u64::MAX - 1);

    pub(crate) fn job(bytes: u32) -> Self {
        Self(bytes.into())
    }
}

/// A worker's membership in the pool: dropping it disconnects the worker.
pub struct Connected<W> {
    shares: Arc<Shares<W>>,
}

/// A pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// How many claims wait.
    pub waiting: usize,
    /// The workers in the order of slots.
    pub workers: Vec<WorkerInfo>,
}

/// A worker at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// The name.
    pub name: std::sync::Arc<str>,
    /// The slot; the first is 0.
    pub slot: usize,
    /// Whether it is connected.
    pub connected: bool,
}

impl<W> Pool<W> {
    /// A pool without workers.
    pub fn new(options: PoolOptions) -> Self {
        let options = PoolOptions {
            size: options.size.bounded(),
            ..options
        };
        let slots = options.size.max();
        // Seats for twice the workers: the claim of a disconnected worker keeps its seat.
        let (seats, slots) = match options.strategy {
            Strategy::Claim => (slots * 2, 0),
            _ => (0, slots),
        };
        let roster = Roster::new(options.size);
        let jobs_max = options.capacity.map_or(0, |capacity| capacity.jobs_max);
        Self {
            inner: Arc::new(Inner {
                options,
                jobs_max: AtomicUsize::new(jobs_max.into()),
                snapshot: SnapshotCell::new(Snapshot::of(&roster, options.strategy)),
                roster: Mutex::new(roster),
                turns: Turns::default(),
                open: OpenSlots::new(slots),
                seats: Seats::new(seats),
                claims: Mutex::new(VecDeque::new()),
            }),
        }
    }

    /// Adds a worker at the first free slot, not yet connected. Returns the slot; the first is 0.
    pub fn add(&self, worker: &str) -> Result<usize, PoolError> {
        self.inner.change(|roster| roster.add(worker, None))
    }

    /// Adds a worker at this slot, not yet connected.
    pub fn add_at(&self, worker: &str, slot: usize) -> Result<(), PoolError> {
        self.inner
            .change(|roster| roster.add(worker, Some(slot)).map(drop))
    }

    /// Removes a worker that is not connected.
    pub fn remove(&self, worker: &str) -> Result<(), PoolError> {
        self.inner.change(|roster| roster.remove(worker))
    }

    /// Connects a worker that was added: it can be picked until the returned value is dropped.
    pub fn connect(&self, worker: &str, value: W) -> Result<Connected<W>, PoolError> {
        let inner = &self.inner;
        // Taken only on success, so that a refused value is dropped without the lock.
        let mut value = Some(value);
        let shares = inner.change(|roster| {
            if roster.member(worker)?.connection.is_some() {
                return Err(PoolError::WorkerConnected {
                    name: worker.into(),
                });
            }
            let seat = match inner.options.strategy {
                Strategy::Claim => roster
                    .seat(inner.seats.count())
                    .ok_or(PoolError::TooManyLeftClaimed)?,
                _ => ClaimSeat::default(),
            };
            let member = roster.member(worker)?;
            let connection = Arc::new(WorkerConnection {
                worker: member.worker.clone(),
                value: value.take().expect("this closure runs once"),
                pool: inner.clone(),
                seat,
                state: AtomicUsize::new(0),
            });
            let share = |_| {
                let connection = connection.clone();
                Arc::new(Share { connection })
            };
            let shares = Shares {
                parts: std::array::from_fn(share),
                connection,
            };
            Ok(member.connection.insert(Arc::new(shares)).clone())
        })?;
        match inner.options.strategy {
            Strategy::Claim => inner.take_seat(&shares),
            _ => inner.refresh(shares.worker.slot),
        }
        Ok(Connected { shares })
    }

    /// Changes how many jobs one worker takes, if that is limited. A worker that has more keeps them, and gets no other until it has
    /// fewer. Nothing may be picked or dropped meanwhile by another thread: it might go by the number before.
    pub fn set_jobs_max(&self, jobs_max: u16) {
        let inner = &self.inner;
        inner.jobs_max.store(jobs_max.into(), Ordering::Release);
        if inner.options.strategy != Strategy::Claim {
            let slots = inner.snapshot.load().slots.to_vec();
            slots.into_iter().for_each(|slot| inner.refresh(slot));
        }
    }

    /// The pool and its workers at this moment.
    pub fn info(&self) -> PoolInfo {
        let waiting = self.inner.claims.lock().len();
        let roster = self.inner.roster.lock();
        let workers = roster.members().map(|member| WorkerInfo {
            name: member.worker.name.clone(),
            slot: member.worker.slot,
            connected: member.connection.is_some(),
        });
        PoolInfo {
            waiting,
            workers: workers.collect(),
        }
    }
}

impl<W> Inner<W> {
    /// How much work each worker takes now. None: unlimited.
    #[inline]
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        let jobs_max = self.jobs_max.load(Ordering::Acquire) as u16;
        let capacity = self.options.capacity;
        capacity.map(|capacity| Capacity {
            jobs_max,
            ..capacity
        })
    }

    /// Publishes whether the worker at this slot takes another job.
    ///
    /// Call it after each change of that. The last caller to write the bit reads the state again behind the write, and
    /// then sees what every caller before it changed, so the bit ends up right whatever the order.
    pub(crate) fn refresh(&self, slot: usize) {
        loop {
            let open = self.is_open(slot);
            self.open.put(slot, open);
            if self.is_open(slot) == open {
                return;
            }
        }
    }

    fn is_open(&self, slot: usize) -> bool {
        let snapshot = self.snapshot.load();
        let connection = snapshot.places.get(slot).and_then(Option::as_ref);
        connection.is_some_and(|connection| {
            connection.takes_jobs()
                && self
                    .capacity()
                    .is_none_or(|capacity| connection.worker.load.has_room(&capacity))
        })
    }

    /// The connection at this seat. None: it has disconnected.
    pub(crate) fn occupant(&self, seat: usize) -> Option<Arc<Share<W>>> {
        let snapshot = self.snapshot.load();
        Some(snapshot.places.get(seat)?.as_ref()?.share())
    }

    /// Gives up the seat of a disconnected worker. Only for the owner of the seat.
    pub(crate) fn give_up_seat(&self, number: usize) {
        self.roster.lock().give_up_seat(number);
    }

    /// The connection is gone. Gives up its seat if the pool owns it; otherwise its owner does. The lock keeps others from
    /// getting the seat in between.
    pub(crate) fn leave_seat(&self, connection: &WorkerConnection<W>) {
        let mut roster = self.roster.lock();
        if roster.is_current(connection.seat) && self.seats.take_back(connection.seat.number) {
            roster.give_up_seat(connection.seat.number);
        }
    }

    #[inline]
    pub(crate) fn only(&self, strategy: Strategy) -> Result<(), PoolError> {
        match self.options.strategy {
            own if own == strategy => Ok(()),
            strategy => Err(PoolError::WrongStrategy { strategy }),
        }
    }

    /// Changes the roster and publishes it.
    fn change<R>(
        &self,
        change: impl FnOnce(&mut Roster<Arc<Shares<W>>>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        let mut roster = self.roster.lock();
        let changed = change(&mut roster)?;
        self.snapshot
            .store(Snapshot::of(&roster, self.options.strategy));
        Ok(changed)
    }

    /// Removes a connection from the pool.
    fn disconnect(&self, shares: &Arc<Shares<W>>) {
        let removed = self.change(|roster| {
            let member = roster.member(&shares.worker.name)?;
            member.connection = None;
            Ok(shares.state.fetch_or(GONE, Ordering::AcqRel))
        });
        let Ok(state) = removed else {
            return;
        };
        match self.options.strategy {
            // The connection owns its seat.
            Strategy::Claim if state & PARKED != 0 => self.give_up_seat(shares.seat.number),
            Strategy::Claim => self.leave_seat(shares),
            _ => self.refresh(shares.worker.slot),
        }
    }
}

impl<W> Snapshot<W> {
    fn of(roster: &Roster<Arc<Shares<W>>>, strategy: Strategy) -> Self {
        let connected: Box<[_]> = roster
            .members()
            .filter_map(|member| member.connection.clone())
            .collect();
        let place = |shares: &Arc<Shares<W>>| match strategy {
            Strategy::Claim => shares.seat.number,
            _ => shares.worker.slot,
        };
        let place_count = connected.iter().map(place).max().map_or(0, |last| last + 1);
        let mut places: Box<[_]> = (0..place_count).map(|_| None).collect();
        for shares in &connected {
            places[place(shares)] = Some(shares.clone());
        }
        Self {
            seeds: connected.iter().map(|shares| shares.worker.seed).collect(),
            slots: connected.iter().map(|shares| shares.worker.slot).collect(),
            connected,
            places,
            slot_count: roster.slot_count(),
        }
    }
}

impl<W> WorkerConnection<W> {
    /// Whether it is connected and not paused.
    pub(crate) fn takes_jobs(&self) -> bool {
        self.state.load(Ordering::Acquire) == 0
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) & GONE != 0
    }

    /// Decides on a claim by the owner of the seat. A paused connection gets its seat.
    #[inline]
    pub(crate) fn claim(&self) -> ClaimOutcome {
        if self.takes_jobs() {
            return ClaimOutcome::Claimed;
        }
        let park = |state| (state & (GONE | PAUSED) == PAUSED).then_some(state | PARKED);
        match self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, park)
        {
            Ok(_) => ClaimOutcome::Parked,
            Err(state) if state & GONE != 0 => ClaimOutcome::Gone,
            Err(_) => ClaimOutcome::Claimed,
        }
    }
}

impl<W> Shares<W> {
    /// This thread's share.
    #[inline]
    pub(crate) fn share(&self) -> Arc<Share<W>> {
        self.parts[parts::part()].clone()
    }
}

impl<W> Deref for Shares<W> {
    type Target = WorkerConnection<W>;

    fn deref(&self) -> &WorkerConnection<W> {
        &self.connection
    }
}

impl<W> Deref for Share<W> {
    type Target = WorkerConnection<W>;

    fn deref(&self) -> &WorkerConnection<W> {
        &self.connection
    }
}

impl<W> Picked<W> {
    #[inline]
    pub(crate) fn new(share: Arc<Share<W>>, place: PickedPlace) -> Self {
        Self { share, place }
    }

    /// The worker's name.
    pub fn name(&self) -> &str {
        &self.share.worker.name
    }

    /// The worker's slot; the first is 0.
    pub fn slot(&self) -> usize {
        self.share.worker.slot
    }
}

impl<W> Deref for Picked<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.share.connection.value
    }
}

impl<W> Drop for Picked<W> {
    #[inline]
    fn drop(&mut self) {
        let connection = &*self.share.connection;
        match self.place {
            PickedPlace::UNLIMITED => {}
            PickedPlace::SEAT => connection.pool.release(connection),
            PickedPlace(bytes) => connection.pool.remove_job(&connection.worker, bytes as u32),
        }
    }
}

impl<W> Connected<W> {
    /// The worker's name.
    pub fn name(&self) -> &str {
        &self.shares.worker.name
    }

    /// The worker's slot; the first is 0.
    pub fn slot(&self) -> usize {
        self.shares.worker.slot
    }

    /// Keeps new jobs from the worker, which stays connected: it keeps its slot and its values in a `hash` pool. Costs
    /// nothing for the other workers, unlike a disconnection.
    pub fn pause(&self) {
        let connection = &*self.shares;
        connection.state.fetch_or(PAUSED, Ordering::AcqRel);
        if connection.pool.options.strategy != Strategy::Claim {
            connection.pool.refresh(connection.worker.slot);
        }
    }

    /// Ends a pause.
    pub fn resume(&self) {
        let connection = &*self.shares;
        let state = connection
            .state
            .fetch_and(!(PAUSED | PARKED), Ordering::AcqRel);
        if connection.pool.options.strategy != Strategy::Claim {
            connection.pool.refresh(connection.worker.slot);
        } else if state & PARKED != 0 {
            connection.pool.free(connection);
        }
    }
}

impl<W> Drop for Connected<W> {
    fn drop(&mut self) {
        self.shares.pool.disconnect(&self.shares);
    }
}

impl<W> Clone for Pool<W> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<W> fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl<W> fmt::Debug for Picked<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picked")
            .field("name", &self.name())
            .field("slot", &self.slot())
            .finish()
    }
}

impl<W> fmt::Debug for Connected<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("name", &self.name())
            .field("slot", &self.slot())
            .finish()
    }
}
