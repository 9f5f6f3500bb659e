//! Who is subscribed to a stream, for every protocol.
//!
//! The registry (`encke-presence`) knows the members; `streams` makes of its events streams in memory, which are followed as all streams
//! are, and `wire` is the form of their records.

pub(crate) mod streams;
pub(crate) mod wire;

pub use self::streams::PresenceStreams;
