//! A copy of another log that is being written into a directory, and takes the place of the log there at once or not at all.
//!
//! | in the directory of the log | what it holds |
//! |---|---|
//! | `copy.partial` | a copy that is not complete; the next one begins anew |
//! | `copy.complete` | a whole, durable copy; the log before it is being moved to `replaced` |
//! | `copy.placed` | the rest of a copy that is being moved to its place |
//! | `replaced` | the log before the last copy |
//!
//! All of it lies in the directory itself, which may be a mount point. Each step follows from the names alone, so
//! [`finish_copy`] finishes what a crash has interrupted.

use crate::copies::snapshot::is_name_in_copy;
use crate::disk::file_name;
use crate::disk::files::{Files, HISTORY, LOCK};
use crate::disk::unfinished_marker::{COMPLETE, PLACED};
use crate::error::OpenError;
use crate::start;
use crate::superblock;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A copy that is being written. No other process can use the log meanwhile. Dropping it leaves the log as it was.
#[derive(Debug)]
pub struct LogCopy {
    directory: PathBuf,
    partial: PathBuf,
    _lock: Files,
}

/// A file of the copy.
#[derive(Debug)]
pub struct CopiedFile {
    path: PathBuf,
    file: File,
}

/// A copy cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The directory is in use, or cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenError),
    /// A name that no copy of a log has.
    #[error("{name:?} is no name of a file of a log")]
    Name {
        /// The name.
        name: String,
    },
    /// The operating system returned an error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl LogCopy {
    /// Begins a copy for the log in a directory, which is made if it is missing. Removes an earlier copy that is not complete.
    ///
    /// # Errors
    /// The log is open, or the directory cannot be written to.
    pub fn begin(directory: &Path) -> Result<LogCopy, CopyError> {
        let lock = Files::lock(directory)?;
        finish_locked(directory)?;
        let partial = directory.join(PARTIAL);
        make_directory(&partial)?;
        Ok(LogCopy {
            directory: directory.to_owned(),
            partial,
            _lock: lock,
        })
    }

    /// Makes a directory of the copy. Outer ones must be made first.
    ///
    /// # Errors
    /// It is no name of a copy, or the directory cannot be made.
    pub fn make_directory(&self, name: &str) -> Result<(), CopyError> {
        make_directory(&self.path(name)?)
    }

    /// Makes a file of the copy.
    ///
    /// # Errors
    /// It is no name of a copy, or the file cannot be made.
    pub fn make_file(&self, name: &str) -> Result<CopiedFile, CopyError> {
        let path = self.path(name)?;
        let file = File::create(&path).map_err(|source| failed(&path, "make", source))?;
        Ok(CopiedFile { path, file })
    }

    /// Puts the copy in the place of the log, durably, if it is whole. The log before it is moved to `replaced`; what was there is removed.
    ///
    /// # Errors
    /// The copy is not whole, or the directory cannot be written to. After a restart, the old log or the copy is there.
    pub fn complete(self) -> Result<(), CopyError> {
        sync_tree(&self.partial)?;
        start::preflight(&self.partial)?;
        remove(&self.directory.join(REPLACED))?;
        rename(&self.partial, &self.directory.join(COMPLETE))?;
        finish_locked(&self.directory)?;
        Ok(())
    }

    fn path(&self, name: &str) -> Result<PathBuf, CopyError> {
        match is_name_in_copy(name) {
            true => Ok(self.partial.join(name)),
            false => Err(CopyError::Name { name: name.into() }),
        }
    }
}

impl CopiedFile {
    /// Adds bytes at the end.
    ///
    /// # Errors
    /// The file cannot be written to.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        let written = self.file.write_all(bytes);
        written.map_err(|source| failed(&self.path, "write", source))
    }

    /// Makes the content durable. The name is durable with the copy.
    ///
    /// # Errors
    /// The file cannot be synced.
    pub fn finish(self) -> Result<(), CopyError> {
        let synced = self.file.sync_all();
        synced.map_err(|source| failed(&self.path, "sync", source))
    }
}

