//! Checks the data directory: whether it can be used, its free space, and its file system.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statfs, statvfs};
use serde::Serialize;

use super::check::{Check, Verdict, bytes, millis};
use super::machine::{Syncs, measure_syncs};
use crate::obstacles;

/// The data directory.
#[derive(Debug, Serialize)]
pub(super) struct Data {
    path: PathBuf,
    /// Why a server would not start on it, whatever its disks are.
    refused: Option<String>,
    /// The directories of the logs, by index.
    logs: Vec<Place>,
}

/// The directory of one log.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// It exists; otherwise the server creates it.
    pub(super) there: bool,
    /// Why it cannot be written to.
    pub(super) unwritable: Option<String>,
    pub(super) file_system: Option<String>,
    #[serde(skip)]
    pub(super) kind: Kind,
    /// Free space, and the space that all logs on the same file system need to start and to run.
    pub(super) free_bytes: Option<u64>,
    pub(super) start_bytes: u64,
    pub(super) need_bytes: u64,
    pub(super) fdatasync: Option<Syncs>,
    #[serde(skip)]
    device: Option<u64>,
}

/// The kind of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    /// On a disk of this machine.
    Local,
    /// In memory only.
    Memory,
    /// On another machine, or served by a process.
    Remote,
    /// The topmost layer of a container.
    Layer,
    #[default]
    Unknown,
}

/// The space that a log reserves in advance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    pub(super) segment_bytes: u64,
    /// Sealed segments that may wait for history.
    pub(super) waiting: u64,
}

impl Data {
    /// Checks the directories of this number of logs. None: of those that exist.
    pub(super) fn look(path: &Path, logs: Option<usize>, ahead: Ahead) -> Data {
        let refused = obstacles::of_data(path, logs).map(|obstacle| obstacle.text);
        let there = obstacles::logs_there(path).unwrap_or_default().len();
        let count = match there {
            0 => logs.unwrap_or(1),
            there => there,
        };
        let dirs = match count {
            1 => vec![path.to_owned()],
            logs => (0..logs)
                .map(|log| path.join(format!("log-{log}")))
                .collect(),
        };
        let mut logs: Vec<Place> = Vec::with_capacity(count);
        for dir in dirs {
            let place = Place::look(dir, &logs);
            logs.push(place);
        }
        share_out(&mut logs, ahead);
        Data {
            path: path.to_owned(),
            refused,
            logs,
        }
    }

    /// The number of logs.
    pub(super) fn logs(&self) -> usize {
        self.logs.len()
    }

    /// The checks of the directory and of each log.
    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        let shown = self.path.display();
        checks.push(Check {
            name: format!("data, {shown}").into(),
            value: self
                .refused
                .clone()
                .unwrap_or_else(|| obstacles::in_words(self.logs.len())),
            need: "the number of logs at its first start, each in its place".into(),
            verdict: match self.refused {
                None => Verdict::Fits,
                Some(_) => Verdict::Fails,
            },
            why: "a server would not start on it",
            set: Vec::new(),
        });
        for (log, place) in self.logs.iter().enumerate() {
            let of_log = |what: &str| match self.logs.len() {
                1 => what.to_owned(),
                _ => format!("log {log}, {what}"),
            };
            checks.extend([
                place.directory(of_log("directory")),
                place.kind_of_disk(of_log("file system")),
                place.room(of_log("free space")),
                place.syncs(of_log("fdatasync")),
            ]);
        }
        checks
    }
}

impl Place {
    fn look(path: PathBuf, before: &[Place]) -> Place {
        let mut place = Place {
            there: path.is_dir(),
            path,
            unwritable: None,
            file_system: None,
            kind: Kind::Unknown,
            free_bytes: None,
            start_bytes: 0,
            need_bytes: 0,
            fdatasync: None,
            device: None,
        };
        let folder = match nearest(&place.path) {
            Ok(folder) => folder,
            Err(error) => {
                place.unwritable = Some(error.to_string());
                return place;
            }
        };
        place.device = fs::metadata(&folder).ok().map(|metadata| metadata.dev());
        if let Ok(found) = statfs(&folder) {
            // The type's width differs between machines; its magic numbers have 32 bits.
            let (name, kind) = file_system(found.f_type as u32);
            place.file_system = Some(name);
            place.kind = kind;
        }
        if let Ok(found) = statvfs(&folder) {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            place.free_bytes = (!found.f_flag.contains(StatVfsMountFlags::RDONLY)).then_some(free);
        }
        let same = |other: &&Place| other.device.is_some() && other.device == place.device;
        let known = before.iter().find(same).and_then(|other| other.fdatasync);
        let measured = match known {
            // Measured once for each disk; each folder must be writable.
            Some(syncs) => try_write(&folder).map(|()| syncs),
            None => measure_syncs(&folder),
        };
        match measured {
            Ok(syncs) => place.fdatasync = Some(syncs),
            Err(error) => place.unwritable = Some(error.to_string()),
        }
        place
    }

