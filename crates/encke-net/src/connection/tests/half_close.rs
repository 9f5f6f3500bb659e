//! Clients that end their side.

use super::{append, get, received, rig_with_stream, statuses};
use crate::connection::close::CloseReason;
use crate::connection::testing::Rig;

#[test]
fn between_two_requests_and_within_one_it_is_a_hang_up() {
    for sent in [
        "",
        "GET / HT",
        "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx",
    ] {
        let mut rig = Rig::new();
        rig.receive(sent.as_bytes());
        rig.half_close();
        assert_eq!(rig.closed, Some(CloseReason::HangUp), "{sent:?}");
        assert_eq!(rig.text(), "", "{sent:?}");
        assert_eq!(rig.held_bytes(), 0, "{sent:?}");
    }
}

#[test]
fn a_request_in_work_gets_its_response() {
    for (request, status) in [(append("y"), 204), (get("/v1/stream/a?offset=-1"), 200)] {
        let mut rig = rig_with_stream("x");
        rig.held = true;
        rig.receive(request.as_bytes());
        rig.half_close();
        rig.release();
        assert_eq!(statuses(&rig.text()), [status], "{request:?}");
        assert_eq!(rig.closed, Some(CloseReason::Done), "{request:?}");
    }
}

#[test]
fn all_requests_before_it_get_their_responses() {
    let mut rig = rig_with_stream("x");
    rig.held = true;
    rig.receive(
        format!(
            "{}{}{}",
            append("y"),
            append("z"),
            get("/v1/stream/a?offset=-1")
        )
        .as_bytes(),
    );
    rig.half_close();
    rig.release();
    let all = received(&rig.text());
    assert_eq!(all.len(), 3);
    assert_eq!(all[2].text(), "xyz");
    assert!(rig.closed.is_some());
}

#[test]
fn a_request_that_is_not_complete_behind_one_in_work_is_given_up() {
    let mut rig = rig_with_stream("x");
    rig.held = true;
    rig.receive(format!("{}GET / HT", append("y")).as_bytes());
    rig.half_close();
    rig.release();
    assert_eq!(statuses(&rig.text()), [204]);
    assert_eq!(rig.closed, Some(CloseReason::HangUp));
}

#[test]
fn a_response_that_waits_for_the_client_is_taken_to_its_end() {
    let mut rig = rig_with_stream("x");
    rig.room = 10;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    rig.half_close();
    assert_eq!(rig.closed, None);
    rig.drain(usize::MAX);
    assert_eq!(received(&rig.text())[0].text(), "x");
    assert_eq!(rig.closed, Some(CloseReason::Done));
}

#[test]
fn for_a_subscriber_and_a_long_poll_it_is_a_hang_up() {
    for target in [
        "/v1/stream/a?offset=now&live=sse",
        "/v1/stream/a?offset=now&live=long-poll",
    ] {
        let mut rig = rig_with_stream("x");
        rig.receive(get(target).as_bytes());
        assert_eq!(rig.closed, None, "{target}");
        rig.half_close();
        assert_eq!(rig.closed, Some(CloseReason::HangUp), "{target}");
    }
}

#[test]
fn for_one_that_subscribes_behind_it_too() {
    for target in [
        "/v1/stream/a?offset=now&live=sse",
        "/v1/stream/a?offset=now&live=long-poll",
    ] {
        for behind in ["", "GET"] {
            let mut rig = rig_with_stream("x");
            rig.held = true;
            rig.receive(format!("{}{}{behind}", append("y"), get(target)).as_bytes());
            rig.half_close();
            assert_eq!(rig.closed, None, "{target}");
            rig.release();
            assert_eq!(rig.closed, Some(CloseReason::HangUp), "{target} {behind:?}");
            assert_eq!(rig.held_bytes(), 0, "{target}");
        }
    }
}

#[test]
fn a_request_that_waits_behind_an_untaken_invitation_gets_its_response() {
    let head = "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n\
                Content-Length: 1\r\nExpect: 100-continue\r\n\r\n";
    let mut rig = rig_with_stream("x");
    rig.room = 3;
    rig.receive(head.as_bytes());
    rig.receive(b"y");
    rig.half_close();
    assert_eq!(rig.closed, None);
    rig.drain(usize::MAX);
    assert_eq!(statuses(&rig.text()), [204]);
    assert!(rig.closed.is_some());
}
