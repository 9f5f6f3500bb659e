//! The rules of one registry, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use encke_presence::{
    DATA_BYTES_MAX, ID_BYTES_MAX, KEY_BYTES_MAX, NewMember, Presence, PresenceCounts,
    PresenceField, PresenceHold, PresenceLimits, PresencePlace, PresenceRefusal, STREAM_BYTES_MAX,
};

use crate::replay::{LIMITS, Reader, at, ids, member, place, said};

fn enter(presence: &Arc<Presence>, stream: &str, grace_ms: u64, id: &str, ms: u64) -> PresenceHold {
    presence
        .enter(&place(stream, grace_ms), member(id, None), at(ms))
        .unwrap()
}

#[test]
fn a_member_counts_once_however_many_connections_it_has() {
    let presence = Presence::new(LIMITS);
    let first = enter(&presence, "s", 0, "a", 1);
    let second = enter(&presence, "s", 0, "a", 1);
    assert_eq!(
        presence.counts("s"),
        PresenceCounts {
            members: 1,
            connections: 2
        }
    );
    drop(first);
    assert_eq!(said(&presence), ["occupied", "+a"]);
    drop(second);
    assert_eq!(said(&presence), ["-a", "vacated"]);
    assert_eq!(presence.counts("s"), PresenceCounts::default());
    assert_eq!(presence.entries(), 0);
    let figures = presence.figures();
    assert_eq!(
        (
            figures.joins,
            figures.leaves,
            figures.members,
            figures.bytes
        ),
        (1, 1, 0, 0)
    );
}

#[test]
fn the_key_says_who_it_is_and_the_id_what_is_shown() {
    let presence = Presence::new(LIMITS);
    let of = |key: &str| NewMember {
        key: key.into(),
        id: "shown".into(),
        data: None,
    };
    let _a = presence
        .enter(&place("s", 0), of("issuer/a"), at(1))
        .unwrap();
    let _b = presence
        .enter(&place("s", 0), of("issuer/a"), at(1))
        .unwrap();
    assert_eq!(ids(&presence, "s"), ["shown"]);
    let _c = presence
        .enter(&place("s", 0), of("other/a"), at(1))
        .unwrap();
    assert_eq!(ids(&presence, "s"), ["shown", "shown"]);
    let _d = presence
        .enter(&place("t", 0), of("issuer/a"), at(1))
        .unwrap();
    assert_eq!(presence.figures().members, 3);
}

#[test]
fn a_member_has_the_data_of_its_latest_connection() {
    let presence = Presence::new(LIMITS);
    let with = |data| {
        presence
            .enter(&place("s", 0), member("a", data), at(1))
            .unwrap()
    };
    let first = with(Some("1"));
    let _second = with(Some("1"));
    assert_eq!(
        said(&presence),
        ["occupied", "+a=1"],
        "the same data is no update"
    );
    let third = with(Some("2"));
    let _fourth = with(None);
    assert_eq!(said(&presence), ["~a=2", "~a"]);
    drop((first, third));
    assert_eq!(
        said(&presence),
        [""; 0],
        "data outlives the connection that brought it"
    );
    assert_eq!(presence.figures().bytes, 1);
}

#[test]
fn anonymous_connections_occupy_a_stream_without_members() {
    let presence = Presence::new(LIMITS);
    let first = presence.enter_anonymous(&place("s", 5_000)).unwrap();
    let second = enter(&presence, "s", 0, "a", 1);
    assert_eq!(
        presence.counts("s"),
        PresenceCounts {
            members: 1,
            connections: 2
        }
    );
    assert_eq!(presence.snapshot("s").connections, 2);
    drop(second);
    assert_eq!(said(&presence), ["occupied", "+a", "-a"]);
    drop(first);
    assert_eq!(said(&presence), ["vacated"]);
    assert_eq!(presence.entries(), 0);
}

#[test]
fn a_member_stays_for_its_grace_after_the_next_turn() {
    let presence = Presence::new(LIMITS);
    let hold = enter(&presence, "s", 1_000, "a", 1);
    said(&presence);
    drop(hold);
    presence.turn(at(10_000));
    presence.turn(at(10_999));
    assert_eq!(said(&presence), [""; 0]);
    assert_eq!(
        presence.counts("s"),
        PresenceCounts {
            members: 1,
            connections: 0
        }
    );
    presence.turn(at(11_000));
    assert_eq!(said(&presence), ["-a", "vacated"]);
    assert_eq!(presence.entries(), 0);
}

