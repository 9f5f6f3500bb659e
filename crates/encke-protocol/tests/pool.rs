//! The pool protocol, request by request.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use encke_jobs::DispatchClient;
use encke_protocol::{Body, Response};
use serde_json::{Value, json};
use server::{Heard, Reply, Said, Server};

const TEXT: (&str, &str) = ("Content-Type", "text/plain");

fn with(settings: &str) -> Server {
    let mut server = Server::default();
    let made = server.send("PUT /v1/pool/p", &[], settings.as_bytes());
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(made.field("Location"), Some("/v1/pool/p"));
    server
}

fn json(said: &Said) -> Value {
    serde_json::from_slice(&said.body).unwrap()
}

fn post(server: &mut Server, target: &str, body: &str) -> u64 {
    let posted = server.send(&format!("POST {target}"), &[TEXT], body.as_bytes());
    assert_eq!(posted.status, 202, "{}", posted.text());
    let id = json(&posted)["job"].as_u64().unwrap();
    assert_eq!(posted.field("Job-Id"), Some(&*id.to_string()));
    let location = format!("/v1/pool/p/job/{id}");
    assert_eq!(posted.field("Location"), Some(&*location));
    id
}

/// Sends a request that must be refused with this status and code.
fn refused(server: &mut Server, line: &str, body: &str, status: u16, code: &str) {
    let said = server.send(line, &[], body.as_bytes());
    assert_eq!(
        (said.status, &*said.code()),
        (status, code),
        "{line} {body}"
    );
    assert_eq!(said.field("Retry-After").is_some(), status == 503, "{line}");
}

fn asks(server: &mut Server, line: &str, headers: &[(&str, &str)]) -> DispatchClient {
    match server.reply(line, headers, b"") {
        Reply::Asks(client) => client,
        Reply::Said(said) => panic!("{line}: {}", said.text()),
        _ => panic!("{line}"),
    }
}

/// Registers a worker over server-sent events, and checks the first events.
fn worker(server: &mut Server, name: &str) -> DispatchClient {
    let line = format!("POST /v1/pool/p/work?worker={name}");
    let client = asks(server, &line, &[("Accept", "*/*")]);
    let mut heard = server.heard(client).into_iter();
    let Some(Heard::Open(response)) = heard.next() else {
        panic!("a worker gets a response");
    };
    server.unhear(client, heard.collect());
    assert_eq!(response.status, 200);
    let Body::Open(first) = &response.body else {
        panic!("{response:?}");
    };
    let first = String::from_utf8(first.clone()).unwrap();
    assert!(
        first.contains("event: hired\ndata: {\"worker\":"),
        "{first}"
    );
    assert!(
        first.contains("event: registered\ndata: {\"worker\":"),
        "{first}"
    );
    client
}

/// The only response to a client.
fn answer(server: &mut Server, client: DispatchClient) -> Response {
    let mut heard = server.heard(client);
    match (heard.pop(), heard.len()) {
        (Some(Heard::Respond(response)), 0) => response,
        (last, before) => panic!("{last:?} after {before} others"),
    }
}

/// The jobs that a worker got.
fn jobs(server: &mut Server, client: DispatchClient) -> Vec<Value> {
    server.work();
    let sent = server.heard(client).into_iter().map(|saying| match saying {
        Heard::Send(bytes) => {
            let event = String::from_utf8(bytes).unwrap();
            let mut lines = event.strip_suffix("\n\n").unwrap().lines();
            assert_eq!(lines.next(), Some("event: job"));
            let id = lines.next().unwrap().strip_prefix("id: ").unwrap();
            let data = lines.next().unwrap().strip_prefix("data: ").unwrap();
            assert_eq!(lines.next(), None);
            let job: Value = serde_json::from_str(data).unwrap();
            assert_eq!(job["job"].to_string(), id);
            job
        }
        saying => panic!("{saying:?}"),
    });
    sent.collect()
}

