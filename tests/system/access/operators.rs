//! The operators' address, the audit log, and addresses that other machines reach.

use std::io::{Read, Write};

use serde_json::{Value, json};

use super::{Guarded, bearer, configuration};
use crate::rig::{
    Connection, Encke, Ended, JSON, connect_from, data_dir, eventually, request, serve_on,
};

#[test]
fn operators_have_an_address_of_their_own_and_every_refusal_has_a_line() {
    let audit = data_dir();
    let file = audit.path().join("audit.jsonl");
    let option = format!("audit-log-file={}", file.display());
    let mut guarded = Guarded::start(&["--tuning", &option, "--access-log", "json"]);
    let operator = |method: &str, path: &str| {
        Connection::open(guarded.operators)
            .ask(method, path, &[], b"")
            .status
    };
    assert_eq!(operator("GET", "/metrics"), 200);
    assert_eq!(operator("GET", "/readyz"), 200);
    // Who reaches the address has no right to what is stored.
    assert_eq!(operator("PUT", "/v1/stream/a"), 401);
    assert_eq!(operator("GET", "/v1/events?stream=a"), 404);
    let token = guarded.token_of("ann", "read=/v1/stream/a");
    assert_eq!(
        guarded
            .ask("GET", "/v1/stream/b?x=private", &bearer(&token), b"")
            .0,
        404
    );
    assert_eq!(
        guarded
            .ask("GET", "/v1/stream/b", "Authorization: Bearer nonsense", b"")
            .0,
        401
    );
    let target = "/v1/stream/a?expires=1&kid=links&signature=c2lnbmF0dXJl";
    assert_eq!(guarded.ask("GET", target, "", b"").0, 401);
    let body = json!({ "jti": "x" }).to_string();
    let mut connection = Connection::open(guarded.operators);
    assert_eq!(
        connection
            .ask("POST", "/v1/admin/revoke", &[JSON], body.as_bytes())
            .status,
        204
    );
    let lines = || std::fs::read_to_string(&file).unwrap_or_default();
    eventually("all lines are written", || lines().lines().count() >= 6);
    let text = lines();
    let read: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let has = |reason: &str, caller: Value, path: &str| {
        read.iter().any(|line| {
            line["reason"] == reason && line["caller"] == caller && line["path"] == path
        })
    };
    assert!(has("concealed", json!("ann"), "/v1/stream/b"), "{text}");
    assert!(
        has("revoke", json!("operator"), "/v1/admin/revoke"),
        "{text}"
    );
    assert!(
        read.iter().all(|line| line["client"] == "127.0.0.1"),
        "{text}"
    );
    let mut stdout = String::new();
    guarded.encke.signal(rustix::process::Signal::TERM);
    guarded
        .stdout
        .read_to_string(&mut stdout)
        .expect("it prints text");
    let log = guarded.encke.log();
    for secret in [&*token, "nonsense", "c2lnbmF0dXJl", "private"] {
        assert!(!text.contains(secret), "the audit log holds {secret}");
        assert!(!log.contains(secret), "the log holds {secret}");
        // The access log has queries, but no credentials.
        assert!(
            secret == "private" || !stdout.contains(secret),
            "the access log holds {secret}"
        );
    }
}

#[test]
fn refusals_that_repeat_have_one_line_and_their_number() {
    let audit = data_dir();
    let file = audit.path().join("audit.jsonl");
    let option = format!("audit-log-file={}", file.display());
    let guarded = Guarded::start(&["--tuning", &option]);
    let mut connection = guarded.encke.connect();
    let one = request("GET", "/v1/stream/a", &["Authorization: Bearer x"], b"");
    for _ in 0..50 {
        connection.send(&one.repeat(100));
        for _ in 0..100 {
            assert_eq!(connection.answer().status, 401);
        }
    }
    let ended = guarded.encke.terminate();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = std::fs::read_to_string(&file).expect("the log is there");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let told = lines
        .iter()
        .map(|line| line["repeated"].as_u64().unwrap_or(1));
    assert_eq!(told.sum::<u64>(), 5_000, "{text}");
    // One at once, then one for each interval and one at the end, however long all that took.
    assert!(lines.len() < 100, "{} lines", lines.len());
}

