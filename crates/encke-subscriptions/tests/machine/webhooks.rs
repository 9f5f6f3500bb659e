//! Webhooks: calls, responses, callbacks, retries and leases.

use encke_subscriptions::{
    DeliveryResult, ReportKind, SubscriptionConfig, SubscriptionError, SubscriptionLimits,
    SubscriptionRequest, SubscriptionResponse,
};

use crate::asked::{ROOT, report, webhook};
use crate::streams::{append, create, create_with, delete};
use crate::world::World;

const CALLBACK: ReportKind = ReportKind::Callback;

/// A webhook that follows `events/*` with a lease of a second, and is called for `events/a`.
pub(crate) fn world() -> World {
    world_with(webhook("events/*"))
}

pub(crate) fn world_with(config: SubscriptionConfig) -> World {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", config);
    world.write(create_with("events/a", 1));
    world
}

pub(crate) fn long_lease() -> SubscriptionConfig {
    SubscriptionConfig {
        lease_ms: 600_000,
        ..webhook("events/*")
    }
}

#[test]
fn a_call_says_what_is_new() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create_with("events/old", 1));
    world.must_create("s", webhook("events/*"));
    world.write(create_with("events/a", 1));
    let call = world.call().clone();
    assert_eq!(&*call.url, "https://hook.example/a");
    assert_eq!(call.timeout.as_millis(), 1_000, "no longer than the lease");
    let notice = &call.notice;
    assert_eq!((&*notice.subscription, notice.generation), ("s", 1));
    assert_eq!(
        *notice.callback_url,
        format!("{ROOT}/__ds/subscriptions/s/callback")
    );
    let seen: Vec<_> = notice
        .links
        .iter()
        .map(|link| (&*link.stream, link.acked, link.tail, link.has_pending))
        .collect();
    let (old, new) = (world.tail("events/old"), world.tail("events/a"));
    let begin = encke_stream::Offset::START;
    assert_eq!(
        seen,
        [
            ("events/a", begin, new, true),
            ("events/old", old, old, false)
        ]
    );
    // It is signed with the key that is shown.
    let SubscriptionResponse::Keys(keys) = world.ask(SubscriptionRequest::Keys) else {
        panic!("no keys");
    };
    assert_eq!(keys, [call.key.public().clone()]);
    assert_eq!(world.status("s").kid, keys[0].kid);
}

#[test]
fn done_acknowledges_what_was_sent() {
    let mut world = world();
    let sent = world.tail("events/a");
    world.write(append("events/a"));
    assert_eq!(world.calls.len(), 1, "one call at a time");
    world.answer(DeliveryResult::Done);
    assert_eq!(world.acked("s", "events/a"), sent);
    // What came since is the next wake.
    assert_eq!(world.called().generation, 2);
    world.answer(DeliveryResult::Done);
    assert!(world.calls.is_empty());
    assert_eq!(world.acked("s", "events/a"), world.tail("events/a"));
}

#[test]
fn a_receiver_may_report_later() {
    let mut world = world();
    let called = world.called();
    world.answer(DeliveryResult::Accepted);
    let tail = world.tail("events/a");
    world.pass_and_settle(999);
    assert_eq!(world.report(CALLBACK, &called, &[], false), Ok(false));
    world.pass_and_settle(999);
    let done = world.report(CALLBACK, &called, &[("events/a", tail)], true);
    assert_eq!(done, Ok(false));
    assert_eq!(
        world.report(CALLBACK, &called, &[("events/a", tail)], true),
        Err(SubscriptionError::Fenced)
    );
    assert!(world.calls.is_empty());
    world.pass_and_settle(5_000);
    assert!(world.calls.is_empty());
}

