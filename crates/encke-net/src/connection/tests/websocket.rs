//! Channels of WebSocket.

use std::sync::Arc;
use std::time::Duration;

use encke_access::{Access, AccessConfig};
use encke_protocol::{Gate, Policy};
use serde_json::{Value, json};

use super::{create, rig_with_stream};
use crate::clients::callers::CallerEnd;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::testing::websocket_client::{
    BINARY, CLOSE, PING, PONG, ReceivedFrame, frame, open, open_with, take_frames, text,
};
use crate::connection::testing::{ID, Rig, TestServer};
use crate::settings::NetSettings;

/// A rig with a channel, whose server has the stream `a`.
fn channel() -> Rig {
    open(rig_with_stream("x"), "/v1/events")
}

fn subscribe(id: u64) -> Vec<u8> {
    text(&format!(
        r#"{{"type":"subscribe","id":{id},"stream":"a","offset":"-1"}}"#
    ))
}

fn subscribe_last(id: u64, count: u64) -> Vec<u8> {
    text(&format!(
        r#"{{"type":"subscribe","id":{id},"stream":"a","last":{count}}}"#
    ))
}

fn append(id: u64, bytes: usize) -> Vec<u8> {
    let data = "y".repeat(bytes);
    text(&format!(
        r#"{{"type":"append","id":{id},"stream":"a","text":"{data}"}}"#
    ))
}

/// What the client receives for some bytes.
fn messages(rig: &mut Rig, bytes: &[u8]) -> Vec<Value> {
    rig.receive(bytes);
    let frames = take_frames(rig);
    frames.iter().map(ReceivedFrame::json).collect()
}

fn subscriptions(rig: &Rig) -> usize {
    rig.count_noted(|effect| matches!(effect, ConnectionEffect::Subscribe(..)))
}

fn is_submit(effect: &&ConnectionEffect) -> bool {
    matches!(effect, ConnectionEffect::Submit(..))
}

/// The numbers of the appends that are acknowledged.
fn acknowledged(rig: &mut Rig) -> Vec<u64> {
    let frames = take_frames(rig);
    let appended = frames.iter().map(ReceivedFrame::json);
    let appended = appended.filter(|message| message["type"] == "appended");
    appended
        .filter_map(|message| message["id"].as_u64())
        .collect()
}

#[test]
fn an_idle_channel_holds_nothing_and_answers_again() {
    let mut rig = channel();
    for id in 1..4 {
        let appended = messages(&mut rig, &append(id, 5));
        assert_eq!(appended[0]["type"], "appended");
        assert_eq!(appended[0]["id"], id);
        assert_eq!(rig.held_bytes(), 0);
    }
    assert_eq!(rig.closed, None);
}

