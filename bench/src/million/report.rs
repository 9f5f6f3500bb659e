//! What a run of `encke-bench million` has found.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::load::Percentiles;
use crate::report::template;
use minijinja::context;

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
}

impl fmt::Display for MillionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&template::text("million.txt", self, context!()))
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
