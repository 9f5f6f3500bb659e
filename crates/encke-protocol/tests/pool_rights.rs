//! Who may do what with a pool: its streams, its jobs and the attempts at them.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use serde_json::Value;
use server::{Reply, Said, Server};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const SETTINGS: &[u8] = br#"{"type":"claim","attempts":3}"#;

fn json(said: &Said) -> Value {
    serde_json::from_slice(&said.body).unwrap()
}

fn outcome(said: &Said) -> (u16, String) {
    match said.status {
        400.. => (said.status, said.code()),
        status => (status, String::new()),
    }
}

fn send(server: &mut Server, line: &str) -> (u16, String) {
    outcome(&server.send(line, &[JSON], b"[1]"))
}

/// Whether a request subscribes.
fn subscribes(server: &mut Server, target: &str) -> bool {
    match server.reply(&format!("GET {target}"), &[], b"") {
        Reply::Subscribed(..) | Reply::SubscribedAll(..) => true,
        Reply::Said(said) => {
            assert!(said.status >= 400, "{target}: {}", said.status);
            false
        }
        _ => panic!("{target}"),
    }
}

#[test]
fn the_streams_of_a_pool_are_written_by_the_server_only() {
    let mut server = Server::default();
    assert_eq!(server.send("PUT /v1/pool/p", &[], SETTINGS).status, 201);
    server.send("PUT /v1/stream/mine", &[JSON], b"[1]");
    let no = (403, "pool_stream".to_owned());
    for stream in ["results", "dead", "events"] {
        // Those of a pool that is not there yet, too: what a client has made must not become a pool's.
        for pool in ["p", "none"] {
            let path = format!("/v1/stream/pool/{pool}/{stream}");
            assert_eq!(send(&mut server, &format!("PUT {path}")), no);
            assert_eq!(send(&mut server, &format!("POST {path}")), no);
            let fork = [JSON, ("Stream-Forked-From", "/v1/stream/mine")];
            let forked = server.send(&format!("PUT {path}"), &fork, b"");
            assert_eq!(outcome(&forked), no);
            let close = server.send(&format!("POST {path}"), &[("Stream-Closed", "true")], b"");
            assert_eq!(outcome(&close), no);
        }
        let path = format!("/v1/stream/pool/p/{stream}");
        let deleted = send(&mut server, &format!("DELETE {path}"));
        assert_eq!(deleted, (409, "pool_stream".into()));
        // Reading is what they are for: also as the source of a fork, and to remove what was read.
        assert_eq!(send(&mut server, &format!("GET {path}?offset=-1")).0, 200);
        let source = [JSON, ("Stream-Forked-From", &*path)];
        let fork = format!("PUT /v1/stream/copy-of-{stream}");
        assert_eq!(server.send(&fork, &source, b"").status, 201);
        let truncate = [("Encke-Truncate", "now")];
        assert_eq!(
            server.send(&format!("POST {path}"), &truncate, b"").status,
            204
        );
        assert!(subscribes(
            &mut server,
            &format!("/v1/events?stream=pool/p/{stream}")
        ));
    }
    // Other names below are ordinary.
    assert_eq!(send(&mut server, "PUT /v1/stream/pool/p/notes").0, 201);
    // What a removed pool has left can be deleted.
    assert_eq!(server.send("DELETE /v1/pool/p?force", &[], b"").status, 204);
    assert_eq!(send(&mut server, "DELETE /v1/stream/pool/p/events").0, 204);
    // The forks still read it.
    assert_eq!(send(&mut server, "DELETE /v1/stream/pool/p/events").0, 410);
    assert_eq!(
        send(&mut server, "DELETE /v1/stream/pool/none/events").0,
        404
    );
}

