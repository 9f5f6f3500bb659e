//! The sequencer over real logs: when replies are sent, and what is left when the disk fails or is full.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub)] // What the modules of a test show, they show to the test.

mod awaited;
mod bench;
mod gather;
mod levels;
mod producers;
mod retention;
mod run_cache;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bench::{Bench, append, create, create_for, create_retaining, delete, fork};
use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::simulated::{Faults, SimulatedDisk};
use encke_log::{Files, Log, Options};
use encke_stream::{
    AckLevel, Command, Eviction, Life, Lifetime, Limits, Lookup, Machine, Offset, Outcome, Refusal,
    View, restore, restore_on,
};
use retention::aging;

const LEVELS: [AckLevel; 3] = AckLevel::ALL;
const NOW_MS: u64 = 1_000_000;
const TEXT: &str = "text/plain";

fn options() -> Options {
    Options {
        segment_bytes: 8192,
        history: false,
        ..Options::default()
    }
}

fn open(disk: &SimulatedDisk) -> (Machine, Arc<View>, Log<SimulatedDisk>) {
    restore_on(
        disk.clone(),
        options(),
        Limits::default(),
        SteadyTime::from_ms(NOW_MS),
    )
    .unwrap()
}

fn start(disk: &SimulatedDisk, level: AckLevel) -> Bench<SimulatedDisk> {
    let probed = disk.clone();
    Bench::start(open(disk), level, NOW_MS, move || probed.operations())
}

fn is_done(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Refused(_))
}

#[test]
fn a_batch_is_one_write_and_one_sync_and_is_acknowledged_after_what_its_level_asks() {
    for level in LEVELS {
        let disk = SimulatedDisk::new(1);
        let mut bench = start(&disk, level);
        bench.round(vec![create("a", TEXT)]);
        let mut operations = Vec::new();
        for _ in 0..5 {
            bench.figures();
            let before = disk.operations();
            let commands = (0..10).map(|_| append("a", b"x")).collect();
            let (outcomes, deliveries) = bench.deliveries(commands);
            assert!(outcomes.iter().all(is_done), "{outcomes:?}");
            // There are no subscribers, so each shard gets its replies at once and no records.
            assert_eq!(deliveries.len(), 2);
            for delivery in &deliveries {
                assert!(delivery.batch.is_none());
                assert_eq!(delivery.replies.len(), 5);
                let tokens = delivery.replies.iter().map(|reply| reply.token as usize);
                assert!(tokens.eq((delivery.shard..10).step_by(2)), "in their order");
                operations.push(delivery.probed - before);
            }
            let figures = bench.figures();
            let batch = figures.iter().find(|batch| batch.commands > 0).unwrap();
            assert_eq!((batch.commands, batch.records), (10, 10));
            assert!(batch.bytes > 10 && !batch.failed);
            assert_eq!(batch.sync.is_some(), level == AckLevel::Synced);
        }
        let expected = match level {
            AckLevel::Accepted => 0,
            AckLevel::Written => 1,
            AckLevel::Synced => 2,
        };
        // Below level synced, a sync may come between two batches.
        assert_eq!(operations.iter().min(), Some(&expected), "{level:?}");
        bench.stop().unwrap();
    }
}

