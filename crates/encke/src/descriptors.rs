//! The limit on open files, which is the limit on connections.

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::config::Config;
use crate::resource_limits::limit;

/// Raises the limit, and bounds the connections of a configuration by it. Returns the limit.
pub(crate) fn bound(config: &mut Config) -> u64 {
    let files = raise();
    let connections_max = &mut config.net.connections_max;
    *connections_max = (*connections_max).min(connections(files));
    files
}

/// Raises the limit to what the system allows. Returns the new limit.
pub(crate) fn raise() -> u64 {
    let Some(limit) = limit(Resource::Nofile) else {
        return FILES_LEAST;
    };
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
    let left = files.saturating_sub(RESERVED).max(files / SHARE);
    usize::try_from(left).unwrap_or(usize::MAX)
}

/// The lowest limit on files that allows this number of connections.
pub(crate) fn files(connections: u64) -> u64 {
    let reserved = connections.saturating_add(RESERVED);
    reserved.min(connections.saturating_mul(SHARE))
}

/// Files reserved for other uses than connections: segments of the logs, history, listeners, epoll.
const RESERVED: u64 = 512;

/// The limit where it can't be read: what systems allow at least.
const FILES_LEAST: u64 = 1024;

/// If the limit is low, connections have this part of it: a fifth.
const SHARE: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_lowest_that_allows_its_connections() {
        for wanted in [1, 2, 100, 127, 128, 129, 10_000] {
            let limit = files(wanted);
            assert!(connections(limit) as u64 >= wanted, "{wanted}");
            assert!((connections(limit - 1) as u64) < wanted, "{wanted}");
        }
        assert_eq!((files(100), files(10_000)), (500, 10_512));
    }
}
