//! Retention of a stream's own and truncation on request (`Encke-Retention`, `Encke-Truncate`).

use crate::server::{Reply, Server};
use crate::{CLOSED, JSON, TEXT, get, with};

const THREE: (&str, &str) = ("Encke-Retention", "records=3");

fn append(server: &mut Server, name: &str, data: &str) -> String {
    let line = format!("POST /v1/stream/{name}");
    let said = server.send(&line, &[TEXT], data.as_bytes());
    assert_eq!(said.status, 204);
    said.token()
}

fn truncate(server: &mut Server, name: &str, before: &str) -> crate::Said {
    let line = format!("POST /v1/stream/{name}");
    server.send(&line, &[("Encke-Truncate", before)], b"")
}

#[test]
fn the_retention_of_a_stream_is_shown_and_compared() {
    let mut server = Server::default();
    let week = (
        "Encke-Retention",
        "records=1000,age=604800 , bytes=67108864",
    );
    let told = Some("age=604800, bytes=67108864, records=1000");
    let made = server.send("PUT /v1/stream/a", &[TEXT, week], b"");
    assert_eq!((made.status, made.field("Encke-Retention")), (201, told));
    let head = server.send("HEAD /v1/stream/a", &[], b"");
    assert_eq!(head.field("Encke-Retention"), told);
    assert_eq!(head.field("Encke-Floor"), None);
    assert_eq!(get(&mut server, "a").field("Encke-Retention"), told);
    for (headers, status) in [
        (&[TEXT, week][..], 200),
        (&[TEXT], 409),
        (&[TEXT, ("Encke-Retention", "none")], 409),
        (&[TEXT, THREE], 409),
    ] {
        let said = server.send("PUT /v1/stream/a", headers, b"");
        assert_eq!(said.status, status, "{headers:?}");
        if status == 409 {
            assert_eq!(said.code(), "config_differs");
        }
    }
    // A fork keeps what its source does, unless it says otherwise.
    let fork = ("Stream-Forked-From", "/v1/stream/a");
    let made = server.send("PUT /v1/stream/b", &[fork], b"");
    assert_eq!((made.status, made.field("Encke-Retention")), (201, told));
    assert_eq!(server.send("PUT /v1/stream/b", &[fork], b"").status, 200);
    let none = ("Encke-Retention", "none");
    let made = server.send("PUT /v1/stream/c", &[fork, none], b"");
    assert_eq!((made.status, made.field("Encke-Retention")), (201, None));
    assert_eq!(server.send("PUT /v1/stream/c", &[fork], b"").status, 409);
}

#[test]
fn what_is_no_retention_is_refused_with_what_is() {
    let mut server = Server::default();
    for value in ["", "7d", "age=7d", "records=0", "age=1, age=2", "size=5"] {
        let field = ("Encke-Retention", value);
        let said = server.send("PUT /v1/stream/a", &[TEXT, field], b"x");
        assert_eq!((said.status, &*said.code()), (400, "bad_field"), "{value}");
        assert!(said.text().contains("records=COUNT"), "{}", said.text());
    }
    assert_eq!(get(&mut server, "a").status, 404, "nothing was made");
}

#[test]
fn a_stream_keeps_the_records_it_is_to_keep() {
    let mut server = Server::default();
    server.send("PUT /v1/stream/a", &[TEXT, THREE], b"");
    let after: Vec<String> = ["1", "2", "3", "4", "5"]
        .iter()
        .map(|data| append(&mut server, "a", data))
        .collect();
    let left = get(&mut server, "a");
    assert_eq!((left.text(), left.token()), ("345", after[4].clone()));
    let head = server.send("HEAD /v1/stream/a", &[], b"");
    assert_eq!(head.field("Encke-Floor"), Some(&*after[1]));
    // Exactly what is there can be asked for, whatever is gone before it.
    let rest = get(&mut server, &format!("a?offset={}", after[1]));
    assert_eq!(rest.text(), "345");
    for live in ["", "&live=long-poll", "&live=sse"] {
        let gone = get(&mut server, &format!("a?offset={}{live}", after[0]));
        assert_eq!((gone.status, &*gone.code()), (410, "no_longer_kept"));
    }
    let events = server.send(&format!("GET /v1/events?stream=a@{}", after[0]), &[], b"");
    assert_eq!((events.status, &*events.code()), (410, "no_longer_kept"));
}

#[test]
fn a_stream_keeps_records_for_as_long_as_it_is_to() {
    let mut server = Server::default();
    let age = ("Encke-Retention", "age=8");
    server.send("PUT /v1/stream/a", &[TEXT, age], b"");
    for data in ["1", "2", "3"] {
        append(&mut server, "a", data);
        server.now_ms += 2_000;
    }
    server.now_ms += 1_999;
    server.expire();
    assert_eq!(get(&mut server, "a").text(), "123");
    server.now_ms += 1;
    server.expire();
    assert_eq!(get(&mut server, "a").text(), "23");
    server.now_ms += 3_999;
    server.expire();
    assert_eq!(get(&mut server, "a").text(), "3");
    server.now_ms += 1;
    server.expire();
    let nothing = get(&mut server, "a");
    assert_eq!((nothing.status, nothing.text()), (200, ""));
    // Nothing is left to wait for, and the stream goes on.
    append(&mut server, "a", "4");
    assert_eq!(get(&mut server, "a").text(), "4");
    server.now_ms += 8_000;
    server.expire();
    assert_eq!(get(&mut server, "a").text(), "");
}

