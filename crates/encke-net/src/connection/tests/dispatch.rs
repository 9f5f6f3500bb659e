//! Requests to the dispatcher.

use encke_protocol::DispatchResponse;

use super::{get, received, statuses};
use crate::clients::callers::CallerEnd;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::testing::{ID, Rig};

/// A rig with a worker's request, and the request's number.
fn worker() -> (Rig, u32) {
    let mut rig = Rig::new();
    rig.receive(b"POST /v1/pool/p/work?worker=w HTTP/1.1\r\nHost: a\r\n\r\n");
    let number = waiting(&mut rig);
    (rig, number)
}

/// The same, once it is registered.
fn registered() -> (Rig, u32) {
    let (mut rig, number) = worker();
    rig.on_exchange(
        ID,
        ExchangeEvent::Dispatched(DispatchResponse::Registered { slot: 0 }),
    );
    (rig, number)
}

fn waiting(rig: &mut Rig) -> u32 {
    match rig.waiting.pop_front() {
        Some(ConnectionEffect::Dispatch(ID, number, _)) => number,
        other => panic!("the dispatcher has no request but {other:?}"),
    }
}

fn abandoned(rig: &Rig) -> Vec<u32> {
    let noted = rig.noted.iter();
    noted
        .filter_map(|effect| match effect {
            ConnectionEffect::AbandonDispatch(ID, number) => Some(*number),
            _ => None,
        })
        .collect()
}

#[test]
fn its_response_is_that_of_the_request_and_the_next_one_follows() {
    let mut rig = Rig::new();
    rig.receive(format!("{}{}", get("/v1/pool"), get("/v1/stream/none")).as_bytes());
    let number = waiting(&mut rig);
    let connection = rig.connection.as_ref().unwrap();
    assert!(connection.awaits_dispatch(ID, number) && !connection.awaits_dispatch(ID, number + 1));
    rig.on_exchange(
        ID,
        ExchangeEvent::Dispatched(DispatchResponse::Listed(Vec::new())),
    );
    assert_eq!(statuses(&rig.text()), [200, 404]);
    assert!(abandoned(&rig).is_empty());
}

#[test]
fn a_worker_gets_heartbeats_and_its_end() {
    let (mut rig, number) = registered();
    let before = rig.taken.len();
    rig.on(Event::Quiet(ID));
    assert!(rig.taken.len() > before);
    rig.on_exchange(ID, ExchangeEvent::Dispatched(DispatchResponse::Replaced));
    let all = received(&rig.text());
    assert!(all[0].is_complete && all[0].text().ends_with("event: replaced\ndata: {}\n\n"));
    assert_eq!(abandoned(&rig), [number]);
    assert_eq!(rig.closed, Some(CloseReason::Done));
}

#[test]
fn the_end_of_a_worker_at_a_stop_is_not_the_end_of_its_body() {
    let (mut rig, _) = registered();
    rig.server.stopping = true;
    rig.on(Event::Stopping);
    assert_eq!(rig.closed, None, "the dispatcher ends it");
    rig.on_exchange(ID, ExchangeEvent::Dispatched(DispatchResponse::Stopping));
    let all = received(&rig.text());
    assert!(!all[0].is_complete && all[0].text().ends_with("event: stopping\ndata: {}\n\n"));
    assert!(rig.closed.is_some());
}

#[test]
fn a_worker_or_a_poll_that_hangs_up_is_given_up() {
    let (mut rig, number) = registered();
    rig.half_close();
    assert_eq!(rig.closed, Some(CloseReason::HangUp));
    assert_eq!(abandoned(&rig), [number]);
    // A poll for a job waits long, too.
    let (mut rig, number) = worker();
    rig.half_close();
    assert_eq!(rig.closed, Some(CloseReason::HangUp));
    assert_eq!(abandoned(&rig), [number]);
}

#[test]
fn a_worker_whose_caller_ends_hears_why_and_its_jobs_go_to_others() {
    let (mut rig, number) = registered();
    rig.on_exchange(ID, ExchangeEvent::CallerEnded(CallerEnd::Revoked));
    let all = received(&rig.text());
    assert!(
        all[0]
            .text()
            .contains("event: removed\ndata: {\"reason\":\"the token was revoked\"}")
    );
    assert_eq!(abandoned(&rig), [number]);
    assert_eq!(rig.closed, Some(CloseReason::Done));
}

#[test]
fn the_dispatcher_answers_a_request_whose_caller_ends() {
    let (mut rig, number) = worker();
    rig.on_exchange(ID, ExchangeEvent::CallerEnded(CallerEnd::Expired));
    let is_end = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::EndDispatch(ID, at) if *at == number);
    assert_eq!(rig.count_noted(is_end), 1);
    assert_eq!(rig.text(), "");
}

#[test]
fn events_behind_the_response_are_ignored() {
    let mut rig = Rig::new();
    rig.receive(get("/v1/pool").as_bytes());
    waiting(&mut rig);
    let listed = || ExchangeEvent::Dispatched(DispatchResponse::Listed(Vec::new()));
    rig.on_exchange(ID, listed());
    rig.on_exchange(ID, listed());
    assert_eq!(statuses(&rig.text()), [200]);
}
