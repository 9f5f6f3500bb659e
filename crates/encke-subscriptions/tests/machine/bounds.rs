//! Every bound, reached.

use encke_subscriptions::{
    AllowedAddresses, BadWebhookUrl, CATCH_UPS_MAX, HELD_REQUESTS_MAX, LINK_NAME_BYTES,
    STREAM_NAME_BYTES_MAX, SubscriptionConfig, SubscriptionError, SubscriptionLimits,
    SubscriptionRequest, SubscriptionResponse, WORKER_BYTES_MAX,
};

use crate::asked::{claim, create as create_request, pull, webhook};
use crate::streams::{append, create, create_with, delete};
use crate::world::World;

fn refused(response: SubscriptionResponse) -> SubscriptionError {
    match response {
        SubscriptionResponse::Refused(error) => error,
        response => panic!("{response:?}"),
    }
}

fn link(id: &str, streams: &[&str]) -> SubscriptionRequest {
    SubscriptionRequest::Link {
        viewer: encke_stream::Viewer::All,
        id: id.into(),
        streams: streams.iter().map(|name| (*name).into()).collect(),
    }
}

fn named(streams: &[&str]) -> SubscriptionConfig {
    SubscriptionConfig {
        pattern: None,
        streams: streams.iter().map(|name| (*name).into()).collect(),
        ..pull("x")
    }
}

#[test]
fn subscriptions() {
    let mut world = World::new(SubscriptionLimits {
        subscriptions_max: 2,
        ..SubscriptionLimits::default()
    });
    world.must_create("a", pull("x/*"));
    // One that is being created counts.
    let second = world.send(create_request("b", pull("x/*")));
    let third = world.send(create_request("c", pull("x/*")));
    world.settle();
    assert!(matches!(
        world.responses[&second],
        SubscriptionResponse::Created { .. }
    ));
    let error = SubscriptionError::TooManySubscriptions(2);
    assert_eq!(refused(world.responses[&third].clone()), error);
    let mut world = world.restart();
    assert_eq!(refused(world.create("c", pull("x/*"))), error);
    // One that exists is confirmed, and a deleted one makes room.
    assert!(matches!(
        world.create("a", pull("x/*")),
        SubscriptionResponse::Created { existed: true, .. }
    ));
    world.ask(SubscriptionRequest::Delete {
        viewer: encke_stream::Viewer::All,
        id: "a".into(),
    });
    world.must_create("c", pull("x/*"));
}

#[test]
fn links_of_a_subscription() {
    let mut world = World::new(SubscriptionLimits {
        links_max: 3,
        ..SubscriptionLimits::default()
    });
    world.write(create("wake/pool"));
    let error = SubscriptionError::TooManyLinks(3);
    assert_eq!(
        refused(world.create("s", named(&["a", "b", "c", "d"]))),
        error
    );
    for number in 0..4 {
        world.write(create(&format!("many/{number}")));
    }
    assert_eq!(refused(world.create("s", pull("many/*"))), error);
    let both = SubscriptionConfig {
        streams: vec!["a".into()],
        ..pull("many/*")
    };
    world.write(delete("many/3"));
    assert_eq!(refused(world.create("s", both)), error);
    assert!(!world.index.concerns("many/0"), "nothing is left of it");
    world.must_create(
        "s",
        SubscriptionConfig {
            streams: vec!["a".into()],
            ..pull("few/*")
        },
    );
    world.write(create_with("few/1", 1));
    assert_eq!(refused(world.ask(link("s", &["b", "c"]))), error);
    assert_eq!(
        world.ask(link("s", &["a", "b", "few/1"])),
        SubscriptionResponse::LinksChanged
    );
    // A stream that finds no room is followed when there is some.
    world.write(create_with("few/2", 1));
    assert_eq!(world.status("s").links.len(), 3);
    assert_eq!(world.machine.counts().links_refused, 1);
    let mut world = world.restart();
    assert_eq!(world.status("s").links.len(), 3);
    let unlink = SubscriptionRequest::Unlink {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
        stream: "b".into(),
    };
    assert_eq!(world.ask(unlink), SubscriptionResponse::LinksChanged);
    world.write(crate::streams::append("few/2"));
    let links = world.links("s");
    assert_eq!((links.len(), &*links[2].0), (3, "few/2"));
}

