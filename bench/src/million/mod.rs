//! `encke-bench million`: a million connections to as many nodes of one fleet as that takes, and a message to one and to all.
//!
//! A process may have 20,000 files open on many machines, so each node has a process of clients with as many connections as
//! both may hold. `clients.rs` is that process; it says how far it is on its standard output (`words.rs`). The run starts a
//! broker and the nodes, opens the connections, publishes, and counts. It opens no more when memory or time runs out, measures
//! with those that are there, and leaves nothing behind.

mod args;
mod clients;
mod group;
mod report;
mod streams;
mod words;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

pub use args::{MillionArgs, MillionClientsArgs};
pub use clients::clients;
pub use report::{Delivery, MachineMemory, MillionReport, ProcessorTime};

use crate::experiment::Setup;
use crate::experiment::brokers::Brokers;
use crate::experiment::lab::{Lab, Scratch};
use crate::experiment::serving::{Disk, Level, Serving, connections_max};
use crate::load::clock::monotonic_ns;
use crate::load::probe::Probe;
use crate::load::{Latencies, Stolen};
use crate::machine::free_memory_bytes;
use crate::units::{bytes, count};
use crate::{BenchError, HttpClient, proc};
use group::{Group, GroupPlan, GroupWord};
use streams::{COMMON, inbox};
use words::{REPORT, STOP_OPENING, Word};

/// Makes the run. `stop` ends it early with [`BenchError::Interrupted`].
///
/// # Errors
/// The run can't be made. What did not arrive is in the report: see [`MillionReport::exit_code`].
pub fn million(args: &MillionArgs, stop: &AtomicBool) -> Result<MillionReport, BenchError> {
    let setup = Setup {
        size: 1.0,
        data: args.data.clone(),
        encke: args.encke.clone(),
        broker: args.broker.clone(),
        duration: None,
    };
    let lab = Lab::new(&setup, stop)?;
    let stolen = Stolen::begin();
    let mut run = Run::start(args, &lab)?;
    let measured = run.measure();
    // A signal from the terminal also ends the processes, so other errors can precede the check of the flag.
    measured.map_err(|error| lab.check().err().unwrap_or(error))?;
    let mut report = run.report;
    report.seconds = lab.seconds();
    report.stolen_percent = stolen.percent();
    Ok(report)
}

/// A run; its fields end in this order.
struct Run<'a> {
    args: &'a MillionArgs,
    lab: &'a Lab<'a>,
    begun: Instant,
    groups: Vec<Group>,
    nodes: Vec<Node>,
    brokers: Option<Brokers>,
    broker_probes: Vec<Probe>,
    plans: Vec<GroupPlan>,
    words: Receiver<GroupWord>,
    sender: Sender<GroupWord>,
    report: MillionReport,
}

struct Node {
    serving: Serving,
    probe: Probe,
    /// Removed after the process that writes into it has ended.
    _data: Scratch,
}

