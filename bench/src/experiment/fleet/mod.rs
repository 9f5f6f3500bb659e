//! `fleet`: three nodes with three brokers, beside a server by itself.
//!
//! Appends through all three nodes, deliveries from one node to another, and a node that is killed with its subscribers. All
//! processes share this machine.

mod appends;
mod delivery;
mod kill;
mod nodes;
mod order;

use minijinja::context;
use minijinja::value::Serde;
use serde::Serialize;

use crate::experiment::lab::{Lab, middle_by};
use crate::experiment::serving::{Disk, Level, Serving};
use crate::load::Percentiles;
use crate::{BenchError, Section};
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
        let reports = self.appends.iter();
        let reports = reports.flat_map(|round| [&round.alone, &round.fleet]);
        let middle = |connections| {
            let rounds = self.appends.iter();
            let rounds = rounds.filter(|round| round.connections == connections);
            middle_by(rounds, |round| round.ratio())
        };
        let complete = |round: &KillRound| round.complete.map_or(0, |p| p.count);
        let incomplete = |round: &KillRound| u64::from(round.subscribers) - complete(round);
        let complete_us = self.kills.iter().filter_map(|round| round.complete);
        let complete_us = complete_us.map(|p| p.max_us);
        let between = self.deliveries.iter().map(|[_, fleet]| fleet.p50_us);
        let derived = context! {
            refused => reports.map(|report| report.sent - report.acknowledged).sum::<u64>(),
            middle_appends => Serde(CONNECTIONS.into_iter().filter_map(middle).collect::<Vec<_>>()),
            middle_delivery_us => middle_by(between, |us| *us),
            incomplete => self.kills.iter().map(incomplete).sum::<u64>(),
            complete_us_max => complete_us.fold(0.0, f64::max),
        };
        Section::from_template("fleet", self, derived, None)
    }
}

const ROUNDS: u32 = 3;
