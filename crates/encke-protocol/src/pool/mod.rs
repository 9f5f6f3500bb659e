//! The face of pools: job queues for workers that speak plain HTTP.
//!
//! ```text
//! PUT, GET, DELETE  /v1/pool/{name}                        settings in JSON; how it does; remove it
//! GET               /v1/pool                               all pools
//! POST              /v1/pool/{name}?key=&slot=&wait=       a job
//! GET               /v1/pool/{name}/work?worker=&slot=     jobs as events, or one with ?wait=
//! GET               /v1/pool/{name}/job/{id}               what has become of it
//! POST              /v1/pool/{name}/job/{id}/ack?attempt=  done; the body is the result
//! POST              /v1/pool/{name}/job/{id}/refuse?attempt=   somebody else is to try; the body says why
//! POST              /v1/pool/{name}/job/{id}/extend?attempt=&by=   more time
//! DELETE            /v1/pool/{name}/worker/{worker}        off the list
//! ```
//!
//! `ask` reads requests, `tell` writes what the pools say. The rules are those of `encke-jobs`.

mod ask;
mod tell;

pub(crate) use tell::told;

use std::sync::Arc;

use crate::durable_streams::{answer, error};
use crate::{Action, Request, Response};

/// The face of the pools.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    pub(crate) settings: Arc<PoolApiSettings>,
}

/// What can be set about the face.
#[derive(Clone, Debug)]
pub struct PoolApiSettings {
    /// The path under which the pools are found; starts and ends with `/`.
    pub root: String,
    /// Bytes of a pool's or a worker's name, decoded.
    pub name_bytes_max: usize,
    /// The longest time that a request may wait for a job or for a result, in seconds.
    pub wait_s_max: u64,
}

impl Default for PoolApiSettings {
    fn default() -> Self {
        PoolApiSettings {
            root: "/v1/pool/".into(),
            name_bytes_max: 200,
            wait_s_max: 300,
        }
    }
}

/// What the face remembers of a question that the pools answer.
#[derive(Debug)]
pub(crate) enum Asked {
    /// One that has one answer, and where the pool is found.
    Once { pool: String },
    /// A job that the client waits for.
    Result { pool: String },
    /// A worker's that is told of all jobs, and its name.
    Stream { worker: String },
    /// A worker's that wants one job as JSON.
    PollJson,
    /// A worker's that wants one job as it is, with fields that say what it is.
    PollPlain,
}

/// What a client of the pools is sent.
#[derive(Debug)]
pub enum Saying {
    /// The answer.
    Respond(Response),
    /// The beginning of an answer that goes on until one of the two hangs up.
    Open(Response),
    /// What follows of it.
    Send(Vec<u8>),
    /// The last that follows of it.
    End(Vec<u8>),
}

impl Pools {
    /// The path below the root, if the request is for this face.
    pub(crate) fn path<'a>(&self, path: &'a str) -> Option<&'a str> {
        let root = &*self.settings.root;
        path.strip_prefix(root)
            .or_else(|| (root.strip_suffix('/') == Some(path)).then_some(""))
    }

    pub(crate) fn request(&self, mut request: Request<'_>, path: &str) -> Action {
        if request.method == "OPTIONS" {
            return Action::Respond(
                answer(204)
                    .field(
                        "Access-Control-Allow-Methods",
                        "GET, PUT, POST, DELETE, OPTIONS",
                    )
                    .field(
                        "Access-Control-Allow-Headers",
                        "Content-Type, Authorization, Last-Event-ID",
                    )
                    .field("Access-Control-Max-Age", "86400"),
            );
        }
        self.ask(&mut request, path).unwrap_or_else(Action::Respond)
    }

    pub(crate) fn heartbeat() -> &'static [u8] {
        b":\n\n"
    }
}

fn bad(code: &'static str, why: impl Into<String>) -> Response {
    error(400, code, why.into())
}
