//! Who is subscribed to a stream, over every wire: the list, what happens to it, and the number of those who are there.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::access::{API_KEY, Guarded, bearer};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Encke, Ended, JSON, command, data_dir, path, request, serve};

const RULES: &str = "[[presence.streams]]\nnames = 'chat/**'\nmembers-max = 3\n";

/// A server some of whose streams have members.
fn start(data: &TempDir, folder: &TempDir) -> Encke {
    let config = folder.path().join("encke.toml");
    std::fs::write(&config, RULES).expect("a file can be written");
    let mut command: Command = serve(data.path(), &[]);
    Encke::start_by(command.arg("--config").arg(config))
}

/// A subscriber that is there as somebody.
fn subscribe(encke: &Encke, target: &str, fields: &[&str]) -> Connection {
    let mut connection = encke.connect();
    connection.send(&request("GET", target, fields, b""));
    let head = connection.head();
    assert_eq!(head.status, 200, "{head:?}");
    connection
}

/// What happens to members: the next event and its data.
fn next(follower: &mut Connection) -> (String, Value) {
    loop {
        let event = follower.event().expect("it is connected");
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        if let (Some(kind), Some(data)) = (field("event: "), field("data:")) {
            return (kind.to_owned(), serde_json::from_str(data).expect("JSON"));
        }
    }
}

fn told(kind: &str, data: Value) -> (String, Value) {
    (kind.to_owned(), data)
}

fn members(encke: &Encke, stream: &str) -> Value {
    let answer = encke.ask("GET", &format!("/v1/presence/{stream}"), &[], b"");
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&answer.body).expect("JSON")
}

#[test]
fn subscribers_are_members_once_each_and_followers_are_told() {
    let (data, folder) = (data_dir(), data_dir());
    let encke = start(&data, &folder);
    for stream in ["chat/1", "chat/2", "news"] {
        encke.create(stream);
    }
    let nobody = json!({ "type": "members", "count": 0, "connections": 0, "members": [] });
    assert_eq!(members(&encke, "chat/1"), nobody);
    let mut follower = subscribe(&encke, "/v1/presence/chat/1?live=sse", &[]);
    let mut counter = subscribe(&encke, "/v1/presence/chat/1?live=sse&only=count", &[]);
    assert_eq!(next(&mut follower), told("members", nobody));
    assert_eq!(next(&mut counter), told("count", json!({ "count": 0 })));
    let ann = subscribe(
        &encke,
        "/v1/stream/chat/1?offset=-1&live=sse&member=ann&member-data=%7B%22n%22%3A1%7D",
        &[],
    );
    let joined = json!({ "type": "join", "id": "ann", "data": { "n": 1 }, "count": 1 });
    assert_eq!(next(&mut follower), told("join", joined));
    assert_eq!(next(&mut counter), told("count", json!({ "count": 1 })));
    // Of several streams, as lines, a second time, and of streams without members.
    let several = "/v1/events?stream=chat/1&stream=chat/2&stream=news&member=bob";
    let bob = subscribe(&encke, several, &[]);
    let joined = json!({ "type": "join", "id": "bob", "count": 2 });
    assert_eq!(next(&mut follower), told("join", joined));
    let again = subscribe(
        &encke,
        "/v1/stream/chat/1?offset=-1&live=true&member=bob",
        &["Accept: application/x-ndjson"],
    );
    let anonymous = subscribe(&encke, "/v1/stream/chat/1?offset=-1&live=sse", &[]);
    let expected = json!({
        "type": "members", "count": 2, "connections": 4,
        "members": [{ "id": "ann", "data": { "n": 1 } }, { "id": "bob" }],
    });
    assert_eq!(members(&encke, "chat/1"), expected);
    assert_eq!(members(&encke, "chat/2")["count"], 1);
    let none = encke.ask("GET", "/v1/presence/news", &[], b"");
    assert_eq!((none.status, &*none.error_code()), (404, "no_presence"));
    let missing = encke.ask("GET", "/v1/presence/chat/3", &[], b"");
    assert_eq!(missing.status, 404);
    // A bound, and what is no member.
    let _cid = subscribe(
        &encke,
        "/v1/stream/chat/1?offset=-1&live=sse&member=cid",
        &[],
    );
    let joined = json!({ "type": "join", "id": "cid", "count": 3 });
    assert_eq!(next(&mut follower), told("join", joined));
    for (target, status) in [
        ("/v1/stream/chat/1?offset=-1&live=sse&member=dan", 429),
        ("/v1/stream/chat/1?offset=-1&live=sse&member=", 400),
        ("/v1/stream/chat/1?offset=-1&live=sse&member-data=x", 400),
        ("/v1/presence/chat/1?live=long-poll", 400),
        ("/v1/presence/chat/1?only=names", 400),
        ("/v1/presence/chat/1?lives=sse", 400),
    ] {
        let answer = encke.ask("GET", target, &[], b"");
        assert_eq!(answer.status, status, "{target}: {answer:?}");
    }
    // At once at a hang-up; the second connection of a member was no event.
    drop((again, anonymous));
    drop(bob);
    let left = json!({ "type": "leave", "id": "bob", "count": 2 });
    assert_eq!(next(&mut follower), told("leave", left));
    drop(ann);
    let left = json!({ "type": "leave", "id": "ann", "count": 1 });
    assert_eq!(next(&mut follower), told("leave", left));
    // Joins of bob and cid, and the ends of bob and ann.
    let counts: Vec<Value> = (0..4)
        .map(|_| next(&mut counter).1["count"].clone())
        .collect();
    assert_eq!(counts, [2, 3, 2, 1]);
}

