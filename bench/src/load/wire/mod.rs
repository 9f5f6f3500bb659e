//! The wire format: addresses, responses, events and payloads, without sockets.

pub(crate) mod channel;
pub(crate) mod control;
pub(crate) mod http;
pub(crate) mod http2;
pub(crate) mod payload;
pub(crate) mod sse;
pub(crate) mod target;
pub(crate) mod transport;
pub(crate) mod websocket;
