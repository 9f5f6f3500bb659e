//! Subscriptions over HTTP: what requests become, what is responded, and who may do what.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod bodies;
mod owners;
mod paths;
mod properties;
mod refusals;
mod rights;
mod routes;
#[path = "../server/mod.rs"]
mod server;
mod tokens;

use serde_json::{Value, json};
use server::{Said, Server};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const HOST: (&str, &str) = ("Host", "push.example:8080");
const ROOT: &str = "/v1/stream/__ds";
const SUBSCRIPTIONS: &str = "/v1/stream/__ds/subscriptions";
const WEBHOOK: &str = r#"{"type":"webhook","pattern":"events/*","webhook":{"url":"https://hooks.example/a"},"lease_ttl_ms":1000,"description":"d"}"#;
const PULL: &str = r#"{"type":"pull-wake","pattern":"events/*","wake_stream":"wake"}"#;

fn body(said: &Said) -> Value {
    serde_json::from_slice(&said.body).unwrap_or_else(|_| panic!("{:?}", said.text()))
}

/// A request for what is below the reserved segment.
fn send(server: &mut Server, line: &str, content: &str) -> Said {
    let (method, path) = line.split_once(' ').unwrap();
    let line = format!("{method} {ROOT}{path}");
    server.send(&line, &[HOST], content.as_bytes())
}

fn with_token(server: &mut Server, line: &str, token: &str, content: &Value) -> Said {
    let (method, path) = line.split_once(' ').unwrap();
    let line = format!("{method} {ROOT}{path}");
    let bearer = format!("Bearer {token}");
    let fields = [HOST, ("Authorization", &*bearer)];
    server.send(&line, &fields, content.to_string().as_bytes())
}

fn outcome(said: &Said) -> (u16, String) {
    match said.status {
        400.. => (said.status, said.code()),
        status => (status, String::new()),
    }
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

fn append(server: &mut Server, stream: &str) -> Said {
    let line = format!("PUT /v1/stream/{stream}");
    server.send(&line, &[JSON], b"[1]");
    let line = format!("POST /v1/stream/{stream}");
    server.send(&line, &[JSON], b"[2]")
}

/// A request for what is below the subscriptions.
fn send_as(server: &mut Server, name: &str, line: &str, content: &Value) -> Said {
    server.call_as(name);
    let (method, path) = line.split_once(' ').unwrap();
    let line = format!("{method} {SUBSCRIPTIONS}{path}");
    server.send(&line, &[JSON], content.to_string().as_bytes())
}

fn pull(pattern: &str, streams: &[&str], wake_stream: &str) -> Value {
    json!({
        "type": "pull-wake", "pattern": pattern, "streams": streams, "wake_stream": wake_stream,
    })
}

fn webhook(pattern: &str) -> Value {
    json!({ "type": "webhook", "pattern": pattern, "webhook": { "url": "https://h.example/" } })
}
