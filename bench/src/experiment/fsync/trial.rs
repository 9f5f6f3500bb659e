//! One trial: probes of a server, before and during a load.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::load::{Latencies, Percentiles, SprayArgs, spray_counting};
use serde::Serialize;

use super::probe::{Probes, Reading, Readings, SEQUENCER, SHARDS};
use super::run_queue::{Threads, Times};
use crate::BenchError;
use crate::client::HttpClient;
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Serving, scrape, streams_url};
use crate::load::scrape::Scrape;

/// The load of the second phase.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Load {
    /// Publishers, each waiting for its acknowledgement.
    pub(super) publishers: u32,
    /// Appends a second in all; `None` for as many as are acknowledged.
    pub(super) rate: Option<f64>,
}

/// The measurements of a trial.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Trial {
    /// How many of the load's appends were acknowledged per second.
    pub(super) load_per_second: f64,
    pub(super) before: Phase,
    pub(super) during: Phase,
    /// Appends of the probes' publisher.
    pub(super) published: u64,
    /// Those whose event arrived.
    pub(super) delivered: u64,
}

/// One phase of a trial.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Phase {
    /// How long it was, in seconds.
    pub(super) seconds: f64,
    /// From the writing of a HEAD to its answer.
    pub(super) ping: Latency,
    /// From the writing of an append to its event.
    pub(super) delivery: Latency,
    /// Records that the server has committed per second.
    pub(super) records_per_second: f64,
    /// Records in a commit, on average.
    pub(super) records_per_batch: Option<f64>,
    /// Syncs per second that a batch has waited for.
    pub(super) syncs_per_second: f64,
    /// How long they took, on average.
    pub(super) sync_us: Option<f64>,
    /// The time of all shards, and of the sequencer, on a processor and waiting for one, in percent of the phase.
    pub(super) shards: Share,
    pub(super) sequencer: Share,
}

/// A latency, and what the threads on its way did meanwhile.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Latency {
    pub(super) all: Percentiles,
    /// The same without the time in which these threads waited for a processor.
    pub(super) on_processor: Percentiles,
    /// The slowest hundredth.
    pub(super) slow: Parts,
}

/// The parts of a latency: means, in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Parts {
    /// The threads waited for a processor.
    pub(super) wait_us: f64,
    /// They ran.
    pub(super) run_us: f64,
    /// They slept: waited for a lock, the disk or the network.
    pub(super) rest_us: f64,
}

/// Shares of a phase.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Share {
    pub(super) run_percent: f64,
    pub(super) wait_percent: f64,
}

/// When a phase was, and the server's figures at its ends.
struct Slice {
    from_ns: u64,
    to_ns: u64,
    first: Moment,
    last: Moment,
}

struct Moment {
    scrape: Scrape,
    shards: Times,
    sequencer: Times,
}

impl Trial {
    /// Probes a server before and during a load. `number` names the trial's stream.
    pub(super) fn of(
        lab: &Lab<'_>,
        server: &Serving,
        length: Duration,
        load: Load,
        number: usize,
    ) -> Result<Self, BenchError> {
        let probes = Probes::start(server, number)?;
        let phases = phases(lab, length, server, &probes, load);
        // The probes end whether or not a phase has failed.
        let readings = probes.end();
        let ((before, during, load_per_second), readings) = (phases?, readings?);
        Ok(Self {
            load_per_second,
            before: before.figures(&readings)?,
            during: during.figures(&readings)?,
            published: readings.published,
            delivered: readings.deliveries.len() as u64,
        })
    }
}

/// Quiet and load, and how many of the load's appends were acknowledged per second.
fn phases(
    lab: &Lab<'_>,
    length: Duration,
    server: &Serving,
    probes: &Probes,
    load: Load,
) -> Result<(Slice, Slice, f64), BenchError> {
    lab.sleep(SETTLE)?;
    let before = phase(lab, length.mul_f64(QUIET), server, probes)?;
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            step_back();
            spray_counting(&spray_args(server.address(), load), &stop, &acknowledged)
        });
        let during = wait_for_load(lab, &acknowledged, || load.is_finished())
            .and_then(|()| lab.sleep(SETTLE))
            .and_then(|()| phase(lab, length, server, probes));
        stop.store(true, Ordering::Relaxed);
        let report = load.join().map_err(|_| BenchError::Thread("load"))??;
        Ok((before, during?, report.acknowledged_per_second))
    })
}

/// Waits for the first acknowledgement of the load. Its threads come after all others, so on a busy machine it takes them long
/// to create the streams and connect.
fn wait_for_load(
    lab: &Lab<'_>,
    acknowledged: &AtomicU64,
    is_over: impl Fn() -> bool,
) -> Result<(), BenchError> {
    let begun = Instant::now();
    // The report of a load that is over says why.
    while acknowledged.load(Ordering::Relaxed) == 0 && !is_over() {
        if begun.elapsed() >= LOAD_WAIT {
            return Err(BenchError::Server(format!(
                "acknowledged nothing of the load within {} s",
                LOAD_WAIT.as_secs()
            )));
        }
        lab.sleep(LOOK)?;
    }
    Ok(())
}

/// Lets this thread, and those it begins, come after the server's and the probes'. Elsewhere the load would have processors of
/// its own: here, a thread behind it waits for a tick of the scheduler, up to 4 ms, and the upper percentiles would say how
/// often that happened.
fn step_back() {
    // Where it may not, the figures are as noisy as they would be anyway.
    let _ = rustix::process::setpriority_process(None, NICE);
}

