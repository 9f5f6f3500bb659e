//! Items in their order, with their sizes and the times that they came in.

use std::collections::VecDeque;

/// Items in their order, with their sizes.
pub(crate) struct Stock<T> {
    pub(crate) items: VecDeque<T>,
    pub(crate) sizes: VecDeque<u32>,
    pub(crate) bytes: u64,
    /// When items came in. One mark for the first item; one for each tick of the clock in which any came where ages
    /// matter item by item.
    marks: VecDeque<Mark>,
    /// How many items have left from the front since the stock was empty: marks count from there.
    gone: u64,
}

/// The item at this position, and those behind it up to the next mark, came in at this time.
#[derive(Clone, Copy)]
struct Mark {
    position: u64,
    at_ns: u64,
}

/// A number of items and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) items: u64,
    pub(crate) bytes: u64,
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
    #[inline]
    pub(crate) fn push(
        &mut self,
        item: T,
        size: u32,
        every_tick: bool,
        now_ns: impl FnOnce() -> u64,
    ) -> bool {
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

    /// Takes the oldest item, with its size.
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

    /// Gives memory back that a burst took, when `recent` items are what it is needed for now. Call it while empty.
    pub(crate) fn trim(&mut self, recent: usize) {
        let worth_keeping = recent.saturating_mul(KEPT_TIMES).max(KEPT_ITEMS_MIN);
        if self.items.capacity() > worth_keeping {
            self.items = VecDeque::new();
        }
        if self.sizes.capacity() > worth_keeping {
            self.sizes = VecDeque::new();
        }
    }

    /// When the oldest item came in; 0 if there is none.
    pub(crate) fn oldest_ns(&self) -> u64 {
        self.marks.front().map_or(0, |mark| mark.at_ns)
    }

    /// Forgets everything but the memory.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.sizes.clear();
        self.marks.clear();
        self.bytes = 0;
        self.gone = 0;
    }
}

/// An empty queue keeps room for this many times the items of the last batch,
const KEPT_TIMES: usize = 8;

/// and for at least this many.
const KEPT_ITEMS_MIN: usize = 1_024;
