//! The seam between the log and the disk it writes to.
//!
//! Everything the log does to its own files goes through [`Disk`] and [`DiskFile`]. The dispatch is static, so on real
//! files ([`Files`](crate::Files)) the seam costs nothing; the tests put a disk behind it that loses and tears.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

/// One directory of files, as the log sees it. Names are plain file names.
pub trait Disk: Clone + Debug + Send + Sync + 'static {
    /// An open file of this disk.
    type File: DiskFile;

    /// Whether files may be prepared by a thread in the background. A disk that replays the same operations from a
    /// seed says no.
    const BACKGROUND: bool;

    /// The names of all files in the directory, in no order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes a file of `bytes` zeros whose space is reserved, or fails and leaves nothing behind. A file of that name
    /// is replaced.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name; a file that has it already is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name. Files that are open stay readable.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable: what was created, renamed and removed so far.
    fn sync_names(&self) -> io::Result<()>;

    /// A number that nobody can guess, so that nobody can make up a frame.
    fn salt(&self) -> io::Result<u64>;

    /// The directory that history may have to itself, if there is room for one. It need not exist yet.
    fn history(&self) -> Option<PathBuf>;

    /// What time it is, for what is kept for a time only.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Called between two steps of the work in the background, so that a disk under test can stop it there.
    fn between_steps(&self) -> io::Result<()> {
        Ok(())
    }

    /// Where a file is, for messages; the directory for an empty name.
    fn path(&self, name: &str) -> PathBuf;
}

/// One open file.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Reads from `offset` until `bytes` is full or the file ends; returns how many bytes were read.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Says that all of the file is about to be read, so that the disk may begin.
    fn expect_reads(&self) {}

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

/// Whether an error says that something has run out that may be there again later: room on the disk, or the share of it,
/// descriptors or memory that we may use.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind;
    use rustix::io::Errno;
    let by_number = matches!(
        Errno::from_io_error(error),
        Some(
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::MFILE | Errno::NFILE | Errno::NOMEM
        )
    );
    // An error that a library has wrapped to name the file has lost its number, and kept its kind.
    by_number
        || matches!(
            error.kind(),
            ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::FileTooLarge
                | ErrorKind::OutOfMemory
        )
}
