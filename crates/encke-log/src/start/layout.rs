//! A directory of several logs: their number, and a check that each is in its place.
//!
//! A single log lies in the directory itself. Several logs have a directory each in it, `log-0` and so on. These may be
//! mount points or links, so that logs can be on several disks. The file `LOGS` in the directory holds the number of
//! logs, and the file `LOG` in each directory its index. `LOGS` is written last, so all logs exist when it does. An
//! empty directory in the place of a disk that is not mounted is never taken for a log.
//!
//! A directory that a command fills in several steps has another text in `LOGS` until all logs are there (`copies/unfinished_directory.rs`).

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::disk::files::Files;
use crate::disk::unfinished_marker::{LOG, LOGS, command_of};
use crate::history::tree;

/// Why the directory of several logs can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The number of logs is another one.
    #[error(
        "{} holds {there}, not {asked} logs, and the number can't be changed: give the number of logs that it holds, or another \
         directory",
        directory.display(), there = in_words(*there)
    )]
    OtherCount {
        /// The directory.
        directory: PathBuf,
        /// The number of logs in the directory.
        there: usize,
        /// The requested number.
        asked: usize,
    },
    /// The directory of a log belongs to another one, or to none.
    #[error(
        "{} does not say that this is log {log} of {}: is its disk mounted, and in its place?",
        path.join(LOG).display(), directory.display()
    )]
    Misplaced {
        /// The directory of all logs.
        directory: PathBuf,
        /// The directory of the log.
        path: PathBuf,
        /// The log's index.
        log: usize,
    },
    /// The file with the number of logs is damaged.
    #[error("{} does not say how many logs there are", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The file with the number of logs is missing, and there are several.
    #[error("{} is missing, and the directory holds several logs", path.display())]
    Uncounted {
        /// The file.
        path: PathBuf,
    },
    /// A command has begun to fill the directory, and has not ended.
    #[error(
        "{} is not complete: `encke {command}` was interrupted there, or still runs; run it again, or remove the directory",
        directory.display()
    )]
    Unfinished {
        /// The directory.
        directory: PathBuf,
        /// The command, such as `log restore`.
        command: String,
    },
    /// Another process fills the directory.
    #[error("{} is in use: another command writes to it", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// A command is to fill a directory that has something.
    #[error("{} is not empty: it has {found}; give a directory that is new or empty", directory.display())]
    NotEmpty {
        /// The directory.
        directory: PathBuf,
        /// The name of one entry.
        found: String,
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

fn in_words(logs: usize) -> String {
    match logs {
        1 => "one log".to_owned(),
        logs => format!("{logs} logs"),
    }
}

/// The directories of this number of logs, by index; they are made if the directory is empty or missing.
///
/// # Errors
/// See [`LayoutError`]. Existing files stay unchanged.
pub fn arrange(directory: &Path, logs: usize) -> Result<Vec<PathBuf>, LayoutError> {
    let other = |there| LayoutError::OtherCount {
        directory: directory.to_owned(),
        there,
        asked: logs,
    };
    match read(directory)? {
        Some((there, _)) if there != logs => Err(other(there)),
        Some((_, id)) => {
            let paths = check(directory, logs, &id)?;
            // The process that made the directory may have ended before its name was durable.
            sync_parent(directory)?;
            Ok(paths)
        }
        None if logs == 1 => single(directory),
        None => {
            std::fs::create_dir_all(directory).map_err(failed(directory, "make the directory"))?;
            if Files::holds_log(directory).map_err(failed(directory, "read the directory"))? {
                return Err(other(1));
            }
            make(directory, logs)
        }
    }
}

/// The directories of the existing logs, by index.
///
/// # Errors
/// See [`LayoutError`].
pub fn logs_in(directory: &Path) -> Result<Vec<PathBuf>, LayoutError> {
    match read(directory)? {
        Some((logs, id)) => check(directory, logs, &id),
        None => single(directory),
    }
}

/// The directory of a single log. It must not be that of several.
fn single(directory: &Path) -> Result<Vec<PathBuf>, LayoutError> {
    let one_of_several = directory.join("log-0").join(LOG);
    let holds_several = one_of_several
        .try_exists()
        .map_err(failed(&one_of_several, "look for"))?;
    let used = directory.join("log-0");
    let failed = failed(&used, "read the directory");
    if holds_several && Files::holds_log(&used).map_err(failed)? {
        return Err(LayoutError::Uncounted {
            path: directory.join(LOGS),
        });
    }
    Ok(vec![directory.to_owned()])
}

/// The number of logs and their common identity, if there are several.
fn read(directory: &Path) -> Result<Option<(usize, String)>, LayoutError> {
    let path = directory.join(LOGS);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&path, "read")(error)),
    };
    if let Some(command) = command_of(&text) {
        return Err(LayoutError::Unfinished {
            directory: directory.to_owned(),
            command: command.to_owned(),
        });
    }
    let parsed = text.strip_suffix('\n').and_then(|line| {
        let (logs, id) = line.strip_prefix(KIND)?.split_once(" logs ")?;
        Some((logs.parse().ok().filter(|logs| *logs > 1)?, id.to_owned()))
    });
    parsed.map(Some).ok_or(LayoutError::Damaged { path })
}

fn check(directory: &Path, logs: usize, id: &str) -> Result<Vec<PathBuf>, LayoutError> {
    let paths: Vec<PathBuf> = paths(directory, logs).collect();
    for (log, path) in paths.iter().enumerate() {
        let says = match std::fs::read_to_string(path.join(LOG)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(&path.join(LOG), "read the log's index in")(error)),
        };
        if says != label(log, logs, id) {
            return Err(misplaced(directory, path, log));
        }
    }
    Ok(paths)
}

