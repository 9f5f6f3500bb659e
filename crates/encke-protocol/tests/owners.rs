//! Streams that belong to callers: nobody else learns of them, by any request.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use encke_access::{Access, IssuerConfig, Mint, NewToken};
use serde_json::json;
use server::{NOW_MS, Reply, Said, Server};

const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const OWN: (&str, &str) = ("Encke-Owner", "self");

const ALL: &str = "read,append,create,delete,stop,list";

/// Ann and Bob may do everything to all streams that are theirs or nobody's, and the backend to those of others as well.
fn server() -> Server {
    let mut server = Server::guarded(&[
        ("ann", ALL, "/v1/stream/**"),
        ("bob", ALL, "/v1/stream/**"),
        ("backend", ALL, "/v1/stream/**"),
        ("backend", "own", "/v1/stream/**"),
        ("reader", "read,stop", "/v1/stream/**"),
    ]);
    as_caller(
        &mut server,
        "ann",
        "PUT /v1/stream/s",
        &[TEXT, OWN],
        b"secret",
    );
    server
}

fn as_caller(
    server: &mut Server,
    name: &str,
    line: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> Said {
    server.call_as(name);
    server.send(line, fields, body)
}

fn reply(server: &mut Server, name: &str, line: &str) -> Reply {
    server.call_as(name);
    server.reply(line, &[], b"")
}

/// The line, the fields and the body of a request.
type Asked = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [u8],
);

/// All that can be asked of a stream.
const REQUESTS: [Asked; 14] = [
    ("GET /v1/stream/s", &[], b""),
    ("GET /v1/stream/s?offset=now", &[], b""),
    ("GET /v1/stream/s?last=1", &[], b""),
    ("GET /v1/stream/s?offset=now&live=long-poll", &[], b""),
    ("GET /v1/stream/s?offset=-1&live=sse", &[], b""),
    ("GET /v1/stream/s?offset=-1&live=true", &[], b""),
    ("HEAD /v1/stream/s", &[], b""),
    ("POST /v1/stream/s", &[TEXT], b"x"),
    (
        "POST /v1/stream/s",
        &[TEXT, ("Encke-Ephemeral", "true")],
        b"x",
    ),
    ("POST /v1/stream/s", &[("Stream-Closed", "true")], b""),
    ("POST /v1/stream/s", &[("Encke-Stop", "true")], b""),
    ("POST /v1/stream/s", &[("Encke-Truncate", "now")], b""),
    ("DELETE /v1/stream/s", &[], b""),
    ("GET /v1/events?stream=s@-1", &[], b""),
];

#[test]
fn to_others_the_stream_does_not_exist() {
    let mut server = server();
    for (line, fields, body) in REQUESTS {
        let said = as_caller(&mut server, "bob", line, fields, body);
        assert_eq!(said.status, 404, "{line}");
        let missing = line
            .replace("stream/s", "stream/none")
            .replace("=s@", "=none@");
        let missing = as_caller(&mut server, "bob", &missing, fields, body);
        // To the byte, but for the name in messages that name it.
        let text = |said: &Said| String::from_utf8_lossy(&said.body).replace("none", "s");
        assert_eq!((said.status, text(&said)), (404, text(&missing)), "{line}");
    }
    // A fork would show what is in it.
    let fork = [("Stream-Forked-From", "/v1/stream/s")];
    let said = as_caller(&mut server, "bob", "PUT /v1/stream/fork", &fork, b"");
    assert_eq!((said.status, &*said.code()), (404, "source_not_found"));
    // Its name is taken, which nobody can hide.
    for fields in [&[TEXT][..], &[TEXT, OWN]] {
        let said = as_caller(&mut server, "bob", "PUT /v1/stream/s", fields, b"");
        assert_eq!((said.status, &*said.code()), (403, "not_owner"));
    }
    let said = as_caller(&mut server, "ann", "GET /v1/stream/s", &[], b"");
    assert_eq!(said.body, b"secret");
}

