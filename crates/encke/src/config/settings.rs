//! Every setting, in one place: what it is called, what `--help` says of it, and what it sets.
//!
//! To add one, write it here. It has its flag, its ENCKE_ variable and its key in the file, all of one name, and nothing
//! else in this crate has to know of it. What holds between settings is checked by `Config::settle`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use encke_protocol::events::STREAMS_MAX;
use encke_stream::LOGS_MAX;
use jiff::SignedDuration;
use serde::Deserialize;

use super::Config;
use super::told::Told;
use super::words::{Ack, ForwardedBy, LogFormat};

/// Makes [`Given`] of a list of settings: each with its arguments for clap, its type, and the assignment that is done when
/// it was given, in which the two names of the first line stand for what was told and for the configuration.
macro_rules! settings {
    (
        |$told:ident, $config:ident|
        $($(#[$attribute:meta])* $name:ident: $type:ty => $place:expr,)*
    ) => {
        /// Settings as they were given, each or not at all.
        #[derive(Args, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub(super) struct Given {
            $($(#[$attribute])* pub(super) $name: Option<$type>,)*
        }

        impl Given {
            /// These settings, and where there is none, the other's.
            pub(super) fn or(self, other: Given) -> Given {
                Given { $($name: self.$name.or(other.$name),)* }
            }

            /// Sets in the configuration what was given.
            pub(super) fn apply(&self, $config: &mut Config) -> anyhow::Result<()> {
                $(
                    if let Some(value) = self.$name.clone() {
                        let $told = Told { name: stringify!($name), value };
                        $place;
                    }
                )*
                Ok(())
            }
        }
    };
}

settings! {
    |told, config|

    /// Address and port to listen on; port 0 lets the system choose [default: 127.0.0.1:4437]
    #[arg(long, env = "ENCKE_LISTEN", value_name = "ADDR")]
    listen: SocketAddr => config.net.listen = told.value,

    /// Allow listening on an address that others reach. There is no access control yet
    #[arg(long, env = "ENCKE_OPEN", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    open: bool => config.open = told.value,

    /// Directory of the log; made if it is not there [default: ./encke-data]
    #[arg(long, env = "ENCKE_DATA", value_name = "DIR")]
    data: PathBuf => config.data = told.value,

    /// Logs that streams are spread over by their names, each in a directory of its own in --data (log-0 and so on), which may be on several disks; at most 64, and never changed [default: 1, in --data itself]
    #[arg(long, env = "ENCKE_LOGS", value_name = "N")]
    logs: usize => config.logs = told.count_up_to(LOGS_MAX)?,

    /// When an append is acknowledged and seen by subscribers, unless its stream or request says otherwise by Encke-Ack [default: synced]
    #[arg(long, env = "ENCKE_ACK", value_name = "LEVEL")]
    ack: Ack => config.ack = told.value,

    /// What was acknowledged before it was synced is synced at least this often: so much a power cut may take of it [default: 1s]
    #[arg(long, env = "ENCKE_SYNC_EVERY", value_name = "DURATION")]
    sync_every: SignedDuration => config.net.sync_every = told.duration()?,

    /// Reactor threads [default: one for each core]
    #[arg(long, env = "ENCKE_SHARDS", value_name = "N")]
    shards: usize => config.net.shards = told.count_up_to(SHARDS_MAX)?,

    /// Threads that read older records from files [default: 2]
    #[arg(long, env = "ENCKE_READERS", value_name = "N")]
    readers: usize => config.net.readers = told.count()?,

    /// Connections in all; more are answered 503 [default: 1000000, or what the limit on open files allows]
    #[arg(long, env = "ENCKE_CONNECTIONS_MAX", value_name = "N")]
    connections_max: usize => config.net.connections_max = told.count()?,

    /// Connections of one client address, or of one /64 of IPv6; more are answered 429. 0: no such limit [default: 10000]
    #[arg(long, env = "ENCKE_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    connections_per_address: usize => config.net.connections_per_address = told.value,

    /// Connections accepted per second, in all; more wait in the kernel's queue. 0: no such limit [default: 20000]
    #[arg(long, env = "ENCKE_ACCEPT_RATE", value_name = "PER_SECOND")]
    accept_rate: u64 => config.net.accept_rate = told.value,

    /// Requests per second of one client address; more are answered 429. 0: no such limit [default: 20000]
    #[arg(long, env = "ENCKE_REQUEST_RATE", value_name = "PER_SECOND")]
    request_rate: u64 => config.net.request_rate = told.value,

    /// Requests that one client address may make at once after a pause [default: 40000]
    #[arg(long, env = "ENCKE_REQUEST_BURST", value_name = "N")]
    request_burst: u64 => config.net.request_burst = told.count()?,

    /// Client addresses remembered for these limits [default: 1000000]
    #[arg(long, env = "ENCKE_ADDRESSES_MAX", value_name = "N")]
    addresses_max: usize => config.net.addresses_max = told.count()?,

    /// Networks whose clients are held to no limit of addresses, such as 10.0.0.0/8,::1, or none [default: loopback]
    #[arg(long, env = "ENCKE_EXEMPT", value_name = "NETWORKS")]
    exempt: String => config.net.exempt = told.networks()?,

    /// Proxies whose word about their clients counts, such as 10.0.0.0/8,::1, or none [default: none]
    #[arg(long, env = "ENCKE_TRUST", value_name = "NETWORKS")]
    trust: String => config.net.trust = told.networks()?,

    /// In which fields trusted proxies tell of the client: x-forwarded or forwarded; others are not listened to [default: x-forwarded]
    #[arg(long, env = "ENCKE_FORWARDED_BY", value_name = "FIELDS")]
    forwarded_by: ForwardedBy => config.net.forwarded_by = told.value.into(),

    /// Every connection begins with a header of the PROXY protocol (version 1 or 2), from a trusted proxy
    #[arg(long, env = "ENCKE_PROXY_PROTOCOL", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    proxy_protocol: bool => config.net.proxy_protocol = told.value,

    /// Streams that one subscriber may follow by /v1/events, at most 128 [default: 64]
    #[arg(long, env = "ENCKE_STREAMS_PER_SUBSCRIBER_MAX", value_name = "N")]
    streams_per_subscriber_max: usize => config.faces.events.streams_per_subscriber_max = told.count_up_to(STREAMS_MAX)?,

    /// Largest head of a request [default: 16KiB]
    #[arg(long, env = "ENCKE_HEAD_MAX", value_name = "SIZE")]
    head_max: ByteSize => config.net.head_bytes_max = told.size(1 << 10)?,

    /// Largest body of a request [default: 16MiB]
    #[arg(long, env = "ENCKE_BODY_MAX", value_name = "SIZE")]
    body_max: ByteSize => config.net.body_bytes_max = told.size(1 << 10)?,

    /// Longest time a request's head, or a pause in its body, may take [default: 10s]
    #[arg(long, env = "ENCKE_REQUEST_TIMEOUT", value_name = "DURATION")]
    request_timeout: SignedDuration => config.net.request_timeout = told.duration()?,

    /// Longest time a request's body may take in all [default: 5m]
    #[arg(long, env = "ENCKE_BODY_TIMEOUT", value_name = "DURATION")]
    body_timeout: SignedDuration => config.net.body_timeout = told.duration()?,

    /// Requests that one connection may make before it is closed behind an answer, at most 65535. 0: no such limit [default: 0]
    #[arg(long, env = "ENCKE_REQUESTS_PER_CONNECTION", value_name = "N")]
    requests_per_connection: u16 => config.net.requests_per_connection = told.value,

    /// How long a connection is kept without a request [default: 2m]
    #[arg(long, env = "ENCKE_IDLE_TIMEOUT", value_name = "DURATION")]
    idle_timeout: SignedDuration => config.net.idle_timeout = told.duration()?,

    /// How long a client may leave unread what was sent to it before it is closed [default: 1m]
    #[arg(long, env = "ENCKE_STALL_TIMEOUT", value_name = "DURATION")]
    stall_timeout: SignedDuration => config.net.stall_timeout = told.duration()?,

    /// How much more may be appended to a stream than a subscriber that is behind takes of it, before it is told and closed [default: 1GiB]
    #[arg(long, env = "ENCKE_LAG_MAX", value_name = "SIZE")]
    lag_max: ByteSize => config.net.lag_bytes_max = told.size(64 << 10)?,

    /// How long a subscriber may be behind before it is told and closed; also, how long a part of a long answer may take [default: 1h]
    #[arg(long, env = "ENCKE_LAG_AGE_MAX", value_name = "DURATION")]
    lag_age_max: SignedDuration => config.net.lag_age_max = told.duration()?,

    /// What parts of requests and answers that wait for their client may take in memory, in all [default: 512MiB]
    #[arg(long, env = "ENCKE_BUFFERS_MAX", value_name = "SIZE")]
    buffers_max: ByteSize => config.net.buffers_bytes_max = told.size(256 << 10)?,

    /// How long a subscriber hears nothing before a heartbeat is sent [default: 30s]
    #[arg(long, env = "ENCKE_HEARTBEAT", value_name = "DURATION")]
    heartbeat: SignedDuration => config.net.heartbeat = told.duration()?,

    /// How long a long poll waits for data [default: 20s]
    #[arg(long, env = "ENCKE_POLL_WAIT", value_name = "DURATION")]
    poll_wait: SignedDuration => config.faces.durable_streams.poll_wait_ms = told.duration()?.as_millis() as u64,

    /// About how much data one answer to a read holds [default: 256KiB]
    #[arg(long, env = "ENCKE_PAGE", value_name = "SIZE")]
    page: ByteSize => config.faces.durable_streams.page_bytes = told.size(1 << 10)?,

    /// How much of a long answer is read first; each part is twice as large as the one before, up to --page [default: 32KiB]
    #[arg(long, env = "ENCKE_FIRST_PAGE", value_name = "SIZE")]
    first_page: ByteSize => config.faces.durable_streams.first_page_bytes = told.size(1 << 10)?,

    /// Recent records that each shard keeps in memory [default: 64MiB]
    #[arg(long, env = "ENCKE_RING", value_name = "SIZE")]
    ring: ByteSize => config.net.ring_bytes = told.size(64 << 10)?,

    /// How far deliveries may be behind before publishers are slowed [default: 16MiB]
    #[arg(long, env = "ENCKE_ADMISSION", value_name = "SIZE")]
    admission: ByteSize => config.net.admission_bytes = told.size(16 << 10)?,

    /// How long a record's delivery may be behind before publishers are slowed [default: 100ms]
    #[arg(long, env = "ENCKE_ADMISSION_DELAY", value_name = "DURATION")]
    admission_delay: SignedDuration => config.net.admission_delay = told.duration()?,

    /// How long an acknowledgement waits at most while most of a crowd of subscribers are behind; 0s for never [default: 1s]
    #[arg(long, env = "ENCKE_ADMISSION_WAIT", value_name = "DURATION")]
    admission_wait: SignedDuration => config.net.admission_wait = told.duration_from(Duration::ZERO)?,

    /// How long a crowd that has just been sent something waits for more at most; 0s to send it at once [default: 20ms]
    #[arg(long, env = "ENCKE_REST_MAX", value_name = "DURATION")]
    rest_max: SignedDuration => config.net.rest_max = told.duration_from(Duration::ZERO)?,

    /// Commands that may wait to be committed; over it the answer is 503 [default: 65536]
    #[arg(long, env = "ENCKE_MAILBOX_ITEMS", value_name = "N")]
    mailbox_items: usize => config.net.mailbox_items_max = told.count()?,

    /// What the commands that wait to be committed may weigh [default: 64MiB]
    #[arg(long, env = "ENCKE_MAILBOX_SIZE", value_name = "SIZE")]
    mailbox_size: ByteSize => config.net.mailbox_bytes_max = told.size(64 << 10)?,

    /// Pools of workers that there may be [default: 1000]
    #[arg(long, env = "ENCKE_POOLS_MAX", value_name = "N")]
    pools_max: usize => config.net.pools.pools_max = told.count()?,

    /// Jobs that may wait in one pool, unless the pool says fewer [default: 1000000]
    #[arg(long, env = "ENCKE_POOL_WAITING_MAX", value_name = "N")]
    pool_waiting_max: u32 => config.net.pools.waiting_max = told.count()?,

    /// Largest job of a pool [default: 1MiB]
    #[arg(long, env = "ENCKE_POOL_JOB_MAX", value_name = "SIZE")]
    pool_job_max: ByteSize => config.net.pools.job_bytes_max = told.size(1 << 10)?,

    /// What waiting jobs may take in memory; others are read from the log when they are due [default: 64MiB]
    #[arg(long, env = "ENCKE_POOL_CACHE", value_name = "SIZE")]
    pool_cache: ByteSize => config.net.pools.cache_bytes = told.size(1)?,

    /// Jobs that are over and that a pool remembers [default: 10000]
    #[arg(long, env = "ENCKE_POOL_FINISHED_MAX", value_name = "N")]
    pool_finished_max: usize => config.net.pools.finished_max = told.count()?,

    /// Requests to pools that may wait to be looked at; over it the answer is 503 [default: 65536]
    #[arg(long, env = "ENCKE_POOL_MAILBOX_ITEMS", value_name = "N")]
    pool_mailbox_items: usize => config.net.pool_mailbox_items_max = told.count()?,

    /// What the requests to pools that wait to be looked at may weigh [default: 64MiB]
    #[arg(long, env = "ENCKE_POOL_MAILBOX_SIZE", value_name = "SIZE")]
    pool_mailbox_size: ByteSize => config.net.pool_mailbox_bytes_max = told.size(64 << 10)?,

    /// The longest time that a request to a pool may wait for a job or a result [default: 5m]
    #[arg(long, env = "ENCKE_POOL_WAIT_MAX", value_name = "DURATION")]
    pool_wait_max: SignedDuration => config.faces.pool.wait_s_max = told.duration_from(POOL_WAIT_MIN)?.as_secs(),

    /// The kernel's send buffer for each connection [default: 128KiB]
    #[arg(long, env = "ENCKE_SEND_BUFFER", value_name = "SIZE")]
    send_buffer: ByteSize => config.net.send_buffer_bytes = told.size(4 << 10)?,

    /// What the kernel takes for a connection beyond what it has sent of it [default: 16KiB]
    #[arg(long, env = "ENCKE_UNSENT_MAX", value_name = "SIZE")]
    unsent_max: ByteSize => config.net.unsent_bytes_max = told.size(4 << 10)?,

    /// How long a turn may take for new connections, long answers, catching up and deadlines before deliveries come again [default: 200us]
    #[arg(long, env = "ENCKE_ERRANDS_TIME", value_name = "DURATION")]
    errands_time: SignedDuration => config.net.errands_time = told.duration_from(ERRANDS_TIME_MIN)?,

    /// Size of a segment of the log [default: 64MiB]
    #[arg(long, env = "ENCKE_SEGMENT", value_name = "SIZE")]
    segment: ByteSize => config.log_options.segment_bytes = told.size(1 << 20)?,

    /// Sealed segments that may wait to go into history; then a write that needs another one waits [default: 3]
    #[arg(long, env = "ENCKE_WAITING_SEGMENTS_MAX", value_name = "N")]
    waiting_segments_max: usize => config.log_options.waiting_segments_max = told.count()?,

    /// Sealed segments and checkpoints that may wait for the background in all; then writes wait [default: 65536]
    #[arg(long, env = "ENCKE_BACKGROUND_JOBS_MAX", value_name = "N")]
    background_jobs_max: usize => config.log_options.background_jobs_max = told.count()?,

    /// How long records are kept [default: for ever]
    #[arg(long, env = "ENCKE_RETENTION_AGE", value_name = "DURATION")]
    retention_age: SignedDuration => config.retention().age_max = Some(told.duration_from(RETENTION_AGE_MIN)?),

    /// How much of history is kept, in all, oldest records going first [default: as much as there is]
    #[arg(long, env = "ENCKE_RETENTION_SIZE", value_name = "SIZE")]
    retention_size: ByteSize => config.retention().bytes_max = Some(told.size(1 << 20)?),

    /// How much of the log is kept in the order of all streams, beside history [default: 1GiB]
    #[arg(long, env = "ENCKE_ORDER_SIZE", value_name = "SIZE")]
    order_size: ByteSize => config.log_options.done_bytes_max = told.size(1 << 20)?,

    /// For how long the order of all streams is kept [default: as --order-size allows]
    #[arg(long, env = "ENCKE_ORDER_AGE", value_name = "DURATION")]
    order_age: SignedDuration => config.log_options.done_age_max = Some(told.duration()?),

    /// Cache of history's blocks [default: 16MiB]
    #[arg(long, env = "ENCKE_HISTORY_CACHE", value_name = "SIZE")]
    history_cache: ByteSize => config.log_options.history_cache_bytes = told.size(64 << 10)?,

    /// Producers that a stream remembers; over it the one idle longest is forgotten [default: 10000]
    #[arg(long, env = "ENCKE_PRODUCERS_MAX", value_name = "N")]
    producers_max: usize => config.limits.producers_max = told.count()?,

    /// Sources that may lie behind a fork; a fork of a fork has two [default: 1000]
    #[arg(long, env = "ENCKE_FORK_DEPTH_MAX", value_name = "N")]
    fork_depth_max: u32 => config.limits.fork_depth_max = told.count()?,

    /// A stream that nobody used for so long, or up to twice as long, leaves memory; it is loaded
    /// again when somebody names it [default: 1m]
    #[arg(long, env = "ENCKE_STREAMS_IDLE", value_name = "DURATION")]
    streams_idle: SignedDuration => config.net.eviction.idle = told.duration()?,

    /// Streams in memory, and names known to be free; over it those used longest ago leave sooner
    /// [default: 200000]
    #[arg(long, env = "ENCKE_STREAMS_HOT_MAX", value_name = "N")]
    streams_hot_max: usize => config.net.eviction.hot_max = told.count()?,

    /// What to log: error, warn, info, debug, trace, or a filter like info,encke_net=debug [default: info]
    #[arg(long, env = "ENCKE_LOG", value_name = "FILTER")]
    log: String => config.log = told.value,

    /// How to log: human or json, to standard error [default: human]
    #[arg(long, env = "ENCKE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: LogFormat => config.log_format = told.value,
}

/// More threads than any machine has cores.
const SHARDS_MAX: usize = 1024;

/// Requests count in seconds how long they wait.
const POOL_WAIT_MIN: Duration = Duration::from_secs(1);

/// Less than it takes to look at the clock is no time.
const ERRANDS_TIME_MIN: Duration = Duration::from_micros(1);

/// Records that would be gone before anybody could read them are of no use.
const RETENTION_AGE_MIN: Duration = Duration::from_secs(1);
