//! What goes over the wire: addresses, responses, events and payloads. No sockets here.

pub(crate) mod http;
pub(crate) mod payload;
pub(crate) mod sse;
pub(crate) mod target;
