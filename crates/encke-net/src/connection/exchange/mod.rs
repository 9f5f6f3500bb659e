//! An exchange: one request and its response, on any wire.
//!
//! It asks the protocols for the action of its request, wants it done, and continues with what came of it. `events` takes
//! events, `route` has the way to the protocols, `perform` does what they want, `respond` has responses, `long_body` and
//! `compress` bodies in parts, `dispatch` requests to the dispatcher. `state` is what all of them change.

mod compress;
mod dispatch;
mod events;
mod long_body;
mod perform;
mod respond;
pub(crate) mod route;
mod state;
pub(crate) mod task;
pub(crate) mod writer;

pub(crate) use state::{ConnectionFacts, Exchange, ExchangeEvent, MessageFeeds, end_of_caller};
