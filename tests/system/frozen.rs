//! A server that was stopped for longer than its bounds, as a debugger or a machine that is suspended does: clients that did their
//! part meanwhile lose nothing by it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustls::ClientConnection;

use crate::rig::{Connection, Encke, JSON, eventually, path, request};
use crate::tls::Secure;

/// Stops the server, lets clients act, and continues it when each of its bounds has passed: they have ten seconds, so that a busy machine
/// does not reach them.
fn while_frozen(encke: &Encke, act: impl FnOnce()) {
    let begin = Instant::now();
    encke.freeze();
    act();
    // Not for something to happen: what is waited for is the time itself.
    std::thread::sleep(Duration::from_secs(12).saturating_sub(begin.elapsed()));
    encke.signal(Signal::CONT);
}

#[test]
fn clients_that_did_their_part_while_the_server_stood_still_are_served() {
    let bounds = [
        "request-timeout=10s",
        "body-timeout=10s",
        "idle-timeout=10s",
        "stall-timeout=10s",
        "poll-wait=10s",
    ];
    let flags: Vec<&str> = bounds
        .iter()
        .flat_map(|bound| ["--tuning", bound])
        .collect();
    let encke = Encke::start(&[&flags[..], &["--shards", "1"]].concat());
    encke.create("s");
    let target = path("s");
    let append = request("POST", &target, &[JSON], b"[1,2]");
    let (mut idle, mut in_head) = (encke.connect(), encke.connect());
    // More than a shard looks at in one turn.
    let mut in_body: Vec<Connection> = (0..700).map(|_| encke.connect()).collect();
    assert_eq!(idle.ask("GET", "/healthz", &[], b"").status, 200);
    let mut follower = encke.connect();
    let live = format!("{target}?offset=-1&live=sse");
    follower.send(&request("GET", &live, &[], b""));
    assert_eq!(follower.head().status, 200);
    // A reader that has left some of a long response in its socket.
    let large = format!("\"{}\"", "x".repeat(2 << 20));
    assert_eq!(
        encke.ask("POST", &target, &[JSON], large.as_bytes()).status,
        204
    );
    let mut reader = Connection::open_narrow(encke.address);
    reader.send(&request("GET", &format!("{target}?offset=-1"), &[], b""));
    let head = reader.head();
    assert_eq!(head.status, 200);
    in_head.send(&append[..20]);
    for client in &mut in_body {
        client.send(&append[..append.len() - 3]);
    }
    // Of both the server has seen the first part.
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    let mut new = None;
    while_frozen(&encke, || {
        idle.send(&append);
        in_head.send(&append[20..]);
        for client in &mut in_body {
            client.send(&append[append.len() - 3..]);
        }
        let mut connection = encke.connect();
        connection.send(&append);
        new = Some(connection);
        // It takes all that the server could send.
        reader.socket.set_nonblocking(true).expect("a socket");
        let mut some = [0; 64 << 10];
        while let Ok(count) = reader.socket.read(&mut some) {
            reader.input().extend_from_slice(&some[..count]);
        }
        reader.socket.set_nonblocking(false).expect("a socket");
    });
    let mut new = new.expect("it is connected");
    for (name, client) in [
        ("idle", &mut idle),
        ("in a head", &mut in_head),
        ("new", &mut new),
    ] {
        assert_eq!(client.answer().status, 204, "the client that was {name}");
    }
    for client in &mut in_body {
        assert_eq!(client.answer().status, 204);
    }
    // The others were not cut: the reader gets the whole response, and the subscriber every record.
    let is_whole = |input: &[u8]| input.ends_with(b"0\r\n\r\n") || input.len() > 2 << 20;
    while !is_whole(reader.input()) {
        assert!(reader.fill(), "the response was cut");
    }
    while follower.input().len() < 2 << 20 {
        assert!(follower.fill(), "the subscription was cut");
    }
}

#[test]
fn workers_and_writers_that_did_their_part_while_the_server_stood_still_lose_nothing() {
    let encke = Encke::start(&["--shards", "1"]);
    let put =
        |target: &str, fields: &[&str], body: &[u8]| encke.ask("PUT", target, fields, body).status;
    let settings = br#"{"type":"claim","ack_ms":10000,"attempts":1}"#;
    assert_eq!(put("/v1/pool/p", &[], settings), 201);
    assert_eq!(put(&path("short"), &[JSON, "Stream-TTL: 10"], b"[]"), 201);
    let posted = encke.ask("POST", "/v1/pool/p", &[], b"a job");
    assert_eq!(posted.status, 202, "{posted:?}");
    let mut worker = encke.connect();
    let taken = worker.ask("POST", "/v1/pool/p/work?worker=w&wait=30", &[], b"");
    assert_eq!(taken.status, 200, "{taken:?}");
    let job = taken.field("Job-Id").expect("it has one").to_owned();
    let mut writer = encke.connect();
    let append = request("POST", &path("short"), &[JSON], b"[1]");
    writer.send(&append);
    assert_eq!(writer.answer().status, 204);
    while_frozen(&encke, || {
        let ack = format!("/v1/pool/p/job/{job}/ack?attempt=1");
        worker.send(&request("POST", &ack, &[], b"done"));
        writer.send(&append);
    });
    // The attempt and the stream have ten seconds, and the server was away for twelve.
    let acknowledged = worker.answer();
    assert_eq!(acknowledged.status, 204, "{acknowledged:?}");
    let appended = writer.answer();
    assert_eq!(appended.status, 204, "{appended:?}");
}

#[test]
fn handshakes_whose_clients_did_their_part_while_the_server_stood_still_are_made() {
    let bounds = [
        "handshake-timeout=10s",
        "handshakes-per-address=0",
        "handshake-threads=1",
    ];
    let flags = bounds.map(|bound| ["--tuning", bound]).concat();
    let secure = Secure::start(&flags);
    // More than a thread looks at in one turn.
    let mut clients: Vec<_> = (0..300)
        .map(|_| {
            let name = "localhost".try_into().expect("a name");
            let client = ClientConnection::new(Arc::clone(&secure.client), name);
            let mut first = Vec::new();
            let written = client.expect("it can begin").write_tls(&mut first);
            written.expect("a vector takes it");
            let mut socket = TcpStream::connect(secure.encke.address).expect("it listens");
            socket.write_all(&first[..20]).expect("it is open");
            (socket, first.split_off(20))
        })
        .collect();
    let under_way = || secure.metric("encke_tls_handshakes_under_way", "");
    eventually("all have begun", || under_way() >= 300.0);
    while_frozen(&secure.encke, || {
        for (socket, rest) in &mut clients {
            socket.write_all(rest).expect("the kernel takes it");
        }
    });
    for (socket, _) in &mut clients {
        let mut answer = [0; 1];
        let read = socket.read(&mut answer);
        // A handshake goes on, and no alert ends it.
        assert_eq!((read.ok(), answer), (Some(1), [0x16]));
    }
}
