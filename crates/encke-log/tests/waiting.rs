//! A writer that waits for history does not delay the sync of written records.
#![allow(clippy::unwrap_used)]

use encke_clock::WallTime;
use encke_log::{Disk, DiskFile, Files, Frame, Log, Options, STALL};
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Real files whose background work stops at a gate, and whose syncs are counted.
#[derive(Clone, Debug)]
struct Gated {
    files: Files,
    gate: Arc<(Mutex<bool>, Condvar)>,
    /// Bytes of all segments that are written and not synced.
    unsynced: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Counted {
    file: File,
    own: AtomicU64,
    unsynced: Arc<AtomicU64>,
}

impl Gated {
    fn counted(&self, file: File) -> Counted {
        Counted {
            file,
            own: AtomicU64::new(0),
            unsynced: self.unsynced.clone(),
        }
    }

    fn open_gate(&self, open: bool) {
        *self.gate.0.lock() = open;
        self.gate.1.notify_all();
    }
}

impl Disk for Gated {
    type File = Counted;
    const BACKGROUND: bool = true;

    fn names(&self) -> io::Result<Vec<String>> {
        self.files.names()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Counted> {
        Ok(self.counted(self.files.create(name, bytes)?))
    }

    fn open(&self, name: &str) -> io::Result<Counted> {
        Ok(self.counted(self.files.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.files.sync_names()
    }

    fn salt(&self) -> io::Result<u64> {
        self.files.salt()
    }

    fn history(&self) -> Option<PathBuf> {
        self.files.history()
    }

    fn between_steps(&self) -> io::Result<()> {
        let mut open = self.gate.0.lock();
        while !*open {
            self.gate.1.wait(&mut open);
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path(name)
    }
}

impl DiskFile for Counted {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        DiskFile::read_at(&self.file, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = bytes.len() as u64;
        self.own.fetch_add(written, Ordering::SeqCst);
        self.unsynced.fetch_add(written, Ordering::SeqCst);
        DiskFile::write_at(&self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        DiskFile::sync(&self.file)?;
        let own = self.own.swap(0, Ordering::SeqCst);
        self.unsynced.fetch_sub(own, Ordering::SeqCst);
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        DiskFile::truncate(&self.file, bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        DiskFile::bytes(&self.file)
    }

    fn written_at(&self) -> io::Result<SystemTime> {
        self.file.written_at()
    }
}

#[test]
fn a_write_that_waits_for_history_syncs_what_was_written_before() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Gated {
        files: Files::lock(dir.path()).unwrap(),
        gate: Arc::default(),
        unsynced: Arc::default(),
    };
    let options = Options {
        segment_bytes: 64 << 10,
        waiting_segments_max: 1,
        ..Options::default()
    };
    let mut log = Log::open_on(disk.clone(), options, &mut |_| {}).unwrap();
    let payload = vec![7; 20 << 10];
    let (sender, receiver) = std::sync::mpsc::channel();
    // As a server at level `written`: only the log itself syncs.
    let writer = std::thread::spawn(move || {
        for number in 0..10 {
            let frame = Frame {
                kind: 1,
                time: WallTime::from_ms(number),
                streams: &[1],
                payload: &[&payload],
            };
            log.append(&frame).unwrap();
            log.write().unwrap();
            log.publish();
            sender.send(number).unwrap();
        }
        let health = log.health();
        log.close().unwrap();
        health
    });
    // Three records go into the first segment, three into the second, and the next one has to wait.
    for number in 0..6 {
        assert_eq!(receiver.recv(), Ok(number));
    }
    let begun = Instant::now();
    while disk.unsynced.load(Ordering::SeqCst) > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} bytes are written and not synced while a write waits",
            disk.unsynced.load(Ordering::SeqCst)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(receiver.recv_timeout(STALL).is_err());
    disk.open_gate(true);
    for number in 6..10 {
        assert_eq!(receiver.recv(), Ok(number));
    }
    let health = writer.join().unwrap();
    // The stall is reported.
    assert!(health.stalls >= 1 && health.longest_stall >= STALL);
    assert!(health.waited >= STALL, "{health:?}");
}
