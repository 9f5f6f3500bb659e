//! History on real files: sealed segments go there, reads continue, and a start replays only new records.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::{Frame, FrameView, Log, OpenError, Options, ReadError, Reader, Sequence, StreamNo};
use std::path::Path;
use std::time::{Duration, Instant};

fn small() -> Options {
    Options {
        segment_bytes: 16 << 10,
        ..Options::default()
    }
}

fn open(directory: &Path) -> Log {
    Log::open(directory, small(), &mut |_| {}).unwrap()
}

fn append(log: &mut Log, streams: &[StreamNo], payload: &[u8]) -> Sequence {
    let frame = Frame {
        kind: 7,
        time: WallTime::from_ms(42),
        streams,
        payload: &[payload],
    };
    log.append(&frame).unwrap()
}

fn commit(log: &mut Log) {
    log.write().unwrap();
    log.sync().unwrap();
    log.publish();
}

type Records = Vec<(Sequence, Vec<u8>)>;

fn read(reader: &Reader, stream: StreamNo, after: Sequence, bytes_max: usize) -> Records {
    let (mut records, mut after) = (Vec::new(), after);
    loop {
        let mut each = |view: FrameView<'_>| {
            assert_eq!(
                (view.kind, view.time, view.stream),
                (7, WallTime::from_ms(42), stream)
            );
            assert!(view.streams.iter().any(|(s, _)| s == stream));
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

/// 3,000 records: in streams 1 to 9, some in two, some in none.
fn fill(log: &mut Log) -> Vec<Records> {
    let mut expected = vec![Vec::new(); 10];
    for i in 0..3000_u64 {
        let first = ((i * 2_654_435_761) >> 9) % 9 + 1;
        let streams: &[StreamNo] = match i % 50 {
            0 => &[],
            1 => &[first, first % 9 + 1],
            _ => &[first],
        };
        let payload = vec![i as u8; (i % 200) as usize];
        let sequence = append(log, streams, &payload);
        for stream in streams {
            expected[*stream as usize].push((sequence, payload.clone()));
        }
        if i % 11 == 0 {
            commit(log);
        }
    }
    commit(log);
    expected
}

fn check(reader: &Reader, expected: &[Records]) {
    for (stream, expected) in expected.iter().enumerate().skip(1) {
        for bytes_max in [1, 1000, 1 << 20] {
            assert_eq!(read(reader, stream as StreamNo, 0, bytes_max), *expected);
        }
        let after = expected[expected.len() / 2].0;
        assert_eq!(
            read(reader, stream as StreamNo, after, 5000),
            expected[expected.len() / 2 + 1..]
        );
    }
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let end = reader
            .read_all(after, Sequence::MAX, 10_000, &mut |_, _| {}, &mut |view| {
                all.push(view.sequence);
            })
            .unwrap();
        after = end.last;
        if !end.more {
            break;
        }
    }
    assert!(all.iter().copied().eq(1..=reader.published()));
}

/// Waits until every sealed segment is in history.
fn settle(log: &Log) {
    let begun = Instant::now();
    while log.health().segments_waiting > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            log.health()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sealed_segments_move_to_history_and_nothing_changes_for_readers() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let expected = fill(&mut log);
    check(&log.reader(), &expected);
    settle(&log);
    check(&log.reader(), &expected);
    assert!(log.health().history_bytes > 0);
    log.close().unwrap();

    // No checkpoint was finished, so all records are replayed, from segments and history.
    let mut replayed = Vec::new();
    let log = Log::open(directory.path(), small(), &mut |view| {
        replayed.push(view.sequence);
    })
    .unwrap();
    assert!(replayed.iter().copied().eq(1..=3000));
    check(&log.reader(), &expected);
}

#[test]
fn a_caller_waits_when_the_background_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        background_jobs_max: 2,
        ..small()
    };
    let mut log = Log::open(directory.path(), options, &mut |_| {}).unwrap();
    let background = log.background();
    assert_eq!(background().name, "seal");
    // One batch of some thirty segments, which needs as many prepared files.
    for i in 0..500 {
        append(&mut log, &[1 + i % 3], &[5; 1000]);
    }
    commit(&mut log);
    assert_eq!(background().data.depth_high_water, 2);
    for i in 0..20_u64 {
        let value = Some(i.to_le_bytes().to_vec());
        log.checkpoint(vec![(b"turn".to_vec(), value)]);
        let gauge = background();
        assert!(gauge.depth() <= 2, "{gauge:?}");
    }
    assert_eq!(background().data.depth_high_water, 2);
    assert!(background().data.accepted > 40);
    assert_eq!(background().refused(), 0);
    log.close().unwrap();
    // All segments are in history, and the last checkpoint counts.
    let mut replayed = 0;
    let log = Log::open(directory.path(), small(), &mut |_| replayed += 1).unwrap();
    assert_eq!(replayed, 0);
    assert_eq!(log.health().segments_waiting, 0);
    assert_eq!(log.state(b"turn").unwrap().unwrap(), 19_u64.to_le_bytes());
    let records: usize = (1..=3)
        .map(|s| read(&log.reader(), s, 0, 1 << 20).len())
        .sum();
    assert_eq!(records, 500);
}

