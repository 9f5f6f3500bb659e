//! The producers of many streams: their memory is bounded, and what leaves it is found again.

use std::time::Duration;

use encke_stream::{Append, Command, Eviction, Outcome, ProducerId};

use crate::bench::{append, create};
use crate::{TEXT, is_done, start_files, wait_until};

const STREAMS: usize = 20;
const PRODUCERS: usize = 20;

/// Two thirds of what the producers of all streams take.
const BYTES_MAX: usize = 80 << 10;

fn append_by(stream: usize, producer: usize) -> Command {
    let Command::Append(append) = append(&format!("s{stream}"), b"x") else {
        unreachable!("that is what it makes");
    };
    Command::Append(Append {
        producer: Some(ProducerId {
            id: format!("{producer:0256}").into(),
            epoch: 0,
            seq: 0,
        }),
        ..append
    })
}

#[test]
fn streams_with_producers_leave_memory_before_these_take_too_much() {
    let dir = tempfile::tempdir().unwrap();
    let eviction = Eviction {
        idle: Duration::from_secs(3_600),
        hot_max: usize::MAX,
        producer_bytes_max: BYTES_MAX,
    };
    let mut bench = start_files(dir.path(), eviction);
    let streams = 0..STREAMS;
    let creations = streams
        .clone()
        .map(|number| create(&format!("s{number}"), TEXT));
    let creations = creations.chain([create("plain", TEXT)]);
    assert!(bench.round(creations.collect()).iter().all(is_done));
    let held = bench.stream("s0");
    for producer in 0..PRODUCERS {
        let appends = streams.clone().map(|stream| append_by(stream, producer));
        assert!(bench.round(appends.collect()).iter().all(is_done));
    }
    let taken = || bench.view.producer_bytes();
    wait_until(&bench, || taken() < BYTES_MAX);
    assert!(taken() > 0, "a stream in use stays");
    assert!(
        bench.view.len() > 1,
        "nor does a stream without producers leave"
    );

    // The node refuses a further producer of a stream that has many, while there is no room, and no other one.
    assert!(held.has_room_for_producer("new"));
    bench.view.set_producer_bytes_max(1);
    assert!(!held.has_room_for_producer("new"));
    assert!(held.has_room_for_producer(&format!("{:0256}", 1)));
    assert!(bench.stream("plain").has_room_for_producer("new"));

    // Streams that have left know their producers.
    for stream in streams {
        let outcomes = bench.round(vec![append_by(stream, stream % PRODUCERS)]);
        let is_duplicate = |outcome: &Outcome| {
            matches!(
                outcome,
                Outcome::Appended {
                    duplicate: true,
                    ..
                }
            )
        };
        assert!(outcomes.iter().all(is_duplicate), "{outcomes:?}");
    }
    drop(held);
    bench.stop().unwrap();
}
