//! Time that a client may take.

use std::time::Duration;

use super::{append, received, rig_with_stream, statuses};
use crate::connection::close::CloseReason;
use crate::connection::testing::Rig;
use crate::settings::NetSettings;

fn settings() -> NetSettings {
    NetSettings {
        request_timeout: SECOND * 10,
        body_timeout: SECOND * 25,
        stall_timeout: SECOND * 30,
        ..NetSettings::default()
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_head_has_one_deadline_that_single_bytes_do_not_extend() {
    let mut rig = Rig::with(settings());
    for byte in b"GET / HTTP" {
        rig.receive(&[*byte]);
        assert_eq!(rig.text(), "");
        rig.pass(SECOND);
    }
    let all = received(&rig.text());
    assert_eq!(all[0].status, 408);
    assert!(rig.lingers);
}

#[test]
fn each_part_of_a_body_extends_its_deadline_up_to_a_bound() {
    let mut rig = Rig::with(settings());
    rig.receive(b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
    for _ in 0..3 {
        rig.pass(SECOND * 8);
        assert_eq!(rig.text(), "");
        rig.receive(b"x");
    }
    rig.pass(SECOND);
    let all = received(&rig.text());
    assert_eq!(all[0].status, 408);
    assert!(all[0].text().contains("body"), "{:?}", all[0].text());
}

#[test]
fn a_body_that_pauses_for_too_long_is_refused() {
    let mut rig = Rig::with(settings());
    rig.receive(b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx");
    rig.pass(SECOND * 9);
    assert_eq!(rig.text(), "");
    rig.pass(SECOND);
    assert_eq!(statuses(&rig.text()), [408]);
}

#[test]
fn a_connection_between_two_requests_has_no_deadline() {
    let mut rig = rig_with_stream("x");
    rig.receive(append("y").as_bytes());
    rig.pass(SECOND * 100_000);
    assert_eq!(rig.closed, None);
    assert_eq!(statuses(&rig.request(&append("z"))), [204]);
}

#[test]
fn time_for_a_request_begins_with_its_first_byte() {
    let mut rig = Rig::with(settings());
    rig.pass(SECOND * 100);
    rig.receive(b"GET");
    rig.pass(SECOND * 9);
    assert_eq!(rig.text(), "");
    // The second one has its own, though it begins in the buffer of the first.
    rig.receive(b" /v1/stream/none HTTP/1.1\r\nHost: a\r\n\r\nGET");
    assert_eq!(statuses(&rig.text()), [404]);
    rig.pass(SECOND * 9);
    assert_eq!(statuses(&rig.text()), [404]);
    rig.pass(SECOND);
    assert_eq!(statuses(&rig.text()), [404, 408]);
}

#[test]
fn a_refused_client_has_a_moment_to_read_the_response() {
    let mut rig = Rig::with(settings());
    rig.receive(b"nonsense\r\n\r\n");
    rig.pass(SECOND);
    assert_eq!(rig.closed, None);
    rig.pass(SECOND);
    assert_eq!(rig.closed, Some(CloseReason::Lingered));
}

#[test]
fn a_client_that_takes_nothing_is_cut_off_and_one_that_takes_something_is_not() {
    let mut rig = Rig::with(settings());
    rig.room = 10;
    rig.receive(b"GET /v1/stream/none HTTP/1.1\r\nHost: a\r\n\r\n");
    for _ in 0..5 {
        rig.pass(SECOND * 29);
        rig.drain(1);
    }
    assert_eq!(rig.taken.len(), 15);
    rig.pass(SECOND * 30);
    assert_eq!(rig.closed, Some(CloseReason::Stalled));
    assert!(rig.is_cut, "it must not take the beginning for the whole");
}
