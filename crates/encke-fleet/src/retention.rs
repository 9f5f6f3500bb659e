//! Compares the retention of nodes: all nodes of a fleet have the same, so that their clients can read the same records.

use std::collections::BTreeSet;

use async_nats::Client;
use encke_stream::Chain;

use crate::error::FleetError;
use crate::inquiry::{self, ASKED_AGAIN};
use crate::node_report::{NodeReport, Question};
use crate::node_retention::NodeRetention;
use crate::settings::FleetSettings;

/// Compares the retention of a node with that of the nodes that run. Nodes of earlier batches are asked again while they are silent.
///
/// # Errors
/// [`FleetError::Retention`], or the brokers cannot be asked.
pub(crate) async fn compare(
    client: &Client,
    settings: &FleetSettings,
    chains: &[Chain],
) -> Result<(), FleetError> {
    let is_other = |node: &str| node != settings.node.as_str();
    let known = chains.iter().flat_map(|chain| chain.nodes.keys());
    let mut silent: BTreeSet<String> = known.map(ToString::to_string).collect();
    silent.remove(settings.node.as_str());
    for _ in 0..ASKED_AGAIN {
        let question = Question::default();
        let all_answer = |nodes: &[NodeReport]| {
            let answers = |name: &String| nodes.iter().any(|node| node.node == *name);
            !silent.is_empty() && silent.iter().all(answers)
        };
        let nodes = inquiry::ask_until(client, &settings.name, &question, all_answer).await?;
        let others = nodes.iter().filter(|node| is_other(&node.node));
        if let Some((node, has)) = differing(settings.retention, others) {
            return Err(FleetError::Retention {
                node: node.to_owned(),
                has,
                asked: settings.retention,
            });
        }
        silent.retain(|name| !nodes.iter().any(|node| node.node == *name));
        if silent.is_empty() {
            break;
        }
    }
    Ok(())
}

/// The first of these nodes with another retention. Nodes of earlier versions do not report theirs.
pub(crate) fn differing<'n>(
    retention: NodeRetention,
    mut nodes: impl Iterator<Item = &'n NodeReport>,
) -> Option<(&'n str, NodeRetention)> {
    nodes.find_map(|node| {
        let other = node.retention.filter(|other| *other != retention)?;
        Some((&*node.node, other))
    })
}
