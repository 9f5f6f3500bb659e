//! The journal: restarts, crashes, refusals of the log, and segments.

use encke_stream::{AckLevel, Offset};
use encke_subscriptions::{
    DeliveryResult, ReportKind, SubscriptionError, SubscriptionLimits, SubscriptionRequest,
    SubscriptionResponse,
};

use crate::asked::{claim, create as create_request, pull, report, webhook};
use crate::streams::{append, create, create_with};
use crate::world::World;

const ACK: ReportKind = ReportKind::Ack;

/// Limits with which the journal is rotated often, and snapshots have several records.
pub(crate) fn short_segments() -> SubscriptionLimits {
    SubscriptionLimits {
        segment_bytes: 1_000,
        record_bytes: 600,
        ..SubscriptionLimits::default()
    }
}

pub(crate) fn keys(world: &mut World) -> SubscriptionResponse {
    world.ask(SubscriptionRequest::Keys)
}

#[test]
fn a_server_without_subscriptions_writes_nothing() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create_with("events/a", 1));
    assert_eq!(keys(&mut world), SubscriptionResponse::Keys(Vec::new()));
    let refused = world.ask(SubscriptionRequest::Describe { id: "s".into() });
    assert_eq!(
        refused,
        SubscriptionResponse::Refused(SubscriptionError::NotFound)
    );
    assert_eq!(world.streams.segments(), 0);
    let mut world = world.restart();
    assert_eq!(keys(&mut world), SubscriptionResponse::Keys(Vec::new()));
}

#[test]
fn keys_survive_restarts_and_new_segments() {
    let mut world = World::new(short_segments());
    world.must_create("s", webhook("events/*"));
    let first = keys(&mut world);
    assert!(matches!(&first, SubscriptionResponse::Keys(keys) if keys.len() == 1));
    world.write(create("wake/pool"));
    world.must_create("p", pull("events/*"));
    world.write(create_with("events/a", 1));
    let held = world.must_claim("p", "w");
    for _ in 0..50 {
        world.report(ACK, &held, &[], false).unwrap();
    }
    let mut world = world.restart();
    assert_eq!(keys(&mut world), first);
    // The token of the claim is still good.
    assert_eq!(world.report(ACK, &held, &[], false), Ok(false));
}

#[test]
fn the_journal_is_synced_whatever_the_level_of_the_server() {
    let mut world = World::new(SubscriptionLimits::default());
    world.send(create_request("s", pull("events/*")));
    world.look_up();
    world.report_changes(usize::MAX);
    let mut created = 0;
    while let Some((_, command)) = world.queue.front() {
        if let encke_stream::Command::Create(create) = command {
            assert_eq!(create.ack, Some(AckLevel::Synced));
            created += 1;
        }
        world.commit(1);
    }
    assert_eq!(created, 2);
    // Nothing that was answered is lost with the power.
    let mut world = world.crash(0, true);
    assert_eq!(world.status("s").links, []);
}

#[test]
fn a_creation_counts_when_it_is_in_the_log() {
    // The registry, the first segment, its being current, and the subscription with its links.
    for kept in 0..5 {
        let mut world = World::new(short_segments());
        for number in 0..40 {
            world.write(create(&format!("events/{number}")));
        }
        let number = world.send(create_request("s", webhook("events/*")));
        world.look_up();
        world.report_changes(usize::MAX);
        for _ in 0..kept {
            world.commit(1);
        }
        let answered = world.responses.contains_key(&number);
        let mut world = world.crash(0, false);
        world.settle();
        let known = world.ask(SubscriptionRequest::Describe { id: "s".into() });
        match &known {
            SubscriptionResponse::Described(status) => {
                assert_eq!(status.links.len(), 40);
                assert!(status.links.iter().all(|link| link.acked == link.tail));
            }
            SubscriptionResponse::Refused(SubscriptionError::NotFound) => {
                assert!(!answered, "kept {kept}");
                world.must_create("s", webhook("events/*"));
            }
            response => panic!("{response:?}"),
        }
        world.write(append("events/7"));
        assert_eq!(world.called().generation, 1);
        assert!(world.streams.segments() <= 2);
    }
}

#[test]
fn a_crash_before_the_last_record_of_a_creation_leaves_nothing() {
    let mut world = World::new(SubscriptionLimits {
        record_bytes: 600,
        ..SubscriptionLimits::default()
    });
    world.must_create("first", webhook("other/*"));
    for number in 0..40 {
        world.write(create(&format!("events/{number}")));
    }
    world.send(create_request("s", webhook("events/*")));
    world.look_up();
    world.report_changes(usize::MAX);
    // Only the first records of the series are in the log.
    let Some((_, encke_stream::Command::Series(mut appends))) = world.queue.pop_front() else {
        panic!("{:?}", world.queue);
    };
    assert!(appends.len() > 3);
    appends.pop();
    let now = world.now();
    world
        .streams
        .commit(encke_stream::Command::Series(appends), now);
    let mut world = world.crash(0, false);
    world.settle();
    let known = world.ask(SubscriptionRequest::Describe { id: "s".into() });
    assert_eq!(
        known,
        SubscriptionResponse::Refused(SubscriptionError::NotFound)
    );
    assert!(!world.index.concerns("events/1"));
    assert_eq!(world.machine.counts().links, 0);
    world.must_create("s", webhook("events/*"));
    assert_eq!(world.status("s").links.len(), 40);
}

