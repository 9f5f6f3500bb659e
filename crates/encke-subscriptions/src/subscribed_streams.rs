//! The streams of the server, as the machine needs them at a start.

use std::ops::ControlFlow;
use std::sync::Arc;

use encke_stream::{Fetch, Piece, Stream};

/// The streams of the server, in memory and at rest.
pub trait SubscribedStreams {
    /// The stream of that name.
    ///
    /// # Errors
    /// It cannot be looked up.
    fn find(&self, name: &str) -> Result<Option<Arc<Stream>>, String>;

    /// Reads a part of a stream.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, fetch: &Fetch) -> Result<Piece, String>;

    /// Calls `each` for every stream whose name begins with the prefix and is wanted, until it breaks. Streams that are created
    /// meanwhile may be left out, because their commits are reported.
    ///
    /// # Errors
    /// They cannot be looked up.
    fn each(
        &self,
        prefix: &str,
        wanted: &dyn Fn(&str) -> bool,
        each: &mut dyn FnMut(&Stream) -> ControlFlow<()>,
    ) -> Result<(), String>;
}
