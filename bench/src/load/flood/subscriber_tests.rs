//! Tests of the subscriber: the protocol's responses, cut at every position.

use super::*;
use crate::load::wire::payload::{Format, Message, producer_number};

const RUN: u32 = 5;

fn message(sequence: u64) -> Message {
    Message {
        producer: producer_number(RUN, 0),
        sequence,
        sent_ns: 1_000,
    }
}

fn body(sequences: &[u64]) -> String {
    let mut parts = Vec::new();
    for &sequence in sequences {
        let mut part = Vec::new();
        Format::Json.write(&message(sequence), 60, &mut part);
        parts.push(String::from_utf8(part).unwrap());
    }
    format!("[{}]", parts.join(","))
}

fn tally() -> Tally {
    let mut tally = Tally::new(RUN, false);
    tally.now_ns = 2_000;
    tally
}

fn listening() -> (Subscriber, Tally) {
    asking(SubscriberKind::Http1)
}

fn asking(kind: SubscriberKind) -> (Subscriber, Tally) {
    let mut subscriber = Subscriber::new(0, kind, false);
    subscriber.asked();
    (subscriber, tally())
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn control(offset: &str, more: &str) -> String {
    format!("event: control\ndata: {{\"streamNextOffset\":\"{offset}\"{more}}}\n\n")
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
    Transfer-Encoding: chunked\r\n\r\n";

#[test]
fn chunked_events_in_any_pieces() {
    let wire = [
        CHUNKED,
        &chunk(&control("a", ",\"upToDate\":true")),
        &chunk(&format!(
            "event: data\ndata:{}\n\n{}",
            body(&[0, 1]),
            control("b", "")
        )),
        &chunk(&format!(
            "event: data\ndata: [\ndata: {}\ndata: ]\n\n",
            body(&[2, 3]).trim_matches(['[', ']'])
        )),
        &chunk(&control("c", ",\"streamClosed\":true")),
    ]
    .concat();
    for step in [1, 2, 3, 7, 64, wire.len()] {
        let (mut subscriber, mut tally) = listening();
        let mut last = Step::Wait;
        for piece in wire.as_bytes().chunks(step) {
            last = subscriber
                .receive(0, piece, &mut tally, &mut Vec::new())
                .unwrap();
            if last != Step::Wait {
                break;
            }
        }
        assert_eq!(last, Step::Closed, "in pieces of {step}");
        assert_eq!(
            (tally.events, tally.ready, &*subscriber.offset),
            (4, 1, "c")
        );
        assert!(tally.ledger.close(|_| String::new()).is_clean());
    }
}

fn http2_frame(kind: u8, flags: u8, stream: u8, payload: &str) -> Vec<u8> {
    let length = payload.len() as u32;
    let header = [&length.to_be_bytes()[1..], &[kind, flags, 0, 0, 0, stream]].concat();
    [&header, payload.as_bytes()].concat()
}

#[test]
fn events_over_http2_in_any_pieces() {
    let wire = [
        http2_frame(4, 0, 0, ""),
        [0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88].to_vec(),
        http2_frame(0, 0, 1, &control("a", "")),
        http2_frame(0, 0, 1, &format!("event: data\ndata:{}\n", body(&[0, 1]))),
        http2_frame(0, 0, 1, &format!("\n{}", control("b", ""))),
        http2_frame(0, 1, 1, &control("c", ",\"streamClosed\":true")),
    ]
    .concat();
    for step in [1, 2, 3, 7, 64, wire.len()] {
        let (mut subscriber, mut tally) = asking(SubscriberKind::Http2);
        let (mut last, mut out) = (Step::Wait, Vec::new());
        for piece in wire.chunks(step) {
            last = subscriber.receive(0, piece, &mut tally, &mut out).unwrap();
        }
        assert_eq!(last, Step::Closed, "in pieces of {step}");
        assert_eq!(
            (tally.events, tally.ready, &*subscriber.offset),
            (2, 1, "c")
        );
        assert_eq!(out, http2_frame(4, 1, 0, ""));
        assert!(tally.ledger.close(|_| String::new()).is_clean());
    }
}

fn text_frame(text: &str) -> Vec<u8> {
    let length = (text.len() as u16).to_be_bytes();
    [&[0x81, 126], &length[..], text.as_bytes()].concat()
}

fn channel(frames: &[Vec<u8>]) -> Vec<u8> {
    let head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
    [&head[..], &frames.concat()].concat()
}

#[test]
fn messages_of_a_channel_in_any_pieces() {
    let message =
        |kind: &str, more: &str| text_frame(&format!(r#"{{"type":"{kind}","stream":"x",{more}}}"#));
    let wire = channel(&[
        message("subscribed", r#""offset":"a""#),
        message(
            "records",
            &format!(r#""offset":"b","data":{}"#, body(&[0, 1])),
        ),
        b"\x89\x02hi".to_vec(),
        message(
            "records",
            &format!(r#""offset":"c","data":{},"upToDate":true"#, body(&[2])),
        ),
        message(
            "records",
            &format!(r#""offset":"d","data":{},"ended":"closed""#, body(&[3])),
        ),
    ]);
    for step in [1, 2, 3, 7, 64, wire.len()] {
        let (mut subscriber, mut tally) = asking(SubscriberKind::Websocket);
        let (mut last, mut out) = (Step::Wait, Vec::new());
        for piece in wire.chunks(step) {
            last = subscriber.receive(0, piece, &mut tally, &mut out).unwrap();
        }
        assert_eq!(last, Step::Closed, "in pieces of {step}");
        assert_eq!(
            (tally.events, tally.ready, &*subscriber.offset),
            (4, 1, "d")
        );
        let mut pong = Vec::new();
        websocket::write_frame(FIN | PONG, b"hi", &mut pong);
        assert_eq!(out, pong);
        assert!(tally.ledger.close(|_| String::new()).is_clean());
    }
}

#[test]
fn channels_end_with_a_close_code_or_a_message() {
    let close = |code: u16| [&[0x88, 2], &code.to_be_bytes()[..]].concat();
    let error = r#"{"type":"error","stream":"x","status":404,"code":"not_found"}"#;
    let disconnected = r#"{"type":"disconnected","stream":"x","offset":"a","resumable":true}"#;
    for (frames, expected) in [
        (vec![close(1001)], Ok(Step::ComeBack)),
        (vec![close(4429)], Err(Refusal::Closed(4429))),
        (
            vec![text_frame(error), close(1000)],
            Err(Refusal::Status(404)),
        ),
        (vec![text_frame(disconnected)], Ok(Step::ComeBack)),
    ] {
        let (mut subscriber, mut tally) = asking(SubscriberKind::Websocket);
        let wire = channel(&frames);
        let received = subscriber.receive(0, &wire, &mut tally, &mut Vec::new());
        assert_eq!(received, expected);
    }
    let (mut subscriber, mut tally) = asking(SubscriberKind::Websocket);
    let received = subscriber.receive(0, CHUNKED.as_bytes(), &mut tally, &mut Vec::new());
    assert_eq!(received, Err(Refusal::Status(200)), "no upgrade");
}

#[test]
fn bodies_that_end_with_the_connection_are_resumed_from_the_last_offset() {
    let (mut subscriber, mut tally) = listening();
    let wire = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}",
        control("7_8", "")
    );
    subscriber
        .receive(0, wire.as_bytes(), &mut tally, &mut Vec::new())
        .unwrap();
    assert!(subscriber.is_settled());
    let event = format!("event: data\ndata: {}\n\n", body(&[0]));
    subscriber
        .receive(0, event.as_bytes(), &mut tally, &mut Vec::new())
        .unwrap();
    assert!(!subscriber.is_settled());
    assert_eq!(subscriber.ended(), Ok(Step::ComeBack));
    subscriber.disconnected(0, &mut tally);

    let target = crate::load::wire::target::ServerUrl::parse(
        "http://127.0.0.1:1/s",
        &crate::load::args::TrustArgs::default(),
    )
    .unwrap();
    let streams = crate::load::wire::target::Streams::one("x");
    let mut out = Vec::new();
    subscriber.ask(
        &Requests::new(&target, &streams, "application/json").unwrap(),
        &mut out,
    );
    assert!(out.starts_with(b"GET /s/x?offset=7_8&live=sse HTTP/1.1\r\n"));

    // The offset after the event never came, so the event comes again, and is no duplicate.
    subscriber.stage = Stage::Head(Vec::new());
    let again = format!(
        "HTTP/1.1 200 OK\r\n\r\n{event}{}{event}",
        control("7_9", "")
    );
    subscriber
        .receive(0, again.as_bytes(), &mut tally, &mut Vec::new())
        .unwrap();
    let faults = tally.ledger.close(|_| String::new());
    assert_eq!((faults.repeats, faults.duplicates.count), (1, 1));
}

#[test]
fn refusals_are_reported_with_their_reason() {
    let (mut subscriber, mut tally) = listening();
    let wire = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        subscriber.receive(0, wire, &mut tally, &mut Vec::new()),
        Err(Refusal::Status(404))
    );
    let (mut subscriber, mut tally) = listening();
    assert_eq!(subscriber.ended(), Err(Refusal::Ended));
    let broken = format!("{CHUNKED}xyz");
    assert_eq!(
        subscriber.receive(0, broken.as_bytes(), &mut tally, &mut Vec::new()),
        Err(Refusal::Wire(WireError::BadChunk))
    );
}

#[test]
fn a_subscriber_stays_small() {
    // 19,000 of them share a machine with the server that they measure.
    assert!(
        size_of::<Subscriber>() <= 256,
        "{}",
        size_of::<Subscriber>()
    );
}
