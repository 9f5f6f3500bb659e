//! Power cuts: what streams have lost, subscriptions must not take for done.

use encke_stream::StreamNo;
use encke_subscriptions::{DeliveryResult, ReportKind, SubscriptionConfig, SubscriptionLimits};

use crate::asked::{pull, webhook};
use crate::streams::{append, create, create_with};
use crate::world::World;

const ACK: ReportKind = ReportKind::Ack;

/// A stream of another log than the journal, so that what is synced of a subscription can be ahead of it.
fn name_of_other_log() -> String {
    let mut names = (0..).map(|number| format!("events/{number}"));
    names.find(|name| encke_stream::home(name, 2) == 1).unwrap()
}

/// Worlds after power cuts that took a stream to which the subscription `s` had a link, each with the number of that stream.
fn worlds_that_lost_a_linked_stream(name: &str) -> Vec<(World, StreamNo)> {
    let cut = |seed| {
        let mut world = World::with_seed(SubscriptionLimits::default(), 2, seed);
        // Without a stream for its events, no decision follows the restart.
        world.must_create("s", pull("events/*"));
        world.write(create_with(name, 1));
        for _ in 0..seed {
            world.write(append(name));
        }
        let number = world.streams.facts(name).unwrap().0;
        let world = world.crash(0, true);
        world
            .streams
            .facts(name)
            .is_none()
            .then_some((world, number))
    };
    let worlds: Vec<_> = (1..20).filter_map(cut).collect();
    assert!(!worlds.is_empty(), "no power cut took the stream");
    worlds
}

#[test]
fn records_that_were_lost_with_the_power_are_taken_off_the_wake() {
    let name = name_of_other_log();
    let mut lost = 0;
    for seed in 1..20 {
        let mut world = World::with_seed(SubscriptionLimits::default(), 2, seed);
        world.write(create(&name));
        world.must_create("s", webhook("events/*"));
        for _ in 0..seed {
            world.store(append(&name));
        }
        world.settle();
        let sent = world.call().notice.links[0].tail;
        let mut world = world.crash(0, true);
        world.settle();
        let Some(after) = world.streams.facts(&name).map(|(_, facts)| facts.tail) else {
            continue;
        };
        if world.calls.is_empty() {
            // No record is left.
            continue;
        }
        assert_eq!(world.call().notice.links[0].tail, after);
        lost += u32::from(after < sent);
        world.answer(DeliveryResult::Done);
        assert_eq!(world.acked("s", &name), after);
    }
    assert!(lost > 0, "nothing was lost in any round");
}

#[test]
fn a_stream_that_was_lost_is_not_taken_for_another_one_with_its_number() {
    let name = name_of_other_log();
    for (mut world, number) in worlds_that_lost_a_linked_stream(&name) {
        world.settle();
        assert_eq!(world.links("s"), []);
        world.store(create(&name));
        assert_eq!(world.streams.facts(&name).unwrap().0, number);
        // The journal does not name the lost one any more.
        let mut world = world.crash(0, false);
        world.settle();
        assert_eq!(world.links("s"), []);
    }
}

#[test]
fn the_removal_of_a_lost_link_is_written_again_after_the_log_has_refused_it() {
    let name = name_of_other_log();
    for (mut world, number) in worlds_that_lost_a_linked_stream(&name) {
        assert!(!world.queue.is_empty(), "nothing to refuse");
        world.refuse();
        // Longer than the pause of a machine after a refusal.
        world.pass_and_settle(1_000);
        // It is empty, so that the pattern does not link it.
        world.store(create(&name));
        assert_eq!(world.streams.facts(&name).unwrap().0, number);
        let mut world = world.crash(0, false);
        world.settle();
        assert_eq!(world.links("s"), []);
    }
}

#[test]
fn a_response_does_not_acknowledge_a_stream_with_the_number_of_a_lost_one() {
    let name = name_of_other_log();
    let mut lost = 0;
    for seed in 1..20 {
        let mut world = World::with_seed(SubscriptionLimits::default(), 2, seed);
        world.write(create(&name));
        // A link by name, unlike one by a pattern, stays when its stream is lost.
        let config = SubscriptionConfig {
            streams: vec![(&*name).into()],
            ..webhook("other/*")
        };
        world.must_create("s", config);
        // The lost stream ends behind the new one.
        for _ in 0..=seed {
            world.store(append(&name));
        }
        world.settle();
        world.call();
        let number = world.streams.facts(&name).unwrap().0;
        let mut world = world.crash(0, true);
        if world.streams.facts(&name).is_some() {
            continue;
        }
        lost += 1;
        // The new stream is there before the machine has ended the wake.
        world.write(create(&name));
        assert_eq!(world.streams.facts(&name).unwrap().0, number);
        // Nothing is left of what the wake has found. A call would acknowledge the end of the lost stream.
        assert!(world.calls.is_empty());
        world.write(append(&name));
        assert_eq!(world.call().notice.links[0].tail, world.tail(&name));
    }
    assert!(lost > 0, "nothing was lost in any round");
}

#[test]
fn records_that_were_lost_with_the_power_are_taken_off_the_cursor() {
    let name = name_of_other_log();
    let mut lost = 0;
    for seed in 1..20 {
        let mut world = World::with_seed(SubscriptionLimits::default(), 2, seed);
        world.write(create("wake/pool"));
        world.write(create(&name));
        world.must_create("s", pull("events/*"));
        for _ in 0..seed {
            world.write(append(&name));
        }
        let held = world.must_claim("s", "w");
        let tail = world.tail(&name);
        world.report(ACK, &held, &[(&name, tail)], true).unwrap();
        let mut world = world.crash(0, true);
        world.settle();
        let Some(after) = world.streams.facts(&name).map(|(_, facts)| facts.tail) else {
            // The stream itself was lost.
            assert_eq!(world.links("s"), []);
            continue;
        };
        assert_eq!(world.acked("s", &name), after);
        lost += u32::from(after < tail);
        // The next record is not taken for one that was done.
        world.write(append(&name));
        world.must_claim("s", "w");
    }
    assert!(lost > 0, "nothing was lost in any round");
}