impl<'a> Run<'a> {
    /// Starts the broker and the nodes.
    fn start(args: &'a MillionArgs, lab: &'a Lab<'a>) -> Result<Self, BenchError> {
        let room = u32::try_from(connections_max()).unwrap_or(u32::MAX);
        let per_node = args.per_node.unwrap_or(room).min(room).max(1);
        let nodes = args.connections.div_ceil(per_node);
        if args.alone && nodes > 1 {
            return Err(BenchError::Option(format!(
                "one server holds {} connections here, not {}",
                count(per_node.into()),
                count(args.connections.into())
            )));
        }
        if nodes > NODES_MAX {
            return Err(BenchError::Option(format!(
                "{} connections need {nodes} nodes with {} each, and at most {NODES_MAX} are possible",
                count(args.connections.into()),
                count(per_node.into())
            )));
        }
        let begun = Instant::now();
        let brokers = match args.alone {
            true => None,
            false => Some(Brokers::start(lab, 1)?),
        };
        let broker_pids = brokers.as_ref().map_or(Vec::new(), Brokers::pids);
        lab.say(&format!("starting {nodes} nodes"));
        let (sender, words) = channel();
        let mut run = Self {
            args,
            lab,
            begun,
            groups: Vec::new(),
            nodes: Vec::new(),
            broker_probes: broker_pids
                .into_iter()
                .map(Probe::new)
                .collect::<Result<_, _>>()?,
            brokers,
            plans: Vec::new(),
            words,
            sender,
            report: MillionReport {
                asked: args.connections,
                nodes: nodes as usize,
                alone: args.alone,
                options: OPTIONS.map(str::to_owned).to_vec(),
                ..MillionReport::default()
            },
        };
        // The first one creates the order.
        run.start_nodes(0..1)?;
        for first in (1..nodes).step_by(STARTING_NODES) {
            run.start_nodes(first..(first + STARTING_NODES as u32).min(nodes))?;
        }
        run.report.start_seconds = begun.elapsed().as_secs_f64();
        let addresses: Vec<SocketAddr> = run
            .nodes
            .iter()
            .map(|node| node.serving.address())
            .collect();
        let mut first = 0;
        for (number, node) in addresses.into_iter().enumerate() {
            // As equal as possible.
            let left = args.connections - first;
            let count = left.div_ceil(nodes - number as u32);
            run.plans.push(GroupPlan {
                number,
                node,
                first,
                count,
            });
            first += count;
        }
        Ok(run)
    }

