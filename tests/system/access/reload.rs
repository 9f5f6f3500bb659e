//! The configuration changes while clients are there: what it allows holds for everyone at once, and nobody else is disturbed.

use rustix::process::Signal;
use serde_json::json;

use super::{API_KEY, Guarded, bearer, configuration};
use crate::rig::http2::{DATA, Frame, Http2Client};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Ended, JSON, command, eventually, request};

/// A key that comes and goes, and its digest.
struct Guest {
    key: String,
    sha256: String,
}

impl Guest {
    fn new() -> Guest {
        let made = Ended::of(&mut command(&["token", "new-key"]));
        let word = |label: &str| {
            let line = made.stdout.lines().find(|line| line.starts_with(label));
            let word = line.and_then(|line| line.split_whitespace().last());
            word.unwrap_or_else(|| panic!("{made:?}"))
                .trim_matches('"')
                .to_owned()
        };
        Guest {
            key: word("encke_"),
            sha256: word("sha256"),
        }
    }

    fn field(&self) -> String {
        bearer(&self.key)
    }

    /// The configuration with the key, which may do this.
    fn allowed(&self, actions: &str, paths: &str) -> String {
        let key = format!(
            "\n[[access.api-keys]]\nname = \"guest\"\nsha256 = \"{}\"\ngrants = [{{ actions = {actions}, paths = {paths} }}]\n",
            self.sha256
        );
        configuration() + &key
    }

    fn reading(&self) -> String {
        self.allowed("['read']", "['/v1/**']")
    }
}

impl Guarded {
    fn write(&self, config: &str) {
        std::fs::write(&self.config, config).expect("it is ours");
    }

