//! A log with a socket for snapshots, and backups of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use encke_backup::{
    BackupError, BackupName, BackupReport, BucketAccess, Removed, Repository, SnapshotMetrics,
    SnapshotServer, StoredPieces, back_up, restore,
};
use encke_clock::WallTime;
use encke_log::{Frame, FrameView, Log, Options, Reader};
use prometheus::Registry;
use tempfile::TempDir;

use crate::s3::S3Server;

/// A log as a server has it open.
pub(crate) struct Source {
    directory: TempDir,
    log: Log,
    pub(crate) server: Option<SnapshotServer>,
}

/// The results of a backup.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) report: BackupReport,
    pub(crate) removed: Removed,
    pub(crate) unsound: usize,
    pub(crate) read_bytes: u64,
}

/// How a backup is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) keep: Option<u32>,
    pub(crate) verify_within: Duration,
}

impl Default for How {
    fn default() -> Self {
        How {
            keep: None,
            verify_within: Duration::from_secs(30 * 86_400),
        }
    }
}

impl How {
    pub(crate) fn keeping(backups: u32) -> How {
        How {
            keep: Some(backups),
            ..How::default()
        }
    }
}

fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        ..Options::default()
    }
}

/// The content of a record.
fn payload(sequence: u64) -> Vec<u8> {
    sequence.to_le_bytes().repeat(128)
}

impl Source {
    /// A log of several segments.
    pub(crate) fn new() -> Source {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::open(directory.path(), options(), &mut |_| {}).unwrap();
        let mut source = Source {
            directory,
            log,
            server: None,
        };
        source.append(300);
        source.serve();
        source
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn readers(&self) -> Vec<Reader> {
        vec![self.log.reader()]
    }

    /// Gives snapshots.
    pub(crate) fn serve(&mut self) {
        let metrics = SnapshotMetrics::new(&Registry::new()).unwrap();
        let server = SnapshotServer::start(self.path(), self.readers(), metrics);
        self.server = Some(server.unwrap());
    }

    pub(crate) fn append(&mut self, count: u64) {
        for _ in 0..count {
            let sequence = self.log.next_sequence();
            let frame = Frame {
                kind: 1,
                time: WallTime::from_ms(sequence),
                streams: &[1],
                payload: &[&payload(sequence)],
            };
            self.log.append(&frame).unwrap();
        }
        self.log.write().unwrap();
        self.log.sync().unwrap();
        self.log.publish();
        // Moves of records to the history change files between two backups.
        let jobs = self.log.background();
        while self.log.health().segments_waiting > 0 || jobs().depth() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn back_up(&self, repository: &Repository, how: How) -> Result<Made, BackupError> {
        self.back_up_with(repository, how, &mut |_, _| {})
    }

    pub(crate) fn back_up_with(
        &self,
        repository: &Repository,
        how: How,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Made, BackupError> {
        let mut pieces = StoredPieces::examine(repository, how.verify_within)?;
        let report = back_up(self.path(), &mut pieces, progress)?;
        let removed = pieces.finish(report.name, how.keep)?;
        Ok(Made {
            report,
            removed,
            unsound: pieces.unsound(),
            read_bytes: pieces.read_bytes(),
        })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// The backups in a directory.
pub(crate) fn in_directory(path: &Path) -> Repository {
    let access = BucketAccess {
        setting: &|_| None,
        client: Default::default(),
    };
    Repository::to_write(path.to_str().unwrap(), &access).unwrap()
}

/// The backups in a bucket.
pub(crate) fn in_bucket(server: &S3Server) -> Repository {
    let access = BucketAccess {
        setting: &|name| server.setting(name),
        client: Default::default(),
    };
    Repository::to_write(&server.place(), &access).unwrap()
}

/// Restores a backup, and checks that it has all records up to its last one.
pub(crate) fn check_restored(repository: &Repository, name: BackupName) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let manifest = repository.manifest(name).unwrap();
    restore(repository, &manifest, directory.path(), &mut |_, _| {}).unwrap();
    let upto = check_log(directory.path());
    assert_eq!(manifest.upto().collect::<Vec<_>>(), [upto]);
    upto
}

/// The last record of a log, which has all records before it.
pub(crate) fn check_log(directory: &Path) -> u64 {
    let report = encke_log::check(directory, &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
    let log = Log::open(directory, options(), &mut |_| {}).unwrap();
    let mut next = 1;
    let mut each = |view: FrameView<'_>| {
        assert_eq!((view.sequence, view.payload), (next, &*payload(next)));
        next += 1;
    };
    let read = log.reader().read(1, 0, u64::MAX, usize::MAX, &mut each);
    read.unwrap();
    assert_eq!(log.next_sequence(), next);
    next - 1
}

/// The files of the pieces of the last backup in a directory. The next backup does not look for a piece that only an older one has.
pub(crate) fn piece_files(place: &Path, repository: &Repository) -> Vec<PathBuf> {
    let last = *repository.backups().unwrap().last().unwrap();
    let file = |hash: String| place.join("pieces").join(&hash[..2]).join(hash);
    hashes(place, last).into_iter().map(file).collect()
}

/// The hashes of the pieces of a backup of one log.
pub(crate) fn hashes(place: &Path, name: BackupName) -> Vec<String> {
    let text = std::fs::read(place.join(format!("backups/{name}.json"))).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let files = manifest["logs"][0]["files"].as_array().unwrap().iter();
    let pieces = files.flat_map(|file| file["pieces"].as_array().unwrap());
    pieces
        .map(|hash| hash.as_str().unwrap().to_owned())
        .collect()
}
