//! Quotas of callers: what each path, wire and credential of a caller counts for, and what it does not.

use serde_json::{Value, json};

use super::{API_KEY, Guarded, bearer, configuration};
use crate::rig::http2::{Frame, Http2Client};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, JSON, Response, eventually, request};

const BINARY: &str = "Content-Type: application/octet-stream";

/// A server whose callers have these quotas, but not the backend.
fn limited(quotas: &str) -> Guarded {
    let guarded = Guarded::start(&[]);
    guarded.reload(&with_quotas(quotas));
    guarded.create("/v1/stream/a", b"[1]");
    guarded
}

/// The configuration with these quotas, of which the backend has none.
pub(super) fn with_quotas(quotas: &str) -> String {
    let overrides = "[[access.quotas.overrides]]\nname = 'backend'\nappends-per-second = 0\nsubscribers = 0\nstreams = 0\nstored-bytes = 0\n";
    format!(
        "{}\n[access.quotas]\n{quotas}\n{overrides}",
        configuration()
    )
}

impl Guarded {
    pub(super) fn refused(&self, response: &Response, code: &str) {
        assert_eq!(response.status, 429, "{response:?}");
        assert_eq!(response.error_code(), code);
        let retry = response
            .field("Retry-After")
            .and_then(|text| text.parse().ok());
        assert!(
            retry.is_some_and(|retry_s: u64| retry_s > 0),
            "{response:?}"
        );
    }

