//! The metrics of streams and their commits.

use encke_stream::{Committed, Totals};
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Registry};

use super::logs::raise;

/// The streams of all logs, and the commits of their records.
#[derive(Clone)]
pub(crate) struct StreamMetrics {
    records: IntCounter,
    batch_records: Histogram,
    sync_seconds: Histogram,
    log_failed: IntGauge,
    patterns: IntGauge,
    streams: IntGauge,
    streams_in_memory: IntGauge,
    names_free: IntGauge,
    stream_loads: IntCounter,
    stream_evictions: IntCounter,
    producers_forgotten: IntCounter,
    /// How long reader threads took to load names.
    pub(crate) look_up_seconds: Histogram,
}

impl StreamMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let powers =
            |first: f64, factor: f64, count| prometheus::exponential_buckets(first, factor, count);
        Ok(StreamMetrics {
            records: counter("encke_records_total", "Records committed.")?,
            batch_records: histogram(
                "encke_batch_records",
                "Records in one commit.",
                powers(1.0, 2.0, 16)?,
            )?,
            sync_seconds: histogram(
                "encke_fdatasync_seconds",
                "How long fdatasync took.",
                powers(0.000_05, 2.0, 18)?,
            )?,
            log_failed: gauge("encke_log_failed", "1 when the log takes no more records.")?,
            patterns: gauge(
                "encke_patterns",
                "Patterns of stream names that have subscribers.",
            )?,
            streams: gauge("encke_streams", "Streams, in memory or not.")?,
            streams_in_memory: gauge("encke_streams_in_memory", "Streams in memory.")?,
            names_free: gauge(
                "encke_names_free",
                "Names in memory that are free, because requests named them.",
            )?,
            stream_loads: counter(
                "encke_stream_loads_total",
                "Streams loaded into memory because requests named them.",
            )?,
            stream_evictions: counter(
                "encke_stream_evictions_total",
                "Streams evicted from memory because they were unused.",
            )?,
            producers_forgotten: counter(
                "encke_producers_forgotten_total",
                "Producers evicted because their stream had too many.",
            )?,
            look_up_seconds: histogram(
                "encke_look_up_seconds",
                "Time a reader thread took to load a name that was not in memory.",
                powers(0.000_01, 2.0, 20)?,
            )?,
        })
    }

    /// Shows the totals of all streams.
    pub(crate) fn show(&self, totals: Totals) {
        self.streams.set(totals.streams as i64);
        self.patterns.set(totals.patterns as i64);
        self.streams_in_memory.set(totals.in_memory as i64);
        self.names_free.set(totals.free_names as i64);
        raise(&self.stream_loads, totals.loads);
        raise(&self.stream_evictions, totals.evictions);
        raise(&self.producers_forgotten, totals.producers_forgotten);
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
