//! What goes over the wire: addresses, responses, events and payloads. No sockets here.

pub mod http;
pub(crate) mod payload;
pub mod sse;
pub(crate) mod target;
