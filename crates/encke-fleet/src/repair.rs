//! Makes the order of a fleet anew when the brokers have lost it: it continues behind the longest history that a node has.
//!
//! Every node restarts at a mark, and all nodes have the same marks, so one position is enough to say where each can go on.
//! A record that was acknowledged is in the log of the node that has acknowledged it. So nothing is lost if every node that
//! ever took part is asked, and what the others have is the beginning of what the longest has. Otherwise nothing is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream::Info};
use encke_stream::{Tip, message_hash};
use serde::{Deserialize, Serialize};

use crate::broker::{self, Kept};
use crate::connect;
use crate::error::FleetError;
use crate::inquiry::NodeInquiry;
use crate::node_report::{NodeMark, NodeReport, Question};
use crate::report;
use crate::settings::{BrokerAccess, FleetName, Replicas};

/// How a fleet is repaired.
#[derive(Clone, Debug)]
pub struct Repair {
    /// How the brokers are reached.
    pub access: BrokerAccess,
    /// The name of the fleet.
    pub fleet: FleetName,
    /// Nodes that do not run.
    pub stopped: Vec<StoppedNode>,
    /// Names of nodes that do not count: what only they have is lost.
    pub without: Vec<String>,
    /// On how many brokers an order is stored whose settings are lost.
    pub replicas: Replicas,
    /// How long the brokers keep such an order.
    pub keep: Duration,
    /// Whether messages may be lost that none of the nodes has applied.
    pub drop_order: bool,
    /// Whether to change anything.
    pub accept: bool,
}

/// A node that does not run, as its directory shows it.
#[derive(Clone, Debug)]
pub struct StoppedNode {
    /// Its name.
    pub name: String,
    /// Where it continues, by the logs' indices.
    pub tips: Vec<Tip>,
    /// The nodes that have taken part, as it knows them.
    pub nodes: Vec<String>,
}

/// What a repair finds and does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetRepairReport {
    /// The orders, by the logs' indices.
    pub logs: Vec<LogRepair>,
    /// Why nothing is changed, one line each.
    pub problems: Vec<String>,
    /// Whether the orders that need it were made anew.
    pub done: bool,
}

/// What a repair finds and does for the order of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRepair {
    /// The index of the log.
    pub log: usize,
    /// What the brokers have.
    pub order: String,
    /// Whether it must be made anew.
    pub needed: bool,
    /// The nodes with the longest history.
    pub longest: Vec<String>,
    /// Where they continue.
    pub mark: NodeMark,
    /// Nodes with less, which copy a log at their next start.
    pub behind: Vec<String>,
}

/// Where a node continues.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    tip: Tip,
    /// It has stopped to follow the order, or does not run.
    halted: bool,
}

/// Whether an order must be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    No,
    /// The brokers have less than the nodes.
    Lost,
    /// The brokers have messages that are not behind what the nodes have.
    Other,
}

/// Hashes that nodes have at positions before their marks: by node and position.
type Hashes = BTreeMap<(String, u64), String>;

