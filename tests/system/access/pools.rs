//! Pools with access control: what waits ends with its caller, and attempts are their workers'.

use std::net::SocketAddr;

use serde_json::json;

use super::{API_KEY, Guarded, bearer};
use crate::rig::{Connection, JSON, eventually, request};

const TEXT: &str = "Content-Type: text/plain";

fn with_pool() -> Guarded {
    let guarded = Guarded::start(&[]);
    let made = guarded.encke.ask(
        "PUT",
        "/v1/pool/p",
        &[JSON, &bearer(API_KEY)],
        br#"{"type":"claim","ack_ms":60000}"#,
    );
    assert_eq!(made.status, 201, "{made:?}");
    guarded
}

/// A connection with a request that waits.
fn begin(address: SocketAddr, target: &str, token: &str) -> Connection {
    let mut connection = Connection::open(address);
    connection.send(&request("POST", target, &[TEXT, token], b"job"));
    connection
}

fn shown(guarded: &Guarded, pool: &str) -> serde_json::Value {
    let path = format!("/v1/pool/{pool}");
    let shown = guarded.encke.ask("GET", &path, &[&bearer(API_KEY)], b"");
    serde_json::from_slice(&shown.body).expect("JSON")
}

/// The waits of a poster and of a worker, for five minutes each, end by `end`; the job goes on and is not given to the worker.
fn waits_end(guarded: &Guarded, token: &str, end: impl FnOnce()) {
    let address = guarded.encke.address;
    let mut poll = begin(address, "/v1/pool/p/work?worker=a&wait=300", token);
    eventually("the worker waits", || {
        shown(guarded, "p")["workers"][0]["connected"] == true
    });
    // For another worker: the one that waits must not get it.
    let settings = br#"{"type":"claim","ack_ms":60000}"#;
    let made = guarded
        .encke
        .ask("PUT", "/v1/pool/q", &[JSON, &bearer(API_KEY)], settings);
    assert_eq!(made.status, 201, "{made:?}");
    let mut poster = begin(address, "/v1/pool/q?wait=300", token);
    eventually("the job is posted", || shown(guarded, "q")["waiting"] == 1);
    end();
    assert_eq!(poll.answer().status, 204);
    let answer = poster.answer();
    assert_eq!(answer.status, 202, "{answer:?}");
    assert!(answer.field("Job-Token").is_some());
    let posted = guarded
        .encke
        .ask("POST", "/v1/pool/p", &[TEXT, &bearer(API_KEY)], b"late");
    assert_eq!(posted.status, 202);
    let shown = shown(guarded, "p");
    assert_eq!(
        (&shown["waiting"], &shown["running"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn requests_that_wait_end_when_their_token_ends() {
    let guarded = with_pool();
    let allow = "post,work=/v1/pool/**";
    let token = guarded.token(&["--sub", "ann", "--expires", "12s", "--allow", allow]);
    waits_end(&guarded, &bearer(&token), || {});
}

#[test]
fn requests_that_wait_end_when_their_token_is_revoked() {
    let guarded = with_pool();
    let allow = "post,work=/v1/pool/**";
    let token = guarded.token(&[
        "--sub",
        "ann",
        "--jti",
        "one",
        "--expires",
        "1h",
        "--allow",
        allow,
    ]);
    waits_end(&guarded, &bearer(&token), || {
        let body = json!({ "jti": "one" }).to_string();
        let revoked = Connection::open(guarded.operators).ask(
            "POST",
            "/v1/admin/revoke",
            &[JSON],
            body.as_bytes(),
        );
        assert_eq!(revoked.status, 204, "{revoked:?}");
    });
}

#[test]
fn an_attempt_is_its_workers_and_a_pools_streams_are_the_pools() {
    let guarded = with_pool();
    let backend = bearer(API_KEY);
    let posted = guarded
        .encke
        .ask("POST", "/v1/pool/p", &[TEXT, &backend], b"job");
    let id = posted.field("Job-Id").expect("a number").to_owned();
    let anna = guarded.allowed("anna", "work=/v1/pool/p");
    let other = guarded.allowed("mallory", "work,post=/v1/pool/p");
    let streams = guarded.allowed("mallory", "read,append,create,delete=/v1/stream/**");
    let got = guarded
        .encke
        .ask("POST", "/v1/pool/p/work?worker=anna&wait=60", &[&anna], b"");
    assert_eq!(got.status, 200, "{got:?}");
    let token = format!("Job-Token: {}", got.field("Job-Token").expect("a token"));
    let ack = format!("/v1/pool/p/job/{id}/ack?attempt=1");
    let job = format!("/v1/pool/p/job/{id}");
    let results = "/v1/stream/pool/p/results";
    let forged = "Job-Token: AAAAAAAAAAAAAAAAAAAAAA";
    for (method, path, fields, expected) in [
        ("POST", &*ack, &[TEXT, &other][..], (400, "missing_token")),
        ("POST", &ack, &[TEXT, &other, forged], (403, "wrong_token")),
        ("GET", &job, &[TEXT, &other], (404, "not_found")),
        ("GET", &job, &[TEXT, &other, forged], (404, "unknown_job")),
        ("GET", results, &[TEXT, &streams], (404, "not_found")),
        ("POST", results, &[JSON, &streams], (404, "not_found")),
        ("DELETE", results, &[TEXT, &streams], (404, "not_found")),
        ("POST", results, &[JSON, &backend], (403, "pool_stream")),
        ("DELETE", results, &[TEXT, &backend], (409, "pool_stream")),
    ] {
        let answer = guarded.encke.ask(method, path, fields, b"[1]");
        let found = (answer.status, &*answer.error_code());
        assert_eq!(found, expected, "{method} {path} {fields:?}");
    }
    let done = guarded
        .encke
        .ask("POST", &ack, &[TEXT, &anna, &token], b"done");
    assert_eq!(done.status, 204, "{done:?}");
    let read = guarded.encke.ask("GET", results, &[&backend], b"");
    let read: serde_json::Value = serde_json::from_slice(&read.body).expect("JSON");
    assert_eq!(read[0]["data"], "done");
}
