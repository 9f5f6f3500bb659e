//! The metrics of a node of a fleet, for each log.

use std::sync::Arc;

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::status::LogStatus;

/// The metrics of a node of a fleet.
#[derive(Clone)]
pub struct FleetMetrics {
    applied: IntGaugeVec,
    behind: IntGaugeVec,
    lag: GaugeVec,
    round_trip: GaugeVec,
    silence: GaugeVec,
    in_flight: IntGaugeVec,
    batches: IntCounterVec,
    retries: IntCounterVec,
    given_up: IntCounterVec,
}

impl FleetMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// They are registered already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let int_gauge = |name: &str, help: &str| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), LABELS)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = GaugeVec::new(Opts::new(name, help), LABELS)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let counter = |name: &str, help: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), LABELS)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(FleetMetrics {
            applied: int_gauge(
                "encke_fleet_applied_position",
                "The last position of the order that this node has applied.",
            )?,
            behind: int_gauge(
                "encke_fleet_lag_messages",
                "Messages of the order that this node has not applied.",
            )?,
            lag: gauge(
                "encke_fleet_lag_seconds",
                "How long this node lacks the oldest message that it has not applied.",
            )?,
            round_trip: gauge(
                "encke_fleet_round_trip_seconds",
                "How long a broker took to confirm the last message of this node.",
            )?,
            silence: gauge(
                "encke_fleet_silence_seconds",
                "How long no broker has answered about the order.",
            )?,
            in_flight: int_gauge(
                "encke_fleet_commands_in_flight",
                "Commands of the batch that a broker has not confirmed yet.",
            )?,
            batches: counter(
                "encke_fleet_batches_total",
                "Batches of all nodes that this node has applied.",
            )?,
            retries: counter(
                "encke_fleet_retries_total",
                "Messages of this node that were sent again.",
            )?,
            given_up: counter(
                "encke_fleet_given_up_total",
                "Batches of this node that no broker has confirmed in time.",
            )?,
        })
    }

    /// Shows the figures of all logs, by their indices.
    pub fn show(&self, logs: &[Arc<LogStatus>]) {
        for (log, status) in logs.iter().enumerate() {
            let log = log.to_string();
            let label = &[log.as_str()];
            let figures = status.figures();
            let int = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            self.applied
                .with_label_values(label)
                .set(int(figures.applied));
            let behind = figures.last.saturating_sub(figures.applied);
            self.behind.with_label_values(label).set(int(behind));
            let seconds = [
                (&self.lag, figures.lag),
                (&self.round_trip, figures.round_trip),
                (&self.silence, figures.silence),
            ];
            for (gauge, time) in seconds {
                gauge.with_label_values(label).set(time.as_secs_f64());
            }
            let in_flight = int(figures.commands_in_flight);
            self.in_flight.with_label_values(label).set(in_flight);
            let counts = [
                (&self.batches, figures.batches),
                (&self.retries, figures.retries),
                (&self.given_up, figures.given_up),
            ];
            for (counter, count) in counts {
                let counter = counter.with_label_values(label);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
        }
    }
}

const LABELS: &[&str] = &["log"];
