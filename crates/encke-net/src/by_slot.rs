//! What some connections have beside their slots.

/// Entries by the numbers of slots: a small table for each stretch of slots. One large table would move all entries when it grows,
/// and stop the shard for that long when many connections get entries at once.
#[derive(Debug)]
pub(crate) struct BySlot<T> {
    parts: Vec<Part<T>>,
}

type Part<T> = hashbrown::HashMap<u32, Box<T>, foldhash::fast::FixedState>;

impl<T> Default for BySlot<T> {
    fn default() -> Self {
        BySlot { parts: Vec::new() }
    }
}

impl<T> BySlot<T> {
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let entry = self.parts.get(part(index))?.get(&index)?;
        Some(entry)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let entry = self.parts.get_mut(part(index))?.get_mut(&index)?;
        Some(entry)
    }

    /// Sets the entry of a connection.
    pub(crate) fn insert(&mut self, index: u32, entry: T) {
        self.insert_boxed(index, Box::new(entry));
    }

    /// Sets the entry of a connection, which stays in its place in memory.
    pub(crate) fn insert_boxed(&mut self, index: u32, entry: Box<T>) {
        self.part(index).insert(index, entry);
    }

    /// Removes an entry, and shrinks its part once most entries are gone.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Box<T>> {
        let part = self.parts.get_mut(part(index))?;
        let removed = part.remove(&index);
        if part.capacity() > ROOM_KEPT && part.len() < part.capacity() / 16 {
            part.shrink_to(ROOM_KEPT);
        }
        removed
    }

    fn part(&mut self, index: u32) -> &mut Part<T> {
        let part = part(index);
        if self.parts.len() <= part {
            self.parts.resize_with(part + 1, Part::default);
        }
        &mut self.parts[part]
    }
}

fn part(index: u32) -> usize {
    index as usize / PART_SLOTS
}

/// Slots that share a part: the most entries that are moved when it grows.
const PART_SLOTS: usize = 4096;

/// Entries for which a part keeps room.
const ROOM_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_entries_come_and_go() {
        let mut table: BySlot<u32> = BySlot::default();
        let count = 3 * PART_SLOTS as u32;
        for index in (0..count).rev() {
            table.insert(index, 7);
            table.insert(index, index);
        }
        assert!((0..count).all(|index| table.get(index) == Some(&index)));
        assert!(table.parts.iter().all(|part| part.len() == PART_SLOTS));
        for index in 0..count {
            assert_eq!(table.remove(index).as_deref(), Some(&index));
            assert!(table.get(index).is_none() && table.get_mut(index).is_none());
        }
        let mut parts = table.parts.iter();
        assert!(parts.all(|part| part.capacity() <= 2 * ROOM_KEPT));
        assert_eq!(table.remove(count), None);
    }
}