    pub(super) fn metric(&self, line: &str) -> u64 {
        let answer = Connection::open(self.operators).ask("GET", "/metrics", &[], b"");
        let text = String::from_utf8(answer.body).expect("metrics are text");
        let value = text.lines().find_map(|one| one.strip_prefix(line));
        value.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    /// Puts a configuration in force.
    pub(super) fn reload(&self, config: &str) {
        let done = || self.metric("encke_config_reloads_total{result=\"done\"}");
        let before = done();
        self.write(config);
        self.encke.signal(Signal::HUP);
        eventually("the configuration is in force", || done() > before);
    }

    /// Tries to put a configuration in force, and returns the line about it in the log.
    fn refuse(&self, config: &str) -> String {
        let refusals = || -> Vec<String> {
            let log = self.encke.log();
            let lines = log.lines();
            let refusals = lines.filter(|line| line.contains("nothing was reloaded"));
            refusals.map(str::to_owned).collect()
        };
        let failed = || self.metric("encke_config_reloads_total{result=\"failed\"}");
        let (before, said_before) = (failed(), refusals().len());
        self.write(config);
        self.encke.signal(Signal::HUP);
        eventually("the configuration is refused", || failed() > before);
        eventually("the log says it", || refusals().len() > said_before);
        refusals().pop().expect("it is there")
    }

    pub(super) fn subscribe(&self, target: &str, credentials: &str) -> Connection {
        let mut connection = self.encke.connect();
        connection.send(&request("GET", target, &[credentials], b""));
        assert_eq!(connection.head().status, 200, "{target}");
        connection
    }

    pub(super) fn append(&self, path: &str, body: &[u8]) {
        let appended = self.ask("POST", path, &bearer(API_KEY), body);
        assert_eq!(appended.0, 204);
    }
}

/// Reads until this has come. Panics if the connection is closed before.
fn expect(connection: &mut Connection, text: &str) {
    while !contains(connection.input(), text) {
        assert!(connection.fill(), "it was closed before {text:?} came");
    }
}

fn contains(input: &[u8], text: &str) -> bool {
    input
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

const LIVE: &str = "/v1/stream/a?offset=-1&live=sse";

#[test]
fn a_new_key_is_in_force_and_no_subscriber_is_disturbed() {
    let guarded = Guarded::start(&[]);
    let guest = Guest::new();
    guarded.create("/v1/stream/a", b"[1]");
    let token = guarded.allowed("ann", "read=/v1/**");
    let url = guarded.signed("GET", LIVE, &[]);
    let backend = bearer(API_KEY);
    let mut subscribers = Vec::new();
    for number in 0..300 {
        subscribers.push(match number % 3 {
            0 => guarded.subscribe(LIVE, &backend),
            1 => guarded.subscribe(LIVE, &token),
            _ => guarded.subscribe(&url, "X-Nothing: 1"),
        });
    }
    let mut channel =
        WebSocketClient::open(guarded.encke.address, "/v1/events?stream=a@now", &[&token]);
    assert_eq!(channel.message().expect("a message")["type"], "subscribed");
    assert_eq!(
        guarded.ask("GET", "/v1/stream/a", &guest.field(), b"").0,
        401
    );
    guarded.reload(&guest.reading());
    assert_eq!(
        guarded.ask("GET", "/v1/stream/a", &guest.field(), b"").0,
        200
    );
    // A pass over all connections has looked at them, once the next change of what is allowed has ended somebody.
    let mut other = guarded.subscribe(LIVE, &guest.field());
    guarded.reload(&configuration());
    assert!(contains(&other.rest(), "the token was revoked"));
    guarded.append("/v1/stream/a", b"[2]");
    for subscriber in &mut subscribers {
        expect(subscriber, "data:[2]");
    }
    assert_eq!(channel.message().expect("a message")["type"], "records");
    assert_eq!(
        guarded.metric("encke_connections_closed_total{reason=\"revoked\"}"),
        1
    );
}

#[test]
fn a_key_that_is_removed_ends_what_it_has_on_every_wire() {
    let guarded = Guarded::start(&[]);
    let guest = Guest::new();
    guarded.reload(&guest.reading());
    guarded.create("/v1/stream/a", b"[1]");
    let (mine, backend) = (guest.field(), bearer(API_KEY));
    let mut events = guarded.subscribe(LIVE, &mine);
    let mut merged = guarded.subscribe("/v1/events?stream=a&stream=b/**", &mine);
    let mut stays = guarded.subscribe(LIVE, &backend);
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&mine]);
    let subscribed = channel.ask(r#"{"type":"subscribe","stream":"a","offset":"now"}"#);
    assert_eq!(subscribed["type"], "subscribed", "{subscribed}");
    let mut http2 = Http2Client::open(guarded.encke.address, &[]);
    let subscribe = |http2: &mut Http2Client, stream: u32, credentials: &str| {
        let value = credentials.trim_start_matches("Authorization: ");
        let mut fields = Frame::fields("GET", LIVE);
        fields.push(("authorization", value));
        // END_HEADERS and END_STREAM.
        http2.send(&Frame::headers(5, stream, &fields));
    };
    subscribe(&mut http2, 1, &mine);
    let mut other = Http2Client::open(guarded.encke.address, &[]);
    subscribe(&mut other, 1, &backend);
    eventually("all are subscribed", || {
        guarded.metric("encke_subscribers") == 6
    });
    guarded.reload(&configuration());
    for closed in [&mut events, &mut merged] {
        let text = String::from_utf8(closed.rest()).expect("events are text");
        assert!(
            text.contains("closed by the server: the token was revoked"),
            "{text}"
        );
    }
    assert_eq!(
        channel.message().expect("a farewell")["code"],
        "credentials_ended"
    );
    assert_eq!(channel.close_code(), 4403);
    let body = String::from_utf8(http2.body(1)).expect("events are text");
    assert!(body.contains("the token was revoked"), "{body}");
    // The connection of HTTP/2 itself goes on, and so does everyone else.
    subscribe(&mut http2, 3, &backend);
    eventually("it is subscribed again", || {
        guarded.metric("encke_subscribers") == 3
    });
    guarded.append("/v1/stream/a", b"[2]");
    expect(&mut stays, "data:[2]");
    for (client, stream) in [(&mut other, 1), (&mut http2, 3)] {
        let mut body = Vec::new();
        while !contains(&body, "data:[2]") {
            let frame = client.until(DATA);
            if frame.stream == stream {
                body.extend(frame.payload);
            }
        }
    }
    assert_eq!(guarded.ask("GET", "/v1/stream/a", &mine, b"").0, 401);
}

#[test]
fn fewer_grants_end_only_what_they_do_not_allow() {
    let guarded = Guarded::start(&[]);
    let guest = Guest::new();
    let all = "['read', 'append']";
    guarded.reload(&guest.allowed(all, "['/v1/**']"));
    for path in ["/v1/stream/a", "/v1/stream/b"] {
        guarded.create(path, b"[1]");
    }
    let mine = guest.field();
    let live = |stream: &str| format!("/v1/stream/{stream}?offset=-1&live=sse");
    let (mut a, mut b) = (
        guarded.subscribe(&live("a"), &mine),
        guarded.subscribe(&live("b"), &mine),
    );
    let mut below = guarded.subscribe("/v1/events?stream=**", &mine);
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&mine]);
    for stream in ["a", "b"] {
        let subscribe = json!({"type": "subscribe", "stream": stream, "offset": "now"});
        assert_eq!(channel.ask(&subscribe.to_string())["type"], "subscribed");
    }
    guarded.reload(&guest.allowed(all, "['/v1/stream/a', '/v1/events']"));
    for closed in [&mut b, &mut below] {
        assert!(contains(&closed.rest(), "the token was revoked"));
    }
    let ended = channel.message().expect("b ends");
    assert_eq!(
        (&ended["type"], &ended["stream"]),
        (&json!("error"), &json!("b")),
        "{ended}"
    );
    // What is left goes on, and messages are judged by the grants of now.
    let refused = channel.ask(r#"{"type":"append","stream":"b","data":2}"#);
    assert_eq!(refused["type"], "error", "{refused}");
    guarded.append("/v1/stream/a", b"[2]");
    expect(&mut a, "data:[2]");
    assert_eq!(channel.message().expect("a goes on")["stream"], "a");
    assert_eq!(
        guarded.metric("encke_connections_closed_total{reason=\"revoked\"}"),
        2
    );
}

