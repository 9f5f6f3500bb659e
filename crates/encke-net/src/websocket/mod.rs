//! The framing of WebSocket (RFC 6455, RFC 7692, RFC 8441) for a server, as code without I/O.
//!
//! Invariant: the events of a connection are a function of the bytes it receives. How reads split these bytes changes nothing,
//! and what a client sends never costs more memory than the bound on a message plus a constant.
//!
//! A reader follows a connection downwards:
//!
//! 1. [`handshake`] accepts or refuses the opening handshake; it parses offers with [`extensions`] and [`negotiation`].
//! 2. [`receive`] turns bytes into events. It parses [`frame`] headers, removes the [`mask`], counts frames in a
//!    [`frame_meter`], reports complete [`message`]s, and a [`violation`] when the client breaks a rule.
//! 3. [`deflate`] compresses and decompresses single messages.
//! 4. [`frame`] and [`close`] encode what the server sends.

pub(crate) mod close;
pub(crate) mod close_code;
pub(crate) mod deflate;
#[cfg(test)]
mod differential;
pub(crate) mod extensions;
pub(crate) mod frame;
pub(crate) mod frame_meter;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub(crate) mod handshake;
pub(crate) mod mask;
pub(crate) mod message;
pub(crate) mod negotiation;
pub(crate) mod receive;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod violation;
