//! A node of a fleet: what `encke serve` does beside a server by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use encke_fleet::{
    EphemeralLink, Fleet, FleetError, FleetMetrics, FleetSettings, LinkKind, LogStatus,
    NodeActivity, NotSent,
};
use encke_net::{FleetBroadcast, NotBroadcast};
use encke_presence::PresenceNode;
use encke_server::{BroadcastLink, ConnectNodes, Dismissal, FleetLinks, Follow, Server};
use encke_stream::{EphemeralMessage, Logs};
use encke_threads::spawn_restarting;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::json;

use crate::failure::{Code, Failed};

/// The node's part in its fleet while it serves.
pub(crate) struct Node {
    settings: FleetSettings,
    fleet: Arc<Mutex<Fleet>>,
    status: Status,
}

/// What the node knows of its fleet, for health checks and metrics. A server by itself knows nothing.
#[derive(Clone, Default)]
pub(crate) struct Status {
    logs: Arc<Mutex<Vec<Arc<LogStatus>>>>,
    metrics: Option<FleetMetrics>,
}

impl Status {
    /// Why the node must not serve.
    pub(crate) fn unready(&self) -> Option<String> {
        self.first(LogStatus::unready)
    }

    /// Why the brokers do not store what the node sends.
    pub(crate) fn unstored(&self) -> Option<String> {
        self.first(LogStatus::unstored)
    }

    fn first(&self, reason: impl Fn(&LogStatus) -> Option<String>) -> Option<String> {
        let logs = self.logs.lock();
        let mut reasons = logs.iter().enumerate().filter_map(|(log, status)| {
            let reason = reason(status)?;
            Some(match logs.len() {
                1 => reason,
                _ => format!("log {log}: {reason}"),
            })
        });
        reasons.next()
    }

    /// How long no broker has answered; none if the node must not serve.
    fn silence(&self) -> Option<Duration> {
        if self.unready().is_some() {
            return None;
        }
        let logs = self.logs.lock();
        logs.iter().map(|log| log.figures().silence).max()
    }

    /// The figures of all logs, for operators.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let logs = self.logs.lock();
        let logs = logs.iter().map(|log| {
            let figures = log.figures();
            json!({
                "unready": log.unready(),
                "position": figures.applied,
                "lastPosition": figures.last,
                "lagSeconds": figures.lag.as_secs_f64(),
                "roundTripMs": figures.round_trip.as_secs_f64() * 1e3,
                "silenceSeconds": figures.silence.as_secs_f64(),
                "commandsInFlight": figures.commands_in_flight,
                "batches": figures.batches,
                "retries": figures.retries,
                "givenUp": figures.given_up,
            })
        });
        logs.collect()
    }

    /// Shows the figures of all logs.
    pub(crate) fn show(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.show(&self.logs.lock());
        }
    }
}

impl Node {
    /// Connects to the fleet, and compares its orders with what the logs have.
    pub(crate) fn join(
        settings: FleetSettings,
        logs: &Logs,
        registry: &Registry,
    ) -> Result<Node, Failed> {
        let chains = logs
            .logs
            .iter()
            .map(|(machine, _)| machine.chain().cloned());
        let chains: Vec<_> = chains.map(Option::unwrap_or_default).collect();
        let joined = Fleet::connect(settings.clone()).and_then(|mut fleet| {
            fleet.open(&chains)?;
            fleet.give_copies(logs.logs.iter().map(|(_, log)| log.reader()).collect())?;
            Ok(fleet)
        });
        let fleet = joined.map_err(|error| code(&error).with(error))?;
        tracing::info!(
            node = %settings.node,
            fleet = %settings.name,
            brokers = %settings.access.brokers,
            positions = ?chains.iter().map(|chain| chain.tip.position).collect::<Vec<_>>(),
            "the node follows its fleet"
        );
        let metrics = FleetMetrics::new(registry).map_err(|error| Code::Running.with(error))?;
        Ok(Node {
            settings,
            fleet: Arc::new(Mutex::new(fleet)),
            status: Status {
                metrics: Some(metrics),
                ..Status::default()
            },
        })
    }

    pub(crate) fn status(&self) -> Status {
        self.status.clone()
    }

    /// Connects the mailboxes of the logs with their orders.
    fn follow(&self) -> Follow {
        let fleet = Arc::clone(&self.fleet);
        let status = self.status.clone();
        let run = encke_net::wall_time().as_ms();
        Box::new(move |log, machine, mailbox| {
            let mut fleet = fleet.lock();
            let following = fleet.follow(log, machine, mailbox, run)?;
            *status.logs.lock() = fleet.logs();
            Ok(following)
        })
    }

