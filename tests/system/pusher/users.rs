//! Users: a client signs in as one, gets the events for it, and is sent away with all others of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AppAccess, FIRST, PusherServer, SECOND, event, inner, subscribe, succeeded};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Brokers, Ended, command};

/// The message that signs a client in.
pub(super) fn sign_in(app: AppAccess, socket: &str, user: &Value) -> String {
    let user = user.to_string();
    let signature = app.sign(&format!("{socket}::user::{user}"));
    let data = json!({ "auth": format!("{}:{signature}", app.key), "user_data": user });
    json!({ "event": "pusher:signin", "data": data }).to_string()
}

pub(super) fn signed_in(server: &PusherServer, id: &str) -> (WebSocketClient, String) {
    let (mut client, socket) = server.connect();
    let user = json!({ "id": id, "user_info": { "name": id.to_uppercase() } });
    let answer = client.ask(&sign_in(FIRST, &socket, &user));
    assert_eq!(answer["event"], "pusher:signin_success", "{answer}");
    assert_eq!(inner(&answer)["user_data"], user.to_string());
    (client, socket)
}

fn channel(user: &str) -> String {
    format!("#server-to-user-{user}")
}

#[test]
fn events_for_a_user_reach_all_its_clients_and_no_other() {
    let server = PusherServer::start();
    let (mut phone, socket) = signed_in(&server, "ann");
    let (mut laptop, _) = signed_in(&server, "ann");
    let (mut bob, _) = signed_in(&server, "bob");
    // Libraries subscribe to the channel themselves.
    assert_eq!(
        phone.ask(&subscribe(&channel("ann"), None)),
        succeeded(&channel("ann"))
    );
    let refused = bob.ask(&subscribe(&channel("ann"), None));
    assert_eq!(refused["data"]["type"], "AuthError", "{refused}");
    server.triggered(&json!({ "name": "e", "channel": channel("ann"), "data": "1" }));
    server.triggered(&json!({ "name": "e", "channels": [channel("bob"), "news"], "data": "2" }));
    for client in [&mut phone, &mut laptop] {
        assert_eq!(client.message(), Some(event("e", &channel("ann"), "1")));
    }
    assert_eq!(bob.message(), Some(event("e", &channel("bob"), "2")));
    for (text, word) in [
        (
            sign_in(FIRST, &socket, &json!({ "id": "eve" })),
            "signed in already",
        ),
        (
            sign_in(SECOND, &socket, &json!({ "id": "eve" })),
            "auth is not",
        ),
        (
            sign_in(FIRST, "1.1", &json!({ "id": "eve" })),
            "auth is not",
        ),
        (
            sign_in(FIRST, &socket, &json!({ "id": "a/b" })),
            "user_data is",
        ),
        (
            "{\"event\":\"pusher:signin\",\"data\":{}}".to_owned(),
            "auth and user_data",
        ),
    ] {
        let answer = phone.ask(&text);
        assert_eq!(answer["event"], "pusher:error", "{answer}");
        assert!(
            answer["data"]["message"].to_string().contains(word),
            "{answer}"
        );
    }
    // All clients of the user are closed, and stay away.
    let path = "/apps/1/users/ann/terminate_connections";
    let answer = server.ask("POST", path, "", "{}");
    assert_eq!((answer.status, &*answer.body), (200, &b"{}"[..]));
    assert_eq!((phone.close_code(), laptop.close_code()), (4009, 4009));
    server.triggered(&json!({ "name": "e", "channel": channel("bob"), "data": "3" }));
    assert_eq!(bob.message(), Some(event("e", &channel("bob"), "3")));
    for user in ["nobody", "ann"] {
        let path = format!("/apps/1/users/{user}/terminate_connections");
        assert_eq!(server.ask("POST", &path, "", "{}").status, 200);
    }
    let (mut again, _) = signed_in(&server, "ann");
    server.triggered(&json!({ "name": "e", "channel": channel("ann"), "data": "4" }));
    assert_eq!(again.message(), Some(event("e", &channel("ann"), "4")));
}

#[test]
fn a_user_is_one_at_all_nodes() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let nodes = ["a", "b"].map(|name| PusherServer::at_node(&brokers, name, ""));
    let (mut client, _) = signed_in(&nodes[0], "ann");
    nodes[1].triggered(&json!({ "name": "e", "channel": channel("ann"), "data": "1" }));
    assert_eq!(client.message(), Some(event("e", &channel("ann"), "1")));
    let path = "/apps/1/users/ann/terminate_connections";
    assert_eq!(nodes[1].ask("POST", path, "", "{}").status, 200);
    assert_eq!(client.close_code(), 4009);
}

/// A client that watches users.
struct Watcher {
    client: WebSocketClient,
    /// Those who are online, as far as it was told.
    online: BTreeSet<String>,
}

impl Watcher {
    /// One that is signed in as a user with this list.
    fn sign_in(server: &PusherServer, id: &str, watchlist: &Value) -> Watcher {
        let (mut client, socket) = server.connect();
        let user = json!({ "id": id, "watchlist": watchlist });
        let answer = client.ask(&sign_in(FIRST, &socket, &user));
        assert_eq!(answer["event"], "pusher:signin_success", "{answer}");
        let online = BTreeSet::new();
        Watcher { client, online }
    }

