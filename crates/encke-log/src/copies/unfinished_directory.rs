//! A data directory that a command fills in several steps, such as a restore, and the marker that refuses it until it is complete.
//!
//! The marker is the file `LOGS` with the name of the command in place of the number of logs. It is durable before anything else is in the
//! directory. When all logs are there, the number of logs takes its place, or it is removed if there is one log. Versions that do not know the
//! marker refuse the directory as well, because they find no number in the file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::copies::log_copy;
use crate::disk::unfinished_marker::{LOG, LOGS, UNFINISHED, command_of};
use crate::start::layout::{self, LayoutError, failed};

/// A directory that is being filled. Dropping it leaves the marker: the same command can then begin again.
#[derive(Debug)]
pub struct UnfinishedDirectory {
    directory: PathBuf,
    /// The content of `LOGS` once it is complete; `None` for one log.
    complete: Option<String>,
    /// The marker, locked.
    _marker: File,
}

/// The content that a directory may have before it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayHold {
    /// Nothing.
    Nothing,
    /// Anything but a log, such as the mount points of several logs.
    NoLog,
}

impl UnfinishedDirectory {
    /// Begins to fill a directory, which is made if it is missing. `command` is the command's name. What an interrupted run of the same
    /// command has left is removed.
    ///
    /// # Errors
    /// The directory holds something else, another process fills it, or it cannot be written to.
    pub fn begin(
        directory: &Path,
        command: &str,
        may_hold: MayHold,
    ) -> Result<UnfinishedDirectory, LayoutError> {
        make_durably(directory)?;
        let path = directory.join(LOGS);
        let text = format!("{UNFINISHED}{command}\n");
        let made = (OpenOptions::new().read(true).write(true)).open(&path);
        let mut marker = match made {
            Ok(marker) => marker,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                check_content(directory, may_hold)?;
                let mut new = OpenOptions::new();
                new.read(true).write(true).create_new(true);
                match new.open(&path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        return Err(in_use(directory));
                    }
                    made => made.map_err(failed(&path, "make"))?,
                }
            }
            Err(error) => return Err(failed(&path, "open")(error)),
        };
        lock(&marker, directory, &path)?;
        let mut there = String::new();
        let read = marker.read_to_string(&mut there);
        read.map_err(failed(&path, "read"))?;
        if there == text {
            remove_content(directory)?;
        } else if text.starts_with(&there) {
            // New, or its content was cut off: nothing was made behind it.
            check_content(directory, may_hold)?;
            let written = marker.seek(SeekFrom::Start(0));
            let written = written.and_then(|_| marker.write_all(text.as_bytes()));
            let written = written.and_then(|()| marker.sync_all());
            written.map_err(failed(&path, "write"))?;
        } else if let Some(command) = command_of(&there) {
            return Err(LayoutError::Unfinished {
                directory: directory.to_owned(),
                command: command.to_owned(),
            });
        } else {
            return Err(not_empty(directory, LOGS));
        }
        layout::sync(directory)?;
        Ok(UnfinishedDirectory {
            directory: directory.to_owned(),
            complete: None,
            _marker: marker,
        })
    }

    /// Makes the directories of this number of logs, and returns them by index.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn make_logs(&mut self, logs: usize) -> Result<Vec<PathBuf>, LayoutError> {
        if logs == 1 {
            return Ok(vec![self.directory.clone()]);
        }
        let (paths, text) = layout::make_logs(&self.directory, logs)?;
        self.complete = Some(text);
        Ok(paths)
    }

    /// Takes the marker away. All logs must be complete, durably.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn finish(self) -> Result<(), LayoutError> {
        layout::sync(&self.directory)?;
        match &self.complete {
            Some(text) => layout::put(&self.directory, LOGS, text),
            None => {
                let path = self.directory.join(LOGS);
                std::fs::remove_file(&path).map_err(failed(&path, "remove"))?;
                layout::sync(&self.directory)
            }
        }
    }
}

/// Makes a directory and those above it that are missing, with durable names.
///
/// # Errors
/// One of them cannot be made.
pub fn make_durably(directory: &Path) -> Result<(), LayoutError> {
    if directory.is_dir() {
        return layout::sync_parent(directory);
    }
    if let Some(above) = directory.parent().filter(|one| !one.as_os_str().is_empty()) {
        make_durably(above)?;
    }
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(failed(directory, "make the directory"))?,
    }
    layout::sync_parent(directory)
}

/// Locks the marker, which must still have its name.
fn lock(marker: &File, directory: &Path, path: &Path) -> Result<(), LayoutError> {
    match rustix::fs::flock(marker, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use(directory)),
        Err(error) => return Err(failed(path, "lock")(error.into())),
    }
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let locked = marker.metadata().map(identity);
    match (locked, std::fs::metadata(path).map(identity)) {
        (Ok(locked), Ok(named)) if locked == named => Ok(()),
        // The other process has finished meanwhile.
        _ => Err(in_use(directory)),
    }
}

/// Refuses a directory with what it may not hold.
fn check_content(directory: &Path, may_hold: MayHold) -> Result<(), LayoutError> {
    for name in names(directory)? {
        let path = directory.join(&name);
        let counts = match may_hold {
            MayHold::Nothing => name != LOGS,
            MayHold::NoLog => {
                log_copy::is_of_log(&name)
                    || is_log_directory(&name)
                        && names(&path)?.iter().any(|name| log_copy::is_of_log(name))
            }
        };
        if counts {
            return Err(not_empty(directory, &name));
        }
    }
    Ok(())
}

/// Removes what an interrupted command has left, but for the marker.
fn remove_content(directory: &Path) -> Result<(), LayoutError> {
    for name in names(directory)? {
        let path = directory.join(&name);
        if is_log_directory(&name) && path.is_dir() {
            for name in names(&path)? {
                if is_left(&name) {
                    remove(&path.join(name))?;
                }
            }
            // It may be a mount point.
            let _ = std::fs::remove_dir(&path);
        } else if is_left(&name) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Whether a command that fills a directory makes a file or directory of this name, but for the marker.
fn is_left(name: &str) -> bool {
    let text = name.strip_suffix(".new").unwrap_or(name);
    text == LOG || text == LOGS && name != LOGS || log_copy::is_left(name)
}

/// Whether it is the name of the directory of one of several logs.
fn is_log_directory(name: &str) -> bool {
    let number = name.strip_prefix("log-");
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

fn names(directory: &Path) -> Result<Vec<String>, LayoutError> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        entries => entries.map_err(failed(directory, "list"))?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: io::Result<Vec<String>> = names.collect();
    names.map_err(failed(directory, "list"))
}

fn remove(path: &Path) -> Result<(), LayoutError> {
    let is_directory = path.symlink_metadata().is_ok_and(|one| one.is_dir());
    let removed = match is_directory {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    removed.map_err(failed(path, "remove"))
}

fn in_use(directory: &Path) -> LayoutError {
    LayoutError::InUse {
        directory: directory.to_owned(),
    }
}

fn not_empty(directory: &Path, found: &str) -> LayoutError {
    LayoutError::NotEmpty {
        directory: directory.to_owned(),
        found: found.to_owned(),
    }
}
