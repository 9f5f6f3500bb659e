//! What callers may do, and what is concealed from them.

use super::{API_KEY, Guarded, bearer};
use crate::rig::request;

#[test]
fn a_caller_may_do_what_it_was_granted_and_learns_of_nothing_else() {
    let guarded = Guarded::start(&[]);
    let backend = bearer(API_KEY);
    for stream in ["public/news", "chat/ann/inbox", "chat/bob/inbox"] {
        let path = format!("/v1/stream/{stream}");
        guarded.create(&path, b"[]");
    }
    let ann = guarded.allowed("ann", "read,append=/v1/stream/chat/{sub}/**");
    let cases: &[(&str, &str, &str, u16, &str)] = &[
        ("GET", "/v1/stream/chat/ann/inbox", &ann, 200, ""),
        ("POST", "/v1/stream/chat/ann/inbox", &ann, 204, ""),
        (
            "DELETE",
            "/v1/stream/chat/ann/inbox",
            &ann,
            403,
            "forbidden",
        ),
        ("PUT", "/v1/stream/chat/ann/new", &ann, 403, "forbidden"),
        // The same whether a stream is there or not.
        ("GET", "/v1/stream/chat/bob/inbox", &ann, 404, "not_found"),
        ("GET", "/v1/stream/chat/bob/other", &ann, 404, "not_found"),
        ("POST", "/v1/stream/chat/bob/inbox", &ann, 404, "not_found"),
        (
            "GET",
            "/v1/events?stream=chat/bob/inbox",
            &ann,
            404,
            "not_found",
        ),
        (
            "GET",
            "/v1/events?stream=chat/bob/other",
            &ann,
            404,
            "not_found",
        ),
        ("GET", "/v1/events?stream=chat/**", &ann, 404, "not_found"),
        ("GET", "/v1/events?stream=**", &ann, 404, "not_found"),
        ("GET", "/v1/stream/public/news", "", 200, ""),
        (
            "GET",
            "/v1/stream/chat/ann/inbox",
            "",
            401,
            "no_credentials",
        ),
        (
            "GET",
            "/v1/stream/chat/ann/other",
            "",
            401,
            "no_credentials",
        ),
        ("POST", "/v1/stream/public/news", "", 401, "no_credentials"),
        ("GET", "/v1/pool", &ann, 404, "not_found"),
        ("GET", "/metrics", &ann, 404, "not_found"),
        ("GET", "/metrics", "", 401, "no_credentials"),
        ("GET", "/metrics", &backend, 200, ""),
        ("GET", "/healthz", "", 200, ""),
        ("GET", "/readyz", "", 200, ""),
        ("GET", "/", "", 200, ""),
    ];
    for (method, path, credentials, status, code) in cases {
        let answer = guarded.ask(method, path, credentials, b"[1]");
        let line = format!("{method} {path} {credentials}");
        assert_eq!(answer, (*status, (*code).to_owned()), "{line}");
    }
    // Concealed and missing streams have one answer, to the byte.
    let missing = |stream: &str, credentials: &str| {
        let path = format!("/v1/stream/chat/{stream}");
        let response = guarded.encke.ask("GET", &path, &[credentials], b"");
        (response.status, response.body)
    };
    assert_eq!(missing("bob/inbox", &ann), missing("ann/none", &ann));
    // The source of a fork is read.
    let source = "Stream-Forked-From: /v1/stream/chat/bob/inbox";
    let fields = [
        source,
        &guarded.allowed("ann", "read,create=/v1/stream/chat/{sub}/**"),
    ];
    let fork = guarded
        .encke
        .ask("PUT", "/v1/stream/chat/ann/fork", &fields, b"");
    assert_eq!(
        (fork.status, &*fork.error_code()),
        (404, "source_not_found")
    );
}

#[test]
fn paths_that_differ_in_form_only_are_one_path_or_refused() {
    let guarded = Guarded::start(&[]);
    let backend = bearer(API_KEY);
    guarded.create("/v1/stream/secret/a", b"[1]");
    let public = guarded.allowed("ann", "read=/v1/stream/public/**");
    for path in [
        "/v1/stream/secret/a",
        "/v1/stream/secret%2Fa",
        "/v1/%73tream/secret/a",
        "/%76%31/stream/%73ecret/a",
        "/v1/stream/public/../secret/a",
        "/v1/stream/public/%2e%2e/secret/a",
        "/v1/stream/public/.%2E/secret/a",
        "/v1/stream/public/./../secret/a",
        "/v1/stream/public//secret/a",
        "/v1/stream//secret/a",
        "//v1/stream/secret/a",
        "/v1/stream/secret/a/",
        "/v1/stream/secret/a%2F",
        "/v1/stream/public%2F..%2Fsecret/a",
        "/v1/stream/public%252F..%252Fsecret/a",
        "/v1/stream/secret/%61%00",
    ] {
        let (status, code) = guarded.ask("GET", path, &public, b"");
        assert!(matches!(status, 400 | 404), "{path}: {status} {code}");
        // A caller that may read everything gets the stream by each form that is not refused.
        let (all, _) = guarded.ask("GET", path, &backend, b"");
        assert!(
            matches!((status, all), (400, 400) | (404, 200 | 404)),
            "{path}: {status} {all}"
        );
    }
    assert_eq!(
        guarded
            .ask("GET", "/v1/%73tream/secret%2Fa", &backend, b"")
            .0,
        200
    );
}

#[test]
fn a_subscriber_by_pattern_needs_all_that_the_pattern_matches() {
    let guarded = Guarded::start(&[]);
    let backend = bearer(API_KEY);
    guarded.create("/v1/stream/chat/ann/inbox", b"[]");
    let ann = guarded.allowed("ann", "read=/v1/stream/chat/{sub}/**");
    let mut connection = guarded.encke.connect();
    let target = "/v1/events?stream=chat/ann/**";
    connection.send(&request("GET", target, &[&ann], b""));
    assert_eq!(connection.head().status, 200);
    assert_eq!(
        guarded
            .ask("POST", "/v1/stream/chat/ann/inbox", &backend, b"[7]")
            .0,
        204
    );
    let has = |input: &[u8]| input.windows(14).any(|part| part == b"\"messages\":[7]");
    while !has(connection.input()) {
        assert!(connection.fill(), "the subscription was closed");
    }
}
