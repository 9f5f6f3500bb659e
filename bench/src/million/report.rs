//! What a run of `encke-bench million` has found.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::load::Percentiles;
use crate::report::Table;
use crate::units::{bytes, count, micros, percentiles};

/// The report.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MillionReport {
    /// Connections that were asked for.
    pub asked: u32,
    /// Nodes, each with a process of clients.
    pub nodes: usize,
    /// Whether the node is a server by itself.
    pub alone: bool,
    /// Options of each node beside its name and its brokers.
    pub options: Vec<String>,
    /// Why no further connections were opened.
    pub stopped: Option<String>,
    /// How long all nodes took to start, in seconds.
    pub start_seconds: f64,
    /// Connections that were open and subscribed when the messages were published.
    pub open: u32,
    /// How long they took to open, in seconds.
    pub open_seconds: f64,
    /// Clients that gave up.
    pub given_up: u32,
    /// Memory before the first connection and with all of them.
    pub memory: [MachineMemory; 2],
    /// Processor time while connections were opened.
    pub opening_cpu: ProcessorTime,
    /// Processor time from the publishing of the message to all to its last receipt.
    pub delivery_cpu: ProcessorTime,
    /// The message to one.
    pub one: Delivery,
    /// The message to all.
    pub all: Delivery,
    /// Records that came to clients that they were not for.
    pub strays: u64,
    /// Connections that broke, over the whole run.
    pub lost: u64,
    /// Why connections did not come about or broke.
    pub reasons: BTreeMap<String, u64>,
    /// How long the run took, in seconds.
    pub seconds: f64,
    /// The share of the processors' time that the host of the virtual machine took, in percent.
    pub stolen_percent: f64,
}

/// Memory at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct MachineMemory {
    /// Anonymous memory of all nodes (`RssAnon`).
    pub nodes_rss_anon: u64,
    /// Proportional set size of all nodes, files included (`Pss`).
    pub nodes_pss: u64,
    /// Anonymous memory of all processes of clients.
    pub clients_rss_anon: u64,
    /// Anonymous memory of the broker.
    pub broker_rss_anon: u64,
    /// TCP buffers and slabs of the kernel, for both ends of all connections.
    pub kernel: u64,
    /// What is available on this machine (`MemAvailable`).
    pub available: u64,
}

/// Processor time in seconds, user and system.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ProcessorTime {
    /// Of all nodes.
    pub nodes: f64,
    /// Of all processes of clients.
    pub clients: f64,
    /// Of the broker.
    pub broker: f64,
}

/// A message and its receipts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Delivery {
    /// Clients that it was for.
    pub wanted: u64,
    /// Those that have it.
    pub received: u64,
    /// How often a client received it again.
    pub again: u64,
    /// From its publishing to its acknowledgement, in milliseconds.
    pub acknowledged_ms: f64,
    /// From its publishing to its receipts.
    pub latency: Option<Percentiles>,
}

impl Delivery {
    fn is_exact(&self) -> bool {
        self.wanted > 0 && self.received == self.wanted && self.again == 0
    }
}

