//! Connections at rest.

use super::{append, get, rig_with_stream};
use crate::connection::Connection;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::rest::{Rest, Resting};
use crate::connection::testing::{ID, Rig};

/// What is left of the connection of a rig.
fn rest(rig: &Rig) -> Option<Rest> {
    rig.connection.as_ref().unwrap().rest()
}

fn subscribed(http_1_0: bool, keep_alive: bool) -> Resting {
    Resting::Subscribed {
        http_1_0,
        keep_alive,
    }
}

#[test]
fn a_connection_at_rest_is_the_same_again() {
    for doing in [
        Resting::Idle,
        subscribed(false, false),
        subscribed(false, true),
        subscribed(true, false),
    ] {
        for bits in 0..8 {
            let rest = Rest {
                facts: ConnectionFacts {
                    tls: bits & 1 != 0,
                    operator: bits & 2 != 0,
                    turned_away: None,
                    probe: bits & 4 != 0,
                },
                requests: 7,
                doing,
            };
            let connection = Connection::from_rest(ID, rest, None);
            assert_eq!(connection.rest(), Some(rest));
            let is_subscribed = doing != Resting::Idle;
            assert_eq!(connection.is_listener(), is_subscribed);
        }
    }
}

#[test]
fn it_rests_between_requests_and_only_there() {
    let mut rig = rig_with_stream("x");
    assert_eq!(rest(&rig).unwrap().requests, 0);
    let request = append("y");
    for split in 1..request.len() {
        rig.receive(&request.as_bytes()[..split]);
        assert_eq!(rest(&rig), None, "{:?}", &request[..split]);
        rig.receive(&request.as_bytes()[split..]);
        assert_eq!(rest(&rig).unwrap().requests as usize, split);
    }
    rig.held = true;
    rig.receive(request.as_bytes());
    assert_eq!(rest(&rig), None, "a command is decided");
    rig.release();
    rig.room = 1;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    assert_eq!(rest(&rig), None, "the response is not taken");
    rig.drain(usize::MAX);
    assert_eq!(rest(&rig).unwrap().doing, Resting::Idle);
    rig.receive(get("/v1/stream/a?offset=now&live=long-poll").as_bytes());
    assert_eq!(rest(&rig), None, "a long poll has a continuation");
}

#[test]
fn a_subscriber_rests_once_its_head_is_taken() {
    for (version, http_1_0) in [("1.1", false), ("1.0", true)] {
        let mut rig = rig_with_stream("x");
        rig.room = 1;
        rig.receive(
            format!("GET /v1/stream/a?offset=now&live=sse HTTP/{version}\r\nHost: a\r\n\r\n")
                .as_bytes(),
        );
        assert_eq!(rest(&rig), None);
        rig.drain(usize::MAX);
        let resting = rest(&rig).unwrap().doing;
        assert_eq!(resting, subscribed(http_1_0, !http_1_0));
    }
}

#[test]
fn what_rests_holds_no_memory() {
    let mut rig = rig_with_stream("x");
    rig.room = 1;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    assert!(rig.held_bytes() > 0);
    rig.drain(usize::MAX);
    rig.receive(b"GET / HT");
    assert!(rig.held_bytes() > 0);
    rig.receive(b"TP/1.1\r\nHost: a\r\n\r\n");
    rig.receive(b"");
    assert_eq!(rig.held_bytes(), 0);
}
