//! The report of a flood.

use super::endurance::{Endurance, Sample};
use super::hostile::Hostile;
use super::spray::NotAcknowledged;
use crate::load::flood::floor::Floor;
use crate::load::latency::Percentiles;
use crate::load::probe::Memory;
use crate::load::sequence::OrderFaults;
use serde::Serialize;
use std::collections::BTreeMap;

/// The results of a flood.
#[derive(Debug, Clone, Serialize)]
pub struct FloodReport {
    /// The server.
    pub url: String,
    /// How many streams there were.
    pub streams: u32,
    /// How long the whole run took, in seconds.
    pub seconds: f64,
    /// The share of the processors' time that the host of this virtual machine took meanwhile, in percent.
    pub stolen_percent: f64,
    /// How it went to create the streams, in seconds; `None` when they were there.
    pub create_seconds: Option<f64>,
    /// How it went to connect.
    pub opening: Opening,
    /// The kinds of subscribers.
    pub kinds: Vec<KindOfSubscribers>,
    /// The connections.
    pub connections: Connections,
    /// The deliveries.
    pub deliveries: Deliveries,
    /// How late it arrived: from the writing of the append to the reading of the event.
    pub latency: Latency,
    /// Gaps, duplicates, reorderings.
    pub faults: OrderFaults,
    /// The results of publishing, if this run published.
    pub publishing: Option<Publishing>,
    /// The server's use of resources, if its process is known.
    pub server: Option<ServerUsage>,
    /// The cost of a bare send loop, if requested.
    pub floor: Option<Floor>,
    /// The hostile clients and their effect, if there were any.
    pub hostile: Option<Hostile>,
    /// How the server held out while clients came and went.
    pub endurance: Endurance,
    /// Figures over time: one a second, fewer in runs of many hours.
    pub samples: Vec<Sample>,
}

/// How the subscribers came to be connected.
#[derive(Debug, Clone, Serialize)]
pub struct Opening {
    /// How many were to connect.
    pub asked: u32,
    /// How many received an offset, and from there on must miss nothing.
    pub opened: u64,
    /// How many were not.
    pub failed: u64,
    /// How long it took until the last was one or the other, in seconds.
    pub seconds: f64,
}

/// The subscribers of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct KindOfSubscribers {
    /// Its name, as in the option.
    pub kind: &'static str,
    /// How many were to connect.
    pub subscribers: u32,
    /// Messages that arrived at them.
    pub messages: u64,
    /// How late messages arrived at those that were there and read.
    pub live: Option<Percentiles>,
}

/// The connections after they were open.
#[derive(Debug, Clone, Serialize)]
pub struct Connections {
    /// Open at the end of the run.
    pub active: u64,
    /// Closed by the server in good order, each followed by the subscriber's return.
    pub closed: u64,
    /// Closed by this side, to come back.
    pub hung_up: u64,
    /// Subscribers that came back, after whichever of these.
    pub returned: u64,
    /// Attempts and connections that failed, by reason.
    pub failures: BTreeMap<String, u64>,
    /// Subscribers that could not come back.
    pub given_up: u64,
    /// Subscribers whose stream was closed.
    pub over: u64,
}

/// What arrived.
#[derive(Debug, Clone, Serialize)]
pub struct Deliveries {
    /// Messages, over all subscribers.
    pub messages: u64,
    /// Bytes of response bodies.
    pub bytes: u64,
    /// Messages per second, from the first publishing (or the last connecting) to the last message.
    pub per_second: f64,
    /// Processor time of the workers per message in the same time, in microseconds: what the
    /// generator itself takes from the machine.
    pub generator_cpu_us: Option<f64>,
}

/// Delivery latencies.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// Of all subscribers that were there and read.
    pub live: Option<Percentiles>,
    /// Of these, while the slow were pausing.
    pub while_slow_pause: Option<Percentiles>,
    /// Of the slow, pause and all.
    pub slow: Option<Percentiles>,
    /// Of messages that were sent while their subscriber was away.
    pub missed_while_away: Option<Percentiles>,
}

/// The results of the run's own producers.
#[derive(Debug, Clone, Serialize)]
pub struct Publishing {
    /// Connections.
    pub publishers: u32,
    /// The rate that was asked for, in messages per second; `None` for as fast as they are acknowledged.
    pub rate_asked: Option<f64>,
    /// The rate of acknowledged messages, per second.
    pub rate: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Bytes per message.
    pub size: usize,
    /// Messages acknowledged.
    pub acknowledged: u64,
    /// What was not acknowledged, and why.
    pub refused: NotAcknowledged,
    /// From the writing of an append to its acknowledgement.
    pub acknowledgement: Option<Percentiles>,
    /// From when the rate wanted a message to when it was written. What is late here is missing
    /// in the delivery latency: it says whether the generator kept up. Only with a rate.
    pub lateness: Option<Percentiles>,
}

/// What the server used.
#[derive(Debug, Clone, Serialize)]
pub struct ServerUsage {
    /// Its process.
    pub pid: u32,
    /// Before anything was done.
    pub memory_before: Memory,
    /// When the streams were there, before the first subscriber.
    pub memory_created: Memory,
    /// When all subscribers were connected and idle.
    pub memory_open: Memory,
    /// At the end, before they were closed.
    pub memory_after: Memory,
    /// A second after they were closed.
    pub memory_closed: Memory,
    /// The most resident anonymous memory that was seen.
    pub rss_anon_bytes_max: u64,
    /// Growth of resident anonymous memory per subscriber, from `memory_created` to `memory_open`.
    pub bytes_per_connection: f64,
    /// The same from `memory_before`: with what the creation of the streams took.
    pub bytes_per_connection_and_stream: f64,
    /// Growth per subscriber of what the kernel holds for sockets, over the same time. When the generator runs on the
    /// server's machine, both ends of each connection are in it.
    pub kernel_bytes_per_connection: f64,
    /// Processor time per connection while connecting, in microseconds.
    pub cpu_per_connection_us: f64,
    /// Processor time from the first publishing to the last delivery, in seconds.
    pub cpu_seconds: f64,
    /// The same per delivery, in microseconds.
    pub cpu_per_delivery_us: Option<f64>,
    /// The same per message published by this run, in microseconds.
    pub cpu_per_message_us: Option<f64>,
}

impl FloodReport {
    /// Whether subscribers connected and could stay or come back, every message came once and in order, and
    /// the server held out, if that was to be judged.
    pub fn is_success(&self) -> bool {
        let published = self.publishing.as_ref().is_none_or(|p| p.acknowledged > 0);
        let connected = self.opening.opened > 0 && self.connections.given_up == 0;
        connected && published && self.faults.is_clean() && self.endurance.is_success()
    }

    /// What the process should exit with: 0 for success, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.is_success())
    }
}
