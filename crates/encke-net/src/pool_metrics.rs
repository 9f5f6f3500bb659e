//! The metrics of the pools, from what the dispatcher publishes.

use encke_jobs::PublishedStats;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::clock::now_ms;

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
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let cache = IntGauge::new(
            "encke_pool_cache_bytes",
            "Content of jobs in memory, of all pools.",
        )?;
        registry.register(Box::new(cache.clone()))?;
        let loads = IntCounter::new(
            "encke_pool_loads_total",
            "Jobs read from the log because their content was not in memory.",
        )?;
        registry.register(Box::new(loads.clone()))?;
        Ok(PoolMetrics {
            cache,
            loads,
            jobs: gauges(
                "encke_pool_jobs",
                "Unfinished jobs of a pool, by state: waiting or running.",
                &["pool", "state"],
            )?,
            oldest: gauges(
                "encke_pool_oldest_seconds",
                "Age of a pool's oldest unfinished job.",
                &["pool"],
            )?,
            workers: gauges(
                "encke_pool_workers",
                "Connected workers of a pool.",
                &["pool"],
            )?,
            done: counters(
                "encke_pool_done_total",
                "Jobs of a pool that are done.",
                &["pool"],
            )?,
            retried: counters(
                "encke_pool_retried_total",
                "Failed attempts at a pool's jobs that were retried.",
                &["pool"],
            )?,
            dead: counters(
                "encke_pool_dead_total",
                "Jobs of a pool that failed for good and went to the dead letters.",
                &["pool"],
            )?,
            given: counters(
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
        self.loads.reset();
        self.loads.inc_by(published.loads());
        let mut series_left = WORKER_SERIES_MAX;
        for (pool, stats, workers) in published.read() {
            let pool = &*pool;
            let jobs = |state, count: u64| {
                self.jobs
                    .with_label_values(&[pool, state])
                    .set(count as i64);
            };
            jobs("waiting", stats.waiting);
            jobs("running", stats.running);
            let age_s = stats.oldest_age_s(now_ms());
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
