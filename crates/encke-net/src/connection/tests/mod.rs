//! What connections promise, without sockets.

mod any_input;
mod callers;
mod compression;
mod cross_origin;
mod dispatch;
mod half_close;
mod http1;
mod http2;
mod limits;
mod long_body;
mod rest;
mod stop;
mod subscriber;
mod timeouts;
mod websocket;
mod websocket_compressed;
mod websocket_http2;

use super::testing::{ReceivedResponse, Rig, responses};

/// A request with a body.
fn with_body(line: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!("{line} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{fields}\r\n{body}")
}

/// A request without a body.
fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// An append of plain text to the stream `a`.
fn append(body: &str) -> String {
    with_body("POST /v1/stream/a", "Content-Type: text/plain\r\n", body)
}

/// A rig whose server has the stream `a` with some text.
fn rig_with_stream(text: &str) -> Rig {
    let mut rig = Rig::new();
    create(&mut rig, text);
    rig.reconnect()
}

/// Creates the stream `a`.
fn create(rig: &mut Rig, text: &str) {
    let create = with_body("PUT /v1/stream/a", "Content-Type: text/plain\r\n", text);
    assert_eq!(statuses(&rig.request(&create)), [201]);
}

/// The responses that a client has received to requests that were not HEAD.
fn received(text: &str) -> Vec<ReceivedResponse> {
    responses(text.as_bytes(), |_| false)
}

fn statuses(text: &str) -> Vec<u16> {
    received(text).iter().map(|one| one.status).collect()
}