    /// Reads until exactly these are online. Nobody but those who `may` come or go does, though who is there may be told again.
    fn until(&mut self, online: &[&str], may: &[&str]) {
        while !self.online.iter().eq(online) {
            let message = self.client.message().expect("it comes");
            let name = message["event"].as_str().unwrap_or_default();
            assert_eq!(name, "pusher_internal:watchlist_events", "{message}");
            let data = inner(&message);
            for event in data["events"].as_array().expect("a list") {
                let is_online = event["name"] == "online";
                for user in event["user_ids"].as_array().expect("a list") {
                    let user = user.as_str().expect("an id").to_owned();
                    let is_new = is_online != self.online.contains(&user);
                    assert!(!is_new || may.contains(&&*user), "{message}");
                    match is_online {
                        true => self.online.insert(user),
                        false => self.online.remove(&user),
                    };
                }
            }
        }
    }
}

#[test]
fn who_watches_users_is_told_when_they_come_and_go() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let nodes = ["a", "b"].map(|name| PusherServer::at_node(&brokers, name, "watchlists = true"));
    let (_bob, _) = signed_in(&nodes[0], "bob");
    let mut ann = Watcher::sign_in(&nodes[0], "ann", &json!(["bob", "cid", "dan"]));
    ann.until(&["bob"], &["bob"]);
    // At both nodes.
    let (first, _) = signed_in(&nodes[1], "cid");
    ann.until(&["bob", "cid"], &["cid"]);
    let (second, _) = signed_in(&nodes[0], "cid");
    drop(first);
    let (dan, _) = signed_in(&nodes[1], "dan");
    ann.until(&["bob", "cid", "dan"], &["dan"]);
    drop(second);
    ann.until(&["bob", "dan"], &["cid"]);
    drop(dan);
    ann.until(&["bob"], &["dan"]);
    // An upgrade in place is no event, and the client still watches.
    let ended = Ended::of(command(&["upgrade", "--json"]).arg(nodes[0].data.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (dan, _) = signed_in(&nodes[1], "dan");
    ann.until(&["bob", "dan"], &["dan"]);
    drop(dan);
    ann.until(&["bob"], &["dan"]);

    let (mut client, socket) = nodes[1].connect();
    for list in [json!(7), json!(["a/b"]), json!(vec!["x"; 101])] {
        let user = json!({ "id": "fay", "watchlist": list });
        let answer = client.ask(&sign_in(FIRST, &socket, &user));
        let why = answer["data"]["message"].as_str().expect("a reason");
        assert!(why.contains("at most 100 ids"), "{why}");
    }
}

/// Their streams leave memory when nothing happens to them, though they have subscribers.
#[test]
fn clients_of_streams_at_rest_are_told_of_users_and_numbers() {
    let keys = "watchlists = true\nsubscription-count = true";
    let server = PusherServer::start_with(keys, "[tuning]\nstreams-idle = '1s'");
    let mut ann = Watcher::sign_in(&server, "ann", &json!(["bob"]));
    let (mut reader, _) = server.subscribed("news");
    let (other, _) = server.subscribed("news");
    let mut is_told = |count: u64| {
        let told = reader.message().expect("it is connected");
        assert_eq!(told["event"], "pusher_internal:subscription_count");
        inner(&told)["subscription_count"] == count
    };
    while !is_told(2) {}
    server.encke.wait_for_metric("encke_streams_in_memory", 0.0);
    let (_bob, _) = signed_in(&server, "bob");
    ann.until(&["bob"], &["bob"]);
    drop(other);
    while !is_told(1) {}
}

#[test]
fn watchers_learn_who_has_gone_before_an_upgrade() {
    let keys = "watchlists = true\npresence-grace = '60s'";
    let server = PusherServer::start_with(keys, "");
    let (bob, _) = signed_in(&server, "bob");
    let (_cid, _) = signed_in(&server, "cid");
    let mut ann = Watcher::sign_in(&server, "ann", &json!(["bob", "cid"]));
    ann.until(&["bob", "cid"], &["bob", "cid"]);
    drop(bob);
    server.encke.wait_for_metric("encke_subscribers", 2.0);
    let ended = Ended::of(command(&["upgrade", "--json"]).arg(server.data.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The successor does not know the users that the grace kept online.
    ann.until(&["cid"], &["bob"]);
}

#[test]
fn without_watchlists_nobody_is_watched() {
    let server = PusherServer::start();
    let (_bob, _) = signed_in(&server, "bob");
    let mut ann = Watcher::sign_in(&server, "ann", &json!(["bob"])).client;
    server.triggered(&json!({ "name": "e", "channel": channel("ann"), "data": "1" }));
    assert_eq!(ann.message(), Some(event("e", &channel("ann"), "1")));
    assert_eq!(server.encke.metric("encke_presence_members", ""), 0.0);
}
