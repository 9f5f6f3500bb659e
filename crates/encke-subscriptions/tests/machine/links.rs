//! What a subscription follows, and from where.

use encke_stream::{Append, Command, Create, CreateExtras, Data, Offset, Target, Viewer};
use encke_subscriptions::{
    SubscriptionConfig, SubscriptionError, SubscriptionLimits, SubscriptionRequest,
    SubscriptionResponse,
};

use crate::asked::pull;
use crate::streams::{append, create, create_with, delete, fork};
use crate::world::World;

pub(crate) fn world() -> World {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/pool"));
    world
}

fn link(world: &mut World, id: &str, streams: &[&str]) -> SubscriptionResponse {
    let streams = streams.iter().map(|name| (*name).into()).collect();
    world.ask(SubscriptionRequest::Link {
        viewer: encke_stream::Viewer::All,
        id: id.into(),
        streams,
    })
}

fn unlink(world: &mut World, id: &str, stream: &str) {
    let response = world.ask(SubscriptionRequest::Unlink {
        viewer: encke_stream::Viewer::All,
        id: id.into(),
        stream: stream.into(),
    });
    assert_eq!(response, SubscriptionResponse::LinksChanged);
}

pub(crate) fn named(streams: &[&str]) -> SubscriptionConfig {
    SubscriptionConfig {
        streams: streams.iter().map(|name| (*name).into()).collect(),
        lease_ms: 1_000,
        ..SubscriptionConfig::pull_wake("wake/pool")
    }
}

