//! Directories that this process keeps locked even while their logs are closed.
//!
//! A server that upgrades closes its log before its successor opens it. Without these locks another process could take the directory
//! in between. The lock belongs to the open file description, which copies of the descriptor share, so a successor that gets one has the
//! lock. `lock`, the file in the directory, is not shared: it still excludes the server and its successor from each other.

use crate::error::OpenError;
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The key is the device and the inode, because one directory can have several paths.
static HELD: Mutex<BTreeMap<(u64, u64), File>> = Mutex::new(BTreeMap::new());

/// Makes a directory if it is missing, and keeps it locked until [`release_directories`] or the end of the process. Logs in it can be
/// opened as before by this process, and by one that gets a copy of the descriptor.
///
/// # Errors
/// Another process has the lock, or the directory can't be made or read.
pub fn hold_directory(path: &Path) -> Result<(), OpenError> {
    std::fs::create_dir_all(path).map_err(|e| OpenError::io(path, "make the directory", e))?;
    let directory = open(path)?;
    lock(&directory, path)?;
    hold(directory).map_err(|e| OpenError::io(path, "read the directory", e))
}

/// Keeps descriptors that another process has locked and given to this one. It is not checked that they are locked.
///
/// # Errors
/// One of them is not an open file; those before it are kept.
pub fn hold_given_directories(given: Vec<OwnedFd>) -> io::Result<()> {
    given.into_iter().map(File::from).try_for_each(hold)
}

/// Copies of the descriptors of all directories that are held, for another process.
///
/// # Errors
/// A descriptor can't be duplicated.
pub fn copy_held_directories() -> io::Result<Vec<OwnedFd>> {
    let held = HELD.lock();
    let copies = held.values().map(File::try_clone);
    copies.map(|copy| copy.map(OwnedFd::from)).collect()
}

/// Gives up this process's descriptors. A directory stays locked as long as another process has a copy.
pub fn release_directories() {
    HELD.lock().clear();
}

/// Opens a directory. If it is held, returns a copy of its descriptor, so that locking it again succeeds.
pub(super) fn open(path: &Path) -> Result<File, OpenError> {
    let opened = || {
        let directory = File::open(path)?;
        match HELD.lock().get(&identity(&directory)?) {
            Some(held) => held.try_clone(),
            None => Ok(directory),
        }
    };
    opened().map_err(|e| OpenError::io(path, "open the directory", e))
}

/// Locks an open file. It succeeds if this file has the lock already.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::Locked {
            directory: path.to_owned(),
        }),
        Err(e) => Err(OpenError::io(path, "lock", e.into())),
    }
}

fn hold(directory: File) -> io::Result<()> {
    HELD.lock().insert(identity(&directory)?, directory);
    Ok(())
}

fn identity(directory: &File) -> io::Result<(u64, u64)> {
    let metadata = directory.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::files::Files;

    /// All steps are in one test, because the locks are those of the process.
    #[test]
    fn a_directory_is_locked_while_its_log_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("log");
        // Opened anew, as by another process.
        let stranger = || lock(&File::open(&dir).unwrap(), &dir);
        hold_directory(&dir).unwrap();
        for _ in 0..2 {
            let files = Files::lock(&dir).unwrap();
            assert!(matches!(Files::lock(&dir), Err(OpenError::Locked { .. })));
            drop(files);
            assert!(matches!(stranger(), Err(OpenError::Locked { .. })));
        }
        // Copies of the descriptor keep the lock, and can be held in turn.
        let given = copy_held_directories().unwrap();
        assert_eq!(given.len(), 1);
        release_directories();
        assert!(matches!(stranger(), Err(OpenError::Locked { .. })));
        hold_given_directories(given).unwrap();
        drop(Files::lock(&dir).unwrap());
        assert!(matches!(stranger(), Err(OpenError::Locked { .. })));
        release_directories();
        stranger().unwrap();
    }
}