#[test]
fn its_owner_and_who_may_use_the_streams_of_others_do_everything() {
    for name in ["ann", "backend"] {
        for (line, fields, body) in REQUESTS {
            let mut server = server();
            server.call_as(name);
            let reply = server.reply(line, fields, body);
            let status = match reply {
                Reply::Said(said) | Reply::Subscribed(said, _) | Reply::SubscribedAll(said, _) => {
                    said.status
                }
                _ => 200,
            };
            assert!(status < 300, "{name}: {line}: {status}");
        }
        let mut server = server();
        let head = as_caller(&mut server, name, "HEAD /v1/stream/s", &[], b"");
        assert_eq!(head.field("Encke-Owner"), Some("ann"));
        // The same again, with and without its owner.
        let fields = [TEXT, OWN];
        let said = as_caller(&mut server, "ann", "PUT /v1/stream/s", &fields, b"");
        assert_eq!(said.status, 200);
        let said = as_caller(&mut server, name, "PUT /v1/stream/s", &[TEXT], b"");
        assert_eq!(said.status, 200);
    }
}

#[test]
fn a_fork_belongs_to_the_owner_of_its_source() {
    let mut server = server();
    let fork = [("Stream-Forked-From", "/v1/stream/s")];
    let said = as_caller(&mut server, "backend", "PUT /v1/stream/fork", &fork, b"");
    assert_eq!(said.status, 201);
    let said = as_caller(&mut server, "bob", "GET /v1/stream/fork", &[], b"");
    assert_eq!(said.status, 404);
    let said = as_caller(&mut server, "ann", "GET /v1/stream/fork", &[], b"");
    assert_eq!(said.body, b"secret");
}

#[test]
fn a_stream_is_made_for_others_by_whoever_may() {
    let mut server = server();
    for owner in ["ann", "backend", "x; issuer=none"] {
        let fields = [TEXT, ("Encke-Owner", owner)];
        let said = as_caller(&mut server, "bob", "PUT /v1/stream/new", &fields, b"");
        // There are no issuers here, so no subjects.
        assert_eq!((said.status, &*said.code()), (400, "bad_field"), "{owner}");
    }
    // Who stops needs no right to append, and has none by it.
    let said = as_caller(&mut server, "ann", "PUT /v1/stream/open", &[TEXT], b"");
    assert_eq!(said.status, 201);
    let stopped = [("Stream-Closed", "true"), ("Encke-End-Reason", "stopped")];
    let with_data = [&stopped[..], &[TEXT]].concat();
    let said = as_caller(
        &mut server,
        "reader",
        "POST /v1/stream/open",
        &with_data,
        b"x",
    );
    assert_eq!(said.status, 403);
    let done = [("Stream-Closed", "true"), ("Encke-End-Reason", "done")];
    let said = as_caller(&mut server, "reader", "POST /v1/stream/open", &done, b"");
    assert_eq!(said.status, 403);
    for fields in [&[("Encke-Stop", "true")][..], &stopped] {
        let said = as_caller(&mut server, "reader", "POST /v1/stream/open", fields, b"");
        assert_eq!(said.status, 204, "{fields:?}");
    }
}

#[test]
fn a_pattern_leaves_out_what_belongs_to_others() {
    use encke_protocol::{Feed, SourceKind};
    let mut server = server();
    for (name, sees_ann, sees_bob) in [
        ("ann", true, false),
        ("bob", false, true),
        ("reader", false, false),
        ("backend", true, true),
    ] {
        let Reply::SubscribedAll(_, subscription) =
            reply(&mut server, name, "GET /v1/events?stream=a/**@-1")
        else {
            panic!("{name}")
        };
        let Feed::Merged { sources, .. } = &subscription.feed else {
            panic!("{name}")
        };
        let SourceKind::Pattern { pattern, .. } = &sources[0].kind else {
            panic!("{name}")
        };
        let owner = |name: &str| format!("Certificate\0{name}\0");
        let sees = |owner: &str| pattern.viewer.sees(Some(owner));
        assert_eq!(
            (sees(&owner("ann")), sees(&owner("bob"))),
            (sees_ann, sees_bob),
            "{name}"
        );
        assert!(pattern.viewer.sees(None));
    }
}

