//! Fan-out: from commits to the subscribers of a shard, in rounds over a topic's list.

pub(crate) mod backpressure;
pub(crate) mod congested_streams;
pub(crate) mod encoding;
pub(crate) mod queue;
pub(crate) mod rounds;
pub(crate) mod topics;
pub(crate) mod weight;
