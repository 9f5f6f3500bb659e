//! Output that was not taken yet.

use std::collections::VecDeque;

use encke_stream::{FileRange, Offset};

use super::close::CloseReason;
use crate::byte_queue::ByteQueue;

/// Bytes that a socket, or a window, has not taken. A connection is blocked while there are some.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    bytes: ByteQueue,
    /// What follows them.
    files: Option<Box<FileOutput>>,
    /// There were files, which are out.
    pub(crate) has_sent_file: bool,
    /// A subscriber's position behind them.
    pub(crate) reached: Option<Offset>,
    /// Why it is closed behind them, if it is.
    pub(crate) close: Option<CloseReason>,
    /// They end with the last words to a subscriber for which more would follow.
    is_dismissal: bool,
}

/// Parts of files for a socket, each with the bytes before it, and what follows them.
#[derive(Debug)]
pub(crate) struct FileOutput {
    pub(crate) ranges: VecDeque<(Vec<u8>, FileRange)>,
    pub(crate) tail: Vec<u8>,
}

impl Outbound {
    /// The output that ends with files.
    pub(crate) fn of_files(files: Box<FileOutput>) -> Self {
        let mut outbound = Outbound::default();
        outbound.add_files(files);
        outbound
    }

    /// Adds files behind the bytes, of which there are none yet.
    pub(crate) fn add_files(&mut self, files: Box<FileOutput>) {
        debug_assert!(self.files.is_none(), "a part waits for the one before it");
        self.files = Some(files);
        self.begin_file();
    }

    /// The next file, if the bytes before it are out.
    pub(crate) fn file(&self) -> Option<&FileRange> {
        let files = self.files.as_ref().filter(|_| self.bytes.is_empty())?;
        files.ranges.front().map(|(_, range)| range)
    }

    /// Whether a file follows the bytes.
    pub(crate) fn has_file(&self) -> bool {
        self.files.is_some()
    }

    /// Notes that the next `sent` bytes of the file were taken.
    pub(crate) fn take_file(&mut self, sent: u64) {
        let Some(files) = &mut self.files else {
            return;
        };
        let Some((_, range)) = files.ranges.front_mut() else {
            return;
        };
        *range = range.skip(sent);
        if range.bytes == 0 {
            files.ranges.pop_front();
            self.begin_file();
        }
    }

    /// Moves what is before the next file, or behind the last one, to the bytes.
    fn begin_file(&mut self) {
        let Some(files) = &mut self.files else {
            return;
        };
        match files.ranges.front_mut() {
            Some((before, _)) => self.bytes.append(&std::mem::take(before)),
            None => {
                self.bytes.append(&files.tail);
                self.files = None;
                self.has_sent_file = true;
            }
        }
    }

    /// Whether nothing is left to be sent.
    pub(crate) fn is_out(&self) -> bool {
        self.bytes.is_empty() && self.files.is_none()
    }

    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Outbound {
            bytes: bytes.into(),
            ..Outbound::default()
        }
    }

    /// What is to be sent next.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.rest()
    }

    /// Notes that the next `sent` bytes were taken.
    pub(crate) fn take(&mut self, sent: usize) {
        self.bytes.take(sent);
    }

    /// Adds bytes behind the others.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        match &mut self.files {
            Some(files) => files.tail.extend_from_slice(bytes),
            None => self.bytes.append(bytes),
        }
    }

    /// Adds the last words to a subscriber.
    pub(crate) fn dismiss(&mut self, farewell: &[u8], reason: CloseReason) {
        self.append(farewell);
        self.close = Some(reason);
        self.is_dismissal = true;
    }

    /// What it takes in memory.
    pub(crate) fn capacity(&self) -> usize {
        let tail = self.files.as_ref().map_or(0, |files| files.tail.capacity());
        self.bytes.capacity() + tail
    }

    /// Why its connection is closed if it is not taken in time.
    pub(crate) fn time_out_reason(&self) -> CloseReason {
        let dismissal = self.close.filter(|_| self.is_dismissal);
        dismissal.unwrap_or(CloseReason::Stalled)
    }

    /// Whether the client was sent a farewell, behind which nothing follows.
    pub(crate) fn is_dismissal(&self) -> bool {
        self.is_dismissal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_farewell_is_a_dismissal() {
        let mut outbound = Outbound::new(b"abc".to_vec());
        outbound.close = Some(CloseReason::Stopping);
        assert!(!outbound.is_dismissal());
        outbound.dismiss(b"d", CloseReason::LagMax);
        assert!(outbound.is_dismissal());
        assert_eq!(outbound.rest(), b"abcd");
    }
}