#[test]
fn a_message_may_be_split_at_every_byte() {
    let bytes = [
        subscribe(1),
        frame(0x01, br#"{"type":"unsubscribe","#),
        frame(PING, b"between"),
        frame(0x80, br#""id":2,"stream":"a"}"#),
        append(3, 200),
    ]
    .concat();
    let whole = {
        let mut rig = channel();
        rig.receive(&bytes);
        assert_eq!(subscriptions(&rig), 1);
        take_frames(&mut rig)
    };
    assert_eq!(whole.len(), 4);
    for at in 1..bytes.len() {
        let mut rig = channel();
        rig.receive(&bytes[..at]);
        rig.receive(&bytes[at..]);
        assert_eq!(take_frames(&mut rig), whole, "split at {at}");
        assert_eq!(rig.held_bytes(), 0, "split at {at}");
    }
}

#[test]
fn only_so_many_appends_are_under_way() {
    let mut rig = channel();
    rig.held = true;
    let all: Vec<u8> = (0..600).flat_map(|id| append(id, 3)).collect();
    rig.receive(&all);
    assert_eq!(rig.waiting.iter().filter(is_submit).count(), 256);
    assert!(rig.held_bytes() > 0);
    // Each that is decided lets the next one in.
    for _ in 0..100 {
        assert!(rig.step());
    }
    assert_eq!(rig.waiting.iter().filter(is_submit).count(), 256);
    rig.release();
    let mut acknowledged = acknowledged(&mut rig);
    acknowledged.sort_unstable();
    assert!(acknowledged.into_iter().eq(0..600));
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn only_so_many_bytes_of_appends_are_under_way_and_all_are_counted() {
    let mut rig = channel();
    rig.held = true;
    let all: Vec<u8> = (0..8).flat_map(|id| append(id, 100 << 10)).collect();
    rig.receive(&all);
    assert_eq!(rig.waiting.iter().filter(is_submit).count(), 3);
    assert!(rig.held_bytes() >= all.len(), "{}", rig.held_bytes());
    rig.release();
    assert_eq!(acknowledged(&mut rig).len(), 8);
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn an_append_for_which_there_is_no_room_is_refused_by_its_number() {
    let mut rig = channel();
    rig.held = true;
    rig.receive(&append(7, 3));
    rig.refuse_waiting();
    let frames = take_frames(&mut rig);
    let refused = frames[0].json();
    assert_eq!(
        (
            &refused["type"],
            &refused["id"],
            &refused["code"],
            &refused["stream"]
        ),
        (
            &json!("error"),
            &json!(7),
            &json!("overloaded"),
            &json!("a")
        )
    );
    assert_eq!((rig.closed, rig.held_bytes()), (None, 0));
    rig.release();
    let appended = messages(&mut rig, &append(8, 3));
    assert_eq!(appended[0]["id"], 8);
}

#[test]
fn a_subscription_that_waits_for_its_beginning_comes_before_later_messages() {
    let mut rig = channel();
    rig.held = true;
    let unsubscribe = text(r#"{"type":"unsubscribe","id":2,"stream":"a"}"#);
    rig.receive(&[subscribe_last(1, 5), unsubscribe, append(3, 3)].concat());
    assert_eq!(rig.waiting.len(), 1, "only the read is under way");
    assert!(take_frames(&mut rig).is_empty());
    rig.release();
    let frames = take_frames(&mut rig);
    let types: Vec<Value> = frames
        .iter()
        .map(|frame| frame.json()["type"].take())
        .collect();
    assert_eq!(types, ["subscribed", "unsubscribed", "appended"]);
    assert_eq!((rig.closed, rig.held_bytes()), (None, 0));
}

#[test]
fn a_subscription_whose_beginning_cannot_be_read_is_refused_and_may_be_asked_for_again() {
    let mut rig = channel();
    rig.held = true;
    rig.receive(&subscribe_last(1, 5));
    rig.refuse_waiting();
    let refused = take_frames(&mut rig)[0].json();
    assert_eq!(
        (&refused["id"], &refused["stream"], &refused["code"]),
        (&json!(1), &json!("a"), &json!("overloaded"))
    );
    rig.release();
    let subscribed = messages(&mut rig, &subscribe_last(2, 5));
    assert_eq!(subscribed[0]["type"], "subscribed");
    assert_eq!(subscriptions(&rig), 1);
    let again = messages(&mut rig, &subscribe_last(3, 5));
    assert_eq!(again[0]["code"], "already_subscribed");
}

#[test]
fn a_channel_that_ends_gives_up_what_waits_for_its_beginning() {
    let mut rig = channel();
    rig.held = true;
    rig.receive(&subscribe_last(1, 5));
    rig.act(|connection, cx| connection.end_caller(ID, CallerEnd::Expired, cx));
    assert_eq!(rig.ended.len(), 1);
    rig.release();
    assert_eq!(subscriptions(&rig), 0);
    assert_eq!(take_frames(&mut rig)[1].close_code(), Some(4401));
}

/// A configuration of access in which requests without credentials may create and read this.
fn readable(path: &str) -> AccessConfig {
    let grants = json!([{"actions": ["read", "create"], "paths": [path]}]);
    serde_json::from_value(json!({"anonymous": {"grants": grants}})).unwrap()
}

#[test]
fn a_change_of_grants_ends_a_subscription_also_if_it_waits_for_its_beginning() {
    let access = Access::from_config(&readable("/v1/**"), &|_| Ok(Vec::new())).unwrap();
    let access = Arc::new(access);
    let gate = Gate {
        access: Policy::Controlled(Arc::clone(&access)),
        ..Gate::default()
    };
    for waits in [false, true] {
        access
            .reload(&readable("/v1/**"), &|_| Ok(Vec::new()))
            .unwrap();
        let server = TestServer::behind(gate.clone(), NetSettings::default());
        let mut rig = Rig::of(server, ConnectionFacts::default());
        create(&mut rig, "x");
        let mut rig = open(rig.reconnect(), "/v1/events");
        rig.held = waits;
        rig.receive(&subscribe_last(1, 5));
        access
            .reload(&readable("/v1/events"), &|_| Ok(Vec::new()))
            .unwrap();
        rig.act(|connection, cx| connection.regrant_caller(ID, cx));
        rig.release();
        let frames = take_frames(&mut rig);
        let types: Vec<Value> = frames
            .iter()
            .map(|frame| frame.json()["type"].take())
            .collect();
        assert_eq!(types, ["subscribed", "error"], "waits: {waits}");
        assert_eq!(
            (rig.closed, rig.ended.len()),
            (None, 1),
            "only the feed has ended"
        );
        let refused = messages(&mut rig, &subscribe(2));
        assert_eq!(refused[0]["id"], 2);
        assert_eq!(refused[0]["type"], "error");
    }
}

#[test]
fn messages_count_as_requests_of_their_address() {
    let settings = NetSettings {
        request_rate: 1,
        request_burst: 4,
        ..NetSettings::default()
    };
    let mut rig = Rig::with(settings);
    rig.server.peer = [192, 0, 2, 1].into();
    let peer = rig.server.peer;
    let now = rig.server.clock.now();
    let owner = rig.server.clients.admit(Some(peer), now).unwrap();
    rig.server.clients.set_owner(ID, owner);
    let mut rig = open(rig, "/v1/events");
    let mut codes = Vec::new();
    for id in 0..5 {
        let answered = messages(&mut rig, &append(id, 3));
        assert_eq!(answered[0]["id"], id);
        codes.push(answered[0]["status"].as_u64().unwrap());
    }
    // The connection and its handshake count for the burst, too.
    assert_eq!(codes, [404, 404, 429, 429, 429]);
    assert_eq!(rig.closed, None);
}

#[test]
fn nothing_is_looked_at_while_the_client_takes_nothing() {
    let mut rig = channel();
    rig.room = 1;
    rig.receive(&[subscribe(1), append(2, 3)].concat());
    assert_eq!(subscriptions(&rig), 1);
    assert!(rig.taken.len() <= 1);
    rig.receive(&append(3, 3));
    rig.drain(usize::MAX);
    let frames = take_frames(&mut rig);
    let ids: Vec<Value> = frames
        .iter()
        .map(|frame| frame.json()["id"].take())
        .collect();
    assert_eq!(ids, [json!(1), json!(2), json!(3)]);
}

#[test]
fn a_client_that_reads_nothing_is_read_from_up_to_a_bound() {
    let settings = NetSettings::default();
    let bytes_max = settings.pipeline_bytes_max;
    let mut rig = channel();
    rig.room = 0;
    let ping = frame(PING, &[b'p'; 100]);
    let mut sent = 0;
    for _ in 0..4 * bytes_max / ping.len() {
        rig.receive(&ping);
        sent += ping.len();
    }
    let held = rig.held_bytes();
    assert!(held < sent / 2 && held >= bytes_max, "{held} of {sent}");
}

#[test]
fn a_close_frame_is_answered_and_nothing_behind_it_counts() {
    let mut rig = channel();
    let close = frame(CLOSE, &[3, 232, b'b', b'y', b'e']);
    rig.receive(&[subscribe(1), close, append(2, 3)].concat());
    let frames = take_frames(&mut rig);
    assert_eq!(frames[0].json()["type"], "subscribed");
    assert_eq!(frames[1].close_code(), Some(1000));
    assert_eq!(frames.len(), 2);
    assert_eq!(rig.closed, Some(CloseReason::HangUp));
    assert_eq!(rig.held_bytes(), 0);
    // Its subscription is given up.
    assert_eq!(rig.ended.len(), 1);
}

#[test]
fn what_breaks_the_protocol_is_told_so_and_closed() {
    let body_max = NetSettings::default().body_bytes_max as u64;
    let mut large = vec![0x81, 0xff];
    large.extend((body_max + 1).to_be_bytes());
    large.extend([0; 4]);
    for (bytes, code) in [
        (frame(0xc1, b"compressed"), 1002),
        (frame(0x83, b"opcode"), 1002),
        (vec![0x81, 5, b'p', b'l', b'a', b'i', b'n'], 1002),
        (frame(0x80, b"continues nothing"), 1002),
        (frame(CLOSE, &[1]), 1002),
        (frame(0x81, b"\xff"), 1007),
        (frame(BINARY, b"{}"), 1003),
        (large, 1009),
    ] {
        let mut rig = channel();
        rig.receive(&bytes);
        let frames = take_frames(&mut rig);
        assert_eq!(frames.len(), 1, "{bytes:?}");
        assert_eq!(frames[0].close_code(), Some(code), "{bytes:?}");
        assert!(rig.lingers, "{bytes:?}");
        rig.receive(&append(1, 3));
        assert!(rig.taken.is_empty(), "{bytes:?}");
    }
}

#[test]
fn a_ping_is_answered_with_its_payload() {
    let mut rig = channel();
    rig.receive(&frame(PING, b"payload"));
    let pong = ReceivedFrame {
        first: PONG,
        payload: b"payload".to_vec(),
    };
    assert_eq!(take_frames(&mut rig), [pong]);
}

#[test]
fn a_quiet_client_is_asked_once_and_then_closed() {
    let mut rig = channel();
    rig.on(Event::Quiet(ID));
    assert_eq!(take_frames(&mut rig)[0].first, PING);
    rig.receive(&frame(PONG, b""));
    rig.on(Event::Quiet(ID));
    assert_eq!(take_frames(&mut rig)[0].first, PING);
    rig.on(Event::Quiet(ID));
    assert_eq!(take_frames(&mut rig)[0].close_code(), Some(4408));
    assert!(rig.lingers);
}

#[test]
fn when_the_server_stops_the_channel_is_closed_behind_its_last_message() {
    let mut rig = channel();
    rig.receive(&subscribe(1));
    rig.server.stopping = true;
    rig.on(Event::Stopping);
    let frames = take_frames(&mut rig);
    assert_eq!(frames.last().unwrap().close_code(), Some(1001));
    assert!(rig.lingers);
    assert_eq!(rig.ended.len(), 1);
}

#[test]
fn when_its_caller_ends_it_is_told_why_and_closed() {
    for (end, code) in [(CallerEnd::Expired, 4401), (CallerEnd::Revoked, 4403)] {
        let mut rig = channel();
        rig.act(|connection, cx| connection.end_caller(ID, end, cx));
        let frames = take_frames(&mut rig);
        assert_eq!(frames[0].json()["code"], "credentials_ended");
        assert_eq!(frames[1].close_code(), Some(code));
    }
}

#[test]
fn the_subscription_of_the_url_comes_first() {
    let mut rig = open(
        rig_with_stream("x"),
        "/v1/stream/a?offset=-1&live=websocket",
    );
    let first = take_frames(&mut rig);
    assert_eq!(first[0].json()["type"], "subscribed");
    assert_eq!(subscriptions(&rig), 1);
    let again = messages(&mut rig, &subscribe(1));
    assert_eq!(again[0]["code"], "already_subscribed");
}

#[test]
fn a_half_closed_channel_is_closed() {
    let mut rig = channel();
    rig.receive(&subscribe(1));
    rig.half_close();
    assert_eq!(rig.closed, Some(CloseReason::HangUp));
    assert_eq!(rig.ended.len(), 1);
    rig.pass(Duration::from_hours(1));
}

/// A gate that wants a token.
fn guarded() -> TestServer {
    let access = serde_json::from_value(json!({})).unwrap();
    let access = Access::from_config(&access, &|_| Ok(Vec::new())).unwrap();
    let gate = Gate {
        access: Policy::Controlled(Arc::new(access)),
        ..Gate::default()
    };
    TestServer::behind(gate, NetSettings::default())
}

/// A rig with a channel of a client that has not said who it is.
fn stranger() -> Rig {
    let rig = Rig::of(guarded(), ConnectionFacts::default());
    let (rig, _) = open_with(rig, "/v1/events", "Sec-WebSocket-Protocol: encke.v1\r\n");
    rig
}

#[test]
fn a_stranger_has_one_deadline_whatever_it_does() {
    let timeout = NetSettings::default().request_timeout;
    let mut rig = stranger();
    rig.pass(timeout - Duration::from_secs(1));
    // Its output blocks, and is taken.
    rig.room = 0;
    rig.receive(&subscribe(1));
    rig.drain(usize::MAX);
    assert_eq!(take_frames(&mut rig)[0].json()["status"], 401);
    rig.receive(&frame(PONG, b""));
    assert_eq!(rig.closed, None);
    rig.pass(Duration::from_secs(2));
    assert_eq!(take_frames(&mut rig)[0].close_code(), Some(4408));
    assert!(rig.lingers);
}

#[test]
fn a_message_of_a_stranger_has_room_for_a_token() {
    let mut rig = stranger();
    let token = "t".repeat(15 << 10);
    let authenticate = format!(r#"{{"type":"authenticate","id":1,"token":"{token}"}}"#);
    assert_eq!(messages(&mut rig, &text(&authenticate))[0]["status"], 401);
    // It is refused by its length, before any of it is kept.
    let mut header = vec![0x81, 0xfe];
    header.extend(((16 << 10) + 1_u16).to_be_bytes());
    header.extend([0; 4]);
    rig.receive(&header);
    assert_eq!(take_frames(&mut rig)[0].close_code(), Some(1009));
}

#[test]
fn a_message_has_a_time_for_each_part_and_one_for_all() {
    let settings = NetSettings::default();
    let second = Duration::from_secs(1);
    let mut rig = channel();
    rig.receive(&append(1, 100)[..20]);
    rig.pass(settings.request_timeout + second);
    assert_eq!(take_frames(&mut rig)[0].close_code(), Some(4408));
    // Parts that come in time do not make it last.
    let mut rig = channel();
    let message = append(1, 1000);
    let mut parts = message.chunks(1);
    let mut passed = Duration::ZERO;
    while !rig.lingers {
        rig.receive(parts.next().expect("it ends before the message"));
        rig.pass(settings.request_timeout / 2);
        passed += settings.request_timeout / 2;
    }
    assert!(passed >= settings.body_timeout && passed < settings.body_timeout + 10 * second);
    // A message that is complete has none.
    let mut rig = channel();
    rig.receive(&append(1, 100)[..20]);
    rig.receive(&append(1, 100)[20..]);
    rig.pass(settings.request_timeout + second);
    assert_eq!(acknowledged(&mut rig), [1]);
    assert_eq!(rig.closed, None);
}

#[test]
fn what_was_left_in_the_socket_is_read_when_appends_are_decided() {
    let mut rig = channel();
    rig.held = true;
    let bytes_max = NetSettings::default().pipeline_bytes_max;
    let all: Vec<u8> = (0..1_000).flat_map(|id| append(id, 100)).collect();
    assert!(all.len() > bytes_max);
    for part in all.chunks(10_000) {
        rig.receive(part);
    }
    assert!(rig.is_unread());
    rig.release();
    let mut acknowledged = acknowledged(&mut rig);
    acknowledged.sort_unstable();
    assert!(acknowledged.into_iter().eq(0..1_000));
}

#[test]
fn what_is_under_way_is_acknowledged_before_the_end() {
    let close = frame(CLOSE, &1000_u16.to_be_bytes());
    for code in [Some(1000), Some(1001), None] {
        let mut rig = channel();
        rig.held = true;
        let both = [append(1, 3), append(2, 3)].concat();
        rig.receive(&both);
        match code {
            Some(1000) => rig.receive(&close),
            Some(_) => rig.on(Event::Stopping),
            None => rig.half_close(),
        }
        assert!(rig.taken.is_empty() && rig.closed.is_none());
        rig.held = false;
        assert!(rig.step());
        assert_eq!(acknowledged(&mut rig), [1]);
        assert!(rig.step());
        let frames = take_frames(&mut rig);
        assert_eq!(frames[0].json()["id"], 2);
        assert_eq!((frames[1].first, frames[1].close_code()), (CLOSE, code));
        assert!(rig.lingers || rig.closed.is_some());
    }
}

#[test]
fn an_end_waits_for_what_is_under_way_no_longer_than_for_a_request() {
    let mut rig = channel();
    rig.held = true;
    rig.receive(&append(1, 3));
    rig.on(Event::Stopping);
    rig.pass(NetSettings::default().request_timeout);
    assert_eq!(take_frames(&mut rig)[0].close_code(), Some(1001));
    rig.release();
    assert!(rig.taken.is_empty());
}
