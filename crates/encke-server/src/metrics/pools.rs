//! The metrics of the pools, from what the dispatcher publishes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_jobs::fleet::RelayFigures;
use encke_jobs::{PoolStats, PublishedStats, WorkerStatus};
use encke_net::now;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::registrar::{Registrar, set_total};

/// The metrics of a relay: which node of a fleet dispatches jobs.
#[derive(Clone)]
pub(crate) struct RelayMetrics {
    figures: Arc<RelayFigures>,
    dispatcher: IntGauge,
    held: IntGauge,
    takeovers: IntCounter,
    broken: IntCounter,
}

impl RelayMetrics {
    pub(crate) fn new(
        registry: &Registry,
        figures: Arc<RelayFigures>,
    ) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        Ok(RelayMetrics {
            figures,
            dispatcher: metrics.gauge(
                "encke_fleet_dispatcher",
                "1 if this node dispatches the jobs of the fleet, otherwise 0.",
            )?,
            held: metrics.gauge(
                "encke_fleet_pool_requests_held",
                "Requests to pools that wait for a node that dispatches.",
            )?,
            takeovers: metrics.counter(
                "encke_fleet_takeovers_total",
                "How often this node has become the one that dispatches jobs.",
            )?,
            broken: metrics.counter(
                "encke_fleet_pool_sessions_broken_total",
                "Sessions for jobs with other nodes that have broken off.",
            )?,
        })
    }

    /// Whether the node dispatches, and how often it has begun to.
    pub(crate) fn dispatching(&self) -> (bool, u64) {
        let figures = &self.figures;
        (
            figures.dispatching.load(Ordering::Relaxed),
            figures.takeovers.load(Ordering::Relaxed),
        )
    }

    pub(crate) fn show(&self) {
        let figures = &self.figures;
        let dispatching = figures.dispatching.load(Ordering::Relaxed);
        self.dispatcher.set(dispatching.into());
        self.held.set(figures.held.load(Ordering::Relaxed) as i64);
        set_total(&self.takeovers, figures.takeovers.load(Ordering::Relaxed));
        set_total(&self.broken, figures.broken.load(Ordering::Relaxed));
    }
}

/// The metrics of the pools.
#[derive(Clone)]
pub(crate) struct PoolMetrics {
    jobs: IntGaugeVec,
    oldest: IntGaugeVec,
    workers: IntGaugeVec,
    done: IntCounterVec,
    retried: IntCounterVec,
    dead: IntCounterVec,
    given: IntCounterVec,
    cache: IntGauge,
    loads: IntCounter,
}

impl PoolMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        Ok(PoolMetrics {
            cache: metrics.gauge(
                "encke_pool_cache_bytes",
                "Content of jobs in memory, of all pools.",
            )?,
            loads: metrics.counter(
                "encke_pool_loads_total",
                "Jobs read from the log because their content was not in memory.",
            )?,
            jobs: metrics.gauges(
                "encke_pool_jobs",
                "Unfinished jobs of a pool, by state: waiting or running.",
                &["pool", "state"],
            )?,
            oldest: metrics.gauges(
                "encke_pool_oldest_seconds",
                "Age of a pool's oldest unfinished job.",
                &["pool"],
            )?,
            workers: metrics.gauges(
                "encke_pool_workers",
                "Connected workers of a pool.",
                &["pool"],
            )?,
            done: metrics.counters(
                "encke_pool_done_total",
                "Jobs of a pool that are done.",
                &["pool"],
            )?,
            retried: metrics.counters(
                "encke_pool_retried_total",
                "Failed attempts at a pool's jobs that were retried.",
                &["pool"],
            )?,
            dead: metrics.counters(
                "encke_pool_dead_total",
                "Jobs of a pool that failed for good and went to the dead letters.",
                &["pool"],
            )?,
            given: metrics.counters(
                "encke_pool_worker_jobs_total",
                "Jobs given to a pool's worker; workers beyond the first 100 of a pool, and beyond 1,000 in total, share one series per pool.",
                &["pool", "worker"],
            )?,
        })
    }

    pub(crate) fn show(&self, published: &PublishedStats) {
        for gauges in [&self.jobs, &self.oldest, &self.workers] {
            gauges.reset();
        }
        for counters in [&self.done, &self.retried, &self.dead, &self.given] {
            counters.reset();
        }
        self.cache.set(published.cached_bytes() as i64);
        set_total(&self.loads, published.loads());
        self.show_pools(&published.read());
    }

    fn show_pools(&self, pools: &[(Arc<str>, PoolStats, Vec<WorkerStatus>)]) {
        let mut series_left = WORKER_SERIES_MAX;
        for (pool, stats, workers) in pools {
            let pool: &str = pool;
            let jobs = |state, count: u64| {
                self.jobs
                    .with_label_values(&[pool, state])
                    .set(count as i64);
            };
            jobs("waiting", stats.waiting);
            jobs("running", stats.running);
            let age_s = stats.oldest_age_s(now().steady);
            self.oldest.with_label_values(&[pool]).set(age_s as i64);
            let connected = stats.connected as i64;
            self.workers.with_label_values(&[pool]).set(connected);
            self.done.with_label_values(&[pool]).inc_by(stats.done);
            self.retried
                .with_label_values(&[pool])
                .inc_by(stats.retried);
            self.dead.with_label_values(&[pool]).inc_by(stats.dead);
            for (number, worker) in workers.iter().enumerate() {
                let name = match number < WORKERS_SHOWN_MAX && series_left > 0 {
                    true => {
                        series_left -= 1;
                        &*worker.name
                    }
                    false => "(others)",
                };
                let given = self.given.with_label_values(&[pool, name]);
                given.inc_by(worker.given);
            }
        }
    }
}

/// Workers of a pool that have a series of their own, and workers of all pools.
const WORKERS_SHOWN_MAX: usize = 100;
const WORKER_SERIES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_workers_are_bounded_and_leave_nothing_out() {
        const POOLS: usize = 12;
        const WORKERS: usize = 150;
        let worker = |number: usize| WorkerStatus {
            name: format!("w-{number}").into(),
            slot: number as u32,
            connected: true,
            running: 0,
            given: 2,
            done: 0,
        };
        let workers: Vec<WorkerStatus> = (0..WORKERS).map(worker).collect();
        let pool = |number: usize| {
            let name: Arc<str> = format!("p-{number:02}").into();
            (name, PoolStats::default(), workers.clone())
        };
        let pools: Vec<_> = (0..POOLS).map(pool).collect();
        let registry = Registry::new();
        let metrics = PoolMetrics::new(&registry).unwrap();
        metrics.show_pools(&pools);
        let families = registry.gather();
        let given = families.iter().find(|family| family.name() == GIVEN);
        let mut series = [0; POOLS];
        let mut others = 0;
        let mut jobs = 0.0;
        for metric in given.unwrap().get_metric() {
            let label = |name: &str| {
                let found = metric.get_label().iter().find(|label| label.name() == name);
                found.unwrap().value().to_owned()
            };
            let pool: usize = label("pool")[2..].parse().unwrap();
            series[pool] += 1;
            others += usize::from(label("worker") == "(others)");
            jobs += metric.get_counter().get_value();
        }
        let full = WORKER_SERIES_MAX / WORKERS_SHOWN_MAX;
        assert_eq!(series[..full], [WORKERS_SHOWN_MAX + 1; 10]);
        assert_eq!(series[full..], [1; 2]);
        assert_eq!(others, POOLS);
        assert_eq!(jobs, (POOLS * WORKERS * 2) as f64);
    }

    const GIVEN: &str = "encke_pool_worker_jobs_total";
}
