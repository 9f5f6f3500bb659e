//! Which right a request for a stream needs. An ordinary stream has a path of its own. The public streams of a pool belong to the
//! pool: who may read or delete the pool may read or truncate them, and nobody but the server writes to them. Nor does anybody else write to
//! those of webhooks.

use std::borrow::Cow;
use std::sync::Arc;

use encke_access::Operation;
use encke_jobs::pool_of_stream;

use crate::problem::error;
use crate::pusher::is_of_webhooks;
use crate::requirement::Requirement;
use crate::response::Response;

/// The paths by which rights to streams are granted.
#[derive(Clone, Debug)]
pub(crate) struct StreamRights {
    /// The path above the pools.
    pools: Arc<str>,
}

impl StreamRights {
    /// `pools` is the path above the pools.
    pub(crate) fn new(pools: &str) -> Self {
        StreamRights {
            pools: pools.into(),
        }
    }

    /// The right that a request needs which does this to the stream of that name at that path.
    pub(crate) fn of_stream<'a>(
        &self,
        operation: Operation,
        name: &str,
        path: impl Into<Cow<'a, str>>,
    ) -> Requirement<'a> {
        let Some(pool) = pool_of_stream(name) else {
            return Requirement::at(operation, path);
        };
        let operation = match operation {
            Operation::Delete => Operation::Delete,
            // Only who may read the pool learns whose the stream is; see `check_writer`.
            _ => Operation::Read,
        };
        Requirement::at(operation, self.pool(pool))
    }

    /// Refuses a request that would do to a stream of a pool, or of webhooks, what only the server does.
    pub(crate) fn check_writer(&self, operation: Operation, name: &str) -> Result<(), Response> {
        if is_of_webhooks(name) && operation != Operation::Read {
            let why = format!(
                "the stream {name:?} belongs to the webhooks of an app: only the server creates it, writes to it and removes from it"
            );
            return Err(error(403, "webhook_stream", why));
        }
        match pool_of_stream(name) {
            Some(pool) if !matches!(operation, Operation::Read | Operation::Delete) => {
                let why = format!(
                    "the stream {name:?} belongs to the pool {pool:?}: the server creates it and writes to it, and clients read it"
                );
                Err(error(403, "pool_stream", why))
            }
            _ => Ok(()),
        }
    }

    /// The rights that reading all streams needs whose names begin with `prefix`, which is at the path `root` and ends with a slash
    /// unless it is empty.
    pub(crate) fn of_all_below(&self, root: &str, prefix: &str) -> Vec<Requirement<'static>> {
        let mut needed = vec![Requirement::below(
            Operation::Read,
            format!("{root}{prefix}"),
        )];
        let below = POOL_STREAMS
            .starts_with(prefix)
            .then_some("")
            .or_else(|| prefix.strip_prefix(POOL_STREAMS));
        match below.map(|below| below.strip_suffix('/')) {
            // The streams of all pools.
            Some(None) => needed.push(Requirement::below(Operation::Read, self.pools.to_string())),
            Some(Some(pool)) if !pool.contains('/') => {
                needed.push(Requirement::at(Operation::Read, self.pool(pool)));
            }
            // Below a name of a pool's stream there are ordinary streams.
            Some(Some(_)) | None => {}
        }
        needed
    }

    fn pool(&self, pool: &str) -> String {
        format!("{}{pool}", self.pools)
    }
}

/// The names of the public streams of pools begin with this.
const POOL_STREAMS: &str = "pool/";
