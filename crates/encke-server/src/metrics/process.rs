//! The metrics of a process that every Prometheus client library exports. procfs would read the same files, with two more crates
//! and a second version of rustix.

use prometheus::{Error, IntCounter, IntGauge, Registry};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::registrar::{Registrar, set_total};

/// Processor time, memory, open files and threads of this process.
#[derive(Debug, Clone)]
pub(crate) struct ProcessMetrics {
    /// Whole seconds.
    cpu_s: IntCounter,
    open_fds: IntGauge,
    max_fds: IntGauge,
    virtual_bytes: IntGauge,
    resident_bytes: IntGauge,
    threads: IntGauge,
    thread_restarts: IntCounter,
}

impl ProcessMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, Error> {
        let make = Registrar(registry);
        let started = make.gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
        )?;
        if let Some(start_s) = start_time_s() {
            started.set(start_s as i64);
        }
        Ok(ProcessMetrics {
            cpu_s: make.counter(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            )?,
            open_fds: make.gauge("process_open_fds", "Number of open file descriptors.")?,
            max_fds: make.gauge(
                "process_max_fds",
                "Maximum number of open file descriptors.",
            )?,
            virtual_bytes: make.gauge(
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
            )?,
            resident_bytes: make.gauge(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
            )?,
            threads: make.gauge("process_threads", "Number of OS threads in the process.")?,
            thread_restarts: make.counter(
                "encke_thread_restarts_total",
                "Threads that panicked and began anew; the log says which.",
            )?,
        })
    }

    /// Reads the current values from the kernel. A value that cannot be read keeps the one before.
    pub(super) fn refresh(&self) {
        if let Some(stat) = Stat::read() {
            set_total(&self.cpu_s, stat.cpu_ticks / clock_ticks_per_second());
            self.virtual_bytes.set(stat.virtual_bytes as i64);
            let resident_bytes = stat.resident_pages * page_size() as u64;
            self.resident_bytes.set(resident_bytes as i64);
            self.threads.set(stat.threads as i64);
        }
        set_total(&self.thread_restarts, encke_threads::restarts());
        if let Some(open) = open_fds() {
            self.open_fds.set(open as i64);
        }
        // Without a limit the gauge is 0.
        let max = getrlimit(Resource::Nofile).current.unwrap_or(0);
        self.max_fds.set(max as i64);
    }
}

/// The fields of `/proc/self/stat` that the metrics use (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// In user mode and in the kernel.
    cpu_ticks: u64,
    threads: u64,
    /// From the boot of the machine to the start of the process.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn read() -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The second field is the program's name in parentheses. It may contain spaces and parentheses.
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        // The first field behind the name has the number 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: number(14)? + number(15)?,
            threads: number(20)?,
            start_ticks: number(22)?,
            virtual_bytes: number(23)?,
            resident_pages: number(24)?,
        })
    }
}

/// Seconds from the Unix epoch to the start of this process.
fn start_time_s() -> Option<u64> {
    let kernel = std::fs::read_to_string("/proc/stat").ok()?;
    let boot_s = kernel
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .parse::<u64>()
        .ok()?;
    Some(boot_s + Stat::read()?.start_ticks / clock_ticks_per_second())
}

fn open_fds() -> Option<u64> {
    // Since Linux 6.2 the size of the directory is the number of descriptors. With many, listing them takes milliseconds.
    let size = std::fs::metadata("/proc/self/fd").ok()?.len();
    if size > 0 {
        return Some(size);
    }
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_does_not_shift_the_fields() {
        let text = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 31 11 0 0 20 0 5 0 900 4096000 250 18446744073709551615 1 1";
        let stat = Stat {
            cpu_ticks: 42,
            threads: 5,
            start_ticks: 900,
            virtual_bytes: 4_096_000,
            resident_pages: 250,
        };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (cut"), None);
    }

    #[test]
    fn each_metric_has_a_value_of_this_process() {
        let registry = Registry::new();
        let metrics = ProcessMetrics::new(&registry).unwrap();
        metrics.refresh();
        let families = registry.gather();
        assert_eq!(families.len(), 8);
        for family in families {
            let metric = &family.get_metric()[0];
            match family.name() {
                "process_cpu_seconds_total" => {
                    let seconds = metric.get_counter().get_value();
                    let ticks = Stat::read().unwrap().cpu_ticks;
                    assert!(seconds <= (ticks / clock_ticks_per_second()) as f64);
                }
                "encke_thread_restarts_total" => assert_eq!(metric.get_counter().get_value(), 0.0),
                name => assert!(metric.get_gauge().get_value() >= 1.0, "{name}"),
            }
        }
    }
}