impl Repair {
    /// Asks all nodes and the brokers, and makes the orders anew if that is needed, allowed, and loses nothing.
    ///
    /// # Errors
    /// No broker answers, or one refuses.
    pub fn run(&self) -> Result<FleetRepairReport, FleetError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.repair())
    }

    async fn repair(&self) -> Result<FleetRepairReport, FleetError> {
        let name = format!("encke fleet {} repair", self.fleet);
        let client = connect::connect(&self.access, &name, connect::COMMANDS_WAIT).await?;
        let context = jetstream::new(client.clone());
        let away = self.stopped.iter().map(|node| &node.name);
        let inquiry = NodeInquiry::new(&client, &self.fleet, away.chain(&self.without));
        let mut nodes = inquiry.ask(&Question::default()).await?;
        let mut report = FleetRepairReport::default();
        let known = known(&nodes, &self.stopped);
        let unknown = self.without.iter().filter(|name| !known.contains(*name));
        report.problems.extend(unknown.map(|name| {
            let known = known
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ");
            format!("--without {name}: no node of that name has taken part; known are {known}")
        }));
        nodes.retain(|node| !self.without.contains(&node.node));
        let of_nodes = nodes.iter().map(|node| node.logs.len());
        let of_stopped = self.stopped.iter().map(|node| node.tips.len());
        let logs = of_nodes.chain(of_stopped).max().unwrap_or(0);
        let mut infos = Vec::new();
        for log in 0..logs {
            let members = members(&nodes, &self.stopped, log);
            let hashes = ask_hashes(&inquiry, &members, (log, logs)).await?;
            let info = order_of_leader(&context, &self.fleet, log).await?;
            let found = self
                .examine(&context, &inquiry, (log, info.as_ref()), &members, &hashes)
                .await?;
            let (repair, problems) = found;
            report.logs.push(repair);
            report.problems.extend(problems);
            infos.push(info);
        }
        if logs == 0 || report.logs.iter().any(|log| log.needed) {
            let missing = missing(&nodes, &self.stopped, &self.without);
            report.problems.extend(missing);
        }
        if self.accept && report.problems.is_empty() {
            for (repair, info) in report.logs.iter().zip(&infos) {
                if repair.needed {
                    self.make_anew(&context, repair, info.as_ref(), logs)
                        .await?;
                    report.done = true;
                }
            }
        }
        Ok(report)
    }

    /// What is to be done for a log, and what speaks against it.
    async fn examine(
        &self,
        context: &jetstream::Context,
        inquiry: &NodeInquiry<'_>,
        (log, info): (usize, Option<&Info>),
        members: &[Member],
        hashes: &Hashes,
    ) -> Result<(LogRepair, Vec<String>), FleetError> {
        let Compared {
            longest,
            different,
            unknown,
        } = compare(log, members, hashes);
        let mut problems = different;
        let followed = members.iter().any(|member| !member.halted);
        let tip = (longest, followed);
        let (order, need) = self.order(context, inquiry, log, info, tip).await?;
        let needed = need != Need::No;
        if needed {
            problems.extend(unknown);
            if info.is_some_and(|info| !broker::has_quorum(info)) {
                problems.push(format!(
                    "what a broker says of log {log} may be old: {}",
                    broker::NO_QUORUM
                ));
            }
            let following = members.iter().filter(|member| !member.halted);
            problems.extend(following.map(|member| {
                let node = &member.name;
                format!("node {node} follows the order of log {log}, so it must not be made anew: stop the node if it should be")
            }));
        }
        if need == Need::Other && !self.drop_order {
            problems.push(format!(
                "the brokers have messages of log {log} that none of these nodes has applied, and another one may have acknowledged: give \
                 --drop-order if they may be lost"
            ));
        }
        let is_longest = |member: &&Member| member.tip.position == longest.position;
        let names = |members: Vec<&Member>| members.iter().map(|one| one.name.clone()).collect();
        let (longest_members, behind) = members.iter().partition::<Vec<_>, _>(is_longest);
        let repair = LogRepair {
            log,
            order,
            needed,
            longest: names(longest_members),
            mark: NodeMark::of(longest),
            behind: names(behind),
        };
        Ok((repair, problems))
    }

    /// What the brokers have, and whether nodes with that tip cannot continue with it. `followed`: some node does.
    async fn order(
        &self,
        context: &jetstream::Context,
        inquiry: &NodeInquiry<'_>,
        log: usize,
        info: Option<&Info>,
        (tip, followed): (Tip, bool),
    ) -> Result<(String, Need), FleetError> {
        let Some(info) = info else {
            let need = match tip.position {
                0 => Need::No,
                _ => Need::Lost,
            };
            return Ok(("the brokers have no order".into(), need));
        };
        let stream = context.get_stream_no_info(&info.config.name).await;
        let stream = stream.map_err(|error| FleetError::Stream {
            log,
            stream: info.config.name.clone(),
            reason: error.to_string(),
        })?;
        let lost = broker::lost_positions(&stream, info, log).await?;
        let (first, last) = (broker::first_whole(info, &lost), info.state.last_sequence);
        let has = format!("the brokers have positions {first} to {last}");
        if tip.position == 0 || broker::continues_behind(info, tip) && first == tip.position + 1 {
            return Ok((has, Need::No));
        }
        if last < tip.position {
            // What is left must be of the nodes: messages that a new node has begun another order with may be acknowledged.
            let own = match info.state.messages {
                0 => true,
                _ => self.is_of_nodes(context, inquiry, log, last).await?,
            };
            return Ok(match own {
                true => (format!("{has}, the end is lost"), Need::Lost),
                false => (
                    format!("{has}, and no node knows the last of them"),
                    Need::Other,
                ),
            });
        }
        if first > tip.position {
            // No message is left to compare with, or what is between is gone.
            let other = broker::continued_position(info) == Some(tip.position)
                && !broker::continues_behind(info, tip);
            let gap = first > tip.position + 1 && !followed;
            return Ok(match other || gap {
                true => (
                    format!("{has}, and no node has all before them"),
                    Need::Other,
                ),
                false => (has, Need::No),
            });
        }
        match self.hash_at(context, log, tip.position).await? == tip.message {
            true => Ok((has, Need::No)),
            false => Ok((
                format!("{has}, of another order than the nodes'"),
                Need::Other,
            )),
        }
    }

    /// The hash of the message that the brokers have at a position.
    async fn hash_at(
        &self,
        context: &jetstream::Context,
        log: usize,
        position: u64,
    ) -> Result<u64, FleetError> {
        let stream = broker::stream_name(&self.fleet, log);
        let failed = |reason: String| FleetError::Stream {
            log,
            stream: stream.clone(),
            reason,
        };
        let found = context.get_stream_no_info(&stream).await;
        let found = found.map_err(|error| failed(error.to_string()))?;
        let message = found.get_raw_message(position).await;
        let message = message.map_err(|error| failed(error.to_string()))?;
        Ok(message_hash(&message.payload))
    }

    /// Whether a node has received the message that the brokers have at a position.
    async fn is_of_nodes(
        &self,
        context: &jetstream::Context,
        inquiry: &NodeInquiry<'_>,
        log: usize,
        position: u64,
    ) -> Result<bool, FleetError> {
        let hash = self.hash_at(context, log, position).await?;
        let mut question = Question::default();
        question.positions.resize(log + 1, 0);
        question.positions[log] = position;
        let nodes = inquiry.ask(&question).await?;
        let mut known = nodes.iter().filter_map(|node| node.logs.get(log)?.message);
        Ok(known.any(|known| known == hash))
    }

    /// Replaces the stream of an order by one that continues behind the longest history.
    async fn make_anew(
        &self,
        context: &jetstream::Context,
        repair: &LogRepair,
        info: Option<&Info>,
        logs: usize,
    ) -> Result<(), FleetError> {
        let log = repair.log;
        let stream = broker::stream_name(&self.fleet, log);
        let failed = |reason: String| FleetError::Stream {
            log,
            stream: stream.clone(),
            reason,
        };
        let tip = repair.mark.tip();
        let tip = tip.ok_or_else(|| failed("the hash of a node cannot be read".into()))?;
        let kept = match info {
            Some(info) => Kept {
                replicas: Replicas(info.config.num_replicas),
                keep: info.config.max_age,
                segment_bytes: broker::segment_bytes(info),
            },
            None => Kept {
                replicas: self.replicas,
                keep: self.keep,
                segment_bytes: None,
            },
        };
        let mut config = broker::config(&self.fleet, (log, logs), kept);
        broker::continue_behind(tip, &mut config);
        if info.is_some() {
            // After a crash in between, the brokers have no order, and the repair can be repeated.
            let deleted = context.delete_stream(&stream).await;
            deleted.map_err(|error| failed(error.to_string()))?;
        }
        let made = context.create_stream(config).await;
        let made = made.map_err(|error| {
            failed(broker::creation(
                &error.to_string(),
                "give the repair --replicas 1",
            ))
        })?;
        let info = made.get_info().await;
        let info = info.map_err(|error| failed(error.to_string()))?;
        if !broker::continues_behind(&info, tip) || info.state.last_sequence < tip.position {
            return Err(failed(format!(
                "the brokers have made it with positions from {} on, not from {} on",
                info.state.first_sequence,
                tip.position + 1
            )));
        }
        Ok(())
    }
}

