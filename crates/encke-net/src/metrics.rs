//! The metrics of the reactor. Each shard counts for itself and adds up once a turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use encke_stream::Totals;
use parking_lot::Mutex;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

use crate::access_metrics::AccessMetrics;
use crate::lag::Lag;
use crate::log_metrics::{LogMetrics, raise};
use crate::pool_metrics::PoolMetrics;
use crate::transport::tls::HandshakeMetrics;

type Refresh = Box<dyn Fn(&Metrics) + Send>;

/// All metrics of the server, in one registry.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// These update the gauges before they are rendered.
    gauges: Arc<Mutex<Vec<Refresh>>>,
    pub(crate) connections: IntGauge,
    pub(crate) subscribers: IntGauge,
    pub(crate) behind: IntGauge,
    pub(crate) streams_congested: IntGauge,
    pub(crate) held_back: IntCounter,
    pub(crate) addresses: IntGauge,
    pub(crate) buffered_bytes: IntGauge,
    pub(crate) accepted: IntCounter,
    pub(crate) accepts_held: IntCounter,
    pub(crate) accepts_gathered: IntCounter,
    pub(crate) hangups: IntCounter,
    pub(crate) buffers_shed: IntCounter,
    pub(crate) deferred_put_off: IntCounter,
    pub(crate) rests: IntCounter,
    pub(crate) closed: IntCounterVec,
    pub(crate) http2_connections: IntGauge,
    pub(crate) http2_streams: IntGauge,
    pub(crate) http2_streams_cut: IntCounterVec,
    pub(crate) requests: IntCounter,
    pub(crate) refused: IntCounterVec,
    pub(crate) access_log_lines: IntCounter,
    pub(crate) access_log_dropped: IntCounterVec,
    pub(crate) audit_dropped: IntCounterVec,
    pub(crate) access: AccessMetrics,
    pub(crate) compressing: IntGauge,
    pub(crate) compressions: IntCounterVec,
    pub(crate) compressions_refused: IntCounter,
    pub(crate) compressed_bytes: IntCounter,
    pub(crate) bytes_in: IntCounter,
    pub(crate) bytes_out: IntCounter,
    pub(crate) deliveries: IntCounter,
    pub(crate) sends: IntCounter,
    pub(crate) blocked: IntCounter,
    pub(crate) catch_ups: IntCounter,
    pub(crate) records: IntCounter,
    pub(crate) batch_records: Histogram,
    pub(crate) sync_seconds: Histogram,
    pub(crate) log_failed: IntGauge,
    pub(crate) log: LogMetrics,
    pub(crate) mailbox_depth: IntGaugeVec,
    pub(crate) mailbox_bytes: IntGaugeVec,
    pub(crate) mailbox_age_seconds: GaugeVec,
    pub(crate) mailbox_waiting: IntGaugeVec,
    pub(crate) mailbox_refused: IntCounterVec,
    pub(crate) ring_lag_bytes: IntGaugeVec,
    pub(crate) ring_lag_seconds: GaugeVec,
    pub(crate) patterns: IntGauge,
    streams: IntGauge,
    pub(crate) streams_in_memory: IntGauge,
    pub(crate) names_free: IntGauge,
    pub(crate) stream_loads: IntCounter,
    pub(crate) stream_evictions: IntCounter,
    pub(crate) producers_forgotten: IntCounter,
    pub(crate) look_up_seconds: Histogram,
    pub(crate) pools: PoolMetrics,
    pub(crate) handshakes: HandshakeMetrics,
}

