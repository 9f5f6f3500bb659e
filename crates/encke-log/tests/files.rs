//! The log on real files: writing, reading, opening again, refusals.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::{
    AppendError, CommitError, Frame, FrameView, Log, OpenError, Options, ReadError, Reader,
    Sequence, StreamNo,
};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Small segments, so that a test has many of them.
fn small() -> Options {
    Options {
        segment_bytes: 8 << 10,
        history: false,
        ..Options::default()
    }
}

fn open(directory: &Path) -> Log {
    Log::open(directory, small(), &mut |_| {}).unwrap()
}

fn append(log: &mut Log, stream: StreamNo, payload: &[u8]) -> Sequence {
    let frame = Frame {
        kind: 7,
        time: WallTime::from_ms(1_700_000_000_000 + stream),
        streams: &[stream],
        payload: &[payload],
    };
    log.append(&frame).unwrap()
}

fn commit(log: &mut Log) {
    log.write().unwrap();
    log.sync().unwrap();
    log.publish();
}

/// All records of a stream, read in parts of `bytes_max`.
fn read(reader: &Reader, stream: StreamNo, bytes_max: usize) -> Vec<(Sequence, Vec<u8>)> {
    let mut records = Vec::new();
    let mut after = 0;
    loop {
        let mut each = |view: FrameView<'_>| {
            assert_eq!((view.kind, view.stream), (7, stream));
            assert_eq!(view.time, WallTime::from_ms(1_700_000_000_000 + stream));
            records.push((view.sequence, view.payload.to_vec()));
        };
        let end = reader
            .read(stream, after, Sequence::MAX, bytes_max, &mut each)
            .unwrap();
        after = end.last;
        if !end.more {
            assert_eq!(after, reader.published());
            return records;
        }
    }
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "segment"))
        .collect();
    paths.sort();
    paths
}

fn flip(path: &Path, position: u64) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    byte[0] ^= 0x10;
    file.write_all_at(&byte, position).unwrap();
}

/// 1,000 records in 10 streams, in batches of 7.
fn fill(log: &mut Log) -> Vec<Vec<(Sequence, Vec<u8>)>> {
    let mut expected = vec![Vec::new(); 11];
    for i in 1..=1000_u64 {
        let stream = ((i * 2_654_435_761) >> 7) % 10 + 1;
        let payload = vec![i as u8; (i % 90) as usize];
        let sequence = append(log, stream, &payload);
        assert_eq!(sequence, i);
        expected[stream as usize].push((sequence, payload));
        if i % 7 == 0 {
            commit(log);
        }
    }
    commit(log);
    expected
}

#[test]
fn what_is_written_is_read_and_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let expected = fill(&mut log);
    let check = |reader: &Reader| {
        for stream in 1..=10 {
            for bytes_max in [0, 100, 3000, 1 << 20] {
                assert_eq!(read(reader, stream, bytes_max), expected[stream as usize]);
            }
        }
        let mut all = Vec::new();
        let end = reader
            .read_all(0, Sequence::MAX, 1 << 30, &mut |_, _| {}, &mut |view| {
                all.push(view.sequence);
            })
            .unwrap();
        assert_eq!((end.last, end.more), (1000, false));
        assert!(all.iter().copied().eq(1..=1000));
    };
    check(&log.reader());
    assert!(segments(directory.path()).len() > 5);
    log.close().unwrap();

    let mut replayed = Vec::new();
    let log = Log::open(directory.path(), small(), &mut |view| {
        replayed.push(view.sequence);
    })
    .unwrap();
    assert!(replayed.iter().copied().eq(1..=1000));
    assert_eq!(log.next_sequence(), 1001);
    check(&log.reader());
}

#[test]
fn the_global_order_is_read_in_pieces_from_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    fill(&mut log);
    let reader = log.reader();
    for (from, upto, bytes_max) in [
        (0, 1000, 0),
        (0, 1000, 500),
        (333, 777, 2000),
        (999, 1000, 1),
        (500, 500, 1),
    ] {
        let (mut all, mut after) = (Vec::new(), from);
        loop {
            let end = reader
                .read_all(after, upto, bytes_max, &mut |_, _| {}, &mut |view| {
                    all.push(view.sequence);
                })
                .unwrap();
            after = end.last;
            if !end.more {
                break;
            }
        }
        assert_eq!(after, upto);
        assert!(
            all.iter().copied().eq(from + 1..=upto),
            "{from} to {upto} by {bytes_max}"
        );
    }
}