#[test]
fn the_streams_of_a_pool_are_read_by_a_right_to_the_pool() {
    let mut server = Server::guarded(&[
        ("operator", "create,delete,read,post,work", "/v1/pool/**"),
        ("streams", "read,append,create,delete", "/v1/stream/**"),
        ("reader", "read", "/v1/pool/p"),
        ("all", "read", "/v1/stream/**"),
        ("all", "read", "/v1/pool/**"),
        ("below", "read", "/v1/stream/pool/p/**"),
        ("below", "read", "/v1/pool/p"),
        ("cutter", "delete", "/v1/pool/p"),
        ("cutter", "read", "/v1/stream/**"),
        ("keeper", "read,delete", "/v1/pool/p"),
    ]);
    server.call_as("operator");
    assert_eq!(server.send("PUT /v1/pool/p", &[], SETTINGS).status, 201);
    assert_eq!(server.send("PUT /v1/pool/q", &[], SETTINGS).status, 201);
    // All streams are granted, and those of pools are none of them.
    server.call_as("streams");
    for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
        let line = format!("{method} /v1/stream/pool/p/results");
        let said = server.send(&line, &[JSON], b"[1]");
        assert_eq!(said.status, 404, "{line}");
    }
    assert_eq!(send(&mut server, "PUT /v1/stream/a").0, 201);
    let source = [JSON, ("Stream-Forked-From", "/v1/stream/pool/p/results")];
    let fork = server.send("PUT /v1/stream/fork", &source, b"");
    assert_eq!(outcome(&fork), (404, "source_not_found".into()));
    for (caller, target, may) in [
        ("streams", "/v1/events?stream=pool/p/results", false),
        ("streams", "/v1/events?stream=**", false),
        ("streams", "/v1/events?stream=pool/**", false),
        ("streams", "/v1/events?stream=pool/p/**", false),
        ("streams", "/v1/events?stream=a", true),
        ("streams", "/v1/events?stream=b/**", true),
        ("streams", "/v1/events?stream=pool/p/results/**", true),
        ("reader", "/v1/events?stream=pool/p/results", true),
        ("reader", "/v1/events?stream=pool/q/results", false),
        ("reader", "/v1/events?stream=pool/p/**", false),
        ("all", "/v1/events?stream=**", true),
        ("all", "/v1/events?stream=pool/**", true),
        ("below", "/v1/events?stream=pool/p/**", true),
        ("below", "/v1/events?stream=pool/**", false),
    ] {
        server.call_as(caller);
        assert_eq!(subscribes(&mut server, target), may, "{caller} {target}");
    }
    server.call_as("reader");
    assert_eq!(send(&mut server, "GET /v1/stream/pool/p/results").0, 200);
    assert_eq!(send(&mut server, "GET /v1/stream/pool/q/results").0, 404);
    let truncate = [("Encke-Truncate", "now")];
    let line = "POST /v1/stream/pool/p/results";
    assert_eq!(outcome(&server.send(line, &truncate, b"")).0, 403);
    assert_eq!(send(&mut server, line), (403, "pool_stream".into()));
    // What is left is said to those who may read it.
    for (caller, shown) in [("cutter", false), ("keeper", true)] {
        server.call_as(caller);
        let said = server.send(line, &truncate, b"");
        assert_eq!(said.status, 204, "{caller}");
        assert_eq!(
            said.field("Stream-Next-Offset").is_some(),
            shown,
            "{caller}"
        );
        assert_eq!(said.field("Encke-Floor").is_some(), shown, "{caller}");
    }
}

#[test]
fn a_worker_reports_on_what_it_was_given() {
    let mut server = Server::guarded(&[
        ("operator", "create,read,post", "/v1/pool/p"),
        ("anna", "work", "/v1/pool/p"),
        ("mallory", "work", "/v1/pool/p"),
    ]);
    server.call_as("operator");
    assert_eq!(server.send("PUT /v1/pool/p", &[], SETTINGS).status, 201);
    let posted = server.send("POST /v1/pool/p", &[TEXT], b"job");
    let id = json(&posted)["job"].as_u64().unwrap();
    let of_job = posted.field("Job-Token").unwrap().to_owned();
    server.call_as("anna");
    let got = server.send("POST /v1/pool/p/work?worker=anna&wait=5", &[], b"");
    assert_eq!(got.status, 200);
    let token = got.field("Job-Token").unwrap().to_owned();
    // The number is known to all, and the rest to nobody else.
    server.call_as("mallory");
    for what in ["ack", "refuse", "extend"] {
        let line = format!("POST /v1/pool/p/job/{id}/{what}?attempt=1");
        let bare = server.send(&line, &[TEXT], b"forged");
        assert_eq!(outcome(&bare), (400, "missing_token".into()), "{what}");
        for wrong in [&*of_job, "", "1", "AAAAAAAAAAAAAAAAAAAAAA"] {
            let fields = [TEXT, ("Job-Token", wrong)];
            let forged = server.send(&line, &fields, b"forged");
            assert_eq!(outcome(&forged), (403, "wrong_token".into()), "{what}");
        }
    }
    // The same for a job that is not there.
    let fields = [TEXT, ("Job-Token", "AAAAAAAAAAAAAAAAAAAAAA")];
    let unknown = server.send("POST /v1/pool/p/job/999/ack?attempt=1", &fields, b"");
    assert_eq!(outcome(&unknown), (403, "wrong_token".into()));
    server.call_as("anna");
    let line = format!("POST /v1/pool/p/job/{id}/ack?attempt=1");
    let done = server.send(&line, &[TEXT, ("Job-Token", &token)], b"done");
    assert_eq!(done.status, 204);
    server.call_as("operator");
    let results = json(&server.send("GET /v1/stream/pool/p/results", &[], b""));
    assert_eq!(
        (results.as_array().unwrap().len(), &results[0]["data"]),
        (1, &"done".into())
    );
    // With JSON the token is in the object.
    server.send("POST /v1/pool/p", &[TEXT], b"job");
    server.call_as("anna");
    let line = "POST /v1/pool/p/work?worker=anna";
    let got = server.send(line, &[("Accept", "application/json")], b"");
    let job = json(&got);
    let line = format!("POST /v1/pool/p/job/{}/extend?attempt=1", job["job"]);
    let token = job["token"].as_str().unwrap();
    assert_eq!(server.send(&line, &[("Job-Token", token)], b"").status, 200);
}

