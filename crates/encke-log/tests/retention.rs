//! Retention: records that exceed a limit of age or size are removed, and reads return the floor.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::{
    FORGOTTEN, Frame, FrameView, Log, LogRetention, Options, ReadError, Sequence, StreamNo,
};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const HOUR: Duration = Duration::from_secs(3_600);

fn now() -> WallTime {
    SystemTime::now().into()
}

fn options(retention: LogRetention) -> Options {
    Options {
        segment_bytes: 16 << 10,
        retention,
        ..Options::default()
    }
}

fn open(directory: &Path, options: Options) -> Log {
    open_with(directory, options, &[])
}

fn open_with(directory: &Path, options: Options, exempt: &[StreamNo]) -> Log {
    let log = Log::open(directory, options, &mut |_| {}).unwrap();
    log.start_retention(exempt.iter().copied());
    log
}

fn aged(age_max: Duration) -> LogRetention {
    LogRetention {
        age_max: Some(age_max),
        bytes_max: None,
    }
}

/// Writes `count` records at that time, to each of the streams in turn.
fn write(log: &mut Log, streams: &[StreamNo], count: u64, time: WallTime) {
    for i in 0..count {
        let frame = Frame {
            kind: 1,
            time,
            streams: &[streams[i as usize % streams.len()]],
            payload: &[&[7; 150]],
        };
        log.append(&frame).unwrap();
        if i % 20 == 19 || i + 1 == count {
            log.write().unwrap();
            log.sync().unwrap();
            log.publish();
        }
    }
    wait_until(|| log.health().segments_waiting == 0);
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not come"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read(log: &Log, stream: StreamNo) -> (Vec<Sequence>, Sequence) {
    let mut seen = Vec::new();
    let mut each = |view: FrameView<'_>| seen.push(view.sequence);
    let end = log
        .reader()
        .read(stream, 0, Sequence::MAX, usize::MAX, &mut each)
        .unwrap();
    assert!(!end.more);
    (seen, end.floor)
}

#[test]
fn a_floor_that_rises_during_a_read_is_the_floor_of_that_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path(), options(aged(Duration::from_secs(2))));
    write(&mut log, &[5], 400, now());
    let reader = log.reader();
    // Whatever was removed before the read came to it may be missing.
    let mut each = |_: FrameView<'_>| wait_until(|| reader.retention_floor() > 0);
    let end = reader.read(5, 0, Sequence::MAX, usize::MAX, &mut each);
    assert_eq!(end.unwrap().floor, reader.retention_floor());
}

#[test]
fn records_above_the_age_are_removed_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let streams = [5, 6];
    let retention = aged(2 * HOUR);
    let mut log = open(directory.path(), options(retention));
    let now = now();
    for hours_ago in (1..=6).rev() {
        write(&mut log, &streams, 400, now.before(hours_ago * HOUR));
    }
    log.retire();
    let kept = streams.map(|stream| read(&log, stream));
    for (stream, (seen, floor)) in streams.iter().zip(&kept) {
        // Of six hours one stays, and at most two more, because generations are removed whole.
        assert!((200..=600).contains(&seen.len()), "{}", seen.len());
        assert_eq!(log.reader().floor(*stream).unwrap(), *floor);
        assert!(seen[0] > *floor && *floor >= 3 * 400, "{floor}");
        assert_eq!(*floor, log.reader().retention_floor());
    }
    let floor = log.reader().retention_floor();
    // The global order does not have the removed records either.
    let mut shown = Vec::new();
    let mut each = |view: FrameView<'_>| shown.push(view.sequence);
    let order = log
        .reader()
        .read_all(0, 2400, usize::MAX, &mut |_, _| {}, &mut each);
    assert!(order.is_ok() || matches!(order, Err(ReadError::NoLongerKept { .. })));
    assert!(shown.iter().all(|sequence| *sequence > floor));
    log.close().unwrap();

    let report = encke_log::check(directory.path(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
    // The generations below the floor were removed whole.
    assert!(report.history_records < 1400, "{}", report.history_records);
    // Removed records do not come back without limits.
    let log = open(directory.path(), options(LogRetention::default()));
    for (stream, (seen, floor)) in streams.iter().zip(&kept) {
        let (again, floor_again) = read(&log, *stream);
        assert!(
            floor_again >= *floor && again == *seen,
            "{floor_again} {floor}"
        );
    }
}

#[test]
fn records_above_the_age_are_removed_from_an_idle_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(aged(Duration::from_millis(800)));
    options.done_age_max = Some(Duration::from_millis(800));
    let mut log = open(directory.path(), options);
    let streams = [1, 2];
    write(&mut log, &streams, 400, now());
    // As the server does when a log becomes idle: from then on its end is known to be durable.
    log.mark_durable().unwrap();
    log.checkpoint(vec![]);
    let bytes = log.health().segment_bytes;
    // The log is not used; the last segment is not even sealed.
    wait_until(|| {
        streams
            .iter()
            .all(|stream| read(&log, *stream).0.is_empty())
    });
    assert_eq!(log.reader().retention_floor(), 400);
    wait_until(|| log.health().segment_bytes < bytes);
    let order = log
        .reader()
        .read_all(0, 400, 1, &mut |_, _| {}, &mut |_| {});
    assert!(matches!(order, Err(ReadError::NoLongerKept { .. })));
}

