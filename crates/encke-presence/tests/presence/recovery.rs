//! Nodes that have missed something, and what they do about it.

use std::collections::BTreeSet;

use encke_presence::{HEARTBEAT, Presence, PresenceHold, PresenceLimits, Recipient};

use crate::network::{Network, STEP_MS, TURN_MS, hand_over, node, quiet};
use crate::replay::{LIMITS, at, ids, member, place};

#[test]
fn deltas_that_were_missed_are_sent_again_without_the_state() {
    let mut network = quiet(3);
    let _first = network.enter(0, "s", 0, "1", None);
    network.settle();
    network.cut = vec![(0, 1)];
    let _second = network.enter(0, "s", 0, "2", None);
    network.settle();
    network.cut.clear();
    let _third = network.enter(0, "s", 0, "3", None);
    network.settle();
    assert_eq!(ids(network.presence(1), "s"), ["1", "2", "3"]);
    assert_eq!(network.presence(1).figures().packets.asked, 1);
    assert_eq!(network.presence(2).figures().packets.asked, 0);
    assert_eq!(network.presence(0).figures().packets.answered, 0);
}

#[test]
fn a_node_that_has_missed_more_than_is_kept_gets_the_state() {
    let mut network = quiet(2);
    network.cut = vec![(0, 1)];
    let data = format!("\"{}\"", "x".repeat(2_000));
    let enter = |n: u64| network.enter(0, "s", 0, &n.to_string(), Some(&data));
    let _holds: Vec<_> = (0..1_000).map(enter).collect();
    network.settle();
    network.cut.clear();
    network.run(1_000);
    assert_eq!(ids(network.presence(1), "s").len(), 1_000);
    assert_eq!(network.presence(0).figures().packets.answered, 1);
}

#[test]
fn a_delta_that_was_lost_is_noticed_by_the_next_heartbeat() {
    let mut network = quiet(2);
    network.cut = vec![(0, 1)];
    let _hold = network.enter(0, "s", 0, "m", None);
    network.run(TURN_MS + STEP_MS);
    network.cut.clear();
    network.run(HEARTBEAT.as_millis() as u64 + 4 * TURN_MS);
    assert_eq!(ids(network.presence(1), "s"), ["m"]);
}

#[test]
fn a_node_that_asks_twice_gets_one_answer() {
    let (a, b) = (node("a", 1), node("b", 1));
    let _hold = a.enter(&place("s", 0), member("m", None), at(1)).unwrap();
    // The delta is lost.
    let heartbeat = a.turn(at(1)).pop().unwrap();
    b.receive(&heartbeat.packet, at(1)).unwrap();
    for ms in [2, 600, 1_200] {
        hand_over(&b, &a, ms);
    }
    assert_eq!(b.figures().packets.asked, 3);
    let to_b = Recipient::Node("b".into());
    let answers: Vec<_> = a
        .turn(at(1_300))
        .into_iter()
        .filter(|out| out.to == to_b)
        .collect();
    assert_eq!(answers.len(), 1);
    b.receive(&answers[0].packet, at(1_300)).unwrap();
    assert_eq!(ids(&b, "s"), ["m"]);
}

/// A fleet whose first node has many members, so that its state takes many parts.
fn large() -> (Network, Vec<PresenceHold>) {
    let mut network = quiet(2);
    let data = format!("\"{}\"", "x".repeat(300));
    let enter = |n: usize| network.enter(0, &(n % 7).to_string(), 0, &n.to_string(), Some(&data));
    let holds = (0..LARGE).map(enter).collect();
    network.settle();
    (network, holds)
}

fn members(presence: &Presence) -> BTreeSet<String> {
    (0..7)
        .flat_map(|stream| ids(presence, &stream.to_string()))
        .collect()
}

const LARGE: usize = 12_000;

