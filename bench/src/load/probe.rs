//! The server's memory and processor time, from the kernel.

use crate::BenchError;
use crate::load::clock::SECOND_NS;
use crate::load::descriptors::Descriptors;
use crate::proc;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// A server that is being watched: a process, and those that it had started when the watch began, as a proxy does.
#[derive(Debug)]
pub(crate) struct Probe {
    pid: u32,
    descendants: Vec<Descendant>,
}

/// A process that may end while it is watched.
#[derive(Debug)]
struct Descendant {
    pid: u32,
    /// Its processor time when it was last looked at.
    cpu_ns: AtomicU64,
}

/// The memory of a process, and of the kernel for all processes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident anonymous memory: what the process has allocated and touched (`RssAnon`).
    pub rss_anon_bytes: u64,
    /// TCP buffers in the kernel (`/proc/net/sockstat`).
    pub kernel_tcp_bytes: u64,
    /// Slabs that the kernel can't give back; sockets and epoll entries of both sides among them (`SUnreclaim`).
    pub kernel_slab_bytes: u64,
    /// The kernel's other slabs: the inodes of sockets, but also caches of files (`SReclaimable`).
    pub kernel_slab_other_bytes: u64,
}

impl Memory {
    /// Kernel memory that can't be given back: TCP buffers and slabs.
    pub fn kernel_bytes(&self) -> u64 {
        self.kernel_tcp_bytes + self.kernel_slab_bytes
    }

    /// The same with all other slabs. While no new files are read, the memory of many sockets is the growth of this.
    pub fn kernel_bytes_all(&self) -> u64 {
        self.kernel_bytes() + self.kernel_slab_other_bytes
    }
}

impl Probe {
    /// Watches process `pid` and its descendants.
    pub(crate) fn new(pid: u32) -> Result<Self, BenchError> {
        let watch = |pid| Descendant {
            pid,
            cpu_ns: AtomicU64::new(0),
        };
        let probe = Self {
            pid,
            descendants: proc::descendants(pid).into_iter().map(watch).collect(),
        };
        probe.cpu_ns()?;
        Ok(probe)
    }

    /// The number of the process that was named.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The resident anonymous memory now, in bytes: the part of [`Probe::memory`] that is cheap to read.
    pub(crate) fn rss_anon_bytes(&self) -> Result<u64, BenchError> {
        let of_descendants = self.descendants.iter();
        let of_descendants = of_descendants.filter_map(|one| proc::rss_anon_bytes(one.pid).ok());
        Ok(proc::rss_anon_bytes(self.pid)? + of_descendants.sum::<u64>())
    }

    /// The memory now.
    pub(crate) fn memory(&self) -> Result<Memory, BenchError> {
        let sockets = proc::text("/proc/net/sockstat");
        let line = sockets.lines().find_map(|line| line.strip_prefix("TCP:"));
        let pages = line.and_then(|line| line.split_once(" mem ")?.1.trim().parse().ok());
        let meminfo = proc::text("/proc/meminfo");
        let slabs = |name| proc::kilobytes(&meminfo, name).unwrap_or(0);
        Ok(Memory {
            rss_anon_bytes: self.rss_anon_bytes()?,
            kernel_tcp_bytes: pages.unwrap_or(0) * rustix::param::page_size() as u64,
            kernel_slab_bytes: slabs("SUnreclaim:"),
            kernel_slab_other_bytes: slabs("SReclaimable:"),
        })
    }

    /// The number of open files; `None` when this user may not know.
    pub(crate) fn descriptors(&self) -> Option<u64> {
        let of_descendants = self.descendants.iter();
        let of_descendants = of_descendants.filter_map(|one| Descriptors::count(one.pid));
        Some(Descriptors::count(self.pid)? + of_descendants.sum::<u64>())
    }

    /// The same by kind, each one looked at.
    pub(crate) fn descriptors_by_kind(&self) -> Option<Descriptors> {
        let of_descendants = self.descendants.iter();
        let of_descendants = of_descendants.filter_map(|one| Descriptors::of(one.pid));
        Some(
            of_descendants.fold(Descriptors::of(self.pid)?, |sum, one| Descriptors {
                all: sum.all + one.all,
                sockets: sum.sockets + one.sockets,
            }),
        )
    }

    /// The processor time of all threads, user and system, in nanoseconds; exact to a clock tick (10 ms as a rule) of each process.
    pub(crate) fn cpu_ns(&self) -> Result<u64, BenchError> {
        let mut sum_ns = cpu_ns(self.pid)?;
        for one in &self.descendants {
            if let Ok(cpu_ns) = cpu_ns(one.pid) {
                one.cpu_ns.store(cpu_ns, Ordering::Relaxed);
            }
            sum_ns += one.cpu_ns.load(Ordering::Relaxed);
        }
        Ok(sum_ns)
    }
}

fn cpu_ns(pid: u32) -> Result<u64, BenchError> {
    let stat = proc::of_process(pid, "stat")?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;
    use crate::load::clock::{MILLISECOND_NS, monotonic_ns};

    #[test]
    fn a_process_that_allocates_and_computes_is_seen_to() {
        let name = "load::probe::tests::a_process_that_allocates_and_computes_is_seen_to";
        alone(name, || {
            let probe = Probe::new(std::process::id()).unwrap();
            let before = probe.memory().unwrap();
            let cpu_ns = probe.cpu_ns().unwrap();
            let block = vec![1u8; 200 << 20];
            let until = monotonic_ns() + 60 * MILLISECOND_NS;
            let mut sum = 0u64;
            while monotonic_ns() < until {
                sum += block.iter().map(|&b| u64::from(b)).sum::<u64>();
            }
            assert!(sum > 0);
            let after = probe.memory().unwrap();
            let grown = after.rss_anon_bytes - before.rss_anon_bytes;
            assert!(((190 << 20)..(220 << 20)).contains(&grown), "{grown}");
            assert!(after.kernel_slab_bytes > 0);
            assert!(probe.cpu_ns().unwrap() >= cpu_ns + 20 * MILLISECOND_NS);
        });
    }

    #[test]
    fn the_processes_that_a_server_has_started_count_with_it() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 100 & sleep 100 & echo started; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 8];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let probe = Probe::new(shell.id()).unwrap();
        assert_eq!((probe.descendants.len(), probe.pid()), (2, shell.id()));
        let alone = proc::rss_anon_bytes(shell.id()).unwrap();
        assert!(probe.memory().unwrap().rss_anon_bytes > alone);
        let own = Descriptors::of(shell.id()).unwrap();
        assert!(probe.descriptors_by_kind().unwrap().all > own.all);
        // Their end is no error, and their processor time stays counted.
        let [first, second] = [0, 1].map(|n: usize| &probe.descendants[n]);
        first.cpu_ns.store(5 * SECOND_NS, Ordering::Relaxed);
        let kill = |one: &Descendant| {
            let pid = rustix::process::Pid::from_raw(one.pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        };
        kill(first);
        let stat = format!("/proc/{}/stat", first.pid);
        while std::path::Path::new(&stat).exists() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(probe.cpu_ns().unwrap() >= 5 * SECOND_NS);
        assert!(probe.memory().is_ok());
        kill(second);
        shell.wait().unwrap();
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        // Process numbers end well below this.
        let error = Probe::new(u32::MAX).unwrap_err();
        assert!(matches!(error, BenchError::File { .. }), "{error}");
    }
}
