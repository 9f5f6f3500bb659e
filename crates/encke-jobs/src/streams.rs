//! The public streams of pools: results, dead letters and events. They belong to their pool: clients read them, and only the
//! dispatcher writes to them.

use std::collections::HashMap;

/// Which public streams belong to pools: those that a pool has, or that a former pool of the name has left. Others were made by clients
/// of an earlier version, and no pool takes them over.
#[derive(Debug, Default)]
pub(crate) struct StreamOwners {
    /// By the name of a pool: its streams are those that were born behind this sequence of the log. It is that of the first
    /// announcement of the pool, and 0 for a pool that was complete once.
    since: HashMap<Box<str>, u64>,
}

impl StreamOwners {
    /// A pool of that name was announced by the record of that sequence.
    pub(crate) fn announced(&mut self, pool: &str, sequence: u64) {
        if self.since.len() < OWNERS_MAX && !self.since.contains_key(pool) {
            self.since.insert(pool.into(), sequence);
        }
    }

    /// The announced pool is complete.
    pub(crate) fn opened(&mut self, pool: &str) {
        if let Some(since) = self.since.get_mut(pool) {
            *since = 0;
        }
    }

    /// Whether the streams of that pool include one that was born at that sequence.
    pub(crate) fn owns(&self, pool: &str, born: u64) -> bool {
        self.since.get(pool).is_some_and(|since| born > *since)
    }
}

/// The most names of pools that are remembered. The streams of further pools, once removed, must be deleted before another pool gets
/// the name.
const OWNERS_MAX: usize = 100_000;

/// One of a pool's public streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublicStream {
    Results,
    Dead,
    Events,
}

impl PublicStream {
    pub(crate) const ALL: [PublicStream; 3] = [
        PublicStream::Results,
        PublicStream::Dead,
        PublicStream::Events,
    ];

    /// The name of the stream of that pool.
    pub(crate) fn of(self, pool: &str) -> String {
        format!("{PREFIX}{pool}/{}", self.segment())
    }

    fn segment(self) -> &'static str {
        match self {
            PublicStream::Results => "results",
            PublicStream::Dead => "dead",
            PublicStream::Events => "events",
        }
    }
}

/// The name of the pool to which a stream of that name belongs, whether there is such a pool or not.
pub fn pool_of_stream(stream: &str) -> Option<&str> {
    let (pool, segment) = stream.strip_prefix(PREFIX)?.split_once('/')?;
    let is_public = PublicStream::ALL
        .iter()
        .any(|what| what.segment() == segment);
    (is_public && !pool.is_empty()).then_some(pool)
}

/// The names of the public streams of all pools begin with this.
const PREFIX: &str = "pool/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_owns_what_was_made_for_it() {
        let mut owners = StreamOwners::default();
        assert!(!owners.owns("p", 5));
        owners.announced("p", 7);
        assert!(!owners.owns("p", 5), "a client has made it before");
        assert!(owners.owns("p", 8));
        owners.announced("p", 20);
        assert!(owners.owns("p", 8), "the first attempt has made it");
        owners.opened("p");
        assert!(owners.owns("p", 5), "a complete pool had it");
        assert!(!owners.owns("q", 8));
    }

    #[test]
    fn a_stream_of_a_pool_is_known_by_its_name() {
        for what in PublicStream::ALL {
            assert_eq!(pool_of_stream(&what.of("a b")), Some("a b"));
        }
        for name in [
            "pool",
            "pool/p",
            "pool/p/other",
            "pool/p/results/x",
            "pool/p/x/results",
            "pool//results",
            "pools/p/results",
            "x/pool/p/results",
            "results",
        ] {
            assert_eq!(pool_of_stream(name), None, "{name}");
        }
    }
}
