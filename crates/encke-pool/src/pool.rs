//! A pool: who belongs to it, and the picks.

use std::fmt;
use std::hash::Hash;
use std::sync::atomic::AtomicUsize as Turn;

use crate::choice;
use crate::connection::{Connected, Connection, Picked, Share, Shares};
use crate::error::PoolError;
use crate::line::Line;
use crate::options::{Options, Strategy};
use crate::roster::{Roster, Seat};
use crate::seats::Seats;
use crate::sync::{Arc, Mutex, Ordering, Published};

/// Named workers of which each job goes to one. Clones are the same pool.
///
/// `W` is what a worker connects with: whatever it takes to give it work, such as a [`encke_mailbox::Sender`].
///
/// Picks read a snapshot behind an atomic pointer and never wait, neither for each other nor for workers that come and
/// go.
pub struct Pool<W> {
    pub(crate) inner: Arc<Inner<W>>,
}

/// What the clones of a pool share.
pub(crate) struct Inner<W> {
    pub(crate) name: std::sync::Arc<str>,
    pub(crate) options: Options,
    roster: Mutex<Roster<W>>,
    snapshot: Published<Snapshot<W>>,
    turn: PaddedTurn,
    pub(crate) seats: Seats,
    pub(crate) line: Mutex<Line<W>>,
}

/// Whose turn it is. Alone in its pair of cache lines, which processors fetch together, for every pick of a `round_robin`
/// pool writes it.
#[repr(align(128))]
struct PaddedTurn(Turn);

/// Who was connected at one moment.
struct Snapshot<W> {
    /// In the order of slots.
    connected: Box<[Arc<Shares<W>>]>,
    /// The seed of each of those.
    seeds: Box<[u64]>,
    /// The worker at each slot of pools that are `direct`, at each seat of those that `claim`.
    places: Box<[Option<Arc<Shares<W>>>]>,
    slot_count: usize,
}

/// What a pool is like at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// The pool's name.
    pub name: std::sync::Arc<str>,
    /// What it was made with.
    pub options: Options,
    /// How many slots there are now.
    pub slots: usize,
    /// How many claims wait in line.
    pub waiting: usize,
    /// The workers, in the order of slots.
    pub workers: Vec<WorkerInfo>,
}

/// What a worker is like at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Its name.
    pub name: std::sync::Arc<str>,
    /// Its slot; the first is 0.
    pub slot: usize,
    /// True while it is connected.
    pub connected: bool,
    /// How often it has been picked or claimed since it was added.
    pub picks: u64,
}