    pub(super) fn usage(&self) -> Value {
        let answer = Connection::open(self.operators).ask("GET", "/v1/admin/usage", &[], b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_slice(&answer.body).expect("it is JSON")
    }

    pub(super) fn used_by(&self, subject: &str) -> Value {
        let usage = self.usage();
        let callers = usage["callers"].as_array().expect("a list");
        let found = callers.iter().find(|one| one["subject"] == subject);
        found.unwrap_or_else(|| panic!("{usage}")).clone()
    }
}

/// A thousand messages in one body: at one a second, what follows is refused however slow the machine is.
fn thousand() -> Vec<u8> {
    json!(vec![0; 1_000]).to_string().into_bytes()
}

const APPENDS: &str = "quota_appends_per_second";

#[test]
fn appends_count_on_every_path_and_wire() {
    let guarded = limited("appends-per-second = 1\nappend-burst = 2\n");
    let encke = &guarded.encke;
    let all = ["read=/v1/**", "append=/v1/**", "create=/v1/**"];
    let token = |subject: &str, jti: &str| {
        let mut arguments = vec!["--sub", subject, "--jti", jti, "--expires", "1h"];
        arguments.extend(all.iter().flat_map(|allow| ["--allow", allow]));
        bearer(&guarded.token(&arguments))
    };
    let binary = encke.ask("PUT", "/v1/stream/bytes", &[BINARY, &bearer(API_KEY)], b"");
    assert_eq!(binary.status, 201);
    // Each of these is within the burst, and uses the rate of a thousand seconds.
    let use_up = |way: &str, mine: &str| match way {
        "post" => {
            let sent = encke.ask("POST", "/v1/stream/a", &[JSON, mine], &thousand());
            assert_eq!(sent.status, 204, "{sent:?}");
        }
        "put" => {
            let sent = encke.ask("PUT", "/v1/stream/put", &[JSON, mine], &thousand());
            assert_eq!(sent.status, 201, "{sent:?}");
        }
        _ => {
            let mut channel = WebSocketClient::open(encke.address, "/v1/events", &[mine]);
            let append = json!({"type": "append", "stream": "a", "data": vec![0; 1_000]});
            let sent = channel.ask(&append.to_string());
            assert_eq!(sent["type"], "appended", "{sent}");
        }
    };
    for subject in ["post", "put", "channel"] {
        use_up(subject, &token(subject, "1"));
        // Another token of the same subject, on every path.
        let mine = token(subject, "2");
        for (method, path, media) in [
            ("POST", "/v1/stream/a", JSON),
            ("POST", "/v1/stream/bytes", BINARY),
            ("PUT", "/v1/stream/new", JSON),
        ] {
            let answer = encke.ask(method, path, &[media, &mine], b"[1]");
            guarded.refused(&answer, APPENDS);
        }
        let mut channel = WebSocketClient::open(encke.address, "/v1/events", &[&mine]);
        let refused = channel.ask(r#"{"type":"append","id":7,"stream":"a","data":1}"#);
        assert_eq!(refused["type"], "error", "{refused}");
        assert_eq!(
            (&refused["id"], &refused["status"], &refused["code"]),
            (&json!(7), &json!(429), &json!(APPENDS))
        );
        let mut http2 = Http2Client::open(encke.address, &[]);
        let value = mine.trim_start_matches("Authorization: ");
        let mut fields = Frame::fields("POST", "/v1/stream/a");
        fields.extend([
            ("authorization", value),
            ("content-type", "application/json"),
        ]);
        http2.send(&Frame::headers(4, 1, &fields));
        http2.send(&Frame::new(0, 1, 1, b"[1]"));
        assert_eq!(http2.error_code(1), APPENDS);
        // What appends nothing is no append.
        assert_eq!(
            encke
                .ask("PUT", "/v1/stream/empty", &[JSON, &mine], b"")
                .status
                / 100,
            2
        );
        assert_eq!(encke.ask("GET", "/v1/stream/a", &[&mine], b"").status, 200);
    }
    assert_eq!(
        encke
            .ask("HEAD", "/v1/stream/new", &[&bearer(API_KEY)], b"")
            .status,
        404
    );
    // Others have their own, and the backend has none.
    assert_eq!(
        encke
            .ask(
                "POST",
                "/v1/stream/a",
                &[JSON, &token("other", "1")],
                b"[1]"
            )
            .status,
        204
    );
    for _ in 0..5 {
        guarded.append("/v1/stream/a", &thousand());
    }
    let used = guarded.used_by("put");
    assert_eq!(
        used["appends"],
        json!({"counted": 1_000, "per_second_max": 1})
    );
    assert_eq!(used["exceeded"], 5);
    assert_eq!(
        guarded.metric("encke_quotas_exceeded_total{quota=\"appends-per-second\"}"),
        15
    );
    // A reload applies to what comes next.
    guarded.reload(&with_quotas("appends-per-second = 0\n"));
    assert_eq!(
        encke
            .ask("POST", "/v1/stream/a", &[JSON, &token("put", "3")], b"[1]")
            .status,
        204
    );
}

const SUBSCRIBERS: &str = "quota_subscribers";

#[test]
fn subscriptions_count_on_every_wire_for_as_long_as_they_last() {
    let guarded = limited("subscribers = 2\n");
    let mine = guarded.allowed("ann", "read=/v1/**");
    let live = "/v1/stream/a?offset=-1&live=sse";
    let first = guarded.subscribe(live, &mine);
    let mut poll = guarded.encke.connect();
    poll.send(&request(
        "GET",
        "/v1/stream/a?offset=now&live=long-poll",
        &[&mine],
        b"",
    ));
    let is_used = |count: u64| guarded.used_by("ann")["subscribers"]["used"] == count;
    eventually("the long poll waits", || is_used(2));
    let again = guarded.allowed("ann", "read=/v1/stream/**");
    let events = guarded.allowed("ann", "read=/v1/**");
    for (target, credentials) in [
        (live, &again),
        ("/v1/stream/a?last=1&live=sse", &again),
        ("/v1/stream/a?offset=now&live=long-poll", &again),
        ("/v1/stream/a?offset=-1&live=true", &again),
        ("/v1/events?stream=a", &events),
        ("/v1/events?stream=**", &events),
    ] {
        let answer = guarded.encke.ask("GET", target, &[credentials], b"");
        guarded.refused(&answer, SUBSCRIBERS);
    }
    let mut http2 = Http2Client::open(guarded.encke.address, &[]);
    let mut fields = Frame::fields("GET", live);
    fields.push(("authorization", mine.trim_start_matches("Authorization: ")));
    http2.send(&Frame::headers(5, 1, &fields));
    assert_eq!(http2.error_code(1), SUBSCRIBERS);
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&mine]);
    for start in [r#""offset":"now""#, r#""last":1"#] {
        let refused = channel.ask(&format!(
            r#"{{"type":"subscribe","id":1,"stream":"a",{start}}}"#
        ));
        assert_eq!(
            (&refused["code"], &refused["id"]),
            (&json!(SUBSCRIBERS), &json!(1)),
            "{refused}"
        );
    }
    // Reads are none, and others have their own.
    assert_eq!(guarded.ask("GET", "/v1/stream/a", &mine, b"").0, 200);
    drop(guarded.subscribe(live, &guarded.allowed("bob", "read=/v1/**")));
    // One that ends makes room, whether the client goes or the server answers.
    drop(first);
    eventually("the subscription has ended", || is_used(1));
    let subscribed = channel.ask(r#"{"type":"subscribe","stream":"a","last":1}"#);
    assert_eq!(
        subscribed["type"], "subscribed",
        "a refused one leaves nothing: {subscribed}"
    );
    assert!(is_used(2));
    guarded.append("/v1/stream/a", b"[2]");
    assert_eq!(poll.answer().status, 200);
    assert!(is_used(1), "the connection of the long poll stays");
    let mut second = guarded.subscribe(live, &mine);
    assert!(is_used(2));
    channel.send(r#"{"type":"unsubscribe","stream":"a"}"#);
    eventually("the channel has unsubscribed", || is_used(1));
    // A lower limit closes nothing.
    guarded.reload(&with_quotas("subscribers = 1\n"));
    guarded.append("/v1/stream/a", b"[3]");
    while !second.input().windows(8).any(|part| part == b"data:[3]") {
        assert!(second.fill(), "it was closed");
    }
    let answer = guarded.encke.ask("GET", live, &[&mine], b"");
    guarded.refused(&answer, SUBSCRIBERS);
    assert_eq!(
        guarded.used_by("ann")["subscribers"],
        json!({"used": 1, "max": 1})
    );
}

#[test]
fn callers_without_a_subject_share_what_their_credential_has() {
    let guarded = limited("subscribers = 1\n");
    guarded.create("/v1/stream/public/a", b"[1]");
    let live = "/v1/stream/public/a?offset=-1&live=sse";
    let none = "X-Nothing: 1";
    let _anonymous = guarded.subscribe(live, none);
    guarded.refused(&guarded.encke.ask("GET", live, &[], b""), SUBSCRIBERS);
    // All signed URLs of one key, and all tokens without a subject, are another caller each.
    let _signed = guarded.subscribe(&guarded.signed("GET", live, &[]), none);
    let other = guarded.signed("GET", "/v1/stream/a?offset=-1&live=sse", &[]);
    guarded.refused(&guarded.encke.ask("GET", &other, &[], b""), SUBSCRIBERS);
    let nobody = || bearer(&guarded.token(&["--expires", "1h", "--allow", "read=/v1/**"]));
    let _nobody = guarded.subscribe(live, &nobody());
    guarded.refused(
        &guarded.encke.ask("GET", live, &[&nobody()], b""),
        SUBSCRIBERS,
    );
    let usage = guarded.usage();
    let callers = usage["callers"].as_array().expect("a list").iter();
    let mut lines: Vec<_> = callers
        .map(|one| {
            format!(
                "{} {} {}",
                one["kind"], one["name"], one["subscribers"]["used"]
            )
        })
        .collect();
    lines.sort();
    let expected = [
        r#""anonymous" "anonymous" 1"#,
        r#""signed_url" "links" 1"#,
        r#""token" "app" 1"#,
        // It has made the streams, and is not counted otherwise.
        r#"null "backend" 0"#,
    ];
    assert_eq!(lines, expected);
    assert_eq!(guarded.usage()["counted"], 3);
}

#[test]
fn usage_is_for_operators_and_needs_quotas() {
    let guarded = Guarded::start(&[]);
    let usage = |credentials: &str| guarded.ask("GET", "/v1/admin/usage", credentials, b"");
    assert_eq!(usage("").0, 401);
    let reader = guarded.allowed("ann", "read=/**");
    assert_eq!(usage(&reader).0, 403);
    assert_eq!(usage(&bearer(API_KEY)), (409, "no_quotas".into()));
    guarded.reload(&with_quotas("accounts-max = 16\nsubscribers = 1\n"));
    assert_eq!(usage(&bearer(API_KEY)).0, 200);
    // At the bound on callers further ones are refused, and those that are there go on.
    guarded.create("/v1/stream/a", b"[1]");
    let live = "/v1/stream/a?offset=-1&live=sse";
    let mut held = Vec::new();
    let refused = (0..200).find_map(|number| {
        let mine = guarded.allowed(&format!("s{number}"), "read=/v1/**");
        let mut connection = guarded.encke.connect();
        connection.send(&request("GET", live, &[&mine], b""));
        let head = connection.head();
        held.push(connection);
        (head.status != 200).then_some(head.status)
    });
    assert_eq!(refused, Some(429));
    assert_eq!(
        guarded.metric("encke_quotas_exceeded_total{quota=\"accounts-max\"}"),
        1
    );
    assert!(guarded.metric("encke_quota_accounts") <= 16);
}

#[test]
fn subscriptions_that_move_to_a_successor_count_there() {
    let guarded = limited("subscribers = 2\n");
    let mine = guarded.allowed("ann", "read=/v1/**");
    let live = "/v1/stream/a?offset=-1&live=sse";
    let first = guarded.subscribe(live, &mine);
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&mine]);
    let subscribe = r#"{"type":"subscribe","stream":"a"}"#;
    assert_eq!(channel.ask(subscribe)["type"], "subscribed");
    guarded.upgrade();
    guarded.refused(&guarded.encke.ask("GET", live, &[&mine], b""), SUBSCRIBERS);
    drop(first);
    eventually("the subscription has ended", || {
        guarded.used_by("ann")["subscribers"]["used"] == 1
    });
    guarded.subscribe(live, &mine);
}
