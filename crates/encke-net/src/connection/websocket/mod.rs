//! WebSocket (RFC 6455): one channel, on which the client may send messages at any time, and feeds come and go. It has a connection of
//! HTTP/1.1 to itself, or a stream of HTTP/2, and does not know which: it writes to the output of its event.
//!
//! Each message of the client is an exchange, whose response is a message. A message is looked at when the one before it is
//! decided: its command is on its way, or its response is written. A subscription is an exchange that stays: its feed delivers
//! messages until the client ends it, or the stream does.
//!
//! A reader goes from `events`, which says what happens to a channel, to `frames` and `messages`, which look at what the client has sent, and
//! to `ending`. `work` is what a channel has beside itself while something is under way.
//!
//! The one invariant: **messages are whole and in order.** What the socket takes of a message in part is kept, and nothing else is
//! written before its rest.

mod ending;
mod events;
mod frames;
mod long_message;
mod messages;
mod rest;
mod state;
mod work;

#[cfg(test)]
pub(crate) use frames::INFLATED_BYTES_AT_ONCE;
pub(crate) use rest::RestingChannel;
pub(crate) use state::{OpenedChannel, WebSocket};