    /// Starts nodes at the same time.
    fn start_nodes(&mut self, numbers: std::ops::Range<u32>) -> Result<(), BenchError> {
        let (lab, urls) = (self.lab, self.brokers.as_ref().map(Brokers::urls));
        let start = |number: u32| {
            let data = lab.scratch(&format!("node-{number}"))?;
            let name = format!("node-{number}");
            let mut options = OPTIONS.to_vec();
            if let Some(urls) = &urls {
                options.extend(["--fleet", urls, "--node", &name]);
                options.extend(FLEET_OPTIONS);
            }
            let serving = Serving::start(lab, data.path(), Level::Synced, Disk::Own, &options)?;
            Ok(Node {
                probe: Probe::new(serving.pid())?,
                serving,
                _data: data,
            })
        };
        let started: Vec<Result<Node, BenchError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = numbers
                .map(|number| scope.spawn(move || start(number)))
                .collect();
            let threads = threads.into_iter().map(|thread| thread.join());
            threads
                .map(|node| node.unwrap_or(Err(BenchError::Thread("node"))))
                .collect()
        });
        for node in started {
            self.nodes.push(node?);
        }
        self.lab.check()
    }

    fn measure(&mut self) -> Result<(), BenchError> {
        HttpClient::connect(self.plans[0].node)?.succeed("PUT", &path(COMMON), b"")?;
        self.hear_for(SETTLE)?;
        let before = self.memory()?;
        let cpu = self.processor_time();
        self.open()?;
        self.report.opening_cpu = self.processor_time().since(cpu);
        self.hear_for(SETTLE)?;
        self.report.memory = [before, self.memory()?];
        self.report.open = self.sum(|group| group.state.subscribed);
        self.report.given_up = self.sum(|group| group.state.over);
        // A client of another node than the publisher's, if there is one.
        let Some(last) = self
            .groups
            .iter()
            .rposition(|group| group.state.subscribed > 0)
        else {
            return Ok(());
        };
        let target = self.plans[last].first;
        self.lab.say(&format!("a message to client {target}"));
        let inbox = inbox(target);
        let mut publisher = HttpClient::connect(self.plans[0].node)?;
        publisher.succeed("PUT", &path(&inbox), b"")?;
        self.report.one.wanted = 1;
        self.report.one.acknowledged_ms = publish(&mut publisher, &inbox)?;
        self.hear_until(|run| run.sum(|group| group.state.own) >= 1)?;
        let open = self.report.open;
        self.lab
            .say(&format!("a message to {} clients", count(open.into())));
        let cpu = self.processor_time();
        self.report.all.wanted = open.into();
        self.report.all.acknowledged_ms = publish(&mut publisher, COMMON)?;
        self.hear_until(|run| run.sum(|group| group.state.common) >= open)?;
        self.report.delivery_cpu = self.processor_time().since(cpu);
        // What comes twice may come later.
        self.hear_for(SETTLE)?;
        self.collect(target)
    }

    /// Opens the connections, a few groups at a time.
    fn open(&mut self) -> Result<(), BenchError> {
        let begun = Instant::now();
        for next in 0..self.plans.len() {
            while self.report.stopped.is_none() && self.unsettled() >= OPENING_GROUPS {
                self.hear()?;
                self.look_after(begun);
            }
            self.look_after(begun);
            if self.report.stopped.is_some() {
                break;
            }
            self.groups
                .push(Group::start(self.plans[next], self.sender.clone())?);
        }
        let mut stopped = Instant::now();
        while self.unsettled() > 0 && stopped.elapsed() < STOPPED_WAIT {
            self.hear()?;
            if self.report.stopped.is_none() {
                self.look_after(begun);
                stopped = Instant::now();
            }
        }
        self.report.open_seconds = begun.elapsed().as_secs_f64();
        Ok(())
    }

    fn unsettled(&self) -> usize {
        self.groups
            .iter()
            .filter(|group| !group.state.settled)
            .count()
    }

    /// Stops the opening when memory or time runs out.
    fn look_after(&mut self, begun: Instant) {
        let free = free_memory_bytes();
        let floor = self.args.memory_floor << 20;
        let reason = if free < floor {
            format!("only {} of memory were available", bytes(free))
        } else if self.begun.elapsed() > self.args.time_limit {
            format!(
                "the time limit of {:.0} s was reached",
                self.args.time_limit.as_secs_f64()
            )
        } else {
            return;
        };
        let seconds = begun.elapsed().as_secs_f64();
        self.lab.say(&format!(
            "no further connections after {seconds:.0} s: {reason}"
        ));
        self.report.stopped = Some(reason);
        for group in &mut self.groups {
            group.command(STOP_OPENING);
        }
    }

    /// Asks all groups what their clients have received.
    fn collect(&mut self, target: u32) -> Result<(), BenchError> {
        for group in &mut self.groups {
            group.command(REPORT);
        }
        self.hear_until(|run| run.groups.iter().all(|group| group.receipts.is_some()))?;
        let (mut common, mut own) = (Latencies::new(), Latencies::new());
        let report = &mut self.report;
        for receipts in self
            .groups
            .iter()
            .filter_map(|group| group.receipts.as_ref())
        {
            report.all.received += u64::from(receipts.common_once);
            report.all.again += receipts.common_again;
            for &(ns, times) in &receipts.common_ns {
                common.record_many(ns, times);
            }
            for &(client, times, took_ns) in &receipts.own {
                if client == target {
                    report.one.received += 1;
                    report.one.again += u64::from(times - 1);
                    own.record(took_ns);
                } else {
                    report.strays += u64::from(times);
                }
            }
            report.strays += receipts.strays;
            report.lost += receipts.lost;
            for (reason, times) in &receipts.reasons {
                *report.reasons.entry(reason.clone()).or_default() += times;
            }
        }
        report.all.latency = common.percentiles();
        report.one.latency = own.percentiles();
        Ok(())
    }

    /// Takes what the groups say, for a moment.
    fn hear(&mut self) -> Result<(), BenchError> {
        self.lab.check()?;
        let half = (self.args.memory_floor << 20) / 2;
        let free = free_memory_bytes();
        if free < half {
            let reason = format!("was stopped: only {} of memory were available", bytes(free));
            return Err(BenchError::Server(reason));
        }
        match self.words.recv_timeout(LOOK) {
            Ok(word) => self.take(word)?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
        }
        while let Ok(word) = self.words.try_recv() {
            self.take(word)?;
        }
        let subscribed = self.sum(|group| group.state.subscribed);
        let common = self.sum(|group| group.state.common);
        self.lab.say_when_due(|| {
            format!(
                "{} connections, {} have the message to all, {} of memory available",
                count(subscribed.into()),
                count(common.into()),
                bytes(free)
            )
        });
        Ok(())
    }

    fn take(&mut self, (number, word): GroupWord) -> Result<(), BenchError> {
        match word {
            Some(Word::State(state)) => self.groups[number].state = state,
            Some(Word::Receipts(receipts)) => self.groups[number].receipts = Some(receipts),
            None => return Err(BenchError::Thread("clients")),
        }
        Ok(())
    }

    fn hear_for(&mut self, time: Duration) -> Result<(), BenchError> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.hear()?;
        }
        Ok(())
    }

    /// Takes what the groups say until something holds, or it takes too long.
    fn hear_until(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), BenchError> {
        let begun = Instant::now();
        while !holds(self) && begun.elapsed() < DELIVERY_WAIT {
            self.hear()?;
        }
        Ok(())
    }

    fn sum(&self, figure: impl Fn(&Group) -> u32) -> u32 {
        self.groups.iter().map(figure).sum()
    }

    fn memory(&self) -> Result<MachineMemory, BenchError> {
        let mut memory = MachineMemory {
            available: free_memory_bytes(),
            ..MachineMemory::default()
        };
        for node in &self.nodes {
            let one = node.probe.memory()?;
            memory.nodes_rss_anon += one.rss_anon_bytes;
            memory.kernel = one.kernel_bytes_all();
            memory.nodes_pss += proc::pss_bytes(node.serving.pid())?;
        }
        for group in &self.groups {
            memory.clients_rss_anon += group.probe.memory()?.rss_anon_bytes;
        }
        for broker in &self.broker_probes {
            memory.broker_rss_anon += broker.memory()?.rss_anon_bytes;
        }
        Ok(memory)
    }

    fn processor_time(&self) -> ProcessorTime {
        let sum = |probes: &mut dyn Iterator<Item = &Probe>| {
            // One that has ended is noticed elsewhere.
            probes.filter_map(|probe| probe.cpu_ns().ok()).sum::<u64>() as f64 / 1e9
        };
        ProcessorTime {
            nodes: sum(&mut self.nodes.iter().map(|node| &node.probe)),
            clients: sum(&mut self.groups.iter().map(|group| &group.probe)),
            broker: sum(&mut self.broker_probes.iter()),
        }
    }
}