#[test]
fn a_callback_may_come_before_the_response() {
    for result in [
        DeliveryResult::Done,
        DeliveryResult::Accepted,
        DeliveryResult::Failed("timeout".to_owned()),
    ] {
        let mut world = world();
        let called = world.called();
        let tail = world.tail("events/a");
        world.write(append("events/a"));
        let done = world.report(CALLBACK, &called, &[("events/a", tail)], true);
        assert_eq!(done, Ok(true), "the next wake");
        assert_eq!(world.called().generation, 1, "one call at a time");
        // The late response is of a wake that is over.
        let before = world.status("s");
        world.answer(result);
        assert_eq!(world.acked("s", "events/a"), tail);
        assert!(!before.failed && !world.status("s").failed);
        assert_eq!(world.called().generation, 2);
    }
}

#[test]
fn a_heartbeat_before_the_response_counts_as_delivered() {
    let mut world = world();
    let called = world.called();
    assert_eq!(world.report(CALLBACK, &called, &[], false), Ok(false));
    world.fail();
    assert!(!world.status("s").failed);
    world.pass_and_settle(999);
    assert!(world.calls.is_empty(), "the lease holds");
    world.pass_and_settle(1);
    assert_eq!(world.called().generation, 2);
}

#[test]
fn a_lease_without_a_report_ends_in_the_next_wake() {
    let mut world = world();
    let first = world.called();
    world.pass_and_settle(400);
    world.answer(DeliveryResult::Accepted);
    world.pass_and_settle(599);
    assert!(world.calls.is_empty());
    // It began with the call.
    world.pass_and_settle(1);
    let second = world.called();
    assert_eq!(second.generation, 2);
    assert_ne!(second.wake_id, first.wake_id);
    assert_eq!(
        world.report(CALLBACK, &first, &[], true),
        Err(SubscriptionError::Fenced)
    );
}

#[test]
fn a_lease_does_not_end_while_the_call_is_under_way() {
    let mut world = world();
    let called = world.called();
    world.pass_and_settle(5_000);
    assert_eq!(world.called().generation, 1);
    assert_eq!(world.report(CALLBACK, &called, &[], false), Ok(false));
    world.answer(DeliveryResult::Accepted);
    world.pass_and_settle(999);
    assert!(world.calls.is_empty());
    // Without a report it ends with the response.
    let mut world = self::world();
    world.pass_and_settle(5_000);
    world.answer(DeliveryResult::Accepted);
    assert_eq!(world.called().generation, 2);
}

#[test]
fn a_call_that_a_crash_interrupts_is_repeated() {
    let world = world_with(long_lease());
    let notice = world.call().notice.clone();
    let mut world = world.crash(0, false);
    world.settle();
    assert_eq!(world.call().notice, notice);
    world.answer(DeliveryResult::Accepted);
    let mut world = world.restart();
    assert!(world.calls.is_empty(), "it was delivered");
    world.pass_and_settle(599_000);
    assert!(world.calls.is_empty());
    world.pass_and_settle(2_000);
    assert_eq!(world.called().generation, 2);
}

#[test]
fn a_receiver_has_some_time_after_a_restart() {
    let mut world = world();
    let called = world.called();
    world.answer(DeliveryResult::Accepted);
    world.settle();
    world.now_ms += 50_000;
    let mut world = world.crash(0, false);
    world.settle();
    world.pass_and_settle(999);
    assert!(world.calls.is_empty());
    let tail = world.tail("events/a");
    assert_eq!(
        world.report(CALLBACK, &called, &[("events/a", tail)], true),
        Ok(false)
    );
}

#[test]
fn a_late_response_does_not_touch_a_new_subscription_of_the_id() {
    let mut world = world();
    let old = world.called();
    let gone = SubscriptionRequest::Delete {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
    };
    assert_eq!(world.ask(gone), SubscriptionResponse::Deleted);
    world.must_create("s", webhook("events/*"));
    world.write(append("events/a"));
    let before = world.acked("s", "events/a");
    assert_eq!(world.calls.len(), 2, "it is another subscription");
    world.respond(0, DeliveryResult::Done);
    world.settle();
    assert_eq!(world.acked("s", "events/a"), before);
    assert_eq!(world.called().generation, 1);
    assert_eq!(
        world.report(CALLBACK, &old, &[], true),
        Err(SubscriptionError::TokenInvalid)
    );
}

