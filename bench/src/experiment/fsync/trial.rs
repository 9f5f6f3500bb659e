//! One trial: a server, probes, and a load in the middle third of the time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::load::{Latencies, Percentiles, SprayArgs, spray_counting};
use serde::Serialize;

use super::probe::{Probes, Reading, Readings};
use crate::BenchError;
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Disk, Level, Serving, scrape, streams_url};
use crate::load::scrape::Scrape;

/// The plan of a trial.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Plan {
    /// How long each of the three phases lasts.
    pub(super) phase: Duration,
}

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
    /// The server's disk.
    pub(super) disk: Disk,
    /// When the server acknowledges.
    pub(super) level: Level,
    /// The load of the second phase.
    pub(super) load: Load,
    /// How many of the load's appends were acknowledged per second.
    pub(super) load_per_second: f64,
    /// Before, during and after the load.
    pub(super) phases: [Phase; 3],
    /// Appends of the probes' publisher.
    pub(super) published: u64,
    /// Those whose event arrived.
    pub(super) delivered: u64,
    /// The readings, each in the time of the phases put end to end.
    #[serde(skip)]
    pub(super) pings: Vec<Reading>,
    #[serde(skip)]
    pub(super) deliveries: Vec<Reading>,
}

/// One phase of a trial.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Phase {
    /// `before`, `during` or `after`.
    pub(super) name: &'static str,
    /// How long it was, in seconds.
    pub(super) seconds: f64,
    /// From the writing of a HEAD to its answer.
    pub(super) ping: Percentiles,
    /// From the writing of an append to its event.
    pub(super) delivery: Percentiles,
    /// Records that the server has committed per second.
    pub(super) records_per_second: f64,
    /// Records in a commit, on average.
    pub(super) records_per_batch: Option<f64>,
    /// Syncs per second that a batch has waited for.
    pub(super) syncs_per_second: f64,
    /// How long they took, on average.
    pub(super) sync_us: Option<f64>,
    /// The share of the time in which the log was syncing, in percent.
    pub(super) syncing_percent: f64,
}

/// When a phase was, and the server's figures at its ends.
struct Slice {
    name: &'static str,
    from_ns: u64,
    to_ns: u64,
    first: Scrape,
    last: Scrape,
}

impl Trial {
    /// Starts a server and makes a trial against it.
    pub(super) fn serve(
        lab: &Lab<'_>,
        plan: Plan,
        disk: Disk,
        level: Level,
        load: Load,
    ) -> Result<Self, BenchError> {
        let data = match disk.is_memory() {
            true => lab.scratch_in_memory("serve")?,
            false => lab.scratch("serve")?,
        };
        let server = Serving::start(lab, data.path(), level, disk, &SYNC_EVERY)?;
        let trial = Self::make(lab, plan, server.address(), (disk, level), load)?;
        server.stop()?;
        Ok(trial)
    }

    /// Makes a trial against a server that is there.
    pub(super) fn make(
        lab: &Lab<'_>,
        plan: Plan,
        server: SocketAddr,
        (disk, level): (Disk, Level),
        load: Load,
    ) -> Result<Self, BenchError> {
        let probes = Probes::start(server)?;
        let phases = phases(lab, plan, server, &probes, load);
        // The probes end whether or not a phase has failed.
        let readings = probes.end();
        let ((slices, load_per_second), readings) = (phases?, readings?);
        let phase = |n: usize| slices[n].figures(&readings);
        let joined = |readings: &[Reading]| -> Vec<Reading> {
            let of_phase =
                |(n, slice): (usize, &Slice)| slice.moved(readings, n as u64 * plan_ns(plan));
            slices.iter().enumerate().flat_map(of_phase).collect()
        };
        Ok(Self {
            disk,
            level,
            load,
            load_per_second,
            phases: [phase(0)?, phase(1)?, phase(2)?],
            published: readings.published,
            delivered: readings.deliveries.len() as u64,
            pings: joined(&readings.pings),
            deliveries: joined(&readings.deliveries),
        })
    }

    pub(super) fn before(&self) -> &Phase {
        &self.phases[0]
    }

    pub(super) fn during(&self) -> &Phase {
        &self.phases[1]
    }

    pub(super) fn pings(&self) -> &[Reading] {
        &self.pings
    }

    pub(super) fn deliveries(&self) -> &[Reading] {
        &self.deliveries
    }
}

