//! The rules between nodes, one after the other.

use std::sync::Arc;

use encke_presence::{
    HEARTBEAT, NODES_MAX, PacketRefused, Presence, PresenceCounts, PresenceLimits, PresenceNode,
    PresenceRefusal, Recipient, SILENCE,
};

use crate::network::{TURN_MS, broadcast, hand_over, node, quiet};
use crate::replay::{at, ids, member, place, said};

#[test]
fn a_member_of_two_nodes_joins_once_and_leaves_once() {
    let (a, b, listener) = (node("a", 1), node("b", 1), node("listener", 1));
    let on_a = a.enter(&place("s", 0), member("m", None), at(1)).unwrap();
    let on_b = b.enter(&place("s", 0), member("m", None), at(1)).unwrap();
    hand_over(&a, &listener, 10);
    hand_over(&b, &listener, 10);
    assert_eq!(said(&listener), ["occupied", "+m"]);
    assert_eq!(
        listener.counts("s"),
        PresenceCounts {
            members: 1,
            connections: 2
        }
    );
    assert_eq!(listener.figures().remote_members, 2);
    drop(on_a);
    hand_over(&a, &listener, 20);
    assert_eq!(said(&listener), [""; 0]);
    let here = listener
        .enter(&place("s", 0), member("m", None), at(20))
        .unwrap();
    drop(on_b);
    hand_over(&b, &listener, 30);
    assert_eq!(said(&listener), [""; 0]);
    drop(here);
    assert_eq!(said(&listener), ["-m", "vacated"]);
    assert_eq!(listener.entries(), 0);
}

#[test]
fn connections_of_other_nodes_are_counted_too() {
    let (a, listener) = (node("a", 1), node("listener", 1));
    listener.count_below("s");
    let anonymous = || a.enter_anonymous(&place("s", 0)).unwrap();
    let two = [anonymous(), anonymous()];
    hand_over(&a, &listener, 10);
    assert_eq!(said(&listener), ["occupied", "2"]);
    let _three = anonymous();
    hand_over(&a, &listener, 20);
    assert_eq!(said(&listener), ["3"]);
    drop(two);
    hand_over(&a, &listener, 30);
    assert_eq!(said(&listener), ["1"]);
}

#[test]
fn all_nodes_show_the_latest_data_and_then_what_is_left() {
    let (early, late, listener) = (node("early", 1), node("late", 1), node("listener", 1));
    let enter = |node: &Arc<Presence>, data, ms| {
        node.enter(&place("s", 0), member("m", Some(data)), at(ms))
            .unwrap()
    };
    let _first = enter(&late, "1", 900_000);
    broadcast(&late, &[&early, &listener], 900_000);
    // The clock of this node is behind, but it knows of the other change.
    let second = enter(&early, "2", 5);
    broadcast(&early, &[&late, &listener], 6);
    for node in [&early, &late, &listener] {
        assert_eq!(node.snapshot("s").members[0].data.as_deref(), Some("2"));
    }
    assert_eq!(said(&listener), ["occupied", "+m=1", "~m=2"]);
    drop(second);
    hand_over(&early, &listener, 7);
    assert_eq!(said(&listener), ["~m=1"]);
    assert_eq!(listener.figures().bytes, 2);
}

#[test]
fn data_of_the_same_time_is_that_of_the_same_node_everywhere() {
    let (a, b) = (node("a", 1), node("b", 1));
    let _on_a = a
        .enter(&place("s", 0), member("m", Some("1")), at(1))
        .unwrap();
    let _on_b = b
        .enter(&place("s", 0), member("m", Some("2")), at(1))
        .unwrap();
    let (first, second) = (node("c", 1), node("d", 1));
    let of_a: Vec<_> = a.turn(at(2)).into_iter().map(|out| out.packet).collect();
    let of_b: Vec<_> = b.turn(at(2)).into_iter().map(|out| out.packet).collect();
    let deliver = |to: &Presence, packets: &[Vec<u8>]| {
        packets
            .iter()
            .for_each(|packet| to.receive(packet, at(3)).unwrap());
    };
    deliver(&first, &of_a);
    deliver(&first, &of_b);
    deliver(&second, &of_b);
    deliver(&second, &of_a);
    deliver(&a, &of_b);
    deliver(&b, &of_a);
    for node in [&a, &b, &first, &second] {
        assert_eq!(node.snapshot("s").members[0].data.as_deref(), Some("2"));
    }
}

#[test]
fn what_comes_and_goes_between_two_turns_is_not_sent() {
    let (a, b) = (node("a", 1), node("b", 1));
    hand_over(&a, &b, 1);
    let held = a.enter_anonymous(&place("s", 0)).unwrap();
    drop(held);
    assert_eq!(a.turn(at(2)), []);
    // A member is sent, in the order in which it came and went.
    drop(a.enter(&place("s", 0), member("m", None), at(2)).unwrap());
    let again = a
        .enter(&place("s", 0), member("m", Some("1")), at(2))
        .unwrap();
    hand_over(&a, &b, 3);
    assert_eq!(ids(&b, "s"), ["m"]);
    drop(again);
    hand_over(&a, &b, 4);
    assert_eq!((b.entries(), a.entries()), (0, 0));
}

