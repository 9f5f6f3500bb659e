//! Bounds on what a connection holds, and on what comes before its first request.

use super::{append, get, received, rig_with_stream, statuses};
use crate::buffers::BufferShare;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::exchange_id::ExchangePlace;
use crate::connection::testing::{ID, Rig, TestServer};
use crate::settings::NetSettings;

#[test]
fn what_a_client_sends_ahead_is_bounded_and_nothing_of_it_is_lost() {
    let mut rig = rig_with_stream("");
    rig.held = true;
    rig.receive(append("first,").as_bytes());
    let bytes_max = rig.server.settings.pipeline_bytes_max;
    let mut sent = 0;
    let ahead = append("ahead,");
    while sent < 3 * bytes_max {
        rig.receive(ahead.as_bytes());
        sent += ahead.len();
    }
    let held = rig.held_bytes();
    assert!(held >= bytes_max && held < 3 * bytes_max, "{held}");
    rig.release();
    let all = received(&rig.text());
    assert_eq!(all.len(), 1 + sent / ahead.len());
    assert!(all.iter().all(|one| one.status == 204));
    rig.receive(b"");
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn a_request_for_which_there_is_no_memory_is_refused() {
    let mut rig = rig_with_stream("x");
    rig.receive(b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx");
    let is_grow = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Grow(ID));
    assert!(rig.count_noted(is_grow) > 0);
    rig.on(Event::NoMemory(ID));
    let all = received(&rig.text());
    assert_eq!((all[0].status, all.len()), (503, 1));
    assert!(rig.lingers);
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn what_is_shed_is_refused_if_it_can_be_and_cut_off_otherwise() {
    let mut rig = rig_with_stream("x");
    rig.receive(b"GET / HT");
    rig.on(Event::Shed(ID));
    assert_eq!(statuses(&rig.text()), [503]);

    let mut rig = rig_with_stream("x");
    rig.room = 3;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    rig.on(Event::Shed(ID));
    assert_eq!(rig.closed, Some(CloseReason::BuffersMax));
    assert!(rig.is_cut);
}

#[test]
fn a_response_that_is_not_taken_is_cut_off_when_memory_is_used_up() {
    let mut rig = rig_with_stream("x");
    let mut other = BufferShare::default();
    other.set(rig.server.settings.buffers_bytes_max, &rig.server.buffers);
    rig.room = 3;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    assert_eq!(rig.closed, Some(CloseReason::BuffersMax));
    assert!(rig.is_cut);
}

fn behind_a_proxy(makes_handshakes: bool) -> Rig {
    let settings = NetSettings {
        proxy_protocol: true,
        ..NetSettings::default()
    };
    let mut server = TestServer::new(settings);
    server.makes_handshakes = makes_handshakes;
    Rig::of(server, ConnectionFacts::default())
}

const PROXY: &str = "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n";

#[test]
fn a_header_of_the_proxy_protocol_names_the_client_wherever_it_is_split() {
    let request = get("/v1/stream/none");
    let all = format!("{PROXY}{request}");
    for split in 0..all.len() {
        let mut rig = behind_a_proxy(false);
        rig.receive(&all.as_bytes()[..split]);
        rig.receive(&all.as_bytes()[split..]);
        assert_eq!(statuses(&rig.text()), [404], "{split}");
        let place = ExchangePlace {
            exchange: ID,
            connection: ID,
        };
        let client = rig.server.with_context(|cx| cx.client_name(place));
        assert_eq!(client, "192.0.2.1", "{split}");
    }
}

#[test]
fn without_its_header_a_connection_is_refused() {
    let mut rig = behind_a_proxy(false);
    assert_eq!(statuses(&rig.request(&get("/"))), [400]);
    // It has as long as a head.
    let mut rig = behind_a_proxy(false);
    rig.receive(b"PROXY TCP4");
    rig.pass(rig.server.settings.request_timeout);
    assert_eq!(statuses(&rig.text()), [408]);
    let mut rig = behind_a_proxy(false);
    rig.pass(rig.server.settings.request_timeout);
    assert_eq!(statuses(&rig.text()), [408]);
}

#[test]
fn behind_the_header_may_be_a_handshake() {
    let mut rig = behind_a_proxy(true);
    rig.receive(format!("{PROXY}hello").as_bytes());
    let handshake = rig.noted.iter().find_map(|effect| match effect {
        ConnectionEffect::Handshake(received, client) => Some((received.clone(), *client)),
        _ => None,
    });
    let client = Some([192, 0, 2, 1].into());
    assert_eq!(handshake, Some((b"hello".to_vec(), client)));
    rig.on(Event::Handshaken { http2: false });
    assert_eq!(statuses(&rig.request(&get("/v1/stream/none"))), [404]);
}
