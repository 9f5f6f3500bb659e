//! The payload of a large record of history, in memory.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;

use crate::disk::DiskFile;
use crate::read::large::LogFile;

/// The payload of a large record.
#[derive(Debug)]
pub(super) struct Payload {
    content: Content,
    pub(super) bytes: u64,
    /// The bytes of all payloads, this one included.
    held_bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Content {
    /// An anonymous file.
    File(File),
    /// A value of history, which has the payload from a position on.
    Memory(fjall::UserValue, usize),
}

impl Payload {
    /// The end of a value. Its bytes are in `held_bytes` already.
    pub(super) fn new(value: &fjall::UserValue, bytes: usize, held_bytes: Arc<AtomicU64>) -> Self {
        let begin = value.len() - bytes;
        let file = match bytes {
            IN_FILE_BYTES.. => file_with(&value[begin..]).ok(),
            _ => None,
        };
        let in_memory = || Content::Memory(value.clone(), begin);
        Payload {
            content: file.map_or_else(in_memory, Content::File),
            bytes: bytes as u64,
            held_bytes,
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl LogFile for Payload {
    fn name(&self) -> &str {
        "a large record of history"
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        match &self.content {
            Content::File(file) => DiskFile::read_at(file, bytes, at),
            Content::Memory(value, begin) => {
                let rest = value.get(begin + at as usize..).unwrap_or_default();
                let read = rest.len().min(bytes.len());
                bytes[..read].copy_from_slice(&rest[..read]);
                Ok(read)
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.content {
            Content::File(file) => file.fd(),
            Content::Memory(..) => None,
        }
    }
}

/// An anonymous file.
fn file_with(payload: &[u8]) -> io::Result<File> {
    let file = rustix::fs::memfd_create("encke-large-record", MemfdFlags::CLOEXEC)?;
    let file = File::from(file);
    file.write_all_at(payload, 0)?;
    Ok(file)
}

/// A payload is put into a file from so many bytes on. Smaller ones are copied faster than a file is made, and would take too many of
/// the process's files.
const IN_FILE_BYTES: usize = 256 << 10;
