//! The metrics of the health probe.

use prometheus::{GaugeVec, IntCounterVec, Registry};

use super::registrar::Registrar;
use crate::health::{OUTCOMES, ProbeReport};

/// The metrics of the health probe.
#[derive(Clone)]
pub(crate) struct ProbeMetrics {
    ended: IntCounterVec,
    commit_seconds: GaugeVec,
    delivery_seconds: GaugeVec,
}

impl ProbeMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        let metrics = ProbeMetrics {
            ended: metrics.counters(
                "encke_probes_total",
                "Health probes, by outcome: delivered, refused (a log takes no records) or stalled.",
                &["outcome"],
            )?,
            commit_seconds: metrics.seconds(
                "encke_probe_commit_seconds",
                "Time from the append of the last health probe until the log had made it durable.",
                &["log"],
            )?,
            delivery_seconds: metrics.seconds(
                "encke_probe_delivery_seconds",
                "Time from the append of the last health probe until the shard had delivered it.",
                &["shard"],
            )?,
        };
        for outcome in OUTCOMES {
            metrics.ended.with_label_values(&[outcome]);
        }
        Ok(metrics)
    }

    /// Shows what a probe has found. The figures of a stage at which it did not arrive are removed.
    pub(crate) fn show(&self, report: &ProbeReport) {
        self.ended.with_label_values(&[report.outcome()]).inc();
        let commits = report
            .commits
            .iter()
            .map(|took| (took, &self.commit_seconds));
        let deliveries = report
            .deliveries
            .iter()
            .map(|took| (took, &self.delivery_seconds));
        for (number, (took, gauge)) in commits.enumerate().chain(deliveries.enumerate()) {
            let number = number.to_string();
            match took {
                Some(took) => gauge.with_label_values(&[&number]).set(took.as_secs_f64()),
                // There is none after a start.
                None => drop(gauge.remove_label_values(&[&number])),
            }
        }
    }
}