impl Metrics {
    /// Where others register their metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Metrics that have counted nothing.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
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
        let counters = |name: &str, help: &str, label: &str| -> Result<_, prometheus::Error> {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let gauges = |name: &str, help: &str, label: &str| -> Result<_, prometheus::Error> {
            let gauges = IntGaugeVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(gauges.clone()))?;
            Ok(gauges)
        };
        let seconds = |name: &str, help: &str, label: &str| -> Result<_, prometheus::Error> {
            let gauges = GaugeVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(gauges.clone()))?;
            Ok(gauges)
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let build_info = IntGaugeVec::new(
            Opts::new("encke_build_info", "1; the version of this server."),
            &["version"],
        )?;
        let version = env!("CARGO_PKG_VERSION");
        build_info.with_label_values(&[version]).set(1);
        registry.register(Box::new(build_info))?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let powers =
            |first: f64, factor: f64, count| prometheus::exponential_buckets(first, factor, count);
        Ok(Metrics {
            connections: gauge("encke_connections", "Connections that are open.")?,
            subscribers: gauge(
                "encke_subscribers",
                "Connections that are subscribed, live or as a long poll.",
            )?,
            behind: gauge(
                "encke_clients_behind",
                "Clients that read too slowly and lack records that are due to them.",
            )?,
            streams_congested: gauge(
                "encke_streams_congested",
                "Streams with at least 64 subscribers on a shard, most of them lagging. Appends to these streams are acknowledged late.",
            )?,
            held_back: counter(
                "encke_acknowledgements_held_total",
                "Acknowledgements that were delayed because most subscribers of their stream were lagging.",
            )?,
            buffered_bytes: gauge(
                "encke_buffered_bytes",
                "Bytes held for connections: parts of requests, and output that sockets have not taken.",
            )?,
            addresses: gauge(
                "encke_addresses",
                "Client addresses in the table of limits.",
            )?,
            accepts_gathered: counter(
                "encke_accepts_gathered_total",
                "Connections that were accepted in batches because many arrived at once.",
            )?,
            accepts_held: counter(
                "encke_accepts_held_total",
                "Times accepting paused because `accept_rate` was reached.",
            )?,
            accepted: counter("encke_connections_accepted_total", "Connections accepted.")?,
            deferred_put_off: counter(
                "encke_deferred_put_off_total",
                "Turns of a shard that left deferred work (new connections, long bodies, catching up, deadlines) to the next turn, because its time was used up.",
            )?,
            rests: counter(
                "encke_rests_total",
                "Rounds of sends to a stream's subscribers that took longer than a turn of a shard, so that the next round was delayed.",
            )?,
            buffers_shed: counter(
                "encke_buffers_shed_total",
                "Connections and HTTP/2 streams that lost what they held in memory: their client held more than `buffers_per_client`, or the most while all held nearly `buffers_max`.",
            )?,
            hangups: counter("encke_hangups_total", "Connections that the client closed.")?,
            closed: counters(
                "encke_connections_closed_total",
                "Connections that the server closed, by reason.",
                "reason",
            )?,
            http2_connections: gauge("encke_http2_connections", "Connections that speak HTTP/2.")?,
            http2_streams: gauge(
                "encke_http2_streams",
                "Streams of HTTP/2 connections that are open.",
            )?,
            http2_streams_cut: counters(
                "encke_http2_streams_cut_total",
                "Streams of HTTP/2 connections that the server ended before the response was complete, by reason.",
                "reason",
            )?,
            requests: counter("encke_requests_total", "Requests that reached a protocol.")?,
            refused: counters(
                "encke_refused_total",
                "Requests and connections refused, by reason or status.",
                "reason",
            )?,
            access_log_lines: counter(
                "encke_access_log_lines_total",
                "Lines of the access log that were written.",
            )?,
            access: AccessMetrics::new(&registry)?,
            audit_dropped: counters(
                "encke_audit_log_dropped_total",
                "Entries of the audit log that were dropped, by reason.",
                "reason",
            )?,
            access_log_dropped: {
                let dropped = counters(
                    "encke_access_log_dropped_total",
                    "Entries of the access log that were dropped because its queue was full or its output failed, by reason.",
                    "reason",
                )?;
                // Both are there from the start, so that an alert on their growth sees the first one.
                for reason in [QUEUE_FULL, UNWRITABLE] {
                    dropped.with_label_values(&[reason]);
                }
                dropped
            },
            compressing: gauge("encke_compressing", "Responses that are being compressed.")?,
            compressions: counters(
                "encke_compressions_total",
                "Compressions of responses that were begun, by coding.",
                "coding",
            )?,
            compressions_refused: counter(
                "encke_compressions_refused_total",
                "Responses that were not compressed because there were as many compressions as allowed, or too little memory.",
            )?,
            compressed_bytes: counter(
                "encke_compressed_bytes_total",
                "Bytes that came out of compressions.",
            )?,
            bytes_in: counter("encke_bytes_received_total", "Bytes received.")?,
            bytes_out: counter("encke_bytes_sent_total", "Bytes sent.")?,
            deliveries: counter(
                "encke_deliveries_total",
                "Records written to subscribers, counted once for each subscriber.",
            )?,
            sends: counter(
                "encke_sends_total",
                "System calls that wrote to subscribers.",
            )?,
            blocked: counter(
                "encke_blocked_total",
                "Times a subscriber's socket took no more.",
            )?,
            catch_ups: counter(
                "encke_catch_ups_total",
                "Pieces of streams read from the log for connections.",
            )?,
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
            log: LogMetrics::new(&registry)?,
            mailbox_depth: gauges(
                "encke_mailbox_depth",
                "Items in a mailbox, including those in work.",
                "mailbox",
            )?,
            mailbox_bytes: gauges("encke_mailbox_bytes", "Bytes in a mailbox.", "mailbox")?,
            mailbox_age_seconds: seconds(
                "encke_mailbox_age_seconds",
                "Age of the oldest item in a mailbox.",
                "mailbox",
            )?,
            mailbox_waiting: gauges(
                "encke_mailbox_senders_waiting",
                "Threads that wait for room in a mailbox.",
                "mailbox",
            )?,
            mailbox_refused: counters(
                "encke_mailbox_refused_total",
                "Items refused by a full mailbox.",
                "mailbox",
            )?,
            ring_lag_bytes: gauges(
                "encke_ring_lag_bytes",
                "Bytes of records between the newest and the oldest whose delivery has not begun.",
                "shard",
            )?,
            ring_lag_seconds: seconds(
                "encke_ring_lag_seconds",
                "Age of the oldest record whose delivery has not begun.",
                "shard",
            )?,
            streams: gauge("encke_streams", "Streams, in memory or not.")?,
            patterns: gauge(
                "encke_patterns",
                "Patterns of stream names that have subscribers.",
            )?,
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
            pools: PoolMetrics::new(&registry)?,
            handshakes: HandshakeMetrics::new(&registry)?,
            gauges: Arc::default(),
            registry,
        })
    }

    /// All metrics in the Prometheus text format.
    pub fn render(&self) -> Vec<u8> {
        for refresh in self.gauges.lock().iter() {
            refresh(self);
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be written");
        }
        text
    }

    /// Calls `refresh` to update gauges before each rendering.
    pub(crate) fn on_render(&self, refresh: impl Fn(&Metrics) + Send + 'static) {
        self.gauges.lock().push(Box::new(refresh));
    }

    /// Drops all refresh functions and what they hold.
    pub(crate) fn forget(&self) {
        self.gauges.lock().clear();
    }

    pub(crate) fn mailbox(&self, name: &str, gauge: &encke_mailbox::Gauge) {
        let name = &[name];
        let age = gauge.oldest_age().unwrap_or_default();
        let set = |metric: &IntGaugeVec, value: usize| {
            metric.with_label_values(name).set(value as i64);
        };
        set(&self.mailbox_depth, gauge.depth());
        set(&self.mailbox_bytes, gauge.bytes());
        set(&self.mailbox_waiting, gauge.waiting());
        let age_seconds = self.mailbox_age_seconds.with_label_values(name);
        age_seconds.set(age.as_secs_f64());
        raise(
            &self.mailbox_refused.with_label_values(name),
            gauge.refused(),
        );
    }

    pub(crate) fn streams(&self, totals: Totals) {
        self.streams.set(totals.streams as i64);
        self.patterns.set(totals.patterns as i64);
        self.streams_in_memory.set(totals.in_memory as i64);
        self.names_free.set(totals.free_names as i64);
        raise(&self.stream_loads, totals.loads);
        raise(&self.stream_evictions, totals.evictions);
        raise(&self.producers_forgotten, totals.producers_forgotten);
    }

    pub(crate) fn ring_lag(&self, shard: &str, lag: &Lag) {
        let bytes = lag.bytes.load(Ordering::Relaxed);
        let age = Duration::from_micros(lag.us.load(Ordering::Relaxed));
        let lag_bytes = self.ring_lag_bytes.with_label_values(&[shard]);
        lag_bytes.set(bytes as i64);
        let lag_seconds = self.ring_lag_seconds.with_label_values(&[shard]);
        lag_seconds.set(age.as_secs_f64());
    }

    /// Counts a commit.
    pub(crate) fn committed(&self, committed: &encke_stream::Committed) {
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

/// One shard's counts since it last added them up.
#[derive(Debug, Default)]
pub(crate) struct ShardCounts {
    pub(crate) requests: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) compressed_bytes: u64,
    pub(crate) deliveries: u64,
    pub(crate) sends: u64,
    pub(crate) blocked: u64,
    pub(crate) catch_ups: u64,
    pub(crate) accepted: u64,
    pub(crate) hangups: u64,
    pub(crate) buffers_shed: u64,
    pub(crate) deferred_put_off: u64,
    pub(crate) rests: u64,
    pub(crate) connections: i64,
    pub(crate) http2_connections: i64,
    pub(crate) http2_streams: i64,
    pub(crate) subscribers: i64,
    pub(crate) behind: i64,
    pub(crate) held_back: u64,
}