fn phase(
    lab: &Lab<'_>,
    length: Duration,
    server: &Serving,
    probes: &Probes,
) -> Result<Slice, BenchError> {
    let first = Moment::of(server)?;
    let from_ns = probes.now_ns();
    lab.sleep(length)?;
    // On a busy machine a short phase may be over before anything has come back.
    let begun = Instant::now();
    while !probes.have_read_since(from_ns) && begun.elapsed() < PATIENCE {
        lab.sleep(LOOK)?;
    }
    let to_ns = probes.now_ns();
    let last = Moment::of(server)?;
    Ok(Slice {
        from_ns,
        to_ns,
        first,
        last,
    })
}

impl Moment {
    fn of(server: &Serving) -> Result<Self, BenchError> {
        let times = |prefix| Ok::<_, BenchError>(Threads::named(server.pid(), prefix)?.times());
        Ok(Self {
            scrape: scrape(server.address())?,
            shards: times(SHARDS)?,
            sequencer: times(SEQUENCER)?,
        })
    }
}

/// At level accepted the log syncs what it has written every few milliseconds, and on a slow disk without pause, so that
/// there are syncs that no request may wait for.
pub(super) const SYNC_EVERY: [&str; 2] = ["--sync-every", "1ms"];

/// Creates the load's streams, once for all trials.
pub(super) fn create_streams(server: &Serving, streams: u32) -> Result<(), BenchError> {
    let mut client = HttpClient::connect(server.address())?;
    (0..streams).try_for_each(|number| {
        let path = format!("/v1/stream/{LOAD_STREAMS}{number}");
        client.succeed("PUT", &path, b"").map(drop)
    })
}

/// Publishers beside the probes.
fn spray_args(server: SocketAddr, load: Load) -> SprayArgs {
    SprayArgs {
        url: streams_url(server),
        producers: load.publishers,
        streams: load.publishers,
        prefix: LOAD_STREAMS.into(),
        content_type: "text/plain".into(),
        no_create: true,
        rate: load.rate,
        size: LOAD_BYTES,
        // Its own progress would be noise here.
        progress: Some(Duration::from_secs(3_600)),
        ..SprayArgs::default()
    }
}

impl Slice {
    fn figures(&self, readings: &Readings) -> Result<Phase, BenchError> {
        let seconds = (self.to_ns - self.from_ns) as f64 / 1e9;
        let (first, last) = (&self.first.scrape, &self.last.scrape);
        let grown = |name: &str| last.since(first, name);
        let share = |times: Times| Share {
            run_percent: times.run_ns as f64 / 1e7 / seconds,
            wait_percent: times.wait_ns as f64 / 1e7 / seconds,
        };
        Ok(Phase {
            seconds,
            ping: self.latency(&readings.pings)?,
            delivery: self.latency(&readings.deliveries)?,
            records_per_second: grown("encke_records_total") / seconds,
            records_per_batch: last.mean_since(first, "encke_batch_records"),
            syncs_per_second: grown("encke_fdatasync_seconds_count") / seconds,
            sync_us: last
                .mean_since(first, "encke_fdatasync_seconds")
                .map(|seconds| seconds * 1e6),
            shards: share(self.last.shards - self.first.shards),
            sequencer: share(self.last.sequencer - self.first.sequencer),
        })
    }

    /// The latency of the readings that began in this phase.
    fn latency(&self, readings: &[Reading]) -> Result<Latency, BenchError> {
        let span = self.from_ns..self.to_ns;
        let readings = readings.iter().filter(|r| span.contains(&r.at_ns));
        Latency::of(readings.copied().collect())
            .ok_or_else(|| BenchError::Server("answered nothing in a phase".into()))
    }
}

impl Latency {
    /// `None` without readings.
    pub(super) fn of(mut readings: Vec<Reading>) -> Option<Self> {
        let (mut all, mut on_processor) = (Latencies::new(), Latencies::new());
        for reading in &readings {
            all.record(reading.took_ns);
            on_processor.record(reading.took_ns.saturating_sub(reading.threads.wait_ns));
        }
        readings.sort_by_key(|reading| std::cmp::Reverse(reading.took_ns));
        readings.truncate(readings.len().div_ceil(100));
        Some(Self {
            all: all.percentiles()?,
            on_processor: on_processor.percentiles()?,
            slow: Parts::mean(&readings),
        })
    }
}

impl Parts {
    fn mean(readings: &[Reading]) -> Self {
        let mut mean = Self::default();
        let us = |ns: u64| ns as f64 / 1e3 / readings.len() as f64;
        for reading in readings {
            // A wait can have begun before the reading did.
            let wait_ns = reading.threads.wait_ns.min(reading.took_ns);
            let run_ns = reading.threads.run_ns.min(reading.took_ns - wait_ns);
            mean.wait_us += us(wait_ns);
            mean.run_us += us(run_ns);
            mean.rest_us += us(reading.took_ns - wait_ns - run_ns);
        }
        mean
    }
}

/// How long a phase without an answer goes on, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// How long the load may take until its first append is acknowledged.
const LOAD_WAIT: Duration = Duration::from_secs(60);

/// The load's threads are as nice as can be.
const NICE: i32 = 19;

/// How long a change of the load is left to settle.
const SETTLE: Duration = Duration::from_millis(100);

/// The length of the quiet phase, as a part of that of the load.
const QUIET: f64 = 0.4;

/// How the names of the load's streams begin.
const LOAD_STREAMS: &str = "load/";

/// Bytes of each of the load's records.
const LOAD_BYTES: usize = 128;
