//! The memory of connections beyond their slots: parts of requests, and output that sockets have not taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that all connections of a server hold, and how many they may.
#[derive(Debug)]
pub(crate) struct Buffers {
    bytes: AtomicUsize,
    bytes_max: usize,
}

/// One connection's share. It is given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct BufferShare {
    bytes: usize,
    of: Option<Arc<Buffers>>,
}

impl Buffers {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Buffers {
            bytes: AtomicUsize::new(0),
            bytes_max,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether more parts of requests may be kept. The last quarter is for output.
    pub(crate) fn have_room_for_requests(&self) -> bool {
        self.bytes() < self.bytes_max / 4 * 3
    }

    /// Whether more output may be kept.
    pub(crate) fn have_room(&self) -> bool {
        self.bytes() < self.bytes_max
    }
}

impl BufferShare {
    /// Sets the bytes that it holds.
    pub(crate) fn set(&mut self, bytes: usize, buffers: &Arc<Buffers>) {
        if bytes == self.bytes {
            return;
        }
        let of = self.of.get_or_insert_with(|| Arc::clone(buffers));
        if bytes > self.bytes {
            of.bytes.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            of.bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        if let Some(of) = &self.of {
            of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back() {
        let buffers = Arc::new(Buffers::new(100));
        let mut first = BufferShare::default();
        let mut second = BufferShare::default();
        first.set(60, &buffers);
        assert!(buffers.have_room_for_requests());
        second.set(30, &buffers);
        assert!(!buffers.have_room_for_requests() && buffers.have_room());
        first.set(80, &buffers);
        assert!(!buffers.have_room());
        first.set(1, &buffers);
        assert_eq!(buffers.bytes(), 31);
        drop(second);
        drop(first);
        assert_eq!(buffers.bytes(), 0);
    }
}
