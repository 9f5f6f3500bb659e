//! Channels: messages of JSON over one connection, by the rules of requests.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod encoders;
mod ephemeral;
mod errors;
mod handshake;
mod last_messages;
mod properties;
mod pusher;
mod rights;
#[path = "../server/mod.rs"]
mod server;
mod session;
mod times;

use encke_access::{Access, Operation, api_key};
use serde_json::{Value, json};
use server::{Reply, Server, TestChannel};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const BYTES: (&str, &str) = ("Content-Type", "application/octet-stream");
const PROTOCOL: (&str, &str) = ("Sec-WebSocket-Protocol", "encke.v1");

/// A server with streams of these types.
fn with(streams: &[(&str, (&str, &str))]) -> Server {
    let mut server = Server::default();
    for (name, content_type) in streams {
        create(&mut server, name, *content_type);
    }
    server
}

fn create(server: &mut Server, name: &str, content_type: (&str, &str)) {
    let line = format!("PUT /v1/stream/{name}");
    assert_eq!(server.send(&line, &[content_type], b"").status, 201);
}

fn tail(server: &Server, name: &str) -> String {
    server.stream(name).facts().tail.to_string()
}

/// The one response to a message.
fn ask(server: &mut Server, channel: &mut TestChannel, message: &Value) -> String {
    let mut said = server.say(channel, &message.to_string());
    assert_eq!(said.len(), 1, "{message}: {said:?}");
    said.remove(0)
}

fn parsed(message: &str) -> Value {
    serde_json::from_str(message).expect(message)
}

/// The status and the code of an error, which repeats the number of its message.
fn refused(server: &mut Server, channel: &mut TestChannel, message: &str) -> (u64, String) {
    let said = server.say(channel, message);
    let [error] = &said[..] else {
        panic!("{message}: {said:?}");
    };
    let error = parsed(error);
    assert_eq!(error["type"], "error", "{message}: {error}");
    assert!(!error["message"].as_str().unwrap().is_empty());
    let code = error["code"].as_str().unwrap().to_owned();
    (error["status"].as_u64().unwrap(), code)
}

fn status(reply: Reply) -> (u64, String) {
    match reply {
        Reply::Opened(said, _) => (said.status.into(), String::new()),
        Reply::Said(said) => (said.status.into(), said.code()),
        _ => panic!("no channel and no refusal"),
    }
}

/// A server whose callers have API keys: `reader` reads `a/`, `writer` appends to `a/`, `all` does everything.
fn guarded() -> Server {
    Server::controlled(access())
}

fn access() -> Access {
    let key = |name: &str, byte: u8, actions: &[&str], path: &str| {
        let grants = json!([{"actions": actions, "paths": [path]}]);
        json!({"name": name, "sha256": api_key([byte; 32]).1, "grants": grants})
    };
    let all: Vec<&str> = Operation::ALL.iter().map(|one| one.name()).collect();
    let config = json!({
        "conceal": false,
        "cookie": "session",
        "api-keys": [
            key("all", 1, &all, "/**"),
            key("reader", 2, &["read"], "/v1/stream/a/**"),
            key("writer", 3, &["append"], "/v1/stream/a/**"),
        ],
        "certificates": [{"name": "machine", "grants": [{"actions": all, "paths": ["/**"]}]}],
        "signing-keys": [{"kid": "u", "secret": "a secret of at least thirty-two bytes"}],
    });
    let config = serde_json::from_value(config).unwrap();
    Access::from_config(&config, &|_| Ok(Vec::new())).unwrap()
}

fn token(byte: u8) -> String {
    api_key([byte; 32]).0
}

fn bearer(byte: u8) -> String {
    format!("Bearer {}", token(byte))
}

fn create_as_all(server: &mut Server, names: &[&str]) {
    for name in names {
        let line = format!("PUT /v1/stream/{name}");
        let said = server.send(&line, &[JSON, ("Authorization", &bearer(1))], b"");
        assert_eq!(said.status, 201);
    }
}