#[test]
fn clients_of_a_proxy_are_no_operators() {
    let encke = Encke::start(&["--trust", "127.0.0.9"]);
    let ask = |client: u8, fields: &[&str]| {
        let mut connection = encke.connect_from(client);
        connection.ask("GET", "/metrics", fields, b"").status
    };
    assert_eq!(ask(2, &[]), 200);
    assert_eq!(
        ask(2, &["X-Forwarded-For: 192.0.2.1"]),
        200,
        "only a trusted proxy names the client"
    );
    assert_eq!(ask(9, &["X-Forwarded-For: 192.0.2.1"]), 403);
}

#[test]
fn an_address_that_others_reach_needs_access_control_or_a_word() {
    let data = data_dir();
    let ended = Ended::of(&mut serve_on("0.0.0.0:0", data.path(), &[]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.stderr.contains("[access]") && ended.stderr.contains("--open"),
        "{ended:?}"
    );
    // Open to all, but for operators.
    let flags = ["--open", "--admin-listen", "none"];
    let encke = Encke::start_by(&mut serve_on("0.0.0.0:0", data.path(), &flags));
    let mut connection = Connection::open(([127, 0, 0, 1], encke.address.port()).into());
    assert_eq!(connection.ask("GET", "/metrics", &[], b"").status, 403);
    assert_eq!(connection.ask("PUT", "/v1/stream/a", &[], b"").status, 201);
    let config = data.path().join("encke.toml");
    std::fs::write(&config, configuration()).expect("a file is written");
    let config = config.to_str().expect("the path is text");
    let other = data_dir();
    let flags = ["--config", config, "--admin-listen", "none"];
    let guarded = Encke::start_by(&mut serve_on("0.0.0.0:0", other.path(), &flags));
    let mut connection = Connection::open(([127, 0, 0, 1], guarded.address.port()).into());
    let answer = connection.ask("GET", "/v1/stream/public/x", &[], b"");
    assert_eq!(answer.status, 404);
}

#[test]
fn idle_connections_keep_no_operator_out() {
    let guarded = Guarded::start(&[]);
    let asks = |client: u8| {
        let mut connection = Connection::open_from(client, guarded.operators);
        let status = connection.ask("GET", "/metrics", &[], b"").status;
        (connection, status)
    };
    let (mut other, status) = asks(3);
    assert_eq!(status, 200);
    // Nothing, half a request, and whole requests whose responses are not read.
    let beginnings: [&[u8]; 3] = [
        b"",
        b"GET /metrics HTTP/1.1\r\n",
        &b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50),
    ];
    let mut idle = Vec::new();
    for beginning in beginnings {
        for _ in 0..70 {
            let mut socket = connect_from(2, guarded.operators);
            // The server may have closed it for those that came behind it.
            let _ = socket.write_all(beginning);
            idle.push(socket);
        }
        // From the same address, and from another one.
        for client in [2, 4] {
            assert_eq!(asks(client).1, 200);
        }
    }
    let lost = r#"encke_connections_closed_total{reason="operator_places"}"#;
    let shown = other.ask("GET", "/metrics", &[], b"");
    assert_eq!(shown.status, 200, "another address keeps its connection");
    let shown = String::from_utf8(shown.body).expect("text");
    let lost = shown.lines().find_map(|line| line.strip_prefix(lost));
    let lost: u32 = lost.expect("it is shown").trim().parse().expect("a number");
    // Of 210 and a few more the address has 48.
    assert!(lost >= 162, "{lost}");
    drop(idle);
}

