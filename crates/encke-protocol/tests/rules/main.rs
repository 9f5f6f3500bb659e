//! The rules of the Durable Streams protocol, one by one. Section numbers are those of its text.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod append;
mod create;
mod ending;
mod ephemeral;
mod fork;
mod http;
mod json;
mod last_messages;
mod life;
mod live;
mod read;
mod retention;
#[path = "../server/mod.rs"]
mod server;
mod times;

use server::{Said, Server};

const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const CLOSED: (&str, &str) = ("Stream-Closed", "true");

/// A server with an empty stream `a` of a type.
fn with(content_type: (&str, &str)) -> Server {
    let mut server = Server::default();
    assert_eq!(
        server.send("PUT /v1/stream/a", &[content_type], b"").status,
        201
    );
    server
}

fn get(server: &mut Server, target: &str) -> Said {
    server.send(&format!("GET /v1/stream/{target}"), &[], b"")
}

fn producer<'a>(epoch: &'a str, seq: &'a str) -> [(&'a str, &'a str); 4] {
    [
        TEXT,
        ("Producer-Id", "p"),
        ("Producer-Epoch", epoch),
        ("Producer-Seq", seq),
    ]
}
