//! What credentials allow at the protocols: signed URLs, and the rights that requests need.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub)] // What the modules of a test show, they show to the test.
#![allow(dead_code)] // The server is made for other tests too.

mod server;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use encke_access::{Access, CanonicalPath, Credentials, Operation, UrlToSign, api_key};
use encke_clock::Now;
use encke_protocol::{Headers, ProtocolSettings};
use serde_json::json;
use server::{NOW_MS, Reply, Said, Server};

const TEXT: (&str, &str) = ("Content-Type", "text/plain");

/// A server whose key `u` signs URLs for everything, and `public` for what is below `public/`; and a caller that may do everything.
fn signing() -> (Server, Access) {
    let (_, sha256) = api_key([7; 32]);
    let config = || {
        let secret = "a secret of at least thirty-two bytes";
        let all = Operation::ALL.map(Operation::name);
        let public = json!([{"actions": all, "paths": ["/v1/stream/public/**"]}]);
        let config = json!({
            "api-keys": [{"name": "all", "sha256": sha256, "grants": [{"actions": all, "paths": ["/**"]}]}],
            "signing-keys": [
                {"kid": "u", "secret": secret},
                {"kid": "public", "secret": secret, "grants": public},
            ],
        });
        let config = serde_json::from_value(config).unwrap();
        Access::from_config(&config, &|_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
    };
    (Server::controlled(config()), config())
}

/// A request by the caller that may do everything.
fn send(server: &mut Server, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Said {
    let bearer = format!("Bearer {}", api_key([7; 32]).0);
    let headers = [&[("Authorization", &*bearer)], headers].concat();
    server.send(line, &headers, body)
}

/// The line of a request with a signed URL.
fn signed_by(access: &Access, kid: &str, line: &str, fields: &[&str]) -> String {
    let (method, target) = line.split_once(' ').unwrap();
    let fields: Vec<_> = fields.iter().map(|field| field.parse().unwrap()).collect();
    let path = CanonicalPath::parse(target.split('?').next().unwrap()).unwrap();
    let url = UrlToSign {
        method,
        target,
        path: &ProtocolSettings::default().resolve(path).unwrap(),
        fields: &fields,
        stream: None,
        expires_s: NOW_MS / 1_000 + 60,
    };
    format!("{method} {}", access.sign_url(kid, &url).unwrap())
}

fn signed(access: &Access, line: &str, fields: &[&str]) -> String {
    signed_by(access, "u", line, fields)
}

fn answer(reply: Reply) -> (u16, String) {
    match reply {
        Reply::Said(said) if said.status >= 400 => (said.status, said.code()),
        Reply::Said(said)
        | Reply::Subscribed(said, _)
        | Reply::SubscribedAll(said, _)
        | Reply::Opened(said, _) => (said.status, String::new()),
        Reply::Polls(_) | Reply::Asks(_) => (200, String::new()),
    }
}

fn refused() -> (u16, String) {
    (403, "unsigned_field".to_owned())
}

#[test]
fn fields_that_change_the_operation_of_a_signed_url_are_refused_unless_they_are_signed() {
    for (line, field, value) in [
        ("PUT", "Stream-Forked-From", "/v1/stream/secret"),
        ("PUT", "Stream-Fork-Offset", "-1"),
        ("PUT", "Stream-Fork-Sub-Offset", "1"),
        ("PUT", "Stream-TTL", "1"),
        ("PUT", "Stream-Expires-At", "2030-01-01T00:00:00Z"),
        ("PUT", "Encke-Retention", "records=1"),
        ("PUT", "Encke-Ack", "accepted"),
        ("PUT", "Stream-Closed", "true"),
        ("POST", "Encke-Truncate", "now"),
        ("POST", "Stream-Closed", "true"),
        ("POST", "Stream-Closed", "false"),
        ("POST", "Stream-Seq", "z"),
        ("POST", "Producer-Id", "p"),
        ("POST", "Producer-Epoch", "9007199254740991"),
        ("POST", "Producer-Seq", "0"),
        ("PUT", "Encke-Owner", "self"),
        ("PUT", "Encke-Producer-Timeout", "5"),
        ("PUT", "Encke-Metadata", "{}"),
        ("PUT", "Encke-Read-URL", "5"),
        ("POST", "Encke-Metadata", "{}"),
        ("POST", "Encke-End-Reason", "done"),
        ("POST", "Encke-Stop", "true"),
        ("POST", "Encke-Ephemeral", "true"),
    ] {
        let (mut server, access) = signing();
        for path in ["secret", "there"] {
            let line = format!("PUT /v1/stream/{path}");
            assert_eq!(send(&mut server, &line, &[TEXT], b"abc").status, 201);
        }
        let path = match line {
            "PUT" => "/v1/stream/new",
            _ => "/v1/stream/there",
        };
        let line = format!("{line} {path}");
        let plain = signed(&access, &line, &[]);
        for name in [field.to_owned(), field.to_lowercase(), field.to_uppercase()] {
            let reply = server.reply(&plain, &[TEXT, (&name, value)], b"");
            assert_eq!(answer(reply), refused(), "{line} {name}: {value}");
        }
        let state = send(&mut server, "HEAD /v1/stream/there", &[], b"");
        assert_eq!(state.field("Stream-Closed"), None);
        assert_eq!(state.field("Encke-Floor"), None);
        assert_eq!(
            send(&mut server, "HEAD /v1/stream/new", &[], b"").status,
            404
        );
        // Signed, its value is allowed and no other.
        let bound = signed(&access, &line, &[&format!("{field}: {value}")]);
        let reply = server.reply(&bound, &[TEXT, (field, "other")], b"");
        assert_eq!(answer(reply), (401, "signature".to_owned()));
        let reply = server.reply(&bound, &[TEXT], b"");
        assert_eq!(answer(reply), (401, "signed_field".to_owned()));
        let reply = server.reply(&bound, &[TEXT, (field, value)], b"");
        assert_ne!(answer(reply), refused(), "{line} {field}: {value}");
        // Or any value, if the key's owner says so.
        let free = signed(&access, &line, &[field]);
        let reply = server.reply(&free, &[TEXT, (field, value)], b"");
        assert_ne!(answer(reply), refused(), "{line} {field}: {value}");
    }
}

#[test]
fn signed_fields_do_what_was_signed() {
    let (mut server, access) = signing();
    send(&mut server, "PUT /v1/stream/a", &[TEXT], b"abc");
    let source = ("Stream-Forked-From", "/v1/stream/a");
    let fork = signed(
        &access,
        "PUT /v1/stream/b",
        &["Stream-Forked-From: /v1/stream/a"],
    );
    assert_eq!(server.send(&fork, &[source], b"").status, 201);
    let truncate = signed(&access, "POST /v1/stream/b", &["Encke-Truncate: now"]);
    let now = ("Encke-Truncate", "now");
    assert_eq!(server.send(&truncate, &[now], b"").status, 204);
    let read = signed(&access, "GET /v1/stream/b", &[]);
    assert_eq!(server.send(&read, &[], b"").text(), "");
    let close = signed(&access, "POST /v1/stream/b", &["Stream-Closed: true"]);
    let closed = ("Stream-Closed", "true");
    let said = server.send(&close, &[closed], b"");
    assert_eq!(said.field("Stream-Closed"), Some("true"));
    let writer = ["Producer-Id: p", "Producer-Epoch", "Producer-Seq"];
    let append = signed(&access, "POST /v1/stream/a", &writer);
    for seq in ["0", "1"] {
        let fields = [
            TEXT,
            ("Producer-Id", "p"),
            ("Producer-Epoch", "0"),
            ("Producer-Seq", seq),
        ];
        assert_eq!(server.send(&append, &fields, b"x").status, 200);
    }
    // The signing key may not read the source, so that its signature allows nothing there.
    let line = "PUT /v1/stream/public/c";
    let fork = signed_by(
        &access,
        "public",
        line,
        &["Stream-Forked-From: /v1/stream/a"],
    );
    let reply = server.reply(&fork, &[source], b"");
    assert_eq!(answer(reply), (404, "source_not_found".to_owned()));
}

#[test]
fn urls_that_sign_no_fields_stay_good_for_plain_requests() {
    let (mut server, access) = signing();
    for (line, fields, body, status) in [
        ("PUT /v1/stream/a", &[TEXT][..], &b"abc"[..], 201),
        (
            "POST /v1/stream/a",
            &[TEXT, ("Encke-Ack", "written")],
            b"d",
            204,
        ),
        (
            "GET /v1/stream/a",
            &[
                ("Host", "localhost"),
                ("If-None-Match", "\"x\""),
                ("Accept-Encoding", "gzip"),
                ("User-Agent", "x"),
                ("X-Unknown", "x"),
            ],
            b"",
            200,
        ),
        (
            "GET /v1/stream/a?offset=-1&live=sse",
            &[("Accept", "text/event-stream")],
            b"",
            200,
        ),
        ("GET /v1/events?stream=a@-1", &[], b"", 200),
        ("PUT /v1/pool/p", &[], br#"{"type":"claim"}"#, 201),
        ("POST /v1/pool/p", &[TEXT], b"job", 202),
        ("GET /v1/pool/p", &[], b"", 200),
        (
            "GET /v1/pool/p/work?worker=w&wait=1",
            &[("Accept", "application/json")],
            b"",
            200,
        ),
        ("DELETE /v1/stream/a", &[], b"", 204),
    ] {
        let reply = server.reply(&signed(&access, line, &[]), fields, body);
        let (got, code) = answer(reply);
        assert_eq!((got, &*code), (status, ""), "{line}");
    }
    // `admin` is nothing that a signing key allows by itself.
    let reply = server.reply(&signed(&access, "GET /metrics", &[]), &[], b"");
    assert_eq!(answer(reply), (404, "not_found".to_owned()));
}

#[test]
fn a_signed_url_of_a_stream_leaves_open_how_it_is_read() {
    let (mut server, access) = signing();
    let first = send(&mut server, "PUT /v1/stream/a", &[TEXT], b"1").token();
    send(&mut server, "POST /v1/stream/a", &[TEXT], b"2");
    let refused_as = |reply| answer(reply).0;
    for path in ["/v1/stream/a", "/streams/a"] {
        let url = signed(&access, &format!("GET {path}"), &[]);
        for more in [
            "",
            "&offset=-1",
            "&offset=now&live=sse",
            "&last=1&live=true",
            &format!("&offset={first}&live=long-poll&cursor=7"),
        ] {
            assert_eq!(
                answer(server.reply(&format!("{url}{more}"), &[], b"")).0,
                200,
                "{more}"
            );
        }
        // The client's own position is no limit.
        let id = [("Last-Event-ID", &*first)];
        let reply = server.reply(&format!("{url}&offset=now&live=sse"), &id, b"");
        assert_eq!(answer(reply).0, 200);
        let other = url
            .replace("stream/a", "stream/b")
            .replace("streams/a", "streams/b");
        assert_eq!(refused_as(server.reply(&other, &[], b"")), 401);
    }
    // Other methods, and other paths, have no such parameters.
    for line in [
        "POST /v1/stream/a",
        "GET /v1/events?stream=a",
        "GET /v1/pool/p",
    ] {
        let url = signed(&access, line, &[]);
        let join = if url.contains('?') { '&' } else { '?' };
        let reply = server.reply(&format!("{url}{join}offset=-1"), &[TEXT], b"3");
        assert_eq!(refused_as(reply), 401, "{line}");
    }
}

#[test]
fn a_subscriber_with_a_signed_url_goes_on_behind_its_beginning_only() {
    let (mut server, access) = signing();
    let first = send(&mut server, "PUT /v1/stream/a", &[TEXT], b"1").token();
    let begin = send(&mut server, "POST /v1/stream/a", &[TEXT], b"2").token();
    let last = send(&mut server, "POST /v1/stream/a", &[TEXT], b"3").token();
    let sequence = |offset: &str| offset.split('_').next().unwrap().to_owned();
    let (first_id, begin_id, last_id) = (sequence(&first), sequence(&begin), sequence(&last));
    let ahead = format!("{first_id};{last}:1");
    let ok = (200, String::new());
    for (target, id, expected) in [
        (
            format!("stream/a?offset={begin}&live=sse"),
            &first,
            refused(),
        ),
        (
            format!("stream/a?offset={begin}&live=sse"),
            &begin,
            ok.clone(),
        ),
        (
            format!("stream/a?offset={begin}&live=sse"),
            &last,
            ok.clone(),
        ),
        ("stream/a?offset=-1&live=sse".into(), &first, ok.clone()),
        // `now` is another position each time, and so is the beginning of the last messages.
        ("stream/a?offset=now&live=sse".into(), &last, refused()),
        ("stream/a?last=2&live=sse".into(), &last, refused()),
        // Without events there is nothing to go on from.
        ("stream/a?offset=now".into(), &first, ok.clone()),
        ("events?stream=a".into(), &first_id, refused()),
        ("events?stream=a".into(), &last_id, refused()),
        ("events?stream=a&last=2".into(), &last_id, refused()),
        ("events?stream=**".into(), &first_id, refused()),
        ("events?stream=**@-1".into(), &first_id, ok.clone()),
        ("events?stream=a@-1&stream=b".into(), &first_id, refused()),
        (format!("events?stream=a@{begin}"), &first_id, ok.clone()),
        (
            format!("events?stream=a&after={begin_id}"),
            &first_id,
            refused(),
        ),
        (
            format!("events?stream=a&after={begin_id}"),
            &begin_id,
            ok.clone(),
        ),
        (
            format!("events?stream=a&after={begin_id}"),
            &last_id,
            ok.clone(),
        ),
        (
            format!("events?stream=a&after={begin_id}"),
            &ahead,
            ok.clone(),
        ),
        (
            format!("events?stream=a&stream=b@-1&after={begin_id}"),
            &ahead,
            refused(),
        ),
    ] {
        let line = format!("GET /v1/{target}");
        // Not signed: a client that sends no fields adds it to its URL.
        let parameter = format!("{}&lastEventId={id}", signed(&access, &line, &[]));
        let reply = server.reply(&parameter, &[], b"");
        assert_eq!(answer(reply), expected, "{parameter}");
        let id = [("Last-Event-ID", &**id)];
        let reply = server.reply(&signed(&access, &line, &[]), &id, b"");
        assert_eq!(answer(reply), expected, "{line} {id:?}");
        let reply = server.reply(&signed(&access, &line, &["Last-Event-ID"]), &id, b"");
        assert_eq!(answer(reply), ok, "{line} {id:?}");
    }
    // A field that is signed without a value is no position, and the parameter is none beside it.
    let line = "GET /v1/stream/a?offset=now&live=sse";
    let line = signed(&access, line, &["Last-Event-ID:"]);
    let reply = server.reply(
        &format!("{line}&lastEventId={first}"),
        &[("Last-Event-ID", "")],
        b"",
    );
    let Reply::Subscribed(_, subscription) = reply else {
        panic!("a subscription was due");
    };
    let encke_protocol::Feed::Single { from, .. } = subscription.feed else {
        panic!("it is for one stream");
    };
    assert_eq!(from, server.stream("a").facts().tail);
    // A position in the URL is where the events begin, whatever the field says.
    let line = signed(&access, &format!("GET /v1/events?stream=a@{begin}"), &[]);
    let reply = server.reply(&line, &[("Last-Event-ID", &first_id)], b"");
    let Reply::SubscribedAll(_, subscription) = reply else {
        panic!("a subscription was due");
    };
    let encke_protocol::Feed::Merged { sources, .. } = subscription.feed else {
        panic!("a merged feed was due");
    };
    assert_eq!(sources[0].from.to_string(), begin);
}

/// Invented names of keys can delay a key that is new, and the client is told for how long.
#[test]
fn a_token_of_an_unknown_key_may_come_again_when_keys_can_be_fetched() {
    let config = json!({"issuers": [{
        "issuer": "i", "audience": "a", "algorithms": ["ES256"], "jwks-url": "http://127.0.0.1:1/none",
    }]});
    let config = serde_json::from_value(config).unwrap();
    let access = Access::from_config(&config, &|_| Err(std::io::ErrorKind::NotFound.into()));
    let mut server = Server::controlled(access.unwrap());
    let access = server.router.access().unwrap().clone();
    let keys = json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]});
    let fetch = || {
        access.key_fetches().wait(0, std::time::Duration::ZERO);
        let json = keys.to_string();
        access
            .keys_fetched(&access.key_fetches(), 0, Some(json.as_bytes()))
            .unwrap();
    };
    fetch();
    let mut ask = |kid: usize| {
        let encode = |text: String| URL_SAFE_NO_PAD.encode(text);
        let header = encode(json!({"alg": "ES256", "kid": kid.to_string()}).to_string());
        let claims = encode(json!({"iss": "i"}).to_string());
        let bearer = format!("Bearer {header}.{claims}.AAAA");
        let said = server.send("GET /v1/stream/a", &[("Authorization", &bearer)], b"");
        let retry = said.field("Retry-After").map(str::to_owned);
        (said.status, said.code(), retry)
    };
    let once = Some("1".to_owned());
    for kid in 0..encke_access::FETCHES_AT_ONCE as usize {
        assert_eq!(ask(kid), (503, "keys_unknown".to_owned(), once.clone()));
        fetch();
        assert_eq!(ask(kid), (401, "unknown_key".to_owned(), None));
    }
    let interval = encke_access::FETCH_INTERVAL.as_secs().to_string();
    assert_eq!(
        ask(100),
        (503, "keys_unavailable".to_owned(), Some(interval))
    );
}

