//! Credentials that expire or are revoked: new requests are refused, and live connections end.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{API_KEY, Guarded, bearer};
use crate::positions::Positions;
use crate::rig::{Brokers, Connection, Encke, JSON, data_dir, eventually, request};

#[test]
fn a_subscription_ends_when_its_token_ends_and_says_why() {
    let guarded = Guarded::start(&["--tuning", "heartbeat=1s"]);
    let backend = bearer(API_KEY);
    guarded.create("/v1/stream/a", b"[1]");
    let ends_s = now_s() + 8;
    let short = guarded.token(&["--sub", "ann", "--expires", "8s", "--allow", "read=/v1/**"]);
    let target = "/v1/stream/a?offset=-1&live=sse";
    let mut connection = guarded.encke.connect();
    connection.send(&request("GET", target, &[&bearer(&short)], b""));
    assert_eq!(connection.head().status, 200);
    let text = String::from_utf8(connection.rest()).expect("events are text");
    // The leeway for other clocks is for the beginning of requests; a subscription has none.
    assert!(now_s() >= ends_s, "it ended early: {text}");
    assert!(
        text.contains(": closed by the server: the token has expired; continue at offset "),
        "{text}"
    );
    // With a new token it continues behind what it has.
    let offset = text
        .rsplit("continue at offset ")
        .next()
        .and_then(|rest| rest.lines().next());
    let offset = offset.expect("it names the offset");
    assert_eq!(guarded.ask("POST", "/v1/stream/a", &backend, b"[2]").0, 204);
    let renewed = guarded.allowed("ann", "read=/v1/**");
    let target = format!("/v1/stream/a?offset={offset}");
    let rest = guarded.encke.ask("GET", &target, &[&renewed], b"");
    assert_eq!(
        serde_json::from_slice::<Value>(&rest.body).ok(),
        Some(json!([2]))
    );
}

