//! Webhooks: what servers are told of channels, and how many subscriptions clients are told of.

use aws_lc_rs::digest;
use serde_json::{Value, json};

use super::members::join;
use super::{FIRST, PING, PusherServer, hex, inner, subscribe, succeeded};

use crate::rig::websocket::WebSocketClient;
use crate::rig::{
    Answer, Brokers, Ended, JSON, PATIENCE, Receiver, WebhookCall, command, eventually, path,
};

/// The stream of what webhooks are told of.
const LOG: &str = "app/1/%23webhooks";

const ROOM: &str = "presence-room";

/// More than a call of a webhook has.
const EARLY_CHANNELS: usize = 120;

const ALL: &str = "'channel_occupied', 'channel_vacated', 'member_added', 'member_removed', 'client_event', 'cache_miss', 'subscription_count'";

/// The keys of an app with a webhook that is told of these events.
fn webhook(receiver: &Receiver, events: &str) -> String {
    let url = receiver.url();
    format!("client-events = true\n[[pusher.apps.webhooks]]\nurl = '{url}'\nevents = [{events}]")
}

/// The events of a call, in short.
fn events_of(call: &WebhookCall) -> Vec<String> {
    let events = call.body["events"].as_array().expect("a list");
    let short = |event: &Value| {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        let short = format!("{} {}", text("name"), text("channel"));
        let count = event["subscription_count"].as_u64();
        let count = count.map(|count| count.to_string());
        let more = match count {
            Some(count) => count,
            None => text("user_id").to_owned(),
        };
        format!("{short} {more}").trim_end().to_owned()
    };
    events.iter().map(short).collect()
}

/// What the receiver was told, call by call.
fn told(receiver: &Receiver) -> Vec<String> {
    receiver.calls().iter().flat_map(events_of).collect()
}

