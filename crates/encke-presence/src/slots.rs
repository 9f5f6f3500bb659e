//! A table whose entries keep their index as long as they live. It grows without moving entries.

/// Entries by index. A free index is used again.
#[derive(Debug)]
pub(crate) struct EntrySlots<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    used: usize,
}

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

impl<T> EntrySlots<T> {
    /// Adds an entry and returns its index, which is never [`NONE`].
    pub(crate) fn insert(&mut self, entry: T) -> u32 {
        self.used += 1;
        if let Some(index) = self.free.pop() {
            *self.slot_mut(index) = Some(entry);
            return index;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self
            .chunks
            .last_mut()
            .expect("a chunk was added if there was none");
        chunk.push(Some(entry));
        let index = before + chunk.len() - 1;
        u32::try_from(index)
            .ok()
            .filter(|index| *index != NONE)
            .expect("2^32 entries exceed the memory of a server")
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let (chunk, place) = place_of(index);
        let entry = self.chunks.get_mut(chunk)?.get_mut(place)?.take()?;
        self.used -= 1;
        if self.used == 0 {
            // Memory of a former peak is given back. One chunk stays for the next entry.
            self.chunks.truncate(1);
            self.chunks.iter_mut().for_each(Vec::clear);
            self.free = Vec::new();
        } else {
            self.free.push(index);
        }
        Some(entry)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (chunk, place) = place_of(index);
        self.chunks.get(chunk)?.get(place)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (chunk, place) = place_of(index);
        self.chunks.get_mut(chunk)?.get_mut(place)?.as_mut()
    }

    /// All indexes are smaller than this one.
    pub(crate) fn end(&self) -> u32 {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        (full + self.chunks.last().map_or(0, Vec::len)) as u32
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    fn slot_mut(&mut self, index: u32) -> &mut Option<T> {
        let (chunk, place) = place_of(index);
        &mut self.chunks[chunk][place]
    }
}

impl<T> Default for EntrySlots<T> {
    fn default() -> Self {
        EntrySlots {
            chunks: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }
}

impl<T> std::ops::Index<u32> for EntrySlots<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.get(index)
            .expect("an index is kept only while its entry lives")
    }
}

impl<T> std::ops::IndexMut<u32> for EntrySlots<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index)
            .expect("an index is kept only while its entry lives")
    }
}

fn place_of(index: u32) -> (usize, usize) {
    (index as usize / CHUNK, index as usize % CHUNK)
}

/// Entries of one allocation.
const CHUNK: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_stable_and_is_used_again_when_free() {
        let mut slots = EntrySlots::default();
        let all: Vec<u32> = (0..2_000).map(|n| slots.insert(n)).collect();
        assert_eq!((slots.len(), slots.end()), (2_000, 2_000));
        assert!(all.iter().all(|index| slots[*index] == *index as i32));
        assert_eq!(slots.remove(700), Some(700));
        assert_eq!((slots.remove(700), slots.get(700)), (None, None));
        assert_eq!(slots.insert(-1), 700);
        assert_eq!(slots[700], -1);
        assert_eq!(slots.get(5_000), None);
    }

    #[test]
    fn an_empty_table_gives_memory_back() {
        let mut slots = EntrySlots::default();
        let all: Vec<u32> = (0..2_000).map(|n| slots.insert(n)).collect();
        for index in all {
            slots.remove(index);
        }
        assert_eq!((slots.len(), slots.end(), slots.chunks.len()), (0, 0, 1));
        assert_eq!(slots.insert(1), 0);
    }
}
