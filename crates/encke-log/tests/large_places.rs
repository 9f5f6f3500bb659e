//! Large records of history are read in parts from their segments, while those are there and sound.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::{
    FileRange, Frame, GivenRecord, Health, Log, Options, Reader, Sequence, StreamNo, StreamRead,
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;

/// A log of which history has the records of these sizes, in turn in streams 1 to 3.
fn log_with(directory: &Path, options: Options, sizes: &[usize]) -> (Log, Vec<Vec<u8>>) {
    let mut log = Log::open(directory, options, &mut |_| {}).unwrap();
    let payloads: Vec<Vec<u8>> = (sizes.iter().enumerate())
        .map(|(i, bytes)| (0..*bytes).map(|at| (at / 251 + at + i) as u8).collect())
        .collect();
    for (i, payload) in payloads.iter().enumerate() {
        append(&mut log, (i % 3) as StreamNo + 1, payload);
    }
    // What is behind them seals their segment.
    append(&mut log, 9, &vec![0; (2 << 20) - KIB]);
    append(&mut log, 9, b"the newest segment");
    wait_until(&log, |health| health.segments_waiting == 0);
    (log, payloads)
}

/// Removes the segments that are in history from the order, if the options do not keep them.
fn remove_segments(log: &mut Log) {
    log.checkpoint(vec![]);
    wait_until(log, |health| health.segment_bytes <= 2 * (2 << 20));
}

fn wait_until(log: &Log, is_so: impl Fn(&Health) -> bool) {
    let begun = Instant::now();
    while !is_so(&log.health()) {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            log.health()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Options that keep this number of bytes of segments for the order.
fn order_of(done_bytes_max: u64) -> Options {
    Options {
        segment_bytes: 2 << 20,
        done_bytes_max,
        ..Options::default()
    }
}

fn append(log: &mut Log, stream: StreamNo, payload: &[u8]) {
    let frame = Frame {
        kind: 7,
        time: WallTime::from_ms(42),
        streams: &[stream],
        payload: &[payload],
    };
    log.append(&frame).unwrap();
    log.write().unwrap();
    log.sync().unwrap();
    log.publish();
}

type Records = Vec<(Sequence, Vec<u8>)>;

/// What one read gives: the records, the ranges of the large ones, and whether there are more.
fn read(reader: &Reader, wanted: StreamRead) -> (Records, Vec<FileRange>, bool) {
    let (mut records, mut ranges) = (Vec::new(), Vec::new());
    let end = reader.read_parts(&wanted, &mut |given| match given {
        GivenRecord::Whole(view) => records.push((view.sequence, view.payload.to_vec())),
        GivenRecord::Large(record) => {
            let mut payload = vec![0; record.payload.bytes as usize];
            record.payload.read(&mut payload).unwrap();
            let middle = record.payload.bytes / 2;
            let mut rest = vec![0; (record.payload.bytes - middle) as usize];
            record.payload.skip(middle).read(&mut rest).unwrap();
            assert!(payload.starts_with(record.head) && payload.ends_with(&rest));
            assert_eq!(record.kind, 7);
            records.push((record.sequence, payload));
            ranges.push(record.payload);
        }
    });
    let end = end.unwrap();
    assert!(!end.more || end.last == records.last().unwrap().0);
    (records, ranges, end.more)
}

/// A read of a stream whose records from 64 KiB on are large.
fn large(stream: StreamNo, after: Sequence) -> StreamRead {
    StreamRead {
        stream,
        after,
        upto: Sequence::MAX,
        bytes_max: 300 * KIB,
        large_min: Some(64 << 10),
        large_together: 0,
        verified_since: None,
    }
}

#[test]
fn reads_of_any_size_give_each_record_once() {
    let sizes = [
        10, 70, 90, 100, 300, 20, 1, 600, 64, 63, 256, 255, 5, 100, 400, 2, 3, 80,
    ];
    let sizes = sizes.map(|kib| kib * KIB);
    for kept in [u64::MAX, 0] {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, payloads) = log_with(directory.path(), order_of(kept), &sizes);
        if kept == 0 {
            remove_segments(&mut log);
        }
        let reader = log.reader();
        for (stream, bytes_max, min, large_together) in [
            (1, 1, 64, 0),
            (1, 300 * KIB, 64, 2 << 20),
            (2, 300 * KIB, 64, 0),
            (2, 300 * KIB, 200, 200 * KIB),
            (3, usize::MAX, 64, 500 * KIB),
            (3, usize::MAX, 1, usize::MAX),
        ] {
            // From each record on, so that what is kept was found from different ones.
            for from in (0..sizes.len() as Sequence).rev() {
                let mut given = Vec::new();
                let mut lent = 0;
                let mut after = from;
                loop {
                    let wanted = StreamRead {
                        bytes_max,
                        large_min: Some(min << 10),
                        large_together,
                        ..large(stream, after)
                    };
                    let (records, ranges, more) = read(&reader, wanted);
                    after = records.last().map_or(after, |(last, _)| *last);
                    given.extend(records);
                    lent += ranges.len();
                    if !more {
                        break;
                    }
                }
                let due = (payloads.iter().enumerate())
                    .map(|(i, payload)| (i as Sequence + 1, payload))
                    .filter(|(sequence, _)| *sequence > from && (sequence - 1) % 3 + 1 == stream);
                let is_large = |payload: &Vec<u8>| payload.len() + 44 >= (min as usize) << 10;
                let due_large = due.clone().filter(|(_, payload)| is_large(payload));
                assert_eq!(lent, if kept == 0 { 0 } else { due_large.count() });
                assert!(
                    given.iter().map(|(at, payload)| (*at, payload)).eq(due),
                    "stream {stream} behind {from}"
                );
            }
        }
    }
}

#[test]
fn a_record_comes_from_history_when_its_segment_is_gone_or_damaged() {
    for damages in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, payloads) = log_with(directory.path(), order_of(0), &[400 * KIB; 6]);
        let reader = log.reader();
        // Another record is behind it, of which nothing is given.
        let (records, ranges, more) = read(&reader, large(1, 0));
        assert!(more && ranges.len() == 1);
        assert_eq!(records, [(1, payloads[0].clone())]);
        match damages {
            true => {
                let first = std::fs::read_dir(directory.path()).unwrap();
                let mut segments: Vec<_> = (first.map(|entry| entry.unwrap().path()))
                    .filter(|path| path.extension().is_some_and(|of| of == "segment"))
                    .collect();
                segments.sort();
                let file = std::fs::OpenOptions::new().write(true).open(&segments[0]);
                // In record 4, which is the stream's next one.
                let at = 3 * 400 * 1024 + 5000;
                file.unwrap().write_all_at(b"damage", at).unwrap();
            }
            false => remove_segments(&mut log),
        }
        for _ in 0..2 {
            let (records, ranges, _) = read(&reader, large(1, 1));
            assert_eq!(records, [(4, payloads[3].clone())]);
            assert!(ranges.is_empty());
        }
        let (records, ..) = read(&reader, large(1, 0));
        assert_eq!(records, [(1, payloads[0].clone())]);

        // What was given can be read when its segment is removed and its log closed.
        drop(reader);
        log.close().unwrap();
        let mut payload = vec![0; 400 * KIB];
        ranges[0].read(&mut payload).unwrap();
        assert_eq!(payload, payloads[0]);
    }
}

