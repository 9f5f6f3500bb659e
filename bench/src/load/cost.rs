//! What a period of a run costs: the server's processor time and memory, the tool's own processor time, and that of all
//! others on the machine.

use crate::load::clock::{SECOND_NS, duration_ns, monotonic_ns};
use crate::load::latency::{Latencies, Percentiles};
use crate::load::probe::Probe;
use crate::load::stolen::Stolen;
use crate::{BenchError, machine, proc};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a period has cost.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    /// How long it was.
    pub seconds: f64,
    /// The server's processor time and memory, if its process is known.
    pub server: Option<ServerCost>,
    /// The processor time of this tool, in seconds.
    pub own_cpu_s: f64,
    /// The share of the processors' time that neither the server nor this tool used, in percent: what else ran on the machine.
    /// `None` if the server's process is not known.
    pub others_percent: Option<f64>,
    /// The share that the host of the virtual machine took, in percent.
    pub stolen_percent: f64,
    /// How late a thread of this tool woke that sleeps for 10 ms again and again: what any time that is measured here may have
    /// in excess.
    pub woke_late: Option<Percentiles>,
}

/// What a period has cost the server.
#[derive(Debug, Clone, Serialize)]
pub struct ServerCost {
    /// Its processor time, user and system, in seconds; exact to a clock tick.
    pub cpu_s: f64,
    /// Its resident anonymous memory at the beginning.
    pub rss_anon_bytes_before: u64,
    /// The most of it that a sample found; there is one every 10 ms.
    pub rss_anon_bytes_max: u64,
    /// The most that was resident, mapped files among it (`VmHWM`).
    pub rss_bytes_max: u64,
}

/// A period that is being measured.
#[derive(Debug)]
pub(crate) struct CostMeter<'a> {
    begun_ns: u64,
    own_cpu_s: f64,
    machine: Stolen,
    sampler: Sampler,
    server: Option<ServerMeter<'a>>,
}

#[derive(Debug)]
struct ServerMeter<'a> {
    probe: &'a Probe,
    cpu_ns: u64,
    rss_anon_bytes: u64,
}

impl<'a> CostMeter<'a> {
    /// Begins now. The server's memory is sampled until the end.
    pub(crate) fn begin(probe: Option<&'a Probe>) -> Result<Self, BenchError> {
        let server = |probe: &'a Probe| {
            proc::reset_peak_rss(probe.pid())?;
            Ok::<_, BenchError>(ServerMeter {
                rss_anon_bytes: probe.rss_anon_bytes()?,
                cpu_ns: probe.cpu_ns()?,
                probe,
            })
        };
        Ok(Self {
            server: probe.map(server).transpose()?,
            sampler: Sampler::start(probe.map(Probe::pid))?,
            machine: Stolen::begin(),
            own_cpu_s: machine::cpu_seconds(),
            begun_ns: monotonic_ns(),
        })
    }

    /// Ends now.
    pub(crate) fn end(self) -> Result<Cost, BenchError> {
        let seconds = (monotonic_ns() - self.begun_ns) as f64 / SECOND_NS as f64;
        let own_cpu_s = machine::cpu_seconds() - self.own_cpu_s;
        let (worked_s, all_s) = self.machine.worked_seconds();
        let sampled_bytes_max = self.sampler.max_bytes();
        let server = self.server.map(|server| server.end(sampled_bytes_max));
        let server = server.transpose()?;
        let others = |server: &ServerCost| {
            let others_s = (worked_s - own_cpu_s - server.cpu_s).max(0.0);
            100.0 * others_s / all_s.max(1e-9)
        };
        Ok(Cost {
            seconds,
            others_percent: server.as_ref().map(others),
            server,
            own_cpu_s,
            stolen_percent: self.machine.percent(),
            woke_late: self.sampler.end().percentiles(),
        })
    }
}

