//! `fleet`: three nodes with three brokers, beside a server by itself.
//!
//! Appends through all three nodes, deliveries from one node to another, and a node that is killed with its subscribers. All
//! processes share this machine.

mod appends;
mod delivery;
mod kill;
mod nodes;
mod order;

use serde::Serialize;

use crate::experiment::lab::{Lab, middle_by};
use crate::experiment::past::NONE;
use crate::experiment::serving::{Disk, Level, Serving};
use crate::load::{Percentiles, SprayReport};
use crate::report::figures;
use crate::units::{count, micros, per_second};
use crate::{BenchError, Goal, Section, Table};
use appends::{AppendRound, CONNECTIONS};
use kill::KillRound;
use nodes::FleetNodes;

/// The results of the experiment.
#[derive(Debug, Serialize)]
struct FleetFindings {
    appends: Vec<AppendRound>,
    /// In each round: of a server by itself, and between two nodes.
    deliveries: Vec<[Percentiles; 2]>,
    kills: Vec<KillRound>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let data = lab.scratch("alone")?;
    let alone = Serving::start(lab, data.path(), Level::Synced, Disk::Own, &[])?;
    let mut fleet = FleetNodes::start(lab)?;
    let rounds = lab.rounds(ROUNDS);
    let mut deliveries = Vec::new();
    for round in 1..=rounds {
        lab.say(&format!("deliveries, round {round}"));
        let stream = format!("delivery-{round}");
        let nodes = fleet.addresses();
        let same = (alone.address(), alone.address());
        deliveries.push([
            delivery::measure(lab, same, &stream)?,
            delivery::measure(lab, (nodes[0], nodes[1]), &stream)?,
        ]);
    }
    let appends = appends::measure(lab, &alone, &fleet)?;
    alone.stop()?;
    let mut kills = Vec::new();
    for round in 1..=rounds {
        lab.say(&format!("a node is killed, round {round}"));
        kills.push(kill::measure(lab, &mut fleet, round)?);
        fleet.restart(lab, 0)?;
    }
    let found = FleetFindings {
        appends,
        deliveries,
        kills,
    };
    Ok(found.section())
}

impl FleetFindings {
    fn section(&self) -> Section {
        Section {
            name: "fleet",
            title: "three nodes and three brokers",
            story: "Appends at level synced, each acknowledged by a majority of three brokers that sync always and by the node; the \
                    connections are spread over three nodes. Deliveries from a publisher at one node to a subscriber at another. \
                    Subscribers of a node that is killed, which continue at the other two with their last id. A server by itself has \
                    its turns in the same run, and all processes share one machine."
                .to_owned(),
            in_short: Vec::new(),
            tables: vec![
                self.appends_table(),
                self.order_table(),
                self.deliveries_table(),
                self.kills_table(),
            ],
            targets: self.targets(),
            notes: vec![
                "A subscriber is complete when it has a record that was published after its return: all earlier ones came before it. \
                 A record is published every 100 ms, and that is in the time."
                    .to_owned(),
            ],
            figures: figures(self),
            plot: None,
        }
    }

    fn appends_table(&self) -> Table {
        let columns = [
            "appends",
            "alone",
            "fleet",
            "ratio",
            "alone p50",
            "fleet p50",
            "alone p99",
            "fleet p99",
            "alone CPU",
            "nodes CPU",
            "brokers CPU",
        ];
        let mut table = Table::new("appends", columns);
        for round in &self.appends {
            let (alone, fleet) = (&round.alone, &round.fleet);
            table.row(
                format!("{} connections", round.connections),
                [
                    per_second(alone.acknowledged_per_second),
                    per_second(fleet.acknowledged_per_second),
                    format!("{:.2}", round.ratio()),
                    pick(alone, |p| p.p50_us),
                    pick(fleet, |p| p.p50_us),
                    pick(alone, |p| p.p99_us),
                    pick(fleet, |p| p.p99_us),
                    micros(round.alone_us),
                    micros(round.nodes_us),
                    micros(round.brokers_us),
                ],
            );
        }
        table
    }

    fn order_table(&self) -> Table {
        let columns = [
            "messages of the order",
            "fleet",
            "appends each",
            "brokers alone",
            "ratio",
            "stored p50",
            "p99",
            "brokers CPU",
        ];
        let mut table = Table::new("the order", columns);
        for round in &self.appends {
            let order = &round.order;
            table.row(
                format!("{} connections", round.connections),
                [
                    per_second(round.messages_per_second),
                    format!("{:.1}", round.appends_per_message()),
                    per_second(order.messages_per_second),
                    format!("{:.2}", round.messages_ratio()),
                    micros(order.stored.p50_us),
                    micros(order.stored.p99_us),
                    micros(order.brokers_us),
                ],
            );
        }
        table
    }