#[test]
fn a_question_about_a_stream_without_members_leaves_nothing() {
    let (data, folder) = (data_dir(), data_dir());
    let encke = start(&data, &folder);
    encke.create("chat/1");
    assert_eq!(members(&encke, "chat/1")["count"], 0);
    encke.wait_for_metric("encke_presence_streams", 0.0);
}

#[test]
fn each_of_a_few_members_may_have_the_longest_data() {
    let (data, folder) = (data_dir(), data_dir());
    let encke = start(&data, &folder);
    encke.create("chat/1");
    let longest = "x".repeat(4096 - 2);
    let _members = ["ann", "bob", "cid"].map(|id| {
        let live = format!("/v1/stream/chat/1?offset=-1&live=sse&member={id}");
        subscribe(&encke, &format!("{live}&member-data=%22{longest}%22"), &[])
    });
    assert_eq!(members(&encke, "chat/1")["count"], 3);
}

#[test]
fn members_are_callers_and_names_need_a_right_of_their_own() {
    let guarded = Guarded::start_with(RULES);
    guarded.create("/v1/stream/chat/1", b"[]");
    let encke = &guarded.encke;
    let ann = guarded.allowed("ann", "read=/v1/stream/chat/**");
    let mut follower = subscribe(
        encke,
        "/v1/presence/chat/1?live=sse",
        &[&guarded.allowed("bot", "read=/v1/presence/chat/**")],
    );
    assert_eq!(next(&mut follower).0, "members");
    let live = "/v1/stream/chat/1?offset=-1&live=sse";
    let first = subscribe(encke, live, &[&ann]);
    let (kind, joined) = next(&mut follower);
    assert_eq!((&*kind, &joined["id"]), ("join", &json!("ann")));
    // A channel whose client has sent its token.
    let token = guarded.token(&[
        "--sub",
        "bob",
        "--expires",
        "1h",
        "--allow",
        "read=/v1/stream/chat/**",
    ]);
    let mut channel = WebSocketClient::open(encke.address, "/v1/events", &[&bearer(&token)]);
    let subscribed = channel.ask(&json!({ "type": "subscribe", "stream": "chat/1" }).to_string());
    assert_eq!(subscribed["type"], "subscribed", "{subscribed}");
    let (kind, joined) = next(&mut follower);
    assert_eq!((&*kind, &joined["id"]), ("join", &json!("bob")));
    // Who may read the stream learns how many there are, and not who.
    let count = encke.ask("GET", "/v1/presence/chat/1?only=count", &[&ann], b"");
    assert_eq!((count.status, &*count.body), (200, &b"{\"count\":2}"[..]));
    let names = encke.ask("GET", "/v1/presence/chat/1", &[&ann], b"");
    assert!(matches!(names.status, 403 | 404), "{names:?}");
    // Nobody is there as somebody else.
    let forged = encke.ask("GET", &format!("{live}&member=bob"), &[&ann], b"");
    assert_eq!(forged.status, 400, "{forged:?}");
    let unsubscribed =
        channel.ask(&json!({ "type": "unsubscribe", "stream": "chat/1" }).to_string());
    assert_eq!(unsubscribed["type"], "unsubscribed", "{unsubscribed}");
    let (kind, left) = next(&mut follower);
    assert_eq!((&*kind, &left["id"]), ("leave", &json!("bob")));
    drop(first);
    assert_eq!(next(&mut follower).1["id"], "ann");
    let count = encke.ask("GET", "/v1/presence/chat/1?only=count", &[&ann], b"");
    assert_eq!(count.body, b"{\"count\":0}");
}

#[test]
fn the_number_of_readers_of_a_pool_needs_the_right_to_the_pool() {
    let guarded = Guarded::start_with(RULES);
    let put = guarded.ask(
        "PUT",
        "/v1/pool/p",
        &bearer(API_KEY),
        br#"{"type":"claim"}"#,
    );
    assert_eq!(put.0, 201, "{put:?}");
    let count = |allowed: &str| {
        let field = guarded.allowed("ann", allowed);
        let target = "/v1/presence/pool/p/results?only=count";
        let answer = guarded.encke.ask("GET", target, &[&field], b"");
        (answer.status, answer.error_code())
    };
    assert_eq!(count("read=/v1/stream/**"), (404, "not_found".into()));
    // The rules give members to no stream of a pool.
    assert_eq!(count("read=/v1/pool/p"), (404, "no_presence".into()));
}

#[test]
fn members_and_followers_move_to_a_successor() {
    let (data, folder) = (data_dir(), data_dir());
    let encke = start(&data, &folder);
    encke.create("chat/1");
    let mut follower = subscribe(&encke, "/v1/presence/chat/1?live=sse", &[]);
    assert_eq!(next(&mut follower).0, "members");
    let ann = subscribe(
        &encke,
        "/v1/stream/chat/1?offset=-1&live=sse&member=ann",
        &[],
    );
    assert_eq!(next(&mut follower).0, "join");
    let ended = Ended::of(command(&["upgrade", "--json"]).arg(data.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (kind, list) = next(&mut follower);
    assert_eq!(kind, "members");
    if list["count"] == 0 {
        assert_eq!(next(&mut follower).0, "join");
    }
    assert_eq!(
        members(&encke, "chat/1")["members"],
        json!([{ "id": "ann" }])
    );
    drop(ann);
    assert_eq!(next(&mut follower).0, "leave");
    // What is stored is what it was.
    encke.ask("POST", &path("chat/1"), &[JSON], b"1");
    assert_eq!(encke.numbers("chat/1"), [1]);
}
