//! Crashes of the server, refusals of the log and failures of workers: every accepted job ends as done or dead, no attempt has
//! two workers, and only unacknowledged work is done twice.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod clock;
mod world;

use encke_jobs::{AttemptAction, DispatchResponse, JobState, PoolLimits, SettingsChange};
use proptest::collection::vec;
use proptest::prelude::*;
use world::World;

#[derive(Clone, Debug)]
enum Decision {
    Post(u8),
    Join(u8),
    Poll(u8),
    Leave(u8),
    Ack(u8),
    AckAgain(u8),
    Refuse(u8),
    Extend(u8),
    Pass(u16),
    /// The time of day is set.
    SetClock(i64),
    /// The settings are changed.
    Change(u8),
    Commit(u8),
    NoSpace,
    Crash(u8),
}

fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![
        6 => any::<u8>().prop_map(Decision::Post),
        4 => (0..6u8).prop_map(Decision::Join),
        2 => (0..6u8).prop_map(Decision::Poll),
        2 => (0..6u8).prop_map(Decision::Leave),
        6 => any::<u8>().prop_map(Decision::Ack),
        1 => any::<u8>().prop_map(Decision::AckAgain),
        1 => any::<u8>().prop_map(Decision::Refuse),
        1 => any::<u8>().prop_map(Decision::Extend),
        3 => (0..1_500u16).prop_map(Decision::Pass),
        1 => (-2_000..2_000i64).prop_map(Decision::SetClock),
        1 => any::<u8>().prop_map(Decision::Change),
        9 => (0..6u8).prop_map(Decision::Commit),
        1 => Just(Decision::NoSpace),
        1 => (0..4u8).prop_map(Decision::Crash),
    ]
}

fn worker(number: u8) -> String {
    format!("w{number}")
}

fn take(mut world: World, decision: Decision) -> World {
    match decision {
        Decision::Post(number) => {
            let key = format!("k{}", number % 7);
            let info = world.info();
            let (key, slot) = match info.settings.strategy {
                encke_pool::Strategy::Hash => (Some(&*key), None),
                encke_pool::Strategy::Direct => (None, Some(u32::from(number % 6))),
                _ => (None, None),
            };
            world.post(&format!("#{number}"), key, slot);
        }
        Decision::Join(number) if !world.workers.contains_key(&worker(number)) => {
            world.join(&worker(number), Some(number.into()), None);
        }
        Decision::Poll(number) if !world.workers.contains_key(&worker(number)) => {
            world.join(&worker(number), Some(number.into()), Some(700));
        }
        Decision::Leave(number) => world.leave(&worker(number)),
        Decision::Ack(choice) if !world.held.is_empty() => {
            let at = usize::from(choice) % world.held.len();
            let (_, handed) = world.held.swap_remove(at);
            world.ack(handed.id, handed.attempt);
        }
        Decision::AckAgain(choice) if !world.handed.is_empty() => {
            let at = usize::from(choice) % world.handed.len();
            let (id, attempt) = *world.handed.iter().nth(at).unwrap();
            world.ack(id, attempt);
        }
        Decision::Refuse(choice) if !world.held.is_empty() => {
            let at = usize::from(choice) % world.held.len();
            let (_, handed) = world.held.swap_remove(at);
            let reason = "not today".into();
            world.end(
                handed.id,
                handed.attempt,
                AttemptAction::Refuse {
                    reason,
                    // At once, by the backoff, and later.
                    after_ms: [Some(0), None, Some(2_500)][at % 3],
                },
            );
        }
        Decision::Extend(choice) if !world.held.is_empty() => {
            let at = usize::from(choice) % world.held.len();
            let (id, attempt) = (world.held[at].1.id, world.held[at].1.attempt);
            world.end(id, attempt, AttemptAction::Extend { ms: Some(3_000) });
        }
        Decision::Pass(ms) => world.pass(ms.into()),
        Decision::SetClock(ms) => world.wall_ahead_ms += ms,
        Decision::Change(number) => {
            let in_flight = 1 + u32::from(number % 4);
            world.change(SettingsChange {
                ack_ms: Some(500 + u64::from(number)),
                in_flight: Some(in_flight),
                ..SettingsChange::default()
            });
            // A later change may replace it within one batch, in which jobs are handed out between the two.
            world.in_flight_max = world.in_flight_max.max(in_flight);
        }
        Decision::Commit(count) => world.commit(count.into()),
        Decision::NoSpace => world.refuse(),
        Decision::Crash(kept) => world = world.crash(kept.into()),
        _ => {}
    }
    // A worker whose poll was answered does not poll any more.
    let polled: Vec<String> = world
        .workers
        .iter()
        .filter(|(_, client)| {
            world.responses.get(client).is_some_and(|responses| {
                let first = responses.first();
                first.is_some_and(|responses| {
                    !matches!(responses, encke_jobs::DispatchResponse::Registered { .. })
                })
            })
        })
        .map(|(name, _)| name.clone())
        .collect();
    for name in polled {
        world.workers.remove(&name);
    }
    let info = world.info();
    world.in_flight_max = world.in_flight_max.max(info.settings.in_flight_max());
    for worker in info.workers {
        // A worker keeps what it has when the maximum is lowered.
        assert!(worker.running <= world.in_flight_max, "{worker:?}");
    }
    world
}