/// A server with a caller of each of these sets of operations, everywhere; what such a caller sends as its credential.
fn with_callers(sets: &[&[Operation]]) -> (Server, Vec<String>) {
    let keys: Vec<_> = (0..sets.len()).map(|at| api_key([at as u8; 32])).collect();
    let entries: Vec<_> = sets
        .iter()
        .zip(&keys)
        .enumerate()
        .map(|(at, (set, (_, sha256)))| {
            let actions: Vec<_> = set.iter().map(|operation| operation.name()).collect();
            let grants = json!([{"actions": actions, "paths": ["/**"]}]);
            json!({"name": at.to_string(), "sha256": sha256, "grants": grants})
        })
        .collect();
    let config = serde_json::from_value(json!({"api-keys": entries})).unwrap();
    let access = Access::from_config(&config, &|_| Err(std::io::ErrorKind::NotFound.into()));
    let bearers = keys
        .iter()
        .map(|(key, _)| format!("Bearer {key}"))
        .collect();
    (Server::controlled(access.unwrap()), bearers)
}

#[test]
fn who_may_not_read_a_stream_learns_nothing_of_its_state_by_creating_or_truncating_it() {
    use Operation::{Append, Create, Delete, Read};
    let sets: &[&[Operation]] = &[
        &[Create],
        &[Create, Read],
        &[Delete],
        &[Delete, Read],
        &[Append],
    ];
    let (mut server, callers) = with_callers(sets);
    let mut send = |caller: usize, line: &str, field: (&str, &str), body: &[u8]| {
        server.send(
            line,
            &[TEXT, field, ("Authorization", &callers[caller])],
            body,
        )
    };
    let none = ("X-None", "");
    // What it creates itself, it knows.
    let created = send(0, "PUT /v1/stream/a", none, b"");
    assert_eq!(created.status, 201);
    assert!(created.field("Stream-Next-Offset").is_some());
    assert_eq!(send(4, "POST /v1/stream/a", none, b"secret").status, 204);
    let blind = send(0, "PUT /v1/stream/a", none, b"");
    let sighted = send(1, "PUT /v1/stream/a", none, b"");
    assert_eq!((blind.status, sighted.status), (200, 200));
    assert_eq!(blind.field("Stream-Next-Offset"), None);
    assert!(sighted.field("Stream-Next-Offset").is_some());
    let now = ("Encke-Truncate", "now");
    for (caller, shown) in [(2, false), (3, true)] {
        let said = send(caller, "POST /v1/stream/a", now, b"");
        assert_eq!(said.status, 204);
        assert_eq!(said.field("Stream-Next-Offset").is_some(), shown);
        assert_eq!(said.field("Encke-Floor").is_some(), shown);
    }
    // The protocol has the offset behind an append in its response: who appends knows how far the stream is then.
    let appended = send(4, "POST /v1/stream/a", none, b"x");
    assert!(appended.field("Stream-Next-Offset").is_some());
}