#[test]
fn previous_positions_chain_the_records_of_a_stream() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    fill(&mut log);
    let mut last = std::collections::HashMap::new();
    // The next record of a stream has a record's own position as its previous one.
    log.reader()
        .read_all(0, 1000, 1 << 30, &mut |_, _| {}, &mut |view| {
            for (stream, previous) in view.streams.iter() {
                let known = last.insert(stream, previous);
                assert_eq!(previous.is_none(), known.is_none());
                assert!(known.is_none_or(|known| previous > known));
            }
        })
        .unwrap();
    assert_eq!(last.len(), 10);
}

#[test]
fn a_record_may_belong_to_several_streams_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let frame = |streams, payload| Frame {
        kind: 1,
        time: WallTime::from_ms(2),
        streams,
        payload,
    };
    log.append(&frame(&[5, 9], &[b"one", b" and two"])).unwrap();
    log.append(&frame(&[], &[])).unwrap();
    commit(&mut log);
    let reader = log.reader();
    for stream in [5, 9] {
        let mut seen = 0;
        let mut each = |view: FrameView<'_>| {
            assert_eq!((view.stream, view.payload), (stream, &b"one and two"[..]));
            assert!(view.streams.iter().map(|(stream, _)| stream).eq([5, 9]));
            seen += 1;
        };
        reader.read(stream, 0, 2, 1000, &mut each).unwrap();
        assert_eq!(seen, 1);
    }
    let mut streams = Vec::new();
    reader
        .read_all(0, 2, 1000, &mut |_, _| {}, &mut |view| {
            streams.push(view.stream);
        })
        .unwrap();
    assert_eq!(streams, [5, 0]);
}

#[test]
fn only_published_records_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let reader = log.reader();
    append(&mut log, 1, b"a");
    log.write().unwrap();
    log.sync().unwrap();
    assert_eq!(reader.published(), 0);
    let end = reader
        .read(1, 0, 100, 100, &mut |_| panic!("not published"))
        .unwrap();
    assert_eq!((end.last, end.more), (0, false));
    log.publish();
    assert_eq!(read(&reader, 1, 100).len(), 1);
}

#[test]
fn an_abandoned_batch_was_never_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    append(&mut log, 1, b"kept");
    commit(&mut log);
    for _ in 0..500 {
        append(&mut log, 1, &[0; 100]);
    }
    log.abandon();
    assert_eq!((log.batch_bytes(), log.next_sequence()), (0, 2));
    append(&mut log, 1, b"also kept");
    commit(&mut log);
    let expected = [(1, b"kept".to_vec()), (2, b"also kept".to_vec())];
    assert_eq!(read(&log.reader(), 1, 1000), expected);
    drop(log);
    assert_eq!(read(&open(directory.path()).reader(), 1, 1000), expected);
}

#[test]
fn a_frame_that_fits_no_segment_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    append(&mut log, 1, b"before");
    let before = log.batch_bytes();
    let frame = |payload: &[u8], log: &mut Log| {
        log.append(&Frame {
            kind: 7,
            time: WallTime::from_ms(0),
            streams: &[1],
            payload: &[payload],
        })
    };
    // The error names the largest frame. The head of a batch's first frame and one stream take 52 bytes of it.
    let mut payload = vec![3; 1 << 20];
    let error = frame(&payload, &mut log).unwrap_err();
    let AppendError::TooLarge { max, .. } = error else {
        panic!("{error}");
    };
    payload.truncate(max as usize - 51);
    assert!(frame(&payload, &mut log).is_err());
    assert_eq!(log.batch_bytes(), before);
    payload.pop();
    assert_eq!(frame(&payload, &mut log), Ok(2));
    commit(&mut log);
    drop(log);
    let log = open(directory.path());
    let mut lengths = Vec::new();
    log.reader()
        .read_all(0, 9, 1 << 20, &mut |_, _| {}, &mut |view| {
            lengths.push(view.payload.len());
        })
        .unwrap();
    assert_eq!(lengths, [6, payload.len()]);
}

