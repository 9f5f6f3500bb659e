//! Properties of the machine that affect the figures of a run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::load::{Latencies, Percentiles};
use crate::units;
use rustix::fs::{FallocateFlags, fallocate, fdatasync, statfs, statvfs};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::{BenchError, proc};

/// What the figures depend on.
#[derive(Debug, Clone, Serialize)]
pub struct MachineInfo {
    /// Processors that this process may use.
    pub cores: usize,
    /// Their name, if the system provides it.
    pub processor: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel.
    pub kernel: String,
    /// The file system under the data.
    pub file_system: String,
    /// Processes that wanted to run in the last minute, on average, before the run began: what else the machine did.
    pub load_before: f64,
    /// Whether this program was built with optimisation.
    pub optimised: bool,
    /// A bare write and fdatasync of 4 KiB to preallocated space.
    pub sync: Percentiles,
}

impl MachineInfo {
    /// Looks at the machine, and measures its disk in `folder`.
    pub(crate) fn look(folder: &Path) -> Result<Self, BenchError> {
        Ok(Self {
            cores: cores(),
            processor: processor(&proc::text("/proc/cpuinfo")),
            memory_bytes: meminfo_bytes("MemTotal:").unwrap_or(0),
            kernel: format!("Linux {}", proc::text("/proc/sys/kernel/osrelease").trim()),
            file_system: file_system(folder)?,
            load_before: proc::text("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            optimised: !cfg!(debug_assertions),
            sync: bare_syncs(folder, SYNC_BYTES, SYNCS)?,
        })
    }

    /// The machine in a line.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} cores ({}), {} of memory, {}, data on {} where a bare write and fdatasync takes {} (p99 {})",
            self.cores,
            self.processor,
            units::bytes(self.memory_bytes),
            self.kernel,
            self.file_system,
            units::micros(self.sync.p50_us),
            units::micros(self.sync.p99_us),
        )
    }

    /// What makes the figures unfit to be published.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.optimised {
            warnings.push("this is a debug build: its figures mean nothing".into());
        }
        if self.load_before > self.cores as f64 / 4.0 {
            warnings.push(format!(
                "the machine was busy: a load of {:.1} on {} cores before the run",
                self.load_before, self.cores
            ));
        }
        if self.file_system == "tmpfs" {
            warnings.push("the data is in memory (tmpfs): fdatasync costs nothing there".into());
        }
        warnings
    }
}

/// Processors that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The processor time that this process has used, user and system, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The anonymous memory of this process, in bytes.
pub(crate) fn process_bytes() -> u64 {
    // Samples are taken often: this file is the cheapest to read.
    let statm = proc::text("/proc/self/statm");
    let pages: Vec<u64> = statm
        .split_ascii_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    // Resident pages without those of files and shared memory.
    let anonymous = match pages[..] {
        [_, resident, shared, ..] => resident.saturating_sub(shared),
        _ => 0,
    };
    anonymous * rustix::param::page_size() as u64
}

/// Memory that is free for use, in bytes.
pub(crate) fn free_memory_bytes() -> u64 {
    meminfo_bytes("MemAvailable:").unwrap_or(u64::MAX)
}

/// Room on the disk under `folder`, in bytes.
pub(crate) fn free_disk_bytes(folder: &Path) -> Result<u64, BenchError> {
    let disk = statvfs(folder).map_err(BenchError::file("look at the disk of", folder))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Writes `bytes` and makes them durable, `count` times, one after the other in space that was reserved, as a log
/// would.
pub(crate) fn bare_syncs(
    folder: &Path,
    bytes: usize,
    count: u32,
) -> Result<Percentiles, BenchError> {
    let mut latencies = Latencies::new();
    BareFile::new(folder, bytes as u64 * u64::from(count))?.syncs(bytes, count, &mut latencies)?;
    latencies
        .percentiles()
        .ok_or_else(|| BenchError::Option("at least one sync is needed".into()))
}

/// A preallocated file that is written to and synced with nothing in between. Removed when dropped.
pub(crate) struct BareFile {
    file: File,
    path: std::path::PathBuf,
    position: u64,
}

impl BareFile {
    pub(crate) fn new(folder: &Path, bytes: u64) -> Result<Self, BenchError> {
        let path = folder.join("bare");
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(BenchError::file("make", &path))?;
        let bare = Self {
            file,
            path,
            position: 0,
        };
        fallocate(&bare.file, FallocateFlags::empty(), 0, bytes)
            .map_err(BenchError::file("reserve", &bare.path))?;
        bare.file
            .sync_all()
            .map_err(BenchError::file("sync", &bare.path))?;
        Ok(bare)
    }

    /// Writes `bytes` and syncs, `count` times.
    pub(crate) fn syncs(
        &mut self,
        bytes: usize,
        count: u32,
        latencies: &mut Latencies,
    ) -> Result<(), BenchError> {
        let block = vec![b'x'; bytes];
        for _ in 0..count {
            let begun = Instant::now();
            self.file
                .write_all_at(&block, self.position)
                .map_err(BenchError::file("write", &self.path))?;
            fdatasync(&self.file).map_err(BenchError::file("sync", &self.path))?;
            latencies.record(begun.elapsed().as_nanos() as u64);
            self.position += bytes as u64;
        }
        Ok(())
    }
}

impl Drop for BareFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn file_system(folder: &Path) -> Result<String, BenchError> {
    let kind = statfs(folder)
        .map_err(BenchError::file("look at the file system of", folder))?
        .f_type;
    let kind = u64::from_ne_bytes(kind.to_ne_bytes());
    let known = FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind);
    Ok(known.map_or_else(|| format!("{kind:#x}"), |(_, name)| (*name).to_owned()))
}

fn meminfo_bytes(name: &str) -> Option<u64> {
    proc::kilobytes(&proc::text("/proc/meminfo"), name)
}

fn processor(cpuinfo: &str) -> String {
    cpuinfo
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()))
        .unwrap_or(std::env::consts::ARCH)
        .to_owned()
}

/// The names of file systems, by the numbers that statfs(2) lists.
const FILE_SYSTEMS: [(u64, &str); 7] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlayfs"),
    (0xf2f5_2010, "f2fs"),
];

/// What the disk is measured with: one page, `SYNCS` times.
const SYNC_BYTES: usize = 4 << 10;
const SYNCS: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;

    #[test]
    fn the_machine_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let machine = MachineInfo::look(folder.path()).unwrap();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20);
        assert_eq!(machine.sync.count, u64::from(SYNCS));
        assert!(!machine.file_system.is_empty() && machine.kernel.starts_with("Linux"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(free_disk_bytes(folder.path()).unwrap() > 0);
        assert!(free_memory_bytes() > 1 << 20);
    }

    #[test]
    fn memory_that_is_taken_is_seen() {
        alone("machine::tests::memory_that_is_taken_is_seen", || {
            let before = process_bytes();
            // An optimised build would otherwise allocate nothing.
            let block = std::hint::black_box(vec![1u8; 64 << 20]);
            let after = process_bytes();
            assert!(
                after > before + (32 << 20),
                "{before} {after} {}",
                block.len()
            );
        });
    }

    #[test]
    fn processors_have_names() {
        assert_eq!(processor("x: 1\nmodel name\t: Fast One\n"), "Fast One");
        assert_eq!(processor(""), std::env::consts::ARCH);
    }
}