#[test]
fn the_position_in_a_farewell_is_one_of_the_stream() {
    let guarded = Guarded::start(&["--tuning", "streams-idle=1s", "--shards", "1"]);
    let backend = bearer(API_KEY);
    for stream in ["a", "b"] {
        guarded.create(&format!("/v1/stream/{stream}"), b"[1]");
    }
    let revoke = |jti: &str| {
        let body = json!({ "jti": jti }).to_string();
        let mut connection = Connection::open(guarded.operators);
        let answer = connection.ask("POST", "/v1/admin/revoke", &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
    };
    // Up to date: from the start, from the tail, over several streams, with a stream that has left memory meanwhile.
    for (number, target) in [
        "/v1/stream/a?offset=-1&live=sse",
        "/v1/stream/a?offset=now&live=sse",
        "/v1/events?stream=a",
        "/v1/events?stream=a@-1&stream=b",
        "/v1/events?stream=**",
        "/v1/stream/a?offset=-1&live=sse#rests",
    ]
    .into_iter()
    .enumerate()
    {
        let (target, rests) = match target.split_once('#') {
            Some((target, _)) => (target, true),
            None => (target, false),
        };
        let jti = format!("token-{number}");
        let token = guarded.token(&["--jti", &jti, "--expires", "1h", "--allow", "read=/v1/**"]);
        let mut subscriber = guarded.encke.connect();
        subscriber.send(&request("GET", target, &[&bearer(&token)], b""));
        assert_eq!(subscriber.head().status, 200);
        // The log goes on without this stream. A new subscriber is behind all that when it has an event of its own.
        for _ in 0..5 {
            assert_eq!(guarded.ask("POST", "/v1/stream/b", &backend, b"[2]").0, 204);
        }
        if rests {
            eventually("the stream has left memory", || {
                let answer = Connection::open(guarded.operators).ask("GET", "/metrics", &[], b"");
                let text = String::from_utf8(answer.body).expect("metrics are text");
                !text.contains("encke_stream_evictions_total 0")
            });
        }
        revoke(&jti);
        let text = String::from_utf8(subscriber.rest()).expect("events are text");
        assert!(text.contains("closed by the server"), "{target}: {text}");
        let renewed = guarded.allowed("ann", "read=/v1/**");
        Positions::of(&text).follow(guarded.encke.address, target, &[&renewed]);
    }
}

#[test]
fn revocations_close_connections_and_survive_a_kill() {
    let (guarded, data) = Guarded::start_in(data_dir(), &[]);
    let backend = bearer(API_KEY);
    guarded.create("/v1/stream/a", b"[1]");
    let token = |sub: &str, jti: &str| {
        guarded.token(&[
            "--sub",
            sub,
            "--jti",
            jti,
            "--expires",
            "1h",
            "--allow",
            "read=/v1/**",
        ])
    };
    let (one, two, other) = (
        token("ann", "one"),
        token("ann", "two"),
        token("bob", "three"),
    );
    let follow = |token: &str| {
        let mut connection = guarded.encke.connect();
        let target = "/v1/stream/a?offset=-1&live=sse";
        connection.send(&request("GET", target, &[&bearer(token)], b""));
        assert_eq!(connection.head().status, 200);
        connection
    };
    let (mut of_one, mut of_two, mut of_other) = (follow(&one), follow(&two), follow(&other));
    let revoke = |body: &Value| {
        let mut connection = Connection::open(guarded.operators);
        connection.ask(
            "POST",
            "/v1/admin/revoke",
            &[JSON],
            body.to_string().as_bytes(),
        )
    };
    assert_eq!(revoke(&json!({ "jti": "one" })).status, 204);
    let text = String::from_utf8(of_one.rest()).expect("events are text");
    assert!(text.contains("the token was revoked"), "{text}");
    assert_eq!(
        guarded.ask("GET", "/v1/stream/a", &bearer(&one), b""),
        (401, "revoked".into())
    );
    assert_eq!(
        guarded.ask("GET", "/v1/stream/a", &bearer(&two), b"").0,
        200
    );
    assert_eq!(revoke(&json!({ "sub": "ann" })).status, 204);
    let text = String::from_utf8(of_two.rest()).expect("events are text");
    assert!(text.contains("the token was revoked"), "{text}");
    // Others go on.
    assert_eq!(guarded.ask("POST", "/v1/stream/a", &backend, b"[2]").0, 204);
    while !of_other.input().windows(8).any(|part| part == b"data:[2]") {
        assert!(of_other.fill(), "another caller's subscription was closed");
    }
    for (body, status) in [
        (json!({}), 400),
        (json!({ "jti": "a", "sub": "b" }), 400),
        (json!({ "jit": "a" }), 400),
        (json!([1]), 400),
    ] {
        assert_eq!(revoke(&body).status, status, "{body}");
    }
    let again = guarded.restarted(data.path(), Encke::kill);
    for token in [&one, &two] {
        let answer = again.ask("GET", "/v1/stream/a", &bearer(token), b"");
        assert_eq!(answer, (401, "revoked".into()));
    }
    assert_eq!(
        again.ask("GET", "/v1/stream/a", &bearer(&other), b"").0,
        200
    );
}

#[test]
fn the_first_revocations_are_all_kept_also_at_once() {
    const TOKENS: usize = 8;
    let (guarded, data) = Guarded::start_in(data_dir(), &[]);
    guarded.create("/v1/stream/a", b"[1]");
    let tokens: Vec<String> = (0..TOKENS)
        .map(|number| {
            let jti = number.to_string();
            let arguments = ["--jti", &jti, "--expires", "1h", "--allow", "read=/v1/**"];
            bearer(&guarded.token(&arguments))
        })
        .collect();
    // All connected first: nothing has been revoked here before.
    let mut revokers: Vec<Connection> = (0..TOKENS)
        .map(|_| Connection::open(guarded.operators))
        .collect();
    for (number, revoker) in revokers.iter_mut().enumerate() {
        let body = json!({ "jti": number.to_string() }).to_string();
        revoker.send(&request(
            "POST",
            "/v1/admin/revoke",
            &[JSON],
            body.as_bytes(),
        ));
    }
    for revoker in &mut revokers {
        assert_eq!(revoker.head().status, 204);
    }
    let again = guarded.restarted(data.path(), Encke::kill);
    for token in &tokens {
        let answer = again.ask("GET", "/v1/stream/a", token, b"");
        assert_eq!(answer, (401, "revoked".into()));
    }
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is after 1970").as_secs()
}

#[test]
fn a_revocation_closes_connections_at_every_node_of_a_fleet() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let node = |name: &str| Guarded::node(&brokers, name);
    let ((a, _a_data), (b, _b_data)) = (node("a"), node("b"));
    a.create("/v1/stream/s", b"[1]");
    let arguments = [
        "--sub",
        "ann",
        "--jti",
        "one",
        "--expires",
        "1h",
        "--allow",
        "read=/v1/**",
    ];
    let token = bearer(&a.token(&arguments));
    let mut connection = b.encke.connect();
    let target = "/v1/stream/s?offset=-1&live=sse";
    connection.send(&request("GET", target, &[&token], b""));
    assert_eq!(connection.head().status, 200);
    let body = json!({ "jti": "one" }).to_string();
    let revoked =
        Connection::open(a.operators).ask("POST", "/v1/admin/revoke", &[JSON], body.as_bytes());
    assert_eq!(revoked.status, 204, "{revoked:?}");
    let text = String::from_utf8(connection.rest()).expect("events are text");
    assert!(text.contains("the token was revoked"), "{text}");
    eventually("the other node refuses the token", || {
        b.ask("GET", "/v1/stream/s", &token, b"") == (401, "revoked".into())
    });
    // Who may not read costs the brokers nothing.
    let other = bearer(&a.token(&["--sub", "bob", "--allow", "read=/v1/stream/other"]));
    brokers.freeze(0);
    let refused = b.ask("GET", "/v1/stream/s", &other, b"");
    assert_eq!(refused, (404, "not_found".into()));
    brokers.thaw(0);
}

