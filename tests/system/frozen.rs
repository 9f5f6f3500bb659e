//! A server that was stopped for longer than its bounds, as a debugger or a machine that is suspended does: clients that did their
//! part meanwhile lose nothing by it.

use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::{Connection, Encke, JSON, path, request};

/// Stops the server, lets clients act, and continues it when each of its bounds has passed several times.
fn while_frozen(encke: &Encke, act: impl FnOnce()) {
    let begin = Instant::now();
    encke.freeze();
    act();
    // Not for something to happen: what is waited for is the time itself.
    std::thread::sleep(Duration::from_secs(4).saturating_sub(begin.elapsed()));
    encke.signal(Signal::CONT);
}

#[test]
fn clients_that_did_their_part_while_the_server_stood_still_are_served() {
    let bounds = [
        "request-timeout=1s",
        "body-timeout=1s",
        "idle-timeout=1s",
        "stall-timeout=1s",
        "poll-wait=1s",
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
