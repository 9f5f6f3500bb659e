//! One lane's queue: a plain data structure that lies behind the mailbox's mutex and knows no lock, thread or clock.

use std::collections::VecDeque;

use crate::error::{Refused, Why};
use crate::gauge::Meter;
use crate::options::{LaneOptions, Mode, Overload};
use crate::shared::Seat;

/// What gathers in a lane, and who waits for room in it.
///
/// Invariant: `items.len() == sizes.len()`, `bytes` is the sum of `sizes`, and `items.len() + carried.items` and
/// `bytes + carried.bytes` are within the bounds, unless `carried` alone is beyond them.
pub(crate) struct LaneQueue<T> {
    options: LaneOptions,
    pub(crate) stock: Stock<T>,
    /// What the receiver held already, unhandled, when it last drained.
    carried: Amount,
    /// True from the moment the lane was full until it is worked off down to its mark.
    overloaded: bool,
    waiting: VecDeque<Waiting<T>>,
    next_ticket: u64,
}

/// Items in their order, with their sizes.
pub(crate) struct Stock<T> {
    pub(crate) items: VecDeque<T>,
    pub(crate) sizes: VecDeque<u32>,
    pub(crate) bytes: u64,
    /// From when on the item at a position came in: one mark for each tick of the clock in which any came.
    pub(crate) marks: VecDeque<Mark>,
    /// How many items have left from the front since the stock was empty: marks count from there.
    gone: u64,
}

/// The item at this position, and those behind it up to the next mark, came in at this time.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    position: u64,
    at_ns: u64,
}

/// A number of items and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) items: u64,
    pub(crate) bytes: u64,
}

/// A sender that waits for room, with what it wants to send.
struct Waiting<T> {
    ticket: u64,
    item: T,
    size: u32,
    seat: Seat,
}

impl<T> LaneQueue<T> {
    pub(crate) fn new(options: LaneOptions) -> Self {
        Self {
            options,
            stock: Stock::new(),
            carried: Amount::default(),
            overloaded: false,
            waiting: VecDeque::new(),
            next_ticket: 0,
        }
    }

    /// Takes the item if there is room and nobody was first. What must go for it is put into `shed`.
    pub(crate) fn offer(
        &mut self,
        item: T,
        bytes: usize,
        now_ns: impl FnOnce() -> u64,
        meter: &Meter,
        shed: &mut Vec<T>,
    ) -> Result<(), Refused<T>> {
        let size = match self.size_of(bytes) {
            Ok(size) => size,
            Err(why) => return Err(Refused { item, why }),
        };
        if self.overloaded && self.options.resume_percent < 100 {
            self.relieve(meter);
        }
        let held_off = self.overloaded
            && self.options.overload == Overload::Refuse
            && self.options.resume_percent < 100;
        if self.waiting.is_empty() && !held_off && self.fits(size) {
            self.put(item, size, now_ns, meter);
            return Ok(());
        }
        if !self.overloaded {
            self.overloaded = true;
            meter.mode(self.overload_mode());
        }
        match self.options.overload {
            Overload::Wait | Overload::Refuse => {
                let why = if held_off {
                    self.shedding(meter)
                } else {
                    self.full()
                };
                Err(Refused { item, why })
            }
            Overload::ShedOldest => {
                while !self.fits(size) {
                    let Some((old, old_size)) = self.stock.pop() else {
                        break;
                    };
                    meter.shed(1, u64::from(old_size));
                    shed.push(old);
                }
                self.put_or_refuse(item, size, now_ns, meter)
            }
            Overload::Flush => {
                meter.shed(self.stock.items.len() as u64, self.stock.bytes);
                shed.extend(self.stock.items.drain(..));
                self.stock.clear();
                self.put_or_refuse(item, size, now_ns, meter)
            }
        }
    }

    /// True when a sender of this lane may wait for room.
    pub(crate) fn may_wait(&self) -> bool {
        self.options.overload == Overload::Wait
    }

