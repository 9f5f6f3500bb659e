//! The pools of a fleet: one node dispatches the jobs of all pools, and the others pass requests on to it.
//!
//! Workers and posters connect to any node. Each node has a *relay*, which takes the place of the dispatcher for the shards: at
//! the node that dispatches it hands requests to the dispatcher's thread, and at the others it sends them to that node and hands
//! its responses back.
//!
//! # Who dispatches
//!
//! The order of the fleet has the answer: a term of the dispatcher begins with a command that all nodes apply
//! ([`DispatcherTerm`](encke_stream::DispatcherTerm)), and from then on all nodes refuse what another node wants to write to the
//! pools' journals. So two nodes that both believe to be the dispatcher do no harm. What the dispatcher refuses from its memory, which
//! writes nothing, waits until the order has shown that the node still dispatches. The dispatcher sends a heartbeat to all nodes;
//! a node that has not heard one for [`SILENCE_MAX`] asks for the next term. When it has it, it has also applied everything
//! that the dispatcher before it has written, restores the pools from it, and goes on as a server does after a restart.
//!
//! # What a change of the dispatcher means for clients
//!
//! The streams of workers end with the event `stopping`; they connect again, to any node, and may report on the jobs that they
//! have. A request that waits for a dispatcher is sent on to the next one, for a bounded time. A request that was sent to a
//! dispatcher that is gone gets an error, because it may have been carried out.
//!
//! `relay.rs` has the rules without threads and sockets: who dispatches, and what time brings. `clients.rs` has what becomes of requests,
//! `exchange.rs` what nodes and the dispatcher send each other, `session.rs` the connection of two nodes over messages that may be lost,
//! `unconfirmed.rs` the responses that wait for the order, `wire.rs` the messages, `thread.rs` the thread.

mod clients;
mod exchange;
mod relay;
mod session;
#[cfg(test)]
mod tests;
mod thread;
mod unconfirmed;
mod wire;

pub use relay::{PacketTo, RelayFigures, SILENCE_MAX};
pub use thread::{BuildDispatcher, RelayContext, RestoreMachines, SendPacket};
