//! The settings of the reactor. Every bound has a name and a default.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use encke_trace::Tracer;

use crate::access_log::AccessLogFormat;
use crate::clients::forwarded::ForwardedBy;
use crate::http::take::RequestLimits;
use crate::networks::Networks;

/// Settings of the reactor.
#[derive(Clone, Debug)]
pub struct NetSettings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// A listener that another process has made, in the place of one at `listen`.
    pub inherited: Option<Arc<TcpListener>>,
    /// Where operators connect, beside that address; `None` for nowhere.
    pub operators_listen: Option<SocketAddr>,
    /// Reactor threads, each with its own listener.
    pub shards: usize,
    /// Connections of the server; more are refused with 503.
    pub connections_max: usize,
    /// Connections of one client address, or of one /64 of IPv6; more are refused with 429. 0 for no limit.
    pub connections_per_address: usize,
    /// Connections that the server accepts in a second; more wait in the kernel's queue. 0 for no limit.
    pub accept_rate: u64,
    /// Requests that a client address may make in a second, including opening a connection; more are refused with 429. 0 for
    /// no limit.
    pub request_rate: u64,
    /// Requests that a client address may make at once after a pause.
    pub request_burst: u64,
    /// Client addresses in the table of limits; when all of them have connections, others are refused with 503.
    pub addresses_max: usize,
    /// Networks without limits by address.
    pub exempt: Networks,
    /// Proxies that are trusted to name their clients.
    pub trust: Networks,
    /// The header fields in which they name them.
    pub forwarded_by: ForwardedBy,
    /// Whether every connection is from one of them and begins with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// TLS on the listening address; `None` for plain connections.
    pub tls: Option<TlsSettings>,
    /// For how long browsers are to use https only, by `Strict-Transport-Security` on connections of TLS; `None`: they are told nothing.
    pub hsts_max_age: Option<Duration>,
    /// Threads that make handshakes of TLS.
    pub handshake_threads: usize,
    /// Handshakes of TLS at a time; while there are as many, accepting pauses.
    pub handshakes_max: usize,
    /// Handshakes of TLS of one client address, or of one /64 of IPv6; further connections of it wait. 0 for no limit.
    pub handshakes_per_address: usize,
    /// How long a handshake of TLS may take.
    pub handshake_timeout: Duration,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Bytes that a connection may send ahead while its request is worked on.
    pub pipeline_bytes_max: usize,
    /// How long a request's head, or a pause in its body, may take.
    pub request_timeout: Duration,
    /// How long a request's body may take in all.
    pub body_timeout: Duration,
    /// Requests that one connection may make before it is closed behind a response; 0 for no limit.
    pub requests_per_connection: u16,
    /// Streams that a client may have open on an HTTP/2 connection at a time; more are refused with REFUSED_STREAM.
    pub http2_streams_max: u32,
    /// How long a connection may be kept without a request.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of what was sent to it before it is closed.
    pub stall_timeout: Duration,
    /// Bytes that a lagging subscriber may be behind before it is closed.
    pub lag_bytes_max: u64,
    /// How long a subscriber may be behind before it is closed, and how long a part of a long body may take.
    pub lag_age_max: Duration,
    /// Bytes that all connections may hold in parts of requests and in output that sockets have not taken.
    pub buffers_bytes_max: usize,
    /// Bytes of them that one client may hold at a shard: a caller with credentials, or an address without; 0 for no limit. A
    /// client that holds more loses the largest of them.
    pub buffers_per_client_max: usize,
    /// Responses that are compressed at a time; further ones are sent as they are. 0 for no compression.
    pub compressions_max: usize,
    /// Bytes that a compressed message of a WebSocket may have once it is inflated, and no more than any message may have; 0 for no
    /// compression of WebSocket messages.
    pub websocket_inflated_bytes_max: usize,
    /// How long a subscriber's connection is quiet before a heartbeat is sent.
    pub heartbeat: Duration,
    /// Bytes of recent records that each shard keeps.
    pub ring_bytes: usize,
    /// How far, in bytes of records, a shard's deliveries may be behind before publishers wait.
    pub admission_bytes: usize,
    /// How long a record may wait for its delivery to begin before publishers wait.
    pub admission_delay: Duration,
    /// How long an acknowledgement is delayed at most while most subscribers of its stream are lagging; never if zero.
    pub admission_wait: Duration,
    /// Sends to subscribers before a shard looks at its sockets and its mailbox again.
    pub sends_per_turn: usize,
    /// How long a stream's next round of sends is delayed at most, behind one that took longer than a turn.
    pub rest_max: Duration,
    /// The kernel's send buffer for each connection, in bytes.
    pub send_buffer_bytes: usize,
    /// Bytes that the kernel takes for a connection beyond what it has sent of it.
    pub unsent_bytes_max: usize,
    /// How long a turn of a shard may take for deferred work (new connections, long bodies, catching up, deadlines); longer if
    /// the rest of the turn took longer.
    pub deferred_time: Duration,
    /// The form of the access log's lines; `None` for no access log.
    pub access_log: Option<AccessLogFormat>,
    /// Bytes of the entries that wait to be written to the access log; further ones are dropped.
    pub access_log_bytes_max: usize,
    /// What decides which requests are traced, and takes their spans; `None` if none are.
    pub tracer: Option<Tracer>,
    /// How long a stop waits for what is under way.
    pub stop_timeout: Duration,
}