#[test]
fn a_second_log_in_the_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let reader = log.reader();
    let error = Log::open(directory.path(), small(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("in use"));
    drop(log);
    open(directory.path());
    assert_eq!(reader.published(), 0);
}

#[test]
fn another_version_byte_order_or_file_is_refused_with_a_clear_error() {
    type Check = fn(&OpenError) -> bool;
    let cases: [(u64, &[u8], Check, &str); 3] = [
        (
            12,
            &[9, 0],
            |e| {
                matches!(
                    e,
                    OpenError::Version {
                        found: 9,
                        supported: 1,
                        ..
                    }
                )
            },
            "format 9",
        ),
        (
            8,
            &[0x0A, 0x0B, 0x0C, 0x0D],
            |e| matches!(e, OpenError::ByteOrder { .. }),
            "byte order",
        ),
        (
            0,
            b"#!/bin/s",
            |e| matches!(e, OpenError::NotASegment { .. }),
            "not a segment",
        ),
    ];
    for (position, bytes, check, word) in cases {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()));
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&segments(directory.path())[0])
            .unwrap();
        let mut head = [0; 64];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut head, 0).unwrap();
        head[position as usize..][..bytes.len()].copy_from_slice(bytes);
        if matches!(position, 12) {
            // The head of another version is sound, too.
            let checksum = crc32c::crc32c(&head[..60]);
            head[60..].copy_from_slice(&checksum.to_le_bytes());
        }
        file.write_all_at(&head, 0).unwrap();
        let error = Log::open(directory.path(), small(), &mut |_| {}).unwrap_err();
        assert!(check(&error) && error.to_string().contains(word), "{error}");
    }
}

#[test]
fn damage_to_what_was_durable_refuses_the_start_and_names_the_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    fill(&mut log);
    log.close().unwrap();
    let paths = segments(directory.path());
    // In the head, in the first frame and in the middle of a sealed segment; in the first and the last batch of the
    // last segment.
    let last = paths.last().unwrap();
    for (path, position) in [
        (&paths[1], 20),
        (&paths[1], 70),
        (&paths[2], 4000),
        (last, 70),
        (last, last_byte(last) - 40),
    ] {
        flip(path, position);
        let error = Log::open(directory.path(), small(), &mut |_| {}).unwrap_err();
        let OpenError::Damaged {
            file, position: at, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(file, path);
        assert!(*at <= position, "{error}");
        assert!(error.to_string().contains("encke log repair --accept-loss"));
        flip(path, position);
    }
    open(directory.path());
}

/// The position of the last nonzero byte of a file.
fn last_byte(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64
}

#[test]
fn a_torn_batch_is_cut_off_and_the_next_one_begins_a_segment() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    append(&mut log, 1, b"durable");
    commit(&mut log);
    append(&mut log, 1, b"torn");
    log.write().unwrap();
    drop(log);
    let path = segments(directory.path()).remove(0);
    flip(&path, last_byte(&path));
    for round in 0..3 {
        let mut log = open(directory.path());
        assert_eq!(log.next_sequence(), 2 + round);
        append(&mut log, 1, &[round as u8]);
        commit(&mut log);
    }
    let records = read(&open(directory.path()).reader(), 1, 1000);
    assert_eq!(records.len(), 4);
    assert_eq!(segments(directory.path()).len(), 2);
}

#[test]
fn a_missing_segment_refuses_the_start() {
    for missing in [0, 2] {
        let directory = tempfile::tempdir().unwrap();
        let mut log = open(directory.path());
        fill(&mut log);
        log.close().unwrap();
        std::fs::remove_file(&segments(directory.path())[missing]).unwrap();
        let error = Log::open(directory.path(), small(), &mut |_| {}).unwrap_err();
        assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    }
}

