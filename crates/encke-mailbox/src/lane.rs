//! One lane's queue: a plain data structure that lies behind the mailbox's mutex and knows no lock, thread or clock.

use std::collections::VecDeque;

use crate::error::{Refused, Why};
use crate::gauge::Meter;
use crate::options::{Bounds, LaneOptions, Mode, Overload};
use crate::shared::Seat;
use crate::stock::{Amount, Stock};

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
            options: LaneOptions {
                bounds: Bounds {
                    // A lane that holds nothing would let nobody in, ever.
                    items_max: options.bounds.items_max.max(1),
                    ..options.bounds
                },
                ..options
            },
            stock: Stock::new(),
            carried: Amount::default(),
            overloaded: false,
            waiting: VecDeque::new(),
            next_ticket: 0,
        }
    }

    /// The size to count for an item, if there is room for it, nobody was first, and the lane is not overloaded.
    #[inline]
    pub(crate) fn room(&self, bytes: usize) -> Option<u32> {
        let size = self.size_of(bytes).ok()?;
        (!self.overloaded && self.waiting.is_empty() && self.fits(size)).then_some(size)
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
        if self.overloaded {
            self.relieve(meter);
        }
        let held_off = self.overloaded
            && self.options.overload == Overload::Refuse
            && self.options.resume_percent < 100;
        let first = self.waiting.is_empty() || self.options.wait_percent.is_some();
        if first && !held_off && self.fits(size) {
            self.put(item, size, now_ns, meter);
            return Ok(());
        }
        if !self.overloaded {
            self.overloaded = true;
            meter.mode(self.mode());
        }
        if held_off {
            let why = self.shedding(meter);
            return Err(Refused { item, why });
        }
        let may_shed = matches!(
            self.options.overload,
            Overload::ShedOldest | Overload::Flush
        );
        if !may_shed || !self.would_fit_alone(size) {
            let why = self.full();
            return Err(Refused { item, why });
        }
        while let Some((old, old_size)) = self.stock.pop() {
            meter.shed(1, u64::from(old_size));
            shed.push(old);
            if self.options.overload == Overload::ShedOldest && self.fits(size) {
                break;
            }
        }
        self.put(item, size, now_ns, meter);
        meter.oldest_queued(self.stock.oldest_ns());
        Ok(())
    }

    /// True when senders wait in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True when a sender that can wait is to do so. What never fits is not waited for.
    #[inline]
    pub(crate) fn queues(&self, bytes: usize) -> bool {
        let waits = self.options.overload == Overload::Wait || self.options.wait_percent.is_some();
        waits
            && self
                .size_of(bytes)
                .is_ok_and(|size| !self.waiting.is_empty() || !self.admits(size))
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
        meter.mode(self.mode());
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
        meter.mode(self.mode());
        Some(gone.item)
    }

    /// Lets in those who wait, in their order, as far as there is room; `woken` are to be told.
    pub(crate) fn admit(&mut self, now_ns: impl Fn() -> u64, meter: &Meter, woken: &mut Vec<Seat>) {
        while let Some(first) = self.waiting.front()
            && self.admits(first.size)
            && let Some(first) = self.waiting.pop_front()
        {
            self.put(first.item, first.size, &now_ns, meter);
            woken.push(first.seat);
        }
        if !woken.is_empty() {
            meter.waiting(self.waiting.len());
            meter.mode(self.mode());
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

    #[inline]
    fn size_of(&self, bytes: usize) -> Result<u32, Why> {
        match u32::try_from(bytes) {
            Ok(size) if bytes <= self.options.bounds.bytes_max => Ok(size),
            _ => Err(Why::TooLarge {
                bytes,
                bytes_max: self.options.bounds.bytes_max.min(u32::MAX as usize),
            }),
        }
    }

    #[inline]
    fn fits(&self, size: u32) -> bool {
        let bounds = self.options.bounds;
        (self.stock.items.len() as u64 + self.carried.items) < bounds.items_max as u64
            && self.stock.bytes + self.carried.bytes + u64::from(size) <= bounds.bytes_max as u64
    }

    /// True when the item fits once everything that waits is gone. What the receiver carries nobody can shed.
    fn would_fit_alone(&self, size: u32) -> bool {
        self.carried.items < self.options.bounds.items_max as u64
            && self.carried.bytes + u64::from(size) <= self.options.bounds.bytes_max as u64
    }

    /// True when one who waits may come in.
    fn admits(&self, size: u32) -> bool {
        let Some(percent) = self.options.wait_percent else {
            return self.fits(size);
        };
        let share = self.share(percent);
        let (items, bytes) = (
            self.stock.items.len() as u64 + self.carried.items,
            self.stock.bytes + self.carried.bytes,
        );
        // Into an empty lane anyone may who fits at all, or a large item would wait for ever.
        items == 0
            || (items < share.items && bytes + u64::from(size) <= share.bytes && self.fits(size))
    }

    /// Puts in an item that there is room for.
    #[inline]
    pub(crate) fn put(&mut self, item: T, size: u32, now_ns: impl FnOnce() -> u64, meter: &Meter) {
        let every_tick =
            self.options.overload == Overload::ShedOldest || self.options.age_limit.is_some();
        if self.stock.push(item, size, every_tick, now_ns) {
            meter.oldest_queued(self.stock.oldest_ns());
        }
        meter.accepted(1, u64::from(size));
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
        self.share(self.options.resume_percent)
    }

    /// This share of the bounds.
    fn share(&self, percent: u8) -> Amount {
        let percent = u128::from(percent.min(100));
        let share = |bound: usize| (bound as u128 * percent / 100) as u64;
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
        let waited_for = !self.waiting.is_empty() && self.options.wait_percent.is_none();
        if relieved && !waited_for {
            self.overloaded = false;
            meter.mode(self.mode());
        }
    }

    fn mode(&self) -> Mode {
        match self.options.overload {
            _ if !self.overloaded && self.waiting.is_empty() => Mode::Open,
            _ if !self.overloaded => Mode::Waiting,
            Overload::Wait => Mode::Waiting,
            Overload::Refuse => Mode::Refusing,
            Overload::ShedOldest | Overload::Flush => Mode::Shedding,
        }
    }
}
