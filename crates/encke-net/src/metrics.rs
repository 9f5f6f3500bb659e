//! The metrics of the reactor. Each shard counts for itself and adds up once a turn.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::lag::Lag;
use crate::transport::tls::HandshakeMetrics;

/// The metrics of the reactor.
#[derive(Clone)]
pub struct Metrics {
    pub(crate) connections: IntGauge,
    pub(crate) subscribers: IntGauge,
    pub(crate) behind: IntGauge,
    pub(crate) streams_congested: IntGauge,
    pub(crate) held_back: IntCounter,
    pub(crate) addresses: IntGauge,
    pub(crate) buffered_bytes: IntGauge,
    pub(crate) pattern_bytes: IntGauge,
    pub(crate) accepted: IntCounter,
    pub(crate) accepts_held: IntCounter,
    pub(crate) accepts_gathered: IntCounter,
    pub(crate) hangups: IntCounter,
    pub(crate) buffers_shed: IntCounter,
    pub(crate) deferred_put_off: IntCounter,
    pub(crate) pieces: IntCounter,
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
    pub(crate) compressing: IntGauge,
    pub(crate) compressions: IntCounterVec,
    pub(crate) compressions_refused: IntCounter,
    pub(crate) compressed_bytes: IntCounter,
    pub(crate) bytes_in: IntCounter,
    pub(crate) bytes_out: IntCounter,
    pub(crate) deliveries: IntCounter,
    pub(crate) ephemeral: EphemeralMetrics,
    pub(crate) sends: IntCounter,
    pub(crate) blocked: IntCounter,
    pub(crate) catch_ups: IntCounter,
    pub(crate) mailbox_depth: IntGaugeVec,
    pub(crate) mailbox_bytes: IntGaugeVec,
    pub(crate) mailbox_age_seconds: GaugeVec,
    pub(crate) mailbox_waiting: IntGaugeVec,
    pub(crate) mailbox_refused: IntCounterVec,
    pub(crate) ring_lag_bytes: IntGaugeVec,
    pub(crate) ring_lag_seconds: GaugeVec,
    pub(crate) handshakes: HandshakeMetrics,
}

impl Metrics {
    /// Metrics that have counted nothing.
    ///
    /// # Errors
    /// The registry has a metric of the same name.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
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
            pattern_bytes: gauge(
                "encke_pattern_bytes",
                "Memory that the patterns of subscriptions take. What they take beyond 4 KiB of a connection is part of encke_buffered_bytes.",
            )?,
            buffered_bytes: gauge(
                "encke_buffered_bytes",
                "Bytes held for connections: parts of requests, output that sockets have not taken, and patterns of subscriptions.",
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
            pieces: counter(
                "encke_long_record_pieces_total",
                "Pieces of at most 64 KiB that were encoded of records too large for one send. Subscribers at the same place share a piece.",
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
            ephemeral: EphemeralMetrics::new(registry)?,
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
            handshakes: HandshakeMetrics::new(registry)?,
        })
    }

    /// Connections that are open.
    pub fn connections(&self) -> u64 {
        // Shards add up what has changed, so that a sum can be below zero for a moment.
        u64::try_from(self.connections.get()).unwrap_or(0)
    }

    /// Connections that are subscribed.
    pub fn subscribers(&self) -> u64 {
        u64::try_from(self.subscribers.get()).unwrap_or(0)
    }

    /// What the reactor has counted, and what it has now.
    pub fn totals(&self) -> ReactorTotals {
        ReactorTotals {
            connections: self.connections(),
            subscribers: self.subscribers(),
            behind: u64::try_from(self.behind.get()).unwrap_or(0),
            accepted: self.accepted.get(),
            requests: self.requests.get(),
            deliveries: self.deliveries.get(),
            received_bytes: self.bytes_in.get(),
            sent_bytes: self.bytes_out.get(),
        }
    }

    /// Shows the state of a mailbox, which may be one of another part of the server. The name is a label.
    pub fn mailbox(&self, name: &str, gauge: &encke_mailbox::Gauge) {
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

    pub(crate) fn ring_lag(&self, shard: &str, lag: &Lag) {
        let bytes = lag.bytes.load(Ordering::Relaxed);
        let age = Duration::from_micros(lag.us.load(Ordering::Relaxed));
        let lag_bytes = self.ring_lag_bytes.with_label_values(&[shard]);
        lag_bytes.set(bytes as i64);
        let lag_seconds = self.ring_lag_seconds.with_label_values(&[shard]);
        lag_seconds.set(age.as_secs_f64());
    }
}

/// The metrics of ephemeral messages.
#[derive(Clone)]
pub(crate) struct EphemeralMetrics {
    pub(crate) taken: IntCounter,
    pub(crate) deliveries: IntCounter,
    pub(crate) dropped: EphemeralDropped,
}

