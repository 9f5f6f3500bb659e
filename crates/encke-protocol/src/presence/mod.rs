//! Who is subscribed to a stream, for every protocol.
//!
//! The registry (`encke-presence`) knows the members; `streams` makes of its events streams in memory, which are followed as all streams
//! are, and `wire` is the form of their records. `rules` says which streams have members, `seat` makes
//! subscribers of them members, `api` answers questions, and `encode` writes events.

pub(crate) mod api;
mod encode;
mod rules;
mod seat;
pub(crate) mod streams;
pub(crate) mod wire;

pub use self::rules::{PresenceNames, PresenceRule};
pub use self::seat::PresenceSeat;
pub use self::streams::PresenceStreams;
