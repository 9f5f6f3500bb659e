//! Callers of connections that a successor has taken over: they may what they might, and end when they would have ended.

use serde_json::json;

use super::{API_KEY, Guarded, bearer};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Ended, JSON, command, data_dir, request};

#[test]
fn callers_move_with_their_connections() {
    let (guarded, data) = Guarded::start_in(data_dir(), &[]);
    for stream in ["/v1/stream/a", "/v1/stream/b"] {
        guarded.create(stream, b"[1]");
    }
    let allow = [
        "--allow",
        "read=/v1/stream/a",
        "--allow",
        "append=/v1/stream/a",
    ];
    let token = |jti: &str, expires: &str| {
        let named = ["--sub", "ann", "--jti", jti, "--expires", expires];
        bearer(&guarded.token(&[&named[..], &allow[..]].concat()))
    };
    let subscribe = |credentials: &str| {
        let mut connection = guarded.encke.connect();
        let target = "/v1/stream/a?offset=now&live=sse";
        connection.send(&request("GET", target, &[credentials], b""));
        assert_eq!(connection.head().status, 200);
        connection
    };
    let mut kept = subscribe(&bearer(API_KEY));
    let mut short = subscribe(&token("short", "12s"));
    let mut revoked = subscribe(&token("revoked", "1h"));
    let lasting = token("lasting", "1h");
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&lasting]);
    let mut operator = Connection::open(guarded.operators);
    assert_eq!(operator.ask("GET", "/metrics", &[], b"").status, 200);
    let ended = Ended::of(command(&["upgrade", "--json"]).arg(data.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The channel has the rights of its caller, and no others: what it may not read is reported as missing.
    let append = |stream: &str| json!({"type": "append", "stream": stream, "data": 2}).to_string();
    assert_eq!(channel.ask(&append("a"))["type"], "appended");
    assert_eq!(channel.ask(&append("b"))["code"], "not_found");
    let follow = json!({"type": "subscribe", "stream": "b", "offset": "-1"}).to_string();
    assert_eq!(channel.ask(&follow)["code"], "not_found");
    // Tokens end with their time, and are revoked.
    assert_eq!(operator.ask("GET", "/metrics", &[], b"").status, 200);
    let body = json!({ "jti": "revoked" }).to_string();
    let answer = operator.ask("POST", "/v1/admin/revoke", &[JSON], body.as_bytes());
    assert_eq!(answer.status, 204);
    for (connection, why) in [(&mut short, "has expired"), (&mut revoked, "was revoked")] {
        let text = String::from_utf8(connection.rest()).expect("events are text");
        assert!(text.contains(why), "{text}");
    }
    let backend = bearer(API_KEY);
    assert_eq!(guarded.ask("POST", "/v1/stream/a", &backend, b"[3]").0, 204);
    let mut seen = String::new();
    while !seen.contains("[3]") {
        seen += &kept.event().expect("it goes on");
    }
    assert_eq!(channel.ask(&append("a"))["type"], "appended");
}