impl MillionReport {
    /// 0 when all connected, and each message came to exactly whom it was for; 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        let exact = self.one.is_exact() && self.all.is_exact() && self.strays == 0;
        u8::from(!exact || self.open < self.asked)
    }

    /// Memory of the nodes for each connection, in bytes.
    pub fn user_bytes_per_connection(&self) -> f64 {
        self.each(|memory| memory.nodes_rss_anon as f64)
    }

    /// How much a figure has grown for each connection.
    fn each(&self, figure: impl Fn(&MachineMemory) -> f64) -> f64 {
        let [before, open] = &self.memory;
        (figure(open) - figure(before)) / f64::from(self.open.max(1))
    }

    fn table(&self) -> Table {
        let mut table = Table::default();
        let t = &mut table;
        let kind = match self.alone {
            true => "a server by itself".to_owned(),
            false => format!("{} nodes of a fleet", self.nodes),
        };
        let asked = count(self.asked.into());
        t.line("million", format!("{asked} connections, {kind}"));
        t.line("  options", self.options.join(" "));
        t.line("started", format!("in {:.1} s", self.start_seconds));
        let per_second = f64::from(self.open) / self.open_seconds.max(1e-9);
        t.line(
            "open",
            format!(
                "{} of {asked} in {:.1} s, {}/s; {} gave up",
                count(self.open.into()),
                self.open_seconds,
                count(per_second as u64),
                count(self.given_up.into())
            ),
        );
        if let Some(why) = &self.stopped {
            t.line("  stopped", why);
        }
        let [before, open] = &self.memory;
        let growth = |name: &str, figure: fn(&MachineMemory) -> u64| {
            let each = self.each(|memory| figure(memory) as f64);
            let (from, to) = (bytes(figure(before)), bytes(figure(open)));
            (
                format!("  {name}"),
                format!("{from}, then {to}: {each:.0} B per connection"),
            )
        };
        t.line("memory", "before, and with all connections");
        for (name, text) in [
            growth("nodes", |m| m.nodes_rss_anon),
            growth("nodes, PSS", |m| m.nodes_pss),
            growth("kernel", |m| m.kernel),
            growth("clients", |m| m.clients_rss_anon),
            growth("broker", |m| m.broker_rss_anon),
        ] {
            t.line(name, text);
        }
        let free = |memory: &MachineMemory| bytes(memory.available);
        t.line(
            "  available",
            format!("{}, then {}", free(before), free(open)),
        );
        let micros_each = |time: &ProcessorTime| {
            let each = |seconds: f64| micros(seconds * 1e6 / f64::from(self.open.max(1)));
            format!(
                "nodes {:.1} s ({} each), clients {:.1} s ({}), broker {:.1} s",
                time.nodes,
                each(time.nodes),
                time.clients,
                each(time.clients),
                time.broker
            )
        };
        t.line("CPU, opening", micros_each(&self.opening_cpu));
        for (name, one) in [("to one", &self.one), ("to all", &self.all)] {
            let (received, wanted) = (count(one.received), count(one.wanted));
            t.line(
                name,
                format!(
                    "{received} of {wanted}, {} again; acknowledged after {:.1} ms",
                    one.again, one.acknowledged_ms
                ),
            );
            if let Some(latency) = &one.latency {
                t.line("  received after", percentiles(latency));
            }
        }
        t.line("CPU, to all", micros_each(&self.delivery_cpu));
        t.line(
            "strays, losses",
            format!("{}, {}", count(self.strays), count(self.lost)),
        );
        for (reason, times) in &self.reasons {
            t.line(format!("  {reason}"), count(*times));
        }
        t.line(
            "run",
            format!("{:.0} s, {:.1} % stolen", self.seconds, self.stolen_percent),
        );
        table
    }
}

impl fmt::Display for MillionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_run_is_a_success() {
        let exact = Delivery {
            wanted: 1,
            received: 1,
            ..Delivery::default()
        };
        let complete = MillionReport {
            asked: 1,
            open: 1,
            one: exact.clone(),
            all: exact.clone(),
            memory: [0, 500].map(|nodes_rss_anon| MachineMemory {
                nodes_rss_anon,
                ..MachineMemory::default()
            }),
            ..MillionReport::default()
        };
        assert_eq!(complete.exit_code(), 0);
        assert_eq!(complete.user_bytes_per_connection(), 500.0);
        assert!(complete.to_string().contains("500 B per connection"));
        for broken in [
            MillionReport {
                asked: 2,
                ..complete.clone()
            },
            MillionReport {
                strays: 1,
                ..complete.clone()
            },
            MillionReport {
                all: Delivery { again: 1, ..exact },
                ..complete.clone()
            },
            MillionReport {
                one: Delivery::default(),
                ..complete
            },
        ] {
            assert_eq!(broken.exit_code(), 1);
        }
    }
}
