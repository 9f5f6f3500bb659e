//! Why a node or a command cannot work with the brokers.

use crate::node_retention::NodeRetention;

/// Why a node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A file of the settings cannot be read.
    #[error("cannot read the credentials of the brokers from {path}: {source}")]
    Credentials {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// No broker answers.
    #[error("no broker answers at {brokers}: {reason}")]
    NoBroker {
        /// Where.
        brokers: String,
        /// The last error.
        reason: String,
    },
    /// The broker has no JetStream.
    #[error("the broker at {brokers} has no JetStream: start nats-server with -js")]
    NoJetStream {
        /// Where.
        brokers: String,
    },
    /// The stream cannot be created or read.
    #[error("the order of log {log} cannot be used ({stream} of JetStream): {reason}")]
    Stream {
        /// The index of the log.
        log: usize,
        /// The name of the stream.
        stream: String,
        /// Why.
        reason: String,
    },
    /// The brokers do not answer about the stream, such as while they have no leader.
    #[error(
        "the brokers do not answer about the order of log {log} ({stream} of JetStream): {reason}"
    )]
    NoAnswer {
        /// The index of the log.
        log: usize,
        /// The name of the stream.
        stream: String,
        /// Why.
        reason: String,
    },
    /// The fleet has another number of logs.
    #[error("the fleet has {has} logs, this node has {asked}: start it with --logs {has}")]
    Logs {
        /// What its first node had.
        has: String,
        /// What this node has.
        asked: usize,
    },
    /// The fleet has segments of another size.
    #[error(
        "the logs of the fleet have segments of {has} bytes, those of this node {asked} bytes: start it with --segment {has}"
    )]
    Segment {
        /// What its first node had.
        has: u64,
        /// What this node has.
        asked: u64,
    },
    /// A node that runs has another retention.
    #[error(
        "node {node} has {has}, this node has {asked}: all nodes of a fleet have the same --retention-age and --retention-size; to change \
         them, stop all nodes first"
    )]
    Retention {
        /// The node that runs.
        node: String,
        /// The retention of the other node.
        has: NodeRetention,
        /// The retention of this node.
        asked: NodeRetention,
    },
    /// The node has applied more than the order has.
    #[error(
        "the brokers have lost a part of the order of log {log}: it ends at {last}, and this node has applied {applied}: stop the nodes \
         that follow it, and run `encke fleet repair`"
    )]
    Lost {
        /// The index of the log.
        log: usize,
        /// The last position that the brokers have.
        last: u64,
        /// The last position that this node has applied.
        applied: u64,
    },
    /// The order no longer has what the node must apply next.
    #[error(
        "this node is too far behind in log {log}: it has applied {applied}, and the brokers have all of the order only from {first} on"
    )]
    Behind {
        /// The index of the log.
        log: usize,
        /// The position from which on the brokers lack none.
        first: u64,
        /// The last position that this node has applied.
        applied: u64,
    },
    /// The order is not the one that the node has followed.
    #[error(
        "the order of log {log} is another one than this node has followed: message {applied} differs"
    )]
    OtherHistory {
        /// The index of the log.
        log: usize,
        /// The last position that this node has applied.
        applied: u64,
    },
    /// The brokers have no order, and nodes have a history of it.
    #[error(
        "the brokers have lost the order of log {log}, which the node{} {} followed: `encke fleet repair` makes it anew, then start this node",
        if nodes.len() == 1 { "" } else { "s" }, nodes.join(", ")
    )]
    Orphaned {
        /// The index of the log.
        log: usize,
        /// The nodes.
        nodes: Vec<String>,
    },
    /// Another process runs under the name of the node.
    #[error(
        "a node {node} of the fleet {fleet} runs already: give this one another name with --node"
    )]
    NameInUse {
        /// The node.
        node: String,
        /// The fleet.
        fleet: String,
    },
    /// The brokers have no fleet of that name.
    #[error("the brokers at {brokers} have no fleet {name:?}")]
    NoFleet {
        /// The name.
        name: String,
        /// Where.
        brokers: String,
    },
    /// A thread or a connection cannot be made.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
}
