//! The nodes of a fleet as one server of the protocol.

use serde_json::json;

use super::{FIRST, PusherServer, event, subscribe, succeeded};
use crate::rig::{Brokers, eventually};

#[test]
fn a_subscription_that_a_node_without_a_broker_cannot_serve_makes_the_client_come_back() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let server = PusherServer::at_node(&brokers, "a", "");
    let (mut client, _) = server.subscribed("before");
    brokers.freeze(0);
    // Clients do not repeat what was refused, but all of it when they come back.
    client.send(&subscribe("meanwhile", None));
    assert_eq!(client.close_code(), 4100);
    let reason = "reason=\"unserved\"";
    eventually("its connection is gone", || {
        server
            .encke
            .metric("encke_connections_closed_total", reason)
            == 1.0
    });
    brokers.thaw(0);
    eventually("the node is ready", || {
        server.encke.ask("GET", "/readyz", &[], b"").status == 200
    });
    let (mut client, _) = server.subscribed("before");
    assert_eq!(
        client.ask(&subscribe("meanwhile", None)),
        succeeded("meanwhile")
    );
}

#[test]
fn an_event_reaches_the_clients_of_all_nodes_but_its_causer() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let keys = "client-events = true";
    let nodes = ["a", "b"].map(|name| PusherServer::at_node(&brokers, name, keys));
    let channel = "private-room";
    let mut clients = nodes.each_ref().map(|node| {
        let (mut client, socket) = node.connect();
        let auth = FIRST.auth(&socket, channel);
        let answer = client.ask(&subscribe(channel, Some(&auth)));
        assert_eq!(answer, succeeded(channel));
        (client, socket)
    });
    assert_ne!(clients[0].1, clients[1].1);
    // The causer is connected to the other node.
    let causer = clients[1].1.clone();
    nodes[0]
        .triggered(&json!({ "name": "e", "channel": channel, "data": "1", "socket_id": causer }));
    nodes[1].triggered(&json!({ "name": "e", "channel": channel, "data": "2" }));
    for data in ["1", "2"] {
        assert_eq!(clients[0].0.message(), Some(event("e", channel, data)));
    }
    assert_eq!(clients[1].0.message(), Some(event("e", channel, "2")));
    let typing = json!({ "event": "client-typing", "channel": channel, "data": 1 }).to_string();
    clients[0].0.send(&typing);
    let got = clients[1].0.message();
    assert_eq!(got, Some(event("client-typing", channel, "1")));
    for node in &nodes {
        let stored = node.encke.messages("app/1/private-room");
        assert_eq!(stored.len(), 2, "{stored:?}");
    }
}
