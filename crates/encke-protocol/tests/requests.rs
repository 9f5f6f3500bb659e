//! No request causes a panic or an invalid response, whatever it contains.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use std::collections::BTreeSet;

use encke_clock::WallTime;
use encke_stream::Offset;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use server::{Reply, Said, Server};

#[derive(Clone, Debug)]
struct Sent {
    method: String,
    path: String,
    query: Option<String>,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    /// Milliseconds before it is sent.
    wait_ms: u64,
    /// Which of the offsets that were told stands where it says `OFFSET`.
    offset: Option<Index>,
}

/// A request that makes sense, and at times one thing about it that does not.
fn sent() -> impl Strategy<Value = Sent> {
    let sensible = prop_oneof![
        4 => put(),
        5 => post(),
        6 => get(),
        1 => name().prop_map(|path| plain("HEAD", path)),
        1 => name().prop_map(|path| plain("DELETE", path)),
        1 => name().prop_map(|path| plain("OPTIONS", path)),
    ];
    let wait_ms = prop_oneof![12 => Just(0), 1 => 0..4000_u64];
    (sensible, weighted(0.25, blemish()), wait_ms, any::<Index>()).prop_map(
        |(mut sent, blemish, wait_ms, offset)| {
            (sent.wait_ms, sent.offset) = (wait_ms, Some(offset));
            match blemish {
                None => {}
                Some(Blemish::Method(method)) => sent.method = method,
                Some(Blemish::Path(path)) => sent.path = path,
                Some(Blemish::Query(query)) => sent.query = Some(query),
                Some(Blemish::Field(name, value)) => {
                    sent.fields.retain(|(field, _)| *field != name);
                    sent.fields.push((name, value));
                }
                Some(Blemish::NoField(which)) if !sent.fields.is_empty() => {
                    sent.fields.remove(which.index(sent.fields.len()));
                }
                Some(Blemish::NoField(_)) => {}
                Some(Blemish::Body(body)) => sent.body = body,
            }
            sent
        },
    )
}

#[derive(Clone, Debug)]
enum Blemish {
    Method(String),
    Path(String),
    Query(String),
    Field(String, Vec<u8>),
    NoField(Index),
    Body(Vec<u8>),
}

fn blemish() -> impl Strategy<Value = Blemish> {
    let path = prop_oneof![
        select(vec!["__ds", "__ds/x", ".", "a/..", "%", "%00", "%ff", ""])
            .prop_map(|name| format!("/v1/stream/{name}")),
        "[a-z/%0-9.]{0,20}".prop_map(|name| format!("/v1/stream/{name}")),
        "\\PC{0,20}".prop_map(|name| format!("/v1/stream/{name}")),
        select(vec!["/", "/healthz", "/readyz", "/metrics", "*", ""]).prop_map(String::from),
        "\\PC{0,20}",
    ];
    let query = prop_oneof![
        select(vec![
            "live=sse",
            "offset=-1&live=x",
            "offset=now&offset=now",
            "offset=0",
            "&&"
        ])
        .prop_map(String::from),
        "[a-z=%0-9+&-]{0,20}",
        "\\PC{0,20}",
    ];
    let names = vec![
        "Content-Type",
        "Producer-Id",
        "Producer-Epoch",
        "Producer-Seq",
        "Stream-Closed",
        "Stream-Expires-At",
        "Stream-Fork-Offset",
        "Stream-Fork-Sub-Offset",
        "Stream-Forked-From",
        "Stream-Seq",
        "Stream-TTL",
        "If-None-Match",
        "Host",
    ];
    let value = prop_oneof![
        vec(any::<u8>(), 0..20),
        "[0-9TZ:.+-]{0,30}".prop_map(String::into_bytes),
        "\\PC{0,20}".prop_map(String::into_bytes),
        select(vec!["0", "3", "text/html", "OFFSET"]).prop_map(|value| value.as_bytes().to_vec()),
    ];
    let name = prop_oneof![
        9 => select(names).prop_map(String::from),
        1 => "[A-Za-z-]{1,20}",
    ];
    let body = prop_oneof![
        select(vec!["", "[]", "[", "1 2"]).prop_map(|body| body.as_bytes().to_vec()),
        vec(any::<u8>(), 0..60),
    ];
    prop_oneof![
        1 => "\\PC{0,8}".prop_map(Blemish::Method),
        2 => path.prop_map(Blemish::Path),
        2 => query.prop_map(Blemish::Query),
        6 => (name, value).prop_map(|(name, value)| Blemish::Field(name, value)),
        1 => any::<Index>().prop_map(Blemish::NoField),
        2 => body.prop_map(Blemish::Body),
    ]
}

fn plain(method: &str, path: String) -> Sent {
    Sent {
        method: method.into(),
        path,
        query: None,
        fields: Vec::new(),
        body: Vec::new(),
        wait_ms: 0,
        offset: None,
    }
}

