//! Changes that the state store of the log does not have yet.

use std::sync::Arc;

use encke_log::StreamNo;

use crate::Stream;

/// What changed since the store last took it.
#[derive(Debug, Default)]
pub(crate) struct Unstored {
    /// Each once: those that [`State::dirty`](crate::stream::State) marks.
    pub(crate) streams: Vec<Arc<Stream>>,
    /// Streams that the store has and that ended before the start, and whether they were waited for.
    pub(crate) ended: Vec<(StreamNo, bool, Box<str>)>,
    /// Streams among what was taken whose records nobody can read any more.
    pub(crate) over: Vec<StreamNo>,
    /// Some of it was taken, and the store does not have it yet.
    pub(crate) taken: bool,
}

impl Unstored {
    /// A stream that is marked.
    pub(crate) fn push(&mut self, stream: Arc<Stream>) {
        self.streams.push(stream);
    }
}
