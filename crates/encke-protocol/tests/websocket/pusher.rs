//! Connections of the Pusher protocol and what counts while they last.

use std::sync::Arc;

use encke_protocol::{ProtocolSettings, PusherApp, PusherSettings};

use crate::server::Server;

#[test]
fn a_connection_that_closes_has_left_its_channels() {
    let app = PusherApp::new("1", "key", "0123456789abcdef".into());
    let settings = ProtocolSettings {
        pusher: PusherSettings::new(vec![app], [7; 32]).unwrap(),
        ..ProtocolSettings::default()
    };
    let registry = Arc::clone(settings.presence.registry());
    let mut server = Server::new(settings);
    let mut socket = server.open("/app/key?protocol=7", &[]);
    let subscribe = r#"{"event":"pusher:subscribe","data":{"channel":"news"}}"#;
    server.say(&mut socket, subscribe);
    assert_eq!(registry.counts("app/1/news").connections, 1);
    // The connection is still there: its last bytes are on their way.
    socket.channel.closes();
    assert_eq!(registry.counts("app/1/news").connections, 0);
}
