//! Which right a request for a stream needs. An ordinary stream has a path of its own. The public streams of a pool belong to the
//! pool: who may read or delete the pool may read or truncate them, and nobody but the server writes to them.

use std::sync::Arc;

use encke_access::Operation;
use encke_jobs::pool_of_stream;

use crate::gate::Admitted;
use crate::problem::error;
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

    /// Refuses a request unless its caller may do this to the stream of that name at that path.
    pub(crate) fn require(
        &self,
        admitted: &Admitted<'_>,
        operation: Operation,
        name: &str,
        path: &str,
    ) -> Result<(), Response> {
        let Some(pool) = pool_of_stream(name) else {
            return admitted.require_at(operation, path);
        };
        let path = self.pool(pool);
        if matches!(operation, Operation::Read | Operation::Delete) {
            return admitted.require_at(operation, &path);
        }
        // Only who may read the pool learns whose the stream is.
        admitted.require_at(Operation::Read, &path)?;
        let why = format!(
            "the stream {name:?} belongs to the pool {pool:?}: the server creates it and writes to it, and clients read it"
        );
        Err(error(403, "pool_stream", why))
    }

    /// Refuses a request unless its caller may read all streams whose names begin with `prefix`, which is at the path `root` and
    /// ends with a slash unless it is empty.
    pub(crate) fn require_read_below(
        &self,
        admitted: &Admitted<'_>,
        root: &str,
        prefix: &str,
    ) -> Result<(), Response> {
        admitted.require_below(Operation::Read, &format!("{root}{prefix}"))?;
        let Some(below) = POOL_STREAMS
            .starts_with(prefix)
            .then_some("")
            .or_else(|| prefix.strip_prefix(POOL_STREAMS))
        else {
            return Ok(());
        };
        match below.strip_suffix('/') {
            // The streams of all pools.
            None => admitted.require_below(Operation::Read, &self.pools),
            Some(pool) if !pool.contains('/') => {
                admitted.require_at(Operation::Read, &self.pool(pool))
            }
            // Below a name of a pool's stream there are ordinary streams.
            Some(_) => Ok(()),
        }
    }

    fn pool(&self, pool: &str) -> String {
        format!("{}{pool}", self.pools)
    }
}

/// The names of the public streams of pools begin with this.
const POOL_STREAMS: &str = "pool/";
