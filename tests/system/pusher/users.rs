//! Users: a client signs in as one, gets the events for it, and is sent away with all others of it.

use serde_json::{Value, json};

use super::{AppAccess, FIRST, PusherServer, SECOND, event, inner, subscribe, succeeded};
use crate::rig::Brokers;
use crate::rig::websocket::WebSocketClient;

/// The message that signs a client in.
pub(super) fn sign_in(app: AppAccess, socket: &str, user: &Value) -> String {
    let user = user.to_string();
    let signature = app.sign(&format!("{socket}::user::{user}"));
    let data = json!({ "auth": format!("{}:{signature}", app.key), "user_data": user });
    json!({ "event": "pusher:signin", "data": data }).to_string()
}

fn signed_in(server: &PusherServer, id: &str) -> (WebSocketClient, String) {
    let (mut client, socket) = server.connect();
    let user = json!({ "id": id, "user_info": { "name": id } });
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