#[test]
fn a_member_that_enters_again_in_its_grace_has_not_left() {
    let presence = Presence::new(LIMITS);
    let mut hold = enter(&presence, "s", 1_000, "a", 1);
    said(&presence);
    for round in 1..50 {
        drop(hold);
        if round % 2 == 0 {
            presence.turn(at(round * 10_000));
        }
        hold = enter(&presence, "s", 1_000, "a", 1);
        presence.turn(at(round * 10_000 + 5_000));
    }
    assert_eq!(said(&presence), [""; 0]);
    drop(hold);
    presence.turn(at(1_000_000));
    let _again = presence
        .enter(&place("s", 1_000), member("a", Some("1")), at(1))
        .unwrap();
    assert_eq!(
        said(&presence),
        ["~a=1"],
        "other data is an update in a grace too"
    );
}

#[test]
fn the_rules_of_the_latest_connection_count() {
    let presence = Presence::new(LIMITS);
    let a = enter(&presence, "s", 1_000, "a", 1);
    let b = enter(&presence, "s", 0, "b", 1);
    drop(a);
    assert_eq!(said(&presence), ["occupied", "+a", "+b", "-a"]);
    let c = enter(&presence, "s", 2_000, "c", 1);
    drop(b);
    presence.turn(at(9));
    drop(c);
    presence.turn(at(10));
    presence.turn(at(2_008));
    assert_eq!(said(&presence), ["+c"]);
    presence.turn(at(2_010));
    assert_eq!(said(&presence), ["-b", "-c", "vacated"]);
}

#[test]
fn graces_end_in_the_order_of_time() {
    let presence = Presence::new(LIMITS);
    let holds: Vec<_> = [300, 100, 200]
        .map(|ms| enter(&presence, &ms.to_string(), ms, "a", 1))
        .into();
    drop(holds);
    presence.turn(at(1));
    let mut events = Vec::new();
    presence.take_events(&mut events);
    events.clear();
    presence.turn(at(1_000));
    presence.take_events(&mut events);
    let order: Vec<&str> = events.iter().map(|event| &*event.stream).collect();
    assert_eq!(order, ["100", "100", "200", "200", "300", "300"]);
}

#[test]
fn a_refused_connection_changes_nothing() {
    let limits = PresenceLimits {
        members_max: 3,
        bytes_max: 20,
        remote_members_max: 0,
    };
    let presence = Presence::new(limits);
    let of = |stream, members_max, bytes_max| {
        let mut place: PresencePlace<'_> = place(stream, 0);
        (place.rules.members_max, place.rules.bytes_max) = (members_max, bytes_max);
        place
    };
    let _a = presence
        .enter(&of("s", 2, 12), member("a", Some("12345")), at(1))
        .unwrap();
    let _b = presence
        .enter(&of("s", 2, 12), member("b", None), at(1))
        .unwrap();
    let before = (
        said(&presence).len(),
        presence.snapshot("s"),
        presence.entries(),
    );
    let refused = |place: PresencePlace<'_>, member: NewMember| {
        let refused = presence.enter(&place, member, at(1)).unwrap_err();
        assert_eq!(
            (4 - 1, presence.snapshot("s"), presence.entries()),
            (before.0, before.1.clone(), before.2)
        );
        refused
    };
    let (long, longer) = (Some("123456789"), Some("1234567890123456789"));
    assert_eq!(
        refused(of("s", 2, 12), member("c", None)),
        PresenceRefusal::MembersMax(2)
    );
    assert_eq!(
        refused(of("t", 0, 12), member("c", None)),
        PresenceRefusal::MembersMax(0)
    );
    assert_eq!(
        refused(of("s", 3, 12), member("c", long)),
        PresenceRefusal::BytesMax(12)
    );
    assert_eq!(
        refused(of("s", 2, 12), member("b", long)),
        PresenceRefusal::BytesMax(12)
    );
    assert_eq!(
        refused(of("t", 9, 99), member("c", longer)),
        PresenceRefusal::ServerBytesMax(20)
    );
    let _c = presence
        .enter(&of("u", 9, 99), member("c", None), at(1))
        .unwrap();
    assert_eq!(
        presence
            .enter(&of("t", 9, 99), member("d", None), at(1))
            .unwrap_err(),
        PresenceRefusal::ServerMembersMax(3)
    );
    assert_eq!(presence.figures().refused, 6);
    // A member that is there may always open connections, even where the rules are narrower now.
    let again = presence.enter(&of("s", 0, 0), member("a", Some("12345")), at(1));
    assert!(again.is_ok());
    let smaller = presence.enter(&of("s", 0, 0), member("a", Some("1")), at(1));
    assert!(smaller.is_ok());
}

