//! Segments of the journal: a new one begins with the state of all subscriptions.

use std::collections::BTreeMap;

use encke_subscriptions::{ReportKind, SubscriptionConfig, SubscriptionError};

use crate::asked::{Held, pull, report, webhook};
use crate::journal::{keys, short_segments};
use crate::streams::{append, create, create_with};
use crate::world::World;

const ACK: ReportKind = ReportKind::Ack;

/// What a restart must bring back.
fn state(world: &mut World) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for id in ["hook", "pull", "named"] {
        state.insert(id.to_owned(), format!("{:?}", world.status(id)));
    }
    state.insert("keys".to_owned(), format!("{:?}", keys(world)));
    state
}

#[test]
fn a_rotated_journal_has_everything() {
    let mut world = World::new(short_segments());
    world.write(create("wake/pool"));
    let long_lease = SubscriptionConfig {
        lease_ms: 600_000,
        ..pull("events/**")
    };
    world.must_create(
        "hook",
        SubscriptionConfig {
            lease_ms: 600_000,
            ..webhook("events/*")
        },
    );
    world.must_create("pull", long_lease.clone());
    let named = SubscriptionConfig {
        streams: vec!["manual/a".into(), "events/3".into()],
        pattern: None,
        description: Some("by name".into()),
        ..long_lease
    };
    world.must_create("named", named);
    for number in 0..30 {
        world.write(create_with(&format!("events/{number}"), 1));
    }
    let notice = world.call().notice.clone();
    world.fail();
    let held = world.must_claim("pull", "w");
    for number in 0..30 {
        let name = format!("events/{number}");
        let acks = [(&*name, world.tail(&name))];
        world.report(ACK, &held, &acks, false).unwrap();
        world.write(append(&name));
    }
    let segments = world.streams.names().len();
    assert_eq!(world.streams.segments(), 1, "{segments} streams");
    assert!(
        world.streams.views.find("\u{1}subscriptions/0").is_none(),
        "it was rotated"
    );
    let before = state(&mut world);
    let mut world = world.restart();
    assert_eq!(state(&mut world), before);
    world.pass_and_settle(1_300);
    // The same wake with what it had found, not with what came since.
    assert_eq!(world.call().notice, notice);
    let mut world = world.restart();
    assert_eq!(world.report(ACK, &held, &[], false), Ok(false));
    let refused = world.claim("pull", "x").map(drop);
    assert!(matches!(
        refused,
        Err(SubscriptionError::AlreadyClaimed { generation: 1, .. })
    ));
}

/// A subscription with one stream whose wake a worker has for ten minutes.
fn claimed() -> (World, Held) {
    let mut world = World::new(short_segments());
    world.write(create("wake/pool"));
    world.must_create(
        "s",
        SubscriptionConfig {
            lease_ms: 600_000,
            ..pull("events/*")
        },
    );
    world.write(create_with("events/a", 1));
    let held = world.must_claim("s", "w");
    (world, held)
}

#[test]
fn no_decision_is_lost_when_a_segment_begins() {
    let (mut world, held) = claimed();
    let mut rotated = 0;
    for _ in 0..60 {
        let segment = world.streams.segment();
        world.write(append("events/a"));
        let tail = world.tail("events/a");
        // Each could be the one that makes the segment long.
        let acks = [("events/a", tail)];
        world.report(ACK, &held, &acks, false).unwrap();
        rotated += u32::from(world.streams.segment() != segment);
        world = world.restart();
        assert_eq!(world.acked("s", "events/a"), tail);
    }
    assert!(rotated > 0, "no segment was begun");
}

#[test]
fn segments_that_crash_after_crash_leaves_are_deleted() {
    let (mut world, held) = claimed();
    let mut begun = 0;
    for round in 0..30 {
        for _ in 0..100 {
            world.send(report(ACK, &held, &[], false));
            world.commit(1);
            if world.streams.segments() > 1 {
                begun += 1;
                break;
            }
        }
        // At each step of a rotation, and of the deletion behind it.
        for _ in 0..round % 4 {
            world.commit(1);
        }
        world = world.crash(0, false);
        world.settle();
        assert_eq!(
            world.report(ACK, &held, &[], false),
            Ok(false),
            "round {round}"
        );
        world.pass_and_settle(6_000);
        assert_eq!(world.streams.segments(), 1, "round {round}");
    }
    assert!(begun >= 20, "only {begun} were begun");
}
