//! Packets between the nodes of a fleet, over the brokers: core NATS, which keeps nothing and loses what it cannot deliver.

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::settings::FleetName;

/// Sends packets to other nodes.
pub struct NodeLink {
    packets: Sender<(String, Vec<u8>)>,
    fleet: FleetName,
    kind: LinkKind,
}

/// What packets are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Jobs and wakes.
    Jobs,
    /// Members of streams.
    Presence,
}

impl NodeLink {
    /// Sends a packet to the node of that name, or to all nodes. It does not wait: while the brokers do not answer, packets are
    /// lost.
    pub fn send(&self, to: Option<&str>, packet: Vec<u8>) {
        let subject = match to {
            None => self.kind.to_all(&self.fleet),
            Some(node) => self.kind.to_node(&self.fleet, node),
        };
        // The receiving end notices what is lost.
        let _ = self.packets.try_send((subject, packet));
    }

    /// A link, and the task that sends its packets.
    pub(crate) fn new(
        client: Client,
        fleet: FleetName,
        kind: LinkKind,
    ) -> (NodeLink, impl Future<Output = ()>) {
        let (packets, waiting) = mpsc::channel(WAITING_MAX);
        let link = NodeLink {
            packets,
            fleet,
            kind,
        };
        (link, send_all(client, waiting))
    }
}

async fn send_all(client: Client, mut waiting: Receiver<(String, Vec<u8>)>) {
    while let Some((subject, packet)) = waiting.recv().await {
        if let Err(error) = client.publish(subject, packet.into()).await {
            tracing::debug!(%error, "a packet for another node is lost");
        }
    }
}

/// Hands packets on until the client is closed.
pub(crate) async fn receive_all(mut packets: Subscriber, mut receive: impl FnMut(Vec<u8>) + Send) {
    while let Some(packet) = packets.next().await {
        receive(packet.payload.into());
    }
}

impl LinkKind {
    /// The subject of packets for all nodes.
    pub(crate) fn to_all(self, fleet: &FleetName) -> String {
        match self {
            LinkKind::Jobs => format!("{fleet}.nodes"),
            LinkKind::Presence => format!("{fleet}.presence"),
        }
    }

    /// The subject of packets for a node.
    pub(crate) fn to_node(self, fleet: &FleetName, node: &str) -> String {
        match self {
            LinkKind::Jobs => format!("{fleet}.node.{node}"),
            LinkKind::Presence => format!("{fleet}.presence.{node}"),
        }
    }
}

/// Packets that wait for the broker; of about 48 KiB each at most.
const WAITING_MAX: usize = 1_024;
