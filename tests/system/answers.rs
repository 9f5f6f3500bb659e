//! The life of an answer: stopped by a reader, ended with a reason, abandoned, owned; as all wires and a restart see it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::access::{API_KEY, Guarded, bearer};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Encke, data_dir, path, request};

const TEXT: &str = "Content-Type: text/plain";
const EVENTS: &str = "/v1/events";

/// A client of a live response over HTTP/1.1.
struct Reader(Connection);

impl Reader {
    fn open(encke: &Encke, target: &str, fields: &[&str]) -> Reader {
        let mut connection = encke.connect();
        connection.send(&request("GET", target, fields, b""));
        let head = connection.head();
        assert_eq!(head.status, 200, "{target}: {head:?}");
        Reader(connection)
    }

    /// What comes up to and with an event that has this text.
    fn until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            let event = self.0.event();
            seen += &event.unwrap_or_else(|| panic!("it ends before {text:?}: {seen}"));
        }
        seen
    }

    /// What comes before the end.
    fn rest(&mut self) -> String {
        std::iter::from_fn(|| self.0.event()).collect()
    }
}

fn create(encke: &Encke, stream: &str, fields: &[&str]) {
    let fields = [&[TEXT], fields].concat();
    let created = encke.ask("PUT", &path(stream), &fields, b"");
    assert_eq!(created.status, 201, "{created:?}");
}

#[test]
fn all_readers_and_the_producer_learn_of_a_stop_at_once() {
    let encke = Encke::start(&[]);
    create(&encke, "a", &[]);
    encke.ask("POST", &path("a"), &[TEXT], b"one ");
    let live = format!("{}?offset=-1&live=sse", path("a"));
    let mut events = Reader::open(&encke, &live, &[]);
    events.until("one");
    let mut several = Reader::open(&encke, &format!("{EVENTS}?stream=a@-1"), &[]);
    several.until("one");
    let mut pattern = Reader::open(&encke, &format!("{EVENTS}?stream=**@-1"), &[]);
    pattern.until("one");
    let mut channel = WebSocketClient::open(encke.address, EVENTS, &[]);
    channel.send(&json!({"type": "subscribe", "stream": "a", "offset": "now"}).to_string());
    assert_eq!(channel.message().expect("answered")["type"], "subscribed");
    let poll = format!("{}?offset=now&live=long-poll", path("a"));
    let mut polling = encke.connect();
    polling.send(&request("GET", &poll, &[], b""));
    encke.wait_for_metric("encke_subscribers", 5.0);
    let stopper = json!({"type": "stop", "id": 7, "stream": "a"}).to_string();
    let mut other = WebSocketClient::open(encke.address, EVENTS, &[]);
    let begin = Instant::now();
    let answer = other.ask(&stopper);
    assert_eq!(
        (&answer["type"], &answer["stopRequested"]),
        (&json!("appended"), &json!(true))
    );
    events.until("\"stopRequested\":true");
    several.until("event:stop\ndata:{\"stream\":\"a\"}");
    pattern.until("event:stop\ndata:{\"stream\":\"a\"}");
    let message = channel.message().expect("the channel is open");
    assert_eq!(
        (&message["type"], &message["stopRequested"]),
        (&json!("position"), &json!(true))
    );
    let polled = polling.answer();
    assert_eq!(
        (polled.status, polled.field("Encke-Stop-Requested")),
        (204, Some("true"))
    );
    println!("told all in {:?}", begin.elapsed());
    let appended = encke.ask("POST", &path("a"), &[TEXT], b"two ");
    assert_eq!(appended.field("Encke-Stop-Requested"), Some("true"));
    // Said once, not with each event behind it.
    let two = events.until("two");
    assert!(
        !two.contains("event:stop") && two.matches("stopRequested").count() == 0,
        "{two}"
    );
    let close = ["Stream-Closed: true", "Encke-End-Reason: stopped"];
    assert_eq!(encke.ask("POST", &path("a"), &close, b"").status, 204);
    let end = events.rest();
    assert!(
        end.contains("\"streamClosed\":true,\"endReason\":\"stopped\"}"),
        "{end}"
    );
    let end = "event:end\ndata:{\"stream\":\"a\",\"why\":\"closed\",\"endReason\":\"stopped\"}";
    several.until(end);
    pattern.until(end);
    let ended = loop {
        let message = channel.message().expect("the channel is open");
        if message["type"] == "ended" || message["ended"] == "closed" {
            break message;
        }
    };
    assert_eq!(ended["endReason"], "stopped");
}

