//! The Pusher protocol: clients in raw frames, and servers that sign their requests byte by byte.

mod api;
mod attacks;
mod client_events;
mod members;
mod nodes;
mod replay;
mod sockets;
mod stops;
mod users;
mod webhooks;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet;
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Brokers, Connection, Encke, Response, data_dir, serve};

/// A server with the apps `1` and `2`.
struct PusherServer {
    encke: Encke,
    data: TempDir,
    config: TempDir,
}

/// An app as its servers know it.
#[derive(Clone, Copy)]
struct AppAccess {
    id: &'static str,
    key: &'static str,
    secret: &'static str,
}

const FIRST: AppAccess = AppAccess {
    id: "1",
    key: "first-key",
    secret: "secret of the first app",
};

const SECOND: AppAccess = AppAccess {
    id: "2",
    key: "second-key",
    secret: "secret of the second app",
};

/// The message of a client that the server answers with `pusher:pong`.
const PING: &str = "{\"event\":\"pusher:ping\",\"data\":{}}";

impl PusherServer {
    fn start() -> PusherServer {
        PusherServer::start_with("", "")
    }

    /// With further keys of the first app, and further text of the file.
    fn start_with(keys: &str, further: &str) -> PusherServer {
        PusherServer::start_by(keys, further, |data| serve(data, &[]))
    }

    /// A node of a fleet, with further keys of the first app.
    fn at_node(brokers: &Brokers, name: &str, keys: &str) -> PusherServer {
        PusherServer::start_by(keys, "", |data| fleet::command(brokers, name, data, &[]))
    }

    fn start_by(
        keys: &str,
        further: &str,
        command: impl FnOnce(&Path) -> std::process::Command,
    ) -> PusherServer {
        let (data, folder) = (data_dir(), data_dir());
        let config = folder.path().join("encke.toml");
        let text = format!("{}{keys}\n{}{further}", entry(FIRST), entry(SECOND));
        std::fs::write(&config, text).expect("a file can be written");
        PusherServer {
            encke: Encke::start_by(command(data.path()).arg("--config").arg(config)),
            data,
            config: folder,
        }
    }

    /// Kills it and starts another one with the same data.
    fn killed(self) -> PusherServer {
        self.restarted(Encke::kill)
    }

    /// Ends it and starts another one with the same data.
    fn restarted(self, end: impl FnOnce(Encke)) -> PusherServer {
        let PusherServer {
            encke,
            data,
            config,
        } = self;
        end(encke);
        let file = config.path().join("encke.toml");
        PusherServer {
            encke: Encke::start_by(serve(data.path(), &[]).arg("--config").arg(file)),
            data,
            config,
        }
    }

    /// A client of the first app, and its socket id.
    fn connect(&self) -> (WebSocketClient, String) {
        self.connect_with(&[])
    }

    fn connect_with(&self, fields: &[&str]) -> (WebSocketClient, String) {
        let client = WebSocketClient::open(self.encke.address, &target(FIRST), fields);
        established(client)
    }

    /// The same over a connection.
    fn connect_on(&self, connection: Connection) -> (WebSocketClient, String) {
        established(WebSocketClient::try_open_on(connection, &target(FIRST), &[]).1)
    }

    /// A client that is subscribed to a public channel, and its socket id.
    fn subscribed(&self, channel: &str) -> (WebSocketClient, String) {
        let (mut client, socket) = self.connect();
        let answer = client.ask(&subscribe(channel, None));
        assert_eq!(answer, succeeded(channel));
        (client, socket)
    }

    /// A request of a server of the first app.
    fn ask(&self, method: &str, path: &str, query: &str, body: &str) -> Response {
        let target = FIRST.signed(method, path, query, body, now_s());
        self.encke.ask(method, &target, &[], body.as_bytes())
    }

    /// Triggers an event with these members.
    fn trigger(&self, event: &Value) -> Response {
        self.ask("POST", "/apps/1/events", "", &event.to_string())
    }

    /// The same, which is accepted.
    fn triggered(&self, event: &Value) {
        let answer = self.trigger(event);
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// Waits until clients of a channel have its latest event: who is subscribed and has not caught up yet may lose events of clients.
    fn caught_up(&self, channel: &str, clients: &mut [&mut WebSocketClient]) {
        self.triggered(&json!({ "name": "latest", "channel": channel, "data": "" }));
        for client in clients {
            assert_eq!(client.message(), Some(event("latest", channel, "")));
        }
    }

    /// What a server of the first app is told.
    fn told(&self, path: &str, query: &str) -> Value {
        let answer = self.ask("GET", path, query, "");
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_slice(&answer.body).expect("it is JSON")
    }
}

impl AppAccess {
    fn sign(self, text: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes());
        hex(hmac::sign(&key, text.as_bytes()).as_ref())
    }

    /// What authorises a socket for a channel.
    fn auth(self, socket: &str, channel: &str) -> String {
        let signature = self.sign(&format!("{socket}:{channel}"));
        format!("{}:{signature}", self.key)
    }

    /// The target of a signed request. The parameters in `query` sort behind those of the signature.
    fn signed(self, method: &str, path: &str, query: &str, body: &str, time_s: u64) -> String {
        let mut parameters = format!(
            "auth_key={}&auth_timestamp={time_s}&auth_version=1.0",
            self.key
        );
        if !body.is_empty() {
            parameters.push_str(&format!("&body_md5={:x}", md5::compute(body)));
        }
        if !query.is_empty() {
            parameters.push_str(&format!("&{query}"));
        }
        let signature = self.sign(&format!("{method}\n{path}\n{parameters}"));
        format!("{path}?{parameters}&auth_signature={signature}")
    }
}

fn entry(app: AppAccess) -> String {
    let AppAccess { id, key, secret } = app;
    format!("[[pusher.apps]]\nid = '{id}'\nkey = '{key}'\nsecret = '{secret}'\n")
}

/// A client that has just connected, and its socket id.
fn established(mut client: WebSocketClient) -> (WebSocketClient, String) {
    let hello = client.message().expect("the server says who it is");
    assert_eq!(hello["event"], "pusher:connection_established", "{hello}");
    let data = inner(&hello);
    assert_eq!(data["activity_timeout"], 120);
    let socket = data["socket_id"].as_str().expect("it has an id").to_owned();
    (client, socket)
}

/// Ends a subscription. It has ended when the server answers what follows.
fn leave(client: &mut WebSocketClient, channel: &str) {
    let data = json!({ "channel": channel });
    client.send(&json!({ "event": "pusher:unsubscribe", "data": data }).to_string());
    let answer = client.ask(PING);
    assert_eq!(answer["event"], "pusher:pong", "{answer}");
}

/// Where clients of an app connect.
fn target(app: AppAccess) -> String {
    format!(
        "/app/{}?protocol=7&client=js&version=8.4.0&flash=false",
        app.key
    )
}

fn subscribe(channel: &str, auth: Option<&str>) -> String {
    let mut data = json!({ "channel": channel });
    if let Some(auth) = auth {
        data["auth"] = auth.into();
    }
    json!({ "event": "pusher:subscribe", "data": data }).to_string()
}

fn succeeded(channel: &str) -> Value {
    json!({ "event": "pusher_internal:subscription_succeeded", "channel": channel, "data": "{}" })
}

fn event(name: &str, channel: &str, data: &str) -> Value {
    json!({ "event": name, "channel": channel, "data": data })
}

/// The data of a message, which is JSON in a string.
fn inner(message: &Value) -> Value {
    let data = message["data"].as_str().expect("the data is a string");
    serde_json::from_str(data).expect("it holds JSON")
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is later than 1970").as_secs()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
