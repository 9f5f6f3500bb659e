//! Pull-wake: claims, reports, leases and the fence between generations.

use encke_subscriptions::{
    ReportKind, SubscriptionError, SubscriptionLimits, SubscriptionResponse,
};

use crate::asked::{Held, claim, held, pull, report};
use crate::streams::{append, create, create_with, delete};
use crate::world::World;

const ACK: ReportKind = ReportKind::Ack;
const RELEASE: ReportKind = ReportKind::Release;

/// A subscription that follows `events/a`, which has a new record.
pub(crate) fn world() -> World {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/pool"));
    world.write(create("events/a"));
    world.must_create("s", pull("events/*"));
    world.write(append("events/a"));
    world
}

fn claimed_by(holder: &str, generation: u64) -> SubscriptionError {
    SubscriptionError::AlreadyClaimed {
        holder: holder.into(),
        generation,
    }
}

#[test]
fn a_wake_is_announced_claimed_and_done() {
    let mut world = world();
    let events = world.streams.messages("wake/pool");
    let event = serde_json::json!({
        "type": "wake", "subscription_id": "s", "stream": "events/a", "generation": 1, "ts": 1_000_000,
    });
    assert_eq!(events, [event]);
    let claimed = world.claim("s", "worker-1").unwrap();
    assert_eq!((claimed.generation, claimed.lease_ms), (1, 1_000));
    let [link] = &claimed.links[..] else {
        panic!("{claimed:?}");
    };
    let tail = world.tail("events/a");
    assert!(link.has_pending && link.tail == tail && link.acked < tail);
    for worker in ["worker-2", "worker-1"] {
        assert_eq!(world.claim("s", worker), Err(claimed_by("worker-1", 1)));
    }
    let held = held("s", &claimed);
    assert_eq!(
        world.report(ACK, &held, &[("events/a", tail)], true),
        Ok(false)
    );
    assert_eq!(world.acked("s", "events/a"), tail);
    assert_eq!(
        world.claim("s", "worker-2"),
        Err(SubscriptionError::NoPendingWork)
    );
}

#[test]
fn a_claim_sees_what_was_acknowledged_before() {
    let mut world = world();
    let held = world.must_claim("s", "w");
    let tail = world.tail("events/a");
    world
        .report(ACK, &held, &[("events/a", tail)], true)
        .unwrap();
    world.store(append("events/a"));
    // The machine does not know of the record yet.
    assert_eq!(world.reports.len(), 1);
    let number = world.send(claim("s", "w"));
    world.settle();
    assert!(matches!(
        world.responses[&number],
        SubscriptionResponse::Claimed(_)
    ));
    // Nor of the tail that a worker acknowledges.
    let SubscriptionResponse::Claimed(claimed) = world.responses[&number].clone() else {
        unreachable!()
    };
    let held = crate::asked::held("s", &claimed);
    world.store(append("events/a"));
    let tail = world.tail("events/a");
    let number = world.send(report(ACK, &held, &[("events/a", tail)], true));
    world.settle();
    assert_eq!(
        world.responses[&number],
        SubscriptionResponse::Reported { next_wake: false }
    );
}

#[test]
fn a_claim_without_a_wake_makes_one() {
    let mut world = world();
    let held = world.must_claim("s", "w");
    let tail = world.tail("events/a");
    world
        .report(ACK, &held, &[("events/a", tail)], true)
        .unwrap();
    world.store(append("events/a"));
    let number = world.send(claim("s", "w"));
    world.settle();
    let SubscriptionResponse::Claimed(claimed) = &world.responses[&number] else {
        panic!("{:?}", world.responses);
    };
    assert_eq!(claimed.generation, 2);
    let events = world.streams.messages("wake/pool");
    assert_eq!(events.len(), 2, "its event is written, once");
    assert_eq!(events[1]["generation"], 2);
}

#[test]
fn appends_to_a_claimed_wake_are_the_next_wake() {
    let mut world = world();
    let first = world.must_claim("s", "w");
    let tail = world.tail("events/a");
    world.write(append("events/a"));
    world.write(create_with("events/b", 1));
    assert_eq!(world.streams.messages("wake/pool").len(), 1);
    assert_eq!(
        world.report(ACK, &first, &[("events/a", tail)], true),
        Ok(true)
    );
    let events = world.streams.messages("wake/pool");
    assert_eq!((events.len(), &events[1]["generation"]), (2, &2.into()));
    let second = world.must_claim("s", "w");
    assert_eq!(second.generation, 2);
    assert_ne!(second.wake_id, first.wake_id);
}

