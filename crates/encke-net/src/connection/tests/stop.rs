//! What becomes of connections when the server stops.

use super::{append, get, received, rig_with_stream, statuses};
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::testing::Rig;

fn stop(rig: &mut Rig) {
    rig.server.stopping = true;
    rig.on(Event::Stopping);
}

#[test]
fn idle_and_subscribed_connections_are_closed_at_once() {
    for target in ["", "/v1/stream/a?offset=now&live=sse"] {
        let mut rig = rig_with_stream("x");
        if !target.is_empty() {
            rig.receive(get(target).as_bytes());
        }
        stop(&mut rig);
        assert_eq!(rig.closed, Some(CloseReason::Stopping), "{target}");
        assert!(!rig.is_cut);
    }
}

#[test]
fn a_request_that_is_not_complete_is_given_up() {
    for part in [
        "GET /",
        "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx",
    ] {
        let mut rig = rig_with_stream("x");
        rig.receive(part.as_bytes());
        stop(&mut rig);
        assert_eq!(rig.closed, Some(CloseReason::Stopping));
        assert_eq!(rig.text(), "");
        assert_eq!(rig.held_bytes(), 0);
    }
}

#[test]
fn a_request_in_work_is_answered_and_those_behind_it_are_not() {
    let mut rig = rig_with_stream("x");
    rig.held = true;
    rig.receive(format!("{}{}", append("y"), append("z")).as_bytes());
    stop(&mut rig);
    assert_eq!(rig.closed, None);
    rig.release();
    let all = received(&rig.text());
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].status, all[0].field("Connection")),
        (204, Some("close"))
    );
    assert_eq!(rig.closed, Some(CloseReason::Done));
}

#[test]
fn a_long_poll_is_answered() {
    let mut rig = rig_with_stream("x");
    rig.receive(get("/v1/stream/a?offset=now&live=long-poll").as_bytes());
    stop(&mut rig);
    assert_eq!(statuses(&rig.text()), [204]);
    assert_eq!(rig.closed, Some(CloseReason::Done));
}

#[test]
fn a_response_that_is_not_taken_is_completed_and_is_cut_only_if_that_takes_too_long() {
    let mut rig = rig_with_stream("x");
    rig.room = 5;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    stop(&mut rig);
    assert_eq!(rig.closed, None);
    assert!(rig.connection.as_ref().unwrap().is_cut_by_stop());
    rig.drain(usize::MAX);
    assert_eq!(received(&rig.text())[0].text(), "x");
    assert_eq!(rig.closed, Some(CloseReason::Done));
}

#[test]
fn a_refused_client_keeps_its_moment_to_read_that() {
    let mut rig = Rig::new();
    rig.receive(b"nonsense\r\n\r\n");
    stop(&mut rig);
    assert_eq!(rig.closed, None);
    rig.pass(std::time::Duration::from_secs(2));
    assert_eq!(rig.closed, Some(CloseReason::Lingered));
}
