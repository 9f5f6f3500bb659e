//! Requests and responses of HTTP/1.1, one after the other.

use super::{append, create, get, received, rig_with_stream, statuses, with_body};
use crate::clients::addresses::Denied;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::testing::{Rig, TestServer, responses};
use crate::settings::NetSettings;

const HEALTH: &str = "/v1/stream/a?offset=-1";

#[test]
fn responses_come_in_the_order_of_their_requests_whatever_is_faster() {
    let mut rig = rig_with_stream("x");
    rig.held = true;
    // The second request could be answered at once, while the first waits for its commit.
    rig.receive(format!("{}{}", append("y"), get(HEALTH)).as_bytes());
    assert_eq!(rig.text(), "", "the first response waits");
    rig.release();
    let all = received(&rig.text());
    assert_eq!(all[0].status, 204);
    assert_eq!(all[1].text(), "xy", "and sees what the first has done");
    assert_eq!(all.len(), 2);
}

#[test]
fn many_requests_in_one_read_are_answered_one_by_one() {
    let mut rig = rig_with_stream("");
    let mut all = String::new();
    for number in 0..50 {
        all += &append(&format!("{number},"));
    }
    all += &get(HEALTH);
    let all = received(&rig.request(&all));
    assert_eq!(all.len(), 51);
    let wanted: String = (0..50).map(|number| format!("{number},")).collect();
    assert_eq!(all[50].text(), wanted);
}

#[test]
fn a_pipelined_request_waits_until_the_response_before_is_taken() {
    let mut rig = rig_with_stream("x");
    rig.room = 10;
    rig.receive(format!("{}{}", get(HEALTH), append("y")).as_bytes());
    assert_eq!(rig.taken.len(), 10);
    assert!(rig.connection.as_ref().unwrap().outbound().is_some());
    rig.drain(usize::MAX);
    assert_eq!(statuses(&rig.text()), [200, 204]);
    assert_eq!(received(&rig.text())[0].text(), "x");
}

#[test]
fn a_connection_is_kept_unless_the_client_ends_it() {
    let mut rig = rig_with_stream("x");
    assert_eq!(statuses(&rig.request(&get(HEALTH))), [200]);
    assert_eq!(rig.closed, None);
    let last = "GET /v1/stream/a?offset=-1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let response = rig.request(&format!("{last}{}", get(HEALTH)));
    let all = received(&response);
    assert_eq!(all.len(), 1, "what follows is not looked at");
    assert_eq!(all[0].field("Connection"), Some("close"));
    assert_eq!(rig.closed, Some(CloseReason::Done));
}

#[test]
fn a_client_of_http_1_0_gets_one_response_without_chunks() {
    let mut rig = rig_with_stream("x");
    let response = rig.request("GET /v1/stream/a?offset=-1 HTTP/1.0\r\n\r\n");
    assert_eq!(received(&response)[0].text(), "x");
    assert_eq!(rig.closed, Some(CloseReason::Done));

    let mut rig = rig.reconnect();
    let opened = rig.request("GET /v1/stream/a?offset=-1&live=sse HTTP/1.0\r\n\r\n");
    assert_eq!(received(&opened)[0].field("Transfer-Encoding"), None);
    assert!(rig.connection.as_ref().unwrap().is_http_1_0());
}

#[test]
fn a_connection_is_closed_behind_as_many_requests_as_it_may_make() {
    let settings = NetSettings {
        requests_per_connection: 2,
        ..NetSettings::default()
    };
    let mut rig = Rig::with(settings);
    create(&mut rig, "x");
    let last = received(&rig.request(&get(HEALTH)));
    assert_eq!(last[0].field("Connection"), Some("close"));
    assert_eq!(rig.closed, Some(CloseReason::RequestsPerConnection));
}

#[test]
fn a_body_is_invited_once_its_head_is_admitted() {
    let mut rig = rig_with_stream("");
    let head = "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n\
                Content-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(rig.request(head), "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(statuses(&rig.request("abc")), [204]);
    assert_eq!(received(&rig.request(&get(HEALTH)))[0].text(), "abc");
}

#[test]
fn a_body_that_is_on_its_way_already_is_not_invited() {
    let mut rig = rig_with_stream("");
    let head = "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n\
                Content-Length: 3\r\nExpect: 100-continue\r\n\r\na";
    assert_eq!(rig.request(head), "");
    assert_eq!(statuses(&rig.request("bc")), [204]);
}

#[test]
fn a_body_that_comes_before_its_invitation_is_taken_is_not_forgotten() {
    let head = "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n\
                Content-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    let mut rig = rig_with_stream("");
    rig.room = 5;
    rig.receive(head.as_bytes());
    rig.receive(b"abc");
    rig.drain(usize::MAX);
    assert_eq!(statuses(&rig.text()), [204]);
    // Nor is the time that it may take.
    let mut rig = rig.reconnect();
    rig.room = 5;
    rig.receive(head.as_bytes());
    rig.drain(usize::MAX);
    rig.pass(rig.server.settings.request_timeout);
    assert_eq!(statuses(&rig.text()), [408]);
}

#[test]
fn a_refused_head_gets_no_invitation_and_its_body_is_discarded() {
    let settings = NetSettings {
        body_bytes_max: 10,
        ..NetSettings::default()
    };
    let mut rig = Rig::with(settings);
    let head = "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\
                Expect: 100-continue\r\n\r\n";
    let response = rig.request(head);
    assert_eq!(statuses(&response), [413]);
    assert!(!response.contains("100 Continue"));
    assert!(rig.lingers);
    assert_eq!(rig.request("hello worldGET / HTTP/1.1\r\n\r\n"), "");
    assert_eq!(rig.closed, None, "it may read the response first");
}