/// A server whose callers have tokens of an issuer. What these grant is what they say, and at most everything; the key that signs URLs may
/// read, and owns nothing.
fn issuing() -> (Server, Mint) {
    let all = json!([{"actions": ["read", "append", "create", "delete", "stop", "own"], "paths": ["/**"]}]);
    let issuer = json!({
        "name": "app", "issuer": "https://app", "audience": "encke", "algorithms": ["HS256"],
        "secret": "another secret of at least thirty-two bytes", "grants": all,
    });
    let config = json!({
        "issuers": [issuer],
        "signing-keys": [{
            "kid": "u", "secret": "a secret of at least thirty-two bytes",
            "grants": [{"actions": ["read"], "paths": ["/v1/stream/**"]}],
        }],
    });
    let config = serde_json::from_value(config).unwrap();
    let access = Access::from_config(&config, &|_| Ok(Vec::new())).unwrap();
    let issuer: IssuerConfig = serde_json::from_value(issuer).unwrap();
    let mint = Mint::new(&issuer, "issuers", &|_| Ok(Vec::new())).unwrap();
    (Server::controlled(access), mint)
}

/// A token that ends in a minute, of a subject or of none, which may do these things everywhere.
fn token(mint: &Mint, subject: Option<&str>, actions: &str) -> String {
    let everywhere = "/**".parse::<encke_access::PathPattern>().unwrap();
    let grant = |action: &str| (action.parse().unwrap(), everywhere.clone());
    let new = NewToken {
        subject: subject.map(Into::into),
        grants: Some(actions.split(',').map(grant).collect()),
        issued_at_s: NOW_MS / 1_000,
        expires_s: NOW_MS / 1_000 + 60,
        ..NewToken::default()
    };
    mint.token(&new).unwrap()
}

