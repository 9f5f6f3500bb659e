//! Three nodes and three brokers.

use std::net::SocketAddr;
use std::path::Path;

use crate::BenchError;
use crate::experiment::brokers::Brokers;
use crate::experiment::lab::{Lab, Scratch};
use crate::experiment::serving::{Disk, Level, Serving, scrape};
use crate::load::probe::Probe;

/// A fleet; its fields end in this order.
pub(super) struct FleetNodes {
    nodes: Vec<Option<Serving>>,
    data: Vec<Scratch>,
    brokers: Brokers,
}

/// Processor time of all processes of a kind, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct FleetTime {
    pub(super) nodes_ns: u64,
    pub(super) brokers_ns: u64,
}

impl FleetNodes {
    /// Starts the brokers, then the nodes with default settings.
    pub(super) fn start(lab: &Lab<'_>) -> Result<Self, BenchError> {
        let mut fleet = Self {
            nodes: Vec::new(),
            data: Vec::new(),
            brokers: Brokers::start(lab, BROKERS)?,
        };
        for number in 0..NODES {
            fleet.data.push(lab.scratch(&format!("node-{number}"))?);
            let node = fleet.serve(lab, number)?;
            fleet.nodes.push(Some(node));
        }
        Ok(fleet)
    }

    /// Where the nodes that run listen.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().flatten().map(Serving::address).collect()
    }

    /// Where the brokers are.
    pub(super) fn broker_urls(&self) -> String {
        self.brokers.urls()
    }

    /// The batches of all nodes that the first node has applied.
    pub(super) fn batches(&self) -> Result<f64, BenchError> {
        match self.nodes.first() {
            Some(Some(node)) => Ok(scrape(node.address())?.value("encke_fleet_batches_total")),
            _ => Ok(0.0),
        }
    }

    /// Takes a node out, to be killed.
    pub(super) fn take(&mut self, number: usize) -> Option<Serving> {
        self.nodes[number].take()
    }

    /// Starts a node that was taken out, on its data.
    pub(super) fn restart(&mut self, lab: &Lab<'_>, number: usize) -> Result<(), BenchError> {
        self.nodes[number] = Some(self.serve(lab, number)?);
        Ok(())
    }

    pub(super) fn time(&self) -> Result<FleetTime, BenchError> {
        let sum = |pids: Vec<u32>| {
            let times = pids.into_iter().map(|pid| Probe::new(pid)?.cpu_ns());
            times.sum::<Result<u64, BenchError>>()
        };
        Ok(FleetTime {
            nodes_ns: sum(self.nodes.iter().flatten().map(Serving::pid).collect())?,
            brokers_ns: sum(self.brokers.pids())?,
        })
    }

    fn serve(&self, lab: &Lab<'_>, number: usize) -> Result<Serving, BenchError> {
        let (urls, name) = (self.brokers.urls(), format!("node-{number}"));
        let options = ["--fleet", &urls, "--node", &name];
        let data: &Path = self.data[number].path();
        Serving::start(lab, data, Level::Synced, Disk::Own, &options)
    }
}

pub(super) const NODES: usize = 3;
const BROKERS: usize = 3;