/// Producers of a stream trust each other: whoever may append may name any producer, and any epoch of it (section 5.2.1). What
/// goes on is a producer of another name.
#[test]
fn an_appender_that_fences_out_a_producer_fences_out_no_other() {
    let (mut server, callers) = with_callers(&[
        &[Operation::Create],
        &[Operation::Append],
        &[Operation::Append],
    ]);
    let highest = ((1_u64 << 53) - 1).to_string();
    let created = [TEXT, ("Authorization", &*callers[0])];
    assert_eq!(server.send("PUT /v1/stream/a", &created, b"").status, 201);
    let mut send = |caller: usize, (id, epoch, seq): (&str, &str, &str)| {
        let fields = [
            TEXT,
            ("Authorization", &*callers[caller]),
            ("Producer-Id", id),
            ("Producer-Epoch", epoch),
            ("Producer-Seq", seq),
        ];
        let said = server.send("POST /v1/stream/a", &fields, b"x");
        (said.status, said.field("Producer-Epoch").map(str::to_owned))
    };
    assert_eq!(send(1, ("p", "0", "0")).0, 200);
    assert_eq!(send(2, ("p", &highest, "0")).0, 200);
    // It is told the epoch that stands in its way, and there is none above it.
    assert_eq!(send(1, ("p", "1", "0")), (403, Some(highest)));
    assert_eq!(send(1, ("p2", "0", "0")).0, 200);
}

