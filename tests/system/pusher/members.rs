//! Presence channels: who is there, at every moment and at every node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::users::{sign_in, signed_in};
use super::{AppAccess, FIRST, PusherServer, event, inner, leave, subscribe, succeeded};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Brokers, Ended, PATIENCE, command, eventually};

const ROOM: &str = "presence-room";

/// The message that subscribes a user to a presence channel.
fn enter(app: AppAccess, socket: &str, channel: &str, user: &Value) -> String {
    let user = user.to_string();
    let signature = app.sign(&format!("{socket}:{channel}:{user}"));
    let auth = format!("{}:{signature}", app.key);
    let data = json!({ "channel": channel, "auth": auth, "channel_data": user });
    json!({ "event": "pusher:subscribe", "data": data }).to_string()
}

fn user(id: &str) -> Value {
    json!({ "user_id": id, "user_info": { "name": id.to_uppercase() } })
}

/// A client that is there as that user, and the ids that it was told.
pub(super) fn join(
    server: &PusherServer,
    channel: &str,
    id: &str,
) -> (WebSocketClient, Vec<String>) {
    let (mut client, socket) = server.connect();
    let answer = client.ask(&enter(FIRST, &socket, channel, &user(id)));
    let ids = members_of(&answer);
    (client, ids)
}

/// The ids in the message that a subscription has begun.
fn members_of(message: &Value) -> Vec<String> {
    assert_eq!(
        message["event"], "pusher_internal:subscription_succeeded",
        "{message}"
    );
    let presence = &inner(message)["presence"];
    let ids: Vec<String> = serde_json::from_value(presence["ids"].clone()).expect("a list");
    assert_eq!(presence["count"], ids.len(), "{presence}");
    for id in &ids {
        let info = json!({ "name": id.to_uppercase() });
        assert_eq!(presence["hash"][id], info, "{presence}");
    }
    ids
}

fn added(message: Option<Value>) -> String {
    changed("pusher_internal:member_added", message)
}

fn removed(message: Option<Value>) -> String {
    changed("pusher_internal:member_removed", message)
}

fn changed(kind: &str, message: Option<Value>) -> String {
    let message = message.expect("it comes");
    assert_eq!(message["event"], kind, "{message}");
    assert_eq!(message["channel"], ROOM, "{message}");
    let id = inner(&message)["user_id"].clone();
    id.as_str().expect("a text").to_owned()
}

#[test]
fn members_come_and_go_once_each() {
    let server = PusherServer::start();
    let (mut ann, ids) = join(&server, ROOM, "ann");
    assert_eq!(ids, ["ann"]);
    let (mut bob, ids) = join(&server, ROOM, "bob");
    assert_eq!(ids, ["ann", "bob"]);
    assert_eq!(added(ann.message()), "bob");
    // A second connection of a member is no event, and its end neither.
    let (mut again, ids) = join(&server, ROOM, "bob");
    assert_eq!(ids, ["ann", "bob"]);
    let counts = server.told(
        "/apps/1/channels/presence-room",
        "info=user_count,subscription_count",
    );
    let expected = json!({ "occupied": true, "user_count": 2, "subscription_count": 3 });
    assert_eq!(counts, expected);
    leave(&mut bob, ROOM);
    server.triggered(&json!({ "name": "e", "channel": ROOM, "data": "1" }));
    assert_eq!(ann.message(), Some(event("e", ROOM, "1")));
    assert_eq!(again.message(), Some(event("e", ROOM, "1")));
    let users = server.told("/apps/1/channels/presence-room/users", "");
    assert_eq!(
        users,
        json!({ "users": [{ "id": "ann" }, { "id": "bob" }] })
    );
    // At once at a hang-up.
    drop(again);
    assert_eq!(removed(ann.message()), "bob");
    let listed = server.told(
        "/apps/1/channels",
        "filter_by_prefix=presence-&info=user_count",
    );
    assert_eq!(
        listed,
        json!({ "channels": { "presence-room": { "user_count": 1 } } })
    );
    // The one who has left and stayed connected comes back.
    let (mut cid, _) = join(&server, ROOM, "cid");
    assert_eq!(added(ann.message()), "cid");
    drop(ann);
    assert_eq!(removed(cid.message()), "ann");
    drop(cid);
    eventually("nobody is there", || {
        server.told("/apps/1/channels/presence-room", "info=user_count")["user_count"] == 0
    });
    let left = || server.encke.metric("encke_presence_streams", "");
    eventually("nothing is left of the channel", || left() == 0.0);
    assert_eq!(
        server.encke.metric("encke_presence_changes_total", "join"),
        3.0
    );
    assert_eq!(
        server.encke.metric("encke_presence_changes_total", "leave"),
        3.0
    );
}