#[test]
fn damage_is_never_given_to_a_reader_nor_taken_for_absence() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let first = append(&mut log, 1, b"sound");
    append(&mut log, 1, b"to be damaged");
    commit(&mut log);
    let path = segments(directory.path()).remove(0);
    flip(&path, last_byte(&path));
    let reader = log.reader();
    let mut seen = Vec::new();
    let error = reader
        .read(1, 0, 9, 1000, &mut |view| seen.push(view.sequence))
        .unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged { sequence: 2, .. }),
        "{error}"
    );
    assert_eq!(seen, [first]);
    assert!(
        reader
            .read_all(1, 9, 1000, &mut |_, _| {}, &mut |_| panic!("damaged"))
            .is_err()
    );
}

#[test]
fn floors_hide_and_state_is_kept_until_changed() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let expected = fill(&mut log);
    log.set_floor(1, 500);
    log.set_floor(1, 400);
    log.forget(2);
    let reader = log.reader();
    let above: Vec<_> = expected[1]
        .iter()
        .filter(|(sequence, _)| *sequence > 500)
        .cloned()
        .collect();
    assert_eq!(read(&reader, 1, 100), above);
    assert_eq!(read(&reader, 2, 100), []);
    let (mut all, removed) = (
        Vec::new(),
        expected[1].len() - above.len() + expected[2].len(),
    );
    reader
        .read_all(0, 1000, 1 << 30, &mut |_, _| {}, &mut |view| {
            all.push(view.sequence);
        })
        .unwrap();
    assert_eq!(all.len(), 1000 - removed);

    assert!(log.wants_checkpoint());
    log.checkpoint(vec![
        (b"s/2".to_vec(), Some(b"two".to_vec())),
        (b"s/1".to_vec(), Some(b"one".to_vec())),
        (b"t".to_vec(), None),
    ]);
    assert!(!log.wants_checkpoint());
    log.checkpoint(vec![
        (b"s/2".to_vec(), None),
        (b"s/3".to_vec(), Some(Vec::new())),
    ]);
    assert_eq!(reader.state(b"s/1").unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(reader.state(b"s/2").unwrap(), None);
    let mut keys = Vec::new();
    log.states(b"s/", &mut |key, _| keys.push(key.to_vec()))
        .unwrap();
    assert_eq!(keys, [b"s/1", b"s/3"]);
}

#[test]
fn sizes_out_of_bounds_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for segment_bytes in [0, 4095, u64::MAX] {
        let options = Options {
            segment_bytes,
            ..small()
        };
        let error = Log::open(directory.path(), options, &mut |_| {}).unwrap_err();
        assert!(matches!(error, OpenError::SegmentBytes { .. }), "{error}");
    }
}

#[test]
fn a_permanent_failure_poisons_the_log_and_reads_continue() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    append(&mut log, 1, b"first");
    commit(&mut log);
    // Files can't be made in a removed directory, and unlike room on a disk it does not come back.
    std::fs::remove_dir_all(directory.path()).unwrap();
    for _ in 0..10 {
        for _ in 0..100 {
            append(&mut log, 1, &[0; 100]);
        }
        if log.write().is_err() {
            break;
        }
    }
    let error = log.write().unwrap_err();
    assert!(matches!(error, CommitError::Poisoned { .. }), "{error}");
    assert_eq!(
        log.health()
            .poisoned
            .as_deref()
            .map(|reason| reason.is_empty()),
        Some(false)
    );
    log.publish();
    assert_eq!(log.reader().published(), 1);
    assert_eq!(read(&log.reader(), 1, 100).len(), 1);
}

#[test]
fn an_empty_log_takes_larger_frames_after_its_segments_have_grown() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    for (bytes, segment_bytes) in [(20_000, 32 << 10), (50_000, 64 << 10), (3000, 4 << 10)] {
        let options = Options {
            segment_bytes,
            ..small()
        };
        let mut log = Log::open(directory.path(), options, &mut |_| {}).unwrap();
        append(&mut log, 1, &vec![1; bytes]);
        commit(&mut log);
    }
    let lengths = read(&open(directory.path()).reader(), 1, 1000);
    assert!(
        lengths
            .iter()
            .map(|(_, payload)| payload.len())
            .eq([20_000, 50_000, 3000])
    );
}