#[test]
fn a_callback_that_acknowledged_more_is_not_undone() {
    let mut world = world();
    let called = world.called();
    world.write(append("events/a"));
    let newest = world.tail("events/a");
    // More than the call has named, then its response comes.
    assert_eq!(
        world.report(CALLBACK, &called, &[("events/a", newest)], false),
        Ok(false)
    );
    world.answer(DeliveryResult::Done);
    assert_eq!(world.acked("s", "events/a"), newest);
    assert!(world.calls.is_empty());
}

#[test]
fn a_stream_that_is_replaced_during_a_call_is_not_acknowledged() {
    let named = SubscriptionConfig {
        streams: vec!["events/a".into()],
        pattern: None,
        ..webhook("x")
    };
    for config in [webhook("events/*"), named] {
        let mut world = world_with(config);
        world.write(delete("events/a"));
        world.write(create_with("events/a", 1));
        world.answer(DeliveryResult::Done);
        assert_eq!(world.acked("s", "events/a"), encke_stream::Offset::START);
        let notice = &world.call().notice;
        assert_eq!(notice.generation, 2);
        assert!(notice.links[0].has_pending);
    }
}

#[test]
fn a_receiver_that_does_not_respond_delays_no_other() {
    let limits = SubscriptionLimits {
        deliveries_max: 8,
        deliveries_to_receiver_max: 2,
        ..SubscriptionLimits::default()
    };
    let mut world = World::new(limits);
    let hook = |number: usize, host: &str| SubscriptionConfig {
        lease_ms: 600_000,
        pattern: Some(format!("{host}/*").parse().unwrap()),
        ..SubscriptionConfig::webhook(&format!("https://{host}.example/{number}"))
    };
    for number in 0..10 {
        world.must_create(&format!("dead-{number}"), hook(number, "dead"));
    }
    world.must_create("alive", hook(0, "alive"));
    world.write(create_with("dead/a", 1));
    assert_eq!(world.calls.len(), 2);
    world.write(create_with("alive/a", 1));
    let at = world
        .calls
        .iter()
        .position(|call| call.url.contains("alive"))
        .unwrap();
    world.respond(at, DeliveryResult::Done);
    world.settle();
    assert_eq!(world.acked("alive", "alive/a"), world.tail("alive/a"));
    // Each has its turn, one after the other.
    let mut called = Vec::new();
    while !world.calls.is_empty() {
        called.push(world.calls[0].notice.subscription.to_string());
        world.respond(0, DeliveryResult::Failed("timeout".to_owned()));
        world.settle();
    }
    let expected: Vec<_> = (0..10).map(|number| format!("dead-{number}")).collect();
    assert_eq!(called, expected);
}

#[test]
fn no_call_begins_once_the_server_stops() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", webhook("events/*"));
    world.write(create("events/a"));
    world.store(append("events/a"));
    let waiting = world.send(SubscriptionRequest::Link {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
        streams: vec!["x".into()],
    });
    let held = world.send(SubscriptionRequest::Describe { id: "s".into() });
    world.machine.stop();
    world.flush();
    let stopping = SubscriptionResponse::Refused(SubscriptionError::Stopping);
    for number in [waiting, held] {
        assert_eq!(world.responses[&number], stopping);
    }
    world.settle();
    assert!(world.calls.is_empty() && world.machine.is_idle());
    let late = world.send(report(
        CALLBACK,
        &crate::asked::Held {
            id: "s".to_owned(),
            wake_id: "w".into(),
            generation: 1,
            token: "t".into(),
        },
        &[],
        true,
    ));
    assert_eq!(world.responses[&late], stopping);
}

#[test]
fn a_start_at_an_earlier_time_of_day_prolongs_no_pause() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", webhook("events/*"));
    world.write(create_with("events/a", 1));
    world.respond(0, DeliveryResult::Failed("503".to_owned()));
    world.settle();
    world.wall_ahead_ms -= 3_600_000;
    let mut world = world.restart();
    assert!(world.calls.is_empty());
    world.pass_and_settle(60_000);
    assert_eq!(world.calls.len(), 1);
}