/// All workers are connected and acknowledge their jobs until none is left.
fn finish(mut world: World) -> World {
    world.settle();
    for round in 0.. {
        for number in 0..6 {
            world = take(world, Decision::Join(number));
        }
        world.settle();
        while let Some((_, handed)) = world.held.pop() {
            world.ack(handed.id, handed.attempt);
            world.settle();
        }
        let figures = world.info().stats;
        if figures.waiting + figures.running == 0 {
            return world;
        }
        world.pass(800);
        world.settle();
        assert!(round < 100, "jobs don't end: {:?}", world.info());
    }
    unreachable!("rounds have no end")
}

fn check(settings: &str, decisions: Vec<Decision>) {
    let limits = PoolLimits {
        segment_records: 8,
        cache_bytes: 400,
        finished_max: 100_000,
        record_bytes: 512,
        ..PoolLimits::default()
    };
    let mut world = World::new(limits, settings);
    for decision in decisions {
        world = take(world, decision);
    }
    world = finish(world);
    // Deletions that failed are tried again.
    world.pass(6_000);
    world.settle();
    let results = world.messages("results");
    let dead = world.messages("dead");
    let of = |messages: &[serde_json::Value], id: u64| {
        messages
            .iter()
            .filter(|message| message["job"] == id)
            .count()
    };
    for id in world.accepted.clone() {
        let job = world.find(id).unwrap_or_else(|| panic!("{id} is lost"));
        match job.state {
            JobState::Done { .. } => assert!(of(&results, id) >= 1, "{id} has no result"),
            JobState::Dead { .. } => {
                assert!(of(&dead, id) >= 1, "{id} has no letter");
                assert_eq!(job.attempts, 3);
            }
            state => panic!("{id} is left: {state:?}"),
        }
        let unanswered = world.acks.get(&id).unwrap_or(&0) - world.answered.get(&id).unwrap_or(&0);
        assert!(
            of(&results, id) <= 1 + unanswered as usize,
            "{id} was done again though that it was done had been acknowledged"
        );
    }
    assert!(
        world.segments() <= 2,
        "{} segments are left",
        world.segments()
    );
    let before = world.info().stats;
    // A last restart recovers the same state.
    let mut world = world.crash(0);
    let after = world.info().stats;
    assert_eq!(
        (before.done, before.dead, before.retried),
        (after.done, after.dead, after.retried)
    );
}