/// What the brokers have of an order. Asks again while no leader answers, and returns the last answer then.
async fn order_of_leader(
    context: &jetstream::Context,
    fleet: &FleetName,
    log: usize,
) -> Result<Option<Info>, FleetError> {
    let until = Instant::now() + LEADER_WITHIN;
    loop {
        let info = report::order(context, fleet, log).await?;
        let leads = info.as_ref().is_none_or(broker::has_quorum);
        if leads || Instant::now() >= until {
            return Ok(info);
        }
        tokio::time::sleep(connect::RECONNECT_EVERY).await;
    }
}

/// Why not all nodes are known that may have records.
fn missing(nodes: &[NodeReport], stopped: &[StoppedNode], without: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if nodes.is_empty() && stopped.is_empty() {
        problems.push("no node answers, and none is given with --stopped".into());
    }
    let logs = nodes.iter().map(|node| node.logs.len());
    let logs = logs.chain(stopped.iter().map(|node| node.tips.len()));
    let logs = logs.max().unwrap_or(0);
    for node in nodes {
        let tips = node.logs.iter().filter_map(|log| log.marked.tip());
        if tips.count() < logs {
            problems.push(format!(
                "node {} does not say how far it is in all logs: wait until it has started, or update it",
                node.node
            ));
        }
    }
    for node in stopped.iter().filter(|node| node.tips.len() < logs) {
        problems.push(format!("node {} has fewer logs than the fleet", node.name));
    }
    let mut names = BTreeSet::new();
    let running = nodes.iter().map(|node| &node.node);
    for name in running.chain(stopped.iter().map(|node| &node.name)) {
        if !names.insert(name.as_str()) {
            problems.push(format!("node {name} is there twice"));
        }
    }
    for name in known(nodes, stopped) {
        if !names.contains(name.as_str()) && !without.contains(&name) {
            problems.push(format!(
                "node {name} has taken part and may have more: start it, or give its directory with --stopped {name}=DIR, or give \
                 --without {name} if what only it has may be lost"
            ));
        }
    }
    problems
}

