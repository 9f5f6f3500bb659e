//! The body of the fuzz target `connection`, which a test runs over the saved corpus too: bytes become what happens to a connection.

use std::time::Duration;

use encke_protocol::DispatchResponse;
use encke_stream::Offset;

use super::response::responses;
use super::rig::{ID, Rig};
use super::server::TestServer;
use crate::clients::addresses::Denied;
use crate::clients::callers::CallerEnd;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::{ConnectionFacts, ExchangeEvent};
use crate::connection::outbound::Outbound;
use crate::settings::NetSettings;

/// Anything happens to a connection, in any order: it does not panic, and holds nothing when it is closed. What is only sent to it is
/// answered in the same way wherever it is split, and each complete request is answered once.
///
/// # Panics
/// The connection is wrong.
pub fn connection(data: &[u8]) {
    anything(data);
    splits(data);
}

/// Takes values off the data; zeros behind its end.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Requests, most of them whole.
const REQUESTS: [&str; 14] = [
    "PUT /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx",
    "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nyz",
    "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok",
    "GET /v1/stream/a?offset=-1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /v1/stream/a?offset=-1 HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip, identity;q=0\r\n\r\n",
    "GET /v1/stream/none HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "DELETE /v1/stream/a HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /v1/stream/a?offset=now&live=long-poll HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /v1/pool/p/work?worker=w HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /v1/pool HTTP/1.1\r\nHost: a\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];

/// How many of the requests are answered by what the rig does by itself, each with one response.
const ANSWERED: usize = 9;

fn anything(data: &[u8]) {
    let mut script = Script(data);
    let how = script.byte();
    let settings = NetSettings {
        proxy_protocol: how & 1 != 0,
        requests_per_connection: u16::from(how >> 1 & 3),
        pipeline_bytes_max: 200,
        body_bytes_max: 1_000,
        compressions_max: usize::from(how >> 3 & 1),
        ..NetSettings::default()
    };
    let facts = ConnectionFacts {
        operator: how >> 4 & 1 != 0,
        turned_away: (how >> 5 == 7).then_some(Denied::NoPlace),
        ..ConnectionFacts::default()
    };
    let mut rig = Rig::of(TestServer::new(settings), facts);
    while !script.0.is_empty() {
        step(&mut rig, &mut script);
        if let Some(connection) = &rig.connection
            && connection.rest().is_some()
        {
            rig.receive(b"");
            assert_eq!(rig.held_bytes(), 0, "a connection at rest holds memory");
        }
    }
    rig.close(CloseReason::HangUp);
    rig.waiting.clear();
    assert_eq!(rig.held_bytes(), 0);
    assert_eq!(rig.server.compressors.used(), 0);
    assert_eq!(rig.server.ids.open, []);
    let counts = &rig.server.counts;
    let left = (
        counts.behind,
        counts.http2_streams,
        counts.http2_connections,
    );
    assert_eq!(left, (0, 0, 0));
}

fn step(rig: &mut Rig, script: &mut Script<'_>) {
    match script.byte() % 20 {
        0..=5 => {
            let request = REQUESTS[usize::from(script.byte()) % REQUESTS.len()];
            rig.receive(request.as_bytes());
        }
        6 | 7 => {
            let request = REQUESTS[usize::from(script.byte()) % REQUESTS.len()];
            let split = usize::from(script.byte()) % request.len();
            rig.receive(&request.as_bytes()[..split]);
        }
        8 => {
            let count = script.byte().into();
            rig.receive(script.bytes(count));
        }
        9 => rig.half_close(),
        10 => rig.room = usize::from(script.byte()),
        11 => rig.drain(usize::from(script.byte())),
        12 => {
            let ms = u64::from(script.byte()).pow(2) * 10;
            rig.pass(Duration::from_millis(ms));
        }
        13 => rig
            .server
            .clock
            .step(i64::from(script.byte()) * 1000 - 100_000),
        14 => rig.held = !rig.held,
        15 => {
            rig.step();
        }
        16 => rig.refuse_waiting(),
        17 => deliver(rig, script),
        18 => dispatch(rig, script),
        _ => happen(rig, script.byte()),
    }
}