/// The caller of each set of operations, everywhere.
fn callers() -> (Server, Access, Vec<String>) {
    let sets: Vec<Vec<Operation>> = (1..1_u32 << Operation::ALL.len())
        .map(|bits| {
            let all = Operation::ALL.into_iter().enumerate();
            all.filter(|(at, _)| bits >> at & 1 == 1)
                .map(|(_, operation)| operation)
                .collect()
        })
        .collect();
    let keys: Vec<_> = (0..sets.len()).map(|at| api_key([at as u8; 32])).collect();
    let entries: Vec<_> = sets
        .iter()
        .zip(&keys)
        .map(|(set, (_, sha256))| {
            let actions: Vec<_> = set.iter().map(|operation| operation.name()).collect();
            let grants = json!([{"actions": actions, "paths": ["/**"]}]);
            json!({"name": actions.join("-"), "sha256": sha256, "grants": grants})
        })
        .collect();
    let config = json!({"conceal": false, "api-keys": entries});
    let access = || {
        let config = serde_json::from_value(config.clone()).unwrap();
        Access::from_config(&config, &|_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
    };
    let keys = keys.into_iter().map(|(key, _)| key).collect();
    (Server::controlled(access()), access(), keys)
}

/// `encke token explain` says what the protocols do.
#[test]
fn what_a_request_is_said_to_need_is_what_its_protocol_asks_for() {
    let (mut server, access, keys) = callers();
    let truncate = [("Encke-Truncate", "now")];
    let fork = [("Stream-Forked-From", "/v1/stream/a")];
    for (line, headers) in [
        ("GET /v1/stream/a", &[][..]),
        ("HEAD /v1/stream/a", &[]),
        ("PUT /v1/stream/a", &[]),
        ("PUT /v1/stream/f", &fork),
        ("POST /v1/stream/a", &[("Stream-Closed", "true")]),
        ("POST /v1/stream/a", &truncate),
        ("PUT /v1/stream/a", &truncate),
        ("GET /v1/stream/a", &fork),
        ("DELETE /v1/stream/none", &[]),
        ("GET /v1/events?stream=a&stream=b/**", &[]),
        ("HEAD /v1/events?stream=**", &[]),
        ("GET /v1/pool", &[]),
        ("PUT /v1/pool/p", &[]),
        ("GET /v1/pool/p", &[]),
        ("POST /v1/pool/p", &[]),
        ("DELETE /v1/pool/none", &[]),
        ("GET /v1/pool/p/work?worker=w&wait=1", &[]),
        ("GET /v1/pool/p/job/1", &[]),
        ("GET /v1/pool/p/job/1", &[("Job-Token", "none")]),
        ("POST /v1/pool/p/work?worker=w&wait=1", &[]),
        ("GET /v1/stream/pool/p/results", &[]),
        ("GET /v1/events?stream=pool/p/results", &[]),
        ("GET /v1/events?stream=pool/**", &[]),
        ("POST /v1/pool/p/job/1/ack?attempt=1", &[]),
        ("POST /v1/pool/p/job/1/refuse?attempt=1", &[]),
        ("POST /v1/pool/p/job/1/extend?attempt=1", &[]),
        ("DELETE /v1/pool/p/worker/w", &[]),
        ("PUT /v1/stream/__ds/subscriptions/s", &[]),
        ("GET /v1/stream/__ds/subscriptions/s", &[]),
        ("HEAD /v1/stream/__ds/subscriptions/s", &[]),
        ("DELETE /v1/stream/__ds/subscriptions/s", &[]),
        ("POST /v1/stream/__ds/subscriptions/s/streams", &[]),
        ("DELETE /v1/stream/__ds/subscriptions/s/streams/a", &[]),
        ("POST /v1/stream/__ds/subscriptions/s/claim", &[]),
        ("POST /v1/stream/__ds/subscriptions/s/ack", &[]),
        ("GET /v1/stream/__ds/jwks.json", &[]),
        ("GET /metrics", &[]),
        ("POST /v1/admin/revoke", &[]),
        ("GET /v1/admin/other", &[]),
        ("GET /healthz", &[]),
        ("GET /readyz", &[]),
        ("GET /", &[]),
    ] {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let path = CanonicalPath::parse(path).unwrap();
        for key in &keys {
            let bearer = format!("Bearer {key}");
            let own = [("Authorization", &*bearer)];
            let all = [&own[..], headers].concat();
            let fields: Vec<_> = all
                .iter()
                .map(|(name, value)| (*name, value.as_bytes()))
                .collect();
            let credentials = Credentials {
                method,
                path: &path,
                query,
                headers: &fields,
                client_certificate: None,
                address: None,
                free_parameters: &[],
            };
            let caller = access
                .resolve(&credentials, Now::from_ms(NOW_MS))
                .unwrap()
                .caller;
            let settings = ProtocolSettings::default();
            let needed = settings.requirements(method, &path, query, Headers(&fields));
            let needed = needed.unwrap();
            let is_met = needed.iter().all(|one| one.is_met_by(&*caller));
            let (_, code) = answer(server.reply(line, &all, b""));
            let name = caller.name();
            assert_eq!(code == "forbidden", !is_met, "{line} {headers:?} {name}");
            let why: Vec<_> = needed.iter().map(|one| one.explain(&caller)).collect();
            let refused = why.iter().any(|why| why.starts_with("no "));
            assert_eq!(refused, !is_met, "{line}: {why:?}");
        }
    }
    let settings = ProtocolSettings::default();
    for (method, path) in [("PATCH", "/v1/stream/a"), ("POST", "/v1/events")] {
        let path = CanonicalPath::parse(path).unwrap();
        let wrong = settings
            .requirements(method, &path, None, Headers(&[]))
            .unwrap_err();
        assert!(wrong.contains("is not allowed here"), "{wrong}");
    }
}
