//! Commits that come while a request that begins or ends to follow their streams is under way.

use encke_stream::Offset;
use encke_subscriptions::{
    SubscriptionConfig, SubscriptionError, SubscriptionRequest, SubscriptionResponse,
};

use crate::asked::{create as create_request, pull};
use crate::links::{is_pending, named, world};
use crate::streams::{append, create_with, delete};

#[test]
fn what_is_committed_during_a_creation_is_not_missed() {
    for reported_first in [true, false] {
        let mut world = world();
        world.write(create_with("events/a", 1));
        let request = world.send(create_request("s", pull("events/*")));
        // Before the look-up: its tail has it, whether it was reported or not.
        world.store(append("events/a"));
        world.store(create_with("events/b", 1));
        if reported_first {
            world.report_changes(usize::MAX);
        }
        world.look_up();
        // Behind the look-up: it is pending.
        world.store(create_with("events/c", 1));
        let before = world.tail("events/a");
        world.store(append("events/a"));
        world.store(delete("events/b"));
        world.settle();
        assert!(world.responses.contains_key(&request));
        let expected = [
            ("events/a".to_owned(), false, before),
            ("events/c".to_owned(), false, Offset::START),
        ];
        assert_eq!(world.links("s"), expected);
        let held = world.must_claim("s", "w");
        assert_eq!(held.generation, 1);
    }
}

#[test]
fn a_commit_that_was_reported_for_another_subscription_is_verified() {
    for named in [false, true] {
        let mut world = world();
        world.must_create("other", pull("events/*"));
        // The commit is reported, and still on its way, when the other subscription goes. So the end of the stream is not reported.
        world.store(create_with("events/a", 1));
        let request = SubscriptionRequest::Delete {
            viewer: encke_stream::Viewer::All,
            id: "other".into(),
        };
        world.machine.request(world.now(), 1_000, request);
        world.flush();
        let (op, command) = world.queue.pop_front().unwrap();
        let (outcome, _) = world.streams.commit(command, world.now());
        world.machine.committed(world.now(), op, outcome);
        world.flush();
        assert!(!world.index.concerns("events/a"));
        world.store(delete("events/a"));
        let config = match named {
            true => self::named(&["events/a"]),
            false => pull("events/*"),
        };
        let number = world.send(create_request("s", config));
        assert_eq!(world.reports.len(), 1);
        world.settle();
        assert!(matches!(
            world.responses[&number],
            SubscriptionResponse::Created { existed: false, .. }
        ));
        let expected = match named {
            true => vec![("events/a".to_owned(), true, Offset::START)],
            false => Vec::new(),
        };
        assert_eq!(world.links("s"), expected);
        assert!(!is_pending(&mut world, "s"));
    }
}

#[test]
fn a_stream_that_ends_during_a_look_up_is_not_followed() {
    let mut world = world();
    world.write(create_with("events/a", 1));
    world.send(create_request("s", pull("events/*")));
    let state = world.streams.state("events/a").unwrap();
    // It is found, then it ends and another one gets its name, and only then the look-up is reported.
    world.store(delete("events/a"));
    world.store(create_with("events/a", 2));
    world.report_changes(usize::MAX);
    let new = world.streams.facts("events/a").unwrap().0;
    assert_ne!(new, state.no);
    world.look_ups.clear();
    world.machine.found(world.now(), 0, Ok(vec![state]));
    world.flush();
    world.settle();
    assert_eq!(world.acked("s", "events/a"), Offset::START);
    assert!(is_pending(&mut world, "s"), "the new one has a record");
}

#[test]
fn a_first_record_during_the_end_of_a_link_is_not_missed() {
    let mut world = world();
    let config = SubscriptionConfig {
        streams: vec!["events/a".into()],
        ..pull("events/*")
    };
    world.must_create("s", config);
    world.send(SubscriptionRequest::Unlink {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
        stream: "events/a".into(),
    });
    world.store(create_with("events/a", 1));
    world.settle();
    let expected = [("events/a".to_owned(), false, Offset::START)];
    assert_eq!(world.links("s"), expected);
    let mut world = world.restart();
    assert_eq!(world.links("s"), expected);
    assert!(is_pending(&mut world, "s"));
}

#[test]
fn requests_wait_for_a_creation() {
    let mut world = world();
    let create = world.send(create_request("s", pull("events/*")));
    let again = world.send(create_request("s", pull("events/*")));
    let other = world.send(create_request("s", pull("events/**")));
    let deleted = world.send(SubscriptionRequest::Delete {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
    });
    let missing = world.send(SubscriptionRequest::Describe { id: "s".into() });
    assert!(world.responses.is_empty());
    world.settle();
    let response = |number| &world.responses[&number];
    assert!(matches!(
        response(create),
        SubscriptionResponse::Created { existed: false, .. }
    ));
    assert!(matches!(
        response(again),
        SubscriptionResponse::Created { existed: true, .. }
    ));
    assert_eq!(
        *response(other),
        SubscriptionResponse::Refused(SubscriptionError::Exists)
    );
    assert_eq!(*response(deleted), SubscriptionResponse::Deleted);
    assert_eq!(
        *response(missing),
        SubscriptionResponse::Refused(SubscriptionError::NotFound)
    );
    assert!(
        !world.index.concerns("events/a"),
        "nothing is observed any more"
    );
}
