//! Messages for the thread that serves the shards' requests to pools: the dispatcher, or the relay of a node of a fleet.

use encke_stream::{Reply, StreamChange, StreamState};
use encke_subscriptions::{DeliveryResult, LookUpError};

use crate::machines::DispatcherMachines;
use crate::request::{DispatchClient, DispatchRequest, JobId, Payload};
use crate::response::DispatchResponse;

/// A message for the dispatcher.
#[derive(Debug)]
pub enum DispatcherMessage {
    /// A client's request.
    Request(DispatchClient, DispatchRequest),
    /// A client has disconnected.
    Disconnected(DispatchClient),
    /// The outcomes of commands.
    Committed(Vec<Reply>),
    /// A job was read from the log.
    Loaded {
        /// The pool's number.
        pool: u64,
        /// The job.
        id: JobId,
        /// Its content, or the reason for the failure.
        payload: Result<Payload, String>,
    },
    /// Changes of streams that concern subscriptions, in the order of their log.
    Changed(Vec<StreamChange>),
    /// The streams of a look-up of the subscriptions, by its number.
    Found(u64, Result<Vec<StreamState>, LookUpError>),
    /// The result of a call of a webhook, by its number.
    Delivered(u64, DeliveryResult),
    /// The credentials of a client have ended: what it waits for ends.
    CallerEnded(DispatchClient),
    /// The clients of a node of the fleet are gone.
    NodeGone(u16),
    /// For the relay of a node of a fleet, which receives in the place of the dispatcher.
    Relay(RelayMessage),
    /// The server is stopping: answer all clients that wait.
    Stop,
    /// No more requests follow: end the threads.
    Quit,
    /// Another node dispatches: end the threads at once, because nothing more can be written.
    Abandon,
}

/// What a relay gets beside what a dispatcher gets.
#[derive(Debug)]
pub enum RelayMessage {
    /// A packet of another node.
    Packet(Vec<u8>),
    /// The dispatcher of this node responds.
    Response(DispatchClient, DispatchResponse),
    /// The pools and the subscriptions as the logs have them, for the term with this number.
    Restored(u64, Result<Box<DispatcherMachines>, String>),
    /// The dispatcher of this node for the term with this number has ended.
    Ended(u64),
}
