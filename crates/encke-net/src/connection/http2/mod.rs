//! HTTP/2 on a connection: feeds received bytes to `h2`, begins an exchange for each request, and sends what exchanges write.
//!
//! The frames are polled when bytes arrive, when the socket takes more, and once behind the deliveries of a turn in which
//! something was written. After each poll the exchanges are looked at: the bodies that arrive, those that the client has reset,
//! and those that wait for a window. So nothing in a connection needs to wake anything.
//!
//! `pump` has the frames, `requests` the exchanges, `stream` one of these, `channels` those that are channels of WebSocket; `state` is what
//! all of them change.

mod channels;
mod input;
mod messages;
mod pump;
mod requests;
mod state;
mod stream;

pub(crate) use state::Http2;