#[test]
fn a_stream_is_not_vacated_between_changes_of_one_packet() {
    let (a, b) = (node("a", 1), node("b", 1));
    let anonymous = a.enter_anonymous(&place("s", 5_000)).unwrap();
    hand_over(&a, &b, 1);
    assert_eq!(said(&b), ["occupied"]);
    drop(anonymous);
    // The stream has no entry in between.
    drop(
        a.enter(&place("s", 5_000), member("m", None), at(2))
            .unwrap(),
    );
    hand_over(&a, &b, 2);
    assert_eq!(said(&b), ["+m"]);
    assert_eq!(
        b.counts("s"),
        PresenceCounts {
            members: 1,
            connections: 0
        }
    );
}

#[test]
fn a_node_says_that_it_is_there() {
    let a = node("a", 1);
    assert_eq!(a.turn(at(1_000)).len(), 1);
    let mut sent = Vec::new();
    for ms in 1_001..=3_000 {
        let out = a.turn(at(ms));
        assert!(out.iter().all(|out| out.to == Recipient::All));
        sent.extend(out.iter().map(|_| ms));
    }
    let interval = HEARTBEAT.as_millis() as u64;
    assert_eq!(sent, [1, 2, 3, 4].map(|n| 1_000 + n * interval));
}

#[test]
fn a_grace_is_that_of_the_holder() {
    let mut network = quiet(2);
    let hold = network.enter(0, "s", 2_000, "m", None);
    network.settle();
    drop(hold);
    network.run(1_000);
    assert_eq!(ids(network.presence(1), "s"), ["m"]);
    assert_eq!(network.presence(1).counts("s").connections, 0);
    let took = 1_000 + network.run_until_empty(1, "s");
    assert!((2_000..2_000 + 4 * TURN_MS).contains(&took), "{took}");
}

#[test]
fn members_of_a_silent_node_leave_after_silence_and_grace() {
    let mut network = quiet(2);
    let _holds = [
        network.enter(0, "none", 0, "m", None),
        network.enter(0, "long", 10_000, "m", None),
    ];
    network.settle();
    network.kill(0);
    let silence = SILENCE.as_millis() as u64;
    let (earliest, latest) = (
        silence - HEARTBEAT.as_millis() as u64 - TURN_MS,
        silence + TURN_MS * 2,
    );
    let took = network.run_until_empty(1, "none");
    assert!((earliest..=latest).contains(&took), "{took}");
    assert_eq!(network.presence(1).figures().packets.silenced, 1);
    assert_eq!(
        network.presence(1).counts("long"),
        PresenceCounts {
            members: 1,
            connections: 0
        }
    );
    let took = took + network.run_until_empty(1, "long");
    assert!(
        (10_000 - 600..=10_000 + TURN_MS * 2).contains(&took),
        "{took}"
    );
    let figures = network.presence(1).figures();
    assert_eq!(
        (figures.streams, figures.nodes, figures.remote_members),
        (0, 0, 0)
    );
}

#[test]
fn members_of_a_node_that_says_goodbye_leave_after_their_grace() {
    let mut network = quiet(2);
    let _holds = [
        network.enter(0, "none", 0, "m", None),
        network.enter(0, "long", 1_000, "m", None),
    ];
    network.settle();
    network.say_goodbye(0);
    assert!(network.run_until_empty(1, "none") <= 2 * TURN_MS);
    let took = network.run_until_empty(1, "long");
    assert!(
        (1_000 - 2 * TURN_MS..=1_000 + 2 * TURN_MS).contains(&took),
        "{took}"
    );
    assert_eq!(network.presence(1).entries(), 0);
}

#[test]
fn a_node_that_has_said_goodbye_sends_nothing() {
    let a = node("a", 1);
    assert!(a.goodbye().is_some_and(|out| out.to == Recipient::All));
    assert_eq!(a.goodbye(), None);
    let _hold = a.enter(&place("s", 0), member("m", None), at(1)).unwrap();
    assert_eq!(a.turn(at(1_000)), []);
}