#[test]
fn a_wrong_configuration_changes_nothing_and_is_named() {
    let guarded = Guarded::start(&[]);
    let guest = Guest::new();
    guarded.reload(&guest.reading());
    guarded.create("/v1/stream/a", b"[1]");
    let mut subscriber = guarded.subscribe(LIVE, &guest.field());
    let file = guarded
        .config
        .to_str()
        .expect("the path is text")
        .to_owned();
    for (config, named) in [
        (configuration() + "\n[access\n", "line "),
        (
            configuration() + "\n[[access.api-keys]]\nname = 'x'\nsha256 = '1'\n",
            "access.api-keys[1]",
        ),
        (
            configuration() + "\n[[access.signing-keys]]\nkid = 'x'\nsecret-file = 'missing'\n",
            "access.signing-keys[1].secret-file",
        ),
        ("rings = '1MiB'\n".to_owned() + &guest.reading(), "rings"),
        (
            "listen = '127.0.0.1:0'\n".to_owned(),
            "the table [access] is gone",
        ),
    ] {
        let line = guarded.refuse(&config);
        assert!(line.contains(named), "{config}: {line}");
        if !named.starts_with("access.signing") && !named.starts_with("the table") {
            assert!(line.contains(&file), "{line}");
        }
    }
    let (status, _) = guarded.ask("GET", "/v1/stream/a", &guest.field(), b"");
    assert_eq!(status, 200, "the key is still there");
    guarded.append("/v1/stream/a", b"[2]");
    expect(&mut subscriber, "data:[2]");
}

#[test]
fn other_settings_are_reloaded_or_named() {
    let guarded = Guarded::start(&["--exempt", "none"]);
    let origin = "Origin: https://app.example";
    let allowed = || {
        let answer = guarded
            .encke
            .ask("GET", "/v1/stream/public/a", &[origin], b"");
        let field = answer.field("Access-Control-Allow-Origin");
        field.map(str::to_owned)
    };
    guarded.create("/v1/stream/public/a", b"[1]");
    assert_eq!(allowed(), None);
    let top = "cors-origins = 'https://app.example'\nring = '1MiB'\nconnections-per-address = 1\n";
    guarded.reload(&(top.to_owned() + &configuration()));
    assert_eq!(allowed().as_deref(), Some("https://app.example"));
    let log = guarded.encke.wait_for_log("need a restart");
    assert!(log.contains("settings=\"--ring\""), "{log}");
    let mut first = guarded.encke.connect_from(9);
    assert_eq!(first.ask("GET", "/healthz", &[], b"").status, 200);
    let refused = guarded.encke.connect_from(9).answer();
    assert_eq!(refused.status, 429);
}