#[test]
fn segments_that_were_in_history_at_the_start_are_used_too() {
    let directory = tempfile::tempdir().unwrap();
    let (log, payloads) = log_with(directory.path(), order_of(u64::MAX), &[400 * KIB; 6]);
    log.close().unwrap();
    let log = Log::open(directory.path(), order_of(u64::MAX), &mut |_| {}).unwrap();
    let (records, ranges, _) = read(&log.reader(), large(3, 3));
    assert_eq!((records, ranges.len()), (vec![(6, payloads[5].clone())], 1));
}

#[test]
fn what_is_removed_from_a_stream_is_not_read_because_its_place_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = log_with(directory.path(), order_of(u64::MAX), &[100 * KIB; 6]);
    let reader = log.reader();
    assert_eq!(read(&reader, large(1, 0)).0[0].0, 1);
    assert_eq!(read(&reader, large(1, 1)).0[0].0, 4);
    log.set_floor(1, 1);
    assert_eq!(read(&reader, large(1, 0)).0[0].0, 4);
    log.forget(1);
    assert!(read(&reader, large(1, 0)).0.is_empty());
}

#[test]
fn damage_behind_a_verification_is_found_by_the_next_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = Log::open(directory.path(), order_of(u64::MAX), &mut |_| {}).unwrap();
    append(&mut log, 1, &[7; 300 * KIB]);
    let reader = log.reader();
    let given = || {
        let mut range = None;
        let read = reader.read_parts(&large(1, 0), &mut |given| {
            if let GivenRecord::Large(record) = given {
                range = Some(record.payload);
            }
        });
        read.map(|_| range.unwrap())
    };
    let verified = || {
        let wanted = StreamRead {
            verified_since: Some(Instant::now()),
            ..large(1, 0)
        };
        reader.read_parts(&wanted, &mut |_| {})
    };
    let before = given().unwrap();
    verified().unwrap();
    let segments = std::fs::read_dir(directory.path()).unwrap();
    let mut segments = segments.map(|entry| entry.unwrap().path());
    let segment = segments.find(|path| path.extension().is_some_and(|of| of == "segment"));
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(segment.unwrap());
    file.unwrap().write_all_at(b"damage", 200_000).unwrap();

    let flaw = verified().unwrap_err().to_string();
    assert!(flaw.contains("record 1 is expected"), "{flaw}");
    // The parts that are sound are given, and the damaged one is not.
    let mut part = [0; 1000];
    before.read(&mut part).unwrap();
    assert_eq!(part, [7; 1000]);
    let mut whole = vec![0; before.bytes as usize];
    let flaw = before.read(&mut whole).unwrap_err().to_string();
    assert!(flaw.contains("record 1 is expected"), "{flaw}");
    // From here on it is not taken for verified.
    assert!(given().is_err());
}
