//! Levels of streams and of requests: when replies are sent, when records become visible, and what is left when the
//! disk fails.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::Log;
use encke_log::simulated::{Faults, SimulatedDisk};
use encke_stream::{
    AckLevel, Append, Command, Create, Lifetime, Limits, Logs, Machine, Offset, OrderKind, Outcome,
    Refusal, View, home, restore_all_on,
};

use crate::bench::{Bench, Delivery, append, create, delete, fork};
use crate::{LEVELS, NOW_MS, TEXT, is_done, open, options, start};

use AckLevel::{Accepted, Synced, Written};

fn create_at(name: &str, level: AckLevel) -> Command {
    let Command::Create(made) = create(name, TEXT) else {
        unreachable!()
    };
    let ack = Some(level);
    Command::Create(Create { ack, ..made })
}

fn append_at(name: &str, bytes: &[u8], level: AckLevel) -> Command {
    let Command::Append(made) = append(name, bytes) else {
        unreachable!()
    };
    let ack = Some(level);
    Command::Append(Append { ack, ..made })
}

/// A stream of each level, all watched by shard 0. The probe returns the number of disk operations and the visible
/// record.
fn start_mixed(disk: &SimulatedDisk, level: AckLevel) -> Bench<SimulatedDisk> {
    let opened = open(disk);
    let (probed, view) = (disk.clone(), Arc::clone(&opened.1));
    let probe = move || probed.operations() * 1_000 + view.committed();
    let mut bench = Bench::start(opened, level, NOW_MS, probe);
    let made = bench.round(LEVELS.map(|level| create_at(level.name(), level)).into());
    assert!(made.iter().all(is_done), "{made:?}");
    for level in LEVELS {
        bench.view.watch(&bench.stream(level.name()), 0);
    }
    bench
}

/// Operations, visible record, sequences of records, tokens of replies.
fn seen(delivery: &Delivery) -> (u64, u64, Vec<u64>, Vec<u64>) {
    let records = delivery.batch.iter().flat_map(|batch| &batch.records);
    (
        delivery.probed / 1_000,
        delivery.probed % 1_000,
        records.map(|record| record.sequence).collect(),
        delivery.replies.iter().map(|reply| reply.token).collect(),
    )
}

/// How many changes were acknowledged, by level.
fn acknowledged(bench: &Bench<SimulatedDisk>) -> [u64; 3] {
    let counts = bench.view.counts().acknowledged.each_ref();
    counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed))
}

#[test]
fn one_batch_is_acknowledged_level_by_level_in_the_order_of_the_log_with_one_sync() {
    for server in [Written, Synced] {
        let disk = SimulatedDisk::new(21);
        let mut bench = start_mixed(&disk, server);
        bench.figures();
        let (outcomes, deliveries) = bench.deliveries(vec![
            append("synced", b"s"),
            append("written", b"w"),
            append("accepted", b"a"),
            append("accepted", b"b"),
            append("synced", b"t"),
        ]);
        assert!(outcomes.iter().all(is_done), "{outcomes:?}");
        // Shard 0 watches and has the even tokens.
        let mine: Vec<_> = deliveries
            .iter()
            .filter(|delivery| delivery.shard == 0)
            .map(seen)
            .collect();
        let [accepted, written, synced] = &mine[..] else {
            panic!("{mine:?}")
        };
        let begun = accepted.0;
        assert_eq!(*accepted, (begun, 5, vec![4, 5], vec![2]));
        // The accepted records were written on the way.
        assert_eq!(*written, (begun + 2, 6, vec![6], vec![]));
        assert_eq!(*synced, (begun + 4, 8, vec![7, 8], vec![0, 4]));
        let figures = bench.figures();
        let batch = figures.iter().find(|batch| batch.commands == 5).unwrap();
        assert_eq!((batch.records, batch.failed), (5, false));
        assert!(batch.sync.is_some() && batch.bytes > 0);

        // Without a synced record there is no sync.
        let (_, deliveries) =
            bench.deliveries(vec![append("written", b"w"), append("accepted", b"a")]);
        let times = deliveries.iter().map(|delivery| delivery.probed / 1_000);
        assert_eq!(times.clone().max().unwrap() - times.min().unwrap(), 2);
        let figures = bench.figures();
        let batch = figures.iter().find(|batch| batch.commands == 2).unwrap();
        assert_eq!((batch.records, batch.sync), (2, None));
        // The creations included.
        assert_eq!(acknowledged(&bench), [4, 3, 3]);
        bench.stop().unwrap();
        disk.cut_power();
        let bench = start(&disk, server);
        assert_eq!(bench.read("synced").0, b"st");
        bench.stop().unwrap();
    }
}

