//! The metrics of streams and their commits.

use encke_stream::{Committed, RunCache, Totals};
use prometheus::core::Metric;
use prometheus::{Histogram, IntCounter, IntGauge, Registry};

use super::registrar::{Registrar, set_total};

/// The streams of all logs, and the commits of their records.
#[derive(Clone)]
pub(crate) struct StreamMetrics {
    records: IntCounter,
    batch_records: Histogram,
    sync_seconds: Histogram,
    log_failed: IntGauge,
    patterns: IntGauge,
    awaited: IntGauge,
    streams: IntGauge,
    streams_in_memory: IntGauge,
    names_free: IntGauge,
    stream_loads: IntCounter,
    stream_evictions: IntCounter,
    producers_forgotten: IntCounter,
    producer_bytes: IntGauge,
    kept_run_bytes: IntGauge,
    kept_run_reads: IntCounter,
    /// How long reader threads took to load names.
    pub(crate) look_up_seconds: Histogram,
}

impl StreamMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        let powers =
            |first: f64, factor: f64, count| prometheus::exponential_buckets(first, factor, count);
        Ok(StreamMetrics {
            records: metrics.counter("encke_records_total", "Records committed.")?,
            batch_records: metrics.histogram(
                "encke_batch_records",
                "Records in one commit.",
                powers(1.0, 2.0, 16)?,
            )?,
            sync_seconds: metrics.histogram(
                "encke_fdatasync_seconds",
                "How long the syncs took that batches wait for.",
                powers(0.000_05, 2.0, 18)?,
            )?,
            log_failed: metrics
                .gauge("encke_log_failed", "1 when the log takes no more records.")?,
            patterns: metrics.gauge(
                "encke_patterns",
                "Patterns of stream names that have subscribers.",
            )?,
            awaited: metrics.gauge(
                "encke_awaited_names",
                "Names with subscribers that no stream has yet: channels before their first event.",
            )?,
            streams: metrics.gauge("encke_streams", "Streams, in memory or not.")?,
            streams_in_memory: metrics.gauge("encke_streams_in_memory", "Streams in memory.")?,
            names_free: metrics.gauge(
                "encke_names_free",
                "Names in memory that are free, because requests named them.",
            )?,
            stream_loads: metrics.counter(
                "encke_stream_loads_total",
                "Streams loaded into memory because requests named them.",
            )?,
            stream_evictions: metrics.counter(
                "encke_stream_evictions_total",
                "Streams evicted from memory because they were unused.",
            )?,
            producers_forgotten: metrics.counter(
                "encke_producers_forgotten_total",
                "Producers evicted because their stream had too many.",
            )?,
            producer_bytes: metrics.gauge(
                "encke_producer_bytes",
                "Memory that the producers of the streams in memory take.",
            )?,
            kept_run_bytes: metrics.gauge(
                "encke_kept_run_bytes",
                "Memory that runs of records take which were read more than once.",
            )?,
            kept_run_reads: metrics.counter(
                "encke_kept_run_reads_total",
                "Reads of streams that were served from runs in memory.",
            )?,
            look_up_seconds: metrics.histogram(
                "encke_look_up_seconds",
                "Time a reader thread took to load a name that was not in memory.",
                powers(0.000_01, 2.0, 20)?,
            )?,
        })
    }

    /// Shows the runs that are kept in memory.
    pub(crate) fn show_runs(&self, runs: &RunCache) {
        self.kept_run_bytes.set(runs.bytes() as i64);
        set_total(&self.kept_run_reads, runs.hits());
    }

    /// Shows the totals of all streams.
    pub(crate) fn show(&self, totals: Totals) {
        self.streams.set(totals.streams as i64);
        self.patterns.set(totals.patterns as i64);
        self.awaited.set(totals.awaited as i64);
        self.streams_in_memory.set(totals.in_memory as i64);
        self.names_free.set(totals.free_names as i64);
        set_total(&self.stream_loads, totals.loads);
        set_total(&self.stream_evictions, totals.evictions);
        set_total(&self.producers_forgotten, totals.producers_forgotten);
        self.producer_bytes.set(totals.producer_bytes as i64);
    }

    /// Records so far, and the syncs by the bounds of their times in seconds, each with all that took less, and in all.
    pub(crate) fn commits(&self) -> (u64, Vec<(f64, u64)>, u64) {
        let metric = self.sync_seconds.metric();
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter();
        let buckets = buckets.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
        let total = histogram.get_sample_count();
        (self.records.get(), buckets.collect(), total)
    }

    /// Counts a commit.
    pub(crate) fn committed(&self, committed: &Committed) {
        if committed.records > 0 {
            self.records.inc_by(committed.records as u64);
            self.batch_records.observe(committed.records as f64);
        }
        if let Some(sync) = committed.sync {
            self.sync_seconds.observe(sync.as_secs_f64());
        }
        if committed.failed {
            // It stays set, whatever other logs do.
            self.log_failed.set(1);
        }
    }
}
