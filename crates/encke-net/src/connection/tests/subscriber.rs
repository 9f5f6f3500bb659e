//! Subscribers, and what they have not taken.

use std::time::Duration;

use encke_stream::Offset;

use super::{append, get, rig_with_stream, statuses};
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::outbound::Outbound;
use crate::connection::testing::{ID, Rig};

const AT: Offset = Offset {
    sequence: 9,
    units: 0,
};

fn subscriber() -> Rig {
    let mut rig = rig_with_stream("x");
    rig.receive(get("/v1/stream/a?offset=now&live=sse").as_bytes());
    let is_subscribe =
        |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Subscribe(..));
    assert_eq!(rig.count_noted(is_subscribe), 1);
    rig.noted.clear();
    rig.taken.clear();
    rig
}

/// A subscriber that has taken a part of its event.
fn blocked(close: Option<CloseReason>) -> Rig {
    let mut rig = subscriber();
    rig.room = 2;
    rig.deliver(b"event", |bytes| {
        let mut outbound = Outbound::new(bytes);
        outbound.reached = Some(AT);
        outbound.close = close;
        outbound
    });
    rig
}

/// The positions from which the connection wants records again.
fn delivered(rig: &Rig) -> Vec<Option<Offset>> {
    let noted = rig.noted.iter();
    noted
        .filter_map(|effect| match effect {
            ConnectionEffect::Deliver(ID, reached) => Some(*reached),
            _ => None,
        })
        .collect()
}

#[test]
fn it_is_blocked_until_everything_is_taken_and_goes_on_behind_its_mark() {
    let mut rig = blocked(None);
    assert!(rig.connection.as_ref().unwrap().is_blocked(ID));
    assert!(rig.held_bytes() > 0);
    rig.drain(2);
    assert_eq!(delivered(&rig), []);
    rig.drain(usize::MAX);
    assert_eq!(rig.text(), "event");
    assert_eq!(delivered(&rig), [Some(AT)]);
    assert!(!rig.connection.as_ref().unwrap().is_blocked(ID));
    assert_eq!(rig.held_bytes(), 0);
}

fn is_unsubscribe(effect: &ConnectionEffect) -> bool {
    matches!(effect, ConnectionEffect::Unsubscribe(ID))
}

#[test]
fn behind_its_last_event_the_next_request_may_follow() {
    let mut rig = blocked(Some(CloseReason::Ended));
    rig.drain(2);
    assert_eq!(rig.count_noted(is_unsubscribe), 0);
    rig.drain(usize::MAX);
    assert_eq!(rig.text(), "event");
    assert_eq!((rig.closed, rig.count_noted(is_unsubscribe)), (None, 1));
    assert_eq!(delivered(&rig), []);
    rig.taken.clear();
    assert_eq!(statuses(&rig.request(&append("y"))), [204]);
}

#[test]
fn nothing_follows_the_last_event_where_the_client_can_not_tell_or_has_not_waited() {
    let follow = "/v1/stream/a?offset=now&live=sse";
    let old = format!("GET {follow} HTTP/1.0\r\nHost: a\r\n\r\n");
    let last = format!("GET {follow} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    for (request, early) in [(get(follow), &b"early"[..]), (old, b""), (last, b"")] {
        let mut rig = rig_with_stream("x");
        rig.receive(request.as_bytes());
        rig.receive(early);
        rig.act(|connection, cx| connection.feed_ended(cx));
        assert_eq!(rig.closed, Some(CloseReason::Ended), "{request}");
        assert!(!rig.is_cut);
    }
}

#[test]
fn a_farewell_goes_behind_what_was_not_taken() {
    let mut rig = blocked(None);
    rig.dismiss(b"farewell", CloseReason::LagMax);
    assert!(rig.connection.as_ref().unwrap().is_dismissed(ID));
    rig.drain(usize::MAX);
    assert_eq!(rig.text(), "eventfarewell");
    assert_eq!(rig.closed, Some(CloseReason::LagMax));
    assert!(!rig.is_cut);
}

#[test]
fn a_farewell_to_one_that_takes_everything_closes_it_at_once() {
    let mut rig = subscriber();
    rig.dismiss(b"farewell", CloseReason::Expired);
    assert_eq!(rig.text(), "farewell");
    assert_eq!(rig.closed, Some(CloseReason::Expired));
}

#[test]
fn one_that_was_sent_a_farewell_gets_no_more_time() {
    let mut rig = blocked(None);
    let stall = rig.server.settings.stall_timeout;
    rig.dismiss(b"farewell", CloseReason::LagMax);
    rig.pass(stall - Duration::from_secs(1));
    rig.drain(4);
    assert_eq!(rig.closed, None);
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.closed, Some(CloseReason::LagMax), "and not as stalled");
    assert!(rig.is_cut);
}

#[test]
fn what_it_sends_is_discarded_unless_it_is_too_much() {
    let mut rig = subscriber();
    rig.receive(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!((rig.text(), rig.closed), (String::new(), None));
    assert_eq!(rig.held_bytes(), 0);
    let bytes = &[b'x'; 100];
    rig.on(Event::Received { bytes, full: true });
    assert_eq!(rig.closed, Some(CloseReason::Talkative));
}

#[test]
fn when_memory_is_used_up_one_that_takes_nothing_is_cut_off() {
    let mut rig = subscriber();
    let all = rig.server.settings.buffers_bytes_max;
    let mut other = crate::buffers::BufferShare::default();
    other.set(all, &rig.server.buffers);
    rig.room = 2;
    rig.deliver(b"event", Outbound::new);
    assert_eq!(rig.closed, Some(CloseReason::BuffersMax));
    assert!(rig.is_cut);
    drop(other);
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn a_node_that_left_its_fleet_dismisses_subscribers_and_answers_polls() {
    let mut rig = subscriber();
    rig.on(Event::OutOfFleet);
    let is_dismiss = |effect: &ConnectionEffect| {
        matches!(
            effect,
            ConnectionEffect::Dismiss(ID, CloseReason::OutOfFleet)
        )
    };
    assert_eq!(rig.count_noted(is_dismiss), 1);

    let mut rig = rig_with_stream("x");
    rig.receive(get("/v1/stream/a?offset=now&live=long-poll").as_bytes());
    rig.on(Event::OutOfFleet);
    assert_eq!(super::statuses(&rig.text()), [204]);
}