#[test]
fn what_is_stored_needs_the_same_grants_at_both_addresses_and_changes_have_lines() {
    let audit = data_dir();
    let file = audit.path().join("audit.jsonl");
    let option = format!("audit-log-file={}", file.display());
    let guarded = Guarded::start(&["--tuning", &option]);
    guarded.create("/v1/stream/a", b"\"private\"");
    let mut operator = Connection::open(guarded.operators);
    let mut ask = |line: (&str, &str), fields: &[&str]| {
        let fields = [&[JSON], fields].concat();
        let response = operator.ask(line.0, line.1, &fields, b"");
        (
            response.status,
            match response.status {
                ..400 => String::new(),
                _ => response.error_code(),
            },
        )
    };
    let reader = bearer(&guarded.token_of("reader", "read=/v1/stream/**"));
    let writer = bearer(&guarded.token_of("writer", "delete,own=/v1/stream/**"));
    for (line, fields, status, code) in [
        (("GET", "/v1/stream/a"), &[][..], 401, "no_credentials"),
        (("GET", "/v1/pool"), &[], 401, "no_credentials"),
        (("GET", "/v1/stream/a"), &[&*reader], 200, ""),
        (("DELETE", "/v1/stream/a"), &[&*reader], 403, "forbidden"),
        (
            ("DELETE", "/v1/stream/a"),
            &["Authorization: Bearer x"],
            401,
            "unknown_api_key",
        ),
        // Pages of other sites change nothing, whatever they bring.
        (
            ("DELETE", "/v1/stream/a"),
            &[&*writer, "Origin: https://evil.example"],
            403,
            "origin",
        ),
        (
            ("DELETE", "/v1/stream/a"),
            &[&*writer, "Sec-Fetch-Site: cross-site"],
            403,
            "origin",
        ),
        (
            ("POST", "/v1/admin/connections/close"),
            &["Origin: https://evil.example"],
            403,
            "origin",
        ),
        (("DELETE", "/v1/stream/a"), &[&*writer], 204, ""),
    ] {
        assert_eq!(
            ask(line, fields),
            (status, code.to_owned()),
            "{line:?} {fields:?}"
        );
    }
    // What needs no grant looks at no credentials: a scraper may send some that are for something else.
    assert_eq!(
        ask(("GET", "/metrics"), &["Authorization: Bearer x"]).0,
        200
    );
    assert_eq!(ask(("GET", "/v1/admin/overview"), &[]).0, 200);
    let lines = || std::fs::read_to_string(&file).unwrap_or_default();
    eventually("the change has a line", || lines().contains("\"change\""));
    let text = lines();
    let line = text.lines().find(|line| line.contains("\"change\""));
    let line: Value = serde_json::from_str(line.expect("a line")).expect("JSON");
    assert_eq!(line["caller"], "writer");
    assert_eq!(
        (&line["method"], &line["status"]),
        (&json!("DELETE"), &json!(204))
    );
    assert_eq!(line["path"], "/v1/stream/a");
    // The last refusals are told with their reasons, and hold no credential.
    let told = guarded.encke.ask(
        "GET",
        "/v1/admin/refusals",
        &[&guarded.allowed("op", "admin=/**")],
        b"",
    );
    let told = String::from_utf8(told.body).expect("text");
    for reason in ["no_credentials", "forbidden", "origin"] {
        assert!(told.contains(&format!("\"reason\":\"{reason}\"")), "{told}");
    }
}