#[test]
#[ignore = "long: make test-all"]
fn an_abandoned_answer_ends_by_itself_also_after_a_kill() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    create(&encke, "a", &["Encke-Producer-Timeout: 3"]);
    create(
        &encke,
        "b",
        &["Encke-Producer-Timeout: 20", "Encke-Metadata: {\"user\":1}"],
    );
    let begin = Instant::now();
    encke.ask("POST", &path("a"), &[TEXT], b"half an answer");
    let live = |stream: &str| format!("{}?offset=-1&live=sse", path(stream));
    let mut events = Reader::open(&encke, &live("a"), &[]);
    let end = events.rest();
    assert!(end.contains("half an answer"), "{end}");
    assert!(
        end.contains("\"streamClosed\":true,\"endReason\":\"abandoned\"}"),
        "{end}"
    );
    assert!(
        begin.elapsed() >= Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    encke.ask("POST", &path("b"), &["Encke-Stop: true"], b"");
    encke.kill();
    // What nobody has ended before ends after the restart, once the producer has had its time again.
    let encke = Encke::start_in(data.path(), &[]);
    let head = encke.ask("HEAD", &path("a"), &[], b"");
    assert_eq!(head.field("Encke-End-Reason"), Some("abandoned"));
    let head = encke.ask("HEAD", &path("b"), &[], b"");
    assert_eq!(head.field("Encke-Metadata"), Some("{\"user\":1}"));
    let mut events = Reader::open(&encke, &live("b"), &[]);
    let end = events.rest();
    assert!(end.contains("\"stopRequested\":true"), "{end}");
    assert!(end.contains("\"endReason\":\"stopped\""), "{end}");
}

#[test]
fn a_stream_that_rests_is_abandoned_as_well() {
    let flags = ["--tuning", "streams-idle=100ms"];
    let encke = Encke::start(&flags);
    for number in 0..300 {
        create(&encke, &number.to_string(), &["Encke-Producer-Timeout: 3"]);
    }
    encke.wait_for_metric("encke_streams_in_memory", 0.0);
    for number in [0, 150, 299] {
        let live = format!("{}?offset=-1&live=sse", path(&number.to_string()));
        let end = Reader::open(&encke, &live, &[]).rest();
        assert!(end.contains("\"endReason\":\"abandoned\""), "{end}");
    }
}

#[test]
fn what_belongs_to_somebody_is_for_nobody_else() {
    let guarded = Guarded::start(&[]);
    let encke = &guarded.encke;
    let all = "read,append,create,stop=/v1/stream/**";
    let (ann, bob) = (guarded.allowed("ann", all), guarded.allowed("bob", all));
    let backend = bearer(API_KEY);
    // The backend makes a stream for Ann, and gives her page a URL.
    let fields = [TEXT, &backend, "Encke-Owner: ann", "Encke-Read-URL: 60"];
    let created = encke.ask("PUT", &path("chat/1"), &fields, b"one ");
    assert_eq!(created.status, 201);
    let url = created.field("Encke-Read-URL").expect("it was asked for");
    let target = url
        .split_once("://")
        .and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
    let target = target.expect("it is a URL").to_owned();
    let mut page = Reader::open(encke, &format!("{target}&offset=-1&live=sse"), &[]);
    page.until("one");
    let refused = encke.ask("POST", &target, &[TEXT], b"x");
    assert_eq!(refused.status, 401);
    assert_eq!(
        encke.ask("GET", &path("chat/1"), &[&ann], b"").body,
        b"one "
    );
    assert_eq!(encke.ask("GET", &path("chat/1"), &[&bob], b"").status, 404);
    let refused = encke.ask("PUT", &path("chat/1"), &[TEXT, &bob], b"");
    assert_eq!(refused.error_code(), "not_owner");
    // Patterns, live and in the past, leave it out.
    let pattern = format!("{EVENTS}?stream=chat/**@-1");
    let mut of_ann = Reader::open(encke, &pattern, &[&ann]);
    of_ann.until("one");
    let mut of_bob = Reader::open(encke, &pattern, &[&bob]);
    let own = [TEXT, &bob, "Encke-Owner: self"];
    assert_eq!(
        encke.ask("PUT", &path("chat/2"), &own, b"bob's ").status,
        201
    );
    encke.ask("POST", &path("chat/1"), &[TEXT, &backend], b"two ");
    encke.ask("POST", &path("chat/1"), &["Encke-Stop: true", &ann], b"");
    encke.ask("PUT", &path("chat/3"), &[TEXT, &backend], b"all's ");
    let seen = of_bob.until("all's");
    assert!(seen.contains("bob's") && !seen.contains("chat/1"), "{seen}");
    let seen = of_ann.until("all's");
    assert!(
        seen.contains("two") && seen.contains("event:stop"),
        "{seen}"
    );
    assert!(!seen.contains("chat/2"), "{seen}");
    let mut late = Reader::open(encke, &pattern, &[&bob]);
    let seen = late.until("all's");
    assert!(seen.contains("bob's") && !seen.contains("chat/1"), "{seen}");
    // A channel as well, and its caller may not become another one with it.
    let mut channel = WebSocketClient::open(encke.address, EVENTS, &[&ann]);
    let subscribe = json!({"type": "subscribe", "stream": "chat/1", "offset": "now"});
    assert_eq!(channel.ask(&subscribe.to_string())["type"], "subscribed");
    let token = bob.rsplit(' ').next().expect("it has a token");
    channel.send(&json!({"type": "authenticate", "token": token}).to_string());
    let mut of_type = |wanted: &str| {
        loop {
            let message = channel.message().expect("the channel is open");
            if message["type"] == wanted {
                return message;
            }
        }
    };
    of_type("authenticated");
    let ended = of_type("error");
    assert_eq!(
        (&ended["stream"], &ended["code"]),
        (&json!("chat/1"), &json!("other_caller"))
    );
    assert_eq!(channel.ask(&subscribe.to_string())["status"], 404);
    let stop = json!({"type": "stop", "stream": "chat/1"}).to_string();
    assert_eq!(channel.ask(&stop)["status"], 404);
}
