//! Reads of a stream backwards give what reads forwards give, whatever was appended, removed, moved to history and opened again.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::{BackwardBounds, Frame, FrameView, Log, Options, Reader, Sequence, StreamNo};
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;
use std::time::{Duration, Instant};

/// Records of a stream: the sequence and the payload.
type Records = Vec<(Sequence, Vec<u8>)>;

#[derive(Clone, Debug)]
enum Step {
    /// Appends a record of so many bytes to a stream, or to two.
    Append(StreamNo, bool, usize),
    /// So many records of one byte.
    Many(StreamNo, u64),
    Commit,
    /// Removes a part of a stream, in parts of four.
    Raise(StreamNo, u64),
    Checkpoint,
    /// Waits until all sealed segments are in history.
    Settle,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![6 => 0..300_usize, 2 => 3000..6000_usize];
    let step = prop_oneof![
        30 => (1..=STREAMS, proptest::bool::weighted(0.2), bytes)
            .prop_map(|(stream, both, bytes)| Step::Append(stream, both, bytes)),
        3 => (1..=STREAMS, 1..200_u64).prop_map(|(stream, count)| Step::Many(stream, count)),
        10 => Just(Step::Commit),
        3 => (1..=STREAMS, 0..=4_u64).prop_map(|(stream, part)| Step::Raise(stream, part)),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Settle),
        2 => Just(Step::Restart),
    ];
    vec(step, 1..120)
}

fn open(directory: &Path) -> Log {
    let options = Options {
        segment_bytes: 16 << 10,
        ..Options::default()
    };
    Log::open(directory, options, &mut |_| {}).unwrap()
}

fn append(log: &mut Log, streams: &[StreamNo], bytes: usize) {
    let payload = vec![log.next_sequence() as u8; bytes];
    log.append(&Frame {
        kind: 7,
        time: WallTime::from_ms(42),
        streams,
        payload: &[&payload],
    })
    .unwrap();
}

fn commit(log: &mut Log) {
    log.write().unwrap();
    log.sync().unwrap();
    log.publish();
}

fn settle(log: &Log) {
    let begun = Instant::now();
    while log.health().segments_waiting > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All records of a stream up to `upto`, oldest first.
fn forwards(reader: &Reader, stream: StreamNo, upto: Sequence) -> Records {
    let mut records = Vec::new();
    let mut each = |view: FrameView<'_>| records.push((view.sequence, view.payload.to_vec()));
    let end = reader.read(stream, 0, upto, usize::MAX, &mut each);
    assert!(!end.unwrap().more);
    records
}

/// The same by reads backwards, newest first, each within the bounds.
fn backwards(
    reader: &Reader,
    stream: StreamNo,
    mut upto: Sequence,
    bounds: BackwardBounds,
) -> Records {
    let mut records = Vec::new();
    loop {
        let mut given = Vec::new();
        let left = reader.read_back(stream, 0, upto, bounds, &mut |view| {
            assert_eq!((view.kind, view.stream), (7, stream));
            given.push((view.sequence, view.payload.to_vec()));
        });
        let left = left.unwrap();
        assert!(given.len() <= bounds.records_max.max(1));
        // The last one may exceed the bound.
        let before = given.iter().rev().skip(1);
        let bytes: usize = before.map(|(_, payload)| payload.len()).sum();
        assert!(bytes <= bounds.bytes_max, "{bytes} bytes");
        assert!(!given.is_empty() || left.is_none(), "it leads nowhere");
        records.extend(given);
        match left {
            Some(left) => {
                assert!(left < upto);
                upto = left;
            }
            None => return records,
        }
    }
}

fn check(reader: &Reader) {
    for stream in 1..=STREAMS {
        let published = reader.published();
        for upto in [Sequence::MAX, published / 2, 0] {
            let mut expected = forwards(reader, stream, upto);
            expected.reverse();
            for (records_max, bytes_max) in [(1, 1), (3, 1 << 20), (1000, 700), (1000, 1 << 20)] {
                let bounds = BackwardBounds {
                    records_max,
                    bytes_max,
                };
                let records = backwards(reader, stream, upto, bounds);
                assert!(records == expected, "{stream} up to {upto}, {bounds:?}");
            }
        }
    }
}

fn run(steps: Vec<Step>) {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path());
    for step in steps {
        match step {
            Step::Append(stream, false, bytes) => append(&mut log, &[stream], bytes),
            Step::Append(stream, true, bytes) => {
                append(&mut log, &[stream, stream % STREAMS + 1], bytes);
            }
            Step::Many(stream, count) => (0..count).for_each(|_| append(&mut log, &[stream], 1)),
            Step::Commit => commit(&mut log),
            Step::Raise(stream, part) => {
                log.set_floor(stream, log.reader().published() * part / 4);
            }
            Step::Checkpoint => {
                commit(&mut log);
                log.checkpoint(vec![]);
            }
            Step::Settle => settle(&log),
            Step::Restart => {
                commit(&mut log);
                log.close().unwrap();
                log = open(directory.path());
            }
        }
        if matches!(step, Step::Settle | Step::Restart) {
            check(&log.reader());
        }
    }
    commit(&mut log);
    settle(&log);
    check(&log.reader());
    log.close().unwrap();
}

/// The number of streams.
const STREAMS: StreamNo = 3;

/// Fewer cases than the default, unless the environment sets a number: each opens a history.
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(8),
    }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn a_read_backwards_gives_what_a_read_forwards_gives(steps in steps()) {
        run(steps);
    }
}
