//! The server: how the parts are put together.
//!
//! [`Server::start`] takes restored logs, a router and settings, and starts all threads: the reactor (`encke-net`) with its shards,
//! a sequencer for each log (`sequencer_threads`), the threads that read files (`readers`), and the dispatcher of the pools and
//! the subscriptions (`dispatcher`). Where they are configured, it starts the redirect to https (`redirect`), and on a node of a fleet the thread that
//! reads the revocations of other nodes (`revocations`). [`Server::stop`] ends all of them.
//!
//! The rules for requests, streams and jobs are in the crates below. This crate decides only which thread has which end of which
//! queue. A shard sees the others as the senders in [`encke_net::ReactorLinks`]; the others see a shard as an
//! [`encke_net::ShardSender`].
//!
//! The one invariant: **a receiver outlives its senders.** A thread ends when its last sender is gone, so a stop joins shards first,
//! then the dispatcher, then sequencers and readers. Each request that a shard has accepted gets its response, and a log is closed
//! behind its last command.
//!
//! Start reading at [`Server::start`]. `archive` reads what is not in memory, for threads that may wait for files. `metrics` has the
//! metrics of everything but the reactor, and `gauges` refreshes them. `health` probes deliveries when it is asked. `fleet_links` connects a node with its fleet.

mod archive;
mod dispatcher;
mod errors;
mod fleet_links;
mod gauges;
mod health;
mod inspect;
mod metrics;
mod moved;
mod presence;
mod pusher;
mod readers;
mod redirect;
mod revocations;
mod sequencer_threads;
mod server;
mod settings;
mod subscribed_archive;
mod unanswered;

pub use encke_net::{
    Dismissal, Liveness, MoveCensus, MovedConnection, MovedListeners, MovedOut, Moving, StartGate,
};
pub use errors::{StartError, StopError};
pub use fleet_links::{
    BroadcastLink, ConnectNodes, FleetLinks, Follow, ReceiveBroadcasts, ReceivePacket, SendToNodes,
};
pub use health::{DeliveryHealth, HealthSettings};
pub use inspect::{Explain, Explanation, InspectionSources};
pub use metrics::ServerMetrics;
pub use moved::{ClosingServer, MovedIn};
pub use server::{Activity, ServedStreams, Server};
pub use settings::{ServerSettings, SubscriptionSettings};
