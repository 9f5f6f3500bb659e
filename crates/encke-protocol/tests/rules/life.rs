//! How streams end: lifetimes, expiry, deletion (sections 4.2, 5.1 and 5.4).

use encke_clock::WallTime;
use encke_protocol::{Action, CallerInfo, Headers, Request, Run};

use crate::server::Server;
use crate::{CLOSED, JSON, TEXT, get, with};

#[test]
fn a_lifetime_is_said_once_and_plainly() {
    let mut server = Server::default();
    let both = [
        ("Stream-TTL", "1"),
        ("Stream-Expires-At", "2030-01-01T00:00:00Z"),
    ];
    assert_eq!(server.send("PUT /v1/stream/a", &both, b"").status, 400);
    for (name, value) in [
        ("Stream-TTL", ""),
        ("Stream-TTL", "-1"),
        ("Stream-TTL", "+60"),
        ("Stream-TTL", "060"),
        ("Stream-TTL", "6e1"),
        ("Stream-TTL", "60.0"),
        ("Stream-TTL", "18446744073709551616"),
        ("Stream-Expires-At", ""),
        ("Stream-Expires-At", "tomorrow"),
        ("Stream-Expires-At", "2030-01-01"),
        ("Stream-Expires-At", "2030-01-01 00:00:00"),
        ("Stream-Expires-At", "1893456000"),
    ] {
        let said = server.send("PUT /v1/stream/a", &[(name, value)], b"");
        assert_eq!(
            (said.status, said.code()),
            (400, "bad_field".into()),
            "{name}: {value}"
        );
    }
    for (name, value, shown) in [
        ("Stream-TTL", "60", "60"),
        ("Stream-TTL", "18446744073709551615", "18446744073709551615"),
        (
            "Stream-Expires-At",
            "2030-01-01T01:00:00+01:00",
            "2030-01-01T00:00:00Z",
        ),
        (
            "Stream-Expires-At",
            "2030-01-01t00:00:00.5z",
            "2030-01-01T00:00:00.5Z",
        ),
    ] {
        let mut server = Server::default();
        assert_eq!(
            server
                .send("PUT /v1/stream/a", &[(name, value)], b"")
                .status,
            201
        );
        let head = server.send("HEAD /v1/stream/a", &[], b"");
        assert_eq!(head.field(name), Some(shown));
        // The same moment, or window, is the same setting.
        assert_eq!(
            server
                .send("PUT /v1/stream/a", &[(name, shown)], b"")
                .status,
            200
        );
    }
}

/// The method and the target, the fields, the body.
type Asked<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8]);

#[test]
fn reads_and_writes_renew_a_window_and_head_does_not() {
    let ttl = [TEXT, ("Stream-TTL", "10")];
    let touches: [Asked<'_>; 7] = [
        ("GET /v1/stream/a", &[], b""),
        ("GET /v1/stream/a?offset=now", &[], b""),
        ("GET /v1/stream/a?offset=-1&live=long-poll", &[], b""),
        ("GET /v1/stream/a?offset=-1&live=sse", &[], b""),
        ("POST /v1/stream/a", &[TEXT], b"x"),
        ("POST /v1/stream/a", &[CLOSED], b""),
        ("PUT /v1/stream/a", &ttl, b""),
    ];
    let leaves: [Asked<'_>; 5] = [
        ("HEAD /v1/stream/a", &[], b""),
        ("OPTIONS /v1/stream/a", &[], b""),
        ("GET /v1/stream/a?offset=x", &[], b""),
        ("POST /v1/stream/a", &[("Content-Type", "text/html")], b"x"),
        ("PUT /v1/stream/a", &[], b""),
    ];
    let all = touches.map(|request| (request, true)).into_iter();
    for ((line, headers, body), renews) in all.chain(leaves.map(|request| (request, false))) {
        let mut server = Server::default();
        server.send("PUT /v1/stream/a", &ttl, b"x");
        server.now_ms += 9_000;
        server.reply(line, headers, body);
        server.now_ms += 9_000;
        let status = server.send("HEAD /v1/stream/a", &[], b"").status;
        assert_eq!(status, if renews { 200 } else { 404 }, "{line}");
    }
}

#[test]
fn a_lifetime_follows_no_step_of_the_time_of_day_and_an_end_follows_each() {
    for step in [-3_600_000, -10_000, 3_600_000] {
        let mut server = Server::default();
        server.send("PUT /v1/stream/a", &[TEXT, ("Stream-TTL", "10")], b"x");
        let at = ("Stream-Expires-At", "2025-01-01T00:00:10Z");
        server.send("PUT /v1/stream/b", &[TEXT, at], b"x");
        server.wall_ahead_ms += step;
        let status = |server: &mut Server, name| {
            let head = server.send(&format!("HEAD /v1/stream/{name}"), &[], b"");
            head.status
        };
        let until = if step > 0 { 404 } else { 200 };
        assert_eq!(status(&mut server, "b"), until, "step {step}");
        server.now_ms += 9_999;
        assert_eq!(status(&mut server, "a"), 200, "step {step}");
        server.now_ms += 1;
        assert_eq!(status(&mut server, "a"), 404, "step {step}");
        assert_eq!(status(&mut server, "b"), until, "step {step}");
        // Back at its own time.
        server.wall_ahead_ms = 0;
        assert_eq!(status(&mut server, "b"), 404);
    }
}