/// Finishes or removes a copy that another process has begun in the directory of a log. Call it before the log is opened.
/// Returns whether a copy has taken the place of the log.
///
/// # Errors
/// The log is open, or the directory cannot be written to.
pub fn finish_copy(directory: &Path) -> Result<bool, CopyError> {
    let is_there = |name: &&str| directory.join(name).symlink_metadata().is_ok();
    if ![PARTIAL, COMPLETE, PLACED].iter().any(is_there) {
        return Ok(false);
    }
    let _lock = Files::lock(directory)?;
    finish_locked(directory)
}

fn finish_locked(directory: &Path) -> Result<bool, CopyError> {
    let [partial, complete, placed] = [PARTIAL, COMPLETE, PLACED].map(|name| directory.join(name));
    remove(&partial)?;
    if complete.exists() {
        let replaced = directory.join(REPLACED);
        make_directory(&replaced)?;
        move_log(directory, &replaced)?;
        rename(&complete, &placed)?;
    }
    if !placed.exists() {
        return Ok(false);
    }
    move_log(&placed, directory)?;
    remove(&placed)?;
    Ok(true)
}

/// Whether a directory has any file of a log, but for its lock. A missing directory has none.
///
/// # Errors
/// The directory can't be read.
pub fn holds_files_of_log(directory: &Path) -> Result<bool, CopyError> {
    match directory.try_exists() {
        Ok(false) => Ok(false),
        _ => Ok(!files_of_log(directory)?.is_empty()),
    }
}

/// The names of a log's files, history included.
fn files_of_log(directory: &Path) -> Result<Vec<String>, CopyError> {
    let unlisted = |source| failed(directory, "list", source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unlisted)? {
        let name = entry.map_err(unlisted)?.file_name();
        if let Some(name) = name.to_str().filter(|name| is_file_of_log(name)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn is_file_of_log(name: &str) -> bool {
    name == HISTORY || superblock::NAMES.contains(&name) || file_name::first_of(name).is_some()
}

/// Whether a directory with this name in it has a log, or a whole copy of one.
pub(crate) fn is_of_log(name: &str) -> bool {
    is_file_of_log(name) || [COMPLETE, PLACED].contains(&name)
}

/// Whether a copy leaves this name in the directory of a log, whether it is complete or not.
pub(crate) fn is_left(name: &str) -> bool {
    is_of_log(name) || [PARTIAL, REPLACED, LOCK].contains(&name)
}

/// Moves all files of a log. A superblock comes last, so that a part of a log is never taken for a whole one.
fn move_log(from: &Path, to: &Path) -> Result<(), CopyError> {
    let mut names = files_of_log(from)?;
    names.sort_by_key(|name| superblock::NAMES.contains(&&**name));
    for name in &names {
        let (from, to) = (from.join(name), to.join(name));
        std::fs::rename(&from, to).map_err(|source| failed(&from, "move", source))?;
    }
    sync(to)?;
    sync(from)
}

fn make_directory(path: &Path) -> Result<(), CopyError> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|source| failed(path, "make", source)),
    }
}

fn remove(path: &Path) -> Result<(), CopyError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| failed(path, "remove", source)),
    }
}

/// Renames a directory durably.
fn rename(from: &Path, to: &Path) -> Result<(), CopyError> {
    std::fs::rename(from, to).map_err(|source| failed(from, "rename", source))?;
    to.parent().map_or(Ok(()), sync)
}

/// Makes all names in a directory durable, and those in the directories in it.
fn sync_tree(path: &Path) -> Result<(), CopyError> {
    let entries = std::fs::read_dir(path).map_err(|source| failed(path, "list", source))?;
    for entry in entries {
        let entry = entry.map_err(|source| failed(path, "list", source))?;
        if entry.path().is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync(path)
}

fn sync(directory: &Path) -> Result<(), CopyError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| failed(directory, "sync", source))
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> CopyError {
    CopyError::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

const PARTIAL: &str = "copy.partial";

/// The directory, in that of a log, with the log before the last copy.
pub const REPLACED: &str = "replaced";
