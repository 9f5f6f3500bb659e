//! Bytes that go in at one end and are taken off at the other.

/// A queue of bytes, of which the first are taken first.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    bytes: Vec<u8>,
    /// How many of them were taken meanwhile.
    taken: usize,
}

impl ByteQueue {
    /// What is taken next.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Whether everything was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// Takes the next `count` bytes off. Each byte is moved a few times at most, however small the parts are.
    pub(crate) fn take(&mut self, count: usize) {
        self.taken += count;
        if self.is_empty() {
            *self = ByteQueue::default();
        }
    }

    /// Adds bytes behind the others.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        if self.taken > self.rest().len() {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// What it takes in memory.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl From<Vec<u8>> for ByteQueue {
    fn from(bytes: Vec<u8>) -> Self {
        ByteQueue { bytes, taken: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_out_once_and_in_order() {
        let mut queue = ByteQueue::from(b"abc".to_vec());
        queue.take(2);
        assert_eq!(queue.rest(), b"c");
        queue.append(b"de");
        assert_eq!(queue.rest(), b"cde");
        queue.take(3);
        assert!(queue.is_empty());
        assert_eq!(queue.capacity(), 0);
    }

    #[test]
    fn a_queue_that_is_never_empty_keeps_only_about_what_is_in_it() {
        let mut queue = ByteQueue::from(vec![0; 1000]);
        for _ in 0..10_000 {
            queue.take(100);
            queue.append(&[0; 100]);
        }
        assert!(queue.rest().len() == 1000 && queue.capacity() < 8000);
    }
}
