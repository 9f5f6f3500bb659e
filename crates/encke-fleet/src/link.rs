//! Packets between the nodes of a fleet, over the brokers: core NATS, which keeps nothing and loses what it cannot deliver.

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::settings::FleetName;

/// Sends packets to other nodes.
pub struct NodeLink {
    packets: Sender<(String, Vec<u8>)>,
    fleet: FleetName,
}

impl NodeLink {
    /// Sends a packet to the node of that name, or to all nodes. It does not wait: while the brokers do not answer, packets are
    /// lost.
    pub fn send(&self, to: Option<&str>, packet: Vec<u8>) {
        let subject = match to {
            None => to_all(&self.fleet),
            Some(node) => to_node(&self.fleet, node),
        };
        // The receiving end notices what is lost.
        let _ = self.packets.try_send((subject, packet));
    }

    /// A link, and the task that sends its packets.
    pub(crate) fn new(client: Client, fleet: FleetName) -> (NodeLink, impl Future<Output = ()>) {
        let (packets, waiting) = mpsc::channel(WAITING_MAX);
        (NodeLink { packets, fleet }, send_all(client, waiting))
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

/// The subject of packets for all nodes.
pub(crate) fn to_all(fleet: &FleetName) -> String {
    format!("{fleet}.nodes")
}

/// The subject of packets for a node.
pub(crate) fn to_node(fleet: &FleetName, node: &str) -> String {
    format!("{fleet}.node.{node}")
}

/// Packets that wait for the broker; of about 48 KiB each at most.
const WAITING_MAX: usize = 1_024;