impl<W> Pool<W> {
    /// Makes a pool without workers. `name` is what errors and listings call it.
    pub fn new(name: &str, options: Options) -> Self {
        let options = Options {
            size: options.size.bounded(),
            ..options
        };
        // Twice the workers, for those whose connections are gone but claimed yet.
        let seat_count = match options.strategy {
            Strategy::Claim => options.size.max() * 2,
            _ => 0,
        };
        let roster = Roster::new(options.size);
        Self {
            inner: Arc::new(Inner {
                name: name.into(),
                options,
                snapshot: Published::new(Snapshot::of(&roster, options.strategy)),
                roster: Mutex::new(roster),
                turn: PaddedTurn(Turn::new(0)),
                seats: Seats::new(seat_count),
                line: Mutex::new(Line::new()),
            }),
        }
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What the pool was made with.
    pub fn options(&self) -> &Options {
        &self.inner.options
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

    /// Removes a worker that is not connected, with its counts.
    pub fn remove(&self, worker: &str) -> Result<(), PoolError> {
        self.inner.change(|roster| roster.remove(worker))
    }

    /// Connects a worker that has been added: from now on it can be picked, until the answer is dropped or
    /// [`Self::disconnect`] is called.
    pub fn connect(&self, worker: &str, value: W) -> Result<Connected<W>, PoolError> {
        let inner = &self.inner;
        // Stays out here until it is needed, so that what is not needed is dropped without the lock.
        let mut value = Some(value);
        let connection = inner.change(|roster| {
            if roster.member(worker)?.connection.is_some() {
                return Err(PoolError::WorkerConnected {
                    name: worker.into(),
                });
            }
            let seat = match inner.options.strategy {
                Strategy::Claim => roster
                    .seat(inner.seats.count())
                    .ok_or(PoolError::TooManyLeftClaimed)?,
                _ => Seat::default(),
            };
            let member = roster.member(worker)?;
            let value = value.take().expect("this closure runs once");
            let connection = Connection::new(member.worker.clone(), value, inner.clone(), seat);
            let shares = Arc::new(Shares::new(connection));
            Ok(member.connection.insert(shares).clone())
        })?;
        if inner.options.strategy == Strategy::Claim {
            inner.take_seat(&connection);
        }
        Ok(Connected::new(connection))
    }

    /// Disconnects a worker, as if it had died: it is picked no more, but stays added. What it was given before it
    /// keeps.
    pub fn disconnect(&self, worker: &str) -> Result<(), PoolError> {
        let connection = {
            let mut roster = self.inner.roster.lock();
            roster.member(worker)?.connection.clone()
        };
        Inner::disconnect(&connection.ok_or(PoolError::NobodyConnected)?);
        Ok(())
    }

    /// Picks the next worker of a `round_robin` pool, or any of a `random` one.
    #[inline]
    pub fn pick(&self) -> Result<Picked<W>, PoolError> {
        let snapshot = self.inner.snapshot.load();
        let count = snapshot.connected.len();
        let index = match self.inner.options.strategy {
            Strategy::RoundRobin | Strategy::Random if count == 0 => {
                return Err(PoolError::NobodyConnected);
            }
            Strategy::RoundRobin => self.inner.turn.0.fetch_add(1, Ordering::Relaxed) % count,
            Strategy::Random => choice::random_below(count),
            strategy => return Err(PoolError::WrongStrategy { strategy }),
        };
        Ok(Picked::new(&snapshot.connected[index]))
    }

    /// Picks the worker of a `hash` pool for this value: the same for the same value, also after a restart, as long as
    /// that worker is connected. The values of a worker that goes are spread over all the others; no other value moves.
    /// Costs about a nanosecond for each connected worker.
    #[inline]
    pub fn pick_for(&self, value: &(impl Hash + ?Sized)) -> Result<Picked<W>, PoolError> {
        self.inner.only(Strategy::Hash)?;
        let snapshot = self.inner.snapshot.load();
        let index = choice::rendezvous(&snapshot.seeds, choice::hash_of(value))
            .ok_or(PoolError::NobodyConnected)?;
        Ok(Picked::new(&snapshot.connected[index]))
    }

    /// Picks the worker at this slot of a `direct` pool; the first is 0.
    #[inline]
    pub fn pick_at(&self, slot: usize) -> Result<Picked<W>, PoolError> {
        self.inner.only(Strategy::Direct)?;
        let snapshot = self.inner.snapshot.load();
        match snapshot.places.get(slot) {
            Some(Some(connection)) => Ok(Picked::new(connection)),
            _ if slot < snapshot.slot_count => Err(PoolError::NobodyConnected),
            _ => Err(PoolError::OutOfRange {
                slot,
                size: snapshot.slot_count,
            }),
        }
    }

    /// The pool and its workers right now.
    pub fn info(&self) -> PoolInfo {
        let waiting = self.inner.line.lock().len();
        let roster = self.inner.roster.lock();
        PoolInfo {
            name: self.inner.name.clone(),
            options: self.inner.options,
            slots: roster.slot_count(),
            waiting,
            workers: roster
                .members()
                .map(|member| WorkerInfo {
                    name: member.worker.name.clone(),
                    slot: member.worker.slot,
                    connected: member.connection.is_some(),
                    picks: member.worker.picks.read(),
                })
                .collect(),
        }
    }
}

impl<W> Inner<W> {
    /// Takes a connection out, if it has not been before.
    pub(crate) fn disconnect(connection: &Arc<Shares<W>>) {
        let inner = &connection.pool;
        let mut roster = inner.roster.lock();
        let Ok(member) = roster.member(&connection.worker.name) else {
            return;
        };
        if member
            .connection
            .take_if(|current| Arc::ptr_eq(current, connection))
            .is_none()
        {
            return;
        }
        connection.go();
        inner.publish(&roster);
        drop(roster);
        if inner.options.strategy == Strategy::Claim {
            inner.leave_seat(connection);
        }
    }

    /// Takes every connection out and lets nobody in again: the pool is deleted. Refused while a worker is connected,
    /// unless it is done by force.
    pub(crate) fn close(&self, by_force: bool) -> Result<(), PoolError> {
        let mut roster = self.roster.lock();
        let connected = roster.members().find(|member| member.connection.is_some());
        if let (Some(member), false) = (connected, by_force) {
            let name = member.worker.name.clone();
            return Err(PoolError::WorkerConnected { name });
        }
        roster.deleted = true;
        let connections: Vec<_> = roster
            .members_mut()
            .filter_map(|member| member.connection.take())
            .collect();
        for connection in &connections {
            connection.go();
        }
        self.publish(&roster);
        drop(roster);
        if self.options.strategy == Strategy::Claim {
            for connection in &connections {
                self.leave_seat(connection);
            }
            self.close_line();
        }
        Ok(())
    }

    /// Who sits on this seat. Only for who owns the seat: then it is nobody else, and None means that it has gone.
    pub(crate) fn occupant(&self, seat: usize) -> Option<Arc<Share<W>>> {
        let snapshot = self.snapshot.load();
        let connection = snapshot.places.get(seat)?.as_ref()?;
        (!connection.is_gone()).then(|| connection.share())
    }

    /// The caller owns this seat, of a connection that has gone, and gives it up.
    pub(crate) fn give_up_seat(&self, number: usize) {
        self.roster.lock().give_up_seat(number);
    }

    /// The connection has gone. If the pool owns its seat, the seat is given up; else who owns it does that, now or when
    /// it finds out. By the lock, nobody new can have got the seat in between.
    pub(crate) fn leave_seat(&self, connection: &Connection<W>) {
        let mut roster = self.roster.lock();
        if roster.is_current(connection.seat) && self.seats.take_back(connection.seat.number) {
            roster.give_up_seat(connection.seat.number);
        }
    }

    pub(crate) fn has_nobody(&self) -> bool {
        self.snapshot.load().connected.is_empty()
    }

    #[inline]
    pub(crate) fn only(&self, strategy: Strategy) -> Result<(), PoolError> {
        if self.options.strategy == strategy {
            return Ok(());
        }
        Err(PoolError::WrongStrategy {
            strategy: self.options.strategy,
        })
    }

    pub(crate) fn unknown(&self) -> PoolError {
        PoolError::UnknownPool {
            name: self.name.clone(),
        }
    }

    /// Changes who belongs to the pool and lets everyone see it.
    fn change<R>(
        &self,
        change: impl FnOnce(&mut Roster<W>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        let mut roster = self.roster.lock();
        if roster.deleted {
            return Err(self.unknown());
        }
        let changed = change(&mut roster)?;
        self.publish(&roster);
        Ok(changed)
    }

    fn publish(&self, roster: &Roster<W>) {
        self.snapshot
            .store(Snapshot::of(roster, self.options.strategy));
    }
}

impl<W> Snapshot<W> {
    fn of(roster: &Roster<W>, strategy: Strategy) -> Self {
        let connected: Box<[_]> = roster
            .members()
            .filter_map(|member| member.connection.clone())
            .collect();
        let place = |connection: &Arc<Shares<W>>| match strategy {
            Strategy::Claim => Some(connection.seat.number),
            Strategy::Direct => Some(connection.worker.slot),
            Strategy::RoundRobin | Strategy::Random | Strategy::Hash => None,
        };
        let place_count = connected
            .iter()
            .filter_map(place)
            .max()
            .map_or(0, |last| last + 1);
        let mut places: Box<[_]> = (0..place_count).map(|_| None).collect();
        for connection in &connected {
            if let Some(place) = place(connection) {
                places[place] = Some(connection.clone());
            }
        }
        Self {
            seeds: connected
                .iter()
                .map(|connection| connection.worker.seed)
                .collect(),
            connected,
            places,
            slot_count: roster.slot_count(),
        }
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
            .field("name", &self.inner.name)
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}