#[test]
fn a_request_that_asks_for_less_is_acknowledged_before_its_record_is_visible() {
    let disk = SimulatedDisk::new(22);
    let mut bench = start_mixed(&disk, Synced);
    let (outcomes, deliveries) = bench.deliveries(vec![
        append_at("synced", b"a", Accepted),
        append_at("nobody", b"x", Accepted),
        append_at("synced", b"b", Written),
        append_at("synced", b"c", Synced),
        append("synced", b"d"),
    ]);
    assert_eq!(outcomes[1], Outcome::Refused(Refusal::NotFound));
    let mine = deliveries.iter().filter(|delivery| delivery.shard == 0);
    let mine: Vec<_> = mine.map(seen).collect();
    let [accepted, written, synced] = &mine[..] else {
        panic!("{mine:?}")
    };
    let begun = accepted.0;
    assert_eq!(*accepted, (begun, 3, vec![], vec![0]));
    assert_eq!(*written, (begun + 1, 3, vec![], vec![2]));
    assert_eq!(*synced, (begun + 2, 7, vec![4, 5, 6, 7], vec![4]));
    // Each at the level that it had reached when it was acknowledged; a refusal at none.
    assert_eq!(acknowledged(&bench), [2, 2, 3]);
    bench.stop().unwrap();
}

/// The tokens of the replies that came before the stream of that name was visible.
fn early(deliveries: &[Delivery]) -> Vec<u64> {
    let early = deliveries.iter().filter(|delivery| delivery.probed == 0);
    let replies = early.flat_map(|delivery| &delivery.replies);
    replies.map(|reply| reply.token).collect()
}

/// The probe returns whether the stream of that name is visible.
fn start_looking(
    opened: (Machine, Arc<View>, Log<SimulatedDisk>),
    name: &'static str,
) -> Bench<SimulatedDisk> {
    let view = Arc::clone(&opened.1);
    let probe = move || u64::from(view.find(name).is_some());
    Bench::start(opened, Written, NOW_MS, probe)
}

#[test]
fn a_creation_is_acknowledged_no_earlier_than_its_stream_is_visible() {
    for (server, level) in [(Written, Written), (Written, Accepted), (Synced, Accepted)] {
        let disk = SimulatedDisk::new(26);
        let mut bench = start_looking(open(&disk), "new");
        let expiring = create_at("expiring", server);
        let Command::Create(expiring) = expiring else {
            unreachable!()
        };
        let at = WallTime::from_ms(NOW_MS + 500);
        let lifetime = Some(Lifetime::Until { at });
        let expiring = Command::Create(Create {
            lifetime,
            ..expiring
        });
        let made = bench.round(vec![
            expiring,
            create_at("source", Synced),
            create_at("old", level),
        ]);
        assert!(made.iter().all(is_done), "{made:?}");
        // The end of a stricter stream is in the group of the creation, and so is a fork of one.
        bench.set_time(Now::from_ms(NOW_MS + 500));
        let (outcomes, deliveries) = bench.deliveries(vec![
            create_at("new", level),
            fork("fork", "source"),
            append_at("old", b"x", level),
        ]);
        assert!(outcomes.iter().all(is_done), "{outcomes:?}");
        assert!(bench.view.find("expiring").is_none());
        assert_eq!(early(&deliveries), [], "{level} beside {server}");
        bench.stop().unwrap();
    }
}

#[test]
fn with_several_logs_an_end_in_its_batch_does_not_overtake_the_stream_of_a_creation() {
    let disks = vec![SimulatedDisk::new(27), SimulatedDisk::new(28)];
    let started = SteadyTime::from_ms(NOW_MS);
    let logs = restore_all_on(
        disks,
        OrderKind::Local,
        &options(),
        Limits::default(),
        started,
    );
    let Logs { logs, views } = logs.unwrap();
    let (machine, log) = logs.into_iter().next().unwrap();
    // Both names belong to the first log.
    let [new, old] = ["n1", "n5"];
    assert_eq!([home(new, 2), home(old, 2)], [0, 0]);
    let mut bench = start_looking((machine, Arc::clone(views.log(0)), log), new);
    let Command::Create(expiring) = create_at(old, Written) else {
        unreachable!()
    };
    let at = WallTime::from_ms(NOW_MS + 500);
    let lifetime = Some(Lifetime::Until { at });
    let made = bench.round(vec![Command::Create(Create {
        lifetime,
        ..expiring
    })]);
    assert!(made.iter().all(is_done), "{made:?}");
    bench.set_time(Now::from_ms(NOW_MS + 500));
    let (outcomes, deliveries) = bench.deliveries(vec![create_at(new, Written)]);
    assert!(outcomes.iter().all(is_done), "{outcomes:?}");
    assert!(bench.view.find(old).is_none());
    assert_eq!(early(&deliveries), []);
    bench.stop().unwrap();
}

