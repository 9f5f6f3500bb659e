//! The reactor: a thread for each core, each with its own listener and its own connections.
//!
//! A shard speaks HTTP/1.1 (`http`) and HTTP/2 (`http2`), asks the router what to do for a request, hands commands to the sequencer and records
//! to subscribers. It never waits for a disk, a lock that is held long, or a client: results arrive as events in its channel. It knows no
//! protocol by name: what it does for a request is an [`encke_protocol::Action`].
//!
//! The rest of the server (`encke-server`) connects to it in three places: [`ReactorLinks`] has where the shards send commands, requests to
//! the dispatcher and reads; a [`ShardSender`] is the way back to a shard; and a [`ReadTask`] carries its own way back, a [`ReadReply`].
//!
//! `connection` has connections without I/O: events in, effects out, on both wires. `feed` says what subscribers get. `shard` is the
//! loop that polls, accepts, keeps the time and does what these want done. Beside them `clients` has addresses, callers and what each
//! holds, `transport` the sockets with and without TLS, `http` and `http2` the formats of the wires.
//!
//! The one invariant: **an idle connection is a slot of 40 bytes and an entry in its topic's list.**
//! Buffers, deadlines and partly sent output live beside the slots, and only as long as they matter.
//!
//! Start reading at [`BoundReactor::start`], then the shard's module and its `run`.

mod accept_batching;
mod acceptor;
mod access_log;
mod audit;
mod broadcast;
mod broadcast_message;
mod buffers;
mod by_slot;
mod byte_queue;
mod chunked_vec;
mod clients;
mod clock;
mod compression;
mod connection;
mod deferred;
mod errors;
mod feed;
mod file_watcher;
mod hash_index;
mod http;
mod http2;
mod inspector;
mod lag;
mod listen;
mod listener_places;
mod metrics;
mod moved;
mod networks;
mod one_shot;
mod operators;
mod outbox;
mod poller;
mod probe_connector;
mod proxy;
#[cfg(any(test, feature = "fuzzing"))]
mod proxy_fuzzing;
mod reactor;
mod readers;
mod settings;
mod shard;
mod shard_channel;
mod steady;
mod survey;
mod surveyor;
mod time_of_day;
mod timer_wheel;
mod timers;
mod transport;
mod websocket;

/// A shard's tables without sockets.
#[doc(hidden)]
#[cfg(any(test, feature = "synthetic"))]
pub mod synthetic;

/// The bodies of the fuzz targets in `fuzz/`.
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::connection::testing::fuzzing::connection;
    pub use crate::http::differential::request_hyper;
    pub use crate::http::fuzzing::request_head;
    pub use crate::proxy_fuzzing::proxies;
    pub use crate::transport::tls::fuzzing::tls_records;
    pub use crate::websocket::fuzzing::websocket;
}

pub use access_log::AccessLogFormat;
pub use audit::{RecentRefusals, RefusalEntry};
pub use broadcast::{BroadcastInlet, FleetBroadcast, NotBroadcast};
pub use clients::addresses::{AddressLimiter, AddressLimits};
pub use clients::forwarded::ForwardedBy;
pub use clock::{now, wall_time};
pub use errors::{ReactorError, ThreadPanicked};
pub use file_watcher::FileWatcher;
pub use inspector::{InspectReply, InspectTask, Inspector};
pub use listen::{ACCEPT_BACKLOG, check_address};
pub use metrics::{Metrics, ReactorTotals};
pub use moved::{
    Arrivals, MoveCensus, MovedConnection, MovedListeners, MovedOut, Moving, StartGate,
};
pub use networks::{Networks, NotNetworks};
pub use one_shot::{OneShotListener, OneShotResponder, OneShotStop};
pub use probe_connector::ProbeConnector;
pub use reactor::{BoundReactor, Dismissal, Liveness, Reactor, ReactorGauges, ReactorLinks};
pub use readers::{CompressTask, KeptPieces, ReadReply, ReadTask, Readers};
pub use settings::{NetSettings, TlsClients, TlsSettings};
pub use shard_channel::ShardSender;
pub use steady::Ticker;
pub use survey::{ConnectionFilter, ConnectionRow, LagOfRow, SubscribedTo};
pub use surveyor::{ShardSilent, SurveyPage, Surveyor};
pub use transport::tls::{CertificateWarning, TlsError, check_tls};