#[test]
fn shards_are_handed_the_records_of_what_they_watch() {
    let disk = SimulatedDisk::new(2);
    let mut bench = start(&disk, AckLevel::Synced);
    bench.round(vec![create("a", TEXT), create("b", TEXT)]);
    bench.view.watch(&bench.stream("a"), 1);
    let close = Command::Append(encke_stream::Append {
        closes: true,
        ..encke_stream::Append::to(encke_stream::Target::Named("a".into()))
    });
    let (outcomes, deliveries) =
        bench.deliveries(vec![append("a", b"one"), append("b", b"two"), close]);
    assert!(outcomes.iter().all(is_done));
    let handed: Vec<_> = deliveries
        .iter()
        .filter_map(|delivery| Some((delivery.shard, delivery.batch.as_ref()?)))
        .collect();
    assert_eq!(handed.len(), 1, "to one shard, once");
    let (shard, batch) = handed[0];
    assert_eq!(shard, 1);
    let records: Vec<_> = batch
        .records
        .iter()
        .map(|record| {
            let flags = (record.closes, record.deletes);
            (
                record.sequence,
                record.stream,
                &*record.data,
                record.tail,
                record.units,
                flags,
            )
        })
        .collect();
    let (open, closed) = ((false, false), (true, false));
    assert_eq!(
        records,
        [
            (3, 1, &b"one"[..], Offset::behind(3), 3, open),
            (4, 2, b"two", Offset::behind(4), 3, open),
            (5, 1, b"", Offset::behind(3), 0, closed),
        ]
    );
    assert_eq!((batch.bytes, bench.view.committed()), (6, 5));
    // Delivered records are visible and readable.
    assert_eq!(bench.stream("a").facts().tail, Offset::behind(3));
    assert!(bench.stream("a").facts().closed);
    assert_eq!(bench.read("b"), (b"two".to_vec(), true));

    let (_, deliveries) = bench.deliveries(vec![delete("a")]);
    let batch = deliveries
        .iter()
        .find_map(|delivery| delivery.batch.clone());
    let record = &batch.unwrap().records[0];
    assert!(record.deletes && record.closes && record.units == 0);
    bench.view.watch(&bench.stream("b"), 0);
    bench.view.unwatch(2, 0);
    let (_, deliveries) = bench.deliveries(vec![append("b", b"x")]);
    assert!(deliveries.iter().all(|delivery| delivery.batch.is_none()));
    bench.stop().unwrap();
}

/// Runs batches until the disk fails at its `failing`-th write or sync. Returns the acknowledged data and the requested
/// data of each stream.
fn fail_at(disk: &SimulatedDisk, level: AckLevel, failing: u64) -> Option<(Held, Held)> {
    let mut bench = start(disk, level);
    disk.set_faults(Faults {
        failing_operation: Some(failing),
        ..Faults::default()
    });
    let (mut acknowledged, mut asked) = (Held::new(), Held::new());
    let mut failed = false;
    for round in 0..6_u8 {
        let names = [format!("s{round}"), "s0".to_owned()];
        let line = vec![b'a' + round; 700 * usize::from(round % 3 + 1)];
        let commands = vec![
            create(&names[0], TEXT),
            append(&names[0], &line),
            append(&names[1], &line),
        ];
        let seen = bench.view.len();
        let outcomes = bench.round(commands);
        for (name, outcome) in names.iter().zip(&outcomes[1..]) {
            asked.entry(name.clone()).or_default().extend(&line);
            if is_done(outcome) {
                assert!(!failed, "acknowledged after a failure");
                let held = acknowledged.entry(name.clone()).or_default();
                held.extend(&line);
            }
        }
        if !outcomes.iter().all(is_done) {
            let all_failed = outcomes.iter().all(|outcome| {
                matches!(outcome, Outcome::Refused(Refusal::LogFailed(reason)) if !reason.is_empty())
            });
            assert!(all_failed, "{outcomes:?}");
            assert_eq!(bench.view.len(), seen, "a failed batch gave a name");
            failed = true;
        }
        // Reads continue, and return exactly the acknowledged data. Below level written, readers know that the lost
        // data is missing.
        for (name, data) in &acknowledged {
            let (read, all) = bench.read(name);
            if level == AckLevel::Accepted {
                assert!(data.starts_with(&read));
                assert_eq!(all, read == *data);
            } else {
                assert_eq!((&read, all), (data, true), "{name} at {level:?}");
            }
        }
    }
    // Below level synced, a failure may come after the replies of the last batch.
    let poisoned = bench.figures().last().unwrap().failed;
    assert!(poisoned || !failed);
    let stopped = bench.stop();
    assert!(stopped.is_err() || !poisoned, "{stopped:?}");
    stopped.is_err().then_some((acknowledged, asked))
}

type Held = BTreeMap<String, Vec<u8>>;

