//! Bytes that no node has sent.

use std::sync::Arc;

use encke_presence::{PacketRefused, Presence, PresenceNode};
use proptest::prelude::*;

use crate::replay::{LIMITS, Reader, at, member, place};

fn node(name: &str) -> Arc<Presence> {
    Presence::in_fleet(
        LIMITS,
        PresenceNode {
            name: name.into(),
            incarnation: 7,
        },
    )
}

/// Packets of a node that has members and was asked for its state.
fn packets() -> Vec<Vec<u8>> {
    let (a, b) = (node("a"), node("b"));
    let _held: Vec<_> = (0..5)
        .map(|n| {
            a.enter(&place("s", n), member(&n.to_string(), Some("1")), at(n))
                .unwrap()
        })
        .collect();
    let mut packets: Vec<Vec<u8>> = a.turn(at(10)).into_iter().map(|out| out.packet).collect();
    let heartbeat = packets.last().cloned().unwrap();
    b.receive(&heartbeat, at(10)).unwrap();
    for out in b.turn(at(11)) {
        packets.push(out.packet.clone());
        a.receive(&out.packet, at(11)).unwrap();
    }
    packets.extend(a.turn(at(12)).into_iter().map(|out| out.packet));
    packets.extend(a.goodbye().map(|out| out.packet));
    packets
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn bytes_are_applied_or_refused_and_events_replay(
        all in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..10),
    ) {
        let presence = node("c");
        for mut bytes in all {
            let _ = presence.receive(&bytes, at(1));
            bytes.insert(0, 1);
            let _ = presence.receive(&bytes, at(1));
        }
        presence.turn(at(2));
    }

    #[test]
    fn damaged_packets_do_no_harm(
        changes in proptest::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..40),
    ) {
        let presence = node("c");
        let mut reader = Reader::new("s", &presence.snapshot("s"));
        let packets = packets();
        for (step, (which, byte, value)) in changes.into_iter().enumerate() {
            let mut packet = packets[which % packets.len()].clone();
            let byte = byte % packet.len();
            packet[byte] = value;
            let _ = presence.receive(&packet, at(step as u64 * 200));
            presence.turn(at(step as u64 * 200));
            let mut events = Vec::new();
            presence.take_events(&mut events);
            reader.apply(&events);
        }
        reader.check(&presence.snapshot("s"));
        // All that was said ends when nodes are silent, and graces are over.
        for step in 0..600 {
            presence.turn(at(100_000 + step * 500));
        }
        presence.turn(at(100_000_000_000));
        let figures = presence.figures();
        prop_assert_eq!((figures.streams, figures.members, figures.connections, figures.bytes), (0, 0, 0, 0));
        prop_assert_eq!(figures.remote_members, 0);
    }
}

#[test]
fn another_version_is_ignored_and_counted() {
    let presence = node("c");
    assert_eq!(
        presence.receive(&[9, 1, 2, 3], at(1)),
        Err(PacketRefused::Format(9))
    );
    assert!(presence.receive(&[1, 1, 2, 3], at(1)).is_err());
    let figures = presence.figures().packets;
    assert_eq!(
        (figures.foreign, figures.refused, figures.received),
        (1, 1, 0)
    );
}