#[test]
fn a_pool_is_made_once_and_shown() {
    let mut server = with(r#"{"type":"claim","attempts":2}"#);
    let again = server.send("PUT /v1/pool/p", &[], br#"{"type":"claim","attempts":2}"#);
    assert_eq!(again.status, 200);
    let other = server.send("PUT /v1/pool/p", &[], br#"{"type":"hash"}"#);
    assert_eq!((other.status, &*other.code()), (409, "config_differs"));
    let shown = json(&server.send("GET /v1/pool/p", &[], b""));
    assert_eq!(shown["settings"]["attempts"], 2);
    assert_eq!(shown["waiting"], 0);
    let list = json(&server.send("GET /v1/pool", &[], b""));
    assert_eq!(list, json!({"pools": [{"name": "p", "type": "claim"}]}));
    let gone = server.send("DELETE /v1/pool/p", &[], b"");
    assert_eq!(gone.status, 204);
    assert_eq!(server.send("GET /v1/pool/p", &[], b"").status, 404);
    // The name is free again, and the streams that all clients may read still exist.
    let made = server.send("PUT /v1/pool/p", &[], br#"{"type":"hash"}"#);
    assert_eq!(made.status, 201);
}

#[test]
fn the_age_of_the_oldest_job_is_in_the_json_of_the_pool() {
    let mut server = with(r#"{"type":"claim"}"#);
    let oldest_s = |server: &mut Server| {
        let shown = json(&server.send("GET /v1/pool/p", &[], b""));
        shown["oldest_s"].as_u64().unwrap()
    };
    assert_eq!(oldest_s(&mut server), 0);
    post(&mut server, "/v1/pool/p", "x");
    server.now_ms += 5_000;
    post(&mut server, "/v1/pool/p", "y");
    server.now_ms += 2_000;
    assert_eq!(oldest_s(&mut server), 7);
}

#[test]
fn a_location_is_absolute_if_the_client_names_the_host() {
    let mut server = Server::default();
    let host = [("Host", "h:1"), TEXT];
    let settings = br#"{"type":"claim"}"#;
    let made = server.send("PUT /v1/pool/a%20b", &host, settings);
    assert_eq!(made.field("Location"), Some("http://h:1/v1/pool/a%20b"));
    let posted = server.send("POST /v1/pool/a%20b", &host, b"x");
    let id = json(&posted)["job"].as_u64().unwrap();
    let location = format!("http://h:1/v1/pool/a%20b/job/{id}");
    assert_eq!(posted.field("Location"), Some(&*location));
    server.caller.tls = true;
    server.caller.host = Some("push.example");
    let posted = server.send("POST /v1/pool/a%20b", &host, b"x");
    let id = json(&posted)["job"].as_u64().unwrap();
    let location = format!("https://push.example/v1/pool/a%20b/job/{id}");
    assert_eq!(posted.field("Location"), Some(&*location));
}

#[test]
fn errors_name_what_is_wrong() {
    let mut server = with(r#"{"type":"direct","size":2,"job_bytes_max":5,"waiting_max":2}"#);
    let made = server.send("PUT /v1/pool/h", &[], br#"{"type":"hash"}"#);
    assert_eq!(made.status, 201);
    for (line, body, status, code) in [
        ("GET /v1/pool/none", "", 404, "unknown_pool"),
        ("POST /v1/pool/none", "x", 404, "unknown_pool"),
        ("PUT /v1/pool/q", "", 400, "bad_settings"),
        ("PUT /v1/pool/q", "{}", 400, "bad_settings"),
        ("PUT /v1/pool/q", r#"{"type":"fifo"}"#, 400, "bad_settings"),
        (
            "PUT /v1/pool/q",
            r#"{"type":"claim","x":1}"#,
            400,
            "bad_settings",
        ),
        (
            "PUT /v1/pool/q",
            r#"{"type":"claim","size":0}"#,
            400,
            "bad_settings",
        ),
        ("PUT /v1/pool/%00", r#"{"type":"claim"}"#, 400, "bad_path"),
        ("PUT /v1/pool/%2F", r#"{"type":"claim"}"#, 400, "bad_path"),
        ("PUT /v1/pool/%zz", r#"{"type":"claim"}"#, 400, "bad_path"),
        ("MOVE /v1/pool/p", "", 405, "method_not_allowed"),
        (
            "PUT /v1/pool/p/work?worker=a",
            "",
            405,
            "method_not_allowed",
        ),
        ("GET /v1/pool/p/else", "", 404, "not_found"),
        ("POST /v1/pool/p", "x", 400, "no_aim"),
        ("POST /v1/pool/p?slot=2", "x", 400, "out_of_range"),
        ("POST /v1/pool/p?slot=-1", "x", 400, "bad_query"),
        ("POST /v1/pool/p?slot=0&wait=301", "x", 400, "bad_query"),
        ("POST /v1/pool/p?slot=0&wait=soon", "x", 400, "bad_query"),
        (
            "POST /v1/pool/p?slot=0&priority=1",
            "x",
            400,
            "bad_parameter",
        ),
        ("POST /v1/pool/p?slot=0", "123456", 413, "too_large"),
        (
            "POST /v1/pool/p?slot=0&if=connected",
            "x",
            503,
            "nobody_connected",
        ),
        ("POST /v1/pool/h", "x", 400, "no_aim"),
        ("POST /v1/pool/p/work", "", 400, "missing_worker"),
        ("POST /v1/pool/p/work?worker=", "", 400, "bad_name"),
        (
            "POST /v1/pool/p/work?worker=a&slot=2",
            "",
            400,
            "out_of_range",
        ),
        ("GET /v1/pool/p/job/x", "", 400, "bad_job"),
        ("GET /v1/pool/p/job/999", "", 404, "unknown_job"),
        ("POST /v1/pool/p/job/9/ack", "", 400, "missing_attempt"),
        (
            "POST /v1/pool/p/job/999/ack?attempt=1",
            "",
            404,
            "unknown_job",
        ),
        ("DELETE /v1/pool/p/worker/a", "", 404, "unknown_worker"),
    ] {
        refused(&mut server, line, body, status, code);
    }
    post(&mut server, "/v1/pool/p?slot=0", "1");
    post(&mut server, "/v1/pool/p?slot=1", "2");
    refused(
        &mut server,
        "POST /v1/pool/p?slot=0",
        "3",
        503,
        "too_many_jobs",
    );
    refused(&mut server, "DELETE /v1/pool/p", "", 409, "pool_busy");
    assert_eq!(server.send("DELETE /v1/pool/p?force", &[], b"").status, 204);
}

#[test]
fn names_and_slots_are_one_workers() {
    let mut server = with(r#"{"type":"direct","size":2}"#);
    asks(&mut server, "POST /v1/pool/p/work?worker=a&slot=1", &[]);
    for (query, code) in [
        ("worker=a&slot=0", "name_taken"),
        ("worker=b&slot=1", "slot_taken"),
    ] {
        let line = format!("POST /v1/pool/p/work?{query}");
        refused(&mut server, &line, "", 409, code);
    }
    asks(&mut server, "POST /v1/pool/p/work?worker=b", &[]);
    refused(
        &mut server,
        "POST /v1/pool/p/work?worker=c",
        "",
        503,
        "full",
    );
    refused(
        &mut server,
        "DELETE /v1/pool/p/worker/a",
        "",
        409,
        "worker_connected",
    );
}

#[test]
fn a_worker_that_registers_again_takes_its_own_place() {
    let mut server = with(r#"{"type":"claim"}"#);
    // A worker that has vanished, which the server has not found out yet.
    let before = worker(&mut server, "anna");
    post(&mut server, "/v1/pool/p", "one");
    assert_eq!(jobs(&mut server, before).len(), 1);
    let after = worker(&mut server, "anna");
    let heard = server.heard(before);
    let [Heard::End(farewell)] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!(farewell, b"event: replaced\ndata: {}\n\n");
    // Two that run under one name do not take turns.
    let line = "POST /v1/pool/p/work?worker=anna";
    refused(&mut server, line, "", 409, "worker_connected");
    let got = jobs(&mut server, after);
    assert_eq!(
        (&got[0]["data"], &got[0]["attempt"]),
        (&json!("one"), &json!(2))
    );
    server.now_ms += 10_000;
    let again = worker(&mut server, "anna");
    assert!(matches!(server.heard(after).last(), Some(Heard::End(_))));
    let _ = again;

    // A poll of it as well.
    let poll = "POST /v1/pool/p/work?worker=bert&wait=30";
    let before = asks(&mut server, poll, &[]);
    let after = asks(&mut server, poll, &[]);
    let Some(Heard::Respond(response)) = server.heard(before).pop() else {
        panic!("the poll before gets a response");
    };
    let refused = server::said(response);
    assert_eq!((refused.status, &*refused.code()), (409, "worker_replaced"));
    post(&mut server, "/v1/pool/p", "two");
    assert_eq!(server.heard(after).len(), 1);
}

#[test]
fn a_claimed_worker_gets_one_job_at_a_time() {
    let mut server = with(r#"{"type":"claim"}"#);
    let first = post(&mut server, "/v1/pool/p", "one");
    let second = post(&mut server, "/v1/pool/p", "two");
    let anna = worker(&mut server, "anna");
    let got = jobs(&mut server, anna);
    assert_eq!(got.len(), 1);
    let job = &got[0];
    assert_eq!(
        (&job["job"], &job["attempt"], &job["data"], &job["type"]),
        (
            &json!(first),
            &json!(1),
            &json!("one"),
            &json!("text/plain")
        )
    );
    let shown = json(&server.send(&format!("GET /v1/pool/p/job/{first}"), &[], b""));
    assert_eq!(
        (&shown["state"], &shown["worker"]),
        (&json!("running"), &json!("anna"))
    );
    let ack = format!("POST /v1/pool/p/job/{first}/ack?attempt=1");
    assert_eq!(server.send(&ack, &[TEXT], b"done").status, 204);
    // Repeated, because the first response may have been lost.
    assert_eq!(server.send(&ack, &[TEXT], b"done").status, 204);
    refused(
        &mut server,
        &format!("POST /v1/pool/p/job/{first}/ack?attempt=2"),
        "",
        409,
        "attempt_over",
    );
    let shown = json(&server.send(&format!("GET /v1/pool/p/job/{first}"), &[], b""));
    assert_eq!(
        shown["result"],
        json!({"type": "text/plain", "data": "done"})
    );
    let next = jobs(&mut server, anna);
    assert_eq!((next.len(), &next[0]["job"]), (1, &json!(second)));
    let results = server.send("GET /v1/stream/pool/p/results?offset=-1", &[], b"");
    assert_eq!(json(&results)[0]["worker"], "anna");
}

#[test]
fn a_job_that_is_refused_goes_to_another_and_then_to_the_dead_letters() {
    let mut server = with(r#"{"type":"round_robin","attempts":2}"#);
    let id = post(&mut server, "/v1/pool/p", "job");
    let anna = worker(&mut server, "anna");
    assert_eq!(jobs(&mut server, anna)[0]["attempt"], 1);
    let bob = worker(&mut server, "bob");
    let refuse = |attempt| format!("POST /v1/pool/p/job/{id}/refuse?attempt={attempt}");
    let at_once = format!("{}&after=0", refuse(1));
    assert_eq!(server.send(&at_once, &[], b"no ink").status, 204);
    assert_eq!(jobs(&mut server, anna), Vec::<Value>::new());
    assert_eq!(jobs(&mut server, bob)[0]["attempt"], 2);
    refused(
        &mut server,
        &format!("POST /v1/pool/p/job/{id}/ack?attempt=1"),
        "",
        409,
        "attempt_over",
    );
    assert_eq!(server.send(&refuse(2), &[], b"no paper").status, 204);
    let dead = json(&server.send("GET /v1/stream/pool/p/dead?offset=-1", &[], b""));
    assert_eq!(dead[0]["job"], id);
    assert_eq!(dead[0]["reason"], "refused: no paper");
    assert_eq!(dead[0]["data"], "job");
    let shown = json(&server.send(&format!("GET /v1/pool/p/job/{id}"), &[], b""));
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&json!("dead"), &json!("refused: no paper"))
    );
}

#[test]
fn time_runs_out_unless_more_is_asked_for() {
    let mut server = with(r#"{"type":"claim","ack_ms":1000,"retry_ms":0}"#);
    let id = post(&mut server, "/v1/pool/p", "job");
    let anna = worker(&mut server, "anna");
    assert_eq!(jobs(&mut server, anna).len(), 1);
    server.now_ms += 900;
    let more = server.send(
        &format!("POST /v1/pool/p/job/{id}/extend?attempt=1&by=2"),
        &[],
        b"",
    );
    assert_eq!(json(&more)["deadline_ms"], server.now_ms + 2_000);
    server.now_ms += 1_900;
    assert_eq!(jobs(&mut server, anna).len(), 0);
    server.now_ms += 101;
    assert_eq!(jobs(&mut server, anna)[0]["attempt"], 2);
    let shown = json(&server.send("GET /v1/pool/p", &[], b""));
    assert_eq!(shown["retried"], 1);
}

#[test]
fn a_job_waits_after_each_failed_attempt() {
    let mut server = with(r#"{"type":"claim","ack_ms":1000,"retry_ms":1000,"attempts":4}"#);
    let id = post(&mut server, "/v1/pool/p", "job");
    let anna = worker(&mut server, "anna");
    assert_eq!(jobs(&mut server, anna)[0]["attempt"], 1);
    let describe = format!("GET /v1/pool/p/job/{id}");
    let refuse = |attempt| format!("POST /v1/pool/p/job/{id}/refuse?attempt={attempt}");

    // The backoff of the pool, up to half of which is taken off.
    assert_eq!(server.send(&refuse(1), &[], b"").status, 204);
    let shown = json(&server.send(&describe, &[], b""));
    assert_eq!(shown["state"], "waiting");
    let not_before_ms = shown["not_before_ms"].as_u64().unwrap();
    let delay_ms = not_before_ms - server.now_ms;
    assert!((500..=1_000).contains(&delay_ms), "{delay_ms}");
    assert_eq!(json(&server.send("GET /v1/pool/p", &[], b""))["waiting"], 1);
    refused(&mut server, &refuse(1), "", 409, "attempt_over");
    server.now_ms = not_before_ms - 1;
    assert_eq!(jobs(&mut server, anna).len(), 0);
    server.now_ms = not_before_ms;
    assert_eq!(jobs(&mut server, anna)[0]["attempt"], 2);

    // Another job is not held up, and the worker may ask for another delay.
    let other = post(&mut server, "/v1/pool/p", "other");
    let later = format!("{}&after=60.5", refuse(2));
    assert_eq!(server.send(&later, &[], b"").status, 204);
    assert_eq!(jobs(&mut server, anna)[0]["job"], other);
    let ack = format!("POST /v1/pool/p/job/{other}/ack?attempt=1");
    assert_eq!(server.send(&ack, &[], b"").status, 204);
    server.now_ms += 60_499;
    assert_eq!(jobs(&mut server, anna).len(), 0);
    server.now_ms += 1;
    assert_eq!(jobs(&mut server, anna)[0]["attempt"], 3);

    // An attempt that times out counts like one that is refused.
    server.now_ms += 1_000;
    assert_eq!(jobs(&mut server, anna).len(), 0);
    let shown = json(&server.send(&describe, &[], b""));
    let delay_ms = shown["not_before_ms"].as_u64().unwrap() - server.now_ms;
    assert!((2_000..=4_000).contains(&delay_ms), "{delay_ms}");
    server.now_ms += delay_ms;
    assert_eq!(jobs(&mut server, anna)[0]["attempt"], 4);
    let wrong = format!("{}&after=-1", refuse(4));
    refused(&mut server, &wrong, "", 400, "bad_query");
}

#[test]
fn a_result_is_waited_for() {
    let mut server = with(r#"{"type":"claim","attempts":1}"#);
    let anna = worker(&mut server, "anna");
    let asker = asks(&mut server, "POST /v1/pool/p?wait=5", &[TEXT]);
    let job = jobs(&mut server, anna).remove(0);
    let ack = format!("POST /v1/pool/p/job/{}/ack?attempt=1", job["job"]);
    assert_eq!(
        server
            .send(&ack, &[("Content-Type", "image/png")], b"\xff")
            .status,
        204
    );
    let response = answer(&mut server, asker);
    assert_eq!(
        (response.status, response.body.as_ref()),
        (200, &b"\xff"[..])
    );
    let fields = String::from_utf8_lossy(&response.fields);
    assert!(fields.contains("Content-Type: image/png\r\n"), "{fields}");
    // Too long.
    let asker = asks(&mut server, "POST /v1/pool/p?wait=5", &[TEXT]);
    server.now_ms += 5_000;
    server.work();
    let response = answer(&mut server, asker);
    assert_eq!(response.status, 202);
    // In vain.
    let refuse = format!(
        "POST /v1/pool/p/job/{}/refuse?attempt=1",
        jobs(&mut server, anna)[0]["job"]
    );
    assert_eq!(server.send(&refuse, &[], b"").status, 204);
    let asker = asks(&mut server, "POST /v1/pool/p?wait=5", &[TEXT]);
    let refuse = format!(
        "POST /v1/pool/p/job/{}/refuse?attempt=1",
        jobs(&mut server, anna)[0]["job"]
    );
    assert_eq!(server.send(&refuse, &[], b"no ink").status, 204);
    let response = answer(&mut server, asker);
    assert_eq!(response.status, 502);
    let why = String::from_utf8_lossy(response.body.as_ref());
    assert!(
        why.contains("given up; the last time: refused: no ink"),
        "{why}"
    );
}

#[test]
fn a_worker_may_ask_for_one_job_at_a_time() {
    let mut server = with(r#"{"type":"hash"}"#);
    let json_field = [("Accept", "application/json")];
    let poll = "POST /v1/pool/p/work?worker=a&wait=5";
    let waiting = asks(&mut server, poll, &json_field);
    server.now_ms += 5_000;
    server.work();
    assert_eq!(answer(&mut server, waiting).status, 204);
    post(&mut server, "/v1/pool/p?key=k%20", "x");
    let got = server.send(poll, &json_field, b"");
    assert_eq!(
        (&json(&got)["key"], &json(&got)["data"]),
        (&json!("k "), &json!("x"))
    );
    let id = post(&mut server, "/v1/pool/p?key=k", "\u{e4}");
    let got = server.send(poll, &[], b"");
    assert_eq!((got.status, got.text()), (200, "\u{e4}"));
    assert_eq!(got.field("Content-Type"), Some("text/plain"));
    assert_eq!(got.field("Job-Id"), Some(&*id.to_string()));
    assert_eq!(got.field("Job-Attempt"), Some("1"));
    assert_eq!(got.field("Job-Key"), Some("k"));
    let deadline = (server.now_ms + 30_000).to_string();
    assert_eq!(got.field("Job-Deadline"), Some(&*deadline));
}

#[test]
fn the_server_says_goodbye() {
    let mut server = with(r#"{"type":"claim"}"#);
    let anna = worker(&mut server, "anna");
    let poll = asks(&mut server, "POST /v1/pool/p/work?worker=b&wait=5", &[]);
    server.jobs.stop(server.now());
    server.work();
    let heard = server.heard(anna);
    assert!(
        matches!(&heard[..], [Heard::End(bytes)] if bytes.starts_with(b"event: stopping\n")),
        "{heard:?}"
    );
    assert_eq!(answer(&mut server, poll).status, 503);
    refused(&mut server, "POST /v1/pool/p", "x", 503, "stopping");
}

#[test]
fn a_request_has_the_parameters_of_its_kind() {
    let mut server = with(r#"{"type":"claim"}"#);
    for (line, parameters) in [
        ("POST /v1/pool/p?ky=a", "did you mean \"key\"?"),
        (
            "POST /v1/pool/p?after=9",
            "the parameters are key, slot, wait, if",
        ),
        ("DELETE /v1/pool/p?wait=1", "the parameters are force"),
        (
            "POST /v1/pool/p/work?worker=a&key=b",
            "the parameters are worker, slot, wait",
        ),
        (
            "POST /v1/pool/p/job/1/ack?attempt=1&by=9",
            "the parameters are attempt",
        ),
        (
            "POST /v1/pool/p/job/1/refuse?attempt=1&wait=9",
            "the parameters are attempt, after",
        ),
        (
            "POST /v1/pool/p/job/1/extend?attempt=1&wait=9",
            "the parameters are attempt, by",
        ),
        ("GET /v1/pool/p?wait=1", "there are no parameters here"),
    ] {
        let said = server.send(line, &[], b"");
        assert_eq!(
            (said.status, &*said.code()),
            (400, "bad_parameter"),
            "{line}"
        );
        let shown = said.text().replace('\\', "");
        assert!(shown.contains(parameters), "{line}: {shown}");
    }
    // What a client of events adds by itself is no error.
    asks(
        &mut server,
        "GET /v1/pool/p/work?worker=a&lastEventId=7",
        &[("Sec-Fetch-Dest", "empty")],
    );
}

#[test]
fn settings_change_while_the_pool_exists() {
    let mut server = with(r#"{"type":"claim","events":false}"#);
    let mut change = |body: &str| {
        let said = server.send("PATCH /v1/pool/p", &[], body.as_bytes());
        (said.status, json(&said))
    };
    let (status, shown) = change(r#"{"ack_ms":60000,"attempts":9,"events":true}"#);
    assert_eq!(status, 200, "{shown}");
    let settings = &shown["settings"];
    assert_eq!(
        (&settings["ack_ms"], &settings["attempts"]),
        (&json!(60_000), &json!(9))
    );
    assert_eq!(
        (&settings["type"], &settings["retry_ms"]),
        (&json!("claim"), &json!(1_000))
    );
    let (status, refused) = change(r#"{"ack_ms":1,"attempts":2}"#);
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("bad_settings"))
    );
    let (status, refused) = change(r#"{"in_flight":5}"#);
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("bad_settings"))
    );
    let (status, refused) = change(r#"{"type":"hash"}"#);
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("bad_settings"))
    );
    let shown = json(&server.send("GET /v1/pool/p", &[], b""));
    assert_eq!(
        shown["settings"]["attempts"],
        json!(9),
        "nothing has changed"
    );
    // The stream of events is there at once.
    let events = server.send("GET /v1/stream/pool/p/events?offset=-1", &[], b"");
    assert_eq!(events.status, 200);
    // To create it with other settings is refused, with how to change them.
    let said = server.send("PUT /v1/pool/p", &[], br#"{"type":"claim","ack_ms":60000}"#);
    assert_eq!((said.status, &*said.code()), (409, "config_differs"));
    assert!(said.text().contains("PATCH changes it"), "{}", said.text());
    let said = server.send("PATCH /v1/pool/q", &[], b"{\"attempts\":2}");
    assert_eq!((said.status, &*said.code()), (404, "unknown_pool"));
}

#[test]
fn a_paused_pool_accepts_jobs_and_gives_none() {
    let mut server = with(r#"{"type":"round_robin"}"#);
    let anna = worker(&mut server, "anna");
    let first = post(&mut server, "/v1/pool/p", "before");
    assert_eq!(jobs(&mut server, anna).len(), 1);
    let pause = |server: &mut Server, paused: &str| {
        let body = format!(r#"{{"paused":{paused}}}"#);
        let said = server.send("PATCH /v1/pool/p", &[], body.as_bytes());
        (said.status, json(&said))
    };
    assert_eq!(pause(&mut server, "true").1["settings"]["paused"], true);
    post(&mut server, "/v1/pool/p", "later");
    assert_eq!(jobs(&mut server, anna).len(), 0);
    // What runs goes on, and ends.
    let ack = format!("POST /v1/pool/p/job/{first}/ack?attempt=1");
    assert_eq!(server.send(&ack, &[], b"").status, 204);
    let shown = json(&server.send("GET /v1/pool/p", &[], b""));
    assert_eq!((&shown["waiting"], &shown["done"]), (&json!(1), &json!(1)));
    // A client that creates its pool at its start is not refused because of it, and does not resume it.
    let again = server.send("PUT /v1/pool/p", &[], br#"{"type":"round_robin"}"#);
    assert_eq!(again.status, 200);
    assert_eq!(jobs(&mut server, anna).len(), 0);
    let (status, refused) = pause(&mut server, "1");
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("bad_settings"))
    );
    assert_eq!(pause(&mut server, "false").1["settings"]["paused"], false);
    assert_eq!(jobs(&mut server, anna).len(), 1);
}