#[test]
fn a_state_of_many_parts_is_true_although_it_changes_meanwhile() {
    let (mut network, mut holds) = large();
    network.start(1);
    let mut steps = 0;
    while members(network.presence(1)).len() + 2_000 < LARGE {
        // What was said in an earlier part, what is said in a later one, and what is new.
        for n in [steps, LARGE / 2 + steps, LARGE - 3_000 - steps] {
            drop(holds.swap_remove(n));
            holds.push(network.enter(0, "3", 0, &format!("new{}", steps * 2 + n % 2), None));
        }
        steps += 1;
        network.step();
    }
    assert!(steps > 5, "it takes several turns");
    network.run(2 * HEARTBEAT.as_millis() as u64);
    assert_eq!(members(network.presence(1)), members(network.presence(0)));
    assert_eq!(network.presence(0).figures().packets.answered, 1);
    assert_eq!(network.presence(1).figures().packets.differed, 0);
}

#[test]
fn a_state_that_lost_a_part_is_asked_for_again() {
    let (mut network, _holds) = large();
    network.start(1);
    while members(network.presence(1)).is_empty() {
        network.step();
    }
    network.cut = vec![(0, 1)];
    network.run(TURN_MS);
    network.cut.clear();
    network.run(2_000);
    assert_eq!(members(network.presence(1)).len(), LARGE);
    assert_eq!(network.presence(0).figures().packets.answered, 2);
}

#[test]
fn a_state_whose_last_part_was_lost_is_asked_for_again() {
    let (mut network, _holds) = large();
    network.start(1);
    // Nothing follows the last part: the node has no change to say.
    while members(network.presence(1)).len() < LARGE - 1_500 {
        network.step();
    }
    assert!(members(network.presence(1)).len() < LARGE);
    network.cut = vec![(0, 1)];
    network.run(3 * TURN_MS);
    network.cut.clear();
    network.run(2_000);
    assert_eq!(members(network.presence(1)).len(), LARGE);
    assert_eq!(network.presence(0).figures().packets.answered, 2);
}

#[test]
fn a_node_that_was_paused_takes_no_other_one_for_silent() {
    let mut network = quiet(3);
    let _holds = [
        network.enter(0, "s", 0, "0", None),
        network.enter(2, "s", 0, "2", None),
    ];
    network.settle();
    network.pause(1, 30_000, true);
    network.run(30_000 + STEP_MS);
    for _ in 0..200 {
        network.step();
        assert_eq!(ids(network.presence(1), "s").len(), 2);
    }
    assert_eq!(network.presence(1).figures().packets.silenced, 0);
    assert_eq!(network.presence(0).figures().packets.silenced, 1);
    assert_eq!(network.presence(0).figures().nodes, 2);
}

#[test]
fn a_node_that_is_heard_again_in_the_grace_of_its_members_has_not_lost_them() {
    let mut network = quiet(2);
    let _holds = [
        network.enter(0, "s", 20_000, "m", None),
        network.enter(0, "t", 0, "m", None),
    ];
    network.settle();
    let before = network.presence(1).figures();
    network.cut = vec![(0, 1), (1, 0)];
    network.run(5_000);
    assert_eq!(network.presence(1).figures().members, 1);
    network.cut.clear();
    network.run(1_000);
    network.run(30_000);
    let after = network.presence(1).figures();
    assert_eq!(
        (after.members, after.connections, after.leaves),
        (2, 2, before.leaves + 1)
    );
    assert_eq!(after.packets.differed, 0);
}

#[test]
fn a_packet_beyond_the_bound_of_remote_members_is_refused_whole() {
    let limits = PresenceLimits {
        remote_members_max: 10,
        ..LIMITS
    };
    let mut network = Network::with_limits(2, 1, limits);
    network.settle();
    let few: Vec<_> = (0..8)
        .map(|n| network.enter(0, "s", 0, &n.to_string(), None))
        .collect();
    network.settle();
    let many: Vec<_> = (10..15)
        .map(|n| network.enter(0, "s", 0, &n.to_string(), None))
        .collect();
    network.run(10_000);
    assert_eq!(network.presence(1).figures().remote_members, 8);
    let packets = network.presence(1).figures().packets;
    assert!(packets.refused > 0 && packets.asked < 10, "{packets:?}");
    drop((few, many));
    network.run(11_000);
    assert_eq!(network.presence(1).entries(), 0);
    let _again = network.enter(0, "s", 0, "m", None);
    network.run(1_000);
    assert_eq!(ids(network.presence(1), "s"), ["m"]);
}