    /// How other nodes know what this one holds of members.
    pub(crate) fn presence(&self) -> Result<PresenceNode, Failed> {
        let mut incarnation = [0; 8];
        aws_lc_rs::rand::fill(&mut incarnation)
            .map_err(|_| Code::Running.with(anyhow::anyhow!("the system gives no random bytes")))?;
        Ok(PresenceNode {
            name: self.settings.node.to_string().into(),
            incarnation: u64::from_le_bytes(incarnation),
        })
    }

    /// Tells reports of the fleet what the server does.
    pub(crate) fn show_activity(&self, server: &Server) {
        let activity = server.activity();
        self.fleet.lock().show_activity(move || {
            let now = activity();
            NodeActivity {
                connections: now.connections,
                subscribers: now.subscribers,
                dispatches: now.dispatches,
                takeovers: now.takeovers,
            }
        });
    }

    /// What connects the server with the other nodes.
    pub(crate) fn links(&self) -> FleetLinks {
        let status = self.status.clone();
        let fleet = Arc::clone(&self.fleet);
        FleetLinks {
            node: self.settings.node.to_string(),
            follow: self.follow(),
            retry: self.settings.retry,
            silence: Box::new(move || status.silence()),
            broadcast: Some(self.broadcast_link()),
            presence: Some(connect_nodes(Arc::clone(&fleet), LinkKind::Presence)),
            connect: connect_nodes(fleet, LinkKind::Jobs),
        }
    }

    fn broadcast_link(&self) -> BroadcastLink {
        let fleet = Arc::clone(&self.fleet);
        BroadcastLink {
            outlet: Arc::new(ToOtherNodes(self.fleet.lock().ephemeral_link())),
            receive: Box::new(move |inlet| {
                let fleet = fleet.lock();
                Ok(fleet.receive_ephemeral(move |message| inlet.receive(message))?)
            }),
        }
    }

    /// Waits for the end of the fleet's threads. The server must have stopped.
    pub(crate) fn leave(self) {
        if let Some(fleet) = Arc::into_inner(self.fleet) {
            fleet.into_inner().join();
        }
    }
}

/// Connects the node with the others, for packets of that kind.
fn connect_nodes(fleet: Arc<Mutex<Fleet>>, kind: LinkKind) -> ConnectNodes {
    Box::new(move |receive| {
        let link = fleet.lock().link(kind, move |packet| receive(packet))?;
        Ok(Box::new(move |node, packet| link.send(node, packet)))
    })
}

/// Hands ephemeral messages to the fleet.
struct ToOtherNodes(EphemeralLink);

impl FleetBroadcast for ToOtherNodes {
    fn offer(&self, message: &EphemeralMessage) -> Result<(), NotBroadcast> {
        self.0.send(message).map_err(|why| match why {
            NotSent::Disconnected => NotBroadcast::Disconnected,
            NotSent::QueueFull => NotBroadcast::QueueFull,
            NotSent::TooLarge { bytes, bytes_max } => NotBroadcast::TooLarge { bytes, bytes_max },
        })
    }
}

/// The exit code for a node that cannot take part.
fn code(error: &FleetError) -> Code {
    match error {
        FleetError::Credentials { .. }
        | FleetError::Logs { .. }
        | FleetError::Segment { .. }
        | FleetError::Retention { .. }
        | FleetError::NameInUse { .. } => Code::Usage,
        FleetError::Lost { .. }
        | FleetError::Behind { .. }
        | FleetError::OtherHistory { .. }
        | FleetError::Orphaned { .. } => Code::Data,
        FleetError::NoBroker { .. }
        | FleetError::NoFleet { .. }
        | FleetError::NoJetStream { .. }
        | FleetError::Stream { .. }
        | FleetError::NoAnswer { .. }
        | FleetError::Start(_) => Code::Running,
    }
}

/// Closes the subscribers while the node does not follow its fleet, so that they connect to another node.
pub(crate) struct Watch {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn start(status: Status, dismissal: Dismissal) -> std::io::Result<Watch> {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let mut was_ready = None;
        let thread = spawn_restarting("fleet-watch", move || {
            while !ended.load(Ordering::Relaxed) {
                let unready = status.unready();
                match (was_ready, &unready) {
                    (None, Some(reason)) => tracing::info!(reason, "the node is not ready yet"),
                    (Some(true), Some(reason)) => {
                        tracing::error!(
                            reason,
                            "the node is not ready; its subscribers are closed"
                        );
                    }
                    (Some(false), None) => tracing::info!("the node is ready"),
                    _ => {}
                }
                if unready.is_some() {
                    dismissal.dismiss_all();
                }
                was_ready = Some(unready.is_none());
                std::thread::park_timeout(WATCH_EVERY);
            }
        })?;
        Ok(Watch { ends, thread })
    }

    /// Must be called before the server is stopped.
    pub(crate) fn stop(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

/// How often the node looks whether it is ready.
const WATCH_EVERY: Duration = Duration::from_millis(500);