#[test]
fn what_was_acknowledged_is_there_after_the_failure_that_its_level_covers() {
    for level in LEVELS {
        for power_cut in [false, true] {
            let mut failures = 0;
            for failing in 1.. {
                let disk = SimulatedDisk::new(failing);
                let Some((acknowledged, asked)) = fail_at(&disk, level, failing) else {
                    break;
                };
                failures += 1;
                disk.set_faults(Faults::default());
                if power_cut {
                    disk.cut_power();
                }
                let bench = start(&disk, level);
                let covered = match level {
                    AckLevel::Accepted => false,
                    AckLevel::Written => !power_cut,
                    AckLevel::Synced => true,
                };
                for (name, data) in acknowledged.iter().filter(|_| covered) {
                    let (read, all) = bench.read(name);
                    assert!(read.starts_with(data) && all, "{name} at {level:?}");
                }
                bench.view.for_each(&mut |stream| {
                    let (read, _) = bench.read(&stream.name);
                    let asked = &asked[&*stream.name];
                    assert!(asked.starts_with(&read), "{} out of nowhere", stream.name);
                });
                bench.stop().unwrap();
            }
            assert!(failures > 5, "only {failures} operations to fail at");
        }
    }
}

#[test]
fn a_full_disk_refuses_whole_batches_and_nothing_of_them_is_seen() {
    for level in [AckLevel::Written, AckLevel::Synced] {
        let disk = SimulatedDisk::new(3);
        let mut bench = start(&disk, level);
        bench.round(vec![create("a", TEXT), append("a", b"kept")]);
        disk.set_capacity(disk.used_bytes());
        let large = vec![b'x'; 5000];
        let batch = || {
            vec![
                append("a", &large),
                create("b", TEXT),
                append("a", &large),
                fork("c", "a"),
                delete("nobody"),
            ]
        };
        let outcomes = bench.round(batch());
        let refused = Outcome::Refused(Refusal::NoSpace);
        assert!(
            outcomes.iter().all(|outcome| *outcome == refused),
            "{outcomes:?}"
        );
        let figures = bench.figures();
        let last = figures.iter().rfind(|batch| batch.commands == 5).unwrap();
        assert_eq!((last.records, last.failed), (0, false));
        assert_eq!((bench.view.len(), bench.view.committed()), (1, 2));
        let facts = bench.stream("a").facts();
        assert_eq!((facts.tail, facts.forks), (Offset::behind(2), 0));
        assert_eq!(bench.read("a"), (b"kept".to_vec(), true));

        // Small records still fit, and everything does once there is room.
        assert!(is_done(&bench.round(vec![append("a", b"+")])[0]));
        disk.set_capacity(u64::MAX);
        let outcomes = bench.round(batch());
        assert!(outcomes[..4].iter().all(is_done), "{outcomes:?}");
        assert_eq!(outcomes[4], Outcome::Refused(Refusal::NotFound));
        assert_eq!(bench.stream("a").no, 1);
        assert_eq!(
            bench.stream("b").no,
            5,
            "sequences of a refused batch are given again"
        );
        let (data, all) = bench.read("a");
        assert!(all && data.len() == 5 + 2 * 5000);
        bench.stop().unwrap();
        let bench = start(&disk, level);
        assert_eq!((bench.read("a").0, bench.view.len()), (data, 3));
        bench.stop().unwrap();
    }
}

#[test]
fn what_was_acknowledged_before_it_was_written_is_written_when_there_is_room() {
    let disk = SimulatedDisk::new(4);
    let mut bench = start(&disk, AckLevel::Accepted);
    bench.round(vec![create("a", TEXT), append("a", b"kept")]);
    bench.round(vec![append("a", b"+")]);
    disk.set_capacity(disk.used_bytes());
    let large = vec![b'x'; 5000];
    let outcomes = bench.round(vec![append("a", &large), append("a", &large)]);
    assert!(outcomes.iter().all(is_done), "{outcomes:?}");
    assert_eq!(bench.stream("a").facts().tail, Offset::behind(5));
    // Records that are not in the log yet are left for another piece, not left out.
    assert_eq!(bench.read("a"), (b"kept+".to_vec(), false));
    let outcomes = bench.round(vec![append("a", b"-"), create("b", TEXT)]);
    let refused = Outcome::Refused(Refusal::NoSpace);
    assert!(
        outcomes.iter().all(|outcome| *outcome == refused),
        "{outcomes:?}"
    );

    // No request is needed for it.
    disk.set_capacity(u64::MAX);
    wait_until(&bench, || bench.read("a").1);
    let outcomes = bench.round(vec![append("a", b"-"), create("b", TEXT)]);
    assert!(outcomes.iter().all(is_done), "{outcomes:?}");
    let expected = [b"kept+", &large[..], &large, b"-"].concat();
    bench.stop().unwrap();
    let bench = start(&disk, AckLevel::Accepted);
    assert_eq!(bench.read("a"), (expected, true));
    bench.stop().unwrap();
}

