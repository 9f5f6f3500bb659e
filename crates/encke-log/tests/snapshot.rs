//! A copy of an open log opens as the log of that moment would, whatever the log does meanwhile.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::simulated::{Faults, SimulatedDisk};
use encke_log::{
    CopyError, Disk, Frame, FrameView, Log, LogCopy, LogSnapshot, Options, Reader, Sequence, check,
    finish_copy,
};
use std::path::Path;
use std::sync::mpsc::channel;
use tempfile::TempDir;

const STREAMS: u64 = 5;

fn options() -> Options {
    Options {
        segment_bytes: 8 << 10,
        // Segments are removed as soon as they are in history and in a checkpoint.
        done_bytes_max: 0,
        ..Options::default()
    }
}

fn open(directory: &Path) -> Log {
    Log::open(directory, options(), &mut |_| {}).unwrap()
}

/// The content of the record with this sequence.
fn payload(sequence: Sequence) -> Vec<u8> {
    vec![sequence as u8; (sequence * 7 % 300) as usize]
}

fn append<D: Disk>(log: &mut Log<D>, count: u64) {
    for _ in 0..count {
        let sequence = log.next_sequence();
        let frame = Frame {
            kind: 1,
            time: WallTime::from_ms(sequence),
            streams: &[sequence % STREAMS],
            payload: &[&payload(sequence)],
        };
        assert_eq!(log.append(&frame).unwrap(), sequence);
    }
    log.write().unwrap();
    log.sync().unwrap();
    log.publish();
}

/// The state that a checkpoint after this record stores.
fn state(sequence: Sequence) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    vec![(b"upto".to_vec(), Some(sequence.to_le_bytes().to_vec()))]
}

fn write<D: Disk>(snapshot: &LogSnapshot<D>, copy: &LogCopy) {
    for directory in snapshot.directories() {
        copy.make_directory(directory).unwrap();
    }
    let mut buffer = vec![0; 3_000];
    for (index, (name, bytes)) in snapshot.files().enumerate() {
        let mut file = copy.make_file(name).unwrap();
        let mut offset = 0;
        while offset < bytes {
            let read = snapshot.read(index, offset, &mut buffer).unwrap();
            file.append(&buffer[..read]).unwrap();
            offset += read as u64;
        }
        file.finish().unwrap();
    }
}

fn copy_to<D: Disk>(snapshot: &LogSnapshot<D>, directory: &Path) {
    let copy = LogCopy::begin(directory).unwrap();
    write(snapshot, &copy);
    copy.complete().unwrap();
}

/// The log has exactly these records.
fn has_records_upto(reader: &Reader, upto: Sequence) {
    assert_eq!(reader.published(), upto);
    for stream in 0..STREAMS {
        let mut next = if stream == 0 { STREAMS } else { stream };
        let floor = reader.floor(stream).unwrap();
        while next <= floor {
            next += STREAMS;
        }
        let mut each = |view: FrameView<'_>| {
            assert_eq!((view.sequence, view.time), (next, WallTime::from_ms(next)));
            assert_eq!(view.payload, payload(next));
            next += STREAMS;
        };
        let (to, all) = (Sequence::MAX, usize::MAX);
        reader.read(stream, 0, to, all, &mut each).unwrap();
        assert!(next > upto, "stream {stream} ends before {next} of {upto}");
    }
}

/// Opens a copy with records up to `upto`, and continues it.
fn check_copy(directory: &Path, upto: Sequence) {
    let report = check(directory, &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
    let mut replayed = Vec::new();
    let opened = Log::open(directory, options(), &mut |view| {
        replayed.push(view.sequence);
    });
    let mut log = opened.unwrap();
    assert_eq!(log.next_sequence(), upto + 1);
    has_records_upto(&log.reader(), upto);
    // What is not replayed is in the state.
    let stored = log.state(b"upto").unwrap().unwrap_or(vec![0; 8]);
    let stored = u64::from_le_bytes(stored.try_into().unwrap());
    if let Some(first) = replayed.first() {
        assert!(*first <= stored + 1, "{first} after {stored}");
        assert_eq!(replayed.last(), Some(&upto));
    }
    append(&mut log, 100);
    log.checkpoint(state(upto + 100));
    log.close().unwrap();
    let log = open(directory);
    has_records_upto(&log.reader(), upto + 100);
}

#[test]
fn copies_of_a_log_that_is_written_to_are_prefixes_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    append(&mut log, 10);
    let (snapshots, taken) = channel::<LogSnapshot>();
    let (reader, gauge) = (log.reader(), log.reader());
    let taking = std::thread::spawn(move || {
        for _ in 0..6 {
            let before = reader.published();
            let snapshot = reader.snapshot().unwrap();
            assert!(snapshot.upto() >= before);
            snapshots.send(snapshot).unwrap();
            while reader.published() < before + 200 {
                std::thread::yield_now();
            }
        }
    });
    let mut floor = 0;
    while !taking.is_finished() {
        append(&mut log, 20);
        if log.wants_checkpoint() {
            floor += 10;
            log.set_floor(3, floor);
            log.checkpoint(state(gauge.published()));
        }
    }
    taking.join().unwrap();
    log.reclaim().unwrap();
    // All copies are read after the log has removed much of what they have.
    for snapshot in taken {
        let copy = tempfile::tempdir().unwrap();
        copy_to(&snapshot, &copy.path().join("data"));
        check_copy(&copy.path().join("data"), snapshot.upto());
    }
    let links = |directory: &TempDir| {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("copy.links-")).count()
    };
    assert_eq!(links(&directory), 0, "a snapshot leaves nothing behind");
    // A process that was killed does; the next start removes it.
    std::fs::create_dir(directory.path().join("copy.links-left")).unwrap();
    log.close().unwrap();
    drop(open(directory.path()));
    assert_eq!(links(&directory), 0);
}

