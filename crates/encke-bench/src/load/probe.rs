//! The server from outside: its memory and processor time, as the kernel accounts for them.

use crate::BenchError;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::descriptors::{DescriptorCount, Descriptors};
use serde::Serialize;
use std::path::PathBuf;

/// A walk through a process's pages that took longer than this is not made every second: it holds
/// the lock that the process needs to map memory.
const WALK_NS_MAX: u64 = 10 * MILLISECOND_NS;

/// How long to wait between such walks instead.
const WALK_PAUSE_NS: u64 = 30 * SECOND_NS;

/// A process that is being watched.
#[derive(Debug)]
pub(crate) struct Probe {
    pid: u32,
    folder: PathBuf,
    walked: Option<(u64, u64)>,
    walk_again_ns: u64,
    descriptors: DescriptorCount,
}

/// What a process holds in memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident anonymous memory: what the process has allocated and touched (`RssAnon`).
    pub rss_anon_bytes: u64,
    /// All resident memory, files and shared memory included (`VmRSS`).
    pub rss_bytes: u64,
    /// Resident memory, shared pages divided by those who share them (`Pss`). It is read less
    /// often than the others where reading takes long.
    pub pss_bytes: u64,
    /// Resident memory that nobody shares (`Private_Clean` and `Private_Dirty`); as often as `Pss`.
    pub private_bytes: u64,
    /// What the kernel holds in TCP buffers, for all processes (`/proc/net/sockstat`).
    pub kernel_tcp_bytes: u64,
    /// What the kernel holds in its slabs and can't give back, for all processes; sockets and
    /// epoll entries of both sides among it (`SUnreclaim`).
    pub kernel_slab_bytes: u64,
    /// What the kernel holds in its other slabs, for all processes: the inodes of sockets, but also what it remembers of
    /// files (`SReclaimable`).
    pub kernel_slab_other_bytes: u64,
}

impl Memory {
    /// What the kernel holds and can't give back, for all processes: TCP buffers and slabs.
    pub fn kernel_bytes(&self) -> u64 {
        self.kernel_tcp_bytes + self.kernel_slab_bytes
    }

    /// The same with all other slabs. What a crowd of sockets takes is the growth of this, while nobody reads new files.
    pub fn kernel_bytes_all(&self) -> u64 {
        self.kernel_bytes() + self.kernel_slab_other_bytes
    }
}

impl Probe {
    /// Watches process `pid`.
    pub(crate) fn new(pid: u32) -> Result<Self, BenchError> {
        let mut probe = Self {
            pid,
            folder: format!("/proc/{pid}").into(),
            walked: None,
            walk_again_ns: 0,
            descriptors: DescriptorCount::new(pid),
        };
        probe.cpu_ns()?;
        probe.memory()?;
        Ok(probe)
    }

    /// The process's number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// What the process holds now.
    pub(crate) fn memory(&mut self) -> Result<Memory, BenchError> {
        let status = self.read("status")?;
        let now_ns = monotonic_ns();
        let (pss_bytes, private_bytes) = match self.walked {
            Some(walked) if now_ns < self.walk_again_ns => walked,
            _ => self.walk(now_ns)?,
        };
        let machine = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let sockets = machine("/proc/net/sockstat");
        let meminfo = machine("/proc/meminfo");
        let pages = sockets
            .lines()
            .find_map(|line| {
                line.strip_prefix("TCP:")?
                    .split_once(" mem ")?
                    .1
                    .trim()
                    .parse()
                    .ok()
            })
            .unwrap_or(0u64);
        Ok(Memory {
            rss_anon_bytes: kilobytes(&status, "RssAnon:"),
            rss_bytes: kilobytes(&status, "VmRSS:"),
            pss_bytes,
            private_bytes,
            kernel_tcp_bytes: pages * rustix::param::page_size() as u64,
            kernel_slab_bytes: kilobytes(&meminfo, "SUnreclaim:"),
            kernel_slab_other_bytes: kilobytes(&meminfo, "SReclaimable:"),
        })
    }

    /// As [`Probe::memory`], with a fresh `Pss` whatever it takes.
    pub(crate) fn memory_afresh(&mut self) -> Result<Memory, BenchError> {
        self.walked = None;
        self.memory()
    }

    /// How many files the process has open; `None` when this user may not know.
    pub(crate) fn descriptors(&mut self) -> Option<u64> {
        self.descriptors.lately()
    }

    /// The same by kind, each one looked at.
    pub(crate) fn descriptors_by_kind(&self) -> Option<Descriptors> {
        self.descriptors.exactly()
    }

    /// The processor time that all of the process's threads have used, user and system, in
    /// nanoseconds; exact to a clock tick (10 ms as a rule).
    pub(crate) fn cpu_ns(&self) -> Result<u64, BenchError> {
        let stat = self.read("stat")?;
        // The name, in parentheses, may hold anything; the numbers follow its last parenthesis.
        let numbers = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 = numbers
            .split_ascii_whitespace()
            // utime and stime: the 14th and 15th field of all, so the 12th and 13th of these.
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        Ok(ticks * (SECOND_NS / rustix::param::clock_ticks_per_second()))
    }

    fn walk(&mut self, now_ns: u64) -> Result<(u64, u64), BenchError> {
        let rollup = self.read("smaps_rollup")?;
        let took_ns = monotonic_ns() - now_ns;
        let walked = (
            kilobytes(&rollup, "Pss:"),
            kilobytes(&rollup, "Private_Clean:") + kilobytes(&rollup, "Private_Dirty:"),
        );
        self.walked = Some(walked);
        self.walk_again_ns = if took_ns > WALK_NS_MAX {
            now_ns + WALK_PAUSE_NS
        } else {
            now_ns
        };
        Ok(walked)
    }

    fn read(&self, file: &str) -> Result<String, BenchError> {
        let path = self.folder.join(file);
        std::fs::read_to_string(&path).map_err(BenchError::file("read", &path))
    }
}

/// The value of a line such as `Pss:   12 kB`, in bytes; 0 without such a line.
fn kilobytes(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .split_ascii_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .map_or(0, |kilobytes: u64| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_allocates_and_computes_is_seen_to() {
        let mut probe = Probe::new(std::process::id()).unwrap();
        let before = probe.memory_afresh().unwrap();
        let cpu_ns = probe.cpu_ns().unwrap();
        let block = vec![1u8; 200 << 20];
        let until = monotonic_ns() + 60 * MILLISECOND_NS;
        let mut sum = 0u64;
        while monotonic_ns() < until {
            sum += block.iter().map(|&b| u64::from(b)).sum::<u64>();
        }
        assert!(sum > 0);
        let after = probe.memory_afresh().unwrap();
        for (grown, what) in [
            (after.rss_anon_bytes - before.rss_anon_bytes, "anon"),
            (after.pss_bytes - before.pss_bytes, "pss"),
            (after.private_bytes - before.private_bytes, "private"),
        ] {
            // Other tests of this process allocate and free meanwhile, if far less.
            assert!(
                ((100 << 20)..(300 << 20)).contains(&grown),
                "{what} {grown}"
            );
        }
        assert!(after.kernel_slab_bytes > 0);
        assert!(probe.cpu_ns().unwrap() >= cpu_ns + 20 * MILLISECOND_NS);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        // Process numbers end well below this.
        let error = Probe::new(u32::MAX).unwrap_err();
        assert!(matches!(error, BenchError::File { .. }), "{error}");
    }
}