/// The names of all nodes that have taken part, or answer.
fn known(nodes: &[NodeReport], stopped: &[StoppedNode]) -> BTreeSet<String> {
    let running = nodes.iter();
    let running = running.flat_map(|node| node.known().chain([&node.node]));
    let stopped = stopped.iter();
    let stopped = stopped.flat_map(|node| node.nodes.iter().chain([&node.name]));
    running.chain(stopped).cloned().collect()
}

fn members(nodes: &[NodeReport], stopped: &[StoppedNode], log: usize) -> Vec<Member> {
    let running = nodes.iter().filter_map(|node| {
        let of_log = node.logs.get(log)?;
        Some(Member {
            name: node.node.clone(),
            tip: of_log.marked.tip()?,
            halted: of_log.halted,
        })
    });
    let stopped = stopped.iter().filter_map(|node| {
        Some(Member {
            name: node.name.clone(),
            tip: *node.tips.get(log)?,
            halted: true,
        })
    });
    running.chain(stopped).collect()
}

/// Asks the nodes what they had at the marks of the others.
async fn ask_hashes(
    inquiry: &NodeInquiry<'_>,
    members: &[Member],
    (log, logs): (usize, usize),
) -> Result<Hashes, FleetError> {
    let mut hashes = Hashes::new();
    let positions: BTreeSet<u64> = members.iter().map(|one| one.tip.position).collect();
    // At the longest mark there is nothing to compare with.
    for position in positions.iter().rev().skip(1) {
        let mut question = Question {
            positions: vec![0; logs],
            ..Question::default()
        };
        question.positions[log] = *position;
        for node in inquiry.ask(&question).await? {
            let hash = node.logs.get(log).and_then(|log| log.hash.clone());
            if let Some(hash) = hash {
                hashes.insert((node.node, *position), hash);
            }
        }
    }
    Ok(hashes)
}