#[test]
fn what_has_expired_is_gone_whether_or_not_it_was_ended_yet() {
    for ended in [false, true] {
        let mut server = Server::default();
        let at = ("Stream-Expires-At", "2025-01-01T00:00:10Z");
        server.send("PUT /v1/stream/a", &[TEXT, at], b"x");
        server.send("PUT /v1/stream/b", &[TEXT, at], b"x");
        let own = ("Stream-TTL", "3600");
        let from = ("Stream-Forked-From", "b");
        assert_eq!(
            server.send("PUT /v1/stream/f", &[from, own], b"y").status,
            201
        );
        server.now_ms += 9_999;
        assert_eq!(get(&mut server, "a").status, 200);
        server.now_ms += 1;
        if ended {
            server.expire();
        }
        for line in ["GET", "HEAD", "DELETE"] {
            let status = server
                .send(&format!("{line} /v1/stream/a"), &[], b"")
                .status;
            assert_eq!(status, 404, "{line}, ended: {ended}");
            let status = server
                .send(&format!("{line} /v1/stream/b"), &[], b"")
                .status;
            assert_eq!(status, 410, "{line}, ended: {ended}");
        }
        assert_eq!(server.send("POST /v1/stream/a", &[TEXT], b"x").status, 404);
        assert_eq!(
            server.send("PUT /v1/stream/b", &[TEXT, at], b"").status,
            409
        );
        assert_eq!(get(&mut server, "f").body, b"xy");
        assert_eq!(server.send("PUT /v1/stream/a", &[JSON], b"[]").status, 201);
    }
}

#[test]
fn a_deleted_stream_stays_for_its_forks_and_its_name_with_it() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"old");
    let from = [("Stream-Forked-From", "/v1/stream/a")];
    assert_eq!(server.send("PUT /v1/stream/f", &from, b"").status, 201);
    assert_eq!(server.send("DELETE /v1/stream/a", &[], b"").status, 204);
    for line in ["GET", "HEAD", "DELETE", "POST"] {
        let said = server.send(&format!("{line} /v1/stream/a"), &[TEXT], b"x");
        assert_eq!((said.status, said.code()), (410, "gone".into()), "{line}");
    }
    let said = server.send("PUT /v1/stream/a", &[TEXT], b"");
    assert_eq!((said.status, said.code()), (409, "name_kept".into()));
    let said = server.send("PUT /v1/stream/g", &from, b"");
    assert_eq!((said.status, said.code()), (409, "source_gone".into()));
    // What is there already can be confirmed all the same.
    assert_eq!(server.send("PUT /v1/stream/f", &from, b"").status, 200);
    assert_eq!(get(&mut server, "f").body, b"old");
    assert_eq!(server.send("DELETE /v1/stream/f", &[], b"").status, 204);
    assert_eq!(server.send("HEAD /v1/stream/a", &[], b"").status, 404);
    assert_eq!(server.send("DELETE /v1/stream/f", &[], b"").status, 404);
    assert_eq!(server.send("PUT /v1/stream/a", &[TEXT], b"").status, 201);
}

#[test]
fn a_new_stream_of_an_old_name_has_nothing_of_it() {
    let mut server = with(TEXT);
    let old = server.send("POST /v1/stream/a", &[TEXT], b"old");
    let tag = get(&mut server, "a").field("ETag").unwrap().to_owned();
    server.send("DELETE /v1/stream/a", &[], b"");
    server.send("PUT /v1/stream/a", &[TEXT], b"new");
    let said = get(&mut server, &format!("a?offset={}", old.token()));
    assert_eq!((said.status, said.code()), (410, "before_start".into()));
    let said = server.send("GET /v1/stream/a", &[("If-None-Match", &tag)], b"");
    assert_eq!((said.status, said.text()), (200, "new"));
    for sub_offset in ["0", "1"] {
        let fork = [
            ("Stream-Forked-From", "a"),
            ("Stream-Fork-Offset", &*old.token()),
            ("Stream-Fork-Sub-Offset", sub_offset),
        ];
        let said = server.send("PUT /v1/stream/f", &fork, b"");
        assert_eq!((said.status, said.code()), (400, "before_start".into()));
    }
}

#[test]
fn a_read_under_which_its_stream_is_deleted_never_ends_short() {
    let ask = |server: &Server, query: &str| {
        let routed = server.router.request(Request {
            method: "GET",
            path: "/v1/stream/a",
            query: Some(query),
            headers: Headers(&[]),
            body: Vec::new(),
            caller: CallerInfo::default(),
            now: server.now(),
            barriers: 0,
            upgrade: false,
        });
        routed.action
    };
    // As a reader finds it when the records are gone: nothing, and nothing left.
    let gone = |end| Run {
        at_tail: true,
        ..Run::position(end)
    };
    for query in ["offset=-1", "offset=-1&live=long-poll"] {
        let mut server = Server::default();
        server.send("PUT /v1/stream/a", &[TEXT], b"data");
        let Action::Read(fetch, then) = ask(&server, query) else {
            panic!("{query} reads")
        };
        assert_eq!(server.send("DELETE /v1/stream/a", &[], b"").status, 204);
        let now_ms = server.now_ms;
        let answer = then.read(Ok(gone(fetch.upto)), WallTime::from_ms(now_ms));
        assert!(matches!(answer, Action::Respond(response) if response.status == 404));
    }
    // A long answer that has begun is cut off.
    let mut server = Server::default();
    server.send("PUT /v1/stream/a", &[TEXT], b"data");
    let Action::Read(fetch, then) = ask(&server, "offset=-1") else {
        panic!("it reads")
    };
    let part = Run {
        at_tail: false,
        ..gone(fetch.from)
    };
    let now_ms = server.now_ms;
    let Action::Stream(_, part) = then.read(Ok(part), WallTime::from_ms(now_ms)) else {
        panic!("it goes on")
    };
    server.send("DELETE /v1/stream/a", &[], b"");
    let next = part.then.part(&gone(part.fetch.upto));
    assert!(next.is_none());
}