    /// Queues a sender that waits for room. Returns its ticket.
    pub(crate) fn wait(&mut self, item: T, bytes: usize, seat: Seat, meter: &Meter) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.waiting.push_back(Waiting {
            ticket,
            item,
            size,
            seat,
        });
        meter.waiting(self.waiting.len());
        ticket
    }

    /// Takes back what a sender wanted to send and gave up on. None: it has been accepted meanwhile.
    pub(crate) fn give_up(&mut self, ticket: u64, meter: &Meter) -> Option<T> {
        let at = self
            .waiting
            .binary_search_by_key(&ticket, |w| w.ticket)
            .ok()?;
        let gone = self.waiting.remove(at)?;
        meter.waiting(self.waiting.len());
        Some(gone.item)
    }

    /// Lets in those who wait, in their order, as far as there is room; `woken` are to be told.
    pub(crate) fn admit(&mut self, now_ns: impl Fn() -> u64, meter: &Meter, woken: &mut Vec<Seat>) {
        while let Some(first) = self.waiting.front() {
            if !self.fits(first.size) {
                return;
            }
            let Some(Waiting {
                item, size, seat, ..
            }) = self.waiting.pop_front()
            else {
                return;
            };
            self.put(item, size, &now_ns, meter);
            meter.waiting(self.waiting.len());
            woken.push(seat);
        }
        if self.overloaded {
            self.relieve(meter);
        }
    }

    /// Everyone who waits, to be told that the receiver is gone.
    pub(crate) fn seats(&self) -> impl Iterator<Item = Seat> + '_ {
        self.waiting.iter().map(|w| w.seat.clone())
    }

    /// Swaps what waits for `empty`, which must be empty. `carried` is what the receiver still holds from before.
    pub(crate) fn take(&mut self, empty: &mut Stock<T>, carried: Amount, meter: &Meter) {
        debug_assert!(empty.items.is_empty() && empty.sizes.is_empty());
        std::mem::swap(&mut self.stock, empty);
        self.carried = carried;
        meter.taken(empty.items.len() as u64, empty.bytes);
    }

    /// Says that the receiver holds no more than this. Returns true while it still carries anything over.
    pub(crate) fn carry_at_most(&mut self, in_hand: Amount) -> bool {
        self.carried.items = self.carried.items.min(in_hand.items);
        self.carried.bytes = self.carried.bytes.min(in_hand.bytes);
        self.carried != Amount::default()
    }

    /// Takes what waits for good: the receiver is gone.
    pub(crate) fn abandon(&mut self, into: &mut Stock<T>) -> Amount {
        std::mem::swap(&mut self.stock, into);
        Amount {
            items: into.items.len() as u64,
            bytes: into.bytes,
        }
    }

    fn size_of(&self, bytes: usize) -> Result<u32, Why> {
        match u32::try_from(bytes) {
            Ok(size) if bytes <= self.options.bounds.bytes_max => Ok(size),
            _ => Err(Why::TooLarge {
                bytes,
                bytes_max: self.options.bounds.bytes_max.min(u32::MAX as usize),
            }),
        }
    }

    fn fits(&self, size: u32) -> bool {
        let bounds = self.options.bounds;
        (self.stock.items.len() as u64 + self.carried.items) < bounds.items_max as u64
            && self.stock.bytes + self.carried.bytes + u64::from(size) <= bounds.bytes_max as u64
    }

    fn put(&mut self, item: T, size: u32, now_ns: impl FnOnce() -> u64, meter: &Meter) {
        let every_tick = self.options.overload == Overload::ShedOldest;
        if self.stock.push(item, size, every_tick, now_ns) {
            meter.oldest_queued(self.stock.oldest_ns());
        }
        meter.accepted(1, u64::from(size));
    }

    fn put_or_refuse(
        &mut self,
        item: T,
        size: u32,
        now_ns: impl FnOnce() -> u64,
        meter: &Meter,
    ) -> Result<(), Refused<T>> {
        // Only what the receiver carries can still be in the way, and nobody can shed that.
        if !self.fits(size) {
            return Err(Refused {
                item,
                why: self.full(),
            });
        }
        self.put(item, size, now_ns, meter);
        meter.oldest_queued(self.stock.oldest_ns());
        Ok(())
    }

    fn full(&self) -> Why {
        Why::Full {
            items: self.stock.items.len() + self.carried.items as usize,
            bytes: (self.stock.bytes + self.carried.bytes) as usize,
            items_max: self.options.bounds.items_max,
            bytes_max: self.options.bounds.bytes_max,
        }
    }

    fn shedding(&self, meter: &Meter) -> Why {
        Why::Shedding {
            depth: meter.depth().items as usize,
            resume: self.resume().items as usize,
        }
    }

    /// The depth at which overload ends.
    fn resume(&self) -> Amount {
        let percent = u64::from(self.options.resume_percent.min(100));
        let share = |bound: usize| (bound as u128 * u128::from(percent) / 100) as u64;
        Amount {
            items: share(self.options.bounds.items_max),
            bytes: share(self.options.bounds.bytes_max),
        }
    }

    /// Ends the overload mode when the lane has been worked off down to its mark.
    fn relieve(&mut self, meter: &Meter) {
        let relieved = if self.options.resume_percent >= 100 {
            self.fits(0)
        } else {
            let (depth, resume) = (meter.depth(), self.resume());
            depth.items <= resume.items && depth.bytes <= resume.bytes
        };
        if relieved && self.waiting.is_empty() {
            self.overloaded = false;
            meter.mode(Mode::Open);
        }
    }

    fn overload_mode(&self) -> Mode {
        match self.options.overload {
            Overload::Wait => Mode::Waiting,
            Overload::Refuse => Mode::Refusing,
            Overload::ShedOldest | Overload::Flush => Mode::Shedding,
        }
    }
}

impl<T> Stock<T> {
    pub(crate) fn new() -> Self {
        Self {
            items: VecDeque::new(),
            sizes: VecDeque::new(),
            bytes: 0,
            marks: VecDeque::new(),
            gone: 0,
        }
    }

    /// Adds an item; returns true if a new mark was made for it.
    fn push(&mut self, item: T, size: u32, every_tick: bool, now_ns: impl FnOnce() -> u64) -> bool {
        let position = self.gone + self.items.len() as u64;
        self.items.push_back(item);
        self.sizes.push_back(size);
        self.bytes += u64::from(size);
        if self.marks.is_empty() || every_tick {
            let at_ns = now_ns();
            if self.marks.back().is_none_or(|last| last.at_ns != at_ns) {
                self.marks.push_back(Mark { position, at_ns });
                return true;
            }
        }
        false
    }

    pub(crate) fn pop(&mut self) -> Option<(T, u32)> {
        let item = self.items.pop_front()?;
        let size = self.sizes.pop_front().unwrap_or(0);
        self.bytes -= u64::from(size);
        self.gone += 1;
        while self
            .marks
            .get(1)
            .is_some_and(|next| next.position <= self.gone)
        {
            self.marks.pop_front();
        }
        if self.items.is_empty() {
            self.clear();
        }
        Some((item, size))
    }

    /// When the oldest item came in; 0 if there is none.
    pub(crate) fn oldest_ns(&self) -> u64 {
        self.marks.front().map_or(0, |mark| mark.at_ns)
    }

    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.sizes.clear();
        self.marks.clear();
        self.bytes = 0;
        self.gone = 0;
    }
}
