//! Watches a run: takes samples every second, prints progress, records to a file.

use super::counters::Counters;
use crate::BenchError;
use crate::load::args::FloodArgs;
use crate::load::clock::{SECOND_NS, monotonic_ns};
use crate::load::descriptors::Descriptors;
use crate::load::probe::{Memory, Probe};
use crate::load::produce::Gauge;
use crate::load::progress::{Progress, Speed};
use crate::load::report::endurance::Sample;
use crate::load::stolen::Stolen;
use crate::units::{bytes, count, per_second};
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

/// One turning point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub(super) memory: Memory,
    pub(super) cpu_ns: u64,
    pub(super) descriptors: Option<Descriptors>,
}

/// The most samples that are kept: over a day of seconds. When there are more, every second one is
/// dropped, and from then on half as many are taken.
const SAMPLES_MAX: usize = 100_000;

/// The first line of a recording.
const HEADER: &str = "seconds,active,closed,hung_up,noticed,failed,events,events_per_second,acknowledged,\
    rss_anon_bytes,kernel_tcp_bytes,kernel_slab_bytes,kernel_slab_other_bytes,\
    descriptors,server_cpu_seconds\n";

/// The eyes of the coordinator.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The server, if its process is known.
    pub(crate) probe: Option<Probe>,
    /// The gauge of the run's own producers, once they have started.
    pub(crate) gauge: Option<Arc<Gauge>>,
    progress: Progress,
    samples: Vec<Sample>,
    sample_at_ns: u64,
    sample_every_ns: u64,
    sampled: Speed,
    printed: Speed,
    recording: Option<(PathBuf, File)>,
    stolen: Stolen,
}

impl Watch {
    /// Begins to watch.
    pub(crate) fn new(args: &FloodArgs) -> Result<Self, BenchError> {
        let recording = match &args.record {
            Some(path) => {
                let make = File::create(path).and_then(|mut file| {
                    file.write_all(HEADER.as_bytes())?;
                    Ok(file)
                });
                let error = BenchError::file("write", path);
                Some((path.clone(), make.map_err(error)?))
            }
            None => None,
        };
        Ok(Self {
            probe: args.server_pid.map(Probe::new).transpose()?,
            gauge: None,
            progress: Progress::new(args.progress),
            samples: Vec::new(),
            sample_at_ns: monotonic_ns(),
            sample_every_ns: SECOND_NS,
            sampled: Speed::new(),
            printed: Speed::new(),
            recording,
            stolen: Stolen::begin(),
        })
    }

    /// The steal time so far, in percent of the processors' time.
    pub(crate) fn stolen_percent(&self) -> f64 {
        self.stolen.percent()
    }

    /// Whether there is a server to measure.
    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Takes a sample and prints progress, each when it is due.
    pub(crate) fn look(&mut self, counters: &Counters) -> Result<(), BenchError> {
        let now_ns = monotonic_ns();
        if now_ns >= self.sample_at_ns {
            self.sample_at_ns += self.sample_every_ns;
            // A sample that could not be taken in time is left out, not made up for.
            self.sample_at_ns = self.sample_at_ns.max(now_ns);
            self.sample(counters)?;
        }
        let Self {
            progress,
            printed,
            samples,
            gauge,
            ..
        } = self;
        progress.when_due(|| {
            let mut line = format!(
                "active {}  closed {}  failed {}  events {}  rate {}",
                count(counters.active),
                count(counters.closed),
                count(counters.failed),
                count(counters.events),
                per_second(printed.of(counters.events))
            );
            if counters.hung_up > 0 {
                line += &format!(
                    "  hung up {} (noticed {})",
                    count(counters.hung_up),
                    count(counters.noticed)
                );
            }
            if let Some(gauge) = gauge {
                line += &format!("  acknowledged {}", count(gauge.acknowledged()));
            }
            if let Some(sample) = samples.last()
                && let Some(memory) = sample.memory
            {
                line += &format!(
                    "  server {}, kernel {}",
                    bytes(memory.rss_anon_bytes),
                    bytes(memory.kernel_bytes())
                );
            }
            line
        });
        Ok(())
    }

