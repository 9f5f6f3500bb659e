//! Reports of the nodes of a fleet: each node answers a request with its position in the order of each log, and the caller
//! compares the answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{self, stream::Info};
use async_nats::subject::ToSubject;
use async_nats::{Client, Subscriber};
use encke_stream::{Tip, message_hash};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::broker;
use crate::connect;
use crate::error::FleetError;
use crate::peers::NodeTips;
use crate::settings::{BrokerAccess, FleetName};
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

/// What the brokers say of the order of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerLog {
    /// The first position that they have.
    pub first: u64,
    /// The last position.
    pub last: u64,
    /// When the order was created, in nanoseconds since 1970.
    pub created_ns: i64,
    /// Whether the answer is from a leader that is in touch with a majority of the brokers. Otherwise it may be old.
    pub current: bool,
    /// Bytes of the messages that they have.
    pub bytes: u64,
    /// On how many brokers the order is stored.
    pub replicas: usize,
    /// The broker that leads, in a cluster.
    pub leader: Option<String>,
    /// Brokers that should have the order and do not follow.
    pub offline: Vec<String>,
}

/// A fleet as its brokers and nodes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReport {
    /// The orders at the brokers, by the logs' indices.
    pub logs: Vec<BrokerLog>,
    /// The nodes that have answered, by name.
    pub nodes: Vec<NodeReport>,
    /// What is wrong, one line each.
    pub problems: Vec<String>,
    /// For each log the position up to which all nodes have the same order, if it was compared.
    pub compared: Vec<u64>,
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
            unready: logs.iter().find_map(|status| status.unready()),
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

/// Whether a process runs under the name of a node.
pub(crate) async fn runs(client: &Client, name: &FleetName, node: &str) -> bool {
    let answer = client.request(subject_of(name, node), "".into()).await;
    // One that does not answer has lost its connection, and the broker has not noticed.
    answer.is_ok()
}

/// Asks the brokers and the nodes of a fleet. `compare`: also whether all of them have the same order.
///
/// # Errors
/// No broker answers, or the fleet has no orders there.
pub fn report(
    access: &BrokerAccess,
    name: &FleetName,
    compare: bool,
) -> Result<FleetReport, FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(gather(access, name, compare))
}

async fn gather(
    access: &BrokerAccess,
    name: &FleetName,
    compare: bool,
) -> Result<FleetReport, FleetError> {
    let client = connect::connect(
        access,
        &format!("encke fleet {name}"),
        connect::COMMANDS_WAIT,
    )
    .await?;
    let context = jetstream::new(client.clone());
    let mut report = FleetReport {
        logs: Vec::new(),
        nodes: NodeInquiry::new(&client, name, [])
            .ask(&Question::default())
            .await?,
        problems: Vec::new(),
        compared: Vec::new(),
    };
    let logs = report.nodes.iter().map(|node| node.logs.len()).max();
    let logs = logs.unwrap_or(0);
    while logs == 0 || report.logs.len() < logs {
        let log = report.logs.len();
        match order(&context, name, log).await {
            Ok(Some(info)) => report.logs.push(broker_log(&info)),
            Ok(None) if logs == 0 => break,
            Ok(None) => {
                report.problems.push(format!(
                    "the brokers have lost the order of log {log}: `encke fleet repair` makes it anew"
                ));
                break;
            }
            Err(error) if logs == 0 => return Err(error),
            Err(error) => {
                report.problems.push(error.to_string());
                break;
            }
        }
    }
    if report.logs.is_empty() && report.nodes.is_empty() {
        return Err(FleetError::NoFleet {
            name: name.to_string(),
            brokers: access.brokers.to_string(),
        });
    }
    report.find_problems();
    if compare {
        report.compare(&client, &context, name).await?;
    }
    Ok(report)
}

/// Asks the nodes of a fleet. Those that have taken part and do not answer are asked again, and all if none answers: they may have no
/// processor for the moment. Those that are silent then count as away, and no later question waits for them.
pub(crate) struct NodeInquiry<'a> {
    client: &'a Client,
    fleet: &'a FleetName,
    away: RefCell<BTreeSet<String>>,
    /// None has answered.
    none_answers: Cell<bool>,
}