/// Quiet, load, quiet; and how many of the load's appends were acknowledged per second.
fn phases(
    lab: &Lab<'_>,
    plan: Plan,
    server: SocketAddr,
    probes: &Probes,
    load: Load,
) -> Result<([Slice; 3], f64), BenchError> {
    lab.sleep(SETTLE.min(plan.phase))?;
    let before = phase(lab, "before", plan, server, probes)?;
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let (during, load_per_second) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            step_back();
            spray_counting(&spray_args(server, load), &stop, &acknowledged)
        });
        let during = wait_for_load(lab, &acknowledged, || load.is_finished())
            .and_then(|()| lab.sleep(SETTLE))
            .and_then(|()| phase(lab, "during", plan, server, probes));
        stop.store(true, Ordering::Relaxed);
        let report = load.join().map_err(|_| BenchError::Thread("load"))??;
        Ok::<_, BenchError>((during?, report.acknowledged_per_second))
    })?;
    lab.sleep(SETTLE.min(plan.phase))?;
    let after = phase(lab, "after", plan, server, probes)?;
    Ok(([before, during, after], load_per_second))
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
    name: &'static str,
    plan: Plan,
    server: SocketAddr,
    probes: &Probes,
) -> Result<Slice, BenchError> {
    let first = scrape(server)?;
    let from_ns = probes.now_ns();
    lab.sleep(plan.phase)?;
    // On a busy machine a short phase may be over before anything has come back.
    let begun = Instant::now();
    while !probes.have_read_since(from_ns) && begun.elapsed() < PATIENCE {
        lab.sleep(LOOK)?;
    }
    let to_ns = probes.now_ns();
    let last = scrape(server)?;
    Ok(Slice {
        name,
        from_ns,
        to_ns,
        first,
        last,
    })
}

/// At level accepted the log syncs what it has written every few milliseconds, and on a slow disk without pause, so that
/// there are syncs that no request may wait for.
const SYNC_EVERY: [&str; 2] = ["--sync-every", "1ms"];

/// Publishers beside the probes.
fn spray_args(server: SocketAddr, load: Load) -> SprayArgs {
    SprayArgs {
        url: streams_url(server),
        producers: load.publishers,
        streams: load.publishers,
        prefix: "load/".into(),
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
        let grown = |name: &str| self.last.since(&self.first, name);
        Ok(Phase {
            name: self.name,
            seconds,
            ping: self.percentiles(&readings.pings)?,
            delivery: self.percentiles(&readings.deliveries)?,
            records_per_second: grown("encke_records_total") / seconds,
            records_per_batch: self.last.mean_since(&self.first, "encke_batch_records"),
            syncs_per_second: grown("encke_fdatasync_seconds_count") / seconds,
            sync_us: self
                .last
                .mean_since(&self.first, "encke_fdatasync_seconds")
                .map(|seconds| seconds * 1e6),
            syncing_percent: grown("encke_fdatasync_seconds_sum") / seconds * 100.0,
        })
    }

    fn percentiles(&self, readings: &[Reading]) -> Result<Percentiles, BenchError> {
        let mut latencies = Latencies::new();
        for reading in self.of(readings) {
            latencies.record(reading.took_ns);
        }
        latencies.percentiles().ok_or_else(|| {
            BenchError::Server(format!("answered nothing in the phase {:?}", self.name))
        })
    }

    /// The phase's readings, as if it had begun at `start_ns`.
    fn moved(&self, readings: &[Reading], start_ns: u64) -> Vec<Reading> {
        let moved = |reading: &Reading| Reading {
            at_ns: reading.at_ns - self.from_ns + start_ns,
            ..*reading
        };
        self.of(readings).map(moved).collect()
    }

    /// The readings that began in this phase.
    fn of<'a>(&self, readings: &'a [Reading]) -> impl Iterator<Item = &'a Reading> + use<'a> {
        let span = self.from_ns..self.to_ns;
        readings
            .iter()
            .filter(move |reading| span.contains(&reading.at_ns))
    }
}

/// A phase in nanoseconds.
pub(super) fn plan_ns(plan: Plan) -> u64 {
    plan.phase.as_nanos() as u64
}

/// How long a phase without an answer goes on, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// How long the load may take until its first append is acknowledged.
const LOAD_WAIT: Duration = Duration::from_secs(60);

/// The load's threads are as nice as can be.
const NICE: i32 = 19;

/// How long a change of the load is left to settle.
const SETTLE: Duration = Duration::from_millis(500);

/// Bytes of each of the load's records.
const LOAD_BYTES: usize = 128;
