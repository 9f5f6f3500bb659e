//! Reads facts about processes and the machine from `/proc`.

use crate::BenchError;
use std::path::Path;

/// The value of a line such as `MemTotal:   12 kB` of a file, in bytes; `None` without such a line.
pub(crate) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(number << 10)
}

/// A file that every system has; empty where it can't be read.
pub(crate) fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A file of a process.
pub(crate) fn of_process(pid: u32, file: &str) -> Result<String, BenchError> {
    let path = Path::new("/proc").join(pid.to_string()).join(file);
    std::fs::read_to_string(&path).map_err(BenchError::file("read", &path))
}

/// The resident anonymous memory of a process, in bytes.
pub(crate) fn rss_anon_bytes(pid: u32) -> Result<u64, BenchError> {
    Ok(kilobytes(&of_process(pid, "status")?, "RssAnon:").unwrap_or(0))
}

/// The most memory that a process had resident at a time since [`reset_peak_rss`], mapped files among it, in bytes.
pub(crate) fn peak_rss_bytes(pid: u32) -> Result<u64, BenchError> {
    Ok(kilobytes(&of_process(pid, "status")?, "VmHWM:").unwrap_or(0))
}

/// Begins the peak of a process anew, at what is resident now.
pub(crate) fn reset_peak_rss(pid: u32) -> Result<(), BenchError> {
    let path = Path::new("/proc").join(pid.to_string()).join("clear_refs");
    // 5 means the peak alone: see proc_pid_clear_refs(5).
    std::fs::write(&path, "5").map_err(BenchError::file("write", &path))
}

/// The proportional set size of a process, in bytes: each page divided by the processes that share it.
pub(crate) fn pss_bytes(pid: u32) -> Result<u64, BenchError> {
    Ok(kilobytes(&of_process(pid, "smaps_rollup")?, "Pss:").unwrap_or(0))
}

/// The numbers of the processes that a process has started and that still run.
pub(crate) fn children(pid: u32) -> Result<Vec<u32>, BenchError> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let mut children = Vec::new();
    for task in std::fs::read_dir(&tasks).map_err(BenchError::file("read", &tasks))? {
        let task = task.map_err(BenchError::file("read", &tasks))?;
        // A thread that has ended meanwhile has none.
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(
            text.split_ascii_whitespace()
                .filter_map(|child| child.parse::<u32>().ok()),
        );
    }
    Ok(children)
}

/// The children of a process, and theirs, as far as they still run.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid).unwrap_or_default();
    let mut next = 0;
    while next < found.len() {
        found.extend(children(found[next]).unwrap_or_default());
        next += 1;
    }
    found
}
