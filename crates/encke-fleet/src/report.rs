//! What a fleet is: what its brokers have and what its nodes answer, and where they differ.

use async_nats::jetstream::{self, stream::Info};
use encke_stream::message_hash;
use serde::{Deserialize, Serialize};

use crate::broker;
use crate::connect;
use crate::error::FleetError;
use crate::inquiry::{NodeInquiry, silent};
use crate::node_report::{NodeReport, Question};
use crate::retention::differing;
use crate::settings::{BrokerAccess, FleetName};

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
    let inquiry = NodeInquiry::new(&client, name, []);
    let mut report = FleetReport {
        logs: Vec::new(),
        nodes: inquiry.ask(&Question::default()).await?,
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
        report.compare(&inquiry, &context, name).await?;
    }
    Ok(report)
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
        let retention = self
            .nodes
            .iter()
            .find_map(|node| Some((node, node.retention?)));
        if let Some((first, has)) = retention
            && let Some((other, differs)) = differing(has, self.nodes.iter())
        {
            self.problems.push(format!(
                "the nodes {} and {other} have different retentions: {has}, and {differs}",
                first.node
            ));
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
        inquiry: &NodeInquiry<'_>,
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
        let answers = inquiry.ask(&question).await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_report::{NodeLog, NodeMark};

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
            retention: None,
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
