//! Changes that the state store of the log does not have yet.

use std::sync::Arc;

use encke_log::StreamNo;

use crate::Stream;
use crate::stream::account::Account;

/// The changes since the store last took them.
#[derive(Debug, Default)]
pub(crate) struct Unstored {
    /// Changed streams, each once: those that [`State::dirty`](crate::stream::State) marks.
    pub(crate) streams: Vec<Arc<Stream>>,
    /// Streams that are in the store and ended before the start: their number, whether they had a deadline, and their
    /// name.
    pub(crate) ended: Vec<(StreamNo, bool, Box<str>)>,
    /// Ended streams among those that were taken. No reader can read their records any more.
    pub(crate) over: Vec<StreamNo>,
    /// Streams among those that were taken that the store did not have before.
    pub(crate) new: Vec<Arc<Stream>>,
    /// Accounts whose totals have changed, each once.
    pub(crate) accounts: Vec<Arc<Account>>,
    /// Some changes were taken, and the store does not have them yet.
    pub(crate) taken: bool,
}

impl Unstored {
    /// Adds a stream that is marked.
    pub(crate) fn push(&mut self, stream: Arc<Stream>) {
        self.streams.push(stream);
    }
}
