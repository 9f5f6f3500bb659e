//! Endpoints for operators: liveness, readiness, metrics.

use std::sync::Arc;

use crate::action::Action;
use crate::problem::error;
use crate::request::Request;
use crate::response::Response;

/// The sources of the answers. They run on a shard's thread, so they must not block.
#[derive(Clone)]
pub struct Probes {
    /// Why the server is not ready; `None` if it is.
    pub unready: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// All metrics in the Prometheus text format.
    pub metrics: Arc<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probes")
    }
}

/// The endpoints `/healthz`, `/readyz` and `/metrics`, and an overview at `/`.
#[derive(Clone, Debug)]
pub struct Admin {
    probes: Probes,
}

impl Admin {
    /// The endpoints over their sources.
    pub fn new(probes: Probes) -> Self {
        Admin { probes }
    }

    pub(crate) fn request(&self, request: &Request<'_>) -> Action {
        let known = matches!(request.path, "/" | "/healthz" | "/readyz" | "/metrics");
        if known && !matches!(request.method, "GET" | "HEAD") {
            let why = format!("{} is not allowed here, only GET, HEAD", request.method);
            let response = error(405, "method_not_allowed", why);
            return Action::Respond(response.field("Allow", "GET, HEAD"));
        }
        Action::Respond(match request.path {
            "/" => plain(200, WELCOME),
            "/healthz" => plain(200, "ok\n"),
            "/readyz" => match (self.probes.unready)() {
                None => plain(200, "ready\n"),
                Some(why) => text(503).body(format!("not ready: {why}\n")),
            },
            "/metrics" => Response::new(200)
                .field("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                .field("Cache-Control", "no-store")
                .body((self.probes.metrics)()),
            path => error(
                404,
                "not_found",
                format!(
                    "there is nothing at {path}: a stream is /v1/stream/NAME, a pool /v1/pool/NAME, several streams are /v1/events"
                ),
            ),
        })
    }
}

fn plain(status: u16, body: &'static str) -> Response {
    text(status).body(body)
}

fn text(status: u16) -> Response {
    Response::new(status)
        .field("Content-Type", "text/plain; charset=utf-8")
        .field("Cache-Control", "no-store")
        .field("X-Content-Type-Options", "nosniff")
}

const WELCOME: &str = "This is Encke, a real-time push server.\n\
    \n\
    Streams      PUT, POST, GET, HEAD, DELETE  /v1/stream/{name}\n\
    Follow one   GET /v1/stream/{name}?offset=-1&live=sse    (EventSource)\n\
    Poll one     GET /v1/stream/{name}?offset={offset}&live=long-poll\n\
    Follow many  GET /v1/events?stream={name}&stream=chat/*  (chat/* is every stream below chat/)\n\
    Pools        PUT, POST, GET, DELETE  /v1/pool/{name}\n\
    Work for one GET /v1/pool/{name}/work?worker={worker}\n\
    Health       /healthz  /readyz  /metrics\n\
    \n\
    A browser opens at most six HTTP/1.1 connections to one origin, for all tabs together, and each EventSource takes one:\n\
    follow many streams over one connection. Programs use the same URLs, or an official Durable Streams client; poll where\n\
    connections cannot stay open, or through a cache.\n";