#[test]
#[ignore = "long: make test-all"]
fn a_long_body_ends_a_bounded_time_behind_its_token() {
    // More than the sockets hold.
    const RECORDS: usize = 24;
    let record = vec![b'x'; 1 << 20];
    for (timeout, is_complete) in [("body-timeout=5s", false), ("body-timeout=10m", true)] {
        let guarded = Guarded::start(&["--tuning", timeout]);
        let backend = bearer(API_KEY);
        let binary = "Content-Type: application/octet-stream";
        let encke = &guarded.encke;
        let path = "/v1/stream/long";
        assert_eq!(encke.ask("PUT", path, &[binary, &backend], b"").status, 201);
        for _ in 0..RECORDS {
            let appended = encke.ask("POST", path, &[binary, &backend], &record);
            assert_eq!(appended.status, 204);
        }
        let short =
            bearer(&guarded.token(&["--sub", "ann", "--expires", "8s", "--allow", "read=/v1/**"]));
        let mut reader = encke.connect();
        let fields = [&short, "Connection: close"];
        reader.send(&request("GET", "/v1/stream/long?offset=-1", &fields, b""));
        assert_eq!(reader.head().status, 200);
        eventually("the token has expired", || {
            guarded.ask("GET", path, &short, b"").0 == 401
        });
        if !is_complete {
            eventually("the body is cut off", || {
                let metrics = Connection::open(guarded.operators).ask("GET", "/metrics", &[], b"");
                let metrics = String::from_utf8(metrics.body).expect("metrics are text");
                metrics.contains("encke_connections_closed_total{reason=\"expired\"} 1")
            });
        }
        let read = reader.rest().len();
        let whole = RECORDS * record.len();
        assert_eq!(read >= whole, is_complete, "{read} of {whole}");
    }
}
