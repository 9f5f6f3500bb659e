//! HTTP/2 (RFC 9113), as far as it needs no shard: frames, header compression and flow control are those of the crate `h2`.
//!
//! A connection is driven without a runtime. Bytes go through a [`Wire`](wire::Wire), which the shard fills and empties, so `h2` never
//! waits for a socket and no wake-up can be lost: the shard polls a connection when something has arrived, and once a turn when
//! something was written to one of its streams. `shard::http2` does that; each stream is a slot without a socket.

#[cfg(test)]
mod both_heads;
pub(crate) mod frame_meter;
pub(crate) mod frames;
mod head_watch;
mod huffman;
pub(crate) mod read_ahead;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod stream;
pub(crate) mod wire;
