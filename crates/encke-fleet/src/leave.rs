//! Lets a node leave that does not return, so that the fleet forgets its name.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::connect;
use crate::error::FleetError;
use crate::inquiry::{self, NodeInquiry};
use crate::node_report::{Leave, NodeReport, Question};
use crate::settings::{BrokerAccess, FleetName};

/// What came of it that a node should leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// The fleet has forgotten it.
    Forgotten,
    /// It still runs.
    Answers,
    /// No node knows it.
    Unknown,
    /// No node is ready to send the command.
    NoneReady,
    /// These nodes have not applied the command in time.
    Pending(Vec<String>),
}

/// Lets a node leave.
///
/// # Errors
/// No broker answers.
pub fn leave(
    access: &BrokerAccess,
    fleet: &FleetName,
    node: &FleetName,
) -> Result<Left, FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let name = format!("encke fleet {fleet} leave");
        let client = connect::connect(access, &name, connect::COMMANDS_WAIT).await?;
        let node = node.as_str();
        // The node itself is asked again as well, so that one which runs and is slow does not pass for one that is gone.
        let inquiry = NodeInquiry::new(&client, fleet, []);
        let nodes = inquiry.ask(&Question::default()).await?;
        if nodes.iter().any(|one| one.node == node) {
            return Ok(Left::Answers);
        }
        let Some(via) = nodes.iter().find(|one| one.unready.is_none()) else {
            return Ok(Left::NoneReady);
        };
        if !nodes.iter().any(|one| knows(one, node)) {
            return Ok(Left::Unknown);
        }
        let mut question = Question {
            leave: Some(Leave {
                via: via.node.clone(),
                node: node.to_owned(),
            }),
            ..Question::default()
        };
        let mut left: BTreeSet<String> = nodes.iter().map(|one| one.node.clone()).collect();
        let until = tokio::time::Instant::now() + FORGOTTEN_WITHIN;
        loop {
            for one in inquiry::ask(&client, fleet, &question).await? {
                match knows(&one, node) {
                    true => left.insert(one.node),
                    false => left.remove(&one.node),
                };
            }
            if left.is_empty() {
                return Ok(Left::Forgotten);
            }
            if tokio::time::Instant::now() >= until {
                return Ok(Left::Pending(left.into_iter().collect()));
            }
            question.leave = None;
        }
    })
}

fn knows(one: &NodeReport, node: &str) -> bool {
    one.known().any(|known| known == node)
}

/// All nodes that answer apply the command within this time.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(20);