    fn directory(&self, name: String) -> Check {
        let shown = self.path.display();
        Check {
            name: name.into(),
            value: match (&self.unwritable, self.there) {
                (Some(error), _) => format!("{shown}: {error}"),
                (None, true) => "exists".into(),
                (None, false) => "will be created".into(),
            },
            need: "writable by this user".into(),
            verdict: match self.unwritable {
                None => Verdict::Fits,
                Some(_) => Verdict::Fails,
            },
            why: "the log cannot be created or opened there",
            set: Vec::new(),
        }
    }

    fn kind_of_disk(&self, name: String) -> Check {
        Check {
            name: name.into(),
            value: self.file_system.clone().unwrap_or("unknown".into()),
            need: "on a disk of this machine".into(),
            verdict: match self.kind {
                Kind::Local => Verdict::Fits,
                Kind::Memory | Kind::Remote | Kind::Layer => Verdict::Advice,
                Kind::Unknown => Verdict::Unknown,
            },
            why: match self.kind {
                Kind::Memory => {
                    "it is in memory: a crash of the system or a power cut loses everything, also what was acknowledged"
                }
                Kind::Remote => {
                    "durability and locking depend on another machine or process: fdatasync and the lock that excludes a \
                     second server are only as good as theirs, and each sync waits for them"
                }
                Kind::Layer => {
                    "it is a layer of a container and is removed with it; put the data on a volume"
                }
                Kind::Local | Kind::Unknown => {
                    "the durability of acknowledged records depends on it"
                }
            },
            set: Vec::new(),
        }
    }

    fn room(&self, name: String) -> Check {
        Check {
            name: name.into(),
            value: self.free_bytes.map_or("unknown".into(), bytes),
            need: bytes(self.need_bytes),
            verdict: match self.free_bytes {
                None => Verdict::Unknown,
                Some(free) if free < self.start_bytes => Verdict::Fails,
                Some(free) if free < self.need_bytes => Verdict::Advice,
                Some(_) => Verdict::Fits,
            },
            why: "space that all logs on this file system reserve: the current segment, the next one, and those that may wait \
                  for history (--segment, --waiting-segments-max); kept records need more, up to --order-size and all of \
                  history. A server does not start without space for the first two; it refuses writes when there is no space \
                  for another",
            set: Vec::new(),
        }
    }

    fn syncs(&self, name: String) -> Check {
        let slow = |syncs: &Syncs| syncs.median.as_millis() >= SYNC_MS;
        Check {
            name: name.into(),
            value: self.fdatasync.map_or("unknown".into(), |syncs| {
                format!(
                    "{}, {} at most",
                    millis(syncs.median),
                    millis(syncs.slowest)
                )
            }),
            need: format!("under {SYNC_MS} ms"),
            verdict: match &self.fdatasync {
                None => Verdict::Unknown,
                Some(syncs) if slow(syncs) => Verdict::Advice,
                Some(_) => Verdict::Fits,
            },
            why: "a publisher at level synced waits at least this long; slower syncs make larger batches and do not delay connections",
            set: Vec::new(),
        }
    }
}

/// Sets the space that the logs of each file system need together.
fn share_out(logs: &mut [Place], ahead: Ahead) {
    let devices: Vec<_> = logs
        .iter()
        .map(|place| (place.device, place.there))
        .collect();
    for place in logs {
        let same = devices
            .iter()
            .filter(|(device, _)| device.is_none() || *device == place.device);
        // A log that exists has its current segment.
        let start: u64 = same
            .clone()
            .map(|(_, there)| if *there { 1 } else { 2 })
            .sum();
        let waiting = same.count() as u64 * ahead.waiting;
        place.start_bytes = start.saturating_mul(ahead.segment_bytes);
        place.need_bytes = (start + waiting).saturating_mul(ahead.segment_bytes);
    }
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
fn try_write(folder: &Path) -> io::Result<()> {
    let mut name = OsString::from(".encke-doctor-try-");
    name.push(std::process::id().to_string());
    let path = folder.join(name);
    fs::File::create_new(&path)?;
    fs::remove_file(&path)
}

/// The file system with this magic number.
fn file_system(magic: u32) -> (String, Kind) {
    let (name, kind) = match magic {
        0xef53 => ("ext4", Kind::Local),
        0x5846_5342 => ("xfs", Kind::Local),
        0x9123_683e => ("btrfs", Kind::Local),
        0x2fc1_2fc1 => ("zfs", Kind::Local),
        0xf2f5_2010 => ("f2fs", Kind::Local),
        0x0102_1994 => ("tmpfs", Kind::Memory),
        0x8584_58f6 => ("ramfs", Kind::Memory),
        0x794c_7630 => ("overlay", Kind::Layer),
        0x6969 => ("nfs", Kind::Remote),
        0xff53_4d42 | 0xfe53_4d42 => ("smb", Kind::Remote),
        0x0102_1997 => ("9p", Kind::Remote),
        0x00c3_6400 => ("ceph", Kind::Remote),
        0x6573_5546 => ("fuse", Kind::Remote),
        other => return (format!("number {other:#x}"), Kind::Unknown),
    };
    (name.to_owned(), kind)
}

/// A disk with slower syncs gets an advice.
const SYNC_MS: u128 = 20;

#[cfg(test)]
mod tests;