fn with_token(
    server: &mut Server,
    token: &str,
    line: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> Said {
    let bearer = format!("Bearer {token}");
    let fields = [fields, &[("Authorization", &*bearer)]].concat();
    server.send(line, &fields, body)
}

const ACTIONS: &str = "read,append,create,delete";

/// The target of the URL that a creation has returned.
fn read_url(said: &Said) -> String {
    let url = said.field("Encke-Read-URL").unwrap();
    let (_, target) = url.split_once("/v1/").unwrap();
    format!("GET /v1/{target}")
}

#[test]
fn a_read_url_is_good_for_its_stream_and_for_no_later_one_of_the_name() {
    let (mut server, mint) = issuing();
    let ann = token(&mint, Some("ann"), ACTIONS);
    let bob = token(&mint, Some("bob"), ACTIONS);
    let fields = [TEXT, OWN, ("Encke-Read-URL", "30")];
    let line = "PUT /v1/stream/s";
    let said = with_token(&mut server, &ann, line, &fields, b"secret");
    assert_eq!(said.status, 201);
    let url = read_url(&said);
    // The key that signs it need not own the streams of others.
    assert_eq!(server.send(&url, &[], b"").body, b"secret");
    // The same again, and to nobody else.
    let again = with_token(&mut server, &ann, line, &fields, b"secret");
    assert_eq!((again.status, read_url(&again)), (200, url.clone()));
    let said = with_token(&mut server, &bob, line, &fields, b"secret");
    assert_eq!((said.status, said.field("Encke-Read-URL")), (403, None));
    // What somebody signs by hand for the path is good for what the key owns.
    let path = "/v1/stream/s".to_owned();
    let path = encke_access::CanonicalPath::from_decoded(path).unwrap();
    let by_hand = encke_access::UrlToSign {
        method: "GET",
        target: "/v1/stream/s",
        path: &path,
        fields: &[],
        stream: None,
        expires_s: NOW_MS / 1_000 + 60,
    };
    let access = server.router.access().unwrap().clone();
    let by_hand = format!("GET {}", access.sign_url("u", &by_hand).unwrap());
    assert_eq!(server.send(&by_hand, &[], b"").status, 404);
    for owner in [Some(OWN), None] {
        let said = with_token(&mut server, &ann, "DELETE /v1/stream/s", &[], b"");
        assert!(matches!(said.status, 204), "{}", said.status);
        assert_eq!(server.send(&url, &[], b"").status, 404);
        let fields: Vec<_> = owner.into_iter().chain([TEXT]).collect();
        let said = with_token(&mut server, &ann, line, &fields, b"other");
        assert_eq!(said.status, 201);
        assert_eq!(server.send(&url, &[], b"").status, 404);
    }
    // The number is signed.
    let number = url.split("signed-stream=").nth(1).unwrap();
    let number: u64 = number.split('&').next().unwrap().parse().unwrap();
    let from = format!("signed-stream={number}");
    for to in [
        String::new(),
        format!("signed-stream={}", server.stream("s").no),
    ] {
        let said = server.send(&url.replace(&from, &to), &[], b"");
        assert_eq!((said.status, &*said.code()), (401, "signature"));
    }
}

#[test]
fn a_read_url_ends_with_the_token_that_asked_for_it() {
    let (mut server, mint) = issuing();
    let ann = token(&mint, Some("ann"), ACTIONS);
    let fields = [TEXT, OWN, ("Encke-Read-URL", "86400")];
    let said = with_token(&mut server, &ann, "PUT /v1/stream/s", &fields, b"secret");
    let url = read_url(&said);
    let leeway_s = 30;
    server.now_ms += (60 + leeway_s - 1) * 1_000;
    assert_eq!(server.send(&url, &[], b"").status, 200);
    server.now_ms += 1_000;
    let said = server.send(&url, &[], b"");
    assert_eq!((said.status, &*said.code()), (401, "expired"));
}

#[test]
fn a_deleted_stream_that_forks_read_is_missing_to_others() {
    let mut server = server();
    let fork = [("Stream-Forked-From", "/v1/stream/s"), OWN];
    let said = as_caller(&mut server, "ann", "PUT /v1/stream/fork", &fork, b"");
    assert_eq!(said.status, 201);
    let said = as_caller(&mut server, "ann", "DELETE /v1/stream/s", &[], b"");
    assert_eq!(said.status, 204);
    for (line, fields, body) in REQUESTS {
        let said = as_caller(&mut server, "bob", line, fields, body);
        assert_eq!(said.status, 404, "{line}");
    }
    let other = [("Stream-Forked-From", "/v1/stream/s")];
    let said = as_caller(&mut server, "bob", "PUT /v1/stream/other", &other, b"");
    assert_eq!((said.status, &*said.code()), (404, "source_not_found"));
    let said = as_caller(&mut server, "bob", "PUT /v1/stream/s", &[TEXT], b"");
    assert_eq!((said.status, &*said.code()), (403, "not_owner"));
    // To its owner it is what it is.
    let said = as_caller(&mut server, "ann", "GET /v1/stream/s", &[], b"");
    assert_eq!(said.status, 410);
    let said = as_caller(&mut server, "ann", "PUT /v1/stream/s", &[TEXT], b"");
    assert_eq!((said.status, &*said.code()), (409, "name_kept"));
    let said = as_caller(&mut server, "ann", "PUT /v1/stream/other", &other, b"");
    assert_eq!((said.status, &*said.code()), (409, "source_gone"));
}

#[test]
fn a_fork_tells_its_owner_nothing_of_what_its_source_has_behind_it() {
    let (mut server, mint) = issuing();
    let ann = token(&mint, Some("ann"), ACTIONS);
    let bob = token(&mint, Some("bob"), ACTIONS);
    let backend = token(&mint, Some("backend"), "read,append,create,own");
    let said = with_token(&mut server, &ann, "PUT /v1/stream/s", &[TEXT, OWN], b"one");
    let at = said.field("Stream-Next-Offset").unwrap().to_owned();
    let source = ("Stream-Forked-From", "/v1/stream/s");
    let fork = [source, ("Encke-Owner", "bob"), ("Stream-Fork-Offset", &*at)];
    let line = "PUT /v1/stream/fork";
    let said = with_token(&mut server, &backend, line, &fork, b"");
    assert_eq!(said.status, 201);
    let answers = |server: &mut Server| {
        let mut answers = Vec::new();
        for offset in [None, Some(&*at), Some("-1")] {
            for sub in ["0", "1", "3", "4", "100"] {
                let mut fields = vec![source, ("Stream-Fork-Sub-Offset", sub)];
                fields.extend(offset.map(|at| ("Stream-Fork-Offset", at)));
                let said = with_token(server, &bob, line, &fields, b"");
                answers.push((said.status, said.text().to_owned()));
            }
        }
        answers
    };
    let before = answers(&mut server);
    assert!(
        before.iter().any(|(status, _)| *status == 200),
        "{before:?}"
    );
    for _ in 0..3 {
        let said = with_token(&mut server, &ann, "POST /v1/stream/s", &[TEXT], b"more");
        assert_eq!(said.status, 204);
        assert_eq!(answers(&mut server), before);
    }
}

#[test]
fn the_name_of_an_owner_fits_a_field() {
    let (mut server, mint) = issuing();
    let backend = token(&mint, Some("backend"), "create,own");
    let line = "PUT /v1/stream/s";
    for subject in [
        "s".repeat(513),
        "a\r\nb".into(),
        "\u{7f}".into(),
        "\u{85}".into(),
    ] {
        let own = token(&mint, Some(&subject), ACTIONS);
        let said = with_token(&mut server, &own, line, &[TEXT, OWN], b"");
        assert_eq!(
            (said.status, &*said.code()),
            (400, "bad_field"),
            "{subject:?}"
        );
    }
    let own = token(&mint, Some("ä; issuer=x"), ACTIONS);
    let said = with_token(&mut server, &own, line, &[TEXT, OWN], b"");
    assert_eq!(said.status, 201);
    let said = with_token(&mut server, &own, "HEAD /v1/stream/s", &[], b"");
    assert_eq!(said.field("Encke-Owner"), Some("ä; issuer=x"));
    let fields = [TEXT, ("Encke-Owner", "a\u{85}b")];
    let said = with_token(&mut server, &backend, "PUT /v1/stream/t", &fields, b"");
    assert_eq!((said.status, &*said.code()), (400, "bad_field"));
}

/// What becomes of a subscription of ann's to her stream `s`, to nobody's stream `open` and to a pattern, when its channel gets a token.
#[test]
fn a_renewed_token_keeps_the_subscriptions_to_streams_that_it_may_use() {
    let cases = [
        // Before; then; whether s, open and the pattern stay.
        (Some("ann"), "read", Some("ann"), "read", [true; 3]),
        (Some("ann"), "read", Some("ann"), "read,own", [true; 3]),
        (
            Some("ann"),
            "read",
            Some("bob"),
            "read",
            [false, true, false],
        ),
        (Some("ann"), "read", None, "read", [false, true, false]),
        (Some("ann"), "read", Some("bob"), "read,own", [true; 3]),
        (
            Some("bob"),
            "read,own",
            Some("bob"),
            "read",
            [false, true, false],
        ),
        (
            Some("bob"),
            "read,own",
            Some("ann"),
            "read",
            [true, true, false],
        ),
        (None, "read,own", None, "read", [false, true, false]),
        (None, "read,own", None, "read,own", [true; 3]),
    ];
    for (subject, actions, then_subject, then_actions, stay) in cases {
        let (mut server, mint) = issuing();
        let ann = token(&mint, Some("ann"), ACTIONS);
        for (name, fields) in [("s", &[TEXT, OWN][..]), ("open", &[TEXT])] {
            let line = format!("PUT /v1/stream/{name}");
            let said = with_token(&mut server, &ann, &line, fields, b"");
            assert_eq!(said.status, 201);
        }
        let bearer = format!("Bearer {}", token(&mint, subject, actions));
        let mut channel = server.open("/v1/events", &[("Authorization", &bearer)]);
        for subscribe in [
            r#"{"type":"subscribe","stream":"s"}"#,
            r#"{"type":"subscribe","stream":"open"}"#,
            r#"{"type":"subscribe","streams":["x/**"]}"#,
        ] {
            let said = server.say(&mut channel, subscribe);
            assert!(said[0].contains("\"subscribed\""), "{said:?}");
        }
        let token = token(&mint, then_subject, then_actions);
        let authenticate = json!({"type": "authenticate", "token": token}).to_string();
        let said = server.say(&mut channel, &authenticate);
        let ended = |text: &str| {
            said.iter()
                .any(|one| one.contains("other_caller") && one.contains(text))
        };
        let stays = ["\"s\"", "\"open\"", "x/**"].map(|text| !ended(text));
        assert_eq!(
            stays, stay,
            "{subject:?} {actions} {then_subject:?} {then_actions}: {said:?}"
        );
    }
}

#[test]
fn a_token_takes_over_from_a_read_url_what_it_may_use() {
    for (subject, stays) in [(Some("ann"), true), (Some("bob"), false), (None, false)] {
        let (mut server, mint) = issuing();
        let ann = token(&mint, Some("ann"), ACTIONS);
        let fields = [TEXT, OWN, ("Encke-Read-URL", "30")];
        let said = with_token(&mut server, &ann, "PUT /v1/stream/s", &fields, b"");
        let url = read_url(&said);
        let target = format!("{}&live=websocket&offset=-1", &url[4..]);
        let mut channel = server.open(&target, &[]);
        assert!(
            channel.first[0].contains("\"subscribed\""),
            "{:?}",
            channel.first
        );
        let token = token(&mint, subject, "read");
        let authenticate = json!({"type": "authenticate", "token": token}).to_string();
        let said = server.say(&mut channel, &authenticate);
        let ended = said.iter().any(|one| one.contains("other_caller"));
        assert_eq!(!ended, stays, "{subject:?}: {said:?}");
    }
}

/// A stream is looked up once: what has its name when its owner was looked at is what the caller gets.
#[test]
fn nobody_gets_a_stream_that_is_created_meanwhile() {
    use encke_protocol::{Action, CallerInfo, Headers, Request};
    use std::sync::atomic::{AtomicU64, Ordering};
    const STREAMS: u64 = 3_000;
    let mut server = server();
    server.call_as("bob");
    let (bob, now, router) = (server.caller, server.now(), server.router.clone());
    let next = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut asked = 0_u64;
            loop {
                let number = next.load(Ordering::Relaxed);
                if number == STREAMS {
                    break;
                }
                let path = format!("/v1/stream/r/{number}");
                asked += 1;
                let routed = router.request(Request {
                    method: "DELETE",
                    path: &path,
                    query: None,
                    headers: Headers(&[]),
                    body: Vec::new(),
                    caller: CallerInfo { ..bob },
                    now,
                    barriers: 0,
                    upgrade: false,
                });
                let Action::Respond(refused) = routed.action else {
                    panic!("bob got {path}, the {asked}th time");
                };
                assert_eq!(refused.status, 404);
            }
        });
        for number in 0..STREAMS {
            let line = format!("PUT /v1/stream/r/{number}");
            let said = as_caller(&mut server, "ann", &line, &[TEXT, OWN], b"");
            assert_eq!(said.status, 201);
            next.store(number + 1, Ordering::Relaxed);
        }
    });
}