/// Gives permits until a condition holds.
fn wait_until<D: encke_log::Disk>(bench: &Bench<D>, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it never came about"
        );
        bench.permit();
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn streams_expire_by_themselves_even_after_the_disk_was_full() {
    let disk = SimulatedDisk::new(5);
    let mut bench = start(&disk, AckLevel::Synced);
    let second = Lifetime::Sliding { ttl_s: 1 };
    bench.round(vec![
        create_for("short", second),
        create_for("read", second),
        create_for(
            "until",
            Lifetime::Until {
                at: WallTime::from_ms(NOW_MS + 900),
            },
        ),
        create_for("long", Lifetime::Sliding { ttl_s: 3600 }),
        create("room", TEXT),
    ]);
    let [short, read, until] = ["short", "read", "until"].map(|name| bench.stream(name));
    // Fill the segment, so that not even the end of a stream fits.
    disk.set_capacity(disk.used_bytes());
    for bytes in [1000, 100, 10, 1] {
        while is_done(&bench.round(vec![append("room", &vec![b'x'; bytes])])[0]) {}
    }
    bench.view.touch(&read, Now::from_ms(NOW_MS + 999));
    bench.set_time(Now::from_ms(NOW_MS + 1000));
    bench.round(vec![append("room", b"x")]);
    assert_eq!(short.facts().life, Life::Live);
    assert!(short.expired(Now::from_ms(NOW_MS + 1000)));

    disk.set_capacity(u64::MAX);
    wait_until(&bench, || bench.view.find("short").is_none());
    wait_until(&bench, || bench.view.find("until").is_none());
    assert_eq!(short.facts().life, Life::Ended);
    assert_eq!(until.facts().life, Life::Ended);
    assert_eq!(read.facts().life, Life::Live, "a read is a new beginning");
    bench.set_time(Now::from_ms(NOW_MS + 2000));
    wait_until(&bench, || bench.view.find("read").is_none());
    assert_eq!(bench.view.len(), 2);
    bench.stop().unwrap();
}

#[test]
fn a_step_of_the_time_of_day_moves_only_what_was_named_as_an_instant() {
    let disk = SimulatedDisk::new(5);
    let mut bench = start(&disk, AckLevel::Synced);
    let sliding = |ttl_s| Lifetime::Sliding { ttl_s };
    let until = |at_ms| Lifetime::Until {
        at: WallTime::from_ms(at_ms),
    };
    bench.round(vec![
        create_for("for a second", sliding(1)),
        create_for("for an hour", sliding(3600)),
        create_for("until soon", until(NOW_MS + 500)),
        create_for("until later", until(NOW_MS + 3_600_000)),
        create_retaining("ages", aging(60)),
        create("room", TEXT),
    ]);
    bench.round(vec![append("ages", b"old")]);
    let is_there = |bench: &Bench<SimulatedDisk>, name| bench.view.find(name).is_some();
    let is_kept = |bench: &Bench<SimulatedDisk>| bench.stream("ages").facts().floor == 0;

    // Back: the durations go on, the instants are far away.
    let mut now = Now {
        steady: SteadyTime::from_ms(NOW_MS + 999),
        wall: WallTime::default(),
    };
    bench.set_time(now);
    bench.round(vec![append("room", b"x")]);
    assert!(is_there(&bench, "for a second"));
    now.steady = now.steady.after(Duration::from_millis(1));
    bench.set_time(now);
    wait_until(&bench, || bench.view.find("for a second").is_none());
    assert!(is_there(&bench, "until soon") && is_kept(&bench));

    // Forward: the instants come, the durations go on.
    now.wall = WallTime::from_ms(NOW_MS + 3_599_999);
    bench.set_time(now);
    wait_until(&bench, || bench.view.find("until soon").is_none());
    wait_until(&bench, || !is_kept(&bench));
    assert!(is_there(&bench, "for an hour") && is_there(&bench, "until later"));
    now.wall = now.wall.after(Duration::from_millis(1));
    bench.set_time(now);
    wait_until(&bench, || bench.view.find("until later").is_none());
    assert!(is_there(&bench, "for an hour"));
    assert_eq!(bench.round(vec![append("for an hour", b"x")]).len(), 1);
    bench.stop().unwrap();
}

