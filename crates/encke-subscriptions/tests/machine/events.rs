//! The events of pull-wake, and the streams that take them.

use encke_stream::{Command, Create, home};
use encke_subscriptions::{
    ReportKind, SubscriptionConfig, SubscriptionLimits, SubscriptionRequest,
};

use crate::asked::pull;
use crate::streams::{append, close, create, create_with, delete};
use crate::world::World;

const ACK: ReportKind = ReportKind::Ack;

fn events(world: &World) -> usize {
    world.streams.messages("wake/pool").len()
}

#[test]
fn an_event_waits_for_its_stream() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", pull("events/*"));
    world.write(create_with("events/a", 1));
    world.pass_and_settle(10_000);
    world.write(create("wake/pool"));
    assert_eq!(events(&world), 1);
    world.pass_and_settle(100_000);
    assert_eq!(events(&world), 1, "once");
    assert_eq!(world.must_claim("s", "w").generation, 1);
    // The same if the server was restarted in between.
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", pull("events/*"));
    world.write(create_with("events/a", 1));
    let mut world = world.restart();
    world.store(create("wake/pool"));
    let mut world = world.crash(0, false);
    world.settle();
    assert_eq!(events(&world), 1);
}

#[test]
fn a_claim_needs_no_event() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", pull("events/*"));
    world.write(create_with("events/a", 1));
    let held = world.must_claim("s", "w");
    world.write(create("wake/other"));
    let tail = world.tail("events/a");
    assert_eq!(
        world.report(ACK, &held, &[("events/a", tail)], true),
        Ok(false)
    );
}

#[test]
fn a_stream_that_refuses_events_is_tried_again() {
    let text = Command::Create(Create {
        content_type: Some("text/plain".into()),
        ..Create::new("wake/pool")
    });
    for refusing in [vec![create("wake/pool"), close("wake/pool")], vec![text]] {
        let mut world = World::new(SubscriptionLimits::default());
        for command in refusing {
            world.write(command);
        }
        world.must_create("s", pull("events/*"));
        world.write(create_with("events/a", 1));
        assert!(world.status("s").failed);
        let tried = world.machine.counts().events_refused;
        assert_eq!(tried, 1);
        world.pass_and_settle(10_000);
        let tried = world.machine.counts().events_refused;
        assert!((3..=5).contains(&tried), "{tried}");
        // Work can be done meanwhile, and a done wake does not wait for the next event.
        let held = world.must_claim("s", "w");
        let tail = world.tail("events/a");
        world.write(append("events/a"));
        assert_eq!(
            world.report(ACK, &held, &[("events/a", tail)], true),
            Ok(false)
        );
        assert_eq!(world.acked("s", "events/a"), tail);
        world.write(delete("wake/pool"));
        world.write(create("wake/pool"));
        assert_eq!(events(&world), 1);
        assert!(!world.status("s").failed);
    }
}

#[test]
fn an_event_that_is_gone_with_its_stream_is_written_again() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/pool"));
    world.must_create("s", pull("events/*"));
    world.write(create_with("events/a", 1));
    let first = world.streams.messages("wake/pool");
    world.write(delete("wake/pool"));
    world.write(create("wake/pool"));
    assert_eq!(world.streams.messages("wake/pool"), first);
    // Not for a wake that a worker has.
    let held = world.must_claim("s", "w");
    world.write(delete("wake/pool"));
    world.write(create("wake/pool"));
    assert_eq!(events(&world), 0);
    assert_eq!(world.report(ACK, &held, &[], false), Ok(false));
}

#[test]
fn subscriptions_that_watch_each_others_events_do_not_wake_each_other() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/a"));
    world.write(create("wake/b"));
    let config = |own: &str| SubscriptionConfig {
        pattern: Some("**".parse().unwrap()),
        ..SubscriptionConfig::pull_wake(own)
    };
    world.must_create("a", config("wake/a"));
    world.must_create("b", config("wake/b"));
    world.write(create_with("work", 1));
    for round in 1..=5 {
        let mut next_wakes = Vec::new();
        for id in ["a", "b"] {
            let held = world.must_claim(id, "w");
            let acks = [("work", world.tail("work"))];
            next_wakes.push(world.report(ACK, &held, &acks, true).unwrap());
        }
        assert_eq!(next_wakes, [false, false]);
        for name in ["wake/a", "wake/b"] {
            assert_eq!(world.streams.messages(name).len(), round);
        }
        if round < 5 {
            world.write(append("work"));
        }
    }
    // An append of a client to the stream of the other one is work.
    world.write(append("wake/b"));
    assert_eq!(world.streams.messages("wake/a").len(), 6);
    world.must_claim("a", "w");
}

#[test]
fn a_record_of_a_client_beside_an_event_is_not_missed() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/a"));
    let watches = SubscriptionConfig {
        streams: vec!["wake/a".into()],
        ..SubscriptionConfig::pull_wake("wake/b")
    };
    world.must_create("b", watches);
    let wakes = SubscriptionConfig {
        pattern: Some("work/*".parse().unwrap()),
        ..SubscriptionConfig::pull_wake("wake/a")
    };
    world.must_create("a", wakes);
    world.store(create_with("work/1", 1));
    world.report_changes(1);
    // The event of `a` is on its way when a client appends to the same stream.
    assert_eq!(world.queue.len(), 1);
    world.store(append("wake/a"));
    world.settle();
    let held = world.must_claim("b", "w");
    let tail = world.tail("wake/a");
    assert_eq!(
        world.report(ACK, &held, &[("wake/a", tail)], true),
        Ok(false)
    );
    // And the event alone is none.
    let held = world.must_claim("a", "w");
    let acks = [("work/1", world.tail("work/1"))];
    world.report(ACK, &held, &acks, true).unwrap();
    world.write(append("work/1"));
    assert_eq!(world.streams.messages("wake/a").len(), 3);
    assert!(world.claim("b", "w").is_err());
}

#[test]
fn several_subscriptions_share_a_stream_of_events() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/pool"));
    world.must_create("s", pull("events/*"));
    world.must_create("t", pull("events/**"));
    world.write(create_with("events/a", 1));
    let messages = world.streams.messages("wake/pool");
    let ids: Vec<_> = messages
        .iter()
        .map(|event| event["subscription_id"].clone())
        .collect();
    assert_eq!(ids, ["s", "t"]);
    world.ask(SubscriptionRequest::Delete {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
    });
    world.write(append("events/a"));
    let held = world.must_claim("t", "w");
    let acks = [("events/a", world.tail("events/a"))];
    world.report(ACK, &held, &acks, true).unwrap();
    world.write(append("events/a"));
    assert_eq!(world.streams.messages("wake/pool").len(), 3);
}

/// A name whose home is that log of two.
fn name_of_log(log: usize) -> String {
    let mut names = (0..).map(|number| format!("wake/{number}"));
    names.find(|name| home(name, 2) == log).unwrap()
}

#[test]
fn events_go_to_streams_of_other_logs() {
    for log in [0, 1] {
        let name = name_of_log(log);
        let mut world = World::with_logs(SubscriptionLimits::default(), 2);
        world.write(create(&name));
        let config = SubscriptionConfig {
            pattern: Some("events/*".parse().unwrap()),
            lease_ms: 1_000,
            ..SubscriptionConfig::pull_wake(&name)
        };
        world.must_create("s", config);
        world.write(create_with("events/a", 1));
        assert_eq!(world.streams.messages(&name).len(), 1, "log {log}");
        // It is not repeated by a restart.
        let mut world = world.restart();
        world.pass_and_settle(1_000);
        assert_eq!(world.streams.messages(&name).len(), 1, "log {log}");
        let held = world.must_claim("s", "w");
        world.write(append("events/a"));
        let acks = [("events/a", world.tail("events/a"))];
        world.report(ACK, &held, &acks, true).unwrap();
        world.write(append("events/a"));
        // Crashes at each step: the event comes at least once, and names a wake that exists.
        for kept in 0..4 {
            let mut crashed = World::with_logs(SubscriptionLimits::default(), 2);
            std::mem::swap(&mut crashed, &mut world);
            crashed.store(append("events/a"));
            crashed.report_changes(usize::MAX);
            world = crashed.crash(kept, false);
            world.settle();
            let last = world.streams.messages(&name).pop().unwrap();
            let held = world.must_claim("s", "w");
            assert_eq!(
                last["generation"], held.generation,
                "log {log}, kept {kept}"
            );
            let acks = [("events/a", world.tail("events/a"))];
            world.report(ACK, &held, &acks, true).unwrap();
            world.write(append("events/a"));
        }
    }
}

#[test]
fn an_event_is_not_lost_with_the_power() {
    // At a level that does not sync what clients append.
    let name = name_of_log(1);
    for seed in 0..20 {
        let mut world = World::with_seed(SubscriptionLimits::default(), 2, seed);
        world.write(create(&name));
        let config = SubscriptionConfig {
            pattern: Some("events/*".parse().unwrap()),
            ..SubscriptionConfig::pull_wake(&name)
        };
        world.must_create("s", config);
        world.write(create_with("events/a", 1));
        assert_eq!(world.streams.messages(&name).len(), 1);
        let world = world.crash(0, true);
        assert_eq!(world.streams.messages(&name).len(), 1, "seed {seed}");
    }
}

#[test]
fn subscriptions_that_share_a_stream_and_one_that_follows_it() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/pool"));
    for number in 0..100 {
        let pattern = if number % 2 == 0 { "**" } else { "events/*" };
        world.must_create(&number.to_string(), pull(pattern));
    }
    let follower = SubscriptionConfig {
        streams: vec!["wake/pool".into()],
        ..SubscriptionConfig::pull_wake("wake/other")
    };
    world.write(create("wake/other"));
    world.must_create("follower", follower);
    world.write(create_with("events/a", 1));
    assert_eq!(events(&world), 100);
    // The events are no news for it, and are done.
    assert_eq!(world.machine.counts().wakes, 100);
    assert_eq!(
        world.acked("follower", "wake/pool"),
        world.tail("wake/pool")
    );
    // A record of a client is.
    world.write(append("wake/pool"));
    assert_eq!(world.machine.counts().wakes, 101);
    assert_eq!(world.must_claim("follower", "w").generation, 1);
    // Another stream of the name is found by all of them.
    world.write(delete("wake/pool"));
    world.write(create("wake/pool"));
    assert_eq!(events(&world), 100);
}

#[test]
fn one_commit_with_more_events_than_any_bound() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/pool"));
    for number in 0..1_500 {
        world.must_create(&number.to_string(), pull("events/*"));
    }
    world.write(create("wake/other"));
    let follower = SubscriptionConfig {
        streams: vec!["wake/pool".into()],
        ..SubscriptionConfig::pull_wake("wake/other")
    };
    world.must_create("follower", follower);
    world.store(create_with("events/a", 1));
    world.report_changes(usize::MAX);
    // The outcomes of all commands of a batch come before its changes.
    world.commit_batch();
    world.settle();
    assert_eq!(events(&world), 1_500);
    assert_eq!(world.machine.counts().wakes, 1_500);
}
