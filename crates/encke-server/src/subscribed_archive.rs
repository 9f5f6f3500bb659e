//! The streams of the server, as the subscriptions need them.

use std::ops::ControlFlow;
use std::sync::Arc;

use encke_net::now;
use encke_stream::{Fetch, ListFetch, Piece, Stream, Viewer};
use encke_subscriptions::SubscribedStreams;

use crate::archive::Archive;

/// The streams in memory and at rest, for threads that may wait for files.
pub(crate) struct SubscribedArchive(pub(crate) Archive);

impl SubscribedStreams for SubscribedArchive {
    fn find(&self, name: &str) -> Result<Option<Arc<Stream>>, String> {
        self.0.find(name)
    }

    fn read(&self, fetch: &Fetch) -> Result<Piece, String> {
        self.0.read(fetch).map_err(|error| error.to_string())
    }

    fn each(
        &self,
        prefix: &str,
        wanted: &dyn Fn(&str) -> bool,
        each: &mut dyn FnMut(&Stream) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let mut behind = None;
        loop {
            let fetch = ListFetch {
                prefix: prefix.into(),
                behind,
                count_max: PAGE_MAX,
                viewer: Viewer::All,
                now: now(),
            };
            let page = self.0.loaders.list(&fetch);
            let page = page.map_err(|error| error.to_string())?;
            let names = page.streams.iter().map(|stream| &*stream.name);
            for name in names.filter(|name| wanted(name)) {
                if let Some(stream) = self.find(name)?
                    && each(&stream).is_break()
                {
                    return Ok(());
                }
            }
            match page.next {
                Some(next) => behind = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// Streams that are listed at a time.
const PAGE_MAX: usize = 1_000;
