//! The replicated order: several nodes apply the same batches of commands in the same order, and so hold the same streams.
//!
//! A log that machines share, such as a stream of NATS JetStream, has the order. This module knows nothing of it but
//! positions, times and bytes:
//!
//! 1. [`OutgoingBatches`] takes commands from the mailbox and encodes them. The caller appends them to the shared log.
//! 2. The caller reads the shared log and hands every message to [`IncomingBatches`], which continues the [`Chain`] and
//!    joins the parts of batches.
//! 3. [`ReplicaSequencer`] decides the batches by the same rules as a server by itself, writes the records and a mark to
//!    the node's own log, syncs it, and sends the replies if the batch was its own.
//!
//! Everything that a decision depends on is in the batches and in what earlier batches have made: the time of a batch is
//! that of the shared log, lifetimes are renewed by commands, and records are removed by commands. What a node sees by
//! itself, such as a read or the end of a lifetime, becomes a [`FleetCommand`](crate::FleetCommand) that all nodes decide.

mod assembly;
mod chain;
mod incoming;
mod message;
mod order_clock;
mod outgoing;
mod proposals;
mod reads;
mod replica;
mod sequencer;
mod status;
#[cfg(test)]
mod tests;

pub use assembly::FollowError;
pub use chain::{
    Applied, BatchId, Chain, DispatcherTerm, JOURNAL_PREFIXES, KIND_MARK, NODES_MAX, Tip,
    message_hash,
};
pub(crate) use chain::{BatchMark, append_mark};
pub use incoming::{FollowStopped, Following, IncomingBatches, OrderHandle};
pub use message::BadMessage;
pub use outgoing::{MessageBytesMax, NextOutgoing, OutgoingBatch, OutgoingBatches};
pub(crate) use reads::Reads;
pub(crate) use replica::{CutRecord, Replica};
pub use sequencer::ReplicaSequencer;
pub use status::OrderStatus;

pub(crate) use incoming::OrderedBatch;

use std::sync::Arc;

use encke_mailbox::Receiver;

use crate::Machine;
use crate::order::submission::Submission;
use incoming::following;
use outgoing::Outstanding;

/// The two ends of the replicated order of one log, for the one who moves messages, and the end for its sequencer.
pub struct ReplicatedOrder {
    /// What this node sends.
    pub outgoing: OutgoingBatches,
    /// What all nodes have sent.
    pub incoming: IncomingBatches,
    /// How far this node is.
    pub status: Arc<OrderStatus>,
    /// For [`ReplicaSequencer::new`].
    pub following: Following,
}

/// Sets up the order of the log whose streams `machine` has. `node` is the name of this node, at most
/// [`NODE_NAME_BYTES_MAX`] bytes; `run` must be higher than that of its last start, and is raised if it is not.
/// `message_bytes_max` bounds the commands that this node sends.
pub fn replicated_order(
    machine: &Machine,
    mailbox: Receiver<Submission>,
    node: &str,
    run: u64,
    message_bytes_max: MessageBytesMax,
) -> ReplicatedOrder {
    let chain = machine.chain().cloned().unwrap_or_default();
    let last = chain.nodes.get(node).map_or(0, |applied| applied.run);
    let run = run.max(last + 1);
    let status = Arc::new(OrderStatus::new(&chain));
    let outstanding = Arc::new(Outstanding::default());
    let batch = BatchId {
        node: node.into(),
        at: Applied { run, number: 0 },
    };
    let (incoming, following) = following(
        chain,
        batch.clone(),
        Arc::clone(&outstanding),
        Arc::clone(&status),
    );
    ReplicatedOrder {
        outgoing: OutgoingBatches::new(
            mailbox,
            batch,
            outstanding,
            Arc::clone(&status),
            message_bytes_max,
        ),
        incoming,
        following,
        status,
    }
}

/// The longest name of a node, in bytes.
pub const NODE_NAME_BYTES_MAX: usize = 64;