#[test]
fn a_change_of_a_file_is_enough() {
    let guarded = Guarded::start(&[]);
    let guest = Guest::new();
    guarded.create("/v1/stream/a", b"[1]");
    let secret = guarded.config.with_file_name("secret");
    let write = |letter: &str| std::fs::write(&secret, letter.repeat(40)).expect("it is ours");
    write("a");
    // Its path begins beside the configuration.
    let named = "\n[[access.signing-keys]]\nkid = 'filed'\nsecret-file = 'secret'\n";
    guarded.write(&(guest.reading() + named));
    eventually("the new key is in force", || {
        guarded.ask("GET", "/v1/stream/a", &guest.field(), b"").0 == 200
    });
    let config = guarded.config.to_str().expect("the path is text");
    let sign = || {
        let mut command = command(&[
            "sign",
            "--config",
            config,
            "--kid",
            "filed",
            "--expires",
            "1h",
            LIVE,
        ]);
        let ended = Ended::of(&mut command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.trim_end().to_owned()
    };
    let url = sign();
    let mut subscriber = guarded.subscribe(&url, "X-Nothing: 1");
    write("b");
    let text = String::from_utf8(subscriber.rest()).expect("events are text");
    assert!(text.contains("the token was revoked"), "{text}");
    assert_eq!(guarded.encke.ask("GET", &url, &[], b"").status, 401);
    guarded.subscribe(&sign(), "X-Nothing: 1");
}

#[test]
fn revocations_stay_in_force_and_long_polls_and_workers_are_judged() {
    let guarded = Guarded::start(&[]);
    let guest = Guest::new();
    guarded.reload(&guest.allowed("['read', 'work']", "['/v1/**']"));
    guarded.create("/v1/stream/a", b"[1]");
    let backend = bearer(API_KEY);
    assert_eq!(
        guarded
            .ask("PUT", "/v1/pool/p", &backend, br#"{"type":"claim"}"#)
            .0,
        201
    );
    let revoked = guarded.token(&["--jti", "one", "--expires", "1h", "--allow", "read=/v1/**"]);
    let body = json!({ "jti": "one" }).to_string();
    let revoke = Connection::open(guarded.operators).ask(
        "POST",
        "/v1/admin/revoke",
        &[JSON],
        body.as_bytes(),
    );
    assert_eq!(revoke.status, 204);
    let mut poll = guarded.encke.connect();
    let mine = guest.field();
    poll.send(&request(
        "GET",
        "/v1/stream/a?offset=now&live=long-poll",
        &[&mine],
        b"",
    ));
    let mut worker = guarded.subscribe("/v1/pool/p/work?worker=w", &mine);
    expect(&mut worker, "\n");
    guarded.reload(&configuration());
    assert_eq!(poll.answer().status, 204);
    let text = String::from_utf8(worker.rest()).expect("events are text");
    assert!(text.contains("the token was revoked"), "{text}");
    let answer = guarded.ask("GET", "/v1/stream/a", &bearer(&revoked), b"");
    assert_eq!(answer, (401, "revoked".into()));
}

impl Guarded {
    /// Has a successor take the server over.
    pub(super) fn upgrade(&self) {
        let data = self._data.as_ref().expect("the test has not taken it");
        let ended = Ended::of(command(&["upgrade"]).arg(data.path()));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn callers_that_move_to_a_successor_are_judged_there() {
    let guarded = Guarded::start(&[]);
    let guest = Guest::new();
    guarded.reload(&guest.reading());
    for path in ["/v1/stream/a", "/v1/stream/b"] {
        guarded.create(path, b"[1]");
    }
    let mine = guest.field();
    let mut a = guarded.subscribe(LIVE, &mine);
    let mut b = guarded.subscribe("/v1/stream/b?offset=-1&live=sse", &mine);
    let mut backend = guarded.subscribe(LIVE, &bearer(API_KEY));
    let mut token = guarded.subscribe(LIVE, &guarded.allowed("ann", "read=/v1/**"));
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&mine]);
    for stream in ["a", "b"] {
        let subscribe = json!({"type": "subscribe", "stream": stream, "offset": "now"});
        assert_eq!(channel.ask(&subscribe.to_string())["type"], "subscribed");
    }
    // The successor reads it, if the server has not before.
    guarded.write(&guest.allowed("['read']", "['/v1/stream/a', '/v1/events']"));
    guarded.upgrade();
    assert!(contains(&b.rest(), "the token was revoked"));
    let ended = channel.message().expect("b ends");
    assert_eq!(
        (&ended["type"], &ended["stream"]),
        (&json!("error"), &json!("b")),
        "{ended}"
    );
    guarded.append("/v1/stream/a", b"[2]");
    for goes_on in [&mut a, &mut backend, &mut token] {
        expect(goes_on, "data:[2]");
    }
    assert_eq!(channel.message().expect("a goes on")["stream"], "a");
    // And what it reloads concerns them too.
    guarded.write(&configuration());
    guarded.encke.signal(Signal::HUP);
    assert!(contains(&a.rest(), "the token was revoked"));
    assert_eq!(
        channel.message().expect("a farewell")["code"],
        "credentials_ended"
    );
    guarded.append("/v1/stream/a", b"[3]");
    for goes_on in [&mut backend, &mut token] {
        expect(goes_on, "data:[3]");
    }
}