impl ShardCounts {
    /// Adds these counts to the metrics and resets them.
    pub(crate) fn add_up(&mut self, metrics: &Metrics) {
        let counts = std::mem::take(self);
        for (metric, count) in [
            (&metrics.requests, counts.requests),
            (&metrics.bytes_in, counts.bytes_in),
            (&metrics.bytes_out, counts.bytes_out),
            (&metrics.compressed_bytes, counts.compressed_bytes),
            (&metrics.deliveries, counts.deliveries),
            (&metrics.sends, counts.sends),
            (&metrics.blocked, counts.blocked),
            (&metrics.catch_ups, counts.catch_ups),
            (&metrics.accepted, counts.accepted),
            (&metrics.hangups, counts.hangups),
            (&metrics.buffers_shed, counts.buffers_shed),
            (&metrics.deferred_put_off, counts.deferred_put_off),
            (&metrics.rests, counts.rests),
            (&metrics.held_back, counts.held_back),
        ] {
            if count > 0 {
                metric.inc_by(count);
            }
        }
        for (metric, change) in [
            (&metrics.connections, counts.connections),
            (&metrics.http2_connections, counts.http2_connections),
            (&metrics.http2_streams, counts.http2_streams),
            (&metrics.subscribers, counts.subscribers),
            (&metrics.behind, counts.behind),
        ] {
            if change != 0 {
                metric.add(change);
            }
        }
    }
}

/// Why entries are dropped: the labels of `encke_access_log_dropped_total`.
pub(crate) const QUEUE_FULL: &str = "queue_full";
pub(crate) const UNWRITABLE: &str = "unwritable";
