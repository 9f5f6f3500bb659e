//! The retention of a node's logs: all nodes of a fleet have the same, so that their clients can read the same records.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use async_nats::Client;
use encke_log::LogRetention;
use encke_stream::Chain;
use serde::{Deserialize, Serialize};

use crate::error::FleetError;
use crate::inquiry;
use crate::node_report::{NodeReport, Question};
use crate::settings::FleetSettings;

/// How long a node keeps records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRetention {
    /// [`LogRetention::age_max`], in milliseconds.
    pub age_max_ms: Option<u64>,
    /// [`LogRetention::bytes_max`].
    pub bytes_max: Option<u64>,
}

impl From<LogRetention> for NodeRetention {
    fn from(retention: LogRetention) -> Self {
        NodeRetention {
            age_max_ms: retention.age_max.map(|age| age.as_millis() as u64),
            bytes_max: retention.bytes_max,
        }
    }
}

/// As settings.
impl fmt::Display for NodeRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = self.age_max_ms.map(Duration::from_millis);
        match (age, self.bytes_max) {
            (None, None) => f.write_str("no retention"),
            (Some(age), None) => write!(f, "--retention-age {age:?}"),
            (None, Some(bytes)) => write!(f, "--retention-size {bytes}"),
            (Some(age), Some(bytes)) => {
                write!(f, "--retention-age {age:?} --retention-size {bytes}")
            }
        }
    }
}

/// Compares the retention of a node with that of the nodes that run. Those that have taken part before are waited for a short time.
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
    let known: BTreeSet<&str> = known
        .map(|node| &**node)
        .filter(|node| is_other(node))
        .collect();
    let all_answer = |nodes: &[NodeReport]| {
        let answers = |name: &&str| nodes.iter().any(|node| node.node == *name);
        !known.is_empty() && known.iter().all(answers)
    };
    let question = Question::default();
    let nodes = inquiry::ask_until(client, &settings.name, &question, all_answer).await?;
    match differing(
        settings.retention,
        nodes.iter().filter(|node| is_other(&node.node)),
    ) {
        None => Ok(()),
        Some((node, has)) => Err(FleetError::Retention {
            node: node.to_owned(),
            has,
            asked: settings.retention,
        }),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_shown_as_settings() {
        let both = LogRetention {
            age_max: Some(Duration::from_secs(60)),
            bytes_max: Some(1_000),
        };
        let text = NodeRetention::from(both).to_string();
        assert_eq!(text, "--retention-age 60s --retention-size 1000");
        assert_eq!(NodeRetention::default().to_string(), "no retention");
    }
}