#[test]
fn a_fork_is_made_for_others_by_whoever_may() {
    let mut server = Server::guarded(&[
        ("ann", ALL, "/v1/stream/**"),
        ("eve", ALL, "/v1/stream/**"),
        ("eve", "own", "/v1/stream/src/**"),
    ]);
    let line = "PUT /v1/stream/src/a";
    as_caller(&mut server, "ann", line, &[TEXT, OWN], b"secret");
    let fork = [("Stream-Forked-From", "/v1/stream/src/a")];
    let said = as_caller(&mut server, "eve", "PUT /v1/stream/dst/b", &fork, b"");
    assert_eq!((said.status, &*said.code()), (403, "not_owner"));
    let said = as_caller(&mut server, "eve", "PUT /v1/stream/src/b", &fork, b"");
    assert_eq!(said.status, 201);
    let own = [fork[0], OWN];
    let said = as_caller(&mut server, "eve", "PUT /v1/stream/dst/b", &own, b"");
    assert_eq!(said.status, 201);
}

#[test]
fn who_may_only_stop_learns_not_where_a_stream_ends() {
    let mut server = Server::guarded(&[
        ("ann", ALL, "/v1/stream/**"),
        ("stopper", "stop", "/v1/stream/**"),
        ("deleter", "delete", "/v1/stream/**"),
    ]);
    let line = "POST /v1/stream/s";
    as_caller(&mut server, "ann", "PUT /v1/stream/s", &[TEXT], b"secret");
    let tail = server.stream("s").facts().tail.to_string();
    let beyond = [("Encke-Truncate", "00000000ffffffff_0000000000000000")];
    let said = as_caller(&mut server, "deleter", line, &beyond, b"");
    assert_eq!((said.status, &*said.code()), (400, "beyond_tail"));
    assert!(!said.text().contains(&tail), "{}", said.text());
    let stop = ("Encke-Stop", "true");
    let closes = [("Stream-Closed", "true"), ("Encke-End-Reason", "stopped")];
    let matching = [stop, ("If-Match", "0000000000000009_0000000000000000")];
    let said = as_caller(&mut server, "stopper", line, &matching, b"");
    assert_eq!((said.status, &*said.code()), (400, "bad_field"));
    let matching = [closes[0], closes[1], matching[1]];
    let said = as_caller(&mut server, "stopper", line, &matching, b"");
    assert_eq!(said.status, 404);
    for (fields, status) in [(&[stop][..], 204), (&closes, 204), (&[stop], 409)] {
        let said = as_caller(&mut server, "stopper", line, fields, b"");
        assert_eq!(said.status, status, "{fields:?}");
        assert_eq!(said.field("Stream-Next-Offset"), None, "{fields:?}");
        assert!(!said.text().contains(&tail), "{}", said.text());
    }
    let said = as_caller(&mut server, "ann", line, &[stop], b"");
    assert_eq!(said.field("Stream-Next-Offset"), Some(&*tail));
}

