//! Retention, over crashes, checkpoints and evictions.

use std::time::{Duration, Instant};

use encke_clock::{Now, SteadyTime};
use encke_log::simulated::SimulatedDisk;
use encke_log::{Files, LogRetention, Options};
use encke_stream::{AckLevel, Eviction, Fetch, Limits, Offset, Outcome, Piece, Retention, restore};

use crate::bench::{Bench, append, create, create_retaining, fork, truncate};
use crate::{LEVELS, NOW_MS, TEXT, is_done, start};

fn keeping(records: u64) -> Retention {
    Retention {
        records: Some(records),
        ..Retention::default()
    }
}

pub(crate) fn aging(age_s: u64) -> Retention {
    Retention {
        age_s: Some(age_s),
        ..Retention::default()
    }
}

#[test]
fn what_is_gone_is_gone_after_a_crash_and_what_is_kept_is_kept() {
    for level in LEVELS {
        let disk = SimulatedDisk::new(11);
        let mut bench = start(&disk, level);
        let made = vec![create("a", TEXT), create_retaining("b", keeping(4))];
        assert!(bench.round(made).iter().all(is_done));
        let mut tails = Vec::new();
        for number in 0..10_u8 {
            let bytes = [b'0' + number];
            let outcomes = bench.round(vec![append("a", &bytes), append("b", &bytes)]);
            let Outcome::Appended { tail, .. } = outcomes[0] else {
                panic!("{outcomes:?}")
            };
            tails.push(tail);
        }
        bench.round(vec![fork("f", "a")]);
        let outcomes = bench.round(vec![truncate("a", Some(tails[6]))]);
        let floor = tails[6];
        let tail = tails[9];
        assert_eq!(outcomes, [Outcome::Truncated { floor, tail }]);
        let look = |bench: &Bench<SimulatedDisk>, when: &str| {
            let read = |name| String::from_utf8(bench.read(name).0).unwrap();
            assert_eq!(read("a"), "789", "{when} {level:?}");
            assert_eq!(read("b"), "6789", "{when} {level:?}");
            assert_eq!(read("f"), "0123456789", "{when} {level:?}");
            let stream = bench.stream("a");
            let below = Fetch::new(&stream, tails[5], tail, 1 << 20);
            assert!(Piece::read(&bench.reader, &below).is_err());
            let above = Fetch::new(&stream, tails[6], tail, 1 << 20);
            assert!(Piece::read(&bench.reader, &above).is_ok());
        };
        look(&bench, "at once");
        bench.stop().unwrap();
        disk.cut_power();
        let mut bench = start(&disk, level);
        look(&bench, "after a crash");
        // Records that were counted before the crash still count.
        bench.round(vec![append("b", b"a"), append("b", b"b")]);
        assert_eq!(bench.read("b").0, b"89ab");
        bench.stop().unwrap();
    }
}

#[test]
fn a_batch_that_fails_removes_nothing() {
    let disk = SimulatedDisk::new(12);
    let mut bench = start(&disk, AckLevel::Synced);
    bench.round(vec![create_retaining("a", keeping(2)), create("b", TEXT)]);
    bench.round(vec![
        append("a", b"1"),
        append("a", b"2"),
        append("b", b"1"),
    ]);
    disk.set_capacity(disk.used_bytes());
    let large = vec![b'x'; 5000];
    let refused = bench.round(vec![
        append("a", &large),
        append("a", &large),
        truncate("b", None),
    ]);
    assert!(!refused.iter().any(is_done), "{refused:?}");
    assert_eq!(bench.read("a").0, b"12");
    assert_eq!(bench.read("b").0, b"1");
    disk.set_capacity(u64::MAX);
    // Nothing is counted twice afterwards.
    bench.round(vec![append("a", b"3")]);
    assert_eq!(bench.read("a").0, b"23");
    bench.stop().unwrap();
}

