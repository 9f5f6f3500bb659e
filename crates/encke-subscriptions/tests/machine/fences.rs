//! What a report of a worker may not do.

use encke_stream::Offset;
use encke_subscriptions::{
    HELD_REQUESTS_MAX, ReportKind, StreamAck, SubscriptionConfig, SubscriptionError,
    SubscriptionRequest, SubscriptionResponse, WakeReport,
};

use crate::asked::{Held, pull, report, webhook};
use crate::pull::world;
use crate::streams::{append, create, create_with, fork};
use crate::world::World;

const ACK: ReportKind = ReportKind::Ack;
const RELEASE: ReportKind = ReportKind::Release;

#[test]
fn every_old_report_is_fenced() {
    let mut world = world();
    let first = world.must_claim("s", "w");
    let tail = world.tail("events/a");
    world.write(append("events/a"));
    world
        .report(ACK, &first, &[("events/a", tail)], true)
        .unwrap();
    let second = world.must_claim("s", "w");
    let fenced = Err(SubscriptionError::Fenced);
    for old in [
        first.clone(),
        Held {
            token: second.token.clone(),
            ..first.clone()
        },
        Held {
            generation: 2,
            ..first.clone()
        },
        Held {
            wake_id: second.wake_id.clone(),
            ..first.clone()
        },
        Held {
            wake_id: first.wake_id.clone(),
            ..second.clone()
        },
        Held {
            generation: 1,
            ..second.clone()
        },
        Held {
            generation: 3,
            ..second.clone()
        },
        Held {
            token: first.token.clone(),
            ..second.clone()
        },
    ] {
        let newest = world.tail("events/a");
        for kind in [ACK, RELEASE, ReportKind::Callback] {
            assert_eq!(
                world.report(kind, &old, &[("events/a", newest)], true),
                fenced
            );
        }
    }
    assert_eq!(
        world.acked("s", "events/a"),
        tail,
        "nothing was acknowledged"
    );
    // Missing members are of no wake, also once it is over.
    for is_over in [false, true] {
        for (wake_id, generation) in [
            (None, Some(2)),
            (Some(second.wake_id.clone()), None),
            (None, None),
        ] {
            let report = WakeReport {
                id: "s".into(),
                kind: ACK,
                token: second.token.clone(),
                wake_id,
                generation,
                acks: Vec::new(),
                done: true,
            };
            let response = world.ask(SubscriptionRequest::Report(report));
            assert_eq!(
                response,
                SubscriptionResponse::Refused(SubscriptionError::Fenced)
            );
        }
        if !is_over {
            world
                .report(ACK, &second, &[("events/a", world.tail("events/a"))], true)
                .unwrap();
        }
    }
}

#[test]
fn without_a_token_of_this_server_a_report_tells_and_holds_nothing() {
    let mut world = world();
    world.must_create("hook", webhook("events/*"));
    world.write(append("events/a"));
    let held = world.must_claim("s", "w");
    let invalid = Err(SubscriptionError::TokenInvalid);
    for id in ["s", "hook", "none"] {
        for token in ["x".into(), "A".repeat(43).into()] {
            let id = id.into();
            let forged = Held {
                id,
                token,
                ..held.clone()
            };
            assert_eq!(world.report(ACK, &forged, &[], true), invalid);
        }
    }
    // While a request is on its way to the log, others wait behind it, and these do not.
    world.send(SubscriptionRequest::Link {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
        streams: vec!["x".into()],
    });
    for _ in 0..2 * HELD_REQUESTS_MAX {
        let report = SubscriptionRequest::Report(WakeReport {
            id: "s".into(),
            kind: ACK,
            token: "x".into(),
            wake_id: None,
            generation: None,
            acks: Vec::new(),
            done: true,
        });
        let number = world.send(report);
        assert_eq!(
            world.responses[&number],
            SubscriptionResponse::Refused(SubscriptionError::TokenInvalid)
        );
    }
    let waiting = world.send(SubscriptionRequest::Describe { id: "s".into() });
    assert!(!world.responses.contains_key(&waiting));
}

#[test]
fn tokens_are_of_one_subscription() {
    let mut world = world();
    world.must_create("t", pull("events/*"));
    world.write(append("events/a"));
    let (s, t) = (world.must_claim("s", "w"), world.must_claim("t", "w"));
    let invalid = Err(SubscriptionError::TokenInvalid);
    for token in [
        t.token.clone(),
        "".into(),
        "x".into(),
        "A".repeat(43).into(),
    ] {
        let forged = Held { token, ..s.clone() };
        assert_eq!(world.report(ACK, &forged, &[], true), invalid);
    }
    // A new subscription of the id has other tokens.
    let create = |world: &mut World| world.must_create("s", pull("events/*"));
    assert_eq!(
        world.ask(SubscriptionRequest::Delete {
            viewer: encke_stream::Viewer::All,
            id: "s".into()
        }),
        SubscriptionResponse::Deleted
    );
    assert_eq!(
        world.report(ACK, &s, &[], true),
        Err(SubscriptionError::NotFound)
    );
    create(&mut world);
    world.write(append("events/a"));
    let new = world.must_claim("s", "w");
    assert_eq!(new.generation, s.generation);
    assert_ne!(new.wake_id, s.wake_id);
    assert_eq!(world.report(ACK, &s, &[], true), invalid);
    assert_eq!(world.report(ACK, &new, &[], false), Ok(false));
}