#[test]
fn a_field_of_ours_comes_once() {
    let mut server = server();
    let twice = [TEXT, OWN, ("encke-owner", "ann")];
    let said = as_caller(&mut server, "ann", "PUT /v1/stream/new", &twice, b"");
    assert_eq!((said.status, &*said.code()), (400, "bad_field"));
}

#[test]
fn a_pattern_keeps_no_stream_that_belongs_to_somebody() {
    let mut server = server();
    for (name, fields) in [
        ("a/owned", &[TEXT, OWN, ("Stream-TTL", "10")][..]),
        ("a/open", &[TEXT, ("Stream-TTL", "10")]),
    ] {
        let line = format!("PUT /v1/stream/{name}");
        let said = as_caller(&mut server, "ann", &line, fields, b"");
        assert_eq!(said.status, 201);
    }
    let pattern = "a/**".parse().unwrap();
    server.view.watch_pattern(&pattern, 0, 0);
    server.now_ms += 20_000;
    for (name, status) in [("a/owned", 404), ("a/open", 200)] {
        let line = format!("GET /v1/stream/{name}");
        let said = as_caller(&mut server, "ann", &line, &[], b"");
        assert_eq!(said.status, status, "{name}");
    }
}

#[test]
fn a_read_url_is_given_for_a_stream_that_outlives_a_crash() {
    use encke_protocol::{Action, Headers, Request};
    use encke_stream::AckLevel;
    let (server, mint) = issuing();
    let bearer = format!("Bearer {}", token(&mint, Some("ann"), ACTIONS));
    for (url, level) in [(None, AckLevel::Accepted), (Some("60"), AckLevel::Synced)] {
        let mut headers = vec![
            ("Authorization", bearer.as_bytes()),
            ("Encke-Ack", b"accepted"),
        ];
        headers.extend(url.map(|seconds| ("Encke-Read-URL", seconds.as_bytes())));
        let routed = server.router.request(Request {
            method: "PUT",
            path: "/v1/stream/s",
            query: None,
            headers: Headers(&headers),
            body: Vec::new(),
            caller: server.caller,
            now: server.now(),
            barriers: 0,
            upgrade: false,
        });
        let Action::Commit(command, _) = routed.action else {
            panic!("a creation was due");
        };
        assert_eq!(command.ack(), Some(level));
    }
}
