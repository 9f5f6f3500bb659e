//! Access control at the binary: who may do what, what is concealed, and what ends when credentials end.

use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rig::{
    Connection, Encke, Ended, JSON, command, data_dir, eventually, operators_address, request,
    serve, serve_on,
};

/// A server with access control, and the address for its operators.
struct Guarded {
    encke: Encke,
    stdout: std::io::BufReader<std::process::ChildStdout>,
    operators: std::net::SocketAddr,
    config: std::path::PathBuf,
    _config_dir: TempDir,
}

const CONFIG: &str = r#"
[access]
cookie = "encke"
leeway = "0s"
anonymous.grants = [{ actions = ["read"], paths = ["/v1/stream/public/**"] }]

[[access.issuers]]
name = "app"
issuer = "https://app.example"
audience = "encke"
algorithms = ["HS256"]
secret = "a secret of more than thirty-two bytes, for tests"

[[access.signing-keys]]
kid = "links"
secret = "another secret of more than thirty-two bytes"

[[access.api-keys]]
name = "backend"
# The digest of the text `backend-key`, below.
sha256 = "SHA"
grants = [{ actions = ["read", "append", "create", "delete", "admin", "post", "work", "list"], paths = ["/**"] }]
"#;

impl Guarded {
    fn start(flags: &[&str]) -> Guarded {
        Guarded::start_in(data_dir(), flags).0
    }

    fn start_in(data: TempDir, flags: &[&str]) -> (Guarded, TempDir) {
        let config_dir = data_dir();
        let config = config_dir.path().join("encke.toml");
        let text = CONFIG.replace("SHA", &api_key_digest());
        std::fs::write(&config, text).expect("a file can be written");
        let guarded = Guarded::again(&config, config_dir, data.path(), flags);
        (guarded, data)
    }

    fn again(config: &Path, config_dir: TempDir, data: &Path, flags: &[&str]) -> Guarded {
        let path = config.to_str().expect("the path is text");
        let own = ["--config", path, "--admin-listen", "127.0.0.1:0"];
        let mut encke = Encke::start_by(&mut serve(data, &[&own, flags].concat()));
        let mut stdout = encke.take_stdout();
        let operators = operators_address(&mut stdout);
        Guarded {
            encke,
            stdout,
            operators,
            config: config.to_owned(),
            _config_dir: config_dir,
        }
    }

    /// The header field with a token of an hour, for that subject, that allows this.
    fn allowed(&self, subject: &str, allow: &str) -> String {
        let arguments = ["--sub", subject, "--expires", "1h", "--allow", allow];
        bearer(&self.token(&arguments))
    }

    /// A token that `encke token` makes.
    fn token(&self, arguments: &[&str]) -> String {
        let config = self.config.to_str().expect("the path is text");
        let mut command = command(&["token", "--config", config]);
        let ended = Ended::of(command.args(arguments));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.trim_end().to_owned()
    }

    fn ask(&self, method: &str, path: &str, credentials: &str, body: &[u8]) -> (u16, String) {
        let fields = [JSON, credentials];
        let fields = match credentials {
            "" => &fields[..1],
            _ => &fields[..],
        };
        let response = self.encke.ask(method, path, fields, body);
        let code = match response.status {
            ..400 => String::new(),
            _ => response.error_code(),
        };
        (response.status, code)
    }
}

const API_KEY: &str = "encke_backend-key-of-some-length-0123456789";

fn api_key_digest() -> String {
    let digest = Ended::of(std::process::Command::new("sh").args([
        "-c",
        &format!("printf %s {API_KEY} | sha256sum | cut -d ' ' -f 1"),
    ]));
    digest.stdout.trim().to_owned()
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is after 1970").as_secs()
}