fn name() -> impl Strategy<Value = String> {
    select(vec!["a", "a", "a", "b", "b", "%C3%A4"]).prop_map(|name| format!("/v1/stream/{name}"))
}

type Field = (&'static str, String);

fn field(name: &'static str, values: &[&'static str]) -> BoxedStrategy<Field> {
    let value = select(values.to_vec());
    value
        .prop_map(move |value| (name, value.to_owned()))
        .boxed()
}

fn with(sent: Sent, fields: impl IntoIterator<Item = Field>) -> Sent {
    let fields = fields.into_iter();
    Sent {
        fields: fields
            .map(|(name, value)| (name.to_owned(), value.into_bytes()))
            .collect(),
        ..sent
    }
}

fn content_type() -> BoxedStrategy<Field> {
    field(
        "Content-Type",
        &["text/plain", "text/plain", "application/json"],
    )
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    select(vec!["[1,2,3]", "{\"a\":[1]}", "\"x\"", "[[]]", " 1 ", "[]"])
        .prop_map(|body| body.as_bytes().to_vec())
}

fn put() -> impl Strategy<Value = Sent> {
    let times = ["2025-01-01T00:00:03Z", "2030-01-01T00:00:00+02:00"];
    let lifetime = prop_oneof![
        field("Stream-TTL", &["0", "1", "5"]),
        field("Stream-Expires-At", &times),
    ];
    let fork = name().prop_map(|name| ("Stream-Forked-From", name));
    let at = (
        field("Stream-Fork-Offset", &["OFFSET", "OFFSET", "-1"]),
        weighted(0.5, field("Stream-Fork-Sub-Offset", &["0", "1", "2"])),
    );
    let fork = (fork, weighted(0.5, at));
    (
        (name(), weighted(0.7, content_type()), body(), any::<bool>()),
        weighted(0.1, field("Stream-Closed", &["true"])),
        weighted(0.15, lifetime),
        weighted(0.4, fork),
    )
        .prop_map(
            |((path, content_type, body, empty), closed, lifetime, fork)| {
                let (source, at) = fork.unzip();
                let (at, sub_offset) = at.flatten().unzip();
                let content_type = content_type.filter(|_| source.is_none());
                let fields = [
                    content_type,
                    closed,
                    lifetime,
                    source,
                    at,
                    sub_offset.flatten(),
                ];
                let mut sent = with(plain("PUT", path), fields.into_iter().flatten());
                if !empty {
                    sent.body = body;
                }
                sent
            },
        )
}

fn post() -> impl Strategy<Value = Sent> {
    let producer = (
        field("Producer-Id", &["p", "q"]),
        field("Producer-Epoch", &["0", "0", "1"]),
        field("Producer-Seq", &["0", "0", "1", "2"]),
    );
    (
        (name(), content_type(), body()),
        weighted(0.1, field("Stream-Closed", &["true", "TRUE"])),
        weighted(0.4, producer),
        weighted(0.2, field("Stream-Seq", &["1", "2", "10"])),
    )
        .prop_map(|((path, content_type, body), closed, producer, seq)| {
            let producer = producer
                .into_iter()
                .flat_map(|(id, epoch, seq)| [id, epoch, seq]);
            let others = [Some(content_type), closed, seq].into_iter().flatten();
            let mut sent = with(plain("POST", path), producer.chain(others));
            sent.body = body;
            sent
        })
}

fn get() -> impl Strategy<Value = Sent> {
    let offset = select(vec!["-1", "now", "OFFSET", "OFFSET"]);
    let live = select(vec![
        "",
        "&live=long-poll",
        "&live=long-poll&cursor=99999999",
        "&live=sse",
    ]);
    let query = weighted(0.8, (offset, live));
    let condition = weighted(0.2, field("If-None-Match", &["*", "\"x\""]));
    (name(), query, condition).prop_map(|(path, query, condition)| Sent {
        query: query.map(|(offset, live)| format!("offset={offset}{live}")),
        ..with(plain("GET", path), condition)
    })
}