#[test]
fn what_is_no_request_is_refused_and_the_rest_discarded_for_a_while() {
    for wrong in [
        "nonsense\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ] {
        let mut rig = Rig::new();
        let all = received(&rig.request(wrong));
        assert_eq!(all.len(), 1, "{wrong:?}");
        assert!(all[0].status >= 400 && all[0].is_complete, "{wrong:?}");
        assert_eq!(all[0].field("Connection"), Some("close"), "{wrong:?}");
        assert!(rig.lingers && rig.closed.is_none(), "{wrong:?}");
        assert_eq!(rig.request(&get("/")), "", "{wrong:?}");
        rig.half_close();
        assert_eq!(rig.closed, Some(CloseReason::HangUp), "{wrong:?}");
        assert_eq!(rig.held_bytes(), 0);
    }
}

#[test]
fn a_refusal_comes_behind_the_responses_before_it() {
    let mut rig = rig_with_stream("x");
    rig.held = true;
    rig.receive(format!("{}nonsense\r\n\r\n", append("y")).as_bytes());
    assert_eq!(rig.text(), "");
    rig.release();
    assert_eq!(statuses(&rig.text()), [204, 400]);
}

#[test]
fn a_response_to_head_has_no_body() {
    let mut rig = rig_with_stream("x");
    let head = "HEAD /v1/stream/a HTTP/1.1\r\nHost: a\r\n\r\n";
    let missing = "HEAD /v1/stream/b HTTP/1.1\r\nHost: a\r\n\r\n";
    let text = rig.request(&format!("{head}{missing}{}", get(HEALTH)));
    let all = responses(text.as_bytes(), |number| number < 2);
    let statuses: Vec<u16> = all.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [200, 404, 200]);
    assert!(
        all[1]
            .field("Content-Length")
            .is_some_and(|length| length != "0")
    );
    assert_eq!(all[2].text(), "x", "it follows right behind");
}

#[test]
fn an_event_source_that_comes_too_early_is_asked_to_come_back() {
    let settings = NetSettings {
        request_rate: 1,
        request_burst: 2,
        exempt: crate::networks::Networks::default(),
        ..NetSettings::default()
    };
    let mut server = TestServer::new(settings);
    server.peer = [192, 0, 2, 1].into();
    let owner = server
        .clients
        .admit(Some(server.peer), server.clock.now())
        .unwrap();
    server
        .clients
        .set_owner(crate::connection::testing::ID, owner);
    let mut rig = Rig::of(server, ConnectionFacts::default());
    create(&mut rig, "x");
    let plain = get("/v1/stream/a?offset=-1&live=sse");
    assert_eq!(statuses(&rig.request(&plain)), [429]);
    // An `EventSource` gives up for good at any status but 200.
    let events = "GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nHost: a\r\n\
                  Accept: text/event-stream\r\nCache-Control: no-cache\r\n\r\n";
    // Some clients of the protocol, which ask for events as well, would come back at once.
    let client = events.replace("Cache-Control: no-cache\r\n", "");
    assert_eq!(statuses(&rig.request(&client)), [429]);
    let softened = received(&rig.request(events));
    assert_eq!(softened[0].status, 200);
    assert!(softened[0].text().starts_with("retry: "), "{softened:?}");
    assert!(softened[0].is_complete, "and the connection goes on");
}

#[test]
fn requests_at_the_address_for_operators_are_noted() {
    let facts = ConnectionFacts {
        operator: true,
        ..ConnectionFacts::default()
    };
    let mut rig = Rig::of(TestServer::new(NetSettings::default()), facts);
    let response = rig.request(&format!("{}{}", get("/metrics"), get("/metrics")));
    assert_eq!(statuses(&response), [200, 200]);
    let noted = rig.count_noted(|effect| matches!(effect, ConnectionEffect::NoteOperator));
    assert_eq!(noted, 2);
}

#[test]
fn a_connection_that_was_turned_away_gets_one_refusal() {
    let facts = ConnectionFacts {
        turned_away: Some(Denied::NoPlace),
        ..ConnectionFacts::default()
    };
    for request in [get(HEALTH), with_body("POST /v1/stream/a", "", "x")] {
        let mut rig = Rig::of(TestServer::new(NetSettings::default()), facts);
        let all = received(&rig.request(&format!("{request}{request}")));
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].status, 503);
        assert_eq!(all[0].field("Connection"), Some("close"));
    }
    // One that sends nothing in time.
    let mut rig = Rig::of(TestServer::new(NetSettings::default()), facts);
    rig.receive(b"GET / HT");
    rig.act(|connection, cx| connection.turn_away(cx));
    assert_eq!(statuses(&rig.text()), [503]);
}

#[test]
fn commands_for_which_there_is_no_room_are_refused() {
    let mut rig = rig_with_stream("x");
    rig.held = true;
    rig.receive(format!("{}{}", append("y"), get(HEALTH)).as_bytes());
    rig.refuse_waiting();
    let waiting = rig.waiting.len();
    rig.release();
    let all = received(&rig.text());
    assert_eq!(all[0].status, 503);
    assert!(all[0].field("Retry-After").is_some());
    assert_eq!(all[1].text(), "x", "and nothing was written ({waiting})");
}
