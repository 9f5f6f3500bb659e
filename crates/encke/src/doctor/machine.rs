//! Reads the limits and the state of the machine. In a container many values are missing.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use std::io::Write as _;

use serde::Serialize;

use crate::control_groups::ControlGroups;

/// The values; None where the file is missing or not as expected.
#[derive(Debug, Default)]
pub(super) struct Machine {
    /// Limits on the open files of a process.
    pub(super) files_soft: Option<u64>,
    pub(super) files_hard: Option<u64>,
    /// `fs.nr_open`: the most that the hard limit can be.
    pub(super) nr_open: Option<u64>,
    /// `fs.file-max`, and how many files are open on the whole machine.
    pub(super) file_max: Option<u64>,
    pub(super) files_open: Option<u64>,
    pub(super) epoll_watches: Option<u64>,
    pub(super) somaxconn: Option<u64>,
    pub(super) syn_backlog: Option<u64>,
    pub(super) netdev_backlog: Option<u64>,
    /// Pages: few, under pressure, the most.
    pub(super) tcp_mem: Option<[u64; 3]>,
    /// Bytes: least, default, most.
    pub(super) tcp_rmem: Option<[u64; 3]>,
    pub(super) tcp_wmem: Option<[u64; 3]>,
    pub(super) rmem_max: Option<u64>,
    pub(super) wmem_max: Option<u64>,
    pub(super) ports: Option<[u64; 2]>,
    pub(super) conntrack_max: Option<u64>,
    pub(super) conntrack_count: Option<u64>,
    pub(super) conntrack_established_s: Option<u64>,
    /// `always`, `madvise` or `never`.
    pub(super) huge_pages: Option<String>,
    pub(super) map_count: Option<u64>,
    pub(super) memory_available: Option<u64>,
    /// The lowest limit that applies to this process; None also if there is no limit.
    pub(super) cgroup_memory: Option<u64>,
    /// Memory in use by the control group.
    pub(super) cgroup_memory_used: Option<u64>,
    pub(super) cgroup_pids: Option<u64>,
    pub(super) clock: Option<String>,
}

impl Machine {
    /// Reads the files below `root`, which is `/` but in tests.
    pub(super) fn read(root: &Path) -> Self {
        let at = |path: &str| fs::read_to_string(root.join(path)).ok();
        let sysctl = |name: &str| at(&format!("proc/sys/{name}"));
        let number = |name: &str| numbers::<1>(&sysctl(name)?).map(|[number]| number);
        let limits = at("proc/self/limits").unwrap_or_default();
        let open_files = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))
            .unwrap_or_default();
        let limit = |nth: usize| match open_files.split_ascii_whitespace().nth(nth)? {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        };
        let groups = ControlGroups::read(root);
        Machine {
            files_soft: limit(0),
            files_hard: limit(1),
            nr_open: number("fs/nr_open"),
            file_max: number("fs/file-max"),
            files_open: sysctl("fs/file-nr")
                .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok()),
            epoll_watches: number("fs/epoll/max_user_watches"),
            somaxconn: number("net/core/somaxconn"),
            syn_backlog: number("net/ipv4/tcp_max_syn_backlog"),
            netdev_backlog: number("net/core/netdev_max_backlog"),
            tcp_mem: sysctl("net/ipv4/tcp_mem").and_then(|text| numbers(&text)),
            tcp_rmem: sysctl("net/ipv4/tcp_rmem").and_then(|text| numbers(&text)),
            tcp_wmem: sysctl("net/ipv4/tcp_wmem").and_then(|text| numbers(&text)),
            rmem_max: number("net/core/rmem_max"),
            wmem_max: number("net/core/wmem_max"),
            ports: sysctl("net/ipv4/ip_local_port_range").and_then(|text| numbers(&text)),
            conntrack_max: number("net/netfilter/nf_conntrack_max"),
            conntrack_count: number("net/netfilter/nf_conntrack_count"),
            conntrack_established_s: number("net/netfilter/nf_conntrack_tcp_timeout_established"),
            huge_pages: at("sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| {
                let (_, rest) = text.split_once('[')?;
                Some(rest.split_once(']')?.0.to_owned())
            }),
            map_count: number("vm/max_map_count"),
            memory_available: at("proc/meminfo").and_then(|text| {
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix("MemAvailable:"))?;
                let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
                kilobytes.checked_mul(1024)
            }),
            cgroup_memory: groups.memory_max(),
            cgroup_memory_used: groups.own("memory", &["memory.current", "memory.usage_in_bytes"]),
            cgroup_pids: groups.tightest("pids", &["pids.max"]),
            clock: at("sys/devices/system/clocksource/clocksource0/current_clocksource")
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty()),
        }
    }

    /// Memory that this process may still use: what the machine has, within the control group's limit.
    pub(super) fn memory_usable(&self) -> Option<u64> {
        let of_group = self
            .cgroup_memory
            .map(|most| most.saturating_sub(self.cgroup_memory_used.unwrap_or(0)));
        match (self.memory_available, of_group) {
            (Some(machine), Some(group)) => Some(machine.min(group)),
            (machine, group) => machine.or(group),
        }
    }
}

/// Durations of syncs of a disk.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Syncs {
    #[serde(rename = "median_us", serialize_with = "as_micros")]
    pub(super) median: Duration,
    #[serde(rename = "slowest_us", serialize_with = "as_micros")]
    pub(super) slowest: Duration,
}

fn as_micros<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_micros() as u64)
}

/// Writes to a small file in `folder` repeatedly, each time with fdatasync, and removes it.
pub(super) fn measure_syncs(folder: &Path) -> std::io::Result<Syncs> {
    let path = folder.join(format!(".encke-doctor-{}", std::process::id()));
    let mut file = fs::File::create_new(&path)?;
    let mut measure = || {
        let mut took = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            file.write_all(&[0x5a; SYNC_BYTES])?;
            let begun = Instant::now();
            file.sync_data()?;
            took.push(begun.elapsed());
        }
        took.sort_unstable();
        Ok(Syncs {
            median: took[SYNCS / 2],
            slowest: took[SYNCS - 1],
        })
    };
    let measured = measure();
    fs::remove_file(&path)?;
    measured
}

/// Exactly `N` numbers, separated by white space.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let numbers: Result<Vec<u64>, _> = text.split_ascii_whitespace().map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

/// Number of syncs: enough for a median, and fast even on a slow disk.
const SYNCS: usize = 21;

/// Bytes of each write: a small batch.
const SYNC_BYTES: usize = 4096;