#[test]
fn a_write_waits_while_too_many_segments_wait() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        waiting_segments_max: 2,
        ..small()
    };
    let mut log = Log::open(directory.path(), options, &mut |_| {}).unwrap();
    let mut most = 0;
    // Each batch fills a segment, and is written faster than one goes into history.
    for _ in 0..60 {
        append(&mut log, &[4], &[6; 12_000]);
        commit(&mut log);
        most = most.max(log.health().segments_waiting);
    }
    assert_eq!(most, 2);
    assert!(!log.health().waited.is_zero());
    assert_eq!(read(&log.reader(), 4, 0, 1 << 20).len(), 60);
    log.close().unwrap();
}

#[test]
fn opening_hands_over_more_segments_than_the_background_may_hold() {
    let directory = tempfile::tempdir().unwrap();
    let without = Options {
        history: false,
        ..small()
    };
    let mut log = Log::open(directory.path(), without, &mut |_| {}).unwrap();
    for _ in 0..300 {
        append(&mut log, &[4], &[6; 1000]);
    }
    commit(&mut log);
    log.close().unwrap();
    let options = Options {
        background_jobs_max: 1,
        ..small()
    };
    let log = Log::open(directory.path(), options, &mut |_| {}).unwrap();
    assert_eq!(log.background()().data.depth_high_water, 1);
    settle(&log);
    assert_eq!(read(&log.reader(), 4, 0, 1 << 20).len(), 300);
    log.close().unwrap();
}

#[test]
fn readers_beside_the_writer_see_every_record_once_while_segments_move() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let reader = log.reader();
    let records = 20_000;
    let threads: Vec<_> = (1..=3)
        .map(|stream| {
            let reader = reader.clone();
            std::thread::spawn(move || {
                let (mut seen, mut after) = (0_u64, 0);
                while after < records {
                    let mut each = |view: FrameView<'_>| {
                        seen += 1;
                        assert_eq!(view.sequence, (seen - 1) * 3 + stream);
                        assert_eq!(view.payload, view.sequence.to_le_bytes());
                    };
                    let end = reader
                        .read(stream, after, Sequence::MAX, 3000, &mut each)
                        .unwrap();
                    assert!(end.last >= after);
                    after = end.last;
                }
                seen
            })
        })
        .collect();
    for i in 1..=records {
        append(&mut log, &[(i - 1) % 3 + 1], &i.to_le_bytes());
        if i % 20 == 0 {
            commit(&mut log);
        }
    }
    commit(&mut log);
    let seen: u64 = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(seen, records);
}

