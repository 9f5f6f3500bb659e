//! The slots whose workers take another job: a bit for each.

use crate::sync::{AtomicU64, Ordering};

/// A hint for picks. A set bit may be out of date, so a pick checks the worker. A clear bit is set again when the
/// worker gets room; see `Inner::refresh` for why none is lost.
pub(crate) struct OpenSlots(Box<[AtomicU64]>);

impl OpenSlots {
    pub(crate) fn new(slots: usize) -> Self {
        let words = slots.div_ceil(SLOTS_PER_WORD);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn put(&self, slot: usize, open: bool) {
        let (word, bit) = (slot / SLOTS_PER_WORD, 1 << (slot % SLOTS_PER_WORD));
        match open {
            true => self.0[word].fetch_or(bit, Ordering::AcqRel),
            false => self.0[word].fetch_and(!bit, Ordering::AcqRel),
        };
    }

    #[inline]
    pub(crate) fn is_open(&self, slot: usize) -> bool {
        let word = self.0.get(slot / SLOTS_PER_WORD);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (slot % SLOTS_PER_WORD) & 1 != 0)
    }

    /// The first of the first `slots` slots for which `accept` returns a value, from `from` on and then from the
    /// beginning, and the value.
    #[inline]
    pub(crate) fn find<R>(
        &self,
        slots: usize,
        from: usize,
        mut accept: impl FnMut(usize) -> Option<R>,
    ) -> Option<(usize, R)> {
        let words = slots.div_ceil(SLOTS_PER_WORD);
        let from = if from < slots { from } else { 0 };
        let (first, ahead) = (from / SLOTS_PER_WORD, !0 << (from % SLOTS_PER_WORD));
        // The first word comes twice: its slots from `from` on at the start, the others at the end.
        for turn in 0..=words {
            let index = match first + turn {
                beyond if beyond >= words => beyond - words,
                index => index,
            };
            let mut bits = self.0.get(index)?.load(Ordering::Acquire);
            if turn == 0 {
                bits &= ahead;
            } else if turn == words {
                bits &= !ahead;
            }
            while bits != 0 {
                let slot = index * SLOTS_PER_WORD + bits.trailing_zeros() as usize;
                if let Some(accepted) = accept(slot) {
                    return Some((slot, accepted));
                }
                bits &= bits - 1;
            }
        }
        None
    }

    /// How many of the first `slots` slots are open.
    pub(crate) fn count(&self, slots: usize) -> usize {
        let words = self.0.iter().take(slots.div_ceil(SLOTS_PER_WORD));
        words
            .map(|word| word.load(Ordering::Acquire).count_ones() as usize)
            .sum()
    }

    /// The open slot with this number among the open ones.
    pub(crate) fn nth(&self, mut number: usize) -> Option<usize> {
        for (index, word) in self.0.iter().enumerate() {
            let mut bits = word.load(Ordering::Acquire);
            let open = bits.count_ones() as usize;
            if number >= open {
                number -= open;
                continue;
            }
            for _ in 0..number {
                bits &= bits - 1;
            }
            return Some(index * SLOTS_PER_WORD + bits.trailing_zeros() as usize);
        }
        None
    }
}

const SLOTS_PER_WORD: usize = u64::BITS as usize;

#[cfg(all(test, not(encke_model)))]
mod tests {
    use super::*;

    #[test]
    fn open_slots_are_found_in_order_from_any_slot_on() {
        for slots in [1, 6, 63, 64, 65, 128, 200] {
            let open = OpenSlots::new(slots);
            let set: Vec<usize> = (0..slots).filter(|slot| slot % 3 == 0).collect();
            set.iter().for_each(|slot| open.put(*slot, true));
            assert_eq!(open.count(slots), set.len());
            for (number, slot) in set.iter().enumerate() {
                assert_eq!(open.nth(number), Some(*slot));
            }
            assert_eq!(open.nth(set.len()), None);
            for from in 0..=slots {
                let mut found = Vec::new();
                open.find(slots, from, |slot| {
                    found.push(slot);
                    None::<()>
                });
                let start = if from < slots { from } else { 0 };
                let ahead = set.iter().filter(|slot| **slot >= start);
                let behind = set.iter().filter(|slot| **slot < start);
                let expected: Vec<usize> = ahead.chain(behind).copied().collect();
                assert_eq!(found, expected, "{slots} from {from}");
            }
            set.iter().for_each(|slot| open.put(*slot, false));
            assert_eq!(open.find(slots, 0, Some), None);
        }
    }

    #[test]
    fn a_pool_without_slots_has_none_open() {
        assert_eq!(OpenSlots::new(0).find(0, 0, Some), None);
    }
}