#[test]
fn an_acknowledgement_counts_when_it_is_in_the_log() {
    for kept in 0..2 {
        let mut world = World::new(SubscriptionLimits::default());
        world.write(create("wake/pool"));
        world.must_create("s", pull("events/*"));
        world.write(create_with("events/a", 1));
        let held = world.must_claim("s", "w");
        let tail = world.tail("events/a");
        let number = world.send(report(ACK, &held, &[("events/a", tail)], true));
        world.report_changes(usize::MAX);
        for _ in 0..kept {
            world.commit(1);
        }
        let answered = world.responses.contains_key(&number);
        assert_eq!(answered, kept == 1);
        let mut world = world.crash(0, false);
        world.settle();
        if answered {
            assert_eq!(world.acked("s", "events/a"), tail);
            assert_eq!(
                world.claim("s", "x").map(drop),
                Err(SubscriptionError::NoPendingWork)
            );
        } else {
            assert_eq!(world.acked("s", "events/a"), Offset::START);
            assert_eq!(
                world.report(ACK, &held, &[("events/a", tail)], true),
                Ok(false)
            );
        }
    }
}

#[test]
fn a_wake_is_in_the_log_before_anyone_learns_of_it() {
    let mut world = World::new(SubscriptionLimits::default());
    world.write(create("wake/pool"));
    world.must_create("hook", webhook("events/*"));
    world.must_create("pull", pull("events/*"));
    world.store(create_with("events/a", 1));
    world.report_changes(usize::MAX);
    assert_eq!(world.queue.len(), 2);
    assert!(world.calls.is_empty());
    assert_eq!(world.streams.messages("wake/pool").len(), 0);
    // A claim waits for it, too.
    let number = world.send(claim("pull", "w"));
    assert!(!world.responses.contains_key(&number));
    world.settle();
    assert_eq!(world.called().generation, 1);
    let SubscriptionResponse::Claimed(claimed) = &world.responses[&number] else {
        panic!("{:?}", world.responses);
    };
    assert_eq!(claimed.generation, 1);
}

#[test]
fn what_the_log_refuses_has_not_happened() {
    for overloaded in [false, true] {
        let error = match overloaded {
            true => SubscriptionError::Overloaded,
            false => SubscriptionError::Log(encke_stream::Refusal::NoSpace),
        };
        let refuse = |world: &mut World| match overloaded {
            true => world.overload(),
            false => world.refuse(),
        };
        let mut world = World::new(SubscriptionLimits::default());
        world.write(create("wake/pool"));
        let refused = |world: &mut World, request| {
            let number = world.send(request);
            world.look_up();
            world.report_changes(usize::MAX);
            refuse(world);
            assert_eq!(
                world.responses[&number],
                SubscriptionResponse::Refused(error.clone())
            );
        };
        // The journal itself.
        refused(&mut world, create_request("s", pull("events/*")));
        world.must_create("s", pull("events/*"));
        refused(&mut world, create_request("t", pull("events/*")));
        assert!(
            world.ask(SubscriptionRequest::Describe { id: "t".into() })
                == SubscriptionResponse::Refused(SubscriptionError::NotFound)
        );
        let links = vec!["manual/a".into(), "manual/b".into()];
        let link = SubscriptionRequest::Link {
            viewer: encke_stream::Viewer::All,
            id: "s".into(),
            streams: links,
        };
        refused(&mut world, link.clone());
        assert_eq!(world.links("s"), []);
        assert!(!world.index.concerns("manual/a"));
        world.ask(link);
        let unlink = SubscriptionRequest::Unlink {
            viewer: encke_stream::Viewer::All,
            id: "s".into(),
            stream: "manual/a".into(),
        };
        refused(&mut world, unlink);
        assert_eq!(world.links("s").len(), 2);
        // A wake is tried again by itself.
        world.pass_and_settle(1_000);
        world.store(create_with("events/a", 1));
        world.report_changes(usize::MAX);
        assert_eq!(world.queue.len(), 1);
        refuse(&mut world);
        assert!(world.queue.is_empty(), "not at once");
        assert_eq!(world.streams.messages("wake/pool").len(), 0);
        world.pass_and_settle(250);
        assert_eq!(world.streams.messages("wake/pool").len(), 1);
        refused(&mut world, claim("s", "w"));
        let held = world.must_claim("s", "w");
        let tail = world.tail("events/a");
        refused(&mut world, report(ACK, &held, &[("events/a", tail)], true));
        assert_eq!(world.acked("s", "events/a"), Offset::START);
        assert_eq!(
            world.report(ACK, &held, &[("events/a", tail)], true),
            Ok(false)
        );
        refused(
            &mut world,
            SubscriptionRequest::Delete {
                viewer: encke_stream::Viewer::All,
                id: "s".into(),
            },
        );
        assert_eq!(world.links("s").len(), 3);
        let mut world = world.restart();
        assert_eq!(world.acked("s", "events/a"), tail);
    }
}

#[test]
fn the_result_of_a_call_is_decided_again_if_the_log_refuses() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", webhook("events/*"));
    world.write(create_with("events/a", 1));
    world.respond(0, DeliveryResult::Done);
    world.refuse();
    world.settle();
    world.pass_and_settle(250);
    // It is not known any more that it was done; the wake is delivered again.
    assert_eq!(world.called().generation, 1);
    world.answer(DeliveryResult::Done);
    assert_eq!(world.acked("s", "events/a"), world.tail("events/a"));
}