#[test]
fn a_checkpoint_shortens_the_replay_and_keeps_state_and_floors() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let expected = fill(&mut log);
    assert!(log.wants_checkpoint());
    log.set_floor(3, 1500);
    log.forget(4);
    log.checkpoint(vec![
        (b"a/2".to_vec(), Some(b"old".to_vec())),
        (b"a/1".to_vec(), Some(b"one".to_vec())),
        (b"a/2".to_vec(), Some(b"new".to_vec())),
        (b"b".to_vec(), None),
    ]);
    assert!(!log.wants_checkpoint());
    let later = append(&mut log, &[1], b"later");
    commit(&mut log);
    log.checkpoint(vec![
        (b"a/1".to_vec(), None),
        (b"a/3".to_vec(), Some(vec![])),
    ]);
    let states = |log: &Log| {
        let mut states = Vec::new();
        log.states(b"a/", &mut |key, value| {
            states.push((key.to_vec(), value.to_vec()));
        })
        .unwrap();
        assert_eq!(log.state(b"a/2").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(log.state(b"a/1").unwrap(), None);
        assert_eq!(log.state(b"b").unwrap(), None);
        states
    };
    let due = [
        (b"a/2".to_vec(), b"new".to_vec()),
        (b"a/3".to_vec(), vec![]),
    ];
    assert_eq!(states(&log), due);
    let last = append(&mut log, &[1], b"last");
    log.close().unwrap();

    let mut replayed = Vec::new();
    let log = Log::open(directory.path(), small(), &mut |view| {
        replayed.push(view.sequence);
    })
    .unwrap();
    assert_eq!(replayed, [last]);
    assert_eq!(states(&log), due);
    let reader = log.reader();
    let above: Records = expected[3]
        .iter()
        .filter(|(sequence, _)| *sequence > 1500)
        .cloned()
        .collect();
    assert_eq!(read(&reader, 3, 0, 1000), above);
    assert_eq!(read(&reader, 4, 0, 1000), []);
    assert_eq!(read(&reader, 1, later - 1, 1000).len(), 2);
    let mut all = 0;
    let end = reader.read_all(0, Sequence::MAX, 1 << 30, &mut |_, _| {}, &mut |view| {
        assert!(!view.streams.iter().all(|(stream, _)| stream == 4) || view.streams.is_empty());
        all += 1;
    });
    assert_eq!(end.unwrap().last, last);
    assert!(all > 1000 && all < 3000);
}

#[test]
fn records_below_a_floor_are_reclaimed() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    for i in 0..4000_u64 {
        // Random bytes, so that compression can't hide what is reclaimed.
        let payload: Vec<u8> = (0..200)
            .map(|j| (((i * 200 + j) * 2_654_435_761) >> 13) as u8)
            .collect();
        append(&mut log, &[i % 2 + 1], &payload);
    }
    commit(&mut log);
    log.forget(1);
    log.checkpoint(vec![]);
    settle(&log);
    log.close().unwrap();
    let log = open(directory.path());
    let before = log.health().history_bytes;
    log.reclaim().unwrap();
    let after = log.health().history_bytes;
    assert!(after < before * 2 / 3, "{before} bytes became {after}");
    assert_eq!(read(&log.reader(), 1, 0, 1000), []);
    // The last segment is not in history, so all of the other stream can be read.
    assert_eq!(read(&log.reader(), 2, 0, 1 << 20).len(), 2000);
}