#[test]
fn a_subscription_without_a_user_is_refused() {
    let keys = "presence-members-max = 2\nclient-events = true";
    let server = PusherServer::start_with(keys, "");
    let (mut client, socket) = server.connect();
    let mut refused = |text: &str, kind: &str| {
        let answer = client.ask(text);
        assert_eq!(answer["event"], "pusher:subscription_error", "{answer}");
        assert_eq!(answer["data"]["type"], kind, "{answer}");
    };
    refused(&subscribe(ROOM, None), "AuthError");
    let auth = FIRST.auth(&socket, ROOM);
    refused(&subscribe(ROOM, Some(&auth)), "ChannelError");
    for user in [json!({}), json!({ "user_id": "" }), json!([])] {
        refused(&enter(FIRST, &socket, ROOM, &user), "ChannelError");
    }
    let long = json!({ "user_id": "a", "user_info": "x".repeat(1_100) });
    refused(&enter(FIRST, &socket, ROOM, &long), "ChannelError");
    // The signature covers the user.
    let signed = enter(FIRST, &socket, ROOM, &user("ann"));
    refused(&signed.replace("\\\"ann", "\\\"eve"), "AuthError");
    let (_ann, _) = join(&server, ROOM, "ann");
    let (_bob, _) = join(&server, ROOM, "bob");
    refused(&enter(FIRST, &socket, ROOM, &user("cid")), "LimitReached");
    assert_eq!(server.encke.metric("encke_presence_refused_total", ""), 1.0);
    // A member that is there may come again.
    let (mut again, ids) = join(&server, ROOM, "bob");
    assert_eq!(ids, ["ann", "bob"]);
    let typing = json!({ "event": "client-typing", "channel": ROOM, "data": 1 }).to_string();
    again.send(&typing);
    let (mut other, mut told) = (_ann, None);
    while told
        .as_ref()
        .is_none_or(|told: &Value| told["event"] != "client-typing")
    {
        told = Some(other.message().expect("it comes"));
    }
    let expected =
        json!({ "event": "client-typing", "channel": ROOM, "data": "1", "user_id": "bob" });
    assert_eq!(told, Some(expected));
}

