//! The queue of one lane: plain data behind the mailbox's mutex, without locks, threads or clocks.

use std::collections::VecDeque;

use crate::blocked::BlockedSender;
use crate::bounds::Bounds;
use crate::error::{SendError, SendErrorKind};
use crate::gauge::Meter;
use crate::stock::{Amount, Stock};

/// The items that gather in a lane, and the senders that wait for room in it.
///
/// Invariant: `stock` plus `carried` is within the bounds, unless `carried` alone exceeds them.
pub(crate) struct LaneQueue<T> {
    bounds: Bounds,
    pub(crate) stock: Stock<T>,
    /// What the receiver had not handled when it last drained.
    carried: Amount,
    waiting: VecDeque<WaitingItem<T>>,
    next_ticket: u64,
}

/// An item whose sender waits for room.
struct WaitingItem<T> {
    ticket: u64,
    item: T,
    size: u32,
    sender: BlockedSender,
}

impl<T> LaneQueue<T> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds: Bounds {
                // A lane without room for one item would never accept any.
                items_max: bounds.items_max.max(1),
                ..bounds
            },
            stock: Stock::new(),
            carried: Amount::default(),
            waiting: VecDeque::new(),
            next_ticket: 0,
        }
    }

    /// Accepts the item if there is room and no sender waits.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        item: T,
        bytes: usize,
        now_ns: impl FnOnce() -> u64,
        meter: &Meter,
    ) -> Result<(), SendError<T>> {
        match self.size_of(bytes) {
            Ok(size) if self.waiting.is_empty() && self.fits(size) => {
                self.put(item, size, now_ns, meter);
                Ok(())
            }
            Ok(_) => {
                let kind = self.full();
                Err(SendError { item, kind })
            }
            Err(kind) => Err(SendError { item, kind }),
        }
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a sender of an item of this size must wait. An item that never fits does not wait.
    #[inline]
    pub(crate) fn must_wait(&self, bytes: usize) -> bool {
        self.size_of(bytes)
            .is_ok_and(|size| self.has_waiting() || !self.fits(size))
    }

    /// Queues an item whose sender waits for room. Returns its ticket.
    pub(crate) fn wait(
        &mut self,
        item: T,
        bytes: usize,
        sender: BlockedSender,
        meter: &Meter,
    ) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.waiting.push_back(WaitingItem {
            ticket,
            item,
            size,
            sender,
        });
        meter.waiting(self.waiting.len());
        ticket
    }

    /// Returns an item to its sender. None: the item has been accepted.
    pub(crate) fn withdraw(&mut self, ticket: u64, meter: &Meter) -> Option<T> {
        let at = self
            .waiting
            .binary_search_by_key(&ticket, |waiting| waiting.ticket)
            .ok()?;
        let withdrawn = self.waiting.remove(at)?;
        meter.waiting(self.waiting.len());
        Some(withdrawn.item)
    }

    /// Accepts waiting items in their order as far as there is room; their senders are added to `admitted`.
    pub(crate) fn admit(
        &mut self,
        now_ns: impl Fn() -> u64,
        meter: &Meter,
        admitted: &mut Vec<BlockedSender>,
    ) {
        while let Some(first) = self.waiting.front()
            && self.fits(first.size)
            && let Some(first) = self.waiting.pop_front()
        {
            self.put(first.item, first.size, &now_ns, meter);
            admitted.push(first.sender);
        }
        if !admitted.is_empty() {
            meter.waiting(self.waiting.len());
        }
    }

    /// The waiting senders.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = BlockedSender> + '_ {
        self.waiting.iter().map(|waiting| waiting.sender.clone())
    }

    /// Swaps the gathered items for `empty`, which must be empty. `carried` is what the receiver has not handled.
    pub(crate) fn take(&mut self, empty: &mut Stock<T>, carried: Amount, meter: &Meter) {
        debug_assert!(empty.items.is_empty() && empty.sizes.is_empty());
        std::mem::swap(&mut self.stock, empty);
        self.carried = carried;
        meter.taken(empty.amount());
    }

    /// Lowers the carried amount to what the receiver still has in hand. Returns true while anything is carried.
    pub(crate) fn carry_at_most(&mut self, in_hand: Amount) -> bool {
        self.carried.items = self.carried.items.min(in_hand.items);
        self.carried.bytes = self.carried.bytes.min(in_hand.bytes);
        self.carried != Amount::default()
    }

    #[inline]
    fn size_of(&self, bytes: usize) -> Result<u32, SendErrorKind> {
        match u32::try_from(bytes) {
            Ok(size) if bytes <= self.bounds.bytes_max => Ok(size),
            _ => Err(SendErrorKind::TooLarge {
                bytes,
                bytes_max: self.bounds.bytes_max.min(u32::MAX as usize),
            }),
        }
    }

    #[inline]
    fn fits(&self, size: u32) -> bool {
        (self.stock.items.len() as u64 + self.carried.items) < self.bounds.items_max as u64
            && self.stock.bytes + self.carried.bytes + u64::from(size)
                <= self.bounds.bytes_max as u64
    }

    #[inline]
    fn put(&mut self, item: T, size: u32, now_ns: impl FnOnce() -> u64, meter: &Meter) {
        if self.stock.push(item, size, now_ns) {
            meter.oldest_queued(self.stock.oldest_ns);
        }
        meter.accepted(u64::from(size));
    }

    #[cold]
    fn full(&self) -> SendErrorKind {
        SendErrorKind::Full {
            items: self.stock.items.len() + self.carried.items as usize,
            bytes: (self.stock.bytes + self.carried.bytes) as usize,
            items_max: self.bounds.items_max,
            bytes_max: self.bounds.bytes_max,
        }
    }
}
