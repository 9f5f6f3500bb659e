//! What the server does now, and how it is.

use std::time::Instant;

use encke_clock::WallTime;
use serde_json::{Map, Value, json};

use super::families::Families;
use crate::metrics::ServerMetrics;

/// What does not change while the server runs.
pub(super) struct Overview {
    started: WallTime,
    begun: Instant,
}

impl Overview {
    /// The server starts now.
    pub(super) fn begin() -> Overview {
        Overview {
            started: encke_net::wall_time(),
            begun: Instant::now(),
        }
    }

    /// What there is to say now. `unready`: why the server is not ready.
    pub(super) fn now(&self, metrics: &ServerMetrics, unready: Option<String>) -> Value {
        let families = Families(metrics.gather());
        let count = |name: &str| json!(families.value(name).max(0.0) as u64);
        let mut overview = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started": self.started.as_ms(),
            "uptimeSeconds": self.begun.elapsed().as_secs(),
            "unready": unready,
            "cpuSeconds": families.value("process_cpu_seconds_total"),
            "closed": by_label(&families, "encke_connections_closed_total"),
            "refused": by_label(&families, "encke_refused_total"),
            "mailboxes": mailboxes(&families),
        });
        for (member, metric) in COUNTS {
            overview[member] = count(metric);
        }
        overview
    }
}

/// The counts of a metric by its label, without those that are 0.
fn by_label(families: &Families, name: &str) -> Value {
    let counts = families.labelled(name).filter(|(_, count)| *count > 0.0);
    let counts: Map<String, Value> = counts
        .map(|(label, count)| (label.to_owned(), json!(count as u64)))
        .collect();
    Value::Object(counts)
}

fn mailboxes(families: &Families) -> Value {
    let depths = families.labelled("encke_mailbox_depth");
    let mailboxes = depths.map(|(name, depth)| {
        let of = |metric: &str| {
            let mut values = families.labelled(metric);
            values
                .find_map(|(label, value)| (label == name).then_some(value))
                .unwrap_or_default()
        };
        json!({
            "name": name,
            "depth": depth as u64,
            "bytes": of("encke_mailbox_bytes") as u64,
            "ageSeconds": of("encke_mailbox_age_seconds"),
            "waiting": of("encke_mailbox_senders_waiting") as u64,
            "refused": of("encke_mailbox_refused_total") as u64,
        })
    });
    Value::Array(mailboxes.collect())
}

/// Members of the overview, and the metrics that they are.
const COUNTS: &[(&str, &str)] = &[
    ("connections", "encke_connections"),
    ("subscribers", "encke_subscribers"),
    ("behind", "encke_clients_behind"),
    ("streams", "encke_streams"),
    ("streamsInMemory", "encke_streams_in_memory"),
    ("streamsCongested", "encke_streams_congested"),
    ("patterns", "encke_patterns"),
    ("records", "encke_records_total"),
    ("requests", "encke_requests_total"),
    ("deliveries", "encke_deliveries_total"),
    ("hangups", "encke_hangups_total"),
    ("bufferedBytes", "encke_buffered_bytes"),
    ("segmentBytes", "encke_log_segment_bytes"),
    ("historyBytes", "encke_log_history_bytes"),
    ("residentBytes", "process_resident_memory_bytes"),
    ("openFiles", "process_open_fds"),
];