#[test]
fn a_client_that_has_signed_in_joins_as_its_user() {
    let server = PusherServer::start();
    let (mut ann, _) = join(&server, ROOM, "ann");
    let (mut bob, socket) = signed_in(&server, "bob");
    let ended = Ended::of(command(&["upgrade", "--json"]).arg(server.data.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        members_of(&ann.message().expect("it is connected")),
        ["ann"]
    );
    let auth = FIRST.auth(&socket, ROOM);
    let answer = bob.ask(&subscribe(ROOM, Some(&auth)));
    assert_eq!(members_of(&answer), ["ann", "bob"]);
    let added = ann.message().expect("it comes");
    let shown = json!({ "user_id": "bob", "user_info": { "name": "BOB" } });
    assert_eq!(inner(&added), shown);
    // The data of a subscription precedes that of the sign-in.
    let answer = bob.ask(&enter(FIRST, &socket, "presence-other", &user("cid")));
    assert_eq!(members_of(&answer), ["cid"]);
    // Members have bounds that users have not.
    let (mut dan, socket) = server.connect();
    let long = json!({ "id": "dan", "user_info": "x".repeat(1_100) });
    let answer = dan.ask(&sign_in(FIRST, &socket, &long));
    assert_eq!(answer["event"], "pusher:signin_success", "{answer}");
    let auth = FIRST.auth(&socket, ROOM);
    let answer = dan.ask(&subscribe(ROOM, Some(&auth)));
    assert_eq!(answer["data"]["type"], "ChannelError", "{answer}");
    let why = answer["data"]["error"].as_str().expect("a reason");
    assert!(why.contains("1024 bytes"), "{why}");
}

#[test]
fn a_member_that_comes_back_within_its_grace_was_never_away() {
    let server = PusherServer::start_with("presence-grace = '4s'", "");
    let (mut ann, _) = join(&server, ROOM, "ann");
    let (bob, _) = join(&server, ROOM, "bob");
    assert_eq!(added(ann.message()), "bob");
    drop(bob);
    let (bob, ids) = join(&server, ROOM, "bob");
    assert_eq!(ids, ["ann", "bob"]);
    server.triggered(&json!({ "name": "e", "channel": ROOM, "data": "1" }));
    assert_eq!(ann.message(), Some(event("e", ROOM, "1")));
    let begun = Instant::now();
    drop(bob);
    assert_eq!(removed(ann.message()), "bob");
    assert!(begun.elapsed() > Duration::from_secs(3), "{begun:?}");
}

#[test]
fn many_members_are_told_exactly() {
    const MEMBERS: usize = 400;
    let server = PusherServer::start();
    let (mut watcher, _) = join(&server, ROOM, "watcher");
    let mut present = std::collections::BTreeSet::from(["watcher".to_owned()]);
    let mut members = Vec::new();
    for number in 0..MEMBERS {
        // Each of a quarter of them comes twice.
        let id = format!("m{}", number % (MEMBERS * 3 / 4));
        members.push(join(&server, ROOM, &id).0);
        if number % 3 == 0 {
            members.swap_remove(number * 7 % members.len());
        }
    }
    drop(members.split_off(members.len() / 2));
    let users = || {
        let told = server.told("/apps/1/channels/presence-room/users", "");
        let users = told["users"].as_array().expect("a list").clone();
        let ids = users
            .iter()
            .map(|user| user["id"].as_str().expect("an id").to_owned());
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    // What the watcher was told leads to what the server says.
    let begun = Instant::now();
    loop {
        let now = users();
        while present != now && watcher_has_more(&mut watcher, &mut present) {}
        if present == users() && now.len() < MEMBERS {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{present:?} and {now:?}");
    }
    drop(members);
    while present.len() > 1 {
        watcher_has_more(&mut watcher, &mut present);
    }
    assert_eq!(present, users());
}

/// Takes a message of the watcher in.
fn watcher_has_more(
    watcher: &mut WebSocketClient,
    present: &mut std::collections::BTreeSet<String>,
) -> bool {
    let message = watcher.message().expect("it is connected");
    let id = inner(&message)["user_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    match message["event"].as_str() {
        Some("pusher_internal:member_added") => assert!(present.insert(id), "twice: {message}"),
        Some("pusher_internal:member_removed") => assert!(present.remove(&id), "{message}"),
        other => panic!("{other:?}"),
    }
    true
}

#[test]
fn members_stay_through_an_upgrade() {
    let server = PusherServer::start();
    let (mut ann, _) = join(&server, ROOM, "ann");
    let (mut bob, _) = join(&server, ROOM, "bob");
    assert_eq!(added(ann.message()), "bob");
    let ended = Ended::of(command(&["upgrade", "--json"]).arg(server.data.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Each is told anew who is there.
    for client in [&mut ann, &mut bob] {
        let mut ids = members_of(&client.message().expect("it is connected"));
        while ids.len() < 2 {
            ids.push(added(client.message()));
        }
        ids.sort();
        assert_eq!(ids, ["ann", "bob"]);
    }
    drop(bob);
    assert_eq!(removed(ann.message()), "bob");
    leave(&mut ann, ROOM);
    let (_cid, ids) = join(&server, ROOM, "cid");
    assert_eq!(ids, ["cid"]);
    let news = subscribe("news", None);
    assert_eq!(
        ann.ask(&news),
        succeeded("news"),
        "nothing of the room comes"
    );
}

#[test]
fn members_are_the_same_at_all_nodes_and_end_with_theirs() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let [a, b] = ["a", "b"].map(|name| PusherServer::at_node(&brokers, name, ""));
    let (mut ann, _) = join(&a, ROOM, "ann");
    eventually("the other node knows of it", || {
        b.told("/apps/1/channels/presence-room", "info=user_count")["user_count"] == 1
    });
    let (mut bob, ids) = join(&b, ROOM, "bob");
    assert_eq!(ids, ["ann", "bob"]);
    assert_eq!(added(ann.message()), "bob");
    // At both nodes at a time: the end of one of them is no event.
    let (also, _) = join(&b, ROOM, "ann");
    drop(also);
    let (_cid, _) = join(&a, ROOM, "cid");
    assert_eq!(added(ann.message()), "cid");
    assert_eq!(added(bob.message()), "cid");
    // A node that is killed has said nothing.
    let begun = Instant::now();
    a.encke.kill();
    let mut left = [removed(bob.message()), removed(bob.message())];
    left.sort();
    assert_eq!(left, ["ann", "cid"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{begun:?}");
    let users = b.told("/apps/1/channels/presence-room/users", "");
    assert_eq!(users, json!({ "users": [{ "id": "bob" }] }));
}