/// Idle streams leave memory. Their records are still removed when they are too old, before and after a restart.
#[test]
fn records_of_streams_at_rest_grow_old() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options {
        segment_bytes: 1 << 16,
        ..Options::default()
    };
    let eviction = Eviction {
        idle: Duration::from_millis(20),
        hot_max: 2,
        ..Eviction::default()
    };
    let open = |now: SteadyTime| {
        let opened = restore(dir.path(), options(), Limits::default(), now).unwrap();
        Bench::<Files>::evicting(opened, AckLevel::Synced, now.as_ms(), eviction, || 0)
    };
    let patiently = |bench: &Bench<Files>, what: &str, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            bench.permit();
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let mut bench = open(SteadyTime::from_ms(NOW_MS));
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    bench.round(
        names
            .iter()
            .map(|name| create_retaining(name, aging(100)))
            .collect(),
    );
    bench.round(names.iter().map(|name| append(name, b"old")).collect());
    let view = bench.view.clone();
    patiently(&bench, "all rest", &|| view.is_empty());
    bench.set_time(Now::from_ms(NOW_MS + 90_000));
    bench.round(
        names[..10]
            .iter()
            .map(|name| append(name, b"new"))
            .collect(),
    );
    patiently(&bench, "all rest again", &|| view.is_empty());
    bench.stop().unwrap();
    let mut bench = open(SteadyTime::from_ms(NOW_MS + 95_000));
    bench.set_time(Now::from_ms(NOW_MS + 100_000));
    bench.round(vec![create("wakes", TEXT)]);
    let loader = bench.loader.clone();
    let floor = |name: &str| {
        let known = loader.load(name).unwrap();
        known.stream().unwrap().facts().floor
    };
    patiently(&bench, "the old go", &|| {
        names.iter().all(|name| floor(name) > 0)
    });
    for (number, name) in names.iter().enumerate() {
        let left: &[u8] = if number < 10 { b"new" } else { b"" };
        assert_eq!(bench.read(name).0, left, "{name}");
        let facts = bench.stream(name).facts();
        assert!(Offset::behind(facts.floor) <= facts.tail);
    }
    bench.stop().unwrap();
}

/// The server's own streams have all their records, at rest and when they are new, whenever the log has got its retention.
#[test]
fn own_streams_outlast_a_retention_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    // All records are from 1970.
    let limited = LogRetention {
        age_max: Some(Duration::from_secs(3_600)),
        bytes_max: None,
    };
    let open = |retention| {
        let options = Options {
            segment_bytes: 8192,
            retention,
            ..Options::default()
        };
        let now = SteadyTime::from_ms(NOW_MS);
        let opened = restore(dir.path(), options, Limits::default(), now).unwrap();
        Bench::<Files>::start(opened, AckLevel::Synced, NOW_MS, || 0)
    };
    let mut own = vec![
        "\u{1}pools",
        "app/a/#webhooks",
        "app/b/#webhook-reached-x",
        "app/b/#webhooks",
    ];
    let others = ["app", "app/a", "app/a/room", "app/a0", "app/c/~", "plain"];
    let mut bench = open(LogRetention::default());
    for name in own.iter().chain(&others) {
        bench.round(vec![create(name, TEXT), append(name, name.as_bytes())]);
    }
    bench.stop().unwrap();
    for round in 0..3 {
        let mut bench = open(limited);
        let new = ["\u{1}revocations", "app/d/#webhooks"];
        if round == 0 {
            for name in new {
                bench.round(vec![create(name, TEXT), append(name, name.as_bytes())]);
            }
            own.extend(new);
        }
        let filler = format!("filler-{round}");
        bench.round(vec![create(&filler, TEXT)]);
        let tail = |bench: &Bench<Files>| bench.stream(&filler).facts().tail.sequence;
        let before = tail(&bench);
        while bench.reader.retention_floor() < before {
            bench.round(vec![append(&filler, &[b'x'; 4_000])]);
        }
        for name in &own {
            let stream = bench.stream(name);
            assert_eq!(bench.read(name).0, name.as_bytes(), "{name:?} {round}");
            assert_eq!(bench.view.kept_behind(&stream), 0, "{name:?}");
        }
        for name in others {
            let stream = bench.stream(name);
            assert_eq!(bench.read(name).0, b"", "{name:?}");
            assert!(bench.view.kept_behind(&stream) >= before, "{name:?}");
        }
        bench.stop().unwrap();
    }
}