#[test]
fn truncation_takes_what_is_before_an_offset_and_can_be_repeated() {
    let mut server = with(TEXT);
    let one = append(&mut server, "a", "1");
    let two = append(&mut server, "a", "2");
    let three = append(&mut server, "a", "3");
    let all = get(&mut server, "a");
    let tag = all.field("ETag").unwrap().to_owned();
    for _ in 0..2 {
        let said = truncate(&mut server, "a", &two);
        assert_eq!((said.status, said.field("Encke-Floor")), (204, Some(&*two)));
        assert_eq!(said.token(), three);
    }
    // An earlier one changes nothing.
    let said = truncate(&mut server, "a", &one);
    assert_eq!((said.status, said.field("Encke-Floor")), (204, Some(&*two)));
    let left = server.send("GET /v1/stream/a", &[("If-None-Match", &tag)], b"");
    assert_eq!((left.status, left.text()), (200, "3"));
    assert_eq!(get(&mut server, &format!("a?offset={one}")).status, 410);
    let said = truncate(&mut server, "a", "now");
    assert_eq!(said.field("Encke-Floor"), Some(&*three));
    assert_eq!(get(&mut server, "a").text(), "");
    // Who is at the end misses nothing.
    let poll = server.reply(
        &format!("GET /v1/stream/a?offset={three}&live=long-poll"),
        &[],
        b"",
    );
    assert!(matches!(poll, Reply::Polls(_)));
    append(&mut server, "a", "4");
    assert_eq!(get(&mut server, &format!("a?offset={three}")).text(), "4");
    // A closed stream can be truncated too.
    server.send("POST /v1/stream/a", &[TEXT, CLOSED], b"5");
    assert_eq!(truncate(&mut server, "a", "now").status, 204);
    assert_eq!(get(&mut server, "a").text(), "");
}

#[test]
fn what_is_no_truncation_changes_nothing() {
    let mut server = with(TEXT);
    let one = append(&mut server, "a", "1");
    for value in ["", "-1", "0", "all"] {
        let said = truncate(&mut server, "a", value);
        assert_eq!((said.status, &*said.code()), (400, "bad_field"), "{value}");
    }
    let said = truncate(&mut server, "a", &"f".repeat(16).replace("ffff", "0fff"));
    assert_eq!(said.status, 400);
    let beyond = "00000000000000ff_0000000000000000";
    let said = truncate(&mut server, "a", beyond);
    assert_eq!((said.status, &*said.code()), (400, "beyond_tail"));
    let before = ("Encke-Truncate", &*one);
    for (headers, body) in [
        (&[before, TEXT][..], &b"2"[..]),
        (&[before, CLOSED], b""),
        (&[before, ("Stream-Seq", "1")], b""),
    ] {
        let said = server.send("POST /v1/stream/a", headers, body);
        assert_eq!((said.status, &*said.code()), (400, "bad_field"));
    }
    assert_eq!(truncate(&mut server, "b", &one).status, 404);
    assert_eq!(get(&mut server, "a").text(), "1");
}

#[test]
fn a_fork_keeps_what_its_source_lets_go_of() {
    let mut server = with(TEXT);
    let one = append(&mut server, "a", "1");
    let two = append(&mut server, "a", "2");
    let fork = ("Stream-Forked-From", "/v1/stream/a");
    let early = server.send("PUT /v1/stream/b", &[fork, TEXT], b"");
    assert_eq!(early.status, 201);
    assert_eq!(truncate(&mut server, "a", "now").status, 204);
    append(&mut server, "a", "3");
    assert_eq!(get(&mut server, "a").text(), "3");
    assert_eq!(get(&mut server, "b").text(), "12");
    // One that is made later has what its source still has.
    assert_eq!(
        server.send("PUT /v1/stream/c", &[fork, TEXT], b"").status,
        201
    );
    assert_eq!(get(&mut server, "c").text(), "3");
    let at = ("Stream-Fork-Offset", &*two);
    assert_eq!(
        server
            .send("PUT /v1/stream/d", &[fork, at, TEXT], b"4")
            .status,
        201
    );
    assert_eq!(get(&mut server, "d").text(), "4");
    // Of what is before this offset something is gone, so nobody is given the rest for the whole.
    let at = ("Stream-Fork-Offset", &*one);
    let said = server.send("PUT /v1/stream/e", &[fork, at, TEXT], b"");
    assert_eq!((said.status, &*said.code()), (410, "no_longer_kept"));
    assert_eq!(server.send("HEAD /v1/stream/e", &[], b"").status, 404);
    // A fork lets go of its own.
    assert_eq!(truncate(&mut server, "b", "now").status, 204);
    append(&mut server, "b", "5");
    assert_eq!(get(&mut server, "b").text(), "5");
    for name in ["b", "c", "d"] {
        server.send(&format!("DELETE /v1/stream/{name}"), &[], b"");
    }
    assert_eq!(get(&mut server, "a").text(), "3");
}

#[test]
fn several_streams_begin_with_what_is_left() {
    let mut server = Server::default();
    server.send("PUT /v1/stream/a", &[JSON], b"");
    server.send("PUT /v1/stream/b", &[JSON], b"[1]");
    server.send("POST /v1/stream/a", &[JSON], b"[2]");
    assert_eq!(truncate(&mut server, "a", "now").status, 204);
    let line = "GET /v1/events?stream=a@-1&stream=b@-1";
    let Reply::SubscribedAll(_, all) = server.reply(line, &[], b"") else {
        panic!("it does not subscribe")
    };
    // Not from before what is left, or the first read would be refused.
    let floor = server.stream("a").facts().floor;
    let encke_protocol::Feed::Merged { sources, .. } = all.feed else {
        panic!("it is for several streams")
    };
    let from: Vec<u64> = sources.iter().map(|one| one.from.sequence).collect();
    assert_eq!(from, [floor, 0]);
}