#[test]
fn records_above_the_size_are_removed_oldest_first() {
    let directory = tempfile::tempdir().unwrap();
    let retention = LogRetention {
        age_max: None,
        bytes_max: Some(200 << 10),
    };
    let mut log = open(directory.path(), options(retention));
    let streams = [1, 2];
    let mut random = 1_u64;
    for _ in 0..100 {
        // Random bytes can't be compressed.
        let payload: Vec<u8> = (0..8000)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 56) as u8
            })
            .collect();
        for stream in streams {
            let frame = Frame {
                kind: 1,
                time: WallTime::from_ms(1),
                streams: &[stream],
                payload: &[&payload],
            };
            log.append(&frame).unwrap();
        }
        log.write().unwrap();
        log.sync().unwrap();
        log.publish();
    }
    wait_until(|| log.health().segments_waiting == 0);
    log.retire();
    let (seen, floor) = read(&log, streams[0]);
    // 200 KiB are 12 pairs, and the newest records are not in history yet.
    assert!((8..=16).contains(&seen.len()), "{seen:?}");
    assert!(
        seen.iter().eq((1..200)
            .step_by(2)
            .filter(|s| *s > floor)
            .collect::<Vec<_>>()
            .iter())
    );
    assert_eq!(*seen.last().unwrap(), 199);
}

#[test]
fn reads_return_the_floor() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path(), options(LogRetention::default()));
    write(&mut log, &[1, 2, 3], 300, WallTime::from_ms(1));
    log.set_floor(1, 100);
    log.forget(2);
    let (seen, floor) = read(&log, 1);
    assert_eq!((seen[0], floor), (103, 100));
    assert_eq!(read(&log, 2), (vec![], FORGOTTEN));
    assert_eq!(read(&log, 4), (vec![], 0));
    let floor = |stream| log.reader().floor(stream).unwrap();
    assert_eq!([1, 2, 4].map(floor), [100, FORGOTTEN, 0]);
}

#[test]
fn floors_of_forgotten_streams_without_records_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(LogRetention::default());
    options.done_bytes_max = 0;
    let mut log = open(directory.path(), options.clone());
    let streams: Vec<_> = (1..=50).collect();
    write(&mut log, &streams, 1000, WallTime::from_ms(1));
    for stream in &streams[..40] {
        log.forget(*stream);
    }
    log.set_floor(50, 500);
    let floors = |directory: &Path| {
        let report = encke_log::check(directory, &mut |_| {}).unwrap();
        assert_eq!(report.problems, []);
        report.floors
    };
    // Behind the last segment with any of these streams.
    write(&mut log, &[99], 300, WallTime::from_ms(1));
    log.checkpoint(vec![]);
    log.close().unwrap();
    // Compaction may have removed all records of some streams already.
    let kept = floors(directory.path());
    assert!((1..=41).contains(&kept), "{kept} floors");
    let mut log = open(directory.path(), options);
    log.reclaim().unwrap();
    write(&mut log, &[99], 300, WallTime::from_ms(1));
    log.checkpoint(vec![]);
    log.retire();
    assert_eq!(read(&log, 7), (vec![], 0));
    assert_eq!(read(&log, 50).1, 500);
    log.close().unwrap();
    assert_eq!(floors(directory.path()), 1);
}

#[test]
fn exempt_streams_keep_their_records_when_a_limit_is_set_later() {
    let directory = tempfile::tempdir().unwrap();
    let streams = [1, 2, 3];
    let mut log = open(directory.path(), options(LogRetention::default()));
    write(&mut log, &streams, 600, WallTime::from_ms(1));
    let own = read(&log, 2).0;
    log.close().unwrap();

    let limited = options(aged(HOUR));
    let log = Log::open(directory.path(), limited.clone(), &mut |_| {}).unwrap();
    log.retire();
    let history = |directory: &Path| {
        let report = encke_log::check(directory, &mut |_| {}).unwrap();
        assert_eq!(report.problems, []);
        report.history_records
    };
    drop(log);
    assert!(
        history(directory.path()) > 400,
        "nothing is removed before the exempt streams are known"
    );
    // Twice: once while the generation is removed, once when it has been.
    for _ in 0..2 {
        let mut log = open_with(directory.path(), limited.clone(), &[2]);
        log.mark_durable().unwrap();
        log.checkpoint(vec![]);
        log.retire();
        assert_eq!(read(&log, 2), (own.clone(), 0));
        assert_eq!(read(&log, 1).0, []);
        let mut back = Vec::new();
        let mut each = |view: FrameView<'_>| back.push(view.sequence);
        let bounds = encke_log::BackwardBounds {
            records_max: usize::MAX,
            bytes_max: usize::MAX,
        };
        let reader = log.reader();
        let left = reader.read_back(2, 0, Sequence::MAX, bounds, &mut each);
        assert_eq!(left.unwrap(), None);
        assert!(back.iter().rev().eq(&own));
        log.close().unwrap();
    }
    assert!(history(directory.path()) <= own.len() as u64 + 40);
    // Kept records end with their stream.
    let mut log = open_with(directory.path(), limited, &[2]);
    log.forget(2);
    write(&mut log, &[9], 300, now());
    log.checkpoint(vec![]);
    wait_until(|| log.checkpoints_waiting() == 0);
    log.reclaim().unwrap();
    assert_eq!(read(&log, 2).0, []);
    log.close().unwrap();
    assert!(history(directory.path()) <= 300);
}