#[test]
fn a_text_that_other_nodes_would_not_take_is_refused() {
    let presence = Presence::new(LIMITS);
    let text = "x".repeat(5_000);
    let cases = [
        (PresenceField::Stream, STREAM_BYTES_MAX),
        (PresenceField::Key, KEY_BYTES_MAX),
        (PresenceField::Id, ID_BYTES_MAX),
        (PresenceField::Data, DATA_BYTES_MAX),
    ];
    for (field, bytes_max) in cases {
        let of = |is: PresenceField, bytes: usize| if is == field { &text[..bytes] } else { "x" };
        let enter = |bytes| {
            let member = NewMember {
                key: of(PresenceField::Key, bytes).into(),
                id: of(PresenceField::Id, bytes).into(),
                data: Some(of(PresenceField::Data, bytes).into()),
            };
            presence
                .enter(&place(of(PresenceField::Stream, bytes), 0), member, at(1))
                .map(drop)
        };
        assert_eq!(enter(bytes_max), Ok(()));
        assert_eq!(
            enter(bytes_max + 1),
            Err(PresenceRefusal::TooLong { field, bytes_max })
        );
    }
    assert!(presence.enter_anonymous(&place(&text[..1_025], 0)).is_err());
    assert_eq!(presence.entries(), 0);
}

#[test]
fn a_follower_keeps_the_number_of_an_empty_stream() {
    let presence = Presence::new(LIMITS);
    let number_of_events = || {
        let mut events = Vec::new();
        drop(enter(&presence, "s", 0, "a", 1));
        presence.take_events(&mut events);
        assert!(events.iter().all(|event| event.number == events[0].number));
        events[0].number
    };
    let follower = presence.follow("s");
    let second = presence.follow("s");
    assert_eq!(number_of_events(), follower.number());
    assert_eq!(second.number(), follower.number());
    assert_eq!((presence.entries(), said(&presence)), (1, vec![]));
    let number = follower.number();
    drop(follower);
    assert_eq!(number_of_events(), number);
    drop(second);
    assert_eq!(presence.entries(), 0);
    assert!(number_of_events() > number, "a number is never used again");
    assert_ne!(Presence::new(LIMITS).follow("s").number(), number);
}

#[test]
fn the_caller_is_called_once_for_all_events_until_it_takes_them() {
    let presence = Presence::new(LIMITS);
    let first = enter(&presence, "s", 0, "a", 1);
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, weak) = (Arc::clone(&calls), Arc::downgrade(&presence));
    presence.on_event(Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        // It is called outside of the lock.
        assert!(
            weak.upgrade()
                .is_none_or(|presence| presence.figures().joins > 0)
        );
    }));
    assert_eq!(calls.load(Ordering::Relaxed), 1, "there were events before");
    let second = enter(&presence, "s", 0, "b", 1);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    said(&presence);
    let third = enter(&presence, "s", 0, "b", 1);
    assert_eq!(calls.load(Ordering::Relaxed), 1, "no event");
    drop(first);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    said(&presence);
    drop((second, third));
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn a_snapshot_has_the_order_of_joining() {
    let presence = Presence::new(LIMITS);
    let mut holds: Vec<_> = (0..100)
        .map(|n| (n, enter(&presence, "s", 0, &n.to_string(), 1)))
        .collect();
    holds.retain(|(n, _)| n % 3 != 0);
    holds.extend([3, 0].map(|n| (n, enter(&presence, "s", 0, &n.to_string(), 1))));
    let expected: Vec<String> = holds.iter().map(|(n, _)| n.to_string()).collect();
    assert_eq!(ids(&presence, "s"), expected);
}