impl<'a> NodeInquiry<'a> {
    /// `away`: nodes that are known not to run.
    pub(crate) fn new<'n>(
        client: &'a Client,
        fleet: &'a FleetName,
        away: impl IntoIterator<Item = &'n String>,
    ) -> Self {
        NodeInquiry {
            client,
            fleet,
            away: RefCell::new(away.into_iter().cloned().collect()),
            none_answers: Cell::new(false),
        }
    }

    /// The reports of all nodes, by name.
    pub(crate) async fn ask(&self, question: &Question) -> Result<Vec<NodeReport>, FleetError> {
        let mut nodes = ask(self.client, self.fleet, question).await?;
        for _ in 0..ASKED_AGAIN {
            if self.is_complete(&nodes) {
                break;
            }
            let more = ask(self.client, self.fleet, question).await?;
            let new = |node: &NodeReport| !nodes.iter().any(|known| known.node == node.node);
            let new: Vec<_> = more.into_iter().filter(new).collect();
            nodes.extend(new);
        }
        self.none_answers.set(nodes.is_empty());
        let silent = silent(&nodes).into_iter().cloned();
        self.away.borrow_mut().extend(silent);
        nodes.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(nodes)
    }

    fn is_complete(&self, nodes: &[NodeReport]) -> bool {
        let away = self.away.borrow();
        let some_answer = !nodes.is_empty() || self.none_answers.get();
        some_answer && silent(nodes).into_iter().all(|node| away.contains(node))
    }
}

/// The nodes that have applied something of the order of a log.
pub(crate) async fn followers(
    client: &Client,
    name: &FleetName,
    log: usize,
) -> Result<Vec<String>, FleetError> {
    let mut nodes = ask(client, name, &Question::default()).await?;
    nodes.retain(|node| node.logs.get(log).is_some_and(|log| log.applied > 0));
    Ok(nodes.into_iter().map(|node| node.node).collect())
}

/// The names of nodes that have taken part and are not among these.
fn silent(nodes: &[NodeReport]) -> BTreeSet<&String> {
    let answers = |name: &&String| nodes.iter().any(|node| node.node == **name);
    let known = nodes.iter().flat_map(NodeReport::known);
    known.filter(|name| !answers(name)).collect()
}

/// The reports of all nodes that answer in time, by name.
pub(crate) async fn ask(
    client: &Client,
    name: &FleetName,
    question: &Question,
) -> Result<Vec<NodeReport>, FleetError> {
    let failed = |reason: String| FleetError::Start(std::io::Error::other(reason));
    let inbox = client.new_inbox();
    let answers = client.subscribe(inbox.clone()).await;
    let mut answers = answers.map_err(|error| failed(error.to_string()))?;
    let body = serde_json::to_vec(question).map_err(|error| failed(error.to_string()))?;
    let sent = client
        .publish_with_reply(subject(name), inbox, body.into())
        .await;
    sent.map_err(|error| failed(error.to_string()))?;
    let mut nodes = Vec::new();
    let until = tokio::time::Instant::now() + ANSWERS_WITHIN;
    while let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await {
        if let Ok(node) = serde_json::from_slice::<NodeReport>(&answer.payload) {
            nodes.push(node);
        }
    }
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    Ok(nodes)
}

/// What the brokers say of the order of a log; none if there is no such log.
pub(crate) async fn order(
    context: &jetstream::Context,
    name: &FleetName,
    log: usize,
) -> Result<Option<Info>, FleetError> {
    let stream = broker::stream_name(name, log);
    let failed = |reason: String| FleetError::Stream {
        log,
        stream: stream.clone(),
        reason,
    };
    let found = match context.get_stream(&stream).await {
        Ok(found) => found,
        Err(error) => {
            return match broker::says_missing(&error) {
                true => Ok(None),
                false => Err(failed(error.to_string())),
            };
        }
    };
    let info = found.get_info().await;
    info.map(Some).map_err(|error| failed(error.to_string()))
}

fn broker_log(info: &Info) -> BrokerLog {
    let cluster = info.cluster.as_ref();
    BrokerLog {
        first: info.state.first_sequence,
        last: info.state.last_sequence,
        created_ns: broker::created_ns(info),
        current: broker::has_quorum(info),
        bytes: info.state.bytes,
        replicas: info.config.num_replicas,
        leader: cluster.and_then(|cluster| cluster.leader.clone()),
        offline: offline(info),
    }
}

/// The brokers that should have an order and do not follow.
pub(crate) fn offline(info: &Info) -> Vec<String> {
    let cluster = info.cluster.iter();
    let replicas = cluster.flat_map(|cluster| &cluster.replicas);
    let lost = replicas.filter(|replica| replica.offline || !replica.current);
    lost.map(|replica| replica.name.clone()).collect()
}

impl BrokerLog {
    /// What the order of a log lacks of what a node has applied. The node must have been asked before the brokers.
    fn lacks(&self, log: usize, node: &NodeReport) -> Option<String> {
        let applied = node.logs.get(log)?;
        let same_order = applied.created_ns == Some(self.created_ns);
        let (name, last) = (&node.node, self.last);
        (self.current && same_order && applied.applied > last).then(|| {
            format!(
                "the brokers have lost a part of the order of log {log}: node {name} has applied position {}, and it ends at {last}",
                applied.applied
            )
        })
    }
}

