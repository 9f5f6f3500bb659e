//! Objects as files in a directory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;

use super::objects::Storage;
use crate::error::BackupError;

/// A directory of objects. No other process uses it meanwhile.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Folders whose own names, and those above them, this process has made durable.
    named: Mutex<BTreeSet<PathBuf>>,
    _lock: File,
}

impl Directory {
    /// Makes it if it is missing.
    pub(super) fn at(path: &Path) -> Result<Directory, BackupError> {
        std::fs::create_dir_all(path).map_err(BackupError::io(path, "make"))?;
        let name = path.join("lock");
        let lock = File::options()
            .create(true)
            .append(true)
            .open(&name)
            .map_err(BackupError::io(&name, "open"))?;
        let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive);
        locked.map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => BackupError::Place(format!(
                "{} is in use by another backup or restore",
                path.display()
            )),
            error => BackupError::io(&name, "lock")(error.into()),
        })?;
        Ok(Directory {
            path: path.to_owned(),
            named: Mutex::default(),
            _lock: lock,
        })
    }
}

impl Storage for Directory {
    fn put(&self, key: &str, content: &[u8]) -> Result<(), BackupError> {
        let path = self.path.join(key);
        let folder = path.parent().unwrap_or(&self.path);
        std::fs::create_dir_all(folder).map_err(BackupError::io(folder, "make"))?;
        let partial = self.path.join("partial");
        let mut file = File::create(&partial).map_err(BackupError::io(&partial, "make"))?;
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.map_err(BackupError::io(&partial, "write"))?;
        std::fs::rename(&partial, &path).map_err(BackupError::io(&path, "name"))?;
        sync(folder)?;
        // The folder may be new, and those above it.
        if !self.named.lock().contains(folder) {
            let above = folder.ancestors().skip(1);
            let mut above = above.take_while(|one| one.starts_with(&self.path));
            above.try_for_each(sync)?;
            self.named.lock().insert(folder.to_owned());
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, BackupError> {
        let path = self.path.join(key);
        match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(BackupError::io(&path, "read")),
        }
    }

    fn has(&self, key: &str) -> Result<bool, BackupError> {
        let path = self.path.join(key);
        path.try_exists()
            .map_err(BackupError::io(&path, "look for"))
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(&str)) -> Result<(), BackupError> {
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
                let kind = entry.file_type();
                match kind.map_err(BackupError::io(&path, "list"))?.is_dir() {
                    true => folders.push(key),
                    false => each(&key),
                }
            }
        }
        Ok(())
    }

    fn remove(&self, key: &str) -> Result<(), BackupError> {
        let path = self.path.join(key);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(BackupError::io(&path, "remove")),
        }
    }
}

fn sync(folder: &Path) -> Result<(), BackupError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(BackupError::io(folder, "sync"))
}