#[test]
fn a_stream_with_live_readers_does_not_expire() {
    let disk = SimulatedDisk::new(5);
    let mut bench = start(&disk, AckLevel::Synced);
    let lifetime = Lifetime::Sliding { ttl_s: 5 };
    let names = ["alone", "read", "of/a/pattern"];
    bench.round(
        names
            .iter()
            .map(|name| create_for(name, lifetime))
            .collect(),
    );
    let read = bench.stream("read");
    bench.view.watch(&read, 0);
    let pattern = "of/*".parse().unwrap();
    let pattern = bench.view.watch_pattern(&pattern, 0, 1);
    let mut now_ms = NOW_MS + 5_000;
    bench.set_time(Now::from_ms(now_ms));
    wait_until(&bench, || bench.view.find("alone").is_none());
    // Whatever is done first: its end is due, and what finds the stream finds it alive.
    for _ in 0..3 {
        now_ms += 5_000;
        bench.set_time(Now::from_ms(now_ms));
        let control = format!("control at {now_ms}");
        bench.round(vec![create_for(&control, lifetime)]);
        now_ms += 5_000;
        bench.set_time(Now::from_ms(now_ms));
        assert!(!bench.view.has_expired(&read, Now::from_ms(now_ms)));
        wait_until(&bench, || bench.view.find(&control).is_none());
        for name in &names[1..] {
            assert_eq!(bench.stream(name).facts().life, Life::Live, "{name}");
        }
    }
    now_ms += 4_000;
    bench.set_time(Now::from_ms(now_ms));
    assert!(is_done(&bench.round(vec![append("of/a/pattern", b"x")])[0]));
    // From the last reader on it has its whole lifetime.
    bench.view.touch(&read, Now::from_ms(now_ms));
    bench.view.unwatch(read.no, 0);
    bench.view.unwatch_pattern(pattern, 1);
    bench.round(vec![create("wakes", TEXT)]);
    bench.set_time(Now::from_ms(now_ms + 4_999));
    bench.round(vec![create("wakes again", TEXT)]);
    assert_eq!(read.facts().life, Life::Live);
    bench.set_time(Now::from_ms(now_ms + 5_000));
    wait_until(&bench, || read.facts().life == Life::Ended);
    wait_until(&bench, || bench.view.find("of/a/pattern").is_none());
    bench.stop().unwrap();
}

#[test]
fn an_evicted_stream_that_a_pattern_with_readers_matches_does_not_expire() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = start_files(dir.path(), EVICTING);
    let lifetime = Lifetime::Sliding { ttl_s: 5 };
    let pattern = "of/*".parse().unwrap();
    let pattern = bench.view.watch_pattern(&pattern, 0, 0);
    let kept = create_for("of/a/pattern", lifetime);
    assert!(bench.round(vec![kept]).iter().all(is_done));
    let gone = |bench: &Bench<Files>| bench.view.is_empty() && bench.view.free_len() == 0;
    let mut now_ms = NOW_MS;
    for number in 0..3 {
        let alone = create_for(&format!("alone {number}"), lifetime);
        assert!(bench.round(vec![alone]).iter().all(is_done));
        wait_until(&bench, || gone(&bench));
        assert_eq!(bench.view.total(), 2);
        now_ms += 5_000;
        bench.set_time(Now::from_ms(now_ms));
        wait_until(&bench, || bench.view.total() == 1);
        let known = bench.loader.load("of/a/pattern").unwrap();
        let kept = known.stream().expect("it has readers");
        wait_until(&bench, || !kept.expired(Now::from_ms(now_ms)));
    }
    bench.view.unwatch_pattern(pattern, 0);
    bench.set_time(Now::from_ms(now_ms + 5_000));
    wait_until(&bench, || bench.view.total() == 0);
    bench.stop().unwrap();
}

