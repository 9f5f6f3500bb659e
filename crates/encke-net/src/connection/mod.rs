//! Connections without I/O: events and time in, effects out.
//!
//! A [`Connection`] knows no descriptor, no epoll and no shard. It is given what its socket has received ([`Event`]) and what
//! came of its earlier wishes ([`exchange::ExchangeEvent`]), and says what it wants done ([`effect::ConnectionEffect`]). Everything else that it uses,
//! the time, the protocols and the limits, is in the [`context::Context`].
//!
//! A connection speaks HTTP/1.1 (`http1`), with one exchange at a time, or HTTP/2 (`http2`), with many. A [`websocket`] has a connection or a
//! stream to itself (`channel`). An [`exchange`] is one request and its response, the same on both wires. A connection that only waits is at
//! [`rest`]: a few bytes, which another process could take over.
//!
//! `state` is a connection, `rest` what is left of one that waits, `output` what its socket has not taken, and `events` what it does.
//!
//! The one invariant: **what a connection does depends on its events and on the time in its context only.**

mod channel;
pub(crate) mod close;
pub(crate) mod context;
pub(crate) mod effect;
mod ending;
mod events;
pub(crate) mod exchange;
pub(crate) mod exchange_id;
mod http1;
mod http2;
pub(crate) mod moved;
pub(crate) mod outbound;
mod output;
mod request_count;
pub(crate) mod rest;
mod state;
pub(crate) mod timer;
pub(crate) mod websocket;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use events::Event;
pub(crate) use state::Connection;
