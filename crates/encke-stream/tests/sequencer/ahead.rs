//! What is decided while a batch is synced: it shares the fate of that batch, and is seen and told behind it.

use std::sync::Arc;
use std::time::Duration;

use encke_log::simulated::{Faults, SimulatedDisk};
use encke_stream::{AckLevel, Command, Create, Outcome, Refusal};

use crate::bench::{Bench, append, create, delete};
use crate::{NOW_MS, TEXT, is_done, open, start};

/// So many commands that it is worth while to decide the next ones meanwhile.
const MANY: usize = 40;

/// Tokens of what comes while the first batch is synced.
const LATER: u64 = 1_000;

/// A sequencer that has seen a sync of 100 ms, and a stream `a` with some records. The probe tells which record is visible.
fn start_slow(disk: &SimulatedDisk) -> Bench<SimulatedDisk> {
    let opened = open(disk);
    let view = Arc::clone(&opened.1);
    let probe = move || view.committed();
    let mut bench = Bench::start(opened, AckLevel::Synced, NOW_MS, probe);
    bench.round(vec![create("a", TEXT)]);
    bench.view.watch(&bench.stream("a"), 0);
    sync_slowly(disk, &bench, many("a", b"."));
    std::thread::sleep(Duration::from_millis(100));
    disk.hold_syncs(false);
    bench.collect_all(MANY);
    bench.figures();
    bench
}

fn many(name: &str, bytes: &[u8]) -> Vec<Command> {
    (0..MANY).map(|_| append(name, bytes)).collect()
}