impl ServerMeter<'_> {
    fn end(self, sampled_bytes_max: u64) -> Result<ServerCost, BenchError> {
        let cpu_ns = self.probe.cpu_ns()?.saturating_sub(self.cpu_ns);
        let last = self.probe.rss_anon_bytes()?;
        Ok(ServerCost {
            cpu_s: cpu_ns as f64 / SECOND_NS as f64,
            rss_anon_bytes_before: self.rss_anon_bytes,
            rss_anon_bytes_max: sampled_bytes_max.max(self.rss_anon_bytes).max(last),
            rss_bytes_max: proc::peak_rss_bytes(self.probe.pid())?,
        })
    }
}

/// A thread that looks at the anonymous memory of a process, and at how late it is itself, until this is dropped.
#[derive(Debug)]
struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Latencies>>,
}

#[derive(Debug, Default)]
struct Shared {
    max_bytes: AtomicU64,
    over: AtomicBool,
}

impl Sampler {
    fn start(pid: Option<u32>) -> Result<Self, BenchError> {
        let probe = pid.map(Probe::new).transpose()?;
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || own.sample(probe.as_ref()));
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    fn max_bytes(&self) -> u64 {
        self.shared.max_bytes.load(Ordering::Relaxed)
    }

    /// Ends it. Returns how late it woke each time.
    fn end(mut self) -> Latencies {
        self.shared.over.store(true, Ordering::Relaxed);
        let woke_late = self.thread.take().and_then(|thread| thread.join().ok());
        woke_late.expect("it runs until here, and nothing in it panics")
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn sample(&self, probe: Option<&Probe>) -> Latencies {
        let mut woke_late = Latencies::new();
        while !self.over.load(Ordering::Relaxed) {
            if let Some(probe) = probe {
                // A server that has ended is noticed by the run itself.
                let bytes = probe.rss_anon_bytes().unwrap_or(0);
                self.max_bytes.fetch_max(bytes, Ordering::Relaxed);
            }
            let due_ns = monotonic_ns() + duration_ns(SAMPLE_EVERY);
            std::thread::sleep(SAMPLE_EVERY);
            woke_late.record(monotonic_ns().saturating_sub(due_ns));
        }
        woke_late
    }
}

/// Often enough for a peak of some milliseconds to be likely seen, and 1 % of a processor at most.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;
    use std::hint::black_box;

    #[test]
    fn a_peak_that_has_passed_is_still_seen_and_does_not_count_for_the_next_period() {
        let name = "load::cost::tests::\
            a_peak_that_has_passed_is_still_seen_and_does_not_count_for_the_next_period";
        alone(name, || {
            let probe = Probe::new(std::process::id()).unwrap();
            let meter = CostMeter::begin(Some(&probe)).unwrap();
            let block = black_box(vec![1u8; PEAK_BYTES]);
            // Until a sample has seen it.
            while meter.sampler.max_bytes() < PEAK_BYTES as u64 {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(block);
            let before = meter.server.as_ref().unwrap().rss_anon_bytes;
            let cost = meter.end().unwrap();
            let server = cost.server.unwrap();
            let grown = server.rss_anon_bytes_max - server.rss_anon_bytes_before;
            assert!(grown > PEAK_BYTES as u64 * 9 / 10, "{grown}");
            assert!(server.rss_bytes_max > PEAK_BYTES as u64, "{server:?}");
            assert_eq!(server.rss_anon_bytes_before, before);
            // The server is this process.
            assert!((server.cpu_s - cost.own_cpu_s).abs() < 0.1, "{server:?}");
            assert!(cost.others_percent.unwrap() <= 100.0);

            let cost = CostMeter::begin(Some(&probe)).unwrap().end().unwrap();
            let next = cost.server.unwrap();
            assert!(next.rss_bytes_max < server.rss_bytes_max, "{next:?}");
        });
    }

    #[test]
    fn without_a_process_only_the_tool_is_measured() {
        let cost = CostMeter::begin(None).unwrap().end().unwrap();
        assert!(cost.server.is_none() && cost.others_percent.is_none());
        assert!(cost.seconds >= 0.0 && cost.own_cpu_s >= 0.0);
    }

    /// Large enough that the allocator gives it back to the system when it is freed.
    const PEAK_BYTES: usize = 256 << 20;
}
