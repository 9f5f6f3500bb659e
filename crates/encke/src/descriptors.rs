//! The limit on open files, which is the limit on connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to what the system allows. Returns the new limit.
pub(crate) fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised,
        Err(_) => limit,
    };
    limit.current.unwrap_or(u64::MAX)
}

/// The number of connections that this limit on files allows.
pub(crate) fn connections(files: u64) -> usize {
    let reserved = RESERVED.min(files / 5 * 4);
    usize::try_from(files - reserved).unwrap_or(usize::MAX)
}

/// Files reserved for other uses than connections: segments of the logs, history, listeners, epoll. If the limit is low, four
/// fifths of it are reserved.
pub(crate) const RESERVED: u64 = 512;
