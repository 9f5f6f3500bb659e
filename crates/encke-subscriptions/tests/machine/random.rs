//! Random clients, workers, receivers, refusals of the log, crashes and power cuts, against the naive model.

use std::collections::BTreeSet;

use encke_stream::Offset;
use encke_subscriptions::{
    DeliveryResult, ReportKind, SubscriptionConfig, SubscriptionLimits, SubscriptionRequest,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::asked::{claim, create as create_request, report};
use crate::model::Model;
use crate::streams::{append, create, create_with, delete, fork};
use crate::world::World;

#[derive(Clone, Debug)]
enum Step {
    Append(u8),
    Create(u8, bool),
    Fork(u8),
    Delete(u8),
    Subscribe(u8),
    Unsubscribe(u8),
    Link(u8, u8),
    Unlink(u8, u8),
    Claim(u8),
    /// A report of the worker that has the wake, or of one that had another one.
    Report {
        of: u8,
        is_old: bool,
        acks: u8,
        done: bool,
        release: bool,
    },
    Respond(u8, u8),
    Pass(u16),
    Changes(u8),
    LookUp,
    Commit(u8),
    Refuse(bool),
    Settle,
    Crash {
        kept: u8,
        cut_power: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let report = (
        any::<u8>(),
        prop::bool::weighted(0.3),
        any::<u8>(),
        any::<bool>(),
        prop::bool::weighted(0.2),
    );
    prop_oneof![
        8 => any::<u8>().prop_map(Step::Append),
        4 => any::<(u8, bool)>().prop_map(|(name, full)| Step::Create(name, full)),
        1 => any::<u8>().prop_map(Step::Fork),
        2 => any::<u8>().prop_map(Step::Delete),
        3 => any::<u8>().prop_map(Step::Subscribe),
        1 => any::<u8>().prop_map(Step::Unsubscribe),
        1 => any::<(u8, u8)>().prop_map(|(id, name)| Step::Link(id, name)),
        1 => any::<(u8, u8)>().prop_map(|(id, name)| Step::Unlink(id, name)),
        5 => any::<u8>().prop_map(Step::Claim),
        8 => report.prop_map(|(of, is_old, acks, done, release)| Step::Report { of, is_old, acks, done, release }),
        6 => any::<(u8, u8)>().prop_map(|(at, result)| Step::Respond(at, result)),
        4 => (0..1_500_u16).prop_map(Step::Pass),
        4 => (0..4_u8).prop_map(Step::Changes),
        3 => Just(Step::LookUp),
        8 => (0..4_u8).prop_map(Step::Commit),
        1 => any::<bool>().prop_map(Step::Refuse),
        4 => Just(Step::Settle),
        1 => (0..4_u8, any::<bool>()).prop_map(|(kept, cut_power)| Step::Crash { kept, cut_power }),
    ]
}

const NAMES: [&str; 8] = [
    "events/a",
    "events/b",
    "events/c/d",
    "manual/a",
    "manual/b",
    "wake/a",
    "wake/b",
    "other",
];

/// The subscriptions that there may be.
fn subscriptions() -> Vec<(&'static str, SubscriptionConfig)> {
    let with = |pattern: &str, streams: &[&str], config: SubscriptionConfig| SubscriptionConfig {
        pattern: (!pattern.is_empty()).then(|| pattern.parse().unwrap()),
        streams: streams.iter().map(|name| (*name).into()).collect(),
        lease_ms: 1_000,
        ..config
    };
    let hook = |number| SubscriptionConfig::webhook(&format!("https://hook.example/{number}"));
    let pull = SubscriptionConfig::pull_wake;
    vec![
        ("hook-1", with("events/*", &["manual/a"], hook(1))),
        ("hook-2", with("**", &[], hook(2))),
        ("pull-1", with("events/**", &["manual/b"], pull("wake/a"))),
        ("pull-2", with("**", &[], pull("wake/b"))),
        ("pull-3", with("", &["events/a", "wake/a"], pull("wake/b"))),
    ]
}

struct Run {
    world: World,
    model: Model,
}

impl Run {
    fn new(limits: SubscriptionLimits, logs: usize, seed: u64) -> Run {
        let mut world = World::with_seed(limits, logs, seed);
        world.write(create("wake/a"));
        world.write(create("events/a"));
        Run {
            world,
            model: Model::default(),
        }
    }

    fn take(mut self, step: Step) -> Run {
        let all = subscriptions();
        let subscription = |number: u8| &all[usize::from(number) % all.len()];
        let id = |number: u8| subscription(number).0;
        let name = |number: u8| NAMES[usize::from(number) % NAMES.len()];
        let Run { world, model } = &mut self;
        match step {
            Step::Append(number) => drop(world.store(append(name(number)))),
            Step::Create(number, true) => drop(world.store(create_with(name(number), 1))),
            Step::Create(number, false) => drop(world.store(create(name(number)))),
            Step::Fork(number) => {
                let command = fork(name(number), name(number / 8), u32::from(number % 2));
                drop(world.store(command));
            }
            Step::Delete(number) => drop(world.store(delete(name(number)))),
            Step::Subscribe(number) => {
                let (id, config) = subscription(number);
                model.send(world, create_request(id, config.clone()));
            }
            Step::Unsubscribe(number) => {
                let id = id(number).into();
                model.send(
                    world,
                    SubscriptionRequest::Delete {
                        viewer: encke_stream::Viewer::All,
                        id,
                    },
                );
            }
            Step::Link(number, stream) => {
                let streams = vec![name(stream).into(), name(stream / 8).into()];
                let id = id(number).into();
                model.send(
                    world,
                    SubscriptionRequest::Link {
                        viewer: encke_stream::Viewer::All,
                        id,
                        streams,
                    },
                );
            }
            Step::Unlink(number, stream) => {
                let (id, stream) = (id(number).into(), name(stream).into());
                model.send(
                    world,
                    SubscriptionRequest::Unlink {
                        viewer: encke_stream::Viewer::All,
                        id,
                        stream,
                    },
                );
            }
            Step::Claim(number) => model.send(world, claim(id(number), "w")),
            Step::Report {
                of,
                is_old,
                acks,
                done,
                release,
            } => {
                if let Some(held) = model.wake(id(of), is_old, of) {
                    let kind = match (id(of).starts_with("hook"), release) {
                        (true, _) => ReportKind::Callback,
                        (false, true) => ReportKind::Release,
                        (false, false) => ReportKind::Ack,
                    };
                    let acks = acks_of(world, acks);
                    let acks: Vec<(&str, Offset)> = acks
                        .iter()
                        .map(|(name, offset)| (&**name, *offset))
                        .collect();
                    model.send(world, report(kind, &held, &acks, done));
                }
            }
            Step::Respond(at, result) if !world.calls.is_empty() => {
                let at = usize::from(at) % world.calls.len();
                let result = match result % 4 {
                    0 => DeliveryResult::Accepted,
                    1 | 2 => DeliveryResult::Failed("status 500".to_owned()),
                    _ => DeliveryResult::Done,
                };
                let failed = matches!(result, DeliveryResult::Failed(_));
                model.responded(world, at, failed);
                world.respond(at, result);
            }
            Step::Respond(..) => {}
            Step::Pass(ms) => world.pass(ms.into()),
            Step::Changes(count) => world.report_changes(count.into()),
            Step::LookUp => world.look_up(),
            Step::Commit(count) => world.commit(count.into()),
            // Links to streams that a power cut has lost are removed again after a pause. A stream that gets such a number within it has the
            // link after another crash, which the model does not know.
            Step::Refuse(_) if model.awaits_comparison => {}
            Step::Refuse(overloaded) => {
                match overloaded {
                    true => world.overload(),
                    false => world.refuse(),
                }
                model.refused();
            }
            Step::Settle => {
                world.settle();
                model.check(world, &all);
            }
            Step::Crash { kept, cut_power } => {
                self.world = self.world.crash(kept.into(), cut_power);
                self.model.crashed(&self.world, cut_power);
            }
        }
        self.model.observe(&mut self.world);
        self
    }

    /// Receivers and workers do everything that is left.
    fn finish(&mut self) {
        let all = subscriptions();
        let Run { world, model } = self;
        for round in 0.. {
            world.settle();
            model.check(world, &all);
            let ids: Vec<String> = model.subscriptions.keys().cloned().collect();
            let mut is_done = world.calls.is_empty();
            for id in &ids {
                is_done &= world.status(id).links.iter().all(|link| !link.has_pending);
            }
            if is_done {
                return;
            }
            while !world.calls.is_empty() {
                model.responded(world, 0, false);
                world.respond(0, DeliveryResult::Done);
            }
            for id in ids.iter().filter(|id| id.starts_with("pull")) {
                model.send(world, claim(id, "w"));
                world.settle();
                model.observe(world);
                if let Some(held) = model.wake(id, false, 0) {
                    let acks = all_acks(world, id);
                    let acks: Vec<(&str, Offset)> = acks
                        .iter()
                        .map(|(name, offset)| (&**name, *offset))
                        .collect();
                    model.send(world, report(ReportKind::Ack, &held, &acks, true));
                }
            }
            world.settle();
            model.observe(world);
            world.pass(1_000);
            assert!(round < 200, "the work does not end");
        }
    }

    /// Each new record wakes: by an event with the number of the wake, or by a call.
    fn check_wakes(&mut self) {
        let Run { world, model } = self;
        for name in ["wake/a", "wake/b", "events/a", "events/new"] {
            world.store(create(name));
        }
        world.settle();
        for name in ["events/a", "events/new"] {
            world.store(append(name));
        }
        let mut called = BTreeSet::new();
        // Longer than any pause.
        for _ in 0..80 {
            world.settle();
            while !world.calls.is_empty() {
                called.insert(world.calls[0].notice.subscription.to_string());
                world.respond(0, DeliveryResult::Done);
            }
            world.pass(1_000);
        }
        world.settle();
        for id in model.subscriptions.keys() {
            if id.starts_with("hook") {
                assert!(called.contains(id), "{id}");
                continue;
            }
            let own = if id == "pull-1" { "wake/a" } else { "wake/b" };
            // The name of a stream that was deleted is kept while there are forks of it.
            let has_stream = world.streams.state(own).is_some();
            let mut links = world.status(id).links.into_iter();
            if !has_stream || !links.any(|link| link.has_pending) {
                continue;
            }
            let mut events = world.streams.messages(own).into_iter();
            let event = events.rfind(|event| event["subscription_id"] == **id);
            let claimed = world.claim(id, "w").unwrap();
            assert_eq!(event.unwrap()["generation"], claimed.generation, "{id}");
        }
    }
}

/// Acknowledgements: none, of one stream, of all, or of one that is wrong.
fn acks_of(world: &World, choice: u8) -> Vec<(String, Offset)> {
    let tail = |name: &str| world.streams.facts(name).map(|(_, facts)| facts.tail);
    let name = NAMES[usize::from(choice / 4) % NAMES.len()];
    match choice % 4 {
        0 => Vec::new(),
        1 => tail(name)
            .map(|tail| (name.to_owned(), tail))
            .into_iter()
            .collect(),
        2 => vec![(name.to_owned(), Offset::behind(u64::from(choice)))],
        _ => NAMES
            .iter()
            .filter(|name| name.starts_with("events"))
            .filter_map(|name| Some(((*name).to_owned(), tail(name)?)))
            .collect(),
    }
}

/// Acknowledgements of all that a subscription follows.
fn all_acks(world: &mut World, id: &str) -> Vec<(String, Offset)> {
    let links = world.status(id).links.into_iter();
    let pending = links.filter(|link| link.has_pending);
    pending
        .map(|link| (link.stream.to_string(), link.tail))
        .collect()
}

fn check(limits: SubscriptionLimits, logs: usize, seed: u64, steps: Vec<Step>) {
    let mut run = Run::new(limits, logs, seed);
    for step in steps {
        run = run.take(step);
    }
    run.finish();
    run.check_wakes();
    // A last restart brings everything back.
    let status = |world: &mut World, id: &str| {
        let mut status = world.status(id);
        // Attempts to write an event are not stored.
        status.failed &= id.starts_with("hook");
        // Which events of others were the server's own is not stored.
        status
            .links
            .retain(|link| !link.stream.starts_with("wake/"));
        for link in &mut status.links {
            if let Some(state) = world.streams.state(&link.stream) {
                // All positions before the first record are the same.
                link.acked = link.acked.max(world.begin(&state));
            }
        }
        status
    };
    let ids: Vec<_> = run.model.subscriptions.keys().cloned().collect();
    let before: Vec<_> = ids.iter().map(|id| status(&mut run.world, id)).collect();
    let mut world = run.world.restart();
    for (id, before) in ids.iter().zip(before) {
        assert_eq!(status(&mut world, id), before);
    }
    world.pass_and_settle(6_000);
    assert!(world.streams.segments() <= 1, "segments are left");
}

fn limits() -> SubscriptionLimits {
    SubscriptionLimits {
        segment_bytes: 2_000,
        record_bytes: 700,
        deliveries_max: 2,
        deliveries_to_receiver_max: 1,
        ..SubscriptionLimits::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn one_log(seed in 0..1_000_u64, steps in vec(step(), 0..200)) {
        check(limits(), 1, seed, steps);
    }

    #[test]
    fn two_logs(seed in 0..1_000_u64, steps in vec(step(), 0..200)) {
        check(limits(), 2, seed, steps);
    }

    #[test]
    fn long_segments(seed in 0..1_000_u64, steps in vec(step(), 0..200)) {
        check(SubscriptionLimits::default(), 2, seed, steps);
    }
}

#[test]
fn sequences_that_the_model_did_not_know() {
    let crash = |kept, cut_power| Step::Crash { kept, cut_power };
    let hook_1 = 0;
    let pull_1 = 2;
    let pull_2 = 3;
    let (a, b, d, wake_a, other) = (0, 1, 2, 5, 6);
    for kept in 0..4 {
        let linked_at_crash = vec![
            Step::Subscribe(hook_1),
            Step::Settle,
            Step::Create(b, false),
            Step::Settle,
            Step::Link(hook_1, b + 8 * b),
            Step::LookUp,
            Step::Changes(1),
            crash(kept, false),
            Step::Unlink(hook_1, b),
            Step::Settle,
        ];
        check(limits(), 1, 4, linked_at_crash);
        let unlinked_at_crash = vec![
            Step::Subscribe(hook_1),
            Step::Link(hook_1, b + 8 * b),
            Step::Settle,
            Step::Create(b, false),
            crash(0, false),
            Step::Unlink(hook_1, b),
            // The number of the stream that exists now.
            Step::Commit(1),
            crash(kept, false),
            Step::Settle,
        ];
        check(limits(), 1, 4, unlinked_at_crash);
    }
    let linked_after_power_cut = vec![
        Step::Subscribe(pull_1),
        Step::Delete(a),
        Step::LookUp,
        Step::Create(d, false),
        Step::Settle,
        Step::Subscribe(pull_2),
        Step::Create(a, true),
        Step::Changes(1),
        Step::LookUp,
        Step::Commit(3),
        Step::Append(d),
        Step::Settle,
        crash(0, true),
        Step::Append(d),
        Step::Link(pull_1, d + 8 * b),
        Step::Append(a),
    ];
    check(
        SubscriptionLimits::default(),
        2,
        228,
        linked_after_power_cut,
    );
    let refused_link_of_new_stream = vec![
        Step::Subscribe(pull_2),
        Step::Settle,
        Step::Delete(wake_a),
        Step::Create(wake_a, false),
        Step::Link(pull_2, wake_a + 8 * b),
        Step::LookUp,
        Step::Changes(3),
        Step::Refuse(false),
    ];
    check(limits(), 2, 0, refused_link_of_new_stream);
    let link_of_new_stream_at_crash = vec![
        Step::Create(d, false),
        Step::Subscribe(pull_1),
        Step::Settle,
        Step::Delete(d),
        Step::Create(d, false),
        crash(0, false),
        Step::Append(d),
        Step::Link(pull_1, d + 8 * other),
        Step::Refuse(false),
        Step::LookUp,
        Step::Changes(2),
        crash(1, false),
    ];
    check(limits(), 1, 0, link_of_new_stream_at_crash);
}
