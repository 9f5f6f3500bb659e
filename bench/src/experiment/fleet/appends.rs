//! Synced appends through three nodes, beside a server by itself.

use serde::Serialize;

use super::nodes::FleetNodes;
use super::order::{self, OrderRound};
use crate::BenchError;
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Serving, streams_url};
use crate::load::probe::Probe;
use crate::load::{SprayArgs, SprayReport, spray};

/// One round: the server by itself, then the fleet.
#[derive(Debug, Clone, Serialize)]
pub(super) struct AppendRound {
    pub(super) connections: u32,
    pub(super) alone: SprayReport,
    pub(super) fleet: SprayReport,
    /// Processor time of an append, in microseconds.
    pub(super) alone_us: f64,
    pub(super) nodes_us: f64,
    pub(super) brokers_us: f64,
    /// Batches of all nodes a second, each a message for the brokers.
    pub(super) messages_per_second: f64,
    /// The brokers without nodes, with messages of the same size.
    pub(super) order: OrderRound,
}

impl AppendRound {
    pub(super) fn ratio(&self) -> f64 {
        self.fleet.acknowledged_per_second / self.alone.acknowledged_per_second.max(1e-9)
    }
}

/// Makes all rounds, those of one number of connections after those of the other.
pub(super) fn measure(
    lab: &Lab<'_>,
    alone: &Serving,
    fleet: &FleetNodes,
) -> Result<Vec<AppendRound>, BenchError> {
    let urls: Vec<_> = fleet.addresses().into_iter().map(streams_url).collect();
    let args = |urls: &[String]| SprayArgs {
        url: urls[0].clone(),
        also: urls[1..].to_vec(),
        streams: STREAMS,
        duration: Some(lab.duration(DURATION)),
        ..SprayArgs::default()
    };
    let both = [args(&[streams_url(alone.address())]), args(&urls)];
    // Creates the streams.
    for args in &both {
        let args = SprayArgs {
            messages: Some(u64::from(STREAMS)),
            ..args.clone()
        };
        spray(&args, lab.stop())?;
        lab.check()?;
    }
    let mut rounds = Vec::new();
    for connections in CONNECTIONS {
        for round in 1..=lab.rounds(ROUNDS) {
            lab.say(&format!("{connections} connections, round {round}"));
            let [one, three] = both.each_ref().map(|args| SprayArgs {
                producers: connections,
                no_create: true,
                ..args.clone()
            });
            let probe = Probe::new(alone.pid())?;
            let before_ns = probe.cpu_ns()?;
            let one = spray(&one, lab.stop())?;
            let alone_ns = probe.cpu_ns()? - before_ns;
            let before = (fleet.time()?, fleet.batches()?);
            let three = spray(&three, lab.stop())?;
            let after = (fleet.time()?, fleet.batches()?);
            lab.check()?;
            let messages = after.1 - before.1;
            let (before, after) = (before.0, after.0);
            let appends = three.acknowledged as f64 / messages.max(1.0);
            let order = order::measure(lab, fleet, (appends * APPEND_BYTES) as usize)?;
            let each = |ns: u64, of: &SprayReport| ns as f64 / 1e3 / of.acknowledged.max(1) as f64;
            rounds.push(AppendRound {
                connections,
                alone_us: each(alone_ns, &one),
                nodes_us: each(after.nodes_ns - before.nodes_ns, &three),
                brokers_us: each(after.brokers_ns - before.brokers_ns, &three),
                messages_per_second: messages / three.seconds,
                order,
                alone: one,
                fleet: three,
            });
        }
    }
    Ok(rounds)
}

/// Connections, each of which waits for its acknowledgement.
pub(super) const CONNECTIONS: [u32; 2] = [64, 256];

/// Bytes of an append in a batch.
const APPEND_BYTES: f64 = 160.0;

const STREAMS: u32 = 1_000;
const ROUNDS: u32 = 3;
const DURATION: std::time::Duration = std::time::Duration::from_secs(4);
