//! Subscriptions of workers (`__ds`): webhooks are called and workers are woken for what is new, across crashes, stops and nodes, and
//! nothing that was acknowledged is lost.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fleet::node;
use crate::rig::{
    Answer, Brokers, Encke, JSON, Receiver, Response, WebhookCall, data_dir, eventually, path,
};

/// What lets webhooks be on this machine.
const LOOPBACK: &[&str] = &["--tuning", "webhook-networks=127.0.0.0/8"];

fn subscription(id: &str) -> String {
    format!("/v1/stream/__ds/subscriptions/{id}")
}

fn ask(encke: &Encke, method: &str, target: &str, body: &Value) -> Response {
    let body = match body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    encke.ask(method, target, &[JSON], &body)
}

fn json_of(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|error| panic!("{error}: {response:?}"))
}

/// Creates it, or confirms it.
fn put(encke: &Encke, id: &str, config: &Value, status: u16) -> Value {
    let response = ask(encke, "PUT", &subscription(id), config);
    assert_eq!(response.status, status, "{response:?}");
    json_of(&response)
}

fn webhook(receiver: &Receiver, lease_ms: u64) -> Value {
    json!({
        "type": "webhook",
        "pattern": "jobs/*",
        "webhook": { "url": receiver.url() },
        "lease_ttl_ms": lease_ms,
    })
}

fn pull_wake(lease_ms: u64) -> Value {
    json!({
        "type": "pull-wake",
        "pattern": "jobs/*",
        "wake_stream": "wakes",
        "lease_ttl_ms": lease_ms,
    })
}

fn append(encke: &Encke, stream: &str, number: u64) {
    let appended = encke.ask(
        "POST",
        &path(stream),
        &[JSON],
        number.to_string().as_bytes(),
    );
    assert_eq!(appended.status, 204, "{appended:?}");
}

/// What a wake or a claim says of its streams, as acknowledgements of their tails.
fn tails(streams: &Value) -> Value {
    let streams = streams.as_array().expect("a list of streams");
    let acks = streams
        .iter()
        .map(|link| json!({ "stream": link["path"], "offset": link["tail_offset"] }));
    acks.filter(|ack| ack["offset"] != "-1").collect()
}

/// Reports on a wake at one of the three places.
fn report(encke: &Encke, id: &str, kind: &str, wake: &Value, acks: &Value, done: bool) -> Response {
    let token = wake.get("token").or_else(|| wake.get("callback_token"));
    let token = token.and_then(Value::as_str).expect("a token");
    let body = json!({
        "wake_id": wake["wake_id"],
        "generation": wake["generation"],
        "acks": acks,
        "done": done,
    });
    let target = format!("{}/{kind}", subscription(id));
    let token = format!("Authorization: Bearer {token}");
    encke.ask(
        "POST",
        &target,
        &[JSON, &token],
        body.to_string().as_bytes(),
    )
}

fn claim(encke: &Encke, id: &str, worker: &str) -> Response {
    let target = format!("{}/claim", subscription(id));
    ask(encke, "POST", &target, &json!({ "worker": worker }))
}

/// The cursor of a stream.
fn acked(encke: &Encke, id: &str, stream: &str) -> String {
    let described = json_of(&encke.ask("GET", &subscription(id), &[], b""));
    let streams = described["streams"].as_array().expect("streams");
    let link = streams.iter().find(|link| link["path"] == stream);
    let link = link.unwrap_or_else(|| panic!("no {stream}: {described}"));
    link["acked_offset"].as_str().expect("an offset").to_owned()
}

