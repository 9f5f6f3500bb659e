//! A table that grows a chunk at a time, so that growing moves nothing and causes no pause.

use std::ops::{Index, IndexMut};

/// Entries found by number, in chunks of fixed size. It never gives memory back.
#[derive(Debug)]
pub(crate) struct ChunkedVec<T> {
    /// All full but the last.
    chunks: Vec<Vec<T>>,
}

impl<T> Default for ChunkedVec<T> {
    fn default() -> Self {
        ChunkedVec { chunks: Vec::new() }
    }
}

impl<T> ChunkedVec<T> {
    /// Adds an entry; its number.
    pub(crate) fn push(&mut self, entry: T) -> u32 {
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let full = self.chunks.len() - 1;
        let last = &mut self.chunks[full];
        last.push(entry);
        // The limit on connections is far below what 32 bits can count.
        (full * CHUNK + last.len() - 1) as u32
    }

    pub(crate) fn len(&self) -> usize {
        match self.chunks.split_last() {
            Some((last, full)) => full.len() * CHUNK + last.len(),
            None => 0,
        }
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let index = index as usize;
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }
}

impl<T> Index<u32> for ChunkedVec<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        let index = index as usize;
        &self.chunks[index / CHUNK][index % CHUNK]
    }
}

impl<T> IndexMut<u32> for ChunkedVec<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        let index = index as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

/// A power of two, so that finding an entry divides by shifting.
const CHUNK: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_over_chunks() {
        let mut chunks = ChunkedVec::default();
        for number in 0..3 * CHUNK as u32 {
            assert_eq!(chunks.push(number), number);
            assert_eq!(chunks.len(), number as usize + 1);
        }
        chunks[CHUNK as u32] = 7;
        assert_eq!(chunks[CHUNK as u32], 7);
        assert_eq!(chunks[CHUNK as u32 - 1], CHUNK as u32 - 1);
        assert_eq!(chunks.get(3 * CHUNK as u32), None);
    }
}