#[test]
fn links_in_all() {
    let mut world = World::new(SubscriptionLimits {
        links_in_all_max: 5,
        ..SubscriptionLimits::default()
    });
    world.must_create("s", named(&["a", "b", "c"]));
    let error = SubscriptionError::TooManyLinksInAll(5);
    assert_eq!(refused(world.create("t", named(&["a", "b", "c"]))), error);
    for number in 0..3 {
        world.write(create(&format!("many/{number}")));
    }
    assert_eq!(refused(world.create("t", pull("many/*"))), error);
    world.must_create(
        "t",
        SubscriptionConfig {
            streams: vec!["a".into()],
            ..pull("few/*")
        },
    );
    assert_eq!(refused(world.ask(link("t", &["b", "c"]))), error);
    world.write(create_with("few/1", 1));
    world.write(create_with("few/2", 1));
    assert_eq!(world.machine.counts().links, 5);
    assert_eq!(world.machine.counts().links_refused, 1);
    let mut world = world.restart();
    assert_eq!(world.machine.counts().links, 5);
    world.ask(SubscriptionRequest::Delete {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
    });
    assert_eq!(world.machine.counts().links, 2);
}

#[test]
fn links_with_long_names() {
    let mut world = World::new(SubscriptionLimits {
        links_max: 4,
        links_in_all_max: 5,
        ..SubscriptionLimits::default()
    });
    world.write(create("wake/pool"));
    let (once, twice) = ("a".repeat(LINK_NAME_BYTES), "b".repeat(LINK_NAME_BYTES + 1));
    let longest = "l".repeat(STREAM_NAME_BYTES_MAX);
    assert_eq!(
        refused(world.create("s", named(&[&longest]))),
        SubscriptionError::TooManyLinks(4)
    );
    world.must_create(
        "s",
        SubscriptionConfig {
            streams: vec![once.as_str().into(), twice.as_str().into()],
            ..pull("few/*")
        },
    );
    assert_eq!(world.machine.counts().links, 3);
    let more = "c".repeat(2 * LINK_NAME_BYTES);
    assert_eq!(
        refused(world.ask(link("s", &[&more]))),
        SubscriptionError::TooManyLinks(4)
    );
    // The same for a stream that the pattern matches, and for all subscriptions together.
    let matched = format!("few/{more}");
    world.write(create_with(&matched, 1));
    assert_eq!(world.machine.counts().links_refused, 1);
    assert_eq!(
        refused(world.create("t", named(&[&longest[..3 * LINK_NAME_BYTES]]))),
        SubscriptionError::TooManyLinksInAll(5)
    );
    world.must_create("t", named(&["x", "y"]));
    // What a start finds counts the same.
    let mut world = world.restart();
    assert_eq!(world.machine.counts().links, 5);
    assert_eq!(world.machine.counts().links_refused, 1);
    let unlink = SubscriptionRequest::Unlink {
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
        stream: twice.as_str().into(),
    };
    assert_eq!(world.ask(unlink), SubscriptionResponse::LinksChanged);
    assert_eq!(world.machine.counts().links, 3);
    assert_eq!(
        world.ask(link("s", &[&more])),
        SubscriptionResponse::LinksChanged
    );
    assert_eq!(world.machine.counts().links, 5);
    for id in ["s", "t"] {
        world.ask(SubscriptionRequest::Delete {
            viewer: encke_stream::Viewer::All,
            id: id.into(),
        });
    }
    assert_eq!(world.machine.counts().links, 0);
}