/// What the protocol has for each method, or the server for all.
fn check(sent: &Sent, said: &Said) {
    let of_streams = sent.path.starts_with("/v1/stream/");
    let allowed: &[u16] = match (of_streams, &*sent.method) {
        // The same answer everywhere, to browsers that ask before they send.
        (_, "OPTIONS") => &[204],
        // 400: a path with an empty segment.
        (false, _) => &[200, 400, 404, 405],
        (true, "PUT") => &[200, 201, 400, 404, 409],
        (true, "POST") => &[200, 204, 400, 403, 404, 409, 410],
        (true, "GET") => &[200, 204, 304, 400, 404, 410],
        (true, "HEAD") => &[200, 400, 404, 410],
        (true, "DELETE") => &[204, 400, 404, 410],
        (true, _) => &[400, 404, 405],
    };
    assert!(allowed.contains(&said.status), "{sent:?}: {said:?}");
    if !of_streams {
        return;
    }
    for (field, value) in [
        ("X-Content-Type-Options", "nosniff"),
        ("Cross-Origin-Resource-Policy", "cross-origin"),
        ("Access-Control-Allow-Origin", "*"),
    ] {
        assert_eq!(said.field(field), Some(value));
    }
    if said.status >= 400 {
        assert_eq!(said.field("Content-Type"), Some("application/problem+json"));
        assert_eq!(said.field("Cache-Control"), Some("no-store"));
        let body: serde_json::Value = serde_json::from_slice(&said.body).unwrap();
        assert_eq!(body["status"], said.status);
        assert!(!body["title"].as_str().unwrap().is_empty());
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!(body["detail"], message);
        assert!(!message.is_empty() && !message.ends_with('.'), "{message}");
        assert!(!said.code().is_empty());
    } else if matches!(&*sent.method, "PUT" | "POST" | "GET" | "HEAD")
        && said.field("Content-Type") != Some("text/event-stream")
    {
        // Where the client is, always: also when it has that already, or waited in vain.
        said.next();
    }
    if matches!(said.status, 204 | 304) || said.status < 300 && sent.method != "GET" {
        assert!(said.body.is_empty(), "{sent:?}: {said:?}");
    }
    let is_json = said.field("Content-Type").is_some_and(|value| {
        let essence = value.split(';').next().unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("application/json")
    });
    if is_json && sent.method == "GET" && said.status == 200 {
        let messages: Result<Vec<&serde_json::value::RawValue>, _> =
            serde_json::from_slice(&said.body);
        assert!(messages.is_ok(), "{said:?}");
    }
}

/// Sends them all to one server, and returns what was met.
fn send(all: Vec<Sent>) -> BTreeSet<String> {
    let mut server = Server::default();
    let mut told: Vec<Offset> = Vec::new();
    let mut met = BTreeSet::new();
    for mut sent in all {
        server.now_ms += sent.wait_ms;
        let which = sent.offset.filter(|_| !told.is_empty());
        let offset = which.map_or(Offset::START, |which| *which.get(&told));
        let offset = offset.to_string();
        sent.query = sent.query.map(|query| query.replace("OFFSET", &offset));
        for (_, value) in &mut sent.fields {
            if value == b"OFFSET" {
                *value = offset.clone().into_bytes();
            }
        }
        let fields: Vec<(&str, &[u8])> = sent
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let (query, body) = (sent.query.as_deref(), &sent.body);
        let said = match server.request(&sent.method, &sent.path, query, &fields, body) {
            Reply::Said(said) => {
                let known = ["PUT", "POST", "GET", "HEAD", "DELETE", "OPTIONS"];
                if known.contains(&&*sent.method) {
                    met.insert(format!("{} {}", sent.method, said.status));
                }
                said
            }
            Reply::Subscribed(said, subscribe) => {
                met.insert("a subscription".to_owned());
                assert!(said.open);
                let (bytes, marks) = server.follow(&subscribe);
                assert_eq!(marks.last().map_or(0, |mark| mark.end), bytes.len());
                said
            }
            Reply::SubscribedAll(said, _) => said,
            Reply::Asks(_) | Reply::Opened(..) => continue,
            Reply::Polls(poll) => {
                met.insert("a poll".to_owned());
                let now_ms = server.now_ms;
                assert!(poll.wait_ms > 0);
                server::said(poll.then.timed_out(WallTime::from_ms(now_ms)))
            }
        };
        check(&sent, &said);
        if said.status >= 400 && sent.path.starts_with("/v1/stream/") {
            met.insert(said.code());
        }
        if let Some(next) = said.field("Stream-Next-Offset") {
            told.push(next.parse().unwrap());
        }
    }
    met
}

/// A property that is never put to the test holds always.
#[test]
fn the_random_requests_meet_what_can_happen() {
    let mut runner = TestRunner::deterministic();
    let mut met = BTreeSet::new();
    for _ in 0..120 {
        let all = vec(sent(), 40).new_tree(&mut runner).unwrap().current();
        met.extend(send(all));
    }
    for expected in [
        "PUT 200",
        "PUT 201",
        "GET 304",
        "GET 204",
        "POST 200",
        "POST 204",
        "HEAD 200",
        "DELETE 204",
        "a poll",
        "a subscription",
        "bad_path",
        "bad_field",
        "bad_parameter",
        "bad_json",
        "before_start",
        "beyond_record",
        "beyond_tail",
        "closed",
        "config_differs",
        "empty_array",
        "empty_body",
        "epoch_start",
        "gone",
        "method_not_allowed",
        "missing_content_type",
        "name_kept",
        "not_found",
        "SUBSCRIPTION_NOT_FOUND",
        "sequence_gap",
        "source_gone",
        "source_not_found",
        "stale_epoch",
        "stream_seq",
        "type_differs",
    ] {
        assert!(met.contains(expected), "no {expected} among {met:?}");
    }
}

proptest! {
    #[test]
    fn no_request_panics_and_every_answer_is_an_allowed_one(all in vec(sent(), 1..40)) {
        send(all);
    }
}