#[test]
fn a_snapshot_is_later_than_events_of_a_former_entry() {
    let presence = Presence::new(LIMITS);
    assert_eq!(presence.snapshot("s").sequence, 0);
    drop(enter(&presence, "s", 0, "a", 1));
    let empty = Reader::new("s", &presence.snapshot("s"));
    let follower = presence.follow("s");
    let followed = Reader::new("s", &presence.snapshot("s"));
    let _hold = enter(&presence, "s", 0, "b", 1);
    drop(follower);
    let mut events = Vec::new();
    presence.take_events(&mut events);
    let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6]);
    for mut reader in [empty, followed] {
        reader.apply(&events);
        reader.check(&presence.snapshot("s"));
    }
    assert_eq!(presence.snapshot("s").sequence, 6);
}

#[test]
fn a_hold_takes_two_words() {
    assert_eq!(size_of::<PresenceHold>(), 2 * size_of::<usize>());
}

#[test]
fn threads_that_enter_and_leave_leave_nothing() {
    let presence = Presence::new(LIMITS);
    let mut reader = Reader::new("1", &presence.snapshot("1"));
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let presence = &presence;
            scope.spawn(move || {
                let mut holds = Vec::new();
                for step in 0..2_000_usize {
                    let (stream, grace) = ((step % 3).to_string(), (step % 2) as u64 * 5);
                    let id = ((step * 7 + thread) % 11).to_string();
                    let hold =
                        presence.enter(&place(&stream, grace), member(&id, None), at(step as u64));
                    holds.push(hold.unwrap());
                    if step % 5 == 4 {
                        holds.drain(..3);
                        presence.turn(at(step as u64));
                    }
                }
            });
        }
    });
    presence.turn(at(10_000));
    presence.turn(at(10_000).after(Duration::from_secs(1)));
    let mut events = Vec::new();
    presence.take_events(&mut events);
    assert!(
        events
            .iter()
            .zip(1..)
            .all(|(event, sequence)| event.sequence == sequence)
    );
    reader.apply(&events);
    reader.check(&presence.snapshot("1"));
    let figures = presence.figures();
    assert_eq!(
        (
            figures.streams,
            figures.members,
            figures.connections,
            figures.bytes
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(figures.joins, figures.leaves);
}

#[test]
fn streams_are_listed_by_the_begin_of_their_names() {
    let presence = Presence::new(LIMITS);
    let anonymous = |stream: &str| presence.enter_anonymous(&place(stream, 0)).unwrap();
    // More than are looked at under one hold of the lock.
    let _many: Vec<_> = (0..3_000)
        .map(|number| anonymous(&format!("many/{number}")))
        .collect();
    let two = [anonymous("b/1"), anonymous("b/1")];
    let member = enter(&presence, "b/0", 0, "a", 1);
    let follower = presence.follow("b/2");
    assert_eq!((&*two[0].stream(), &*member.stream()), ("b/1", "b/0"));
    let listed = |prefix: &str| {
        let streams = presence.streams(prefix).into_iter();
        let streams = streams.map(|(name, counts)| {
            let PresenceCounts {
                members,
                connections,
            } = counts;
            format!("{name}: {members} {connections}")
        });
        streams.collect::<Vec<_>>()
    };
    assert_eq!(listed("b/"), ["b/0: 1 1", "b/1: 0 2"]);
    assert_eq!(listed("b/1"), ["b/1: 0 2"]);
    assert_eq!(listed("many/").len(), 3_000);
    drop((two, member, follower));
    assert_eq!(listed("b"), [""; 0]);
}

#[test]
fn connections_are_counted_by_events_where_that_is_asked_for() {
    let presence = Presence::new(LIMITS);
    presence.count_below("a/");
    let wakes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&wakes);
    presence.on_event(Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    let anonymous = |stream: &str| presence.enter_anonymous(&place(stream, 0)).unwrap();
    let (one, other) = (anonymous("a/1"), anonymous("b"));
    assert_eq!(said(&presence), ["occupied", "occupied", "1"]);
    let more = [anonymous("a/1"), anonymous("a/1"), anonymous("b")];
    assert_eq!(wakes.load(Ordering::Relaxed), 2, "once for both");
    // A change that is undone before it is taken is none.
    drop(anonymous("a/1"));
    assert_eq!(said(&presence), ["3"]);
    drop(anonymous("a/1"));
    assert_eq!(said(&presence), [""; 0]);
    drop((one, other, more));
    assert_eq!(said(&presence), ["vacated", "vacated"]);
    let _again = anonymous("a/1");
    assert_eq!(said(&presence), ["occupied", "1"]);
}