/// Waits until the receiver was told exactly these, in any order.
fn is_told(receiver: &Receiver, expected: &[&str]) {
    let sorted = || {
        let mut told = told(receiver);
        told.sort();
        told
    };
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    let begin = std::time::Instant::now();
    while sorted() != expected {
        assert!(begin.elapsed() < PATIENCE, "{:?}", told(receiver));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// How many events the log of webhooks has.
fn events_in_log(server: &PusherServer) -> usize {
    let log = server.encke.ask("GET", &path(LOG), &[], b"");
    match log.status {
        404 => 0,
        _ => server.encke.messages(LOG).len(),
    }
}

/// Waits until it is stored that a receiver was told all that is in the log: it is told again otherwise, after a kill.
fn is_recorded(server: &PusherServer, receiver: &Receiver) {
    let digest = digest::digest(&digest::SHA256, receiver.url().as_bytes());
    let reached = format!("app/1/%23webhook-reached-{}", hex(&digest.as_ref()[..16]));
    eventually("it is stored how far the webhook is", || {
        let log = server.encke.ask("HEAD", &path(LOG), &[], b"");
        let records = server.encke.messages(&reached);
        let last = records.last().expect("the begin");
        last["reached"] == *log.field("Stream-Next-Offset").expect("it has one")
    });
}

/// A client's next message about a number of subscriptions.
fn count(client: &mut WebSocketClient) -> u64 {
    let message = client.message().expect("it comes");
    assert_eq!(
        message["event"], "pusher_internal:subscription_count",
        "{message}"
    );
    let count = inner(&message)["subscription_count"].clone();
    count.as_u64().expect("a number")
}

#[test]
fn servers_are_told_what_happens_to_channels_in_signed_calls() {
    let receiver = Receiver::start(Answer::Says(200, "{}"));
    let server = PusherServer::start_with(&webhook(&receiver, ALL), "");
    let (news, _) = server.subscribed("news");
    let (bob, _) = join(&server, ROOM, "bob");
    is_told(
        &receiver,
        &[
            "channel_occupied news",
            &format!("channel_occupied {ROOM}"),
            &format!("member_added {ROOM} bob"),
            "subscription_count news 1",
            &format!("subscription_count {ROOM} 1"),
        ],
    );
    let call = receiver.call(0);
    assert_eq!(call.field("X-Pusher-Key"), FIRST.key);
    let body = String::from_utf8(call.raw.clone()).expect("it is text");
    assert_eq!(call.field("X-Pusher-Signature"), FIRST.sign(&body));
    assert_eq!(call.field("Content-Type"), "application/json");
    assert!(
        call.body["time_ms"].as_u64() > Some(1_700_000_000_000),
        "{body}"
    );

    let seen = receiver.calls().len();
    let (mut private, socket) = server.connect();
    let auth = FIRST.auth(&socket, "private-a");
    let answer = private.ask(&subscribe("private-a", Some(&auth)));
    assert_eq!(answer, succeeded("private-a"));
    private.send(
        &json!({ "event": "client-typing", "channel": "private-a", "data": { "x": 1 } })
            .to_string(),
    );
    let (mut cache, _) = server.connect();
    assert_eq!(cache.ask(&subscribe("cache-a", None)), succeeded("cache-a"));
    assert_eq!(
        cache.message().expect("it comes")["event"],
        "pusher:cache_miss"
    );
    let of_clients = || {
        let calls = receiver.calls().split_off(seen);
        let events = calls
            .iter()
            .flat_map(|call| call.body["events"].as_array().cloned());
        let is_wanted = |event: &Value| {
            ["client_event", "cache_miss"]
                .iter()
                .any(|name| event["name"] == *name)
        };
        let mut wanted: Vec<Value> = events.flatten().filter(is_wanted).collect();
        wanted.sort_by_key(|event| event["name"].to_string());
        wanted
    };
    eventually("both are told", || of_clients().len() == 2);
    assert_eq!(
        of_clients(),
        [
            json!({ "name": "cache_miss", "channel": "cache-a" }),
            json!({
                "name": "client_event", "channel": "private-a", "event": "client-typing",
                "data": "{\"x\":1}", "socket_id": socket,
            }),
        ]
    );
    drop((news, bob));
    let gone = [
        "channel_vacated news".to_owned(),
        format!("member_removed {ROOM} bob"),
        format!("channel_vacated {ROOM}"),
    ];
    eventually("they are gone", || {
        let told = told(&receiver);
        gone.iter().all(|one| told.contains(one))
    });
    let told = told(&receiver);
    let at = |of: &str| told.iter().position(|one| one == of);
    assert!(at(&gone[1]) < at(&gone[2]), "{told:?}");
    // Whoever reads the stream has the same.
    let log = server.encke.messages(LOG);
    assert_eq!(log[0]["name"], "channel_occupied", "{log:?}");
    let metric = |name, label| server.encke.metric(name, label);
    eventually("all that was accepted is counted", || {
        metric("encke_pusher_webhook_calls_total", "outcome=\"accepted\"") >= 3.0
            && metric("encke_pusher_webhook_events_total", "") >= told.len() as f64
    });
}

#[test]
fn a_webhook_that_fails_is_called_again_and_misses_nothing() {
    let receiver = Receiver::start(Answer::Says(503, ""));
    let server = PusherServer::start_with(
        &webhook(&receiver, "'channel_occupied', 'channel_vacated'"),
        "",
    );
    let (_one, _) = server.subscribed("one");
    receiver.call(1);
    let (_two, _) = server.subscribed("two");
    let label = "outcome=\"failed\"";
    assert!(
        server
            .encke
            .metric("encke_pusher_webhook_calls_total", label)
            >= 1.0
    );
    assert_eq!(events_of(&receiver.call(1))[0], "channel_occupied one");
    // It comes back while the server is away.
    eventually("all is in the log", || events_in_log(&server) == 2);
    let failed = receiver.calls().len();
    let server = server.killed();
    let (_three, _) = server.subscribed("three");
    receiver.answers(Answer::Says(200, "{}"));
    let accepted = || -> Vec<String> {
        let calls = receiver.calls().split_off(failed);
        // Those before the last one that begins with the first event were refused.
        let last = calls
            .iter()
            .rposition(|call| events_of(call)[0] == "channel_occupied one");
        let accepted = calls.iter().skip(last.unwrap_or(calls.len()));
        accepted.flat_map(events_of).collect()
    };
    eventually("all is told, in order", || {
        accepted()
            == [
                "channel_occupied one",
                "channel_occupied two",
                "channel_occupied three",
                "channel_vacated one",
                "channel_vacated two",
            ]
    });
}

#[test]
fn what_a_webhook_has_accepted_is_not_told_again_when_what_follows_is_refused() {
    let receiver = Receiver::start(Answer::Says(503, ""));
    let server = PusherServer::start_with(&webhook(&receiver, "'channel_occupied'"), "");
    let mut clients = [server.connect().0, server.connect().0];
    for number in 0..EARLY_CHANNELS {
        clients[number % 2].send(&subscribe(&format!("early-{number}"), None));
    }
    eventually("those are in the log", || {
        events_in_log(&server) == EARLY_CHANNELS
    });
    clients[0].send(&subscribe("late", None));
    eventually("and the one behind them", || {
        events_in_log(&server) == EARLY_CHANNELS + 1
    });
    let seen = receiver.calls().len();
    receiver.answers(Answer::Refuses("\"late\""));
    let of_late = |calls: &[WebhookCall]| {
        let calls = calls.iter().map(events_of);
        calls
            .filter(|events| events.contains(&"channel_occupied late".to_owned()))
            .count()
    };
    eventually("what follows is tried twice", || {
        of_late(&receiver.calls()[seen..]) >= 2
    });
    receiver.answers(Answer::Says(200, "{}"));
    let label = "outcome=\"accepted\"";
    let accepted = || {
        server
            .encke
            .metric("encke_pusher_webhook_calls_total", label)
    };
    eventually("it is accepted", || accepted() >= 2.0);
    let calls = receiver.calls().split_off(seen);
    let of_first = calls.iter().map(events_of);
    let of_first =
        of_first.filter(|events| events.contains(&"channel_occupied early-0".to_owned()));
    assert_eq!(of_first.count(), 1);
    assert!(of_late(&calls) >= 3, "it was refused twice at least");
}

#[test]
fn a_webhook_is_told_of_what_it_asks_for_and_only_from_its_begin_on() {
    let first = Receiver::start(Answer::Says(200, "{}"));
    let server = PusherServer::start_with(&webhook(&first, "'channel_occupied'"), "");
    let (_news, _) = server.subscribed("news");
    is_told(&first, &["channel_occupied news"]);
    is_recorded(&server, &first);
    // Another one is added.
    let second = Receiver::start(Answer::Says(200, "{}"));
    let file = server.config.path().join("encke.toml");
    let text = std::fs::read_to_string(&file).expect("it can be read");
    let more = format!(
        "[[pusher.apps.webhooks]]\nurl = '{}'\nevents = ['channel_occupied', 'channel_vacated']\nchannels = 'x-'\n[[pusher.apps]]\nid = '2'",
        second.url()
    );
    let text = text.replace("[[pusher.apps]]\nid = '2'", &more);
    std::fs::write(&file, text).expect("it can be written");
    let server = server.killed();
    let (_x, _) = server.subscribed("x-a");
    let (_news, _) = server.subscribed("news");
    is_told(&second, &["channel_occupied x-a"]);
    // The log has told of the news before: they were not away for long.
    is_told(&first, &["channel_occupied news", "channel_occupied x-a"]);
}

/// Two clients of a private channel, who get what others send.
fn pair(server: &PusherServer) -> [WebSocketClient; 2] {
    let [mut sender, mut other] = [(), ()].map(|()| {
        let (mut client, socket) = server.connect();
        let auth = FIRST.auth(&socket, "private-a");
        let answer = client.ask(&subscribe("private-a", Some(&auth)));
        assert_eq!(answer, succeeded("private-a"));
        client
    });
    server.caught_up("private-a", &mut [&mut sender, &mut other]);
    [sender, other]
}

/// What a client sends to the others.
fn typing(number: usize) -> String {
    json!({ "event": "client-typing", "channel": "private-a", "data": number }).to_string()
}

/// The numbers of the events of clients that the log has.
fn typed(server: &PusherServer) -> Vec<u64> {
    let log = server.encke.messages(LOG).into_iter();
    let log = log.filter(|event| event["name"] == "client_event");
    log.map(|event| {
        event["data"]
            .as_str()
            .expect("a text")
            .parse()
            .expect("ours")
    })
    .collect()
}

#[test]
fn what_clients_did_before_a_stop_or_an_upgrade_is_in_the_log() {
    let receiver = Receiver::start(Answer::Says(200, "{}"));
    let keys = format!(
        "client-events-per-second = 1000000\n{}",
        webhook(&receiver, "'client_event'")
    );
    let server = PusherServer::start_with(&keys, "");
    let [mut sender, mut other] = pair(&server);
    for number in 0..20 {
        sender.send(&typing(number));
        assert_eq!(other.message().expect("it comes")["event"], "client-typing");
    }
    let server = server.restarted(|encke| drop(encke.terminate()));
    let expected: Vec<u64> = (0..20).collect();
    assert_eq!(typed(&server), expected);
    // Events go on while connections move to the next process. What is delivered then may be lost.
    let [mut sender, _other] = pair(&server);
    let upgrades = std::thread::scope(|scope| {
        let upgrade =
            scope.spawn(|| Ended::of(command(&["upgrade", "--json"]).arg(server.data.path())));
        let mut number = 20;
        while number < 200 || !upgrade.is_finished() {
            sender.send(&typing(number));
            assert_eq!(sender.ask(PING)["event"], "pusher:pong");
            number += 1;
        }
        assert_eq!(upgrade.join().expect("it ends").code, Some(0));
        number
    });
    eventually("all are in the log", || typed(&server).len() == upgrades);
    let expected: Vec<u64> = (0..upgrades as u64).collect();
    assert_eq!(typed(&server), expected);
}

#[test]
fn only_the_server_writes_to_the_streams_of_webhooks() {
    let receiver = Receiver::start(Answer::Says(200, "{}"));
    let server = PusherServer::start_with(&webhook(&receiver, "'channel_occupied'"), "");
    let (_news, _) = server.subscribed("news");
    is_told(&receiver, &["channel_occupied news"]);
    let before = server.encke.messages(LOG);
    let closes = ["Stream-Closed: true"];
    for stream in [LOG, "app/1/%23webhook-reached-0", "app/9/%23webhooks"] {
        for (method, fields) in [
            ("PUT", &[JSON][..]),
            ("POST", &[JSON]),
            ("POST", &closes),
            ("DELETE", &[]),
        ] {
            let answer = server.encke.ask(method, &path(stream), fields, b"{}");
            assert_eq!(
                (answer.status, &*answer.error_code()),
                (403, "webhook_stream"),
                "{method} {stream}"
            );
        }
    }
    let mut client = WebSocketClient::open(server.encke.address, "/v1/events", &[]);
    let append = json!({ "type": "append", "stream": "app/1/#webhooks", "data": 1 });
    let answer = client.ask(&append.to_string());
    assert_eq!(answer["code"], "webhook_stream", "{answer}");
    assert_eq!(server.encke.messages(LOG), before);
}

#[test]
fn one_node_of_a_fleet_calls_and_another_goes_on_when_it_is_killed() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let receiver = Receiver::start(Answer::Says(200, "{}"));
    let keys = webhook(
        &receiver,
        "'channel_occupied', 'channel_vacated', 'member_added', 'member_removed'",
    );
    let a = PusherServer::at_node(&brokers, "a", &keys);
    let b = PusherServer::at_node(&brokers, "b", &keys);
    let (_ann, _) = join(&a, ROOM, "ann");
    let (_bob, _) = join(&b, ROOM, "bob");
    let (_news, _) = b.subscribed("news");
    let mut expected = vec![
        "channel_occupied presence-room",
        "member_added presence-room ann",
        "member_added presence-room bob",
        "channel_occupied news",
    ];
    is_told(&receiver, &expected);
    is_recorded(&a, &receiver);
    // Whichever node calls, it is gone.
    let dispatches =
        |server: &PusherServer| server.encke.metric("encke_fleet_dispatcher", "") > 0.0;
    let (gone, left, expected_of_gone) = match dispatches(&a) {
        true => (a, b, &["member_removed presence-room ann"][..]),
        false => (
            b,
            a,
            &["member_removed presence-room bob", "channel_vacated news"][..],
        ),
    };
    gone.encke.kill();
    expected.extend(expected_of_gone);
    is_told(&receiver, &expected);
    let (_late, _) = left.subscribed("late");
    expected.push("channel_occupied late");
    is_told(&receiver, &expected);
}

#[test]
fn clients_are_told_how_many_are_subscribed_at_all_nodes() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let keys = "subscription-count = true";
    let nodes = ["a", "b"].map(|name| PusherServer::at_node(&brokers, name, keys));
    let (mut first, _) = nodes[0].subscribed("news");
    assert_eq!(count(&mut first), 1);
    let (mut second, _) = nodes[1].subscribed("news");
    for client in [&mut first, &mut second] {
        assert_eq!(count(client), 2);
    }
    let info = "info=subscription_count";
    for node in &nodes {
        eventually("each node knows", || {
            node.told("/apps/1/channels/news", info)
                == json!({ "occupied": true, "subscription_count": 2 })
        });
        let channels = node.told("/apps/1/channels", info);
        assert_eq!(
            channels,
            json!({ "channels": { "news": { "subscription_count": 2 } } })
        );
    }
    drop(second);
    assert_eq!(count(&mut first), 1);
}
