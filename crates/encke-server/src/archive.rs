//! Reads what is not in memory, from all logs.

use std::sync::Arc;

use encke_log::{ReadError, Reader, Sequence};
use encke_stream::{
    Fetch, InlineCommit, Loaders, Logs, Lookup, OrderFetch, Piece, RunCache, RunCacheBounds, Stream,
};

/// Reads records from the logs, and streams from their stores. For threads that may wait for files.
#[derive(Clone)]
pub(crate) struct Archive {
    /// By the logs' indices.
    readers: Arc<[Reader]>,
    pub(crate) loaders: Loaders<Reader>,
    /// By the logs' indices, where threads share their sequencers.
    inline_commits: Arc<[Arc<InlineCommit>]>,
    /// The runs of records that clients have read more than once.
    pub(crate) runs: Arc<RunCache>,
}

impl Archive {
    pub(crate) fn of(logs: &Logs) -> Archive {
        let loaders = logs
            .logs
            .iter()
            .map(|(machine, log)| machine.loader(log.reader()));
        let readers: Arc<[Reader]> = logs.logs.iter().map(|(_, log)| log.reader()).collect();
        Archive {
            runs: Arc::new(RunCache::new(
                Arc::clone(&readers),
                RunCacheBounds::default(),
            )),
            readers,
            loaders: Loaders::new(Arc::clone(&logs.views), loaders.collect()),
            inline_commits: Arc::new([]),
        }
    }

    /// Notifies these sequencers when a read lacks records that they have accepted and not written.
    pub(crate) fn with_inline_commits(self, inline_commits: Arc<[Arc<InlineCommit>]>) -> Archive {
        Archive {
            inline_commits,
            ..self
        }
    }

    /// The stream of that name, in memory or at rest.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Arc<Stream>>, String> {
        match self.loaders.load(name) {
            Ok(Lookup::Stream(stream)) => Ok(Some(stream)),
            Ok(Lookup::Free(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads a part of a stream.
    pub(crate) fn read(&self, fetch: &Fetch) -> Result<Piece, ReadError> {
        let piece = Piece::read(self.reader(fetch.log()), fetch)?;
        self.note_read(fetch.log(), &piece);
        Ok(piece)
    }

    /// As [`Archive::read`], for a client: what several clients read is kept in memory.
    pub(crate) fn read_for_client(&self, fetch: &Fetch) -> Result<Piece, ReadError> {
        let piece = self.runs.read(fetch)?;
        self.note_read(fetch.log(), &piece);
        Ok(piece)
    }

    /// Reads a part of the global order, for patterns of names.
    pub(crate) fn read_order(&self, fetch: &OrderFetch) -> Result<Piece, ReadError> {
        let Some(loader) = self.loaders.of_log(fetch.log) else {
            return Ok(Piece::default());
        };
        let piece = Piece::read_order(self.reader(fetch.log), loader, fetch)?;
        self.note_read(fetch.log, &piece);
        Ok(piece)
    }

    fn note_read(&self, log: usize, piece: &Piece) {
        if let Some(inline_commit) = self.inline_commits.get(log) {
            inline_commit.note_read(piece);
        }
    }

    /// Up to where a log is written.
    pub(crate) fn published(&self, log: usize) -> Sequence {
        self.reader(log).published()
    }

    fn reader(&self, log: usize) -> &Reader {
        // A stream that was found is in one of the logs.
        self.readers.get(log).unwrap_or(&self.readers[0])
    }

    pub(crate) fn readers(&self) -> &[Reader] {
        &self.readers
    }
}