#[test]
fn a_poster_sees_the_jobs_whose_tokens_it_has() {
    let mut server = Server::guarded(&[
        ("operator", "create,read", "/v1/pool/p"),
        ("ann", "post", "/v1/pool/p"),
        ("bob", "post", "/v1/pool/p"),
    ]);
    server.call_as("operator");
    assert_eq!(server.send("PUT /v1/pool/p", &[], SETTINGS).status, 201);
    server.call_as("ann");
    let posted = server.send("POST /v1/pool/p", &[TEXT], b"job");
    let token = posted.field("Job-Token").unwrap().to_owned();
    assert_eq!(json(&posted)["token"], *token);
    let id = json(&posted)["job"].as_u64().unwrap();
    let line = format!("GET /v1/pool/p/job/{id}");
    let with = [("Job-Token", &*token)];
    let seen = server.send(&line, &with, b"");
    assert_eq!(
        (seen.status, &json(&seen)["state"]),
        (200, &"waiting".into())
    );
    server.call_as("bob");
    assert_eq!(server.send(&line, &[], b"").status, 404);
    let posted = server.send("POST /v1/pool/p", &[TEXT], b"another");
    let other = posted.field("Job-Token").unwrap().to_owned();
    for wrong in [&*other, "x"] {
        let said = server.send(&line, &[("Job-Token", wrong)], b"");
        assert_eq!(outcome(&said), (404, "unknown_job".into()));
    }
    // Who may read the pool sees all of them, and no token.
    server.call_as("operator");
    let seen = server.send(&line, &[], b"");
    assert_eq!(seen.status, 200);
    assert!(!seen.text().contains("token") && seen.field("Job-Token").is_none());
}

#[test]
fn without_access_control_a_number_is_enough() {
    let mut server = Server::default();
    assert_eq!(server.send("PUT /v1/pool/p", &[], SETTINGS).status, 201);
    let posted = server.send("POST /v1/pool/p", &[TEXT], b"job");
    let id = json(&posted)["job"].as_u64().unwrap();
    let line = "GET /v1/pool/p/work?worker=a&wait=5";
    assert_eq!(server.send(line, &[], b"").status, 200);
    let ack = format!("POST /v1/pool/p/job/{id}/ack?attempt=1");
    // A token that is sent must be right all the same.
    let wrong = server.send(&ack, &[TEXT, ("Job-Token", "AAAAAAAAAAAAAAAAAAAAAA")], b"");
    assert_eq!(outcome(&wrong), (403, "wrong_token".into()));
    assert_eq!(server.send(&ack, &[TEXT], b"done").status, 204);
    assert_eq!(
        send(&mut server, &format!("GET /v1/pool/p/job/{id}")).0,
        200
    );
}

#[test]
fn a_page_takes_no_job_by_an_image() {
    let mut server = Server::default();
    assert_eq!(server.send("PUT /v1/pool/p", &[], SETTINGS).status, 201);
    assert_eq!(server.send("POST /v1/pool/p", &[TEXT], b"job").status, 202);
    let line = "GET /v1/pool/p/work?worker=x&wait=0.1";
    let image = [
        ("Sec-Fetch-Mode", "no-cors"),
        ("Sec-Fetch-Site", "same-origin"),
    ];
    let foreign = [image[0], ("Sec-Fetch-Site", "cross-site")];
    let old = [("User-Agent", "Mozilla/5.0"), ("Accept", "image/*")];
    for (fields, code) in [(image, "use_post"), (old, "use_post"), (foreign, "origin")] {
        let said = server.send(line, &fields, b"");
        assert_eq!(outcome(&said), (403, code.into()));
    }
    let waiting = json(&server.send("GET /v1/pool/p", &[], b""));
    assert_eq!(waiting["waiting"], 1);
    // Programs, and scripts of allowed origins, still get jobs by GET; POST is the way for all.
    assert_eq!(
        server.send(line, &[("User-Agent", "curl/8")], b"").status,
        200
    );
}

#[test]
fn a_worker_is_replaced_by_its_own_caller_only() {
    let mut server = Server::guarded(&[
        ("maker", "create", "/v1/pool/**"),
        ("anna", "work", "/v1/pool/p"),
        ("mallory", "work", "/v1/pool/p"),
    ]);
    server.call_as("maker");
    assert_eq!(server.send("PUT /v1/pool/p", &[], SETTINGS).status, 201);
    let poll = "POST /v1/pool/p/work?worker=anna&wait=30";
    server.call_as("anna");
    let Reply::Asks(before) = server.reply(poll, &[], b"") else {
        panic!("it waits");
    };
    server.call_as("mallory");
    let refused = outcome(&server.send(poll, &[], b""));
    assert_eq!(refused, (409, "worker_connected".to_owned()));
    assert!(server.heard(before).is_empty(), "it still waits");
    server.call_as("anna");
    let Reply::Asks(_) = server.reply(poll, &[], b"") else {
        panic!("it waits");
    };
    assert_eq!(server.heard(before).len(), 1, "it was replaced");
}
