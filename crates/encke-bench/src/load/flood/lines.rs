//! Lines from a pipe, without ever blocking in the middle of one.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// How much is read from a pipe at once.
const READ_BYTES: usize = 64 * 1024;

/// Reads lines from a pipe.
#[derive(Debug)]
pub(crate) struct LineReader {
    pipe: OwnedFd,
    bytes: Vec<u8>,
    /// How far `bytes` has been searched for a line's end.
    searched: usize,
}

impl LineReader {
    /// A reader of `pipe`.
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self {
            pipe,
            bytes: Vec::new(),
            searched: 0,
        }
    }

    /// Reads once; to be called when the pipe is readable, or to wait. False at the pipe's end.
    pub(crate) fn fill(&mut self) -> std::io::Result<bool> {
        self.bytes.reserve(READ_BYTES);
        loop {
            match rustix::io::read(&self.pipe, rustix::buffer::spare_capacity(&mut self.bytes)) {
                Ok(length) => return Ok(length > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next complete line that has been read, without its end.
    pub(crate) fn take_line(&mut self) -> Option<Vec<u8>> {
        let Some(end) = memchr::memchr(b'\n', &self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            return None;
        };
        let rest = self.bytes.split_off(self.searched + end + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.pop();
        self.searched = 0;
        Some(line)
    }

    /// The next line, however long it takes; `None` at the pipe's end.
    pub(crate) fn wait_line(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }
}

impl AsFd for LineReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn lines_come_whole_however_they_are_written() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut lines = LineReader::new(reader.into());
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.wait_line().unwrap().unwrap(), b"one");
        assert_eq!(lines.take_line(), None);
        writer.write_all(b"o\n\nhalf").unwrap();
        drop(writer);
        assert_eq!(lines.wait_line().unwrap().unwrap(), b"two");
        assert_eq!(lines.wait_line().unwrap().unwrap(), b"");
        assert_eq!(lines.wait_line().unwrap(), None);
    }
}