impl ProcessorTime {
    fn since(self, earlier: Self) -> Self {
        Self {
            nodes: self.nodes - earlier.nodes,
            clients: self.clients - earlier.clients,
            broker: self.broker - earlier.broker,
        }
    }
}

fn path(stream: &str) -> String {
    format!("/v1/stream/{stream}")
}

/// Appends the time to a stream. Returns how long that took, in milliseconds.
fn publish(publisher: &mut HttpClient, stream: &str) -> Result<f64, BenchError> {
    let begun_ns = monotonic_ns();
    publisher.succeed("POST", &path(stream), begun_ns.to_string().as_bytes())?;
    Ok((monotonic_ns() - begun_ns) as f64 / 1e6)
}

/// What keeps a node small, so that many fit on one machine. A heartbeat for each connection would cost more than all else.
const OPTIONS: [&str; 14] = [
    "--shards",
    "1",
    "--segment",
    "4MiB",
    "--body-max",
    "256KiB",
    "--ring",
    "4MiB",
    "--tuning",
    "readers=1",
    "--tuning",
    "heartbeat=1h",
    "--tuning",
    "history-cache=1MiB",
];

/// On a machine with more nodes than processors a node may hear nothing for long.
const FLEET_OPTIONS: [&str; 6] = [
    "--tuning",
    "fleet-replicas=1",
    "--fleet-silence-max",
    "60s",
    "--fleet-retry",
    "30s",
];

/// Each node has a block of the loopback network.
const NODES_MAX: u32 = 250;

/// Nodes that start at the same time.
const STARTING_NODES: usize = 4;

/// Groups whose clients connect at the same time.
const OPENING_GROUPS: usize = 2;

/// How long clients that are connecting may take when no further ones connect.
const STOPPED_WAIT: Duration = Duration::from_secs(30);

/// How long memory and messages are left alone before they are counted.
const SETTLE: Duration = Duration::from_secs(2);

/// How long a message may take to reach all.
const DELIVERY_WAIT: Duration = Duration::from_secs(300);

/// How often limits and signals are looked at.
const LOOK: Duration = Duration::from_millis(100);