#[test]
fn a_job_that_was_not_sent_has_lost_no_attempt() {
    let mut world = World::new(PoolLimits::default(), r#"{"type":"claim","attempts":2}"#);
    world.post("#", None, None);
    world.settle();
    for _ in 0..3 {
        // It hangs up while the lease is on its way to the log.
        world.join("w", None, None);
        world.leave("w");
        world.settle();
        world = world.crash(0);
    }
    for attempt in 1..=2 {
        world.join("w", None, None);
        world.settle();
        let (_, handed) = world.held.pop().unwrap();
        assert_eq!(handed.attempt, attempt);
        world.leave("w");
        world.settle();
    }
    let id = world.accepted.first().copied().unwrap();
    let job = world.find(id).unwrap();
    assert!(matches!(job.state, JobState::Dead { .. }), "{job:?}");
}

#[test]
fn a_job_that_cannot_be_read_loses_attempts() {
    let limits = PoolLimits {
        cache_bytes: 0,
        ..PoolLimits::default()
    };
    let mut world = World::new(limits, r#"{"type":"claim","attempts":2}"#);
    world.post("#", None, None);
    world.unreadable = true;
    world.join("w", None, None);
    world.settle();
    let id = world.accepted.first().copied().unwrap();
    let job = world.find(id).unwrap();
    assert!(matches!(job.state, JobState::Dead { .. }), "{job:?}");
    assert_eq!(world.messages("dead")[0]["reason"], "unreadable");
}

#[test]
fn jobs_of_a_key_go_to_the_worker_that_runs_one() {
    const KEYS: [&str; 7] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6"];
    let post = |world: &mut World| {
        for key in KEYS {
            world.post("#", Some(key), None);
        }
        world.settle();
    };
    let workers = |world: &World| -> Vec<String> {
        let held = world.held.iter();
        held.map(|(worker, _)| worker.clone()).collect()
    };
    // Seven of them wait for room at their worker.
    let mut world = World::new(PoolLimits::default(), r#"{"type":"hash","in_flight":14}"#);
    world.join("w0", None, None);
    world.settle();
    (0..3).for_each(|_| post(&mut world));
    world.join("w1", None, None);
    world.settle();
    assert_eq!(workers(&world), ["w0"; 14]);
    // One job of each key is done, and the next one runs.
    for (_, handed) in world.held.split_off(7) {
        world.ack(handed.id, handed.attempt);
    }
    world.settle();
    assert_eq!(workers(&world), ["w0"; 14]);
    for (_, handed) in std::mem::take(&mut world.held) {
        world.ack(handed.id, handed.attempt);
    }
    world.settle();
    post(&mut world);
    let both = workers(&world);
    assert!(
        both.contains(&"w0".into()) && both.contains(&"w1".into()),
        "{both:?}"
    );
    // A worker that has left keeps no key.
    world.leave("w0");
    world.held.clear();
    world.settle();
    assert_eq!(
        workers(&world),
        vec!["w1"; both.iter().filter(|of| **of == "w0").count()]
    );
}

#[test]
fn more_waits_than_one_record_takes() {
    let limits = PoolLimits {
        segment_records: 8,
        record_bytes: 512,
        ..PoolLimits::default()
    };
    let mut world = World::new(limits, r#"{"type":"claim","ack_ms":1000000}"#);
    for number in 0..200 {
        world.post(&format!("#{number}"), None, None);
    }
    world.settle();
    world.join("w", None, None);
    world.settle();
    let (_, handed) = world.held[0].clone();
    // Reports on one job make the journal long.
    for _ in 0..700 {
        let how = AttemptAction::Extend {
            ms: Some(1_000_000),
        };
        world.end(handed.id, handed.attempt, how);
        world.settle();
    }
    assert_eq!(world.segments(), 2, "a new segment has begun");
    let mut world = world.crash(0);
    let figures = world.info().stats;
    assert_eq!((figures.waiting, figures.running), (199, 1));
    assert_eq!(world.segments(), 2);
}

#[test]
fn chapters_that_crash_after_crash_leaves_unfinished_are_all_deleted() {
    let limits = PoolLimits {
        segment_records: 8,
        cache_bytes: 400,
        ..PoolLimits::default()
    };
    let mut world = World::new(limits, r#"{"type":"claim","ack_ms":1000000}"#);
    world.join("w", None, None);
    world.post("#", None, None);
    world.settle();
    let (_, handed) = world.held[0].clone();
    // Reports on one job make the journal long enough for a new segment, and the server crashes each time while one begins.
    let mut begun = 0;
    for _ in 0..30 {
        for _ in 0..40 {
            let ms = Some(1_000_000);
            world.end(handed.id, handed.attempt, AttemptAction::Extend { ms });
            world.commit(1);
            if world.segments() == 2 {
                begun += 1;
                break;
            }
        }
        world = world.crash(0);
        assert!(world.segments() <= 2, "{} are left", world.segments());
    }
    assert!(begun >= 20, "only {begun} were begun");
    // In the end the segment that holds the job and the current one exist.
    world.settle();
    assert_eq!(world.segments(), 2);
}

#[test]
fn a_change_of_settings_holds_from_its_record_on() {
    let change = |ack_ms, in_flight| SettingsChange {
        ack_ms,
        in_flight,
        ..SettingsChange::default()
    };
    let limits = PoolLimits {
        segment_records: 8,
        ..PoolLimits::default()
    };
    let mut world = World::new(limits, r#"{"type":"round_robin","in_flight":2}"#);
    world.join("w", None, None);
    for number in 0..9 {
        world.post(&format!("#{number}"), None, None);
    }
    world.settle();
    assert_eq!(world.held.len(), 2);
    // Two changes on their way: each changes what it names.
    let first = world.change(change(Some(60_000), None));
    let second = world.change(change(None, Some(4)));
    assert!(
        !world.responses.contains_key(&first),
        "not before its record"
    );
    world.settle();
    for client in [first, second] {
        let responses = world.responses.remove(&client).unwrap();
        assert!(matches!(responses[..], [DispatchResponse::Described(_)]));
    }
    let settings = world.info().settings;
    assert_eq!((settings.ack_ms, settings.in_flight), (60_000, Some(4)));
    assert_eq!(world.held.len(), 4, "the worker gets more at once");
    // What has been recorded is there after a crash, and in the segments that follow; what has not is not.
    world.change(change(Some(90_000), None));
    let mut world = world.crash(0);
    assert_eq!(world.info().settings, settings);
    world.change(change(None, Some(1)));
    let mut world = world.crash(1);
    assert_eq!(world.info().settings.in_flight, Some(1));
    for _ in 0..40 {
        let (_, held) = world.held[0].clone();
        world.end(held.id, held.attempt, AttemptAction::Extend { ms: None });
        world.settle();
    }
    let mut world = world.crash(0);
    let settings = world.info().settings;
    assert_eq!((settings.ack_ms, settings.in_flight), (60_000, Some(1)));
    // One that changes nothing has no record, and one that is out of range changes nothing.
    let same = world.change(change(Some(60_000), None));
    let refused = world.change(change(Some(1), Some(3)));
    assert!(matches!(
        world.responses[&same][..],
        [DispatchResponse::Described(_)]
    ));
    assert!(matches!(
        world.responses[&refused][..],
        [DispatchResponse::Refused(_)]
    ));
    world.settle();
    assert_eq!(world.info().settings, settings);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) })]

    #[test]
    fn claim(decisions in vec(decision(), 0..250)) {
        check(r#"{"type":"claim","ack_ms":1000}"#, decisions);
    }

    #[test]
    fn round_robin(decisions in vec(decision(), 0..250)) {
        check(r#"{"type":"round_robin","ack_ms":1000,"in_flight":2}"#, decisions);
    }

    #[test]
    fn random(decisions in vec(decision(), 0..250)) {
        check(r#"{"type":"random","ack_ms":1000,"in_flight":3}"#, decisions);
    }

    #[test]
    fn hash(decisions in vec(decision(), 0..250)) {
        check(r#"{"type":"hash","ack_ms":1000,"in_flight":2}"#, decisions);
    }

    #[test]
    fn direct(decisions in vec(decision(), 0..250)) {
        check(r#"{"type":"direct","size":6,"ack_ms":1000,"in_flight":2}"#, decisions);
    }
}