    fn deliveries_table(&self) -> Table {
        let columns = [
            "deliveries",
            "alone p50",
            "p99",
            "to another node p50",
            "p99",
        ];
        let mut table = Table::new("deliveries", columns);
        for (number, [alone, fleet]) in (1..).zip(&self.deliveries) {
            let cells = [alone.p50_us, alone.p99_us, fleet.p50_us, fleet.p99_us];
            table.row(format!("round {number}"), cells.map(micros));
        }
        table
    }

    fn kills_table(&self) -> Table {
        let columns = [
            "a node killed",
            "subscribers",
            "records",
            "missing",
            "again",
            "returned, the last",
            "complete p50",
            "the last",
        ];
        let mut table = Table::new("a node killed", columns);
        for (number, round) in (1..).zip(&self.kills) {
            let of = |p: Option<Percentiles>, one: fn(&Percentiles) -> f64| {
                p.map_or(NONE.into(), |p| micros(one(&p)))
            };
            table.row(
                format!("round {number}"),
                [
                    count(round.subscribers.into()),
                    count(round.records),
                    count(round.missing),
                    count(round.again),
                    of(round.returned, |p| p.max_us),
                    of(round.complete, |p| p.p50_us),
                    of(round.complete, |p| p.max_us),
                ],
            );
        }
        table
    }

    fn targets(&self) -> Vec<Goal> {
        let mut targets = Vec::new();
        let refused: u64 = (self.appends.iter())
            .flat_map(|round| [&round.alone, &round.fleet])
            .map(|report| report.sent - report.acknowledged)
            .sum();
        targets.push(Goal::none("appends that were not acknowledged", refused));
        for connections in CONNECTIONS {
            let rounds = self.appends.iter();
            let rounds = rounds.filter(|round| round.connections == connections);
            let Some(middle) = middle_by(rounds, |round| round.ratio()) else {
                continue;
            };
            // Each of the three does for each append what a server alone does.
            let times = middle.nodes_us / middle.alone_us.max(1e-9);
            targets.push(Goal::speed(
                format!("{connections} connections: CPU of three nodes by that of a server alone, middle round"),
                format!("at most {CPU_RATIO_MAX}"),
                format!("{times:.2}"),
                times <= CPU_RATIO_MAX,
            ));
            if let Some(p) = middle.fleet.acknowledgement {
                let p50_us_max = P50_US_MAX[usize::from(connections > CONNECTIONS[0])];
                targets.push(Goal::speed(
                    format!("{connections} connections: acknowledged after, p50; p99"),
                    format!("within {}; {}", micros(p50_us_max), micros(P99_US_MAX)),
                    format!("{}; {}", micros(p.p50_us), micros(p.p99_us)),
                    p.p50_us <= p50_us_max && p.p99_us <= P99_US_MAX,
                ));
            }
        }
        let between = self.deliveries.iter().map(|[_, fleet]| fleet.p50_us);
        if let Some(us) = middle_by(between, |us| *us) {
            targets.push(Goal::speed(
                "delivered at another node, p50, middle round",
                format!("within {}", micros(DELIVERY_US_MAX)),
                micros(us),
                us <= DELIVERY_US_MAX,
            ));
        }
        let wrong: u64 = self
            .kills
            .iter()
            .map(|round| round.missing + round.again)
            .sum();
        targets.push(Goal::none(
            "records that subscribers of a killed node lack, or have twice",
            wrong,
        ));
        let incomplete: u64 = (self.kills.iter())
            .map(|round| u64::from(round.subscribers) - round.complete.map_or(0, |p| p.count))
            .sum();
        targets.push(Goal::none(
            "subscribers that were not complete again",
            incomplete,
        ));
        let longest = self.kills.iter().filter_map(|round| round.complete);
        let longest = longest.map(|p| p.max_us).fold(0.0, f64::max);
        targets.push(Goal::speed(
            "all subscribers of a killed node complete elsewhere",
            format!("within {}", micros(COMPLETE_US_MAX)),
            micros(longest),
            longest <= COMPLETE_US_MAX,
        ));
        targets
    }
}

fn pick(report: &SprayReport, one: fn(&Percentiles) -> f64) -> String {
    let acknowledgement = report.acknowledgement.as_ref();
    acknowledgement.map_or(NONE.into(), |p| micros(one(p)))
}

const ROUNDS: u32 = 3;

/// The targets.
const CPU_RATIO_MAX: f64 = 4.0;
/// With few and with many connections.
const P50_US_MAX: [f64; 2] = [5_000.0, 8_000.0];
const P99_US_MAX: f64 = 20_000.0;
const DELIVERY_US_MAX: f64 = 3_000.0;
const COMPLETE_US_MAX: f64 = 3e6;
