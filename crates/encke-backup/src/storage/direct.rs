//! Writes files past the page cache, a little at a time.
//!
//! What is in the page cache is written at the next sync, all at once. A sync of another file on the same disk, such as the log's, waits for it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

/// Makes a file of this content, which is not synced.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<File> {
    let whole = content.len() - content.len() % BLOCK;
    let mut file = create(path, OFlags::DIRECT);
    if matches!(&file, Err(error) if error.kind() == io::ErrorKind::InvalidInput) {
        // A file system without direct writes.
        file = create(path, OFlags::empty());
    }
    let mut file = file?;
    if !content.is_empty() {
        // Not all file systems can. It only makes what follows quicker.
        let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, content.len() as u64);
    }
    // A direct write is made from memory that begins at a block.
    let mut buffer = vec![0; CHUNK + BLOCK];
    let begin = buffer.as_ptr().align_offset(BLOCK);
    let buffer = &mut buffer[begin..begin + CHUNK];
    for chunk in content[..whole].chunks(CHUNK) {
        let aligned = &mut buffer[..chunk.len()];
        aligned.copy_from_slice(chunk);
        file.write_all(aligned)?;
    }
    // Nor can a direct write end inside a block.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::DIRECT)?;
    file.write_all(&content[whole..])?;
    Ok(file)
}

fn create(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options.custom_flags(flags.bits() as i32).open(path)
}

/// The largest block of a disk that must be written whole.
const BLOCK: usize = 4096;

/// Bytes of a write: a sync of another file waits for one.
const CHUNK: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_any_length_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let content: Vec<u8> = (0..2 * CHUNK + BLOCK + 1)
            .map(|at| (at % 251) as u8)
            .collect();
        let lengths = [
            0,
            1,
            BLOCK - 1,
            BLOCK,
            BLOCK + 1,
            CHUNK,
            CHUNK + 1,
            content.len(),
        ];
        for length in lengths {
            // A longer file of before must not show through.
            let written = write(&path, &content[..length]).unwrap();
            written.sync_all().unwrap();
            assert!(
                std::fs::read(&path).unwrap() == content[..length],
                "{length}"
            );
        }
    }
}
