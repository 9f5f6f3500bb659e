//! The interface between the log and the disk.
//!
//! The log accesses its own files through [`Disk`] and [`DiskFile`] only. The dispatch is static, so the interface
//! costs nothing on real files ([`Files`](crate::Files)). The tests use a simulated disk that loses and tears writes.
//!
//! `files.rs` is a real directory, `held_directories.rs` has the locks that outlive an open log, `simulated.rs` the simulated disk,
//! `file_name.rs` has the names of a log's files, and `unfinished_marker.rs` refuses a log that is not complete.

pub(crate) mod file_name;
pub(crate) mod files;
pub(crate) mod held_directories;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;
pub(crate) mod unfinished_marker;

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::SystemTime;

/// A directory of files. Names are plain file names.
pub trait Disk: Clone + Debug + Send + Sync + 'static {
    /// An open file of this disk.
    type File: DiskFile;

    /// Whether background threads may use the disk. A disk that replays the same operations from a seed returns
    /// `false`.
    const BACKGROUND: bool;

    /// The names of all files in the directory, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes a file of `bytes` zeros whose space is reserved, or fails and leaves nothing behind. A file with that name
    /// is replaced.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Renames a file; a file with the new name is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. It stays readable where it is open.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable: all files that were created, renamed and removed so far.
    fn sync_names(&self) -> io::Result<()>;

    /// A random number that is hard to guess, so that frames can't be forged.
    fn salt(&self) -> io::Result<u64>;

    /// The directory for history, if the disk has a place for one. It need not exist yet.
    fn history(&self) -> Option<PathBuf>;

    /// The current time, for limits on age.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Called between two steps of background work, so that a simulated disk can interrupt it.
    fn between_steps(&self) -> io::Result<()> {
        Ok(())
    }

    /// The path of a file, for messages; of the directory for an empty name.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Reads from `offset` until `bytes` is full or the file ends; returns the number of bytes read.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The file, for a system call that sends a part of it. `None`: it is no file of this system.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A hint that the whole file is about to be read.
    fn expect_reads(&self) {}

    /// Where the file may have something else than zeros from `offset` on. `None`: nowhere.
    fn data_from(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written so far durable, the length of the file with it.
    fn sync(&self) -> io::Result<()>;

    /// Cuts the file to `bytes`.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// The length of the file in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// When the file was last written to.
    fn written_at(&self) -> io::Result<SystemTime>;
}

/// Whether an error means a shortage that may pass: of room on the disk, quota, descriptors or memory.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind;
    use rustix::io::Errno;
    let by_number = matches!(
        Errno::from_io_error(error),
        Some(
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::MFILE | Errno::NFILE | Errno::NOMEM
        )
    );
    // A library that wraps an error to name the file loses its number and keeps its kind.
    by_number
        || matches!(
            error.kind(),
            ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::FileTooLarge
                | ErrorKind::OutOfMemory
        )
}
