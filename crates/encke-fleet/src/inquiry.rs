//! Questions to the nodes of a fleet.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::Client;
use futures_util::StreamExt;

use crate::error::FleetError;
use crate::node_report::{NodeReport, Question, subject, subject_of};
use crate::settings::FleetName;

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
pub(crate) fn silent(nodes: &[NodeReport]) -> BTreeSet<&String> {
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
    ask_until(client, name, question, |_| false).await
}

/// [`ask`], until the reports are complete.
pub(crate) async fn ask_until(
    client: &Client,
    name: &FleetName,
    question: &Question,
    is_complete: impl Fn(&[NodeReport]) -> bool,
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
    while !is_complete(&nodes)
        && let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await
    {
        if let Ok(node) = serde_json::from_slice::<NodeReport>(&answer.payload) {
            nodes.push(node);
        }
    }
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    Ok(nodes)
}

/// Whether a process runs under the name of a node.
pub(crate) async fn runs(client: &Client, name: &FleetName, node: &str) -> bool {
    let answer = client.request(subject_of(name, node), "".into()).await;
    // One that does not answer has lost its connection, and the broker has not noticed.
    answer.is_ok()
}

/// All nodes answer within this time, or count as silent.
const ANSWERS_WITHIN: Duration = Duration::from_millis(750);

/// How often silent nodes are asked again.
pub(crate) const ASKED_AGAIN: usize = 3;