#[test]
fn requests_that_wait_for_a_subscription() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", pull("x/*"));
    world.send(link("s", &["a"]));
    let describe = || SubscriptionRequest::Describe { id: "s".into() };
    let held: Vec<_> = (0..HELD_REQUESTS_MAX)
        .map(|_| world.send(describe()))
        .collect();
    let last = world.send(describe());
    assert_eq!(
        refused(world.responses[&last].clone()),
        SubscriptionError::Overloaded
    );
    world.settle();
    for number in held {
        assert!(matches!(
            world.responses[&number],
            SubscriptionResponse::Described(_)
        ));
    }
}

#[test]
fn requests_that_wait_for_what_was_acknowledged_before() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", pull("x/*"));
    // Without a driver that answers.
    for number in 0..=CATCH_UPS_MAX as u64 {
        world
            .machine
            .request(world.now(), 1_000 + number, claim("s", "w"));
    }
    let effects = world.machine.take_effects();
    assert_eq!(effects.len(), CATCH_UPS_MAX + 1);
    let overloaded = effects.iter().filter(|effect| {
        matches!(
            effect,
            encke_subscriptions::SubscriptionEffect::Respond {
                response: SubscriptionResponse::Refused(SubscriptionError::Overloaded),
                ..
            }
        )
    });
    assert_eq!(overloaded.count(), 1);
}

#[test]
fn names_of_workers() {
    let mut world = World::new(SubscriptionLimits::default());
    world.must_create("s", pull("x/*"));
    let longest = "w".repeat(WORKER_BYTES_MAX);
    for worker in ["", &format!("{longest}w")] {
        let error = refused(world.ask(claim("s", worker)));
        assert_eq!(error, SubscriptionError::BadWorker);
    }
    let error = refused(world.ask(claim("s", &longest)));
    assert_eq!(error, SubscriptionError::NoPendingWork);
}

#[test]
fn calls_at_a_time() {
    let mut world = World::new(SubscriptionLimits {
        deliveries_max: 3,
        ..SubscriptionLimits::default()
    });
    for number in 0..10 {
        let url = format!("https://hook-{number}.example/");
        let config = SubscriptionConfig {
            lease_ms: 600_000,
            pattern: Some("events/*".parse().unwrap()),
            ..SubscriptionConfig::webhook(&url)
        };
        world.must_create(&number.to_string(), config);
    }
    world.write(create_with("events/a", 1));
    // The world asserts that there are never more. New receivers have half of the places.
    assert_eq!(world.calls.len(), 2);
    assert_eq!(world.machine.counts().calling, 2);
    let mut called = 0;
    while !world.calls.is_empty() {
        called += 1;
        world.respond(0, encke_subscriptions::DeliveryResult::Done);
        world.settle();
    }
    assert_eq!(called, 10);
    // All of them have responded at once.
    world.write(append("events/a"));
    assert_eq!(world.calls.len(), 3);
}

#[test]
fn a_server_that_calls_no_webhooks() {
    let mut world = World::new(SubscriptionLimits {
        deliveries_max: 0,
        ..SubscriptionLimits::default()
    });
    let error = refused(world.create("s", webhook("x/*")));
    assert_eq!(error, SubscriptionError::NoWebhooks);
    world.must_create("s", pull("x/*"));
}

#[test]
fn urls_are_checked_for_new_subscriptions_only() {
    let local = SubscriptionConfig {
        pattern: Some("x/*".parse().unwrap()),
        ..SubscriptionConfig::webhook("http://127.0.0.1:8080/hook")
    };
    let mut world = World::new(SubscriptionLimits::default());
    let error = SubscriptionError::Webhook(BadWebhookUrl::PrivateAddress);
    assert_eq!(refused(world.create("s", local.clone())), error);
    world.must_create("s", pull("x/*"));
    let exists = refused(world.create("s", local.clone()));
    assert_eq!(exists, SubscriptionError::Exists);
    let mut world = World::new(SubscriptionLimits {
        allowed_addresses: AllowedAddresses {
            networks: vec!["127.0.0.0/8".parse().unwrap()],
        },
        ..SubscriptionLimits::default()
    });
    world.must_create("s", local);
}

#[test]
fn records_with_the_longest_names() {
    // The world asserts that no record is longer than it may be.
    let mut world = World::new(SubscriptionLimits {
        record_bytes: 16 << 10,
        ..SubscriptionLimits::default()
    });
    let long = |letter: &str, bytes: usize| letter.repeat(bytes);
    let id = long("i", encke_subscriptions::ID_BYTES_MAX);
    let streams: Vec<Box<str>> = (0..300)
        .map(|number| format!("{number:03}/{}", long("s", 1_020)).into())
        .collect();
    let url = format!("https://hook.example/{}", long("u", 2_000));
    let config = SubscriptionConfig {
        streams: streams.clone(),
        description: Some(long("d", 1_024).into()),
        wake_stream: Some(long("w", 1_024).into()),
        ..SubscriptionConfig::webhook(&url)
    };
    world.must_create(&id, config);
    for stream in &streams {
        world.write(create_with(stream, 1));
    }
    assert_eq!(world.call().notice.links.len(), 300);
    let mut world = world.restart();
    assert_eq!(world.status(&id).links.len(), 300);
    assert_eq!(world.call().notice.links.len(), 300);
}
