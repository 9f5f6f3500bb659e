//! The order of a fleet on NATS JetStream.
//!
//! Each log of a fleet is a stream of JetStream, and each batch of a node's commands one message in it, or several. This
//! crate moves messages between the brokers and the replicated order of `encke-stream`, which knows nothing of JetStream:
//! `connect.rs` chooses a broker, `publish.rs` sends, `follow.rs` receives, `broker.rs` finds the streams and compares them with
//! what the node has applied, `probe.rs` asks the brokers how far the order is. `transfer/` copies the log of one node to another.
//! `link.rs` and `ephemeral.rs` carry what the order does not have, and
//! `retention.rs` compares the nodes. `report.rs`, `leave.rs` and `repair.rs` are the commands that ask all nodes, `examine.rs` is what `encke doctor` asks the
//! brokers.

mod broker;
mod broker_version;
mod connect;
mod ephemeral;
mod error;
mod examine;
mod follow;
mod inquiry;
mod leave;
mod link;
mod loss_watch;
mod metrics;
mod node_report;
mod node_retention;
mod peers;
mod probe;
mod publish;
mod repair;
mod report;
mod retention;
mod settings;
mod status;
mod transfer;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use async_nats::{Client, jetstream};
use encke_log::Reader;
use encke_mailbox::Receiver;
use encke_stream::{
    Chain, EphemeralMessage, Following, Machine, ReplicatedOrder, Submission, replicated_order,
};
use encke_threads::{FailureGuard, spawn_essential};
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub use broker_version::BrokerVersion;
pub use ephemeral::{EphemeralLink, NotSent};
pub use error::FleetError;
pub use examine::{
    BrokerAnswer, BrokerFinding, BrokerFindings, JetStreamFinding, OrderFinding, StoreTimes,
    examine_brokers,
};
pub use leave::{Left, leave};
pub use link::{LinkKind, NodeLink};
pub use metrics::FleetMetrics;
pub use node_report::{NodeActivity, NodeLog, NodeMark, NodeReport};
pub use node_retention::NodeRetention;
pub use repair::{FleetRepairReport, LogRepair, Repair, StoppedNode};
pub use report::{BrokerLog, FleetReport, report};
pub use settings::{
    BadBrokers, BadFleetName, BadReplicas, BrokerAccess, BrokerUrls, FleetName, FleetSettings,
    Replicas, without_userinfo,
};
pub use status::{LogFigures, LogStatus};
pub use transfer::{CopyLogError, CopyProgress, LogCopier};

use broker::OrderStream;
use follow::Follower;
use node_report::{ActivitySource, ReportSource, Responder};
use probe::Probe;
use publish::Publisher;

/// A node's connection to its fleet.
pub struct Fleet {
    runtime: Runtime,
    client: Client,
    context: jetstream::Context,
    settings: FleetSettings,
    orders: Vec<OrderStream>,
    logs: watch::Sender<Vec<Arc<LogStatus>>>,
    activity: Arc<OnceLock<ActivitySource>>,
    threads: Vec<JoinHandle<()>>,
    /// The tasks that send packets to other nodes.
    sending: Vec<tokio::task::JoinHandle<()>>,
}

