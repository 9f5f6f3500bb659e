//! Clients while the server stops, and while another process takes it over.

use serde_json::json;

use super::{FIRST, PusherServer, event, leave, subscribe, succeeded};
use crate::rig::{Ended, command};

#[test]
fn clients_of_a_server_that_stops_come_back_at_once() {
    let server = PusherServer::start();
    let (mut subscriber, _) = server.subscribed("news");
    let (mut idle, _) = server.connect();
    let PusherServer { encke, .. } = server;
    assert_eq!(encke.terminate().code, Some(0));
    assert_eq!(subscriber.close_code(), 4200);
    assert_eq!(idle.close_code(), 4200);
}

#[test]
fn clients_stay_connected_through_an_upgrade() {
    let server = PusherServer::start();
    let (mut client, socket) = server.subscribed("news");
    let (mut other, _) = server.subscribed("news");
    let ended = Ended::of(command(&["upgrade", "--json"]).arg(server.data.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let counts = server.told("/apps/1/channels/news", "info=subscription_count");
    assert_eq!(counts, json!({ "occupied": true, "subscription_count": 2 }));
    // It still has its id, for what it causes and for what it is authorised for.
    for (data, socket) in [("1", Some(&socket)), ("2", None)] {
        let mut trigger = json!({ "name": "e", "channel": "news", "data": data });
        if let Some(socket) = socket {
            trigger["socket_id"] = socket.as_str().into();
        }
        server.triggered(&trigger);
        assert_eq!(other.message(), Some(event("e", "news", data)));
    }
    assert_eq!(client.message(), Some(event("e", "news", "2")));
    let auth = FIRST.auth(&socket, "private-a");
    assert_eq!(
        client.ask(&subscribe("private-a", Some(&auth))),
        succeeded("private-a")
    );
    leave(&mut client, "news");
    let left = server.told("/apps/1/channels/private-a", "info=subscription_count");
    assert_eq!(left, json!({ "occupied": true, "subscription_count": 1 }));
}