#[test]
fn an_empty_log_and_one_that_was_just_opened_can_be_copied() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let copy = tempfile::tempdir().unwrap();
    copy_to(&log.reader().snapshot().unwrap(), copy.path());
    check_copy(copy.path(), 0);
    drop(log);
    let mut log = open(directory.path());
    append(&mut log, 1);
    drop(log);
    let log = open(directory.path());
    let copy = tempfile::tempdir().unwrap();
    copy_to(&log.reader().snapshot().unwrap(), copy.path());
    check_copy(copy.path(), 1);
}

#[test]
fn a_log_without_history_can_be_copied_and_a_failing_disk_is_reported() {
    let disk = SimulatedDisk::new(1);
    let options = Options {
        history: false,
        ..options()
    };
    let mut log = Log::open_on(disk.clone(), options, &mut |_| {}).unwrap();
    append(&mut log, 300);
    let snapshot = log.reader().snapshot().unwrap();
    // Nothing of the batch that is in memory, or written and not published, is in the copy.
    append(&mut log, 10);
    let mut failures = 0;
    for read in 1.. {
        disk.set_faults(Faults {
            failing_read: Some(read),
            ..Faults::default()
        });
        match log.reader().snapshot() {
            Ok(whole) => {
                assert_eq!(whole.upto(), 310);
                break;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("cannot read"), "{text}");
                failures += 1;
            }
        }
    }
    assert!(failures > 0, "the end of the log is read");
    disk.set_faults(Faults::default());
    let copy = tempfile::tempdir().unwrap();
    copy_to(&snapshot, copy.path());
    check_copy(copy.path(), 300);
    // The log goes on.
    append(&mut log, 10);
}

#[test]
fn a_copy_takes_the_place_of_a_log_at_once_or_not_at_all() {
    let source = tempfile::tempdir().unwrap();
    let mut log = open(source.path());
    append(&mut log, 500);
    let snapshot = log.reader().snapshot().unwrap();
    let target = tempfile::tempdir().unwrap();
    let mut old = open(target.path());
    append(&mut old, 20);
    // Not while the log is open.
    let refused = LogCopy::begin(target.path()).unwrap_err();
    assert!(matches!(refused, CopyError::Directory(_)), "{refused}");
    old.close().unwrap();
    let has = |upto| {
        let log = open(target.path());
        has_records_upto(&log.reader(), upto);
    };
    // A copy that is not complete changes nothing, and is removed.
    let copy = LogCopy::begin(target.path()).unwrap();
    write(&snapshot, &copy);
    drop(copy);
    assert!(target.path().join("copy.partial").exists());
    assert!(!finish_copy(target.path()).unwrap());
    assert!(!target.path().join("copy.partial").exists());
    has(20);
    // Nor does one that lacks a file, or has a damaged one.
    for damaged in [false, true] {
        let copy = LogCopy::begin(target.path()).unwrap();
        write(&snapshot, &copy);
        let (name, _) = snapshot
            .files()
            .find(|(name, _)| name.contains("/tables/"))
            .unwrap();
        let path = target.path().join("copy.partial").join(name);
        let mut content = std::fs::read(&path).unwrap();
        content[10] ^= 1;
        std::fs::remove_file(&path).unwrap();
        if damaged {
            std::fs::write(&path, content).unwrap();
        }
        let refused = copy.complete().unwrap_err();
        assert!(matches!(refused, CopyError::Directory(_)), "{refused}");
        has(20);
    }
    // A name from elsewhere is checked.
    let copy = LogCopy::begin(target.path()).unwrap();
    let refused = copy.make_file("../escaped").unwrap_err();
    assert!(matches!(refused, CopyError::Name { .. }), "{refused}");
    write(&snapshot, &copy);
    drop(copy);
    let path = |name: &str| target.path().join(name);
    // A crash after the copy was complete, and after each move of a file.
    std::fs::rename(path("copy.partial"), path("copy.complete")).unwrap();
    std::fs::create_dir(path("replaced")).unwrap();
    std::fs::rename(path("superblock-0"), path("replaced/superblock-0")).unwrap();
    std::fs::rename(path("history"), path("replaced/history")).unwrap();
    assert!(finish_copy(target.path()).unwrap());
    has(500);
    let names = std::fs::read_dir(path("replaced")).unwrap().count();
    assert!(names >= 4, "the log before is whole");
    let replaced = tempfile::tempdir().unwrap();
    std::fs::rename(path("replaced"), replaced.path().join("log")).unwrap();
    has_records_upto(&open(&replaced.path().join("log")).reader(), 20);
    // A crash after the log before was moved.
    let copy = LogCopy::begin(target.path()).unwrap();
    append(&mut log, 100);
    write(&log.reader().snapshot().unwrap(), &copy);
    drop(copy);
    std::fs::create_dir(path("replaced")).unwrap();
    for entry in std::fs::read_dir(target.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "lock" && name != "replaced" && name != "copy.partial" {
            std::fs::rename(path(&name), path("replaced").join(&name)).unwrap();
        }
    }
    std::fs::rename(path("copy.partial"), path("copy.placed")).unwrap();
    std::fs::rename(path("copy.placed/history"), path("history")).unwrap();
    assert!(finish_copy(target.path()).unwrap());
    assert!(!finish_copy(target.path()).unwrap());
    has(600);
    // The next copy removes what was replaced before.
    copy_to(&log.reader().snapshot().unwrap(), target.path());
    has(600);
}
