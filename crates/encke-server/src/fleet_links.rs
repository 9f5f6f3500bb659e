//! What connects a node of a fleet with its order and with the other nodes.

use std::sync::Arc;
use std::time::Duration;

use encke_mailbox::Receiver;
use encke_net::{BroadcastInlet, FleetBroadcast};
use encke_stream::{Following, Machine, Submission};

/// What connects a node of a fleet with the others.
pub struct FleetLinks {
    /// The name of the node.
    pub node: String,
    /// Connects the mailbox of a log, by the log's index, with the order of the fleet.
    pub follow: Follow,
    /// How long requests for the pools wait for a node that dispatches.
    pub retry: Duration,
    /// How long no broker has answered; none if the node does not follow the order.
    pub silence: Box<dyn Fn() -> Option<Duration> + Send>,
    /// Connects the node with the others.
    pub connect: ConnectNodes,
    /// Connects what the node knows of members with the others.
    pub presence: Option<ConnectNodes>,
    /// Connects the ephemeral messages of the node with the others.
    pub broadcast: Option<BroadcastLink>,
}

/// The ways of ephemeral messages between this node and the others.
pub struct BroadcastLink {
    /// To the others.
    pub outlet: Arc<dyn FleetBroadcast>,
    /// Begins to hand those of the others to the shards.
    pub receive: ReceiveBroadcasts,
}

/// Begins to hand ephemeral messages of other nodes to the shards.
pub type ReceiveBroadcasts =
    Box<dyn FnOnce(BroadcastInlet) -> Result<(), Box<dyn std::error::Error + Send + Sync>>>;

/// Begins to hand packets of other nodes to a function, which does not block. Returns what sends packets to the node of a name,
/// or to all.
pub type ConnectNodes =
    Box<dyn FnOnce(ReceivePacket) -> Result<SendToNodes, Box<dyn std::error::Error + Send + Sync>>>;

/// Receives a packet of another node.
pub type ReceivePacket = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

/// Sends a packet to the node of that name, or to all.
pub type SendToNodes = Box<dyn Fn(Option<&str>, Vec<u8>) + Send>;

/// Connects the mailbox of a log with the order of a fleet.
pub type Follow = Box<
    dyn FnMut(
        usize,
        &Machine,
        Receiver<Submission>,
    ) -> Result<Following, Box<dyn std::error::Error + Send + Sync>>,
>;
