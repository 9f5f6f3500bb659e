//! An index of numbers by a hash, in a table that grows a little at a time.
//!
//! A hash table that doubles moves everything it holds at once: at a million names that stops a shard for tens of
//! milliseconds. This one is many small tables. When there are too many numbers for them, one table is split in two and
//! nothing else moves (linear hashing), so growing costs the same whatever the number of names.

use hashbrown::HashTable;

/// Numbers by the hash of their keys. It never gives memory back.
#[derive(Debug)]
pub(crate) struct HashIndex {
    parts: Vec<HashTable<u32>>,
    /// Parts before this one are split already in the present round.
    split: usize,
    /// A power of two: how many parts there were when the round began.
    round: usize,
    len: usize,
}

// What a part costs beside its numbers, each of which is four bytes and one of the table's own.
const _: () = assert!(size_of::<HashTable<u32>>() <= 32);

impl Default for HashIndex {
    fn default() -> Self {
        HashIndex {
            parts: vec![HashTable::new()],
            split: 0,
            round: 1,
            len: 0,
        }
    }
}

impl HashIndex {
    /// The number with that hash for which `is_it` is true.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let part = &self.parts[self.part(hash)];
        part.find(hash, |number| is_it(*number)).copied()
    }

    /// Adds a number that is not there. `hash_of` returns the hash of any number in the index, and of this one.
    pub(crate) fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        let part = self.part(hash);
        self.parts[part].insert_unique(hash, number, |number| hash_of(*number));
        self.len += 1;
        if self.len > self.parts.len() * PART_NUMBERS {
            self.split(hash_of);
        }
    }

    /// Removes a number. Returns whether it was present.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) -> bool {
        let part = self.part(hash);
        let Ok(entry) = self.parts[part].find_entry(hash, |other| *other == number) else {
            return false;
        };
        entry.remove();
        self.len -= 1;
        true
    }

    /// Moves half of one part to a new one.
    fn split(&mut self, hash_of: impl Fn(u32) -> u64) {
        let old = std::mem::take(&mut self.parts[self.split]);
        let (round, split) = (self.round, self.split);
        let stays = |number: &u32| address(hash_of(*number)) & (2 * round - 1) == split;
        let kept = old.iter().filter(|number| stays(number)).count();
        let mut here = HashTable::with_capacity(kept + kept / 2);
        let mut there = HashTable::with_capacity((old.len() - kept) * 3 / 2);
        for number in old {
            let part = if stays(&number) {
                &mut here
            } else {
                &mut there
            };
            part.insert_unique(hash_of(number), number, |number| hash_of(*number));
        }
        self.parts[split] = here;
        self.parts.push(there);
        self.split += 1;
        if self.split == self.round {
            self.round *= 2;
            self.split = 0;
        }
    }

    fn part(&self, hash: u64) -> usize {
        let part = address(hash) & (self.round - 1);
        if part < self.split {
            address(hash) & (2 * self.round - 1)
        } else {
            part
        }
    }
}

/// The bits of a hash that select a part. A part itself uses the lowest and the topmost ones.
fn address(hash: u64) -> usize {
    (hash >> 24) as usize & u32::MAX as usize
}

/// Numbers in a part on average; up to twice as many during a round of splitting.
const PART_NUMBERS: usize = 512;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use foldhash::fast::FixedState;
    use proptest::prelude::*;

    use super::*;

    fn hash_of(number: u32) -> u64 {
        FixedState::default().hash_one(number)
    }

    fn is_there(numbers: &HashIndex, number: u32) -> bool {
        numbers.find(hash_of(number), |other| other == number) == Some(number)
    }

    #[test]
    fn everything_is_found_however_large_it_grows() {
        let mut numbers = HashIndex::default();
        for number in 0..50_000 {
            numbers.insert(hash_of(number), number, hash_of);
        }
        assert!((0..50_000).all(|number| is_there(&numbers, number)));
        assert!((50_000..60_000).all(|number| !is_there(&numbers, number)));
        assert_eq!(
            numbers.parts.iter().map(HashTable::len).sum::<usize>(),
            50_000
        );
    }

    #[test]
    fn no_insertion_moves_more_than_a_few_parts_hold() {
        let mut numbers = HashIndex::default();
        let mut most = 0;
        for number in 0..300_000 {
            let asked = std::cell::Cell::new(0);
            numbers.insert(hash_of(number), number, |number| {
                asked.set(asked.get() + 1);
                hash_of(number)
            });
            most = most.max(asked.get());
        }
        // A split asks for the hash of what it moves three times, a part that grows once.
        assert!(most > PART_NUMBERS, "nothing was ever moved");
        assert!(most < 16 * PART_NUMBERS, "{most} hashes in one insertion");
    }

    proptest! {
        #[test]
        fn it_holds_what_a_set_holds(steps in prop::collection::vec((any::<bool>(), 0..4_000_u32), 0..8_000)) {
            let mut numbers = HashIndex::default();
            let mut set = HashSet::new();
            for (add, number) in steps {
                if !add {
                    prop_assert_eq!(numbers.remove(hash_of(number), number), set.remove(&number));
                } else if set.insert(number) {
                    numbers.insert(hash_of(number), number, hash_of);
                }
            }
            for number in 0..4_000 {
                prop_assert_eq!(is_there(&numbers, number), set.contains(&number));
            }
        }
    }
}