impl FleetReport {
    fn find_problems(&mut self) {
        if self.nodes.is_empty() {
            self.problems.push("no node answers".into());
        }
        for pair in self.nodes.windows(2) {
            if pair[0].node == pair[1].node {
                let name = &pair[0].node;
                self.problems
                    .push(format!("two nodes have the name {name}"));
            }
        }
        for node in &self.nodes {
            if let Some(reason) = &node.unready {
                self.problems.push(format!("node {}: {reason}", node.node));
            }
        }
        self.problems.extend(silent(&self.nodes).into_iter().map(|node| {
            format!(
                "node {node} has taken part and does not answer: start it, or let the fleet forget it with `encke fleet leave --node {node}`"
            )
        }));
        for (log, order) in self.logs.iter().enumerate() {
            for node in &self.nodes {
                self.problems.extend(order.lacks(log, node));
            }
            for broker in &order.offline {
                let problem = format!("broker {broker} does not follow the order of log {log}");
                self.problems.push(problem);
            }
        }
    }

    /// Compares the hashes of all nodes at the position that the slowest of them has reached, and the message there with that of
    /// the brokers.
    async fn compare(
        &mut self,
        client: &Client,
        context: &jetstream::Context,
        name: &FleetName,
    ) -> Result<(), FleetError> {
        let slowest = |log: usize| {
            let applied = self.nodes.iter().filter_map(|node| node.logs.get(log));
            applied.map(|log| log.applied).min().unwrap_or(0)
        };
        let question = Question {
            positions: (0..self.logs.len()).map(slowest).collect(),
            ..Question::default()
        };
        let answers = ask(client, name, &question).await?;
        let mut problems = Vec::new();
        for node in &self.nodes {
            if !answers.iter().any(|answer| answer.node == node.node) {
                problems.push(format!("node {} did not answer twice", node.node));
            }
        }
        for (log, position) in question.positions.iter().enumerate() {
            let mut hashes: Vec<(&str, &str)> = Vec::new();
            let mut message = None;
            for answer in &answers {
                match answer.logs.get(log).and_then(|log| log.hash.as_deref()) {
                    Some(hash) => hashes.push((hash, &answer.node)),
                    None => problems.push(format!(
                        "node {} cannot say what it had at position {position} of log {log}",
                        answer.node
                    )),
                }
                message = message.or(answer.logs.get(log).and_then(|log| log.message));
            }
            hashes.sort_unstable();
            if let (Some(first), Some(last)) = (hashes.first(), hashes.last())
                && first.0 != last.0
            {
                problems.push(format!(
                    "the nodes {} and {} have different orders up to position {position} of log {log}: {} and {}",
                    first.1, last.1, first.0, last.0
                ));
            }
            let kept = self.logs[log].first <= *position && *position > 0;
            if let Some(message) = message.filter(|_| kept) {
                let stream = context
                    .get_stream_no_info(broker::stream_name(name, log))
                    .await;
                let found = match &stream {
                    Ok(stream) => stream.get_raw_message(*position).await.ok(),
                    Err(_) => None,
                };
                match found {
                    Some(found) if message_hash(&found.payload) == message => {}
                    Some(_) => problems.push(format!(
                        "the brokers have another message at position {position} of log {log} than the nodes have applied"
                    )),
                    None => problems.push(format!(
                        "the brokers do not return message {position} of log {log}"
                    )),
                }
            }
        }
        self.compared = question.positions;
        self.problems.extend(problems);
        Ok(())
    }
}

/// How often a node announces what it has applied.
const ANNOUNCED_EVERY: Duration = Duration::from_millis(500);

/// All nodes answer within this time, or count as silent.
const ANSWERS_WITHIN: Duration = Duration::from_millis(750);

/// How often silent nodes are asked again.
pub(crate) const ASKED_AGAIN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_lacks_what_a_node_has_applied_of_the_same_order() {
        let order = BrokerLog {
            first: 1,
            last: 7,
            created_ns: 5,
            current: true,
            bytes: 0,
            replicas: 1,
            leader: None,
            offline: Vec::new(),
        };
        let node = |applied, created_ns| NodeReport {
            node: "a".into(),
            unready: None,
            activity: None,
            logs: vec![NodeLog {
                applied,
                created_ns,
                lag_ms: 0,
                hash: None,
                message: None,
                marked: NodeMark::default(),
                halted: false,
                nodes: Vec::new(),
            }],
        };
        let problem = order.lacks(0, &node(10, Some(5))).unwrap();
        assert!(problem.contains("node a has applied position 10, and it ends at 7"));
        assert_eq!(order.lacks(0, &node(7, Some(5))), None);
        // Before a repair, or of an earlier version.
        assert_eq!(order.lacks(0, &node(10, Some(4))), None);
        assert_eq!(order.lacks(0, &node(10, None)), None);
        assert_eq!(order.lacks(1, &node(10, Some(5))), None);
        let old = BrokerLog {
            current: false,
            ..order
        };
        assert_eq!(old.lacks(0, &node(10, Some(5))), None);
    }
}
