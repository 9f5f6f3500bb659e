//! A queue of items with their sizes and the time of the oldest one.

use std::collections::VecDeque;

/// Items in order, with their sizes.
pub(crate) struct Stock<T> {
    pub(crate) items: VecDeque<T>,
    pub(crate) sizes: VecDeque<u32>,
    pub(crate) bytes: u64,
    /// When the first item arrived since the stock was last empty; 0 while it is empty.
    pub(crate) oldest_ns: u64,
}

/// A number of items and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) items: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    pub(crate) fn less(self, other: Amount) -> Amount {
        Amount {
            items: self.items.saturating_sub(other.items),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

impl<T> Stock<T> {
    pub(crate) fn new() -> Self {
        Self {
            items: VecDeque::new(),
            sizes: VecDeque::new(),
            bytes: 0,
            oldest_ns: 0,
        }
    }

    /// Adds an item. Returns true if it is the only one.
    #[inline]
    pub(crate) fn push(&mut self, item: T, size: u32, now_ns: impl FnOnce() -> u64) -> bool {
        let first = self.items.is_empty();
        if first {
            self.oldest_ns = now_ns();
        }
        self.items.push_back(item);
        self.sizes.push_back(size);
        self.bytes += u64::from(size);
        first
    }

    /// Removes the oldest item, with its size.
    pub(crate) fn pop(&mut self) -> Option<(T, u32)> {
        let item = self.items.pop_front()?;
        let size = self.sizes.pop_front().unwrap_or(0);
        self.bytes -= u64::from(size);
        if self.items.is_empty() {
            self.clear();
        }
        Some((item, size))
    }

    pub(crate) fn amount(&self) -> Amount {
        Amount {
            items: self.items.len() as u64,
            bytes: self.bytes,
        }
    }

    /// Frees the memory of a burst when the last batch had `recent` items. Call it while the stock is empty.
    pub(crate) fn trim(&mut self, recent: usize) {
        let worth_keeping = recent.saturating_mul(KEPT_TIMES).max(KEPT_ITEMS_MIN);
        if self.items.capacity() > worth_keeping {
            self.items = VecDeque::new();
        }
        if self.sizes.capacity() > worth_keeping {
            self.sizes = VecDeque::new();
        }
    }

    /// Removes everything but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.sizes.clear();
        self.bytes = 0;
        self.oldest_ns = 0;
    }
}

/// An empty queue keeps room for this many times the items of the last batch,
const KEPT_TIMES: usize = 8;

/// and for at least this many.
const KEPT_ITEMS_MIN: usize = 1_024;
