//! The directories of the logs: whether they can be written, and their free space. For `encke serve --check` and `encke doctor`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde::Serialize;

use crate::config::Config;

/// The directory of one log.
#[derive(Debug, Serialize)]
pub(crate) struct LogLocation {
    pub(crate) path: PathBuf,
    /// It exists; otherwise the server creates it.
    pub(crate) there: bool,
    /// Why it cannot be written to.
    pub(crate) unwritable: Option<String>,
    /// Free space, and the space that all logs on the same file system need to start and to run.
    pub(crate) free_bytes: Option<u64>,
    pub(crate) start_bytes: u64,
    pub(crate) need_bytes: u64,
    /// The directory itself, or its nearest existing ancestor.
    #[serde(skip)]
    pub(crate) folder: Option<PathBuf>,
    #[serde(skip)]
    pub(crate) device: Option<u64>,
    /// It has a segment, and so room for a start.
    #[serde(skip)]
    has_segment: bool,
}

/// The space that a log reserves in advance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) segment_bytes: u64,
    /// Sealed segments that may wait for history.
    pub(crate) waiting: u64,
}

impl Ahead {
    pub(crate) fn of(config: &Config) -> Ahead {
        Ahead {
            segment_bytes: config.log_options.segment_bytes,
            waiting: config.log_options.waiting_segments_max as u64,
        }
    }
}

/// Examines the directories of the logs in a data directory: of those that it holds, or else of `logs` that will be created. A file
/// is created in each and removed.
pub(crate) fn examine(data: &Path, logs: usize, ahead: Ahead) -> Vec<LogLocation> {
    let count = match logs_there(data).unwrap_or_default().len() {
        0 => logs,
        there => there,
    };
    let paths = match count {
        1 => vec![data.to_owned()],
        logs => (0..logs)
            .map(|log| data.join(format!("log-{log}")))
            .collect(),
    };
    let mut logs: Vec<_> = paths.into_iter().map(LogLocation::examine).collect();
    share_out(&mut logs, ahead);
    logs
}

/// The directories of the logs that a data directory holds.
pub(crate) fn logs_there(data: &Path) -> Result<Vec<PathBuf>, encke_log::LayoutError> {
    let there = encke_log::logs_in(data)?;
    let holds = there.len() > 1 || encke_log::Files::holds_log(data).unwrap_or(false);
    Ok(if holds { there } else { Vec::new() })
}

impl LogLocation {
    fn examine(path: PathBuf) -> LogLocation {
        let mut found = LogLocation {
            there: path.is_dir(),
            has_segment: has_segment(&path),
            path,
            unwritable: None,
            free_bytes: None,
            start_bytes: 0,
            need_bytes: 0,
            folder: None,
            device: None,
        };
        let folder = match nearest(&found.path) {
            Ok(folder) => folder,
            Err(error) => {
                found.unwritable = Some(error.to_string());
                return found;
            }
        };
        found.device = fs::metadata(&folder).ok().map(|metadata| metadata.dev());
        if let Ok(system) = statvfs(&folder) {
            let free = system.f_bavail.saturating_mul(system.f_frsize);
            found.free_bytes = (!system.f_flag.contains(StatVfsMountFlags::RDONLY)).then_some(free);
        }
        found.unwritable = try_write(&folder).err().map(|error| error.to_string());
        found.folder = Some(folder);
        found
    }

    /// Whether the file system lacks the space for a start.
    pub(crate) fn lacks_room(&self) -> bool {
        self.free_bytes.is_some_and(|free| free < self.start_bytes)
    }

    /// Why a server would not start on it, on one line.
    pub(crate) fn refusal(&self) -> Option<String> {
        let path = self.path.display();
        match (&self.unwritable, self.free_bytes) {
            (Some(error), _) => Some(format!("can't write to {path}: {error}")),
            (None, Some(free)) if self.lacks_room() => Some(format!(
                "{path} has {} of free space, and the first segments of the logs on this file system need {}: free some space, or \
                 choose another directory",
                ByteSize(free),
                ByteSize(self.start_bytes)
            )),
            _ => None,
        }
    }
}

/// Sets the space that the logs of each file system need together.
fn share_out(logs: &mut [LogLocation], ahead: Ahead) {
    let devices: Vec<_> = logs
        .iter()
        .map(|log| (log.device, log.has_segment))
        .collect();
    for log in logs {
        let same = devices
            .iter()
            .filter(|(device, _)| device.is_none() || *device == log.device);
        // A log that exists has its current segment.
        let start = same.clone().filter(|(_, has_segment)| !has_segment).count() as u64;
        // The next segment of each, and those that wait.
        let later = (same.count() as u64).saturating_mul(ahead.waiting.saturating_add(1));
        log.start_bytes = start.saturating_mul(ahead.segment_bytes);
        log.need_bytes = start
            .saturating_add(later)
            .saturating_mul(ahead.segment_bytes);
    }
}

/// Whether a log has begun: a start that failed may have left everything but a segment.
fn has_segment(path: &Path) -> bool {
    let is_segment = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|of| of == "segment"))
    };
    fs::read_dir(path).is_ok_and(|mut entries| entries.any(is_segment))
}

/// The directory itself, or its nearest existing ancestor.
fn nearest(path: &Path) -> io::Result<PathBuf> {
    use io::ErrorKind::{NotADirectory, NotFound};
    for folder in path.ancestors() {
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        match fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => return Ok(folder.to_owned()),
            Ok(_) => {
                let what = format!("{} is not a directory", folder.display());
                return Err(io::Error::other(what));
            }
            Err(_) if fs::symlink_metadata(folder).is_ok() => {
                let what = format!("{} is a dangling link", folder.display());
                return Err(io::Error::other(what));
            }
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(PathBuf::from("."))
}

/// Creates a file in a folder and removes it.
pub(crate) fn try_write(folder: &Path) -> io::Result<()> {
    let mut name = OsString::from(".encke-try-");
    name.push(std::process::id().to_string());
    let path = folder.join(name);
    fs::File::create_new(&path)?;
    fs::remove_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: Ahead = Ahead {
        segment_bytes: 1 << 20,
        waiting: 3,
    };

    #[test]
    fn several_logs_on_one_file_system_need_their_room_together() {
        let root = tempfile::tempdir().expect("a folder");
        let [first, ..] = &mut examine(root.path(), 3, AHEAD)[..] else {
            panic!("there are three");
        };
        assert_eq!((first.start_bytes, first.need_bytes), (3 << 20, 15 << 20));
        for (free, refused) in [((3 << 20) - 1, true), (3 << 20, false)] {
            first.free_bytes = Some(free);
            let refusal = first.refusal();
            assert_eq!(refusal.is_some(), refused, "{refusal:?}");
            assert!(refusal.is_none_or(|why| why.contains("need 3.0 MiB")));
        }
    }

    #[test]
    fn a_log_that_exists_starts_without_room() {
        let root = tempfile::tempdir().expect("a folder");
        let examined = || examine(root.path(), 1, AHEAD);
        fs::write(root.path().join("lock"), b"").expect("it can be written");
        assert_eq!(examined()[0].start_bytes, 1 << 20, "no segment is there");
        let segment = "00000000000000000001.segment";
        fs::write(root.path().join(segment), b"").expect("it can be written");
        let [log] = &examined()[..] else {
            panic!("there is one");
        };
        assert_eq!((log.start_bytes, log.need_bytes), (0, 4 << 20));
    }
}