/// The counters of ephemeral messages that were dropped.
#[derive(Clone)]
pub(crate) struct EphemeralDropped {
    /// For all subscribers of a shard: too much waits there.
    pub(crate) queue_full: IntCounter,
    /// For all other nodes of a fleet: too much waits to be sent.
    pub(crate) fleet_queue_full: IntCounter,
    /// For all subscribers of a shard: the records before it did not come in time.
    pub(crate) late: IntCounter,
    /// For one subscriber: it lacks records.
    pub(crate) behind: IntCounter,
    /// For one subscriber: its socket takes no more.
    pub(crate) blocked: IntCounter,
}

impl EphemeralMetrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let dropped = IntCounterVec::new(
            Opts::new(
                "encke_ephemeral_dropped_total",
                "Ephemeral messages that were dropped: for all subscribers of a shard (queue_full, late), for the other nodes of a fleet (fleet_queue_full), or counted once for each subscriber (behind, blocked).",
            ),
            &["reason"],
        )?;
        registry.register(Box::new(dropped.clone()))?;
        let reason = |reason: &str| dropped.with_label_values(&[reason]);
        Ok(EphemeralMetrics {
            taken: counter(
                "encke_ephemeral_total",
                "Ephemeral messages that clients of this server have sent.",
            )?,
            deliveries: counter(
                "encke_ephemeral_deliveries_total",
                "Ephemeral messages written to subscribers, counted once for each subscriber.",
            )?,
            dropped: EphemeralDropped {
                queue_full: reason("queue_full"),
                fleet_queue_full: reason("fleet_queue_full"),
                late: reason("late"),
                behind: reason("behind"),
                blocked: reason("blocked"),
            },
        })
    }
}

/// What the reactor has counted since its start, and what it has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorTotals {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that are subscribed.
    pub subscribers: u64,
    /// Clients that are behind.
    pub behind: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Requests that reached a protocol.
    pub requests: u64,
    /// Records that were written to subscribers.
    pub deliveries: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

/// One shard's counts since it last added them up.
#[derive(Debug, Default)]
pub(crate) struct ShardCounts {
    pub(crate) requests: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) compressed_bytes: u64,
    pub(crate) deliveries: u64,
    pub(crate) ephemeral_deliveries: u64,
    pub(crate) ephemeral_full: u64,
    pub(crate) ephemeral_late: u64,
    pub(crate) ephemeral_behind: u64,
    pub(crate) ephemeral_blocked: u64,
    pub(crate) sends: u64,
    pub(crate) blocked: u64,
    pub(crate) catch_ups: u64,
    pub(crate) accepted: u64,
    pub(crate) hangups: u64,
    pub(crate) buffers_shed: u64,
    pub(crate) deferred_put_off: u64,
    pub(crate) pieces: u64,
    pub(crate) rests: u64,
    pub(crate) connections: i64,
    pub(crate) http2_connections: i64,
    pub(crate) http2_streams: i64,
    pub(crate) subscribers: i64,
    pub(crate) pattern_bytes: i64,
    pub(crate) behind: i64,
    pub(crate) held_back: u64,
}

impl ShardCounts {
    /// Adds these counts to the metrics and resets them.
    pub(crate) fn add_up(&mut self, metrics: &Metrics) {
        let counts = std::mem::take(self);
        let EphemeralMetrics {
            deliveries: ephemeral,
            dropped,
            ..
        } = &metrics.ephemeral;
        for (metric, count) in [
            (&metrics.requests, counts.requests),
            (&metrics.bytes_in, counts.bytes_in),
            (&metrics.bytes_out, counts.bytes_out),
            (&metrics.compressed_bytes, counts.compressed_bytes),
            (&metrics.deliveries, counts.deliveries),
            (ephemeral, counts.ephemeral_deliveries),
            (&dropped.queue_full, counts.ephemeral_full),
            (&dropped.late, counts.ephemeral_late),
            (&dropped.behind, counts.ephemeral_behind),
            (&dropped.blocked, counts.ephemeral_blocked),
            (&metrics.sends, counts.sends),
            (&metrics.blocked, counts.blocked),
            (&metrics.catch_ups, counts.catch_ups),
            (&metrics.accepted, counts.accepted),
            (&metrics.hangups, counts.hangups),
            (&metrics.buffers_shed, counts.buffers_shed),
            (&metrics.deferred_put_off, counts.deferred_put_off),
            (&metrics.pieces, counts.pieces),
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
            (&metrics.pattern_bytes, counts.pattern_bytes),
            (&metrics.behind, counts.behind),
        ] {
            if change != 0 {
                metric.add(change);
            }
        }
    }
}

/// Raises a counter to a total that is counted elsewhere.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// Why entries are dropped: the labels of `encke_access_log_dropped_total`.
pub(crate) const QUEUE_FULL: &str = "queue_full";
pub(crate) const UNWRITABLE: &str = "unwritable";