#[test]
fn a_report_extends_the_lease() {
    let mut world = world();
    let held = world.must_claim("s", "w");
    for _ in 0..5 {
        world.pass_and_settle(900);
        assert_eq!(world.report(ACK, &held, &[], false), Ok(false));
    }
    world.pass_and_settle(999);
    assert_eq!(world.claim("s", "x"), Err(claimed_by("w", 1)));
    world.pass_and_settle(1);
    // It is over: the next wake is there at once, with its event.
    assert_eq!(world.streams.messages("wake/pool").len(), 2);
    assert_eq!(
        world.report(ACK, &held, &[], false),
        Err(SubscriptionError::Fenced)
    );
    let next = world.must_claim("s", "x");
    assert_eq!(next.generation, 2);
    assert_eq!(
        world.report(ACK, &held, &[], true),
        Err(SubscriptionError::Fenced)
    );
    assert_eq!(world.report(ACK, &next, &[], false), Ok(false));
}

#[test]
fn a_lease_that_is_over_is_over_before_its_timer() {
    let mut world = world();
    let first = world.must_claim("s", "w");
    world.now_ms += 1_000;
    // No tick since.
    let number = world.send(report(ACK, &first, &[], false));
    world.settle();
    assert_eq!(
        world.responses[&number],
        SubscriptionResponse::Refused(SubscriptionError::Fenced)
    );
    let mut world = self::world();
    world.must_claim("s", "w");
    world.now_ms += 1_000;
    let number = world.send(claim("s", "x"));
    world.settle();
    let SubscriptionResponse::Claimed(claimed) = &world.responses[&number] else {
        panic!("{:?}", world.responses);
    };
    assert_eq!(claimed.generation, 2);
}

#[test]
fn a_claim_survives_a_crash() {
    let mut world = world();
    let held = world.must_claim("s", "w");
    world.write(append("events/a"));
    let mut world = world.crash(0, false);
    world.settle();
    assert_eq!(world.claim("s", "x"), Err(claimed_by("w", 1)));
    assert_eq!(world.report(ACK, &held, &[], false), Ok(false));
    world.report(RELEASE, &held, &[], true).unwrap();
    // The token of one wake does not make one for the next.
    let next = Held {
        generation: 2,
        ..held
    };
    assert_eq!(
        world.report(ACK, &next, &[], true),
        Err(SubscriptionError::Fenced)
    );
}

#[test]
fn wakes_without_progress_follow_each_other_with_pauses() {
    let mut world = world();
    let mut pauses = Vec::new();
    for round in 1..=5 {
        let held = world.must_claim("s", "w");
        assert_eq!(held.generation, round);
        world.report(RELEASE, &held, &[], true).unwrap();
        let begun = world.now_ms;
        while world.streams.messages("wake/pool").len() as u64 == round {
            world.pass_and_settle(50);
        }
        pauses.push(world.now_ms - begun);
    }
    assert_eq!(pauses[0], 0);
    for (pause, expected) in pauses[1..].iter().zip([1_000, 2_000, 4_000, 8_000]) {
        let range = expected * 8 / 10..=expected * 12 / 10 + 50;
        assert!(range.contains(pause), "{pauses:?}");
    }
    // A claim does not wait, and progress ends the pauses.
    let held = world.must_claim("s", "w");
    world.report(RELEASE, &held, &[], true).unwrap();
    let held = world.must_claim("s", "w");
    let tail = world.tail("events/a");
    world.write(append("events/a"));
    assert_eq!(
        world.report(ACK, &held, &[("events/a", tail)], true),
        Ok(true)
    );
}

#[test]
fn a_claim_on_what_is_gone_finds_nothing() {
    let mut world = world();
    world.write(delete("events/a"));
    assert_eq!(world.claim("s", "w"), Err(SubscriptionError::NoPendingWork));
    assert_eq!(
        world.claim("missing", "w"),
        Err(SubscriptionError::NotFound)
    );
    world.write(create_with("events/a", 1));
    let held = world.must_claim("s", "w");
    assert_eq!(held.generation, 1, "the wake is the same");
}

#[test]
fn a_set_clock_moves_no_lease() {
    for step in [-3_600_000_i64, 3_600_000] {
        let mut world = world();
        let held = world.must_claim("s", "w");
        world.wall_ahead_ms += step;
        world.pass_and_settle(999);
        let number = world.send(report(ACK, &held, &[], false));
        // It is set again before the decision is in the log.
        world.wall_ahead_ms += step;
        world.settle();
        assert!(matches!(
            world.responses[&number],
            SubscriptionResponse::Reported { .. }
        ));
        world.pass_and_settle(999);
        assert_eq!(
            world.claim("s", "x"),
            Err(claimed_by("w", 1)),
            "step {step}"
        );
        world.pass_and_settle(1);
        assert_eq!(world.must_claim("s", "x").generation, 2, "step {step}");
    }
}

#[test]
fn a_start_at_an_earlier_time_of_day_prolongs_no_lease() {
    let mut world = world();
    world.must_claim("s", "w");
    world.wall_ahead_ms -= 3_600_000;
    let mut world = world.restart();
    assert_eq!(world.claim("s", "x"), Err(claimed_by("w", 1)));
    world.pass_and_settle(1_000);
    assert_eq!(world.must_claim("s", "x").generation, 2);
}
