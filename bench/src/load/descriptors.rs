//! The open files of a process, and how many of them are sockets.

use serde::Serialize;

/// The open files of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Descriptors {
    /// All: connections, listeners, the log's segments, its history, pipes.
    pub all: u64,
    /// Those that are sockets.
    pub sockets: u64,
}

impl Descriptors {
    /// The number of open files, at no cost; `None` when this user may not know, and before Linux 6.2.
    pub(crate) fn count(pid: u32) -> Option<u64> {
        // The folder's size is the number of its entries.
        let size = std::fs::metadata(format!("/proc/{pid}/fd")).ok()?.len();
        (size > 0).then_some(size)
    }

    /// The open files of process `pid`, each one looked at; `None` when this user may not.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let mut found = Self { all: 0, sockets: 0 };
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
            found.all += 1;
            // A descriptor that was closed meanwhile has no target.
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            found.sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::clock::{SECOND_NS, monotonic_ns};
    use std::process::{Command, Stdio};

    #[test]
    fn the_files_of_a_process_are_counted_by_kind() {
        // Other processes than this one, in which other tests open and close files meanwhile.
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let start = |input: Stdio| {
            let mut sleep = Command::new("sleep");
            sleep.arg("100").stdin(input).stdout(Stdio::null());
            sleep.spawn().unwrap()
        };
        let socket = Stdio::from(std::os::fd::OwnedFd::from(socket));
        let mut children = [start(Stdio::null()), start(socket)];
        let pids = [0, 1].map(|n: usize| children[n].id());
        let mut hold = false;
        let until_ns = monotonic_ns() + 10 * SECOND_NS;
        // Just started, they still have their libraries open.
        while !hold && monotonic_ns() < until_ns {
            let [plain, with] = [0, 1].map(|n: usize| Descriptors::of(pids[n]).unwrap());
            hold = plain.all >= 3
                && with.all == plain.all
                && with.sockets == plain.sockets + 1
                && Descriptors::count(pids[0]) == Some(plain.all)
                && Descriptors::count(pids[1]) == Some(with.all);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(hold);
    }

    #[test]
    fn a_missing_process_has_no_count() {
        // Process numbers end well below this.
        assert_eq!(Descriptors::count(u32::MAX), None);
        assert_eq!(Descriptors::of(u32::MAX), None);
    }
}
