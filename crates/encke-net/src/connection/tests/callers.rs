//! Callers whose time ends.

use std::time::Duration;

use super::{append, create, get, received, rig_with_stream, statuses};
use crate::clients::callers::CallerEnd;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::testing::{ID, Rig};

fn end(rig: &mut Rig, end: CallerEnd) {
    rig.act(|connection, cx| connection.end_caller(ID, end, cx));
}

const ENDS: [(CallerEnd, CloseReason); 2] = [
    (CallerEnd::Expired, CloseReason::Expired),
    (CallerEnd::Revoked, CloseReason::Revoked),
];

#[test]
fn a_subscriber_is_dismissed_with_the_reason() {
    for (ended, reason) in ENDS {
        let mut rig = rig_with_stream("x");
        rig.receive(get("/v1/stream/a?offset=now&live=sse").as_bytes());
        end(&mut rig, ended);
        let is_dismiss = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Dismiss(ID, why) if *why == reason);
        assert_eq!(rig.count_noted(is_dismiss), 1);
    }
}

#[test]
fn a_long_poll_is_answered_and_the_client_asks_again() {
    for (ended, _) in ENDS {
        let mut rig = rig_with_stream("x");
        rig.receive(get("/v1/stream/a?offset=now&live=long-poll").as_bytes());
        end(&mut rig, ended);
        assert_eq!(statuses(&rig.text()), [204]);
        assert_eq!(rig.closed, None);
        assert_eq!(statuses(&rig.request(&append("y"))), [204]);
    }
}

#[test]
fn what_begins_behind_a_read_ends_with_a_caller_that_has_ended_meanwhile() {
    for (ended, reason) in ENDS {
        let mut rig = rig_with_stream("x");
        rig.held = true;
        rig.receive(get("/v1/stream/a?last=5&live=sse").as_bytes());
        end(&mut rig, ended);
        rig.release();
        let is_dismiss = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Dismiss(ID, why) if *why == reason);
        assert_eq!(rig.count_noted(is_dismiss), 1);
    }
    for (ended, _) in ENDS {
        let mut rig = rig_with_stream("x");
        rig.held = true;
        rig.receive(get("/v1/stream/a?last=5").as_bytes());
        end(&mut rig, ended);
        rig.release();
        assert_eq!(statuses(&rig.text()), [200], "a page is read in no time");
        assert_eq!(statuses(&rig.request(&append("y"))).len(), 1);
    }
}

#[test]
fn between_requests_and_for_a_command_it_changes_nothing() {
    for (ended, _) in ENDS {
        let mut rig = rig_with_stream("x");
        end(&mut rig, ended);
        rig.held = true;
        rig.receive(append("y").as_bytes());
        end(&mut rig, ended);
        rig.release();
        assert_eq!(statuses(&rig.text()), [204]);
        assert_eq!(rig.closed, None);
    }
}

/// A rig with a long body, of which the client takes a part.
fn long_body() -> Rig {
    let mut rig = Rig::new();
    create(&mut rig, "");
    for _ in 0..30 {
        rig.receive(append(&"x".repeat(100_000)).as_bytes());
    }
    let mut rig = rig.reconnect();
    rig.room = 10_000;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    rig
}

#[test]
fn a_long_body_is_cut_off_for_a_revoked_caller() {
    let mut rig = long_body();
    end(&mut rig, CallerEnd::Revoked);
    assert_eq!(rig.closed, Some(CloseReason::Revoked));
    assert!(rig.is_cut);
}

#[test]
fn a_long_body_may_be_completed_for_one_that_has_expired_but_within_a_time() {
    let mut rig = long_body();
    end(&mut rig, CallerEnd::Expired);
    rig.drain(usize::MAX);
    assert_eq!(received(&rig.text())[0].body.len(), 3_000_000);
    assert_eq!(rig.closed, None);
    rig.pass(rig.server.settings.body_timeout);
    assert_eq!(rig.closed, None, "the next request is another one's");

    let mut rig = long_body();
    end(&mut rig, CallerEnd::Expired);
    let mut passed = Duration::ZERO;
    while rig.closed.is_none() {
        rig.pass(Duration::from_secs(10));
        rig.drain(10);
        passed += Duration::from_secs(10);
    }
    assert_eq!(rig.closed, Some(CloseReason::Expired));
    assert_eq!(passed, rig.server.settings.body_timeout);
}