fn open_files(dir: &Path) -> (Machine, Arc<View>, Log<Files>) {
    let options = Options {
        segment_bytes: 16 << 10,
        ..Options::default()
    };
    restore(dir, options, Limits::default(), SteadyTime::from_ms(NOW_MS)).unwrap()
}

/// Names, facts and data of all streams.
fn all<D: encke_log::Disk>(bench: &Bench<D>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let forks = (0..4).flat_map(|life| (0..12).map(move |round| format!("f{life}.{round}")));
    for name in (0..40).map(|number| format!("s{number}")).chain(forks) {
        if let Lookup::Stream(stream) = bench.loader.load(&name).unwrap() {
            let said = (stream.no, stream.facts(), bench.read(&name));
            all.insert(name, format!("{said:?}"));
        }
    }
    assert_eq!(bench.view.total(), all.len() as u64);
    all
}

/// Almost no stream stays in memory.
const EVICTING: Eviction = Eviction {
    idle: Duration::from_millis(1),
    hot_max: 4,
    producer_bytes_max: usize::MAX,
};

fn start_files(dir: &Path, eviction: Eviction) -> Bench<Files> {
    Bench::evicting(open_files(dir), AckLevel::Synced, NOW_MS, eviction, || 0)
}

#[test]
fn on_real_files_streams_outlive_segments_checkpoints_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = BTreeMap::new();
    for life in 0..4_u64 {
        let eviction = if life % 2 == 0 {
            Eviction::NEVER
        } else {
            EVICTING
        };
        let mut bench = start_files(dir.path(), eviction);
        assert_eq!(all(&bench), expected, "in life {life}");
        for round in 0..12_u64 {
            let name = |number: u64| format!("s{}", (life * 31 + number) % 40);
            let mut commands = Vec::new();
            for number in round..round + 8 {
                let line = format!("{life}.{round}.{number};").repeat(20);
                commands.push(create(&name(number), TEXT));
                commands.push(append(&name(number), line.as_bytes()));
            }
            commands.push(fork(&format!("f{life}.{round}"), &name(round)));
            commands.push(delete(&name(round + 1)));
            commands.push(delete(&format!("f{life}.{}", round / 2)));
            bench.round(commands);
        }
        expected = all(&bench);
        assert!(expected.len() > 20);
        bench.stop().unwrap();
    }
    // The checkpoint restores most of it.
    let mut replayed = 0;
    let log = Log::open(dir.path(), Options::default(), &mut |_| replayed += 1).unwrap();
    let records = log.next_sequence() - 1;
    assert!(replayed < records / 2, "{replayed} of {records} replayed");
    drop(log);
    let bench = start_files(dir.path(), Eviction::NEVER);
    assert!(
        bench.view.len() < expected.len() / 2,
        "the rest is loaded when it is named"
    );
    assert_eq!(all(&bench), expected);
    bench.stop().unwrap();
}

#[test]
fn idle_streams_are_evicted_and_still_end_on_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = start_files(dir.path(), EVICTING);
    let mut commands: Vec<_> = (0..20)
        .map(|number| create(&format!("s{number}"), TEXT))
        .collect();
    commands.push(create_for("sliding", Lifetime::Sliding { ttl_s: 5 }));
    commands.push(create_for("read", Lifetime::Sliding { ttl_s: 5 }));
    let at_ms = NOW_MS + 6_000;
    commands.push(create_for(
        "until",
        Lifetime::Until {
            at: WallTime::from_ms(at_ms),
        },
    ));
    assert!(bench.round(commands).iter().all(is_done));
    let gone = |bench: &Bench<Files>| bench.view.is_empty() && bench.view.free_len() == 0;
    wait_until(&bench, || gone(&bench));
    assert_eq!(bench.view.total(), 23);

    // A stream in use stays, and a read that moves its end is not lost.
    let held = bench.stream("s3");
    bench
        .view
        .touch(&bench.stream("read"), Now::from_ms(NOW_MS + 4_000));
    wait_until(&bench, || bench.view.len() == 1);
    assert!(Arc::ptr_eq(&held, &bench.stream("s3")));
    drop(held);
    wait_until(&bench, || gone(&bench));
    bench.set_time(Now::from_ms(NOW_MS + 5_500));
    wait_until(&bench, || bench.view.total() == 22);
    assert!(bench.loader.load("sliding").unwrap().stream().is_none());
    assert!(bench.loader.load("read").unwrap().stream().is_some());
    bench.set_time(Now::from_ms(NOW_MS + 6_500));
    wait_until(&bench, || bench.view.total() == 21);
    assert!(bench.loader.load("until").unwrap().stream().is_none());
    bench.set_time(Now::from_ms(NOW_MS + 9_500));
    wait_until(&bench, || bench.view.total() == 20);
    wait_until(&bench, || gone(&bench));

    // All of them are found by name and can be written to.
    let commands = (0..20).map(|number| append(&format!("s{number}"), b"more"));
    assert!(bench.round(commands.collect()).iter().all(is_done));
    assert_eq!(bench.read("s7"), (b"more".to_vec(), true));
    let evictions = bench.view.counts().evictions.load(Ordering::Relaxed);
    let loads = bench.view.counts().loads.load(Ordering::Relaxed);
    assert!(
        evictions > 20 && loads >= 20,
        "{evictions} evictions, {loads} loads"
    );
    bench.stop().unwrap();
}