#[test]
fn old_segments_are_removed_and_reads_of_the_global_order_fail() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        done_bytes_max: 40 << 10,
        ..small()
    };
    let mut log = Log::open(directory.path(), options.clone(), &mut |_| {}).unwrap();
    let expected = fill(&mut log);
    settle(&log);
    // Without a checkpoint the replay needs all records.
    assert!(
        log.reader()
            .read_all(0, 1, 1, &mut |_, _| {}, &mut |_| {})
            .is_ok()
    );
    log.checkpoint(vec![]);
    let begun = Instant::now();
    while log.health().segment_bytes > (40 + 2 * 16) << 10 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            log.health()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let oldest = match log
        .reader()
        .read_all(0, Sequence::MAX, 1, &mut |_, _| {}, &mut |_| {})
    {
        Err(ReadError::NoLongerKept { after: 0, oldest }) => oldest,
        other => panic!("{other:?}"),
    };
    let mut all = Vec::new();
    log.reader()
        .read_all(
            oldest - 1,
            Sequence::MAX,
            1 << 30,
            &mut |_, _| {},
            &mut |view| {
                all.push(view.sequence);
            },
        )
        .unwrap();
    assert!(all.iter().copied().eq(oldest..=3000));
    assert_eq!(read(&log.reader(), 1, 0, 1000), expected[1]);
    log.close().unwrap();
    let log = Log::open(directory.path(), options, &mut |view| {
        panic!("{} is in the checkpoint", view.sequence)
    })
    .unwrap();
    assert_eq!(log.next_sequence(), 3001);
    assert_eq!(read(&log.reader(), 1, 0, 1000), expected[1]);
    all.clear();
    log.reader()
        .read_all(
            oldest - 1,
            Sequence::MAX,
            1 << 30,
            &mut |_, _| {},
            &mut |view| {
                all.push(view.sequence);
            },
        )
        .unwrap();
    assert!(all.iter().copied().eq(oldest..=3000));
}

#[test]
fn segments_older_than_the_age_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        done_age_max: Some(Duration::ZERO),
        ..small()
    };
    let mut log = Log::open(directory.path(), options, &mut |_| {}).unwrap();
    fill(&mut log);
    log.checkpoint(vec![]);
    log.close().unwrap();
    let segments = std::fs::read_dir(directory.path()).unwrap();
    let segments = segments.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|e| e == "segment")
    });
    assert_eq!(segments.count(), 1);
}

#[test]
fn segments_that_are_neither_there_nor_in_history_are_missing() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    fill(&mut log);
    settle(&log);
    log.checkpoint(vec![]);
    log.close().unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "segment") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let error = Log::open(directory.path(), small(), &mut |_| {}).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::Missing {
                from: 1,
                upto: 3000,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_closed_log_answers_reads_of_history_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    fill(&mut log);
    let reader = log.reader();
    log.close().unwrap();
    let error = reader
        .read(1, 0, Sequence::MAX, 1000, &mut |_| {})
        .unwrap_err();
    assert!(matches!(error, ReadError::History { .. }), "{error}");
    open(directory.path());
}

#[test]
fn large_records_go_through_history_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        segment_bytes: 8 << 20,
        ..Options::default()
    };
    let mut log = Log::open(directory.path(), options.clone(), &mut |_| {}).unwrap();
    let mut expected = Vec::new();
    for i in 0..8_u32 {
        let payload: Vec<u8> = (0..3_000_000_u32)
            .map(|j| (j.wrapping_mul(i + 7) >> 5) as u8)
            .collect();
        expected.push((append(&mut log, &[1], &payload), payload));
        commit(&mut log);
    }
    settle(&log);
    assert!(read(&log.reader(), 1, 0, 1) == expected);
    log.close().unwrap();
    let log = Log::open(directory.path(), options, &mut |_| {}).unwrap();
    assert!(read(&log.reader(), 1, 0, 1 << 30) == expected);
}

#[test]
fn many_small_checkpoints_in_a_row_can_be_read_after_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    let key = |number: u32| number.to_be_bytes().to_vec();
    for number in 0..120_u32 {
        append(&mut log, &[1], b"x");
        commit(&mut log);
        // A key that all checkpoints have, so that no two of their tables are disjoint.
        let all = (b"all".to_vec(), Some(key(number)));
        log.checkpoint(vec![all, (key(number), Some(key(number)))]);
    }
    log.close().unwrap();
    let log = open(directory.path());
    for number in 0..120 {
        assert_eq!(log.state(&key(number)).unwrap(), Some(key(number)));
    }
    assert_eq!(log.state(b"all").unwrap(), Some(key(119)));
    assert_eq!(log.checkpoints_waiting(), 0);
}
