//! Checks the data directory: whether it can be used, its free space, and its file system.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use serde::Serialize;

use super::check::{Check, Verdict, bytes, millis};
use super::machine::{Syncs, measure_syncs};
use crate::log_locations::{self, Ahead, LogLocation};
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

/// The directory of one log, and its disk.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    #[serde(flatten)]
    pub(super) directory: LogLocation,
    pub(super) file_system: Option<String>,
    #[serde(skip)]
    pub(super) kind: Kind,
    pub(super) fdatasync: Option<Syncs>,
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

impl Data {
    /// Checks the directories of this number of logs.
    pub(super) fn look(path: &Path, logs: usize, ahead: Ahead) -> Data {
        let refused = obstacles::of_data(path, logs).map(|obstacle| obstacle.text);
        let mut places: Vec<Place> = Vec::new();
        for directory in log_locations::examine(path, logs, ahead) {
            let place = Place::look(directory, &places);
            places.push(place);
        }
        Data {
            path: path.to_owned(),
            refused,
            logs: places,
        }
    }

    /// A server runs on it: what would keep another one from starting there does not count.
    pub(super) fn is_in_use(&mut self) {
        self.refused = None;
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
            need: "as at its first start".into(),
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
    fn look(directory: LogLocation, before: &[Place]) -> Place {
        let mut place = Place {
            directory,
            file_system: None,
            kind: Kind::Unknown,
            fdatasync: None,
        };
        let Some(folder) = &place.directory.folder else {
            return place;
        };
        if let Ok(found) = statfs(folder) {
            // The type's width differs between machines; its magic numbers have 32 bits.
            let (name, kind) = file_system(found.f_type as u32);
            place.file_system = Some(name);
            place.kind = kind;
        }
        if place.directory.unwritable.is_some() {
            return place;
        }
        let device = place.directory.device;
        let same = |other: &&Place| device.is_some() && other.directory.device == device;
        // Measured once for each disk.
        let known = before.iter().find(same).and_then(|other| other.fdatasync);
        match known.map_or_else(|| measure_syncs(folder), Ok) {
            Ok(syncs) => place.fdatasync = Some(syncs),
            // How much space a start needs is checked apart.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => place.directory.unwritable = Some(error.to_string()),
        }
        place
    }

    fn directory(&self, name: String) -> Check {
        let shown = self.directory.path.display();
        Check {
            name: name.into(),
            value: match (&self.directory.unwritable, self.directory.there) {
                (Some(error), _) => format!("{shown}: {error}"),
                (None, true) => "exists".into(),
                (None, false) => "will be created".into(),
            },
            need: "writable by this user".into(),
            verdict: match self.directory.unwritable {
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
            value: self.directory.free_bytes.map_or("unknown".into(), bytes),
            need: bytes(self.directory.need_bytes),
            verdict: match self.directory.free_bytes {
                None => Verdict::Unknown,
                Some(_) if self.directory.lacks_room() => Verdict::Fails,
                Some(free) if free < self.directory.need_bytes => Verdict::Advice,
                Some(_) => Verdict::Fits,
            },
            why: "space that all logs on this file system reserve: the current segment, the next one, and those that may wait \
                  for history (--segment, tuning.waiting-segments-max); kept records need more, up to --order-size and all \
                  of history. A new log does not start without space for its first segment; writes are refused when there is \
                  no space for another",
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
