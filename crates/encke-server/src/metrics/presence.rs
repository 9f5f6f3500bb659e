//! The metrics of members.

use encke_presence::PresenceFigures;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::registrar::{Registrar, set_total};

/// The metrics of members.
#[derive(Clone)]
pub(crate) struct PresenceMetrics {
    members: IntGauge,
    connections: IntGauge,
    streams: IntGauge,
    bytes: IntGauge,
    fleet: IntGaugeVec,
    changes: IntCounterVec,
    refused: IntCounter,
    packets: IntCounterVec,
}

impl PresenceMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        let metrics = PresenceMetrics {
            members: metrics.gauge(
                "encke_presence_members",
                "Members of streams, over all nodes of a fleet; one of two streams counts twice. With watchlists of the Pusher protocol each \
                 online user is one, too.",
            )?,
            connections: metrics.gauge(
                "encke_presence_connections",
                "Connections by which members and others are there.",
            )?,
            streams: metrics.gauge(
                "encke_presence_streams",
                "Streams with members, connections or followers: also channels of the Pusher protocol with a subscription, and with watchlists one \
                 for each online user.",
            )?,
            bytes: metrics.gauge(
                "encke_presence_bytes",
                "Bytes of the ids and the public data of members.",
            )?,
            fleet: metrics.gauges(
                "encke_presence_fleet",
                "Other nodes of a fleet that tell of members (nodes), and the members that they hold (members).",
                &["of"],
            )?,
            changes: metrics.counters(
                "encke_presence_changes_total",
                "Members that came (join) and went (leave).",
                &["change"],
            )?,
            refused: metrics.counter(
                "encke_presence_refused_total",
                "Connections that could not become members, because of a bound.",
            )?,
            packets: metrics.counters(
                "encke_presence_packets_total",
                "Packets about members between nodes, by what became of them: received, refused, foreign, stale, asked, answered, differed or \
                 silenced.",
                &["outcome"],
            )?,
        };
        metrics.show(&PresenceFigures::default());
        Ok(metrics)
    }

    /// Shows what a registry has and has done.
    pub(crate) fn show(&self, figures: &PresenceFigures) {
        let gauge = |gauge: &IntGauge, value: usize| gauge.set(value as i64);
        gauge(&self.members, figures.members);
        gauge(&self.connections, figures.connections);
        gauge(&self.streams, figures.streams);
        gauge(&self.bytes, figures.bytes);
        let of = |label: &str| self.fleet.with_label_values(&[label]);
        gauge(&of("nodes"), figures.nodes);
        gauge(&of("members"), figures.remote_members);
        let changed = |label: &str| self.changes.with_label_values(&[label]);
        set_total(&changed("join"), figures.joins);
        set_total(&changed("leave"), figures.leaves);
        set_total(&self.refused, figures.refused);
        let packets = &figures.packets;
        for (outcome, count) in [
            ("received", packets.received),
            ("refused", packets.refused),
            ("foreign", packets.foreign),
            ("stale", packets.stale),
            ("asked", packets.asked),
            ("answered", packets.answered),
            ("differed", packets.differed),
            ("silenced", packets.silenced),
        ] {
            set_total(&self.packets.with_label_values(&[outcome]), count);
        }
    }
}
