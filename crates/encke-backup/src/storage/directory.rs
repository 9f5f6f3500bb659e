//! Objects as files in a directory, which may be on the disk that the log of the server syncs to.
//!
//! So they are written past the page cache, a little at a time ([`direct`](super::direct)), and many of them are synced together: a sync of
//! the log waits for the syncs of others, and for what they write.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use rustix::fs::FlockOperation;

use super::direct;
use super::objects::{Storage, StoredObject};
use crate::error::BackupError;

/// A directory of objects. No other process writes to it while this one may.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    written: Mutex<Written>,
    /// Readers share its lock. `None` for a reader where no writer of this version has been.
    readers: Option<File>,
    /// Writers exclude each other.
    _lock: Option<File>,
}

/// What this process has written.
#[derive(Debug, Default)]
struct Written {
    /// Objects that do not have their names yet.
    unsynced: Vec<Unsynced>,
    /// Folders whose own names, and those above them, are durable.
    named: BTreeSet<PathBuf>,
}

/// An object that is written and not synced, under a name for the meantime.
#[derive(Debug)]
struct Unsynced {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl Directory {
    /// To read what is there: nothing is made or changed. While others read too, and while backups are made.
    pub(super) fn to_read(path: &Path) -> Result<Directory, BackupError> {
        if !path.is_dir() {
            let place = path.display();
            return Err(BackupError::Place(format!("there is no directory {place}")));
        }
        // Without the lock a piece that is removed meanwhile is found to be missing.
        let readers = File::open(path.join(READERS)).ok();
        if let Some(readers) = &readers {
            let _ = rustix::fs::flock(readers, FlockOperation::LockShared);
        }
        Ok(Directory {
            path: path.to_owned(),
            written: Mutex::default(),
            readers,
            _lock: None,
        })
    }

    /// To write to it. Makes it if it is missing.
    pub(super) fn to_write(path: &Path) -> Result<Directory, BackupError> {
        encke_log::make_durably(path)?;
        let made = |name: &str| {
            let name = path.join(name);
            let file = File::options().create(true).append(true).open(&name);
            file.map_err(BackupError::io(&name, "open"))
        };
        let lock = made(LOCK)?;
        if !locks(&lock).map_err(BackupError::io(path, "lock"))? {
            return Err(BackupError::InUse {
                directory: path.to_owned(),
            });
        }
        let directory = Directory {
            path: path.to_owned(),
            written: Mutex::default(),
            readers: Some(made(READERS)?),
            _lock: Some(lock),
        };
        // What a backup has left that was killed.
        for index in 0..UNSYNCED_MAX {
            directory.remove(&partial_key(index))?;
        }
        Ok(directory)
    }

    /// Syncs what is written, and then gives it its names.
    fn name(&self, written: &mut Written) -> Result<(), BackupError> {
        for one in &written.unsynced {
            let synced = one.file.sync_all();
            synced.map_err(BackupError::io(&one.partial, "write"))?;
        }
        let mut folders = BTreeSet::new();
        for one in written.unsynced.drain(..) {
            let named = std::fs::rename(&one.partial, &one.path);
            named.map_err(BackupError::io(&one.path, "name"))?;
            folders.insert(one.path.parent().unwrap_or(&self.path).to_owned());
        }
        for folder in folders {
            sync(&folder)?;
            // The folder may be new, and those above it.
            if !written.named.contains(&folder) {
                let above = folder.ancestors().skip(1);
                let mut above = above.take_while(|one| one.starts_with(&self.path));
                above.try_for_each(sync)?;
                written.named.insert(folder);
            }
        }
        Ok(())
    }
}

/// Takes a lock for this process alone, unless others have it.
fn locks(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The file whose lock writers have.
const LOCK: &str = "lock";

/// The file whose lock readers share.
const READERS: &str = "readers";

/// The name of an object that is not synced.
fn partial_key(index: usize) -> String {
    format!("partial-{index}")
}

/// Objects that are synced together.
const UNSYNCED_MAX: usize = 32;

impl Storage for Directory {
    fn put(&self, key: &str, content: &[u8]) -> Result<(), BackupError> {
        let path = self.path.join(key);
        let folder = path.parent().unwrap_or(&self.path);
        std::fs::create_dir_all(folder).map_err(BackupError::io(folder, "make"))?;
        let mut written = self.written.lock();
        let partial = self.path.join(partial_key(written.unsynced.len()));
        let file = direct::write(&partial, content);
        let file = file.map_err(BackupError::io(&partial, "write"))?;
        written.unsynced.push(Unsynced {
            file,
            partial,
            path,
        });
        match written.unsynced.len() < UNSYNCED_MAX {
            true => Ok(()),
            false => self.name(&mut written),
        }
    }

    fn settle(&self) -> Result<(), BackupError> {
        self.name(&mut self.written.lock())
    }

    fn get(&self, key: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, BackupError> {
        let path = self.path.join(key);
        match encke_files::read(&path, bytes_max) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(BackupError::io(&path, "read")),
        }
    }

    fn look(&self, key: &str) -> Result<Option<StoredObject>, BackupError> {
        let path = self.path.join(key);
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => {
                let found = found.map_err(BackupError::io(&path, "look for"))?;
                Ok(Some(stored(&found)))
            }
        }
    }

    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(&str, StoredObject),
    ) -> Result<(), BackupError> {
        let mut folders = vec![prefix.trim_end_matches('/').to_owned()];
        while let Some(folder) = folders.pop() {
            let path = self.path.join(&folder);
            let entries = match std::fs::read_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(BackupError::io(&path, "list"))?,
            };
            for entry in entries {
                let entry = entry.map_err(BackupError::io(&path, "list"))?;
                let key = format!("{folder}/{}", entry.file_name().to_string_lossy());
                let found = entry.metadata().map_err(BackupError::io(&path, "list"))?;
                match found.is_dir() {
                    true => folders.push(key),
                    false => each(&key, stored(&found)),
                }
            }
        }
        Ok(())
    }

    /// A sync of this system has succeeded.
    fn is_remote(&self) -> bool {
        false
    }

    fn keep_readers_out(&self) -> Result<bool, BackupError> {
        let locked = self.readers.as_ref().map_or(Ok(true), locks);
        locked.map_err(BackupError::io(&self.path, "lock"))
    }

    fn remove(&self, key: &str) -> Result<(), BackupError> {
        let path = self.path.join(key);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(BackupError::io(&path, "remove")),
        }
    }
}

fn stored(found: &Metadata) -> StoredObject {
    let written = found.modified().ok();
    let since = written.and_then(|written| written.duration_since(UNIX_EPOCH).ok());
    StoredObject {
        bytes: found.len(),
        stamp: since.map_or(0, |since| since.as_nanos() as u64),
    }
}

fn sync(folder: &Path) -> Result<(), BackupError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(BackupError::io(folder, "sync"))
}