#[test]
#[ignore = "long: make test-all"]
fn a_webhook_is_called_until_it_has_done_the_work_though_the_server_is_killed() {
    let receiver = Receiver::start(Answer::Says(503, ""));
    let data = data_dir();
    let mut encke = Encke::start_in(data.path(), LOOPBACK);
    let created = put(&encke, "s", &webhook(&receiver, 30_000), 201);
    let keys = encke.ask("GET", "/v1/stream/__ds/jwks.json", &[], b"");
    assert_eq!(keys.status, 200, "{keys:?}");
    encke.create("jobs/a");
    append(&encke, "jobs/a", 1);
    let first = receiver.call(0);
    assert_eq!(first.body["subscription_id"], "s");
    // The retry that follows has the same name, from the next server too.
    encke.kill();
    encke = Encke::start_in(data.path(), LOOPBACK);
    let second = receiver.call(1);
    for member in ["wake_id", "generation", "callback_token"] {
        assert_eq!(first.body[member], second.body[member], "{member}");
    }
    eventually("the subscription has failed", || {
        let described = encke.ask("GET", &subscription("s"), &[], b"");
        json_of(&described)["status"] == "failed"
    });
    assert_eq!(
        encke.ask("GET", "/v1/stream/__ds/jwks.json", &[], b"").body,
        keys.body
    );
    receiver.answers(Answer::Says(200, "{}"));
    let calls = receiver.calls().len();
    receiver.call(calls);
    // The receiver works, and the server is killed meanwhile: the wake is still its own.
    encke.kill();
    let encke = Encke::start_in(data.path(), LOOPBACK);
    let wake = second.body;
    let kept = report(&encke, "s", "callback", &wake, &json!([]), false);
    assert_eq!(
        json_of(&kept),
        json!({ "ok": true, "next_wake": false }),
        "{kept:?}"
    );
    append(&encke, "jobs/a", 2);
    let done = report(
        &encke,
        "s",
        "callback",
        &wake,
        &tails(&wake["streams"]),
        true,
    );
    // The next wake begins with the end of this one, or when the dispatcher hears of the record: it may not have yet.
    assert_eq!(json_of(&done)["ok"], true, "{done:?}");
    let again = report(&encke, "s", "callback", &wake, &json!([]), true);
    assert_eq!((again.status, &*again.error_code()), (409, "FENCED"));
    // The next wake is for what was appended behind the first one.
    receiver.answers(Answer::Says(200, r#"{"done":true}"#));
    let tail = encke.ask("HEAD", &path("jobs/a"), &[], b"");
    let tail = tail
        .field("Stream-Next-Offset")
        .expect("an offset")
        .to_owned();
    eventually("all is done", || acked(&encke, "s", "jobs/a") == tail);
    let last: WebhookCall = receiver.calls().pop().expect("calls");
    assert!(last.body["generation"].as_u64() > wake["generation"].as_u64());
    assert!(!last.field("Webhook-Signature").is_empty() && !last.raw.is_empty());
    let calls = receiver.calls().len();
    // With nothing new it is not called, by the next server neither.
    assert_eq!(encke.terminate().code, Some(0));
    let encke = Encke::start_in(data.path(), LOOPBACK);
    let confirmed = put(&encke, "s", &webhook(&receiver, 30_000), 200);
    assert_eq!(confirmed["created_at"], created["created_at"]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(receiver.calls().len(), calls);
    encke.wait_for_metric("encke_subscriptions", 1.0);
}

#[test]
#[ignore = "long: make test-all"]
fn workers_that_pull_do_everything_once_while_the_server_is_killed() {
    for flags in [&[][..], &["--logs", "3"], &["--ack", "accepted"]] {
        let data = data_dir();
        let mut encke = Encke::start_in(data.path(), flags);
        encke.create("wakes");
        put(&encke, "s", &pull_wake(60_000), 201);
        let mut offset = "-1".to_owned();
        let mut generation = 0;
        let mut seen = Vec::new();
        let mut ended_before_a_kill = Vec::new();
        for round in 0..12 {
            if round == 0 {
                encke.create("jobs/a");
            }
            append(&encke, "jobs/a", round);
            // Whatever was acknowledged is pending at once.
            let claimed = claim(&encke, "s", "w");
            assert_eq!(claimed.status, 200, "{flags:?} {round}: {claimed:?}");
            let wake = json_of(&claimed);
            assert!(wake["generation"].as_u64() > Some(generation), "{wake}");
            generation = wake["generation"].as_u64().expect("a number");
            if round % 3 == 1 {
                encke.kill();
                encke = Encke::start_in(data.path(), flags);
                let other = claim(&encke, "s", "other");
                assert_eq!(
                    (other.status, &*other.error_code()),
                    (409, "ALREADY_CLAIMED")
                );
            }
            let read = encke.ask(
                "GET",
                &format!("{}?offset={offset}", path("jobs/a")),
                &[],
                b"",
            );
            let messages: Vec<u64> = serde_json::from_slice(&read.body).expect("numbers");
            seen.extend(messages);
            offset = read
                .field("Stream-Next-Offset")
                .expect("an offset")
                .to_owned();
            let acks = json!([{ "stream": "jobs/a", "offset": offset }]);
            let done = report(&encke, "s", "ack", &wake, &acks, true);
            assert_eq!(
                json_of(&done),
                json!({ "ok": true, "next_wake": false }),
                "{round}"
            );
            if round % 3 == 2 {
                encke.kill();
                ended_before_a_kill.push(generation);
                encke = Encke::start_in(data.path(), flags);
                assert_eq!(acked(&encke, "s", "jobs/a"), offset);
                let nothing = claim(&encke, "s", "w");
                assert_eq!(
                    (nothing.status, &*nothing.error_code()),
                    (409, "NO_PENDING_WORK")
                );
            }
        }
        assert_eq!(seen, (0..12).collect::<Vec<_>>());
        // Each wake has its event. In another log than the journal's it may come twice after a crash, or not at all if the wake had ended.
        let events = encke.messages("wakes");
        let numbers = events
            .iter()
            .filter_map(|event| event["generation"].as_u64());
        let mut generations: Vec<u64> = numbers.collect();
        assert!(generations.is_sorted(), "{flags:?}: {events:?}");
        if flags.contains(&"--logs") {
            generations.extend(ended_before_a_kill);
            generations.sort_unstable();
            generations.dedup();
        }
        assert_eq!(
            generations,
            (1..=generation).collect::<Vec<_>>(),
            "{flags:?}"
        );
    }
}

#[test]
fn a_lease_that_ends_gives_the_work_to_the_next_worker() {
    let encke = Encke::start(&[]);
    encke.create("wakes");
    put(&encke, "s", &pull_wake(5_000), 201);
    encke.create("jobs/a");
    append(&encke, "jobs/a", 1);
    let begin = Instant::now();
    let first = json_of(&claim(&encke, "s", "first"));
    let mut second = Value::Null;
    eventually("the lease is over", || {
        let claimed = claim(&encke, "s", "second");
        second = json_of(&claimed);
        claimed.status == 200
    });
    assert!(begin.elapsed() >= Duration::from_secs(5));
    let late = report(&encke, "s", "ack", &first, &json!([]), true);
    assert_eq!((late.status, &*late.error_code()), (409, "FENCED"));
    let released = report(&encke, "s", "release", &second, &json!([]), false);
    assert_eq!(released.status, 204, "{released:?}");
    assert_eq!(claim(&encke, "s", "third").status, 200);
}

#[test]
fn webhooks_reach_no_address_that_is_not_allowed() {
    let receiver = Receiver::start(Answer::Says(200, "{}"));
    let encke = Encke::start(&[]);
    for url in [
        receiver.url(),
        receiver.url().replace("http:", "https:"),
        "http://example.com/".to_owned(),
        "https://10.0.0.1/".to_owned(),
        "https://[::1]/".to_owned(),
        "https://169.254.169.254/".to_owned(),
    ] {
        let config = json!({ "type": "webhook", "pattern": "jobs/*", "webhook": { "url": url } });
        let refused = ask(&encke, "PUT", &subscription("s"), &config);
        let code = refused.error_code();
        assert_eq!(
            (refused.status, &*code),
            (400, "WEBHOOK_URL_REJECTED"),
            "{url}"
        );
    }
    // A name that leads there is refused when it is called.
    let url = format!("https://localhost:{}/", receiver.address.port());
    let config = json!({ "type": "webhook", "pattern": "jobs/*", "webhook": { "url": url } });
    let made = ask(&encke, "PUT", &subscription("s"), &config);
    if made.status == 201 {
        encke.create("jobs/a");
        append(&encke, "jobs/a", 1);
        encke.wait_for_metric("encke_subscriptions_failing", 1.0);
    } else {
        assert_eq!(made.error_code(), "WEBHOOK_URL_REJECTED");
    }
    assert!(receiver.calls().is_empty());
}

#[test]
fn webhooks_are_not_redirected() {
    let target = Receiver::start(Answer::Says(200, r#"{"done":true}"#));
    let receiver = Receiver::start(Answer::Redirects(target.url()));
    let encke = Encke::start(LOOPBACK);
    put(&encke, "s", &webhook(&receiver, 30_000), 201);
    encke.create("jobs/a");
    append(&encke, "jobs/a", 1);
    receiver.call(1);
    assert!(target.calls().is_empty());
    encke.wait_for_metric("encke_subscriptions_failing", 1.0);
}

#[test]
fn receivers_that_never_respond_delay_nothing_else() {
    let silent = Receiver::start(Answer::Waits);
    let receiver = Receiver::start(Answer::Says(200, r#"{"done":true}"#));
    let bounds = [
        "--tuning",
        "webhook-timeout=60s",
        "--tuning",
        "webhooks-per-receiver=6",
    ];
    let encke = Encke::start(&[LOOPBACK, &bounds].concat());
    encke.create("jobs/a");
    for number in 0..40 {
        put(
            &encke,
            &format!("silent-{number}"),
            &webhook(&silent, 60_000),
            201,
        );
    }
    put(&encke, "s", &webhook(&receiver, 60_000), 201);
    let begin = Instant::now();
    append(&encke, "jobs/a", 1);
    receiver.call(0);
    // As many as to one receiver at a time, and none of them is over.
    encke.wait_for_metric("encke_webhook_calls_under_way", 6.0);
    assert!(begin.elapsed() < Duration::from_secs(30));
    let begin = Instant::now();
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0));
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn subscriptions_are_bounded() {
    let encke = Encke::start(&[
        "--tuning",
        "subscriptions-max=2",
        "--tuning",
        "subscription-links-max=3",
        "--tuning",
        "subscription-links-in-all-max=5",
        "--tuning",
        "webhooks-max=0",
    ]);
    encke.create("wakes");
    for id in ["a", "b"] {
        put(&encke, id, &pull_wake(1_000), 201);
    }
    let refused = ask(&encke, "PUT", &subscription("c"), &pull_wake(1_000));
    let code = refused.error_code();
    assert_eq!((refused.status, &*code), (507, "too_many_subscriptions"));
    assert_eq!(
        ask(&encke, "DELETE", &subscription("b"), &Value::Null).status,
        204
    );
    let streams = json!(["x/1", "x/2", "x/3", "x/4"]);
    let many = json!({ "type": "pull-wake", "streams": streams, "wake_stream": "wakes" });
    let refused = ask(&encke, "PUT", &subscription("c"), &many);
    assert_eq!(
        (refused.status, &*refused.error_code()),
        (507, "too_many_links")
    );
    let receiver = Receiver::start(Answer::Says(200, "{}"));
    let refused = ask(
        &encke,
        "PUT",
        &subscription("c"),
        &webhook(&receiver, 1_000),
    );
    assert_eq!(refused.status, 400, "{refused:?}");
    put(&encke, "c", &pull_wake(1_000), 201);
    // A stream that a pattern matches beyond the bounds is not followed, and is counted: the first follows three, the other one two.
    for number in 0..5 {
        let stream = format!("jobs/{number}");
        encke.create(&stream);
        append(&encke, &stream, number);
    }
    eventually("the others are refused", || {
        encke.metric("encke_subscription_links_refused_total", "") >= 5.0
    });
    encke.wait_for_metric("encke_subscription_links", 5.0);
}

#[test]
fn any_node_takes_requests_and_the_next_dispatcher_goes_on() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir(), data_dir()];
    let start = |at: usize| node(&brokers, ["a", "b", "c"][at], dirs[at].path(), LOOPBACK);
    let mut nodes: Vec<Option<Encke>> = (0..3).map(|at| Some(start(at))).collect();
    let receiver = Receiver::start(Answer::Says(200, r#"{"done":true}"#));
    let dispatcher = |nodes: &[Option<Encke>]| {
        let mut found = 0;
        eventually("one node dispatches", || {
            let is_one = |at: &usize| {
                let node = nodes[*at].as_ref();
                node.is_some_and(|node| node.metric("encke_fleet_dispatcher", "") > 0.0)
            };
            let all: Vec<usize> = (0..3).filter(is_one).collect();
            found = all.first().copied().unwrap_or_default();
            all.len() == 1
        });
        found
    };
    let at = |nodes: &[Option<Encke>], at: usize| -> usize {
        (0..3)
            .map(|step| (at + step) % 3)
            .find(|at| nodes[*at].is_some())
            .expect("a node runs")
    };
    let node_at = |nodes: &[Option<Encke>], number: usize| at(nodes, number);
    let first = nodes[0].as_ref().expect("it runs");
    first.create("wakes");
    put(first, "pull", &pull_wake(60_000), 201);
    put(first, "hook", &webhook(&receiver, 60_000), 201);
    first.create("jobs/a");
    for round in 0..4 {
        let writer = nodes[node_at(&nodes, round)].as_ref().expect("it runs");
        append(writer, "jobs/a", round as u64);
        // Another node sees what was acknowledged here.
        let other = nodes[node_at(&nodes, round + 1)].as_ref().expect("it runs");
        let claimed = claim(other, "pull", "w");
        assert_eq!(claimed.status, 200, "{round}: {claimed:?}");
        let wake = json_of(&claimed);
        let dead = dispatcher(&nodes);
        if round % 2 == 0
            && let Some(node) = nodes[dead].take()
        {
            node.kill();
        }
        let third = nodes[node_at(&nodes, round + 2)].as_ref().expect("it runs");
        let mut done = None;
        eventually("the next dispatcher takes the report", || {
            let response = report(third, "pull", "ack", &wake, &tails(&wake["streams"]), true);
            let is_taken = response.status == 200;
            assert!(is_taken || response.status == 503, "{response:?}");
            done = Some(response);
            is_taken
        });
        let done = done.map(|response| json_of(&response)["next_wake"].clone());
        assert_eq!(done, Some(json!(false)));
        let tail = third.ask("HEAD", &path("jobs/a"), &[], b"");
        let tail = tail
            .field("Stream-Next-Offset")
            .expect("an offset")
            .to_owned();
        eventually("the webhook has done it", || {
            let described = third.ask("GET", &subscription("hook"), &[], b"");
            described.status == 200 && acked(third, "hook", "jobs/a") == tail
        });
        if nodes[dead].is_none() {
            nodes[dead] = Some(start(dead));
        }
    }
    let generations: Vec<u64> = receiver
        .calls()
        .iter()
        .filter_map(|call| call.body["generation"].as_u64())
        .collect();
    assert!(generations.is_sorted(), "{generations:?}");
}
