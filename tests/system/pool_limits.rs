//! Bounds of pools, each reached by requests.

use crate::rig::{Connection, Encke, Response, eventually, request};

/// The answer to a request that is repeated for as long as the mailbox of the pools is full.
fn ask_until_taken(encke: &Encke, method: &str, body: &[u8]) -> Response {
    let mut answer = None;
    eventually("the mailbox of the pools has room", || {
        let last = answer.insert(encke.ask(method, "/v1/pool/p", &[], body));
        let full = last.status == 503;
        if full {
            assert_eq!(last.error_code(), "overloaded", "{last:?}");
        }
        !full
    });
    answer.expect("one was accepted")
}

fn make(encke: &Encke) {
    let made = ask_until_taken(encke, "PUT", br#"{"type":"claim"}"#);
    assert_eq!(made.status, 201, "{made:?}");
}

fn shown(encke: &Encke) -> serde_json::Value {
    let shown = ask_until_taken(encke, "GET", b"");
    assert_eq!(shown.status, 200, "{shown:?}");
    serde_json::from_slice(&shown.body).expect("JSON")
}

#[test]
fn jobs_that_are_over_are_forgotten_in_order() {
    let encke = Encke::start(&["--tuning", "pool-finished-max=2"]);
    make(&encke);
    let mut jobs = Vec::new();
    for _ in 0..3 {
        assert_eq!(encke.ask("POST", "/v1/pool/p", &[], b"x").status, 202);
        let got = encke.ask("POST", "/v1/pool/p/work?worker=a&wait=20", &[], b"");
        let job = format!("/v1/pool/p/job/{}", got.field("Job-Id").expect("a job"));
        let ack = format!("{job}/ack?attempt=1");
        assert_eq!(encke.ask("POST", &ack, &[], b"").status, 204);
        jobs.push(job);
    }
    let status = |job: &String| encke.ask("GET", job, &[], b"").status;
    assert_eq!(jobs.iter().map(status).collect::<Vec<_>>(), [404, 200, 200]);
    assert_eq!(encke.refused("404"), 1);
    assert_eq!(encke.messages("pool/p/results").len(), 3);
}

#[test]
fn waits_are_bounded() {
    let encke = Encke::start(&["--tuning", "pool-wait-max=1s"]);
    make(&encke);
    let work = |wait| {
        let target = format!("/v1/pool/p/work?worker=a&wait={wait}");
        encke.ask("GET", &target, &[], b"")
    };
    assert_eq!(work("1").status, 204);
    let refused = work("1.1");
    assert_eq!((refused.status, &*refused.error_code()), (400, "bad_query"));
    let refused = encke.ask("POST", "/v1/pool/p?wait=2", &[], b"x");
    assert_eq!((refused.status, &*refused.error_code()), (400, "bad_query"));
    assert_eq!(shown(&encke)["waiting"], 0);
    assert_eq!(encke.refused("400"), 2);
}

/// Many clients post at once, until one is refused because the dispatcher's mailbox is full; exactly the accepted jobs exist.
fn many_clients(flags: &[&str], job_bytes: usize) {
    let encke = Encke::start(&[flags, &["--shards", "1"]].concat());
    make(&encke);
    // The mailbox may have refused the set-up, too.
    let refused_before = encke.refused("503");
    let mut clients: Vec<Connection> = (0..100).map(|_| encke.connect()).collect();
    let job = request("POST", "/v1/pool/p", &[], &vec![b'x'; job_bytes]);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..50 {
        for one in &mut clients {
            one.send(&job);
        }
        for one in &mut clients {
            let answer = one.answer();
            match answer.status {
                202 => accepted += 1,
                503 => {
                    assert!(answer.field("Retry-After").is_some(), "{answer:?}");
                    refused += 1;
                }
                _ => panic!("{answer:?}"),
            }
        }
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "no request was refused");
    assert_eq!(encke.refused("503"), refused_before + refused);
    assert_eq!(shown(&encke)["waiting"], accepted);
    let later = ask_until_taken(&encke, "POST", b"x");
    assert_eq!(later.status, 202, "{later:?}");
}

#[test]
fn requests_that_wait_for_the_pools_are_so_many() {
    many_clients(&["--tuning", "pool-mailbox-items=1"], 1);
}

#[test]
fn requests_that_wait_for_the_pools_weigh_so_much() {
    many_clients(
        &["--tuning", "pool-mailbox-size=64KiB", "--body-max", "32KiB"],
        30 << 10,
    );
}

#[test]
fn results_that_a_record_hardly_takes_are_there() {
    let small = ["--segment", "1MiB", "--body-max", "500KiB"];
    let encke = Encke::start(&small);
    make(&encke);
    let text = ["Content-Type: text/plain"];
    for _ in 0..3 {
        assert_eq!(encke.ask("POST", "/v1/pool/p", &[], b"x").status, 202);
        let got = encke.ask("POST", "/v1/pool/p/work?worker=a&wait=20", &[], b"");
        let job = got.field("Job-Id").expect("a job");
        let ack = format!("/v1/pool/p/job/{job}/ack?attempt=1");
        // As a string of JSON it would be six times as long.
        let done = encke.ask("POST", &ack, &text, &vec![1; 500 << 10]);
        assert_eq!(done.status, 204, "{done:?}");
    }
    assert_eq!(encke.messages("pool/p/results").len(), 3);
}
