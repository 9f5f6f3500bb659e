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
    let mut tally = Tally::new(RUN);
    tally.now_ns = 2_000;
    tally
}

fn listening() -> (Subscriber, Tally) {
    let mut subscriber = Subscriber::new(0, false);
    subscriber.stage = Stage::Head(Vec::new());
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
            last = subscriber.receive(0, piece, &mut tally).unwrap();
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

#[test]
fn bodies_that_end_with_the_connection_are_resumed_from_the_last_offset() {
    let (mut subscriber, mut tally) = listening();
    let wire = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}",
        control("7_8", "")
    );
    subscriber.receive(0, wire.as_bytes(), &mut tally).unwrap();
    assert!(subscriber.is_settled());
    let event = format!("event: data\ndata: {}\n\n", body(&[0]));
    subscriber.receive(0, event.as_bytes(), &mut tally).unwrap();
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
    subscriber.receive(0, again.as_bytes(), &mut tally).unwrap();
    let faults = tally.ledger.close(|_| String::new());
    assert_eq!((faults.repeats, faults.duplicates.count), (1, 1));
}

#[test]
fn refusals_are_reported_with_their_reason() {
    let (mut subscriber, mut tally) = listening();
    let wire = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        subscriber.receive(0, wire, &mut tally),
        Err(Refusal::Status(404))
    );
    let (mut subscriber, mut tally) = listening();
    assert_eq!(subscriber.ended(), Err(Refusal::Ended));
    let broken = format!("{CHUNKED}xyz");
    assert_eq!(
        subscriber.receive(0, broken.as_bytes(), &mut tally),
        Err(Refusal::Wire(WireError::BadChunk))
    );
}

#[test]
fn control_events_in_any_json() {
    type Case = (&'static [u8], Option<(&'static str, bool)>);
    let cases: [Case; 5] = [
        (
            br#"{"streamNextOffset":"1_2","streamCursor":"5","upToDate":true}"#,
            Some(("1_2", false)),
        ),
        (
            br#"{"streamNextOffset":"1","streamClosed":true}"#,
            Some(("1", true)),
        ),
        (
            br#"{ "streamClosed" : false, "streamNextOffset": "1" }"#,
            Some(("1", false)),
        ),
        (br#"{"streamNextOffset":"a\u0062"}"#, Some(("ab", false))),
        (br#"{"upToDate":true}"#, None),
    ];
    for (line, expected) in cases {
        let found = read_control(line, &Finder::new("streamClosed"));
        let found = found
            .as_ref()
            .map(|(offset, closed)| (offset.as_ref(), *closed));
        assert_eq!(found, expected);
    }
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