impl Fleet {
    /// Connects to a broker. Waits for one, at most for [`FleetSettings::silence_max`].
    ///
    /// # Errors
    /// See [`FleetError`].
    pub fn connect(settings: FleetSettings) -> Result<Fleet, FleetError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fleet")
            .max_blocking_threads(LOOK_UPS_MAX)
            .thread_keep_alive(KEPT_ALIVE)
            .enable_all()
            .build()?;
        // A look-up of a broker's name takes a thread. There is one from now on, because the client panics when there is none and the
        // system refuses it.
        runtime.spawn_blocking(|| ());
        let name = format!("encke {}", settings.node);
        let connected = connect::connect(&settings.access, &name, settings.silence_max);
        let client = runtime.block_on(connected)?;
        let version = client.server_info().version;
        if BrokerVersion::of(&version) != BrokerVersion::Suits {
            let (needed, why) = (BrokerVersion::NEEDED, BrokerVersion::WHY);
            tracing::warn!(%version, needed, why, "this version of nats-server does not suit a fleet");
        }
        // It starts a task.
        let context = runtime.block_on(async { jetstream::new(client.clone()) });
        Ok(Fleet {
            runtime,
            client,
            context,
            settings,
            orders: Vec::new(),
            logs: watch::Sender::new(Vec::new()),
            activity: Arc::default(),
            threads: Vec::new(),
            sending: Vec::new(),
        })
    }

    /// Finds or creates the orders of all logs, and compares each with what the node has applied (`chains`, by the logs'
    /// indices).
    ///
    /// # Errors
    /// See [`FleetError`]. Nothing was applied.
    pub fn open(&mut self, chains: &[Chain]) -> Result<(), FleetError> {
        let (fleet, node) = (&self.settings.name, self.settings.node.as_str());
        let runs = inquiry::runs(&self.client, fleet, node);
        if self.runtime.block_on(runs) {
            return Err(FleetError::NameInUse {
                node: node.to_owned(),
                fleet: fleet.to_string(),
            });
        }
        let subscribe = |subject| {
            let subscribed = self.runtime.block_on(self.client.subscribe(subject));
            subscribed.map_err(std::io::Error::other)
        };
        let responder = Responder {
            fleet: fleet.clone(),
            client: self.client.clone(),
            requests: [
                subscribe(node_report::subject(fleet))?,
                subscribe(node_report::subject_of(fleet, node))?,
            ],
            source: ReportSource {
                node: node.to_owned(),
                logs: self.logs.subscribe(),
                activity: Arc::clone(&self.activity),
                retention: self.settings.retention,
            },
        };
        self.spawn("fleet: reports", responder.run());
        // Behind the subscription: of two nodes that start at once, at least one sees the other.
        let compared = retention::compare(&self.client, &self.settings, chains);
        self.runtime.block_on(compared)?;
        for (log, chain) in chains.iter().enumerate() {
            let place = (log, chains.len());
            let followers = async |log| inquiry::followers(&self.client, fleet, log).await;
            let opened = broker::open(&self.context, &self.settings, place, chain, followers);
            self.orders.push(self.runtime.block_on(opened)?);
        }
        Ok(())
    }

    /// Lets reports say what the node does. The source must not block.
    pub fn show_activity(&self, source: impl Fn() -> NodeActivity + Send + Sync + 'static) {
        // The first source stays: a node begins to serve once.
        let _ = self.activity.set(Box::new(source));
    }

    /// Gives copies of the logs to nodes that ask for one.
    ///
    /// # Errors
    /// The requests cannot be subscribed to.
    pub fn give_copies(&self, readers: Vec<Reader>) -> Result<(), FleetError> {
        let subject = transfer::subject(&self.settings.name, self.settings.node.as_str());
        let requests = self.runtime.block_on(self.client.subscribe(subject));
        let source = transfer::CopySource {
            client: self.client.clone(),
            requests: requests.map_err(std::io::Error::other)?,
            readers,
        };
        self.spawn("fleet: copies", source.run());
        Ok(())
    }

    /// Sends what arrives in the mailbox of a log, and follows the order of the log. `run` must be higher than at the last
    /// start of this node. The threads end after the last sender of the mailbox is gone.
    ///
    /// # Errors
    /// A thread cannot be started, or the log was not opened.
    pub fn follow(
        &mut self,
        log: usize,
        machine: &Machine,
        mailbox: Receiver<Submission>,
        run: u64,
    ) -> Result<Following, FleetError> {
        let Some(order) = self.orders.get(log).cloned() else {
            let unknown = std::io::Error::other(format!("log {log} was not opened"));
            return Err(FleetError::Start(unknown));
        };
        let client = self.client.clone();
        let message_bytes_max = Box::new(move || client.max_payload());
        let node = self.settings.node.as_str();
        let ReplicatedOrder {
            outgoing,
            mut incoming,
            status,
            following,
        } = replicated_order(machine, mailbox, node, run, message_bytes_max);
        if order.begins_behind_tip {
            incoming.begin_behind_tip();
        }
        let status = Arc::new(LogStatus::new(
            status,
            order.created_ns,
            self.settings.silence_max,
        ));
        self.logs.send_modify(|logs| logs.push(Arc::clone(&status)));
        let handle = incoming.handle();
        let (end, ended) = watch::channel(false);
        let probe = Probe {
            context: self.context.clone(),
            reconnects: (log == 0).then(|| self.client.clone()),
            order: order.clone(),
            handle: handle.clone(),
            status: Arc::clone(&status),
            ended: ended.clone(),
        };
        self.spawn("fleet: probe", probe.run());
        let publisher = Publisher {
            context: self.context.clone(),
            stream: order.name.clone(),
            subject: order.subject.clone(),
            order: handle.clone(),
            retry: self.settings.retry,
            status: Arc::clone(&status),
        };
        let runtime = self.runtime.handle().clone();
        let name = format!("fleet-out-{log}");
        self.threads.push(spawn_essential(name, move || {
            publisher.run(&runtime, outgoing);
            let _ = end.send(true);
        })?);
        let follower = Follower {
            client: self.client.clone(),
            order,
            handle,
            status,
            ended,
        };
        let runtime = self.runtime.handle().clone();
        let name = format!("fleet-in-{log}");
        self.threads.push(spawn_essential(name, move || {
            runtime.block_on(follower.run(incoming));
        })?);
        Ok(following)
    }

    /// A link to the other nodes. `receive` gets their packets, in a thread of the fleet, which it must not block.
    ///
    /// # Errors
    /// The connection to the brokers is closed.
    pub fn link(
        &mut self,
        kind: LinkKind,
        receive: impl FnMut(Vec<u8>) + Clone + Send + 'static,
    ) -> Result<NodeLink, FleetError> {
        let (fleet, node) = (&self.settings.name, self.settings.node.as_str());
        for subject in [kind.to_all(fleet), kind.to_node(fleet, node)] {
            let subscribed = self.client.subscribe(subject);
            let packets = self.runtime.block_on(subscribed);
            let packets = packets.map_err(std::io::Error::other)?;
            let received = link::receive_all(packets, receive.clone());
            self.spawn("fleet: packets", received);
        }
        let (link, sending) = NodeLink::new(self.client.clone(), fleet.clone(), kind);
        let sending = self.spawn("fleet: packets", sending);
        self.sending.push(sending);
        Ok(link)
    }

    /// A link for ephemeral messages to the other nodes.
    pub fn ephemeral_link(&self) -> EphemeralLink {
        let (fleet, node) = (&self.settings.name, self.settings.node.as_str());
        let (link, sending) = EphemeralLink::new(self.client.clone(), fleet, node);
        // The last ones may be lost: the node stops, and nobody relies on them.
        self.spawn("fleet: messages", sending);
        link
    }

    /// Hands ephemeral messages of other nodes to a function, in a thread of the fleet, which it must not block.
    ///
    /// # Errors
    /// The connection to the brokers is closed.
    pub fn receive_ephemeral(
        &self,
        receive: impl Fn(EphemeralMessage) + Send + 'static,
    ) -> Result<(), FleetError> {
        let (fleet, node) = (&self.settings.name, self.settings.node.as_str());
        let packets = self.client.subscribe(ephemeral::of_all(fleet));
        let packets = self.runtime.block_on(packets);
        let packets = packets.map_err(std::io::Error::other)?;
        let own = ephemeral::of_node(fleet, node);
        let received = ephemeral::receive_all(packets, own, receive);
        self.spawn("fleet: messages", received);
        Ok(())
    }

    /// Starts a task, whose panic is a failure of the node as that of a thread.
    fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        let guard = FailureGuard::new(name);
        self.runtime.spawn(async move {
            let _guard = guard;
            task.await
        })
    }

    /// What the node knows of the orders, by the logs' indices.
    pub fn logs(&self) -> Vec<Arc<LogStatus>> {
        self.logs.borrow().clone()
    }

    /// Waits for the end of all threads, and until the last packets for other nodes are sent. The mailboxes must be closed, and
    /// the links dropped before.
    pub fn join(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
        let client = self.client;
        self.runtime.block_on(async {
            let sent = async {
                for sending in self.sending {
                    let _ = sending.await;
                }
                client.flush().await
            };
            if !matches!(tokio::time::timeout(LAST_PACKETS, sent).await, Ok(Ok(()))) {
                tracing::debug!("the last packets for other nodes may be lost");
            }
        });
        // What is left are requests to brokers whose answers mean nothing any more.
        self.runtime.shutdown_background();
    }
}

/// The most look-ups of names at a time.
const LOOK_UPS_MAX: usize = 8;

/// How long the threads of look-ups wait for the next one: longer than any process runs.
const KEPT_ALIVE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// How long the last packets for other nodes may take while the node stops.
const LAST_PACKETS: Duration = Duration::from_secs(1);