/// Histories of a log, compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    longest: Tip,
    /// Nodes whose history is not the beginning of the longest, one line each.
    different: Vec<String>,
    /// Nodes of which that is not known.
    unknown: Vec<String>,
}

/// Finds the longest history of a log, and compares all others with it.
fn compare(log: usize, members: &[Member], hashes: &Hashes) -> Compared {
    let Some(longest) = members.iter().max_by_key(|member| member.tip.position) else {
        return Compared::default();
    };
    let (mut different, mut unknown) = (Vec::new(), Vec::new());
    for other in members {
        let position = other.tip.position;
        // Any node with the longest history that has the hash in memory.
        let known = members.iter().find_map(|one| match one.tip.position {
            at if at == position && at == longest.tip.position => {
                Some(format!("{:032x}", longest.tip.hash))
            }
            at if at == longest.tip.position => hashes.get(&(one.name.clone(), position)).cloned(),
            _ => None,
        });
        let (node, longest) = (&other.name, &longest.name);
        match known {
            _ if position == 0 => {}
            Some(hash) if hash == format!("{:032x}", other.tip.hash) => {}
            Some(_) => different.push(format!(
                "nodes {longest} and {node} have different histories of log {log} up to position {position}: give --without with the name of \
                 the one whose data may be replaced"
            )),
            None => unknown.push(format!(
                "node {longest} cannot say whether its history of log {log} contains that of node {node}, which ends at position {position}: \
                 give --without {node} if its data may be replaced"
            )),
        }
    }
    Compared {
        longest: longest.tip,
        different,
        unknown,
    }
}

/// How long a repair waits for a leader.
const LEADER_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, position: u64, hash: u128) -> Member {
        Member {
            name: name.into(),
            tip: Tip {
                position,
                hash,
                message: 1,
            },
            halted: true,
        }
    }

    fn hashes(of: &[(&str, u64, u128)]) -> Hashes {
        of.iter()
            .map(|(node, position, hash)| (((*node).into(), *position), format!("{hash:032x}")))
            .collect()
    }

    #[test]
    fn the_longest_history_counts_if_it_contains_the_others() {
        let nodes = [
            member("a", 5, 50),
            member("b", 9, 90),
            member("c", 9, 90),
            member("d", 0, 0),
        ];
        let compare_with = |of: &[(&str, u64, u128)]| compare(0, &nodes, &hashes(of));
        let found = compare_with(&[("c", 5, 50)]);
        assert_eq!(found.longest.position, 9);
        assert!(found.different.is_empty() && found.unknown.is_empty());
        let found = compare_with(&[("c", 5, 51)]);
        assert_eq!((found.different.len(), found.unknown.len()), (1, 0));
        let found = compare_with(&[("a", 5, 50)]);
        assert_eq!((found.different.len(), found.unknown.len()), (0, 1));
        let found = compare(0, &[member("a", 9, 91), member("b", 9, 90)], &hashes(&[]));
        assert_eq!((found.different.len(), found.unknown.len()), (1, 0));
    }

    #[test]
    fn a_node_that_has_taken_part_must_be_asked_or_given_up() {
        let stopped = |name: &str| StoppedNode {
            name: name.into(),
            tips: vec![Tip::default()],
            nodes: vec!["a".into(), "b".into()],
        };
        assert!(missing(&[], &[], &[])[0].contains("no node answers"));
        assert_eq!(
            missing(&[], &[stopped("a"), stopped("b")], &[]),
            Vec::<String>::new()
        );
        let problems = missing(&[], &[stopped("a")], &[]);
        assert!(problems[0].contains("--without b"), "{problems:?}");
        assert_eq!(
            missing(&[], &[stopped("a")], &["b".into()]),
            Vec::<String>::new()
        );
        assert!(missing(&[], &[stopped("a"), stopped("a")], &["b".into()])[0].contains("twice"));
    }
}
