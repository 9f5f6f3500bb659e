//! ClassRetention: what is too old or too much goes, by class, and readers are told.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_log::{
    Class, ClassRetention, FORGOTTEN, Frame, FrameView, Log, Options, ReadError, Sequence,
    StreamNo, stream_no,
};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const HOUR_MS: u64 = 3_600_000;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_millis() as u64
}

fn options(retention: &[ClassRetention]) -> Options {
    Options {
        segment_bytes: 16 << 10,
        retention: retention.to_vec(),
        ..Options::default()
    }
}

fn open(directory: &Path, options: Options) -> Log {
    Log::open(directory, options, &mut |_| {}).unwrap()
}

fn aged(class: Class, hours: u64) -> ClassRetention {
    ClassRetention {
        class,
        age_max: Some(Duration::from_millis(hours * HOUR_MS)),
        bytes_max: None,
    }
}

/// Writes `count` records, one after the other to each of the streams, at that time.
fn write(log: &mut Log, streams: &[StreamNo], count: u64, time_ms: u64) {
    for i in 0..count {
        let frame = Frame {
            kind: 1,
            time_ms,
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
            begun.elapsed() < Duration::from_secs(20),
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
fn what_is_too_old_goes_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (short, long) = (stream_no(1, 5), stream_no(0, 5));
    let retention = [aged(1, 2)];
    let mut log = open(directory.path(), options(&retention));
    let now = now_ms();
    for hours_ago in (1..=6).rev() {
        write(&mut log, &[short, long], 400, now - hours_ago * HOUR_MS);
    }
    log.retire();
    let (all, floor) = read(&log, long);
    assert_eq!((all.len(), floor), (1200, 0));
    // Of six hours one stays for sure, and at most two more: what lies together goes together.
    let (seen, floor) = read(&log, short);
    assert!((200..=600).contains(&seen.len()), "{}", seen.len());
    assert_eq!(log.reader().floor(short).unwrap(), floor);
    assert!(floor > 0 && seen[0] > floor);
    assert!(floor >= 3 * 400, "{floor}");
    // The global order does not show it either.
    let mut shown = Vec::new();
    let mut each = |view: FrameView<'_>| {
        if view.stream == short {
            shown.push(view.sequence);
        }
    };
    let order = log.reader().read_all(0, 2400, usize::MAX, &mut each);
    assert!(order.is_ok() || matches!(order, Err(ReadError::NoLongerKept { .. })));
    assert!(shown.iter().all(|sequence| *sequence > floor));
    log.close().unwrap();

    let report = encke_log::check(directory.path(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
    // 1,200 of the long one; the short one's generations went as a whole.
    let of_short = report.history_records as usize - 1200;
    assert!(of_short < 700, "{of_short}");
    // With no limits set any more, what is gone stays gone.
    let log = open(directory.path(), options(&[]));
    let (again, floor_again) = read(&log, short);
    assert!(
        floor_again >= floor && again == seen,
        "{floor_again} {floor}"
    );
    assert_eq!(read(&log, long).0.len(), 1200);
}

#[test]
fn what_is_too_old_goes_also_when_nothing_else_happens() {
    let directory = tempfile::tempdir().unwrap();
    let retention = [ClassRetention {
        class: 3,
        age_max: Some(Duration::from_millis(800)),
        bytes_max: None,
    }];
    let mut options = options(&retention);
    options.done_age_max = Some(Duration::from_millis(800));
    let mut log = open(directory.path(), options);
    let streams = [stream_no(3, 1), stream_no(0, 1)];
    write(&mut log, &streams, 400, now_ms());
    log.checkpoint(vec![]);
    assert!(read(&log, streams[0]).0.len() + read(&log, streams[1]).0.len() > 200);
    let bytes = log.health().segment_bytes;
    // Nobody calls the log, and nothing is written; the last segment is not even sealed.
    wait_until(|| read(&log, streams[0]).0.is_empty());
    assert_eq!(log.reader().class_floor(3), 400);
    wait_until(|| log.health().segment_bytes < bytes);
    assert_eq!(read(&log, streams[1]).0.len(), 200);
    let order = log.reader().read_all(0, 400, 1, &mut |_| {});
    assert!(matches!(order, Err(ReadError::NoLongerKept { .. })));
}

#[test]
fn what_is_too_much_goes_oldest_first() {
    let directory = tempfile::tempdir().unwrap();
    let retention = [ClassRetention {
        class: 9,
        age_max: None,
        bytes_max: Some(200 << 10),
    }];
    let mut log = open(directory.path(), options(&retention));
    let streams = [stream_no(9, 1), stream_no(9, 2)];
    let mut random = 1_u64;
    for _ in 0..100 {
        // What can't be compressed, so that bytes are bytes.
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
                time_ms: 1,
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
    // 200 KiB are 12 pairs; what is not in history yet comes on top.
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
fn a_reader_is_told_what_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path(), options(&[]));
    write(&mut log, &[1, 2, 3], 300, 1);
    log.set_floor(1, 100);
    log.forget(2);
    let (seen, floor) = read(&log, 1);
    assert_eq!((seen[0], floor), (103, 100));
    assert_eq!(read(&log, 2), (vec![], FORGOTTEN));
    assert_eq!(read(&log, 4), (vec![], 0));
    assert!(log.reader().is_forgotten(2).unwrap() && !log.reader().is_forgotten(4).unwrap());
}

#[test]
fn floors_of_which_nothing_is_left_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(&[]);
    options.done_bytes_max = 0;
    let mut log = open(directory.path(), options.clone());
    let streams: Vec<_> = (1..=50).collect();
    write(&mut log, &streams, 1000, 1);
    for stream in &streams[..40] {
        log.forget(*stream);
    }
    log.set_floor(50, 500);
    let floors = |directory: &Path| {
        let report = encke_log::check(directory, &mut |_| {}).unwrap();
        assert_eq!(report.problems, []);
        report.floors
    };
    // Behind the last segment that has any of them.
    write(&mut log, &[99], 300, 1);
    log.checkpoint(vec![]);
    log.close().unwrap();
    // History may have been compacted in parts already, and then has none of some streams.
    let kept = floors(directory.path());
    assert!((1..=41).contains(&kept), "{kept} floors");
    let mut log = open(directory.path(), options);
    log.reclaim().unwrap();
    write(&mut log, &[99], 300, 1);
    log.checkpoint(vec![]);
    log.retire();
    assert_eq!(read(&log, 7), (vec![], 0));
    assert_eq!(read(&log, 50).1, 500);
    log.close().unwrap();
    assert_eq!(floors(directory.path()), 1);
}
