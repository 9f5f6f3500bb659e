//! The protocols, sans-IO.
//!
//! A face gets a parsed [`Request`] and gives an [`Action`]: a response, a command to commit, a
//! part of a stream to read, or a subscription. What must be waited for comes back with the
//! face's own [`Then`] to [`Router::committed`], [`Router::fetched`] and their like. Subscribers'
//! records are turned into bytes by [`Router::encode`], once for all who are at the same place.
//!
//! The one invariant: **a face never sees a socket, a clock or a file.** The time is in the
//! request; the same request over the same streams gets the same answer, under the reactor, under
//! HTTP/2, under the fuzzer.
//!
//! Start reading at [`Router::request`], then [`durable_streams`] and [`pool`].

mod action;
mod admin;
pub mod durable_streams;
pub mod events;
mod json;
pub mod pool;
mod query;
mod request;
mod response;
mod router;
mod run;

pub use action::{Action, Failure, Look, Member, Part, Poll, Subscribe, SubscribeAll, Then};
pub use admin::{Admin, Probes};
pub use pool::Saying;
pub use request::{Headers, Request, Via};
pub use response::{Body, Response};
pub use router::{ProtocolSettings, Router};
pub use run::{Farewell, Mark, Run, Style};
