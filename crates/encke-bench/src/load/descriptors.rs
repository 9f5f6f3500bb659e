//! How many files a process has open, and how many of them are sockets.

use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Counting one by one is not done every second when it takes longer than this.
const COUNT_NS_MAX: u64 = 10 * MILLISECOND_NS;

/// How long to wait between such counts instead.
const COUNT_PAUSE_NS: u64 = 30 * SECOND_NS;

/// The open files of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Descriptors {
    /// All: connections, listeners, the log's segments, its history, pipes.
    pub all: u64,
    /// Those that are sockets.
    pub sockets: u64,
}

/// Counts a process's open files, again and again.
#[derive(Debug)]
pub(crate) struct DescriptorCount {
    folder: PathBuf,
    last: Option<u64>,
    count_again_ns: u64,
}

impl DescriptorCount {
    /// Counts the files of process `pid`.
    pub(crate) fn new(pid: u32) -> Self {
        Self {
            folder: format!("/proc/{pid}/fd").into(),
            last: None,
            count_again_ns: 0,
        }
    }

    /// How many are open now, or were a short while ago; `None` when this user may not know.
    pub(crate) fn lately(&mut self) -> Option<u64> {
        // Since Linux 6.2 the folder's size is the number of its entries, at no cost.
        let size = std::fs::metadata(&self.folder).map_or(0, |folder| folder.len());
        if size > 0 {
            return Some(size);
        }
        let now_ns = monotonic_ns();
        if now_ns >= self.count_again_ns {
            self.last = std::fs::read_dir(&self.folder)
                .ok()
                .map(|entries| entries.count() as u64);
            let took_ns = monotonic_ns() - now_ns;
            let pause_ns = if took_ns > COUNT_NS_MAX {
                COUNT_PAUSE_NS
            } else {
                0
            };
            self.count_again_ns = now_ns + pause_ns;
        }
        self.last
    }

    /// Looks at every single one; `None` when this user may not.
    pub(crate) fn exactly(&self) -> Option<Descriptors> {
        exactly(&self.folder)
    }
}

fn exactly(folder: &Path) -> Option<Descriptors> {
    let mut count = Descriptors { all: 0, sockets: 0 };
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        count.all += 1;
        // What is closed meanwhile has no target any more.
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("socket:") {
            count.sockets += 1;
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut counts = [0, 1].map(|n: usize| DescriptorCount::new(children[n].id()));
        let mut hold = false;
        let until_ns = monotonic_ns() + 10 * SECOND_NS;
        // Just started, they still have their libraries open.
        while !hold && monotonic_ns() < until_ns {
            let [plain, with] = [0, 1].map(|n: usize| counts[n].exactly().unwrap());
            hold = plain.all >= 3
                && with.all == plain.all
                && with.sockets == plain.sockets + 1
                && counts[0].lately() == Some(plain.all)
                && counts[1].lately() == Some(with.all);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(hold);
    }

    #[test]
    fn who_is_not_there_has_no_count() {
        // Process numbers end well below this.
        let mut count = DescriptorCount::new(u32::MAX);
        assert_eq!((count.lately(), count.exactly()), (None, None));
    }
}