/// Has a batch written, and its sync held.
fn sync_slowly(disk: &SimulatedDisk, bench: &Bench<SimulatedDisk>, commands: Vec<Command>) {
    disk.hold_syncs(true);
    bench.send_from(0, commands);
    bench.permit();
    while disk.held_syncs() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Brings more while that sync is held, and waits until half the time of the last one has passed, and more.
fn bring(bench: &Bench<SimulatedDisk>, commands: Vec<Command>) {
    bench.send_from(LATER, commands);
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn what_is_decided_ahead_is_seen_and_told_with_the_next_batch() {
    let disk = SimulatedDisk::new(31);
    let mut bench = start_slow(&disk);
    let before = bench.stream("a").facts();
    let mut first = many("a", b"1");
    first.push(create("b", TEXT));
    sync_slowly(&disk, &bench, first);
    // It is about what the first batch made, and about what nobody can see yet.
    let (a, b, c) = (append("a", b"2"), append("b", b"3"), create("c", TEXT));
    let later = vec![a, b, c, append("c", b"4"), delete("nobody"), delete("b")];
    let _held = bench.loader.load("c").unwrap();
    let _free = bench.loader.load("nobody").unwrap();
    bring(&bench, later);
    assert_eq!(bench.stream("a").facts(), before);
    assert!(bench.view.find("b").is_none());
    let operations = disk.operations();
    disk.hold_syncs(false);
    let (outcomes, deliveries) = bench.collect_all(MANY + 1 + 6);
    let gone = outcomes[&(LATER + 4)].clone();
    assert!(matches!(gone, Outcome::Refused(Refusal::NotFound)));
    assert_eq!(
        outcomes.values().filter(|outcome| is_done(outcome)).count(),
        MANY + 6
    );
    // The sync that was held, then one write and one sync.
    assert_eq!(disk.operations() - operations, 3);
    let figures: Vec<_> = bench
        .figures()
        .iter()
        .map(|f| (f.commands, f.ahead, f.records))
        .collect();
    assert_eq!(figures, [(MANY + 1, 0, MANY + 1), (6, 6, 5)]);
    // Shard 0 was handed the two batches, and saw no more than the one it was handed.
    let batches = deliveries
        .iter()
        .filter_map(|delivery| Some((delivery.probed, delivery.batch.as_ref()?)));
    for (visible, batch) in batches {
        assert_eq!(batch.records.last().unwrap().sequence, visible);
    }
    assert_eq!(
        bench.read("a"),
        (
            [vec![b'.'; MANY], vec![b'1'; MANY], vec![b'2']].concat(),
            true
        )
    );
    assert_eq!(bench.read("c"), (b"4".to_vec(), true));
    assert!(bench.view.find("b").is_none());
    bench.stop().unwrap();

    disk.cut_power();
    let bench = start(&disk, AckLevel::Synced);
    assert_eq!(bench.read("a").0.len(), 2 * MANY + 1);
    assert_eq!(bench.read("c"), (b"4".to_vec(), true));
    bench.stop().unwrap();
}

#[test]
fn what_is_decided_ahead_of_a_sync_that_fails_was_never_there() {
    for power_cut in [false, true] {
        let disk = SimulatedDisk::new(32);
        let mut bench = start_slow(&disk);
        let before = bench.stream("a").facts();
        sync_slowly(&disk, &bench, many("a", b"1"));
        let _held = bench.loader.load("c").unwrap();
        let mut later = many("a", b"2");
        later.push(create("c", TEXT));
        bring(&bench, later);
        disk.set_faults(Faults {
            failing_operation: Some(1),
            ..Faults::default()
        });
        disk.hold_syncs(false);
        let (outcomes, deliveries) = bench.collect_all(2 * MANY + 1);
        assert!(
            outcomes
                .values()
                .all(|outcome| matches!(outcome, Outcome::Refused(Refusal::LogFailed(_))))
        );
        assert!(deliveries.iter().all(|delivery| delivery.batch.is_none()));
        assert_eq!(bench.stream("a").facts(), before);
        assert!(bench.view.find("c").is_none());
        let again = bench.round(vec![append("a", b"3")]);
        assert!(matches!(again[0], Outcome::Refused(Refusal::LogFailed(_))));
        bench.stop().unwrap_err();

        disk.set_faults(Faults::default());
        if power_cut {
            disk.cut_power();
        }
        // Of what was written and not acknowledged anything may be there; of what was not written nothing is.
        let bench = start(&disk, AckLevel::Synced);
        let (read, all) = bench.read("a");
        assert!(
            all && read.starts_with(&[b'.'; MANY]) && !read.contains(&b'2'),
            "{read:?}"
        );
        bench.stop().unwrap();
    }
}

#[test]
fn what_was_decided_ahead_is_refused_alone_when_the_disk_is_full() {
    let disk = SimulatedDisk::new(33);
    let mut bench = start_slow(&disk);
    sync_slowly(&disk, &bench, many("a", b"1"));
    disk.set_capacity(disk.used_bytes());
    bring(&bench, many("a", &[b'2'; 400]));
    disk.hold_syncs(false);
    let (outcomes, _) = bench.collect_all(2 * MANY);
    for (token, outcome) in &outcomes {
        match *token < LATER {
            true => assert!(is_done(outcome), "{token}: {outcome:?}"),
            false => assert_eq!(*outcome, Outcome::Refused(Refusal::NoSpace)),
        }
    }
    disk.set_capacity(u64::MAX);
    assert!(bench.round(vec![append("a", b"3")]).iter().all(is_done));
    let expected = [vec![b'.'; MANY], vec![b'1'; MANY], vec![b'3']].concat();
    assert_eq!(bench.read("a"), (expected, true));
    bench.stop().unwrap();
}

#[test]
fn what_need_not_wait_for_a_sync_is_not_decided_behind_what_must() {
    let disk = SimulatedDisk::new(34);
    let mut bench = start_slow(&disk);
    let Command::Create(made) = create("accepted", TEXT) else {
        unreachable!("that is what it makes");
    };
    let ack = Some(AckLevel::Accepted);
    bench.round(vec![Command::Create(Create { ack, ..made })]);
    bench.figures();
    sync_slowly(&disk, &bench, many("a", b"1"));
    bring(&bench, vec![append("a", b"2"), append("accepted", b"3")]);
    disk.hold_syncs(false);
    let (_, deliveries) = bench.collect_all(MANY + 2);
    let told: Vec<u64> = deliveries
        .iter()
        .flat_map(|delivery| &delivery.replies)
        .map(|reply| reply.token)
        .collect();
    assert_eq!(told[MANY..], [LATER + 1, LATER], "the accepted one first");
    assert!(bench.figures().iter().all(|figures| figures.ahead == 0));
    bench.stop().unwrap();
}