fn make(directory: &Path, logs: usize) -> Result<Vec<PathBuf>, LayoutError> {
    let opened = File::open(directory).map_err(failed(directory, "open the directory"))?;
    // Excludes another process that makes them.
    rustix::fs::flock(&opened, FlockOperation::LockExclusive)
        .map_err(|error| failed(directory, "lock")(error.into()))?;
    let (paths, text) = make_logs(directory, logs)?;
    put(directory, LOGS, &text)?;
    sync_parent(directory)?;
    Ok(paths)
}

/// Makes and labels the directories of several logs. Returns them, and the content of `LOGS`.
pub(crate) fn make_logs(
    directory: &Path,
    logs: usize,
) -> Result<(Vec<PathBuf>, String), LayoutError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| failed(directory, "find an identity for")(error.into()))?;
    let id = format!("{:016x}", u64::from_le_bytes(random));
    let paths: Vec<PathBuf> = paths(directory, logs).collect();
    for (log, path) in paths.iter().enumerate() {
        std::fs::create_dir_all(path).map_err(failed(path, "make the directory"))?;
        if Files::holds_log(path).map_err(failed(path, "read the directory"))? {
            if path.join(LOG).exists() {
                let path = directory.join(LOGS);
                return Err(LayoutError::Uncounted { path });
            }
            return Err(misplaced(directory, path, log));
        }
        put(path, LOG, &label(log, logs, &id))?;
    }
    Ok((paths, format!("{KIND}{logs} logs {id}\n")))
}

fn paths(directory: &Path, logs: usize) -> impl Iterator<Item = PathBuf> {
    (0..logs).map(|log| directory.join(format!("log-{log}")))
}

fn label(log: usize, logs: usize, id: &str) -> String {
    format!("{KIND}log {log} of {logs} {id}\n")
}

/// Writes a file durably, whole or not at all.
pub(crate) fn put(directory: &Path, name: &str, text: &str) -> Result<(), LayoutError> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    File::create(&new)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&new, &path))
        .map_err(failed(&path, "write"))?;
    sync(directory)
}

pub(crate) fn sync(directory: &Path) -> Result<(), LayoutError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed(directory, "sync the directory"))
}

pub(crate) fn sync_parent(directory: &Path) -> Result<(), LayoutError> {
    tree::sync_parent(directory).map_err(failed(directory, "sync the directory that holds"))
}

fn misplaced(directory: &Path, path: &Path, log: usize) -> LayoutError {
    LayoutError::Misplaced {
        directory: directory.to_owned(),
        path: path.to_owned(),
        log,
    }
}

pub(crate) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> LayoutError {
    let path = path.to_owned();
    move |source| LayoutError::Io {
        path,
        action,
        source,
    }
}

/// The first part of these files, with the version of their format.
const KIND: &str = "encke 1: ";

/// The most logs of a data directory. Their indices must fit the numbers of streams, beside that of streams in memory.
pub const LOGS_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_found_again_and_another_number_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let made = arrange(&dir, 3).unwrap();
        assert_eq!(made, ["log-0", "log-1", "log-2"].map(|log| dir.join(log)));
        assert_eq!(arrange(&dir, 3).unwrap(), made);
        assert_eq!(logs_in(&dir).unwrap(), made);
        for asked in [1, 2, 4] {
            let refused = arrange(&dir, asked).unwrap_err();
            assert!(
                matches!(refused, LayoutError::OtherCount { there: 3, .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn one_log_lies_in_the_directory_itself_and_stays_one() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().to_owned();
        assert_eq!(arrange(&dir, 1).unwrap(), std::slice::from_ref(&dir));
        drop(Files::lock(&dir).unwrap());
        let refused = arrange(&dir, 2).unwrap_err().to_string();
        assert!(refused.contains("holds one log, not 2 logs"), "{refused}");
        assert_eq!(logs_in(&dir).unwrap(), [dir]);
    }

    #[test]
    fn an_unmounted_or_misplaced_disk_is_not_an_empty_log() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let made = arrange(dir, 2).unwrap();
        let away = dir.join("away");
        std::fs::rename(&made[1], &away).unwrap();
        std::fs::create_dir(&made[1]).unwrap();
        let refused = arrange(dir, 2).unwrap_err();
        assert!(
            matches!(refused, LayoutError::Misplaced { log: 1, .. }),
            "{refused}"
        );
        std::fs::remove_dir(&made[1]).unwrap();
        std::fs::rename(&made[0], &made[1]).unwrap();
        std::fs::rename(&away, &made[0]).unwrap();
        let refused = logs_in(dir).unwrap_err();
        assert!(
            matches!(refused, LayoutError::Misplaced { log: 0, .. }),
            "{refused}"
        );
    }

    #[test]
    fn existing_directories_are_used_and_an_interrupted_setup_is_repeated() {
        let root = tempfile::tempdir().unwrap();
        let (dir, disk) = (root.path().join("data"), root.path().join("disk"));
        std::fs::create_dir_all(disk.join("lost+found")).unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink(&disk, dir.join("log-1")).unwrap();
        arrange(&dir, 2).unwrap();
        assert!(disk.join(LOG).exists());
        std::fs::remove_file(dir.join(LOGS)).unwrap();
        arrange(&dir, 2).unwrap();
        std::fs::write(dir.join(LOGS), "something else").unwrap();
        let refused = arrange(&dir, 2).unwrap_err();
        assert!(matches!(refused, LayoutError::Damaged { .. }), "{refused}");
    }
}