#[test]
fn a_caller_may_do_what_it_was_granted_and_learns_of_nothing_else() {
    let guarded = Guarded::start(&[]);
    let backend = bearer(API_KEY);
    for stream in ["public/news", "chat/ann/inbox", "chat/bob/inbox"] {
        let path = format!("/v1/stream/{stream}");
        assert_eq!(guarded.ask("PUT", &path, &backend, b"[]").0, 201, "{path}");
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
        ("GET", "/v1/events?stream=chat/*", &ann, 404, "not_found"),
        ("GET", "/v1/events?stream=*", &ann, 404, "not_found"),
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
    assert_eq!(
        guarded
            .ask("PUT", "/v1/stream/secret/a", &backend, b"[1]")
            .0,
        201
    );
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
fn a_subscription_ends_when_its_token_ends_and_says_why() {
    let guarded = Guarded::start(&["--tuning", "heartbeat=1s"]);
    let backend = bearer(API_KEY);
    assert_eq!(guarded.ask("PUT", "/v1/stream/a", &backend, b"[1]").0, 201);
    let ends_s = now_s() + 3;
    let short = guarded.token(&["--sub", "ann", "--expires", "3s", "--allow", "read=/v1/**"]);
    let target = "/v1/stream/a?offset=-1&live=sse";
    let mut connection = guarded.encke.connect();
    connection.send(&request("GET", target, &[&bearer(&short)], b""));
    assert_eq!(connection.head().status, 200);
    let text = String::from_utf8(connection.rest()).expect("events are text");
    // The leeway for other clocks is for the beginning of requests; a subscription has none.
    assert!(now_s() >= ends_s, "it ended early: {text}");
    assert!(
        text.contains(": closed by the server: the token has expired; continue at offset "),
        "{text}"
    );
    // With a new token it continues behind what it has.
    let offset = text
        .rsplit("continue at offset ")
        .next()
        .and_then(|rest| rest.lines().next());
    let offset = offset.expect("it names the offset");
    assert_eq!(guarded.ask("POST", "/v1/stream/a", &backend, b"[2]").0, 204);
    let renewed = guarded.allowed("ann", "read=/v1/**");
    let target = format!("/v1/stream/a?offset={offset}");
    let rest = guarded.encke.ask("GET", &target, &[&renewed], b"");
    assert_eq!(
        serde_json::from_slice::<Value>(&rest.body).ok(),
        Some(json!([2]))
    );
}

#[test]
fn revocations_close_connections_and_survive_a_kill() {
    let (guarded, data) = Guarded::start_in(data_dir(), &[]);
    let backend = bearer(API_KEY);
    assert_eq!(guarded.ask("PUT", "/v1/stream/a", &backend, b"[1]").0, 201);
    let token = |sub: &str, jti: &str| {
        guarded.token(&[
            "--sub",
            sub,
            "--jti",
            jti,
            "--expires",
            "1h",
            "--allow",
            "read=/v1/**",
        ])
    };
    let (one, two, other) = (
        token("ann", "one"),
        token("ann", "two"),
        token("bob", "three"),
    );
    let follow = |token: &str| {
        let mut connection = guarded.encke.connect();
        let target = "/v1/stream/a?offset=-1&live=sse";
        connection.send(&request("GET", target, &[&bearer(token)], b""));
        assert_eq!(connection.head().status, 200);
        connection
    };
    let (mut of_one, mut of_two, mut of_other) = (follow(&one), follow(&two), follow(&other));
    let revoke = |body: &Value| {
        let mut connection = Connection::open(guarded.operators);
        connection.ask(
            "POST",
            "/v1/admin/revoke",
            &[JSON],
            body.to_string().as_bytes(),
        )
    };
    assert_eq!(revoke(&json!({ "jti": "one" })).status, 204);
    let text = String::from_utf8(of_one.rest()).expect("events are text");
    assert!(text.contains("the token was revoked"), "{text}");
    assert_eq!(
        guarded.ask("GET", "/v1/stream/a", &bearer(&one), b""),
        (401, "revoked".into())
    );
    assert_eq!(
        guarded.ask("GET", "/v1/stream/a", &bearer(&two), b"").0,
        200
    );
    assert_eq!(revoke(&json!({ "sub": "ann" })).status, 204);
    let text = String::from_utf8(of_two.rest()).expect("events are text");
    assert!(text.contains("the token was revoked"), "{text}");
    // Others go on.
    assert_eq!(guarded.ask("POST", "/v1/stream/a", &backend, b"[2]").0, 204);
    while !of_other.input().windows(8).any(|part| part == b"data:[2]") {
        assert!(of_other.fill(), "another caller's subscription was closed");
    }
    for (body, status) in [
        (json!({}), 400),
        (json!({ "jti": "a", "sub": "b" }), 400),
        (json!({ "jit": "a" }), 400),
        (json!([1]), 400),
    ] {
        assert_eq!(revoke(&body).status, status, "{body}");
    }
    let Guarded {
        encke,
        config,
        _config_dir,
        ..
    } = guarded;
    encke.kill();
    let again = Guarded::again(&config, _config_dir, data.path(), &[]);
    for token in [&one, &two] {
        let answer = again.ask("GET", "/v1/stream/a", &bearer(token), b"");
        assert_eq!(answer, (401, "revoked".into()));
    }
    assert_eq!(
        again.ask("GET", "/v1/stream/a", &bearer(&other), b"").0,
        200
    );
}

#[test]
fn cookies_and_signed_urls_are_credentials_of_browsers() {
    let guarded = Guarded::start(&["--cors-origins", "https://app.example"]);
    let backend = bearer(API_KEY);
    assert_eq!(guarded.ask("PUT", "/v1/stream/a", &backend, b"[1]").0, 201);
    let token = guarded.token(&[
        "--sub",
        "ann",
        "--expires",
        "1h",
        "--allow",
        "read,append=/v1/**",
    ]);
    let cookie = format!("Cookie: x=y; encke={token}");
    let ask = |method: &str, fields: &[&str]| {
        let fields = [&[JSON, &cookie], fields].concat();
        guarded.encke.ask(method, "/v1/stream/a", &fields, b"[2]")
    };
    assert_eq!(ask("GET", &[]).status, 200);
    // From a page of another site the browser sends the cookie, too.
    let foreign = ask("POST", &["Origin: https://evil.example"]);
    assert_eq!((foreign.status, &*foreign.error_code()), (403, "origin"));
    assert_eq!(ask("POST", &["Origin: null"]).status, 403);
    let allowed = ask("POST", &["Origin: https://app.example"]);
    assert_eq!(allowed.status, 204);
    assert_eq!(
        allowed.field("Access-Control-Allow-Origin"),
        Some("https://app.example")
    );
    assert_eq!(
        allowed.field("Access-Control-Allow-Credentials"),
        Some("true")
    );
    assert_eq!(ask("POST", &["Origin: http://encke.localhost"]).status, 204);
    // Two credentials that differ are refused.
    let both = ask("GET", &[&backend]);
    assert_eq!(
        (both.status, &*both.error_code()),
        (400, "conflicting_credentials")
    );

    let url = format!("http://{}/v1/stream/a?offset=-1", guarded.encke.address);
    let config = guarded.config.to_str().expect("the path is text");
    let mut sign = command(&[
        "sign",
        "--config",
        config,
        "--kid",
        "links",
        "--expires",
        "1h",
        &url,
    ]);
    let ended = Ended::of(&mut sign);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let signed = ended.stdout.trim_end();
    let target = &signed[signed.find("/v1/").expect("it is a URL")..];
    assert_eq!(guarded.ask("GET", target, "", b"").0, 200);
    assert_eq!(guarded.ask("HEAD", target, "", b"").0, 200);
    assert_eq!(
        guarded.ask("POST", target, "", b"[3]"),
        (401, "signature".into())
    );
    let other = target.replace("stream/a", "stream/b");
    assert_eq!(
        guarded.ask("GET", &other, "", b""),
        (401, "signature".into())
    );
    let other = target.replace("offset=-1", "offset=now");
    assert_eq!(
        guarded.ask("GET", &other, "", b""),
        (401, "signature".into())
    );
}

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
    assert_eq!(operator("PUT", "/v1/stream/a"), 404);
    let token = guarded.token(&[
        "--sub",
        "ann",
        "--expires",
        "1h",
        "--allow",
        "read=/v1/stream/a",
    ]);
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
    eventually("all lines are written", || lines().lines().count() >= 5);
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
    let log = guarded.encke.log();
    let mut stdout = String::new();
    guarded.encke.signal(rustix::process::Signal::TERM);
    guarded
        .stdout
        .read_to_string(&mut stdout)
        .expect("it prints text");
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
fn without_access_control_pages_of_other_sites_get_nothing() {
    let encke = Encke::start(&["--tuning", "hosts=push.example"]);
    encke.create("a");
    let path = crate::rig::path("a");
    let status = |host: &str, fields: &[&str]| {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\n{}\r\n",
            fields
                .iter()
                .map(|field| format!("{field}\r\n"))
                .collect::<String>()
        );
        let mut connection = encke.connect();
        connection.send(head.as_bytes());
        connection.answer().status
    };
    let own = encke.address.to_string();
    for host in [
        "localhost:1",
        "app.localhost",
        "[::1]:80",
        "push.example",
        &own,
    ] {
        assert_eq!(status(host, &[]), 200, "{host}");
    }
    // A name that an attacker makes resolve to this machine.
    for host in [
        "evil.example",
        "evil.example:4437",
        "10.0.0.1",
        "push.example.evil.example",
    ] {
        assert_eq!(status(host, &[]), 421, "{host}");
    }
    for (origin, expected) in [
        ("http://localhost:5173", 200),
        ("http://127.0.0.1:8080", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost.evil.example", 403),
    ] {
        assert_eq!(
            status("localhost", &[&format!("Origin: {origin}")]),
            expected,
            "{origin}"
        );
    }
    let mut connection = encke.connect();
    let answer = connection.ask("GET", &path, &["Origin: http://localhost:5173"], b"");
    assert_eq!(
        answer.field("Access-Control-Allow-Origin"),
        Some("http://localhost:5173")
    );
    assert_eq!(answer.vary(), "Accept-Encoding, Origin");
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
        "nobody else is believed"
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
    std::fs::write(&config, CONFIG.replace("SHA", &api_key_digest())).expect("a file is written");
    let config = config.to_str().expect("the path is text");
    let other = data_dir();
    let flags = ["--config", config, "--admin-listen", "none"];
    let guarded = Encke::start_by(&mut serve_on("0.0.0.0:0", other.path(), &flags));
    let mut connection = Connection::open(([127, 0, 0, 1], guarded.address.port()).into());
    let answer = connection.ask("GET", "/v1/stream/public/x", &[], b"");
    assert_eq!(answer.status, 404);
}

#[test]
fn a_subscriber_by_pattern_needs_all_that_the_pattern_matches() {
    let guarded = Guarded::start(&[]);
    let backend = bearer(API_KEY);
    assert_eq!(
        guarded
            .ask("PUT", "/v1/stream/chat/ann/inbox", &backend, b"[]")
            .0,
        201
    );
    let ann = guarded.allowed("ann", "read=/v1/stream/chat/{sub}/**");
    let mut connection = guarded.encke.connect();
    let target = "/v1/events?stream=chat/ann/*";
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
