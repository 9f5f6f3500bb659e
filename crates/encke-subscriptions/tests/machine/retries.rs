//! Pauses behind calls that failed, and behind wakes without progress.

use encke_subscriptions::{DeliveryResult, ReportKind, SubscriptionConfig, SubscriptionError};

use crate::asked::webhook;
use crate::streams::{append, create_with, delete};
use crate::webhooks::{long_lease, world, world_with};
use crate::world::World;

const CALLBACK: ReportKind = ReportKind::Callback;

/// How long it takes until the webhook is called, in milliseconds; a minute and a half if it is not.
fn wait_for_call(world: &mut World) -> u64 {
    let from = world.now_ms;
    while world.calls.is_empty() && world.now_ms < from + 90_000 {
        world.pass_and_settle(10);
    }
    world.now_ms - from
}

#[test]
fn failed_calls_are_tried_again_behind_growing_pauses() {
    let mut world = world_with(long_lease());
    let first = world.call().notice.clone();
    let mut pauses = Vec::new();
    for round in 0..9 {
        assert_eq!(world.status("s").failed, round > 0);
        if round == 4 {
            // What comes meanwhile is not part of the wake.
            world.write(append("events/a"));
            world.write(create_with("events/b", 1));
        }
        world.fail();
        assert!(world.status("s").failed);
        pauses.push(wait_for_call(&mut world));
        assert_eq!(world.call().notice, first, "the same wake and token");
    }
    for (pause, expected) in pauses.iter().zip([1, 2, 4, 8, 16, 32, 60, 60, 60]) {
        let range = expected * 800..=expected * 1_200 + 10;
        assert!(range.contains(pause), "{pauses:?}");
    }
    world.answer(DeliveryResult::Done);
    assert!(!world.status("s").failed);
    // A success begins the pauses anew.
    assert_eq!(world.called().generation, 2);
    world.fail();
    let pause = wait_for_call(&mut world);
    assert!((800..=1_210).contains(&pause), "{pause}");
}

#[test]
fn the_next_wake_of_a_failing_webhook_waits_for_its_pause() {
    let mut world = world_with(SubscriptionConfig {
        lease_ms: 3_000,
        ..webhook("events/*")
    });
    let mut generations = Vec::new();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        generations.push(world.called().generation);
        world.fail();
        pauses.push(wait_for_call(&mut world));
    }
    for (pause, expected) in pauses.iter().zip([1, 2, 4, 8, 16, 32, 60]) {
        let range = expected * 800..=expected * 1_200 + 10;
        assert!(range.contains(pause), "{pauses:?}");
    }
    // The lease of three seconds has ended in the longer ones.
    assert_eq!(generations, [1, 1, 1, 2, 3, 4, 5]);
    let called = world.called();
    world.fail();
    world.pass_and_settle(3_000);
    // The next wake finds what there is when it begins.
    world.write(append("events/a"));
    let newest = world.tail("events/a");
    assert_eq!(
        world.report(CALLBACK, &called, &[], true),
        Err(SubscriptionError::Fenced),
        "its lease is over"
    );
    wait_for_call(&mut world);
    assert_eq!(world.call().notice.links[0].tail, newest);
}

#[test]
fn a_report_ends_the_pauses_of_a_failing_webhook() {
    let mut world = world_with(long_lease());
    for _ in 0..3 {
        world.fail();
        wait_for_call(&mut world);
    }
    let called = world.called();
    world.fail();
    assert!(world.status("s").failed);
    let tail = world.tail("events/a");
    world.write(append("events/a"));
    let done = world.report(CALLBACK, &called, &[("events/a", tail)], true);
    assert_eq!(done, Ok(true), "the next wake does not wait");
    assert!(!world.status("s").failed);
    world.call();
}

#[test]
fn a_retry_schedule_survives_a_restart() {
    let mut world = world_with(long_lease());
    let notice = world.call().notice.clone();
    for _ in 0..5 {
        world.fail();
        wait_for_call(&mut world);
    }
    world.fail();
    let failed_at = world.now_ms;
    let mut world = world.restart();
    assert!(world.status("s").failed);
    assert!(world.calls.is_empty());
    // The clocks of a restart are a few milliseconds ahead.
    wait_for_call(&mut world);
    let pause = world.now_ms - failed_at;
    assert!((25_600..=38_420).contains(&pause), "{pause}");
    assert_eq!(world.call().notice, notice);
    world.fail();
    wait_for_call(&mut world);
    let pause = world.now_ms - failed_at - pause;
    assert!(
        (48_000..=72_020).contains(&pause),
        "{pause}: the count is stored too"
    );
}

#[test]
fn a_failed_call_is_not_repeated_for_nothing() {
    let mut world = world_with(long_lease());
    world.fail();
    world.write(delete("events/a"));
    world.pass_and_settle(60_000);
    assert!(world.calls.is_empty());
    // The wake is over.
    world.write(create_with("events/b", 1));
    assert_eq!(world.called().generation, 2);
}

#[test]
fn done_again_and_again_without_acknowledgements_is_paced() {
    let mut world = world();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let called = world.called();
        world.answer(DeliveryResult::Accepted);
        world.report(CALLBACK, &called, &[], true).unwrap();
        pauses.push(wait_for_call(&mut world));
    }
    assert_eq!(pauses[0], 0);
    for (pause, expected) in pauses[1..].iter().zip([1_000, 2_000, 4_000]) {
        assert!(
            (expected * 8 / 10..=expected * 12 / 10 + 10).contains(pause),
            "{pauses:?}"
        );
    }
}