/// The files of TLS, all in PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Certificates, each with its chain. The first is for clients that ask for no name, or for one that no certificate has.
    pub certificates: Vec<PathBuf>,
    /// Their keys, in the same order.
    pub keys: Vec<PathBuf>,
    /// The authorities whose certificates clients may present; `None`: clients are not asked for one.
    pub client_ca: Option<PathBuf>,
    /// Whether clients must present one.
    pub clients: TlsClients,
}

/// Whether clients must present a certificate, if authorities are configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsClients {
    /// Handshakes without one fail.
    #[default]
    Required,
    /// Clients without one are let in; access control decides what they may.
    Optional,
}

impl NetSettings {
    /// What requests are held to.
    pub(crate) fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            head_bytes_max: self.head_bytes_max,
            body_bytes_max: self.body_bytes_max,
        }
    }

    /// How long a client may acknowledge nothing of what was sent to it before it is gone: some heartbeats, and no less than a client
    /// may take that reads nothing, because its closed window acknowledges nothing either.
    pub(crate) fn silence_max(&self) -> Duration {
        (self.heartbeat * SILENT_HEARTBEATS).max(self.stall_timeout + SILENCE_MARGIN)
    }
}

/// Heartbeats that a client may leave without an acknowledgement.
const SILENT_HEARTBEATS: u32 = 3;

/// A client that only reads nothing is closed for that reason, and before.
const SILENCE_MARGIN: Duration = Duration::from_secs(5);

impl Default for NetSettings {
    fn default() -> Self {
        NetSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 4437)),
            inherited: None,
            operators_listen: None,
            shards: std::thread::available_parallelism().map_or(1, usize::from),
            connections_max: 1_000_000,
            connections_per_address: 10_000,
            accept_rate: 20_000,
            request_rate: 20_000,
            request_burst: 40_000,
            addresses_max: 1_000_000,
            exempt: Networks::loopback(),
            trust: Networks::default(),
            forwarded_by: ForwardedBy::default(),
            proxy_protocol: false,
            tls: None,
            hsts_max_age: None,
            handshake_threads: std::thread::available_parallelism()
                .map_or(1, |cores| usize::from(cores).div_ceil(4)),
            handshakes_max: 1024,
            handshakes_per_address: 256,
            handshake_timeout: Duration::from_secs(10),
            head_bytes_max: 16 << 10,
            body_bytes_max: 16 << 20,
            pipeline_bytes_max: 64 << 10,
            request_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(300),
            requests_per_connection: 0,
            http2_streams_max: 256,
            idle_timeout: Duration::from_secs(120),
            stall_timeout: Duration::from_secs(60),
            lag_bytes_max: 1 << 30,
            lag_age_max: Duration::from_secs(3600),
            buffers_bytes_max: 512 << 20,
            buffers_per_client_max: 64 << 20,
            compressions_max: 32,
            websocket_inflated_bytes_max: 0,
            heartbeat: Duration::from_secs(30),
            ring_bytes: 64 << 20,
            admission_bytes: 16 << 20,
            admission_delay: Duration::from_millis(100),
            admission_wait: Duration::from_secs(1),
            sends_per_turn: 256,
            rest_max: Duration::from_millis(20),
            send_buffer_bytes: 128 << 10,
            unsent_bytes_max: 16 << 10,
            deferred_time: Duration::from_micros(200),
            access_log: None,
            access_log_bytes_max: 16 << 20,
            tracer: None,
            stop_timeout: Duration::from_secs(5),
        }
    }
}
