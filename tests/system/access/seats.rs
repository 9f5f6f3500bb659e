//! Members of streams and the quota of subscriptions: each ends with the feed, the stream or the caller to which it belongs.

use serde_json::{Value, json};

use super::{API_KEY, Guarded, bearer};
use crate::rig::http2::{Frame, Http2Client};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, JSON, eventually, request};

const RULES: &str = "[access.quotas]\nsubscribers = 2\n
[[access.quotas.overrides]]\nname = 'backend'\nsubscribers = 0\n
[[presence.streams]]\nnames = 'chat/**'\nmembers-max = 3\n";

fn start() -> Guarded {
    Guarded::start_with(RULES)
}

impl Guarded {
    fn members(&self, stream: &str) -> Vec<Value> {
        let target = format!("/v1/presence/{stream}");
        let answer = self.encke.ask("GET", &target, &[&bearer(API_KEY)], b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        let members: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(
            members["count"].as_u64().expect("a number") as usize,
            members["members"].as_array().expect("a list").len()
        );
        let ids = members["members"].as_array().expect("a list").iter();
        ids.map(|member| member["id"].clone()).collect()
    }

    fn subscriptions_of(&self, subject: &str) -> u64 {
        let usage = self.usage();
        let callers = usage["callers"].as_array().expect("a list");
        // A caller that uses nothing may be forgotten.
        let used = callers.iter().find(|one| one["subject"] == subject);
        used.map_or(0, |used| {
            used["subscribers"]["used"].as_u64().expect("a number")
        })
    }

    /// Waits until a stream has these members, and the callers this many subscriptions.
    fn wait_for(&self, stream: &str, members: &[&str], subscriptions: &[(&str, u64)]) {
        eventually(&format!("{stream} has {members:?}"), || {
            self.members(stream) == members
        });
        for (subject, count) in subscriptions {
            eventually(&format!("{subject} has {count} subscriptions"), || {
                self.subscriptions_of(subject) == *count
            });
        }
    }

    /// Closes or deletes a stream.
    fn end(&self, stream: &str, method: &str) {
        let credentials = bearer(API_KEY);
        let fields = [JSON, "Stream-Closed: true", &credentials];
        let target = format!("/v1/stream/{stream}");
        let answer = self.encke.ask(method, &target, &fields, b"");
        assert_eq!(answer.status, 204, "{answer:?}");
    }
}

#[test]
fn a_subscription_that_has_ended_counts_no_more_while_its_connection_stays() {
    let guarded = start();
    let ann = guarded.allowed("ann", "read=/v1/stream/chat/**");
    let mut number = 0;
    for (live, accept) in [
        ("/v1/stream/{}?offset=-1&live=sse", "Accept: */*"),
        (
            "/v1/stream/{}?offset=-1&live=true",
            "Accept: application/x-ndjson",
        ),
        ("/v1/events?stream={}", "Accept: */*"),
    ] {
        for end in ["POST", "DELETE"] {
            number += 1;
            let stream = format!("chat/{number}");
            guarded.create(&format!("/v1/stream/{stream}"), b"[]");
            let target = live.replace("{}", &stream);
            let mut connection = guarded.encke.connect();
            connection.send(&request("GET", &target, &[&ann, accept], b""));
            assert_eq!(connection.head().status, 200);
            guarded.wait_for(&stream, &["ann"], &[("ann", 1)]);
            guarded.end(&stream, end);
            connection.expect_end_of_stream();
            if end == "DELETE" {
                guarded.create(&format!("/v1/stream/{stream}"), b"[]");
            }
            guarded.wait_for(&stream, &[], &[("ann", 0)]);
            // The connection can serve another request, and has not counted meanwhile.
            let answer = connection.ask("GET", "/healthz", &[], b"");
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
}

#[test]
fn a_subscription_over_http2_counts_no_more_when_it_has_ended() {
    let guarded = start();
    let ann = guarded.allowed("ann", "read=/v1/stream/chat/**");
    let token = ann.trim_start_matches("Authorization: ");
    let mut http2 = Http2Client::open(guarded.encke.address, &[]);
    for (number, end) in [(1, "POST"), (3, "DELETE")] {
        let stream = format!("chat/{number}");
        guarded.create(&format!("/v1/stream/{stream}"), b"[]");
        let target = format!("/v1/stream/{stream}?offset=-1&live=sse");
        let mut fields = Frame::fields("GET", &target);
        fields.push(("authorization", token));
        http2.send(&Frame::headers(5, number, &fields));
        guarded.wait_for(&stream, &["ann"], &[("ann", 1)]);
        guarded.end(&stream, end);
        http2.body(number);
        if end == "DELETE" {
            guarded.create(&format!("/v1/stream/{stream}"), b"[]");
        }
        guarded.wait_for(&stream, &[], &[("ann", 0)]);
    }
}

#[test]
fn a_subscriber_of_several_streams_leaves_each_that_ends() {
    let guarded = start();
    let ann = guarded.allowed("ann", "read=/v1/**");
    for stream in ["chat/1", "chat/2", "chat/3"] {
        guarded.create(&format!("/v1/stream/{stream}"), b"[]");
    }
    let several = "/v1/events?stream=chat/1&stream=chat/2&stream=chat/3";
    let mut events = guarded.encke.connect();
    events.send(&request("GET", several, &[&ann], b""));
    assert_eq!(events.head().status, 200);
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&ann]);
    let subscribe = json!({"type": "subscribe", "streams": ["chat/1", "chat/2", "chat/3"]});
    let subscribed = channel.ask(&subscribe.to_string());
    assert_eq!(subscribed["type"], "subscribed", "{subscribed}");
    for stream in ["chat/1", "chat/2", "chat/3"] {
        guarded.wait_for(stream, &["ann"], &[("ann", 2)]);
    }
    guarded.end("chat/1", "DELETE");
    guarded.create("/v1/stream/chat/1", b"[]");
    guarded.end("chat/2", "POST");
    guarded.wait_for("chat/1", &[], &[("ann", 2)]);
    guarded.wait_for("chat/2", &[], &[("ann", 2)]);
    guarded.wait_for("chat/3", &["ann"], &[("ann", 2)]);
}

#[test]
fn a_slow_subscriber_of_a_deleted_stream_is_no_member_of_its_successor() {
    let guarded = start();
    let ann = guarded.allowed("ann", "read=/v1/**");
    guarded.create("/v1/stream/chat/1", b"[]");
    guarded.create("/v1/stream/chat/2", b"[]");
    let mut slow = Vec::new();
    for target in [
        "/v1/stream/chat/1?offset=-1&live=sse",
        "/v1/events?stream=chat/1&stream=chat/2",
    ] {
        let mut connection = Connection::open_narrow(guarded.encke.address);
        connection.send(&request("GET", target, &[&ann], b""));
        assert_eq!(connection.head().status, 200);
        slow.push(connection);
    }
    guarded.wait_for("chat/1", &["ann"], &[("ann", 2)]);
    // A part of it waits for each client, and nothing behind it that the deletion removes.
    let body = format!("[\"{}\"]", "x".repeat(600 << 10));
    let fields = [JSON, &bearer(API_KEY)];
    let answer = guarded
        .encke
        .ask("POST", "/v1/stream/chat/1", &fields, body.as_bytes());
    assert_eq!(answer.status, 204, "{answer:?}");
    eventually("both are behind", || {
        guarded.metric("encke_clients_behind ") == 2
    });
    guarded.end("chat/1", "DELETE");
    guarded.create("/v1/stream/chat/1", b"[]");
    guarded.wait_for("chat/1", &[], &[]);
    // Both are there still, and the second one has another stream.
    guarded.wait_for("chat/2", &["ann"], &[("ann", 2)]);
}

#[test]
fn subscriptions_belong_to_the_caller_that_a_channel_has() {
    let guarded = start();
    guarded.create("/v1/stream/chat/1", b"[]");
    guarded.create("/v1/stream/chat/2", b"[]");
    let token = |subject: &str| {
        let arguments = [
            "--sub",
            subject,
            "--expires",
            "1h",
            "--allow",
            "read=/v1/**",
        ];
        guarded.token(&arguments)
    };
    let ann = bearer(&token("ann"));
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&ann]);
    for stream in ["chat/1", "chat/2"] {
        let subscribe = json!({"type": "subscribe", "stream": stream});
        let subscribed = channel.ask(&subscribe.to_string());
        assert_eq!(subscribed["type"], "subscribed", "{subscribed}");
    }
    guarded.wait_for("chat/1", &["ann"], &[("ann", 2)]);
    let authenticate =
        |subject: &str| json!({"type": "authenticate", "token": token(subject)}).to_string();
    // The same caller again has the same subscriptions.
    let authenticated = channel.ask(&authenticate("ann"));
    assert_eq!(authenticated["type"], "authenticated");
    let expires_in_ms = authenticated["expiresInMs"].as_u64().unwrap();
    assert!(
        (1..=3_600_000).contains(&expires_in_ms),
        "the token ends an hour after it was made: {authenticated}"
    );
    guarded.wait_for("chat/1", &["ann"], &[("ann", 2)]);
    assert_eq!(channel.ask(&authenticate("bob"))["type"], "authenticated");
    guarded.wait_for("chat/1", &["bob"], &[("ann", 0), ("bob", 2)]);
    guarded.wait_for("chat/2", &["bob"], &[]);
    // One of the two exceeds the quota of the next caller, and ends.
    let cid = guarded.allowed("cid", "read=/v1/**");
    let live = request("GET", "/v1/stream/chat/2?offset=-1&live=sse", &[&cid], b"");
    let mut other = guarded.encke.connect();
    other.send(&live);
    assert_eq!(other.head().status, 200);
    guarded.wait_for("chat/2", &["bob", "cid"], &[("cid", 1)]);
    assert_eq!(channel.ask(&authenticate("cid"))["type"], "authenticated");
    let refused = channel.message().expect("the channel stays open");
    assert_eq!(
        (&refused["type"], &refused["status"], &refused["code"]),
        (&json!("error"), &json!(429), &json!("quota_subscribers")),
        "{refused}"
    );
    guarded.wait_for("chat/1", &["cid"], &[("bob", 0), ("cid", 2)]);
    drop(channel);
    guarded.wait_for("chat/1", &[], &[("cid", 1)]);
}