#[test]
fn a_request_that_asks_for_more_waits_for_it_while_its_record_is_seen() {
    let disk = SimulatedDisk::new(23);
    let mut bench = start_mixed(&disk, Synced);
    let (_, deliveries) = bench.deliveries(vec![
        append("accepted", b"a"),
        append("accepted", b"b"),
        append_at("accepted", b"c", Written),
        append("accepted", b"d"),
        append_at("accepted", b"e", Synced),
    ]);
    let mine = deliveries.iter().filter(|delivery| delivery.shard == 0);
    let mine: Vec<_> = mine.map(seen).collect();
    let [accepted, written, synced] = &mine[..] else {
        panic!("{mine:?}")
    };
    let begun = accepted.0;
    assert_eq!(*accepted, (begun, 8, vec![4, 5, 6, 7, 8], vec![0]));
    assert_eq!(*written, (begun + 1, 8, vec![], vec![2]));
    assert_eq!(*synced, (begun + 2, 8, vec![], vec![4]));
    bench.stop().unwrap();
}

#[test]
fn a_stream_keeps_its_level_and_a_second_creation_must_match_it() {
    let disk = SimulatedDisk::new(24);
    let mut bench = start_mixed(&disk, Written);
    let made = |outcome: &Outcome| match outcome {
        Outcome::Created { ack, existed, .. } => (*ack, *existed),
        other => panic!("{other:?}"),
    };
    let outcomes = bench.round(vec![
        create("plain", TEXT),
        create("synced", TEXT),
        create_at("synced", Synced),
        fork("fork", "accepted"),
    ]);
    let outcomes: Vec<_> = outcomes.iter().map(made).collect();
    let expected = [
        (Written, false),
        (Synced, true),
        (Synced, true),
        (Accepted, false),
    ];
    assert_eq!(outcomes, expected);
    let refused = bench.round(vec![create_at("synced", Accepted)]).remove(0);
    let Outcome::Refused(refusal @ Refusal::Differs { .. }) = refused else {
        panic!("{refused:?}")
    };
    let said = refusal.to_string();
    assert!(
        said.contains("Encke-Ack") && said.contains("synced"),
        "{said}"
    );
    // A name that is given again within a batch has the new level. Its replies are sent when both levels are reached.
    let outcomes = bench.round(vec![delete("written"), create_at("written", Synced)]);
    assert_eq!(made(&outcomes[1]), (Synced, false), "{outcomes:?}");
    bench.stop().unwrap();
    // The level of the server has no effect now.
    let bench = start(&disk, Accepted);
    for (name, level) in [("plain", Written), ("synced", Synced), ("fork", Accepted)] {
        assert_eq!(bench.stream(name).ack, level, "{name}");
    }
    assert_eq!(bench.stream("written").ack, Synced);
    bench.stop().unwrap();
}

