//! Ephemeral messages between the nodes of a fleet, over core NATS: the brokers keep nothing of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_nats::connection::State;
use async_nats::{Client, Subscriber};
use encke_stream::EphemeralMessage;
use futures_util::StreamExt;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::settings::FleetName;

/// Sends ephemeral messages to the other nodes.
pub struct EphemeralLink {
    client: Client,
    packets: Sender<WaitingPacket>,
    /// Bytes of packets that wait for the task that sends them.
    waiting: Arc<AtomicUsize>,
}

/// Why the other nodes don't get a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// There is no connection to a broker.
    Disconnected,
    /// Too much waits to be sent.
    QueueFull,
    /// The broker takes no message of that size.
    TooLarge {
        /// What was to be sent.
        bytes: usize,
        /// What it takes.
        bytes_max: usize,
    },
}

/// A packet, which counts until it is sent or lost.
struct WaitingPacket {
    bytes: Vec<u8>,
    counted: usize,
    waiting: Arc<AtomicUsize>,
}

impl Drop for WaitingPacket {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl EphemeralLink {
    /// A link, and the task that sends its packets under the name of a node.
    pub(crate) fn new(
        client: Client,
        fleet: &FleetName,
        node: &str,
    ) -> (EphemeralLink, impl Future<Output = ()> + use<>) {
        let (packets, waiting) = mpsc::channel(PACKETS_MAX);
        let link = EphemeralLink {
            client: client.clone(),
            packets,
            waiting: Arc::default(),
        };
        (link, send_all(client, of_node(fleet, node), waiting))
    }

    /// Sends a message to all other nodes. It does not wait.
    ///
    /// # Errors
    /// They don't get it.
    pub fn send(&self, message: &EphemeralMessage) -> Result<(), NotSent> {
        if self.client.connection_state() != State::Connected {
            return Err(NotSent::Disconnected);
        }
        let bytes = message.to_packet();
        // Of the broker that is connected now.
        let bytes_max = self.client.max_payload();
        if bytes.len() > bytes_max {
            return Err(NotSent::TooLarge {
                bytes: bytes.len(),
                bytes_max,
            });
        }
        let counted = bytes.capacity();
        let before = self.waiting.fetch_add(counted, Ordering::Relaxed);
        let packet = WaitingPacket {
            bytes,
            counted,
            waiting: Arc::clone(&self.waiting),
        };
        if before > WAITING_BYTES_MAX {
            return Err(NotSent::QueueFull);
        }
        self.packets
            .try_send(packet)
            .map_err(|_| NotSent::QueueFull)
    }
}

async fn send_all(client: Client, subject: String, mut packets: Receiver<WaitingPacket>) {
    while let Some(mut packet) = packets.recv().await {
        // Without a connection they would pile up in the client, and arrive when they mean nothing any more.
        if client.connection_state() != State::Connected {
            continue;
        }
        let bytes = std::mem::take(&mut packet.bytes);
        if let Err(error) = client.publish(subject.clone(), bytes.into()).await {
            tracing::debug!(%error, "an ephemeral message for other nodes is lost");
        }
    }
}

/// Hands the messages of other nodes on until the client is closed.
pub(crate) async fn receive_all(
    mut packets: Subscriber,
    own: String,
    receive: impl Fn(EphemeralMessage) + Send,
) {
    while let Some(packet) = packets.next().await {
        if packet.subject.as_str() == own {
            continue;
        }
        match EphemeralMessage::from_packet(&packet.payload) {
            Some(message) => receive(message),
            None => tracing::debug!(subject = %packet.subject, "a packet has another format"),
        }
    }
}

/// The subject of the messages of a node.
pub(crate) fn of_node(fleet: &FleetName, node: &str) -> String {
    format!("{fleet}.ephemeral.{node}")
}

/// The subjects of the messages of all nodes.
pub(crate) fn of_all(fleet: &FleetName) -> String {
    of_node(fleet, "*")
}

/// Packets that wait for the broker, and their bytes.
const PACKETS_MAX: usize = 4_096;
const WAITING_BYTES_MAX: usize = 4 << 20;
