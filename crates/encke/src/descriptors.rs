//! The limit on open files, which is the limit on connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to what the system allows; how many files may be open then.
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

/// How many connections so many files leave room for.
pub(crate) fn connections(files: u64) -> usize {
    let reserved = RESERVED.min(files / 5 * 4);
    usize::try_from(files - reserved).unwrap_or(usize::MAX)
}

/// Files that are not connections: segments of the log, its history, listeners, epoll, logs. Where
/// few may be open, four fifths of them.
pub(crate) const RESERVED: u64 = 512;
