//! The time of day is set while jobs run and clients wait: durations go on, and what is shown is a time of day.

use encke_clock::WallTime;
use encke_jobs::{
    AttemptAction, DispatchResponse, DispatchedJob, JobState, NewJob, PoolLimits, PoolRequest,
};

use crate::world::{POOL, World, text};

/// An hour and ten seconds back, and an hour forward, in milliseconds.
const STEPS: [i64; 3] = [-3_600_000, -10_000, 3_600_000];

const SETTINGS: &str = r#"{"type":"claim","ack_ms":3000,"retry_ms":2000,"events":true}"#;

fn world() -> World {
    World::new(PoolLimits::default(), SETTINGS)
}

/// A world where a worker has just got a job.
fn world_with_attempt() -> (World, DispatchedJob) {
    let mut world = world();
    world.join("w", None, None);
    world.post("#", None, None);
    world.settle();
    let (_, handed) = world.held.pop().unwrap();
    (world, handed)
}

/// When an attempt times out, or a job may be dispatched.
fn shown(world: &mut World, id: u64) -> WallTime {
    match world.find(id).unwrap().state {
        JobState::Running { deadline, .. } => deadline,
        JobState::Waiting {
            not_before: Some(at),
        } => at,
        state => panic!("{state:?}"),
    }
}

fn left_ms(world: &mut World, id: u64) -> u128 {
    let at = shown(world, id);
    at.since(world.now().wall).as_millis()
}

fn pass(world: &mut World, ms: u64) {
    world.pass(ms);
    world.settle();
}

#[test]
fn a_running_attempt_has_the_time_that_it_was_given() {
    for step in STEPS {
        let (mut world, handed) = world_with_attempt();
        assert_eq!(handed.deadline.since(world.now().wall).as_millis(), 3_000);
        pass(&mut world, 1_000);
        world.wall_ahead_ms += step;
        assert_eq!(left_ms(&mut world, handed.id), 2_000, "step {step}");
        // The lease is extended, and the clock is set before that is in the log.
        world.end(handed.id, 1, AttemptAction::Extend { ms: Some(5_000) });
        world.wall_ahead_ms += step;
        world.settle();
        pass(&mut world, 4_999);
        assert_eq!(left_ms(&mut world, handed.id), 1, "step {step}");
        pass(&mut world, 1);
        let waits_ms = left_ms(&mut world, handed.id);
        assert!((1_000..=2_000).contains(&waits_ms), "{waits_ms}");
    }
}

#[test]
fn a_job_waits_for_its_next_attempt_as_long_as_its_worker_asks() {
    for step in STEPS {
        let (mut world, handed) = world_with_attempt();
        let refuse = AttemptAction::Refuse {
            reason: "not now".into(),
            after_ms: Some(4_000),
        };
        world.end(handed.id, 1, refuse);
        world.wall_ahead_ms += step;
        world.settle();
        let waits_ms = left_ms(&mut world, handed.id);
        assert_eq!(waits_ms, 4_000, "step {step}");
        pass(&mut world, 3_999);
        assert!(world.held.is_empty(), "step {step}");
        pass(&mut world, 1);
        assert_eq!(world.held.len(), 1, "step {step}");
        let events = world.messages("events");
        let waits = events.iter().find(|event| event["event"] == "waits");
        let waits = waits.unwrap();
        let (until_ms, time_ms) = (waits["until_ms"].as_u64(), waits["time_ms"].as_u64());
        assert_eq!(until_ms.unwrap() - time_ms.unwrap(), 4_000, "step {step}");
    }
}

#[test]
fn polls_and_waits_for_results_last_as_long_as_they_ask() {
    for step in STEPS {
        let mut world = world();
        let poll = world.join("w", None, Some(2_000));
        pass(&mut world, 1_000);
        world.wall_ahead_ms += step;
        pass(&mut world, 999);
        assert!(world.heard(poll).is_none(), "step {step}");
        pass(&mut world, 1);
        assert!(matches!(world.heard(poll), Some(DispatchResponse::NoJob)));
        world.workers.clear();

        let poster = world.client();
        let post = NewJob {
            pool: POOL.into(),
            payload: text("#", None),
            slot: None,
            wait_ms: Some(2_000),
            if_connected: false,
        };
        world.ask(poster, PoolRequest::Post(post));
        world.settle();
        world.wall_ahead_ms += step;
        pass(&mut world, 1_999);
        assert!(world.heard(poster).is_none(), "step {step}");
        // Nor does a job grow old.
        assert_eq!(world.info().oldest_age_s, 1, "step {step}");
        pass(&mut world, 1);
        let heard = world.heard(poster);
        assert!(matches!(heard, Some(DispatchResponse::Job(_))), "{heard:?}");
        // It has been away for nearly 8 s since its poll.
        assert_eq!(world.info().stats.connected, 1, "step {step}");
        pass(&mut world, 8_000);
        assert_eq!(world.info().stats.connected, 0, "step {step}");
    }
}

#[test]
fn a_restart_reads_what_is_stored_as_times_of_day() {
    for step in STEPS {
        let (mut world, handed) = world_with_attempt();
        world.wall_ahead_ms += step;
        world.end(handed.id, 1, AttemptAction::Extend { ms: Some(60_000) });
        world.settle();
        let deadline = shown(&mut world, handed.id);
        assert_eq!(deadline.since(world.now().wall).as_millis(), 60_000);
        let mut world = world.crash(0);
        assert_eq!(shown(&mut world, handed.id), deadline, "step {step}");
    }
}
