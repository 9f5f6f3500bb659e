//! HTTP/1.1 on a connection: one exchange at a time, the next when the response to the last one is out.
//!
//! `input` cuts requests off what arrives, `writer` writes responses; `state` is what both of them use.

mod input;
mod state;
mod writer;

pub(crate) use state::{AfterInput, Http1, SharedWithWire};