    /// The server's memory and processor time now; None if its process is unknown.
    pub(super) fn mark(&self) -> Result<Option<Mark>, BenchError> {
        let Some(probe) = &self.probe else {
            return Ok(None);
        };
        Ok(Some(Mark {
            memory: probe.memory()?,
            cpu_ns: probe.cpu_ns()?,
            descriptors: probe.descriptors_by_kind(),
        }))
    }

    /// The server's process; 0 when it is not known.
    pub(super) fn pid(&self) -> u32 {
        self.probe.as_ref().map_or(0, Probe::pid)
    }

    /// Says something now.
    pub(crate) fn say(&self, line: &str) {
        self.progress.say(line);
    }

    /// Seconds since the start of the run.
    pub(crate) fn seconds(&self) -> f64 {
        self.progress.seconds()
    }

    /// The most resident anonymous memory of the server in any sample.
    pub(crate) fn rss_anon_bytes_max(&self) -> u64 {
        let memories = self.samples.iter().filter_map(|sample| sample.memory);
        memories
            .map(|memory| memory.rss_anon_bytes)
            .max()
            .unwrap_or(0)
    }

    /// All samples.
    pub(crate) fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    fn sample(&mut self, counters: &Counters) -> Result<(), BenchError> {
        let (memory, descriptors, server_cpu_seconds) = match &self.probe {
            Some(probe) => (
                Some(probe.memory()?),
                probe.descriptors(),
                Some(probe.cpu_ns()? as f64 / SECOND_NS as f64),
            ),
            None => (None, None, None),
        };
        let sample = Sample {
            seconds: self.progress.seconds(),
            active: counters.active,
            closed: counters.closed,
            hung_up: counters.hung_up,
            noticed: counters.noticed,
            failed: counters.failed,
            events: counters.events,
            events_per_second: self.sampled.of(counters.events),
            acknowledged: self.gauge.as_ref().map_or(0, |gauge| gauge.acknowledged()),
            memory,
            descriptors,
            server_cpu_seconds,
        };
        if let Some((path, file)) = &mut self.recording {
            let line = csv(&sample);
            file.write_all(line.as_bytes())
                .map_err(BenchError::file("write", path))?;
        }
        self.samples.push(sample);
        if self.samples.len() >= SAMPLES_MAX {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.sample_every_ns *= 2;
        }
        Ok(())
    }
}

fn csv(sample: &Sample) -> String {
    let memory = sample.memory.map_or(",,,".to_owned(), |m| {
        format!(
            "{},{},{},{}",
            m.rss_anon_bytes, m.kernel_tcp_bytes, m.kernel_slab_bytes, m.kernel_slab_other_bytes
        )
    });
    let cpu = sample
        .server_cpu_seconds
        .map_or(String::new(), |seconds| format!("{seconds:.2}"));
    let descriptors = sample
        .descriptors
        .map_or(String::new(), |count| count.to_string());
    let Sample {
        seconds,
        active,
        closed,
        hung_up,
        noticed,
        failed,
        events,
        events_per_second,
        acknowledged,
        ..
    } = sample;
    format!(
        "{seconds:.3},{active},{closed},{hung_up},{noticed},{failed},{events},{events_per_second:.1},{acknowledged},{memory},{descriptors},{cpu}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_has_as_many_fields_as_its_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        let mut args = FloodArgs {
            record: Some(path.clone()),
            ..FloodArgs::default()
        };
        for pid in [None, Some(std::process::id())] {
            args.server_pid = pid;
            let mut watch = Watch::new(&args).unwrap();
            watch
                .look(&Counters {
                    active: 7,
                    ..Counters::default()
                })
                .unwrap();
            watch.look(&Counters::default()).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let fields: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
            assert_eq!(fields, [15, 15], "{text}");
            let samples = watch.take_samples();
            assert_eq!((samples.len(), samples[0].active), (1, 7));
            assert_eq!(samples[0].memory.is_some(), pid.is_some());
        }
    }
}