#[test]
fn members_do_not_flap_when_their_node_starts_again() {
    let (a, b) = (node("a", 1), node("b", 1));
    let enter = |node: &Arc<Presence>, stream, grace, id| {
        node.enter(&place(stream, grace), member(id, Some("1")), at(1))
            .unwrap()
    };
    let _former: Vec<_> = ["stays", "gone"].map(|id| enter(&a, "s", 0, id)).into();
    let _anonymous = a.enter_anonymous(&place("t", 0)).unwrap();
    hand_over(&a, &b, 1_000);
    assert_eq!(said(&b).len(), 4);
    // Another process of the same name.
    let again = node("a", 2);
    hand_over(&again, &b, 1_500);
    b.turn(at(2_000));
    assert_eq!(b.figures().nodes, 1);
    let stays = enter(&again, "s", 0, "stays");
    hand_over(&again, &b, 2_500);
    assert_eq!(said(&b), [""; 0]);
    assert_eq!(
        b.counts("s"),
        PresenceCounts {
            members: 2,
            connections: 1
        },
        "not those of the former one"
    );
    for ms in (2_500..4_500).step_by(100) {
        hand_over(&again, &b, ms);
        b.turn(at(ms));
    }
    assert_eq!(said(&b), [""; 0]);
    hand_over(&again, &b, 4_500);
    b.turn(at(4_500));
    let mut left = said(&b);
    left.sort();
    assert_eq!(
        left,
        ["-gone=1", "vacated"],
        "SILENCE after the new one came"
    );
    drop(stays);
    hand_over(&again, &b, 4_600);
    assert_eq!(said(&b), ["-stays=1", "vacated"]);
    assert_eq!(b.figures().remote_members, 0);
}

#[test]
fn what_the_new_process_holds_and_gives_up_is_gone() {
    let (a, b) = (node("a", 1), node("b", 1));
    let _former = a
        .enter(&place("s", 60_000), member("m", None), at(1))
        .unwrap();
    hand_over(&a, &b, 1_000);
    let again = node("a", 2);
    let hold = again
        .enter(&place("s", 0), member("m", None), at(1))
        .unwrap();
    hand_over(&again, &b, 1_100);
    drop(hold);
    hand_over(&again, &b, 1_200);
    assert_eq!(said(&b), ["occupied", "+m", "-m", "vacated"]);
}

#[test]
fn late_packets_of_a_former_process_are_ignored() {
    let (a, b) = (node("a", 1), node("b", 1));
    hand_over(&a, &b, 1_000);
    hand_over(&node("a", 2), &b, 1_100);
    let _hold = a.enter(&place("s", 0), member("m", None), at(1)).unwrap();
    for ms in (2_000..200_000).step_by(500) {
        hand_over(&a, &b, ms);
        b.turn(at(ms));
    }
    assert_eq!((said(&b), b.figures().nodes), (vec![], 0));
    assert!(b.figures().packets.stale > 100);
}

#[test]
fn packets_of_its_own_name_are_ignored() {
    let a = node("a", 1);
    let _hold = a.enter(&place("s", 0), member("m", None), at(1)).unwrap();
    for out in a.turn(at(1)) {
        a.receive(&out.packet, at(2)).unwrap();
    }
    hand_over(&node("a", 2), &a, 3);
    let figures = a.figures();
    assert_eq!(
        (
            figures.nodes,
            figures.packets.stale,
            figures.packets.received
        ),
        (0, 1, 0)
    );
}

#[test]
fn members_of_all_nodes_count_and_those_of_others_are_never_refused() {
    let limits = PresenceLimits {
        members_max: 2,
        bytes_max: 100,
        remote_members_max: 100,
    };
    let a = node("a", 1);
    let b = Presence::in_fleet(
        limits,
        PresenceNode {
            name: "b".into(),
            incarnation: 1,
        },
    );
    let _remote: Vec<_> = (0..4)
        .map(|n| {
            a.enter(&place("s", 0), member(&n.to_string(), None), at(1))
                .unwrap()
        })
        .collect();
    hand_over(&a, &b, 10);
    assert_eq!(b.counts("s").members, 4);
    let mut place = place("s", 0);
    let enter = |place: &_, id: &str| b.enter(place, member(id, None), at(10));
    assert_eq!(
        enter(&place, "new").unwrap_err(),
        PresenceRefusal::ServerMembersMax(2)
    );
    place.rules.members_max = 4;
    assert_eq!(
        enter(&place, "new").unwrap_err(),
        PresenceRefusal::MembersMax(4)
    );
    assert!(enter(&place, "3").is_ok(), "it is a member already");
}

#[test]
fn processes_that_are_gone_give_way_to_new_ones() {
    let presence = node("a", 1);
    let heartbeat = |n: usize| node(&format!("other{n}"), 1).turn(at(1)).remove(0).packet;
    for n in 0..NODES_MAX {
        presence.receive(&heartbeat(n), at(1_000)).unwrap();
    }
    let refused = presence.receive(&heartbeat(NODES_MAX), at(1_000));
    assert_eq!(refused, Err(PacketRefused::NodesMax(NODES_MAX)));
    for ms in (1_000..5_000).step_by(100) {
        presence.turn(at(ms));
    }
    assert_eq!(presence.figures().nodes, 0);
    presence.receive(&heartbeat(NODES_MAX), at(5_000)).unwrap();
    assert_eq!(presence.figures().nodes, 1);
}