#[test]
fn long_names_that_no_stream_has_leave_memory_before_there_are_many() {
    let dir = tempfile::tempdir().unwrap();
    let idle = Duration::from_secs(3_600);
    let eviction = Eviction {
        idle,
        hot_max: 100,
        ..Eviction::default()
    };
    let mut bench = start_files(dir.path(), eviction);
    assert!(bench.round(vec![create("a", TEXT)]).iter().all(is_done));
    let long = "x".repeat(1_000);
    for number in 0..50 {
        let known = bench.view.look(&format!("{number}{long}"));
        assert!(known.is_some(), "it is remembered that there is none");
    }
    // Each counts as eight, so that fifty are too many for a bound of a hundred, and twelve are not. A short name, which counts as one, may
    // be left beside them. Each batch sweeps some parts.
    let is_bounded = |bench: &Bench<Files>| bench.view.free_len() <= 13;
    for _ in 0..1_000 {
        if is_bounded(&bench) {
            break;
        }
        assert!(bench.round(vec![append("a", b"x")]).iter().all(is_done));
    }
    assert!(is_bounded(&bench), "{} are left", bench.view.free_len());
    bench.stop().unwrap();
}

#[test]
fn the_log_forgets_a_deleted_stream_when_no_fork_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = start_files(dir.path(), EVICTING);
    let commands = vec![
        create("gone", TEXT),
        append("gone", b"x"),
        create("source", TEXT),
        append("source", b"kept"),
        fork("fork", "source"),
    ];
    assert!(bench.round(commands).iter().all(is_done));
    let read = |bench: &Bench<Files>, no: u64| {
        let mut records = 0;
        let each = &mut |_: encke_log::FrameView<'_>| records += 1;
        bench.reader.read(no, 0, 100, 1 << 20, each).unwrap();
        records
    };
    assert_eq!((read(&bench, 1), read(&bench, 3)), (2, 2));
    // A reader that began earlier holds it.
    let gone = bench.stream("gone");
    assert!(
        bench
            .round(vec![delete("gone"), delete("source")])
            .iter()
            .all(is_done)
    );
    assert!(gone.has_ended());
    wait_until(&bench, || read(&bench, 1) == 0);
    assert_eq!(bench.read("fork"), (b"kept".to_vec(), true));
    assert!(bench.round(vec![delete("fork")]).iter().all(is_done));
    wait_until(&bench, || read(&bench, 3) == 0 && read(&bench, 5) == 0);
    bench.stop().unwrap();

    // The same after a start, even if the stream ended after the last checkpoint.
    let mut bench = start_files(dir.path(), Eviction::NEVER);
    assert_eq!((read(&bench, 1), read(&bench, 3)), (0, 0));
    bench.round(vec![create("late", TEXT), append("late", b"x")]);
    let no = bench.stream("late").no;
    bench.round(vec![delete("late")]);
    assert_eq!(read(&bench, no), 3, "there was no checkpoint");
    bench.stop().unwrap();
    let bench = start_files(dir.path(), EVICTING);
    wait_until(&bench, || read(&bench, no) == 0);
    bench.stop().unwrap();
}
