//! A real file system that becomes full. Needs root: run it with `cargo test -p encke-log --test full_disk --
//! --ignored`.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::{CommitError, Frame, Log, Options, Sequence};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A file system in memory of 80 MiB, unmounted on drop.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Small {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=80m", "tmpfs"])
            .arg(directory.path());
        assert!(
            mount.status().unwrap().success(),
            "this test has to be root"
        );
        Small(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn options() -> Options {
    Options {
        segment_bytes: 1 << 20,
        done_bytes_max: 2 << 20,
        ..Options::default()
    }
}

/// Writes batches until `enough` returns true. Refused batches are abandoned.
fn write(
    log: &mut Log,
    acknowledged: &mut Sequence,
    mut enough: impl FnMut(&Result<(), CommitError>) -> bool,
) {
    loop {
        for _ in 0..100 {
            let sequence = log.next_sequence();
            let payload: Vec<u8> = (0..1000_u64)
                .map(|i| ((sequence * 1000 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
                .collect();
            let frame = Frame {
                kind: 1,
                time: WallTime::from_ms(sequence),
                streams: &[sequence % 7 + 1],
                payload: &[&payload],
            };
            log.append(&frame).unwrap();
        }
        let written = log.write();
        if written.is_ok() {
            log.sync().unwrap();
            log.publish();
            *acknowledged = log.next_sequence() - 1;
            if log.wants_checkpoint() {
                log.checkpoint(vec![(
                    b"upto".to_vec(),
                    Some(acknowledged.to_le_bytes().to_vec()),
                )]);
            }
        } else {
            log.abandon();
        }
        if enough(&written) {
            return;
        }
    }
}

#[test]
#[ignore = "mounts a file system, so it has to be root"]
fn a_full_disk_refuses_and_continues_when_there_is_room() {
    let disk = Small::mount();
    let filler = disk.path().join("filler");
    let mut acknowledged = 0;
    let mut log = Log::open(&disk.path().join("log"), options(), &mut |_| {}).unwrap();
    for round in 0..3 {
        write(&mut log, &mut acknowledged, |written| written.is_ok());
        // Takes almost all room. The log meets the end of it at a random moment.
        let free = rustix::fs::statvfs(disk.path()).unwrap();
        let room = (free.f_bavail * free.f_frsize).saturating_sub((5 + round) << 20);
        std::fs::write(&filler, vec![1; room as usize]).unwrap();
        let begun = Instant::now();
        write(&mut log, &mut acknowledged, |written| match written {
            Ok(()) => false,
            Err(CommitError::NoSpace { .. }) => true,
            Err(error) => panic!("round {round}: {error}"),
        });
        let refused_after = begun.elapsed();
        let before = acknowledged;
        std::fs::remove_file(&filler).unwrap();
        let begun = Instant::now();
        write(&mut log, &mut acknowledged, |written| {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "round {round}: {written:?}"
            );
            written.is_ok()
        });
        println!(
            "round {round}: refused after {refused_after:?}, took records again after {:?}",
            begun.elapsed()
        );
        assert!(acknowledged > before);
    }
    let begun = Instant::now();
    while log.health().segments_waiting > 0 || log.health().history_failed.is_some() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{:?}",
            log.health()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    log.close().unwrap();
    let log = Log::open(&disk.path().join("log"), options(), &mut |_| {}).unwrap();
    assert_eq!(log.next_sequence() - 1, acknowledged);
    let mut seen = 0;
    for stream in 1..=7 {
        log.reader()
            .read(stream, 0, Sequence::MAX, 1 << 30, &mut |_| seen += 1)
            .unwrap();
    }
    assert_eq!(seen, acknowledged);
}
