//! What a node of a fleet says of itself: it answers questions with its position in the order of each log, and announces it to the others.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::subject::ToSubject;
use async_nats::{Client, Subscriber};
use encke_stream::Tip;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::node_retention::NodeRetention;
use crate::peers::NodeTips;
use crate::settings::FleetName;
use crate::status::LogStatus;

/// What is asked of all nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Question {
    /// Positions whose hashes are asked for, by the logs' indices.
    pub(crate) positions: Vec<u64>,
    /// What one of the nodes is to do.
    #[serde(default)]
    pub(crate) leave: Option<Leave>,
    /// What the sender has applied. A node announces it without an address for a reply, so that no node answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) applied: Option<NodeTips>,
}

/// The request to let a node leave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Leave {
    /// The node that is to send the command.
    pub(crate) via: String,
    /// The node that leaves.
    pub(crate) node: String,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The name of the node.
    pub node: String,
    /// Why it must not serve; none if it is ready.
    pub unready: Option<String>,
    /// How long it keeps records. None: an earlier version does not say so.
    #[serde(default)]
    pub retention: Option<NodeRetention>,
    /// What it does; none while it starts.
    #[serde(default)]
    pub activity: Option<NodeActivity>,
    /// Its logs.
    pub logs: Vec<NodeLog>,
}

impl NodeReport {
    /// The names of the nodes that have taken part in any log.
    pub(crate) fn known(&self) -> impl Iterator<Item = &String> {
        self.logs.iter().flat_map(|log| &log.nodes)
    }
}

/// What a node does now: state that is no part of the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeActivity {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that are subscribed.
    pub subscribers: u64,
    /// Whether it dispatches the jobs of the pools.
    pub dispatches: bool,
    /// How often it has begun to dispatch, since its start.
    pub takeovers: u64,
}

/// Says what a node does. It must not block.
pub(crate) type ActivitySource = Box<dyn Fn() -> NodeActivity + Send + Sync>;

/// How far a node is in the order of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLog {
    /// The last applied batch.
    pub applied: u64,
    /// When the order that it follows was created, in nanoseconds since 1970. None: an earlier version does not say so.
    #[serde(default)]
    pub created_ns: Option<i64>,
    /// Milliseconds for which it lacks the oldest position that it has not applied.
    pub lag_ms: u64,
    /// The hash of everything up to the asked position, if the node has it in memory.
    pub hash: Option<String>,
    /// The hash of the message at that position.
    pub message: Option<u64>,
    /// Where it continues when it is started again: no later batch has records.
    pub marked: NodeMark,
    /// Whether it follows the order no longer.
    pub halted: bool,
    /// The nodes that have taken part in the order, as it knows them.
    pub nodes: Vec<String>,
}

/// A mark in the log of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMark {
    /// Its position in the order.
    pub position: u64,
    /// The hash of everything up to there.
    pub hash: String,
    /// The hash of the message there.
    pub message: u64,
}

impl NodeMark {
    /// The mark at this tip.
    pub fn of(tip: Tip) -> NodeMark {
        NodeMark {
            position: tip.position,
            hash: format!("{:032x}", tip.hash),
            message: tip.message,
        }
    }

    /// The tip of the mark. None if another version has written it otherwise.
    pub(crate) fn tip(&self) -> Option<Tip> {
        Some(Tip {
            position: self.position,
            hash: u128::from_str_radix(&self.hash, 16).ok()?,
            message: self.message,
        })
    }
}

/// Answers requests for reports, and announces to the other nodes what this one has applied.
pub(crate) struct Responder {
    pub(crate) fleet: FleetName,
    pub(crate) client: Client,
    /// Requests to all nodes, and to this one.
    pub(crate) requests: [Subscriber; 2],
    pub(crate) source: ReportSource,
}

/// What a node reports.
pub(crate) struct ReportSource {
    pub(crate) node: String,
    pub(crate) logs: watch::Receiver<Vec<Arc<LogStatus>>>,
    pub(crate) retention: NodeRetention,
    /// Set when the node serves.
    pub(crate) activity: Arc<OnceLock<ActivitySource>>,
}

impl Responder {
    /// Runs until the client is closed.
    pub(crate) async fn run(self) {
        let mut requests = futures_util::stream::select_all(self.requests);
        let mut announcements = tokio::time::interval(ANNOUNCED_EVERY);
        announcements.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let request = tokio::select! {
                request = requests.next() => request,
                _ = announcements.tick() => {
                    // Without a connection announcements would pile up.
                    if self.client.connection_state() == State::Connected {
                        let subject = subject(&self.fleet);
                        send(&self.client, subject, &self.source.announcement()).await;
                    }
                    continue;
                }
            };
            let Some(request) = request else { return };
            let question = serde_json::from_slice::<Question>(&request.payload);
            let question = question.unwrap_or_default();
            if let Some(applied) = &question.applied {
                self.source.record(applied);
            }
            if let Some(reply) = request.reply {
                send(&self.client, reply, &self.source.report(&question)).await;
            }
        }
    }
}

async fn send(client: &Client, to: impl ToSubject, what: &impl Serialize) {
    let Ok(body) = serde_json::to_vec(what) else {
        return;
    };
    if let Err(error) = client.publish(to, body.into()).await {
        tracing::debug!(%error, "a report could not be sent");
    }
}

impl ReportSource {
    /// What this node has applied.
    fn announcement(&self) -> Question {
        let logs = self.logs.borrow();
        Question {
            applied: Some(NodeTips {
                node: self.node.clone(),
                logs: logs.iter().map(|status| status.tip()).collect(),
            }),
            ..Question::default()
        }
    }

    /// Records the announcement of another node.
    fn record(&self, tips: &NodeTips) {
        if tips.node != self.node {
            let logs = self.logs.borrow();
            let logs = logs.iter().enumerate();
            logs.for_each(|(log, status)| status.record_peer(log, tips));
        }
    }

    fn report(&self, question: &Question) -> NodeReport {
        let logs = self.logs.borrow();
        let leave = question.leave.as_ref();
        if let Some(leave) = leave.filter(|leave| leave.via == self.node) {
            tracing::info!(node = leave.node, "a node is to leave the fleet");
            logs.iter()
                .for_each(|status| status.order().let_leave(&leave.node));
        }
        let report = |(log, status): (usize, &Arc<LogStatus>)| {
            let figures = status.figures();
            let asked = question.positions.get(log);
            let tip = asked.and_then(|position| status.order().tip_at(*position));
            NodeLog {
                applied: status.order().applied().position,
                created_ns: Some(status.created_ns()),
                lag_ms: figures.lag.as_millis() as u64,
                hash: tip.map(|tip| format!("{:032x}", tip.hash)),
                message: tip.map(|tip| tip.message),
                marked: NodeMark::of(status.order().marked()),
                halted: status.order().has_halted(),
                nodes: status.order().nodes(),
            }
        };
        NodeReport {
            node: self.node.clone(),
            unready: logs
                .iter()
                .find_map(|status| status.unready().or_else(|| status.unstored())),
            retention: Some(self.retention),
            activity: self.activity.get().map(|activity| activity()),
            logs: logs.iter().enumerate().map(report).collect(),
        }
    }
}

/// The subject of requests for reports.
pub(crate) fn subject(name: &FleetName) -> String {
    format!("{name}.report")
}

/// The subject of requests for the report of one node.
pub(crate) fn subject_of(name: &FleetName, node: &str) -> String {
    format!("{name}.report.{node}")
}

/// How often a node announces what it has applied.
const ANNOUNCED_EVERY: Duration = Duration::from_millis(500);
