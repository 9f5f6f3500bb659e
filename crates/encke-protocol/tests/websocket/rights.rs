//! What callers may do, and how they say who they are.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use encke_access::{CanonicalPath, UrlToSign};
use encke_clock::WallTime;

use super::server::NOW_MS;
use super::*;

fn authenticate(byte: u8) -> Value {
    json!({"type":"authenticate","id":1,"token":token(byte)})
}

#[test]
fn a_caller_comes_with_the_handshake_or_with_the_first_message() {
    let mut server = guarded();
    create_as_all(&mut server, &["a/1"]);
    let subscribe = r#"{"type":"subscribe","stream":"a/1"}"#;
    let offer = format!("encke.v1, encke.token.{}", URL_SAFE_NO_PAD.encode(token(2)));
    for headers in [
        [("Authorization", &*bearer(2)), ("X-None", "")],
        [("Sec-WebSocket-Protocol", &*offer), ("X-None", "")],
        [
            ("Cookie", &*format!("session={}", token(2))),
            ("Origin", "https://here"),
        ],
    ] {
        let headers = [&headers[..], &[("Host", "here")]].concat();
        let mut channel = server.open("/v1/events", &headers);
        assert!(channel.channel.has_caller());
        let said = server.say(&mut channel, subscribe);
        assert_eq!(parsed(&said[0])["type"], "subscribed", "{headers:?}");
    }
    // Without credentials a client must say that it is going to send some.
    assert_eq!(
        status(server.upgrade("/v1/events", &[])),
        (401, "no_credentials".into())
    );
    let stream = "/v1/stream/a/1?offset=-1&live=websocket";
    assert_eq!(
        status(server.upgrade(stream, &[])),
        (401, "no_credentials".into())
    );
    let plain = server.reply("GET /v1/events?stream=a/1", &[PROTOCOL], b"");
    assert_eq!(status(plain), (401, "no_credentials".into()));
    for target in ["/v1/pool/p", "/metrics", "/v1/stream/a/1"] {
        assert_eq!(
            status(server.upgrade(target, &[PROTOCOL])).0,
            401,
            "{target}"
        );
    }
    for target in ["/v1/events", stream, "/v1/events?stream=a/1"] {
        let mut channel = server.open(target, &[PROTOCOL]);
        assert!(!channel.channel.has_caller());
        for first in &channel.first {
            assert_eq!(parsed(first)["code"], "no_credentials");
        }
        for message in [
            subscribe,
            r#"{"type":"subscribe","stream":"**"}"#,
            r#"{"type":"append","stream":"a/1","data":1}"#,
            r#"{"type":"append","stream":"none","data":1}"#,
        ] {
            let got = refused(&mut server, &mut channel, message);
            assert_eq!(got, (401, "no_credentials".to_owned()), "{message}");
        }
        let wrong = json!({"type":"authenticate","id":1,"token":"wrong"}).to_string();
        assert_eq!(
            refused(&mut server, &mut channel, &wrong),
            (401, "unknown_api_key".into())
        );
        let empty = json!({"type":"authenticate","id":1,"token":"a b"}).to_string();
        assert_eq!(
            refused(&mut server, &mut channel, &empty),
            (400, "malformed_credentials".into())
        );
        assert!(!channel.channel.has_caller());
        let said = ask(&mut server, &mut channel, &authenticate(2));
        assert_eq!(said, r#"{"type":"authenticated","id":1}"#);
        assert_eq!(channel.caller.as_deref(), Some("reader"));
        assert!(channel.channel.has_caller());
        let said = server.say(&mut channel, subscribe);
        assert_eq!(parsed(&said[0])["type"], "subscribed");
    }
    for (offer, expected) in [
        ("encke.v1, encke.token.a=", (400, "malformed_credentials")),
        ("encke.v1, encke.token.d3Jvbmc", (401, "unknown_api_key")),
        (
            "encke.v1, encke.token.YQ, encke.token.YQ",
            (400, "conflicting_credentials"),
        ),
    ] {
        let got = status(server.upgrade("/v1/events", &[("Sec-WebSocket-Protocol", offer)]));
        assert_eq!((got.0, &*got.1), expected, "{offer}");
    }
    let both = [
        ("Sec-WebSocket-Protocol", &*offer),
        ("Authorization", &*bearer(1)),
    ];
    let got = status(server.upgrade("/v1/events", &both));
    assert_eq!(got, (400, "conflicting_credentials".to_owned()));
    // The field is a credential in a handshake only.
    let said = server.send(
        "GET /v1/stream/a/1",
        &[("Sec-WebSocket-Protocol", &*offer)],
        b"",
    );
    assert_eq!(said.status, 401);
}

#[test]
fn a_message_may_do_what_its_caller_may() {
    let mut server = guarded();
    create_as_all(&mut server, &["a/1", "a/2", "b"]);
    let mut reader = server.open("/v1/events", &[("Authorization", &bearer(2))]);
    let mut writer = server.open("/v1/events", &[("Authorization", &bearer(3))]);
    let forbidden = (403, "forbidden".to_owned());
    for message in [
        r#"{"type":"append","stream":"a/1","data":1}"#,
        r#"{"type":"append","stream":"b","data":1}"#,
        r#"{"type":"subscribe","stream":"b"}"#,
        r#"{"type":"subscribe","stream":"none"}"#,
        r#"{"type":"subscribe","stream":"**"}"#,
        r#"{"type":"subscribe","streams":["a/1","b"]}"#,
    ] {
        assert_eq!(
            refused(&mut server, &mut reader, message),
            forbidden,
            "{message}"
        );
    }
    let got = refused(
        &mut server,
        &mut writer,
        r#"{"type":"subscribe","stream":"a/1"}"#,
    );
    assert_eq!(got, forbidden);
    let said = ask(
        &mut server,
        &mut writer,
        &json!({"type":"append","stream":"a/1","data":1}),
    );
    assert_eq!(parsed(&said)["type"], "appended");
    let said = ask(
        &mut server,
        &mut reader,
        &json!({"type":"subscribe","stream":"a/**"}),
    );
    assert_eq!(parsed(&said)["type"], "subscribed");
    // The URL asks for the rights of its subscription.
    let reads_b = "/v1/stream/b?offset=-1&live=websocket";
    for target in [reads_b, "/v1/events?stream=b", "/v1/events?stream=**"] {
        let got = status(server.upgrade(target, &[("Authorization", &bearer(2))]));
        assert_eq!(got, forbidden, "{target}");
    }
}

#[test]
fn a_new_token_ends_the_subscriptions_that_it_does_not_allow() {
    let mut server = guarded();
    create_as_all(&mut server, &["a/1", "b", "c"]);
    let mut channel = server.open("/v1/events", &[("Authorization", &bearer(1))]);
    for stream in ["a/1", "b", "a/**", "**"] {
        let said = ask(
            &mut server,
            &mut channel,
            &json!({"type":"subscribe","stream":stream}),
        );
        assert_eq!(parsed(&said)["type"], "subscribed");
    }
    let set = json!({"type":"subscribe","streams":["a/1","c"]});
    ask(&mut server, &mut channel, &set);
    let said = server.say(&mut channel, &authenticate(2).to_string());
    assert_eq!(said[0], r#"{"type":"authenticated","id":1}"#);
    assert_eq!(
        said[1],
        r#"{"type":"error","stream":"b","status":403,"code":"forbidden","message":"\"reader\" may not read /v1/stream/b"}"#
    );
    let ended: Vec<_> = said[1..].iter().map(|message| parsed(message)).collect();
    let named = |error: &Value| {
        let subject = error.get("stream").or(error.get("subscription"));
        subject.unwrap().as_str().unwrap().to_owned()
    };
    let named: Vec<_> = ended.iter().map(named).collect();
    // It is another caller, and what the pattern matches may belong to the one before.
    assert_eq!(ended[1]["code"], "other_caller");
    assert_eq!(named, ["b", "a/**", "**", "a/1,c"]);
    assert_eq!(channel.feeds.keys().copied().collect::<Vec<_>>(), [1]);
    // A token that is refused changes nothing.
    let wrong = r#"{"type":"authenticate","token":"wrong"}"#;
    assert_eq!(refused(&mut server, &mut channel, wrong).0, 401);
    assert_eq!(channel.feeds.len(), 1);
    let append = r#"{"type":"append","stream":"a/1","data":1}"#;
    assert_eq!(refused(&mut server, &mut channel, append).0, 403);
    let said = server.say(&mut channel, &authenticate(3).to_string());
    assert_eq!(said.len(), 2);
    let said = server.say(&mut channel, append);
    assert_eq!(parsed(&said[0])["type"], "appended");
}

#[test]
fn a_revoked_caller_may_do_nothing_more() {
    let mut server = guarded();
    create_as_all(&mut server, &["a/1"]);
    let mut channel = server.open("/v1/events", &[("Authorization", &bearer(3))]);
    let access = server.router.access().unwrap().clone();
    let revoke = encke_access::RevocationTarget::Key("writer".into());
    access.revoke(revoke, WallTime::from_ms(NOW_MS)).unwrap();
    let append = r#"{"type":"append","stream":"a/1","data":1}"#;
    assert_eq!(
        refused(&mut server, &mut channel, append),
        (401, "revoked".to_owned())
    );
    let said = server.say(&mut channel, &authenticate(1).to_string());
    assert_eq!(said, [r#"{"type":"authenticated","id":1}"#]);
    assert_eq!(
        parsed(&server.say(&mut channel, append)[0])["type"],
        "appended"
    );
}

#[test]
fn a_signed_url_is_good_for_its_own_subscription() {
    let mut server = guarded();
    create_as_all(&mut server, &["a/1", "b"]);
    let sign = |target: &str| {
        let url = UrlToSign {
            method: "GET",
            target,
            path: &CanonicalPath::parse(target.split('?').next().unwrap()).unwrap(),
            fields: &[],
            stream: None,
            expires_s: NOW_MS / 1_000 + 60,
        };
        access().sign_url("u", &url).unwrap()
    };
    let at = tail(&server, "a/1");
    for target in [
        "/v1/stream/a/1?offset=now&live=websocket".to_owned(),
        format!("/v1/stream/a/1?offset={at}&live=websocket"),
        "/v1/events?stream=a/1".to_owned(),
    ] {
        let mut channel = server.open(&sign(&target), &[PROTOCOL]);
        let first = parsed(&channel.first[0]);
        assert_eq!(first["type"], "subscribed", "{target}: {first}");
        for message in [
            r#"{"type":"subscribe","stream":"a/1","offset":"-1"}"#,
            r#"{"type":"subscribe","streams":["a/1"],"offset":"-1"}"#,
            r#"{"type":"subscribe","stream":"b"}"#,
        ] {
            let got = refused(&mut server, &mut channel, message);
            assert_eq!(got, (403, "signed_url".to_owned()), "{target} {message}");
        }
        let append = r#"{"type":"append","stream":"a/1","data":1}"#;
        assert_eq!(
            refused(&mut server, &mut channel, append),
            (403, "forbidden".to_owned())
        );
        // With a token of its own the client may do what that allows.
        let said = server.say(&mut channel, &authenticate(1).to_string());
        assert_eq!(said.len(), 1);
        let other = r#"{"type":"subscribe","stream":"b"}"#;
        assert_eq!(
            parsed(&server.say(&mut channel, other)[0])["type"],
            "subscribed"
        );
    }
    // Positions before the signed ones are refused, as for events.
    let signed = sign(&format!("/v1/stream/a/1?offset={at}&live=websocket"));
    let before = format!("{signed}&lastEventId=0000000000000000_0000000000000000");
    assert_eq!(status(server.upgrade(&before, &[])).0, 403);
    let channel = server.open(&format!("{signed}&lastEventId={at}"), &[]);
    assert_eq!(parsed(&channel.first[0])["offset"], at);
    // What ends with the URL ends for messages too.
    let mut channel = server.open(&sign("/v1/events?stream=a/1"), &[]);
    server.now_ms += 61_000;
    let unsubscribe = r#"{"type":"unsubscribe","streams":["a/1"]}"#;
    assert_eq!(
        refused(&mut server, &mut channel, unsubscribe),
        (401, "expired".to_owned())
    );
}

#[test]
fn without_access_control_a_token_changes_nothing() {
    let mut server = with(&[("a", JSON)]);
    let mut channel = server.open("/v1/events", &[]);
    assert!(channel.channel.has_caller());
    let said = server.say(
        &mut channel,
        r#"{"type":"authenticate","id":1,"token":"x"}"#,
    );
    assert_eq!(said, [r#"{"type":"authenticated","id":1}"#]);
    assert_eq!(channel.caller, None);
}