pub(crate) fn is_pending(world: &mut World, id: &str) -> bool {
    match world.claim(id, "w") {
        Ok(_) | Err(SubscriptionError::AlreadyClaimed { .. }) => true,
        Err(SubscriptionError::NoPendingWork) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn existing_streams_are_followed_from_their_tails() {
    let mut world = world();
    world.write(create_with("events/a", 2));
    world.write(create("events/empty"));
    world.write(create_with("events/a/b", 1));
    world.write(create_with("other", 1));
    world.must_create("s", pull("events/*"));
    let expected = [
        ("events/a".to_owned(), false, world.tail("events/a")),
        ("events/empty".to_owned(), false, world.tail("events/empty")),
    ];
    assert_eq!(world.links("s"), expected);
    assert!(!is_pending(&mut world, "s"), "no history is replayed");
    world.write(append("events/empty"));
    assert!(is_pending(&mut world, "s"));
}

#[test]
fn a_later_stream_is_followed_from_its_first_record_on() {
    let mut world = world();
    world.must_create("s", pull("events/**"));
    world.write(create("events/a"));
    assert_eq!(world.links("s"), [], "it has no record");
    world.write(create_with("events/b", 1));
    assert_eq!(
        world.links("s"),
        [("events/b".to_owned(), false, Offset::START)]
    );
    world.write(append("events/a"));
    assert_eq!(world.acked("s", "events/a"), Offset::START);
    assert!(is_pending(&mut world, "s"));
}

#[test]
fn a_fork_is_followed_from_where_it_leaves_its_source() {
    let mut world = world();
    world.write(create_with("source", 3));
    let divergence = world.tail("source");
    world.must_create("s", pull("forks/*"));
    world.write(fork("forks/empty", "source", 0));
    assert_eq!(world.links("s"), []);
    world.write(fork("forks/full", "source", 1));
    world.write(append("forks/empty"));
    for name in ["forks/empty", "forks/full"] {
        assert_eq!(world.acked("s", name), divergence, "{name}");
    }
    // The same after a restart, which has only the streams to go by.
    let mut world = world.crash(0, false);
    world.settle();
    for name in ["forks/empty", "forks/full"] {
        assert_eq!(world.acked("s", name), divergence, "{name}");
    }
}

#[test]
fn a_named_stream_need_not_exist() {
    let mut world = world();
    world.must_create("s", named(&["manual/a"]));
    assert_eq!(
        world.links("s"),
        [("manual/a".to_owned(), true, Offset::START)]
    );
    assert!(!is_pending(&mut world, "s"));
    world.write(create("manual/a"));
    assert!(!is_pending(&mut world, "s"), "an empty stream is no work");
    world.write(append("manual/a"));
    assert!(is_pending(&mut world, "s"));
}

#[test]
fn a_link_keeps_its_cursor_and_gets_both_types() {
    let mut world = world();
    world.must_create("s", pull("events/*"));
    world.write(create_with("events/a", 1));
    world.write(create_with("manual/b", 1));
    assert_eq!(
        link(&mut world, "s", &["events/a", "manual/b", "manual/c"]),
        SubscriptionResponse::LinksChanged
    );
    let expected = [
        ("events/a".to_owned(), true, Offset::START),
        ("manual/b".to_owned(), true, world.tail("manual/b")),
        ("manual/c".to_owned(), true, Offset::START),
    ];
    assert_eq!(world.links("s"), expected);
    // Again: nothing changes.
    assert_eq!(
        link(&mut world, "s", &["manual/b", "events/a"]),
        SubscriptionResponse::LinksChanged
    );
    assert_eq!(
        link(&mut world, "s", &[]),
        SubscriptionResponse::LinksChanged
    );
    assert_eq!(world.links("s"), expected);
    let mut world = world.restart();
    assert_eq!(world.links("s"), expected);
    // Its explicit type goes, and what the pattern includes stays.
    for stream in ["events/a", "manual/b", "manual/c", "never"] {
        unlink(&mut world, "s", stream);
    }
    let left = [("events/a".to_owned(), false, Offset::START)];
    assert_eq!(world.links("s"), left);
    world.write(append("manual/b"));
    world.write(create_with("manual/c", 1));
    assert_eq!(world.links("s"), left);
    let mut world = world.restart();
    assert_eq!(world.links("s"), left);
}

/// A subscription that follows one stream by its name and one by a pattern, and is done with the messages of both.
fn done_with_two_streams(messages: u32) -> World {
    let mut world = world();
    world.must_create(
        "s",
        SubscriptionConfig {
            streams: vec!["manual/a".into()],
            ..pull("events/*")
        },
    );
    world.write(create_with("manual/a", messages));
    world.write(create_with("events/b", messages));
    let held = world.must_claim("s", "w");
    let acks = [
        ("manual/a", world.tail("manual/a")),
        ("events/b", world.tail("events/b")),
    ];
    let kind = encke_subscriptions::ReportKind::Ack;
    world.report(kind, &held, &acks, true).unwrap();
    world
}

/// Both streams are followed from their begin.
fn assert_begun_anew(world: &mut World) {
    let expected = [
        ("events/b".to_owned(), false, Offset::START),
        ("manual/a".to_owned(), true, Offset::START),
    ];
    assert_eq!(world.links("s"), expected);
    assert!(is_pending(world, "s"));
}

#[test]
fn a_deleted_stream_leaves_its_name_if_that_was_given() {
    let mut world = done_with_two_streams(1);
    world.write(delete("manual/a"));
    world.write(delete("events/b"));
    let gone = [("manual/a".to_owned(), true, Offset::START)];
    assert_eq!(world.links("s"), gone);
    let mut world = world.restart();
    assert_eq!(world.links("s"), gone);
    // The next streams of the names begin anew.
    world.write(create_with("manual/a", 1));
    world.write(create_with("events/b", 1));
    assert_begun_anew(&mut world);
}

#[test]
fn a_name_that_is_given_again_while_the_server_is_down_begins_anew() {
    let mut world = done_with_two_streams(3);
    // Nothing of this is reported before the crash.
    for name in ["manual/a", "events/b"] {
        world.store(delete(name));
        world.store(create_with(name, 1));
    }
    let mut world = world.crash(0, false);
    world.settle();
    assert_begun_anew(&mut world);
}

#[test]
fn streams_of_others_are_not_followed() {
    let owned = |name: &str, owner: &str| {
        Command::Create(Create {
            content_type: Some("application/json".into()),
            data: Data {
                bytes: b"1".to_vec(),
                units: 1,
            },
            extras: CreateExtras {
                owner: Some(owner.into()),
                ..CreateExtras::default()
            },
            ..Create::new(name)
        })
    };
    let mut world = world();
    world.write(owned("events/old", "bob"));
    let config = SubscriptionConfig {
        viewer: Viewer::Of(Some("ann".into())),
        streams: vec!["manual/c".into()],
        ..pull("events/*")
    };
    world.must_create("s", config);
    world.write(owned("events/a", "ann"));
    world.write(owned("events/b", "bob"));
    world.write(owned("manual/c", "bob"));
    let seen = [
        ("events/a".to_owned(), false, Offset::START),
        ("manual/c".to_owned(), true, Offset::START),
    ];
    assert_eq!(world.links("s"), seen);
    let status = world.status("s");
    assert!(!status.links[1].has_pending, "as if it did not exist");
    let mut world = world.restart();
    assert_eq!(world.links("s"), seen);
    assert!(!world.status("s").links[1].has_pending);
}

#[test]
fn an_id_is_confirmed_by_the_same_configuration_only() {
    let mut world = world();
    let config = SubscriptionConfig {
        streams: vec!["a".into(), "b".into()],
        ..pull("events/*")
    };
    world.must_create("s", config.clone());
    world.write(create_with("events/a", 1));
    let before = world.status("s");
    let same = SubscriptionConfig {
        streams: vec!["/b".into(), "a/".into(), "b".into()],
        ..config.clone()
    };
    let confirmed = world.create("s", same.clone());
    let SubscriptionResponse::Created {
        existed: true,
        subscription,
    } = confirmed
    else {
        panic!("{confirmed:?}");
    };
    assert_eq!(*subscription, before);
    // Links that were changed later are not part of it.
    unlink(&mut world, "s", "a");
    let mut world = world.restart();
    assert!(matches!(
        world.create("s", same),
        SubscriptionResponse::Created { existed: true, .. }
    ));
    let other = SubscriptionConfig {
        lease_ms: 1_001,
        ..config
    };
    let refused = world.create("s", other.clone());
    assert_eq!(
        refused,
        SubscriptionResponse::Refused(SubscriptionError::Exists)
    );
    // Another id, and the same one after a deletion.
    world.must_create("t", other.clone());
    let gone = SubscriptionRequest::Delete {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
    };
    assert_eq!(world.ask(gone.clone()), SubscriptionResponse::Deleted);
    assert_eq!(world.ask(gone), SubscriptionResponse::Deleted);
    let missing = world.ask(SubscriptionRequest::Describe { id: "s".into() });
    assert_eq!(
        missing,
        SubscriptionResponse::Refused(SubscriptionError::NotFound)
    );
    world.must_create("s", other);
}

#[test]
fn a_subscription_does_not_follow_its_own_events() {
    let mut world = world();
    world.must_create("s", pull("**"));
    assert_eq!(world.links("s"), []);
    let refused = link(&mut world, "s", &["a", "wake/pool"]);
    let error = SubscriptionError::OwnWakeStream("wake/pool".into());
    assert_eq!(refused, SubscriptionResponse::Refused(error));
    world.write(create_with("a", 1));
    assert_eq!(world.streams.messages("wake/pool").len(), 1);
    assert_eq!(world.links("s").len(), 1);
}

#[test]
fn closing_a_stream_and_repetitions_are_no_work() {
    let mut world = world();
    world.write(create_with("events/a", 1));
    world.must_create("s", pull("events/*"));
    let close = Command::Append(Append {
        closes: true,
        ..Append::to(Target::Named("events/a".into()))
    });
    world.write(close);
    world.write(create_with("wake/other", 1));
    assert!(!is_pending(&mut world, "s"));
    assert!(world.streams.messages("wake/pool").is_empty());
}