#[test]
fn an_explanation_is_that_of_the_running_server_and_is_counted_as_no_refusal() {
    let guarded = Guarded::start(&[]);
    let admin = guarded.allowed("op", "admin=/**");
    let token = guarded.token_of("ann", "read=/v1/stream/a/**");
    let explain = |token: &str, method: &str, path: &str| {
        let body = json!({ "token": token, "method": method, "path": path }).to_string();
        let fields = [JSON, &admin];
        let response = guarded
            .encke
            .ask("POST", "/v1/admin/explain", &fields, body.as_bytes());
        assert_eq!(response.status, 200);
        let read: Value = serde_json::from_slice(&response.body).expect("JSON");
        (
            read["allowed"].clone(),
            read["text"].as_str().expect("a text").to_owned(),
        )
    };
    let (allowed, text) = explain(&token, "GET", "/v1/stream/a/b");
    assert_eq!(allowed, true, "{text}");
    assert!(
        text.contains("caller: ann") && text.contains("allowed: read on"),
        "{text}"
    );
    let (allowed, text) = explain(&token, "DELETE", "/v1/stream/a/b");
    assert_eq!(allowed, false);
    assert!(
        text.contains("refused: no grant of the caller allows delete"),
        "{text}"
    );
    let denied = || {
        let mut operator = Connection::open(guarded.operators);
        let metrics = operator.ask("GET", "/metrics", &[], b"").body;
        let text = String::from_utf8(metrics).expect("metrics are text");
        let lines = text
            .lines()
            .filter(|line| line.starts_with("encke_access_denied_total"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = denied();
    let (allowed, text) = explain("nonsense", "GET", "/");
    assert_eq!(allowed, false);
    assert!(
        text.starts_with("refused: the credential is no JSON Web Token"),
        "{text}"
    );
    assert_eq!(denied(), before);
    // Revocations are those of the server, which the command does not know.
    let body = json!({ "sub": "ann" }).to_string();
    let fields = [JSON, &*admin];
    let revoked = guarded
        .encke
        .ask("POST", "/v1/admin/revoke", &fields, body.as_bytes());
    assert_eq!(revoked.status, 204);
    assert!(
        explain(&token, "GET", "/v1/stream/a/b")
            .1
            .contains("revoked")
    );
    let reader = guarded.allowed("reader", "read=/**");
    assert_eq!(
        guarded.ask("GET", "/v1/admin/overview", &reader, b""),
        (403, "forbidden".into())
    );
    assert_eq!(
        guarded.ask("GET", "/v1/admin/overview", "", b""),
        (401, "no_credentials".into())
    );
}

#[test]
fn the_access_log_names_the_caller() {
    let folder = data_dir();
    for format in ["json", "combined"] {
        let file = folder.path().join(format);
        let option = format!("access-log-file={}", file.display());
        let guarded = Guarded::start(&["--access-log", format, "--tuning", &option]);
        let name = "ann \"a\" - \u{e4}";
        let token = bearer(&guarded.token_of(name, "read=/v1/stream/**"));
        let long = bearer(&guarded.token_of(&"x".repeat(400), "read=/v1/stream/**"));
        for credentials in [&*token, &long, "Authorization: Bearer x", ""] {
            guarded.ask("GET", "/v1/stream/a", credentials, b"");
        }
        let lines = || std::fs::read_to_string(&file).unwrap_or_default();
        eventually("all lines are written", || lines().lines().count() >= 4);
        let text = lines();
        assert!(!text.contains(token.split(' ').nth(2).expect("a token")));
        let cut = format!("{}...", "x".repeat(253));
        match format {
            "json" => {
                let callers = text.lines().map(|line| {
                    let line: Value = serde_json::from_str(line).expect("JSON");
                    line["caller"].clone()
                });
                let mut callers: Vec<_> = callers.collect();
                callers.sort_by_key(ToString::to_string);
                assert_eq!(
                    callers,
                    [json!(name), json!("anonymous"), json!(cut), json!(null)]
                );
            }
            _ => {
                let escaped = r"127.0.0.1 - ann\x20\x22a\x22\x20-\x20\xC3\xA4 [";
                assert!(text.contains(escaped), "{text}");
                assert!(text.contains(&format!("127.0.0.1 - {cut} [")), "{text}");
                assert_eq!(text.matches("127.0.0.1 - - [").count(), 1, "{text}");
                assert!(text.contains("127.0.0.1 - anonymous ["), "{text}");
            }
        }
    }
}

#[test]
fn a_change_has_a_line_whether_its_client_waits_for_the_answer_or_not() {
    let audit = data_dir();
    let file = audit.path().join("audit.jsonl");
    let option = format!("audit-log-file={}", file.display());
    let guarded = Guarded::start(&["--tuning", &option]);
    let writer = bearer(&guarded.token_of("writer", "delete,own=/v1/stream/**"));
    for number in 0..20 {
        guarded.create(&format!("/v1/stream/{number}"), b"");
        let path = format!("/v1/stream/{number}");
        let mut operator = Connection::open(guarded.operators);
        operator.send(&request("DELETE", &path, &[&writer], b""));
        operator.half_close();
        drop(operator);
    }
    let lines = || std::fs::read_to_string(&file).unwrap_or_default();
    for number in 0..20 {
        let path = format!("/v1/stream/{number}");
        let field = bearer(crate::access::API_KEY);
        eventually("the stream is gone", || {
            guarded.ask("GET", &path, &field, b"").0 == 404
        });
        let line = format!(
            "\"reason\":\"change\",\"caller\":\"writer\",\"client\":\"127.0.0.1\",\"method\":\"DELETE\",\"path\":\"{path}\""
        );
        eventually("the change has a line", || lines().contains(&line));
    }
}
