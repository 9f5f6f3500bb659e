//! Real files in a real directory, and the lock that excludes other processes.

use crate::disk::file_name;
use crate::disk::held_directories;
use crate::disk::unfinished_marker::refuse_unfinished;
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::history::tree;
use crate::superblock;
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A directory of real files.
#[derive(Clone, Debug)]
pub struct Files {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    directory: File,
    access: FileAccess,
    /// Held, never read: dropping the last clone releases the lock.
    _lock: Option<File>,
}

/// What the files of an existing log are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// Only to be read: a snapshot that is mounted read-only, or a directory of another user, is enough.
    Read,
    Write,
}

impl Files {
    /// Makes the directory if necessary, and locks it against any other process and any other log.
    ///
    /// # Errors
    /// [`OpenError::Locked`] when another log holds the lock, [`OpenError::Io`] when the directory can't be made,
    /// opened or locked.
    pub fn lock(path: &Path) -> Result<Files, OpenError> {
        std::fs::create_dir_all(path).map_err(|e| OpenError::io(path, "make the directory", e))?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let files = Self::locked(path, Some(options), FileAccess::Write)?;
        // The directory may be new. Then its own name must be durable before anything in it can be.
        tree::sync_parent(path)
            .map_err(|e| OpenError::io(path, "sync the directory that holds", e))?;
        Ok(files)
    }

    /// [`Files::lock`] for a directory that must hold a log already. No file is made, not even `lock`.
    ///
    /// # Errors
    /// [`OpenError::NoLog`] when there is none, [`OpenError::Unfinished`] when it is not complete, and as [`Files::lock`].
    pub(crate) fn lock_existing(path: &Path, access: FileAccess) -> Result<Files, OpenError> {
        if !Files::holds_log(path).map_err(|e| OpenError::io(path, "open", e))? {
            return Err(OpenError::NoLog {
                directory: path.to_owned(),
            });
        }
        refuse_unfinished(path)?;
        let lock = path.join(LOCK);
        let options = lock.symlink_metadata().is_ok().then(|| {
            let mut options = OpenOptions::new();
            options.read(true);
            options
        });
        Self::locked(path, options, access)
    }

    /// Whether a directory holds a log, sound or not: segments, history, a superblock, or at least the lock of one.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn holds_log(path: &Path) -> io::Result<bool> {
        for entry in std::fs::read_dir(path)? {
            let name = entry?.file_name();
            let is_segment = |name: &str| file_name::first_of(name).is_some();
            let is_ours = |name: &str| {
                is_segment(name)
                    || name == LOCK
                    || name == HISTORY
                    || superblock::NAMES.contains(&name)
            };
            if name.to_str().is_some_and(is_ours) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fails if the log in a directory is open in any process. Nothing is created.
    ///
    /// # Errors
    /// There is no log, it is open, or its lock can't be looked at.
    pub fn check_free(path: &Path) -> Result<(), OpenError> {
        Self::lock_existing(path, FileAccess::Read).map(drop)
    }

    /// Locks the directory, and the file in it that every version locks.
    fn locked(
        path: &Path,
        file: Option<OpenOptions>,
        access: FileAccess,
    ) -> Result<Files, OpenError> {
        let directory = held_directories::open(path)?;
        held_directories::lock(&directory, path)?;
        let lock_path = path.join(LOCK);
        let lock = match file {
            Some(options) => {
                let lock = options.open(&lock_path);
                let lock = lock.map_err(|e| OpenError::io(&lock_path, "open the lock", e))?;
                let is_file = lock.metadata().is_ok_and(|lock| lock.is_file());
                if !is_file {
                    let error = io::Error::other("it is not a file");
                    return Err(OpenError::io(&lock_path, "open the lock", error));
                }
                held_directories::lock(&lock, path)?;
                Some(lock)
            }
            None => None,
        };
        Ok(Files {
            shared: Arc::new(Shared {
                path: path.to_owned(),
                directory,
                access,
                _lock: lock,
            }),
        })
    }
}

impl Disk for Files {
    type File = File;
    const BACKGROUND: bool = true;

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.shared.path)? {
            let entry = entry?;
            // The log uses no names that are not UTF-8.
            if let (true, Ok(name)) = (
                entry.file_type()?.is_file(),
                entry.file_name().into_string(),
            ) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<File> {
        let path = self.path(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        reserve(&file, bytes).inspect_err(|_| {
            // Releases what a failed reservation took. An error of the removal must not hide the cause.
            let _ = std::fs::remove_file(&path);
        })?;
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(self.shared.access == FileAccess::Write)
            .open(self.path(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.shared.directory.sync_all()
    }

    fn salt(&self) -> io::Result<u64> {
        let mut salt = [0; 8];
        // The kernel never returns a part of eight bytes.
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())?;
        Ok(u64::from_le_bytes(salt))
    }

    fn history(&self) -> Option<PathBuf> {
        Some(self.path(HISTORY))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.path.join(name)
    }
}

impl DiskFile for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match FileExt::read_at(self, &mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn expect_reads(&self) {
        // Only a hint: reads are correct without it.
        let _ = rustix::fs::fadvise(self, 0, None, Advice::WillNeed);
    }

    fn data_from(&self, offset: u64) -> io::Result<Option<u64>> {
        // Space that is only reserved has no data (lseek(2)).
        match rustix::fs::seek(self, SeekFrom::Data(offset)) {
            Ok(data) => Ok(Some(data)),
            Err(Errno::NXIO) => Ok(None),
            // A file system or a sandbox without it.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(Some(offset)),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // Never retried, not even when interrupted: after a failure the kernel may have dropped dirty pages.
        self.sync_data()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn written_at(&self) -> io::Result<SystemTime> {
        self.metadata()?.modified()
    }
}

/// Reserves space, so that a write into it can't find the disk full (docs/decisions/0020). Where that is not possible, zeros are
/// written instead.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) if is_unsupported(error) => return write_zeros(file, bytes),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the file system has no reservations, the kernel has no such call, or a sandbox refuses it. What refuses every write refuses the
/// zeros as well, with its own error.
fn is_unsupported(error: Errno) -> bool {
    matches!(
        error,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::NODEV
    )
}

fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES.min(bytes as usize)];
    let mut offset = 0;
    while offset < bytes {
        let n = zeros.len().min((bytes - offset) as usize);
        file.write_all_at(&zeros[..n], offset)?;
        offset += n as u64;
    }
    Ok(())
}

pub(crate) const LOCK: &str = "lock";
pub(crate) const HISTORY: &str = "history";
const ZEROS_BYTES: usize = 1 << 20;