/// Appends to each stream in each round, at the stream's level or another one, until the disk fails at its `failing`-th
/// operation. Returns for each stream how much of its data was acknowledged at each level, and what was visible.
fn fail_at(disk: &SimulatedDisk, server: AckLevel, failing: u64) -> Option<Vec<Promise>> {
    let mut bench = start_mixed(disk, server);
    disk.set_faults(Faults {
        failing_operation: Some(failing),
        ..Faults::default()
    });
    let mut promises = LEVELS.map(|stream| Promise {
        stream,
        ..Promise::default()
    });
    let asks = [None, Some(Accepted), Some(Synced), Some(Written)];
    for round in 0..8_usize {
        let line = vec![b'a' + round as u8; 300 + 400 * (round % 3)];
        let asked = |stream: usize| asks[(round + stream) % asks.len()];
        let commands = LEVELS
            .iter()
            .enumerate()
            .map(|(number, level)| match asked(number) {
                None => append(level.name(), &line),
                Some(ack) => append_at(level.name(), &line, ack),
            });
        let outcomes = bench.round(commands.collect());
        for (number, (promise, outcome)) in promises.iter_mut().zip(&outcomes).enumerate() {
            promise.sent.extend(&line);
            let level = asked(number).unwrap_or(promise.stream);
            if is_done(outcome) {
                promise.acknowledged[level as usize] = promise.sent.len();
            } else {
                assert!(
                    matches!(outcome, Outcome::Refused(Refusal::LogFailed(_))),
                    "{outcome:?}"
                );
            }
        }
        if !outcomes.iter().all(is_done) {
            break;
        }
    }
    for promise in &mut promises {
        promise.seen = bench.read(promise.stream.name()).0;
        assert!(promise.sent.starts_with(&promise.seen));
    }
    bench.stop().is_err().then_some(promises.into())
}

#[derive(Debug, Default)]
struct Promise {
    stream: AckLevel,
    sent: Vec<u8>,
    /// How much was acknowledged, by level.
    acknowledged: [usize; 3],
    seen: Vec<u8>,
}

#[test]
fn a_disk_that_fails_takes_from_each_level_only_what_it_does_not_promise() {
    for server in [Written, Synced] {
        for power_cut in [false, true] {
            let mut failures = 0;
            for failing in 1.. {
                let disk = SimulatedDisk::new(1_000 + failing);
                let Some(promises) = fail_at(&disk, server, failing) else {
                    break;
                };
                failures += 1;
                disk.set_faults(Faults::default());
                if power_cut {
                    disk.cut_power();
                }
                let bench = start(&disk, server);
                for promise in promises {
                    let (read, all) = bench.read(promise.stream.name());
                    assert!(all && promise.sent.starts_with(&read), "{promise:?}");
                    let covered = |level| level == Synced || level == Written && !power_cut;
                    for level in LEVELS.into_iter().filter(|level| covered(*level)) {
                        let acknowledged = promise.acknowledged[level as usize];
                        assert!(
                            read.len() >= acknowledged,
                            "{acknowledged} at {level} of {promise:?}"
                        );
                    }
                    if covered(promise.stream) {
                        assert!(read.starts_with(&promise.seen), "{promise:?} was seen");
                    }
                }
                bench.stop().unwrap();
            }
            assert!(failures > 10, "only {failures} operations to fail at");
        }
    }
}

#[test]
fn what_was_acknowledged_early_is_stored_when_a_full_disk_has_room_and_late_replies_follow() {
    let disk = SimulatedDisk::new(25);
    let mut bench = start_mixed(&disk, Synced);
    disk.set_capacity(disk.used_bytes());
    let large = vec![b'x'; 5_000];
    let room = disk.clone();
    let before = disk.operations();
    let later = std::thread::spawn(move || {
        // A refused write is repeated: several operations prove that the disk was full.
        while room.operations() < before + 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        room.set_capacity(u64::MAX);
    });
    let (outcomes, deliveries) = bench.deliveries(vec![
        append_at("synced", &large, Accepted),
        append("synced", &large),
        append("synced", b"end"),
    ]);
    later.join().unwrap();
    assert!(outcomes.iter().all(is_done), "{outcomes:?}");
    assert_eq!(seen(&deliveries[0]).1, 3, "acknowledged, and not visible");
    assert_eq!(seen(&deliveries[0]).3, [0]);
    assert_eq!(seen(deliveries.last().unwrap()).1, 6);
    let expected = [&large[..], &large, b"end"].concat();
    assert_eq!(bench.read("synced"), (expected.clone(), true));
    assert_eq!(bench.stream("synced").facts().tail, Offset::behind(6));

    // When no reply was sent, all commands of the level are refused. The other levels are not affected.
    disk.set_capacity(disk.used_bytes());
    let outcomes = bench.round(vec![
        append("synced", &large),
        append("synced", &large),
        append("accepted", b"a"),
    ]);
    let refused = Outcome::Refused(Refusal::NoSpace);
    assert!(
        is_done(&outcomes[2]) && outcomes[0] == refused && outcomes[1] == refused,
        "{outcomes:?}"
    );
    bench.stop().unwrap();
    disk.cut_power();
    let bench = start(&disk, Synced);
    assert_eq!(bench.read("synced"), (expected, true));
    bench.stop().unwrap();
}