#[test]
fn acknowledgements_count_together_or_not_at_all() {
    let mut world = world();
    world.write(create_with("events/b", 1));
    world.write(create_with("source", 2));
    world.write(append("events/a"));
    let held = world.must_claim("s", "w");
    let (a, b) = (world.tail("events/a"), world.tail("events/b"));
    let beyond = Offset::behind(a.sequence + 1);
    let before = world.acked("s", "events/a");
    let links = world.links("s");
    for (stream, offset) in [
        ("events/a", beyond),
        ("events/a", Offset::behind(before.sequence - 1)),
        ("events/a", Offset::START),
        ("source", world.tail("source")),
        ("missing", a),
    ] {
        world.pass_and_settle(100);
        let acks = [("events/b", b), (stream, offset)];
        let refused = world.report(ACK, &held, &acks, false);
        assert_eq!(
            refused,
            Err(SubscriptionError::InvalidOffset(stream.into()))
        );
        assert_eq!(world.links("s"), links);
    }
    for offset in ["-1", "now", "", "0000000000000001_00000000000000zz"] {
        let mut request = report(ACK, &held, &[("events/b", b)], false);
        if let SubscriptionRequest::Report(report) = &mut request {
            report.acks.push(StreamAck {
                stream: "/events/a".into(),
                offset: offset.into(),
            });
        }
        let error = SubscriptionError::InvalidOffset("/events/a".into());
        assert_eq!(world.ask(request), SubscriptionResponse::Refused(error));
        assert_eq!(world.links("s"), links);
    }
    // None of them has extended the lease.
    world.pass_and_settle(499);
    // A repetition, the cursor itself, and names with slashes are good.
    let acks = [
        ("/events/a/", before),
        ("events/a", a),
        ("events/a", before),
        ("events/b", b),
    ];
    assert_eq!(world.report(ACK, &held, &acks, true), Ok(false));
    assert_eq!(
        (world.acked("s", "events/a"), world.acked("s", "events/b")),
        (a, b)
    );
}

#[test]
fn positions_that_no_read_gives_are_refused() {
    let mut world = world();
    world.write(create_with("source", 2));
    world.must_create(
        "f",
        SubscriptionConfig {
            lease_ms: 600_000,
            ..pull("forks/*")
        },
    );
    for name in ["x", "y"] {
        world.write(create(name));
    }
    world.write(fork("forks/a", "source", 0));
    world.write(append("source"));
    world.write(append("source"));
    world.write(append("forks/a"));
    let held = world.must_claim("f", "w");
    let divergence = world.acked("f", "forks/a");
    let tail = world.tail("forks/a");
    let between = Offset::behind(divergence.sequence + 1);
    assert!(between < tail);
    let refused = world.report(ACK, &held, &[("forks/a", between)], false);
    assert_eq!(
        refused,
        Err(SubscriptionError::InvalidOffset("forks/a".into()))
    );
    for offset in [divergence, tail] {
        assert_eq!(
            world.report(ACK, &held, &[("forks/a", offset)], false),
            Ok(false)
        );
    }
}

#[test]
fn a_release_is_no_acknowledgement() {
    let mut world = world();
    let held = world.must_claim("s", "w");
    let before = world.acked("s", "events/a");
    let mut request = report(
        RELEASE,
        &held,
        &[("events/a", world.tail("events/a"))],
        true,
    );
    assert_eq!(world.ask(request.clone()), SubscriptionResponse::Released);
    assert_eq!(world.acked("s", "events/a"), before);
    assert_eq!(
        world.streams.messages("wake/pool").len(),
        2,
        "the next wake"
    );
    assert_eq!(
        world.ask(request.clone()),
        SubscriptionResponse::Refused(SubscriptionError::Fenced)
    );
    if let SubscriptionRequest::Report(report) = &mut request {
        report.id = "missing".into();
    }
    assert_eq!(
        world.ask(request),
        SubscriptionResponse::Refused(SubscriptionError::NotFound)
    );
}

#[test]
fn each_request_is_for_its_type() {
    let mut world = world();
    world.must_create("hook", webhook("events/*"));
    world.write(append("events/a"));
    let called = world.called();
    let wrong = Err(SubscriptionError::WrongType);
    assert_eq!(
        world.claim("hook", "w").map(drop),
        Err(SubscriptionError::WrongType)
    );
    for kind in [ACK, RELEASE] {
        assert_eq!(world.report(kind, &called, &[], true), wrong);
    }
    let held = world.must_claim("s", "w");
    assert_eq!(
        world.report(ReportKind::Callback, &held, &[], false),
        Ok(false)
    );
}