/// Something happens that the client has no part in.
fn happen(rig: &mut Rig, what: u8) {
    match what % 10 {
        0 => {
            rig.server.stopping = true;
            rig.on(Event::Stopping);
        }
        1 => rig.on(Event::OutOfFleet),
        2 => rig.on(Event::Shed(ID)),
        3 => rig.on(Event::NoMemory(ID)),
        4 => rig.on(Event::Quiet(ID)),
        5 => rig.on(Event::Swept(Duration::from_secs(120))),
        6 => rig.act(|connection, cx| connection.end_caller(ID, CallerEnd::Expired, cx)),
        7 => rig.act(|connection, cx| connection.end_caller(ID, CallerEnd::Revoked, cx)),
        8 => rig.act(|connection, cx| connection.turn_away(cx)),
        _ => rig.on(Event::Flush),
    }
}

/// The feed of a subscriber has something, if it is one and takes it.
fn deliver(rig: &mut Rig, script: &mut Script<'_>) {
    let Some(connection) = &rig.connection else {
        return;
    };
    let is_feed = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Subscribe(ID, ..));
    if !connection.is_listener() || rig.count_noted(is_feed) == 0 || connection.is_dismissed(ID) {
        return;
    }
    let how = script.byte();
    if how & 1 != 0 {
        return rig.dismiss(b"farewell", CloseReason::LagMax);
    }
    if connection.is_blocked(ID) {
        return;
    }
    rig.deliver(&[b'e'; 20], |bytes| {
        let mut outbound = Outbound::new(bytes);
        outbound.reached = (how & 2 != 0).then_some(Offset::START);
        outbound.close = (how & 4 != 0).then_some(CloseReason::Ended);
        outbound
    });
}

/// The dispatcher answers.
fn dispatch(rig: &mut Rig, script: &mut Script<'_>) {
    let response = match script.byte() % 5 {
        0 => DispatchResponse::Registered { slot: 0 },
        1 => DispatchResponse::Stopping,
        2 => DispatchResponse::Replaced,
        3 => DispatchResponse::overloaded(),
        _ => DispatchResponse::Listed(Vec::new()),
    };
    rig.on_exchange(ID, ExchangeEvent::Dispatched(response));
}

/// The same input in one piece and in several, to a client that takes everything and to one that takes little.
fn splits(data: &[u8]) {
    let mut script = Script(data);
    let mut input = Vec::new();
    let mut requests = 0;
    for _ in 0..script.byte() % 12 {
        let number = usize::from(script.byte()) % ANSWERED;
        input.extend_from_slice(REQUESTS[number].as_bytes());
        requests += 1;
    }
    let others = script.byte();
    if others & 1 != 0 {
        let number = usize::from(script.byte()) % REQUESTS.len();
        input.extend_from_slice(REQUESTS[number].as_bytes());
    }
    if others & 2 != 0 {
        let count = script.byte().into();
        input.extend_from_slice(script.bytes(count));
    }
    let mut whole = Rig::new();
    whole.receive(&input);
    let mut parts = Rig::new();
    let mut rest = &input[..];
    while !rest.is_empty() {
        let count = usize::from(script.byte()) % 40 + 1;
        let (part, behind) = rest.split_at(count.min(rest.len()));
        parts.room = usize::from(script.byte());
        parts.receive(part);
        rest = behind;
        if script.byte().is_multiple_of(2) {
            parts.drain(usize::MAX);
        }
    }
    parts.drain(usize::MAX);
    let wanted = responses(&whole.taken, |_| false);
    let complete = wanted.iter().filter(|one| one.is_complete).count();
    assert!(complete >= requests, "{complete} of {requests} responses");
    if others & 3 == 0 {
        assert_eq!(complete, requests);
    }
    if is_http_1(&input) {
        let (parts_sent, whole_sent) = (uninvited(&parts.taken), uninvited(&whole.taken));
        match whole.lingers {
            // A refusal for which the socket has no room is not waited for.
            true => assert!(whole_sent.starts_with(&parts_sent)),
            false => assert!(
                parts_sent == whole_sent,
                "{}\n{}",
                parts.text(),
                whole.text()
            ),
        }
        assert_eq!(parts.lingers, whole.lingers);
        assert_eq!(parts.closed, whole.closed);
    }
}

/// What was sent without invitations to send bodies, which depend on what has arrived.
fn uninvited(sent: &[u8]) -> Vec<u8> {
    const INVITATION: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut rest = sent;
    let mut others = Vec::new();
    while let Some(at) = memchr::memmem::find(rest, INVITATION) {
        others.extend_from_slice(&rest[..at]);
        rest = &rest[at + INVITATION.len()..];
    }
    others.extend_from_slice(rest);
    others
}

/// Whether nothing of the input is HTTP/2, whose frames depend on when they are written, or a body behind HEAD.
fn is_http_1(input: &[u8]) -> bool {
    !input.starts_with(b"PRI") && memchr::memmem::find(input, b"HEAD").is_none()
}
