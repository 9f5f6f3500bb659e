//! The configuration: the same names as flags, as ENCKE_ variables and in a TOML file.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use encke_log::Retention;
use encke_stream::AckLevel;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// What `encke serve` can be told. A flag beats a variable, a variable beats the file.
#[derive(Args, Debug, Default)]
pub(crate) struct ServeArgs {
    /// Read settings from this TOML file; its keys are the names of the flags
    #[arg(long, env = "ENCKE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Say what would be done with these settings, and do nothing
    #[arg(long)]
    pub(crate) check: bool,

    #[command(flatten)]
    given: Given,
}

/// Settings as they were given, each or not at all.
#[derive(Args, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Given {
    /// Address and port to listen on; port 0 lets the system choose [default: 127.0.0.1:4437]
    #[arg(long, env = "ENCKE_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,

    /// Allow listening on an address that others reach. There is no access control yet
    #[arg(long, env = "ENCKE_OPEN", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    open: Option<bool>,

    /// Directory of the log; made if it is not there [default: ./encke-data]
    #[arg(long, env = "ENCKE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// When an append is acknowledged and seen by subscribers, unless its stream or request says otherwise by Encke-Ack [default: synced]
    #[arg(long, env = "ENCKE_ACK", value_name = "LEVEL")]
    ack: Option<Ack>,

    /// What was acknowledged before it was synced is synced at least this often: so much a power cut may take of it [default: 1s]
    #[arg(long, env = "ENCKE_SYNC_EVERY", value_name = "DURATION")]
    sync_every: Option<SignedDuration>,

    /// Reactor threads [default: one for each core]
    #[arg(long, env = "ENCKE_SHARDS", value_name = "N")]
    shards: Option<usize>,

    /// Threads that read older records from files [default: 2]
    #[arg(long, env = "ENCKE_READERS", value_name = "N")]
    readers: Option<usize>,

    /// Connections in all; more are answered 503 [default: 1000000, or what the limit on open files allows]
    #[arg(long, env = "ENCKE_CONNECTIONS_MAX", value_name = "N")]
    connections_max: Option<usize>,

    /// Connections of one client address, or of one /64 of IPv6; more are answered 429. 0: no such limit [default: 10000]
    #[arg(long, env = "ENCKE_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    connections_per_address: Option<usize>,

    /// Connections accepted per second, in all; more wait in the kernel's queue. 0: no such limit [default: 20000]
    #[arg(long, env = "ENCKE_ACCEPT_RATE", value_name = "PER_SECOND")]
    accept_rate: Option<u64>,

    /// Requests per second of one client address; more are answered 429. 0: no such limit [default: 20000]
    #[arg(long, env = "ENCKE_REQUEST_RATE", value_name = "PER_SECOND")]
    request_rate: Option<u64>,

    /// Requests that one client address may make at once after a pause [default: 40000]
    #[arg(long, env = "ENCKE_REQUEST_BURST", value_name = "N")]
    request_burst: Option<u64>,

    /// Client addresses remembered for these limits [default: 1000000]
    #[arg(long, env = "ENCKE_ADDRESSES_MAX", value_name = "N")]
    addresses_max: Option<usize>,

    /// Networks whose clients are held to no limit of addresses, such as 10.0.0.0/8,::1, or none [default: loopback]
    #[arg(long, env = "ENCKE_EXEMPT", value_name = "NETWORKS")]
    exempt: Option<String>,

    /// Proxies whose word about their clients counts, such as 10.0.0.0/8,::1, or none [default: none]
    #[arg(long, env = "ENCKE_TRUST", value_name = "NETWORKS")]
    trust: Option<String>,

    /// In which fields trusted proxies tell of the client: x-forwarded or forwarded; others are not listened to [default: x-forwarded]
    #[arg(long, env = "ENCKE_FORWARDED_BY", value_name = "FIELDS")]
    forwarded_by: Option<ForwardedBy>,

    /// Every connection begins with a header of the PROXY protocol (version 1 or 2), from a trusted proxy
    #[arg(long, env = "ENCKE_PROXY_PROTOCOL", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    proxy_protocol: Option<bool>,

    /// Streams that one subscriber may follow by /v1/events, at most 128 [default: 64]
    #[arg(long, env = "ENCKE_STREAMS_PER_SUBSCRIBER_MAX", value_name = "N")]
    streams_per_subscriber_max: Option<usize>,

    /// Largest head of a request [default: 16KiB]
    #[arg(long, env = "ENCKE_HEAD_MAX", value_name = "SIZE")]
    head_max: Option<ByteSize>,

    /// Largest body of a request [default: 16MiB]
    #[arg(long, env = "ENCKE_BODY_MAX", value_name = "SIZE")]
    body_max: Option<ByteSize>,

    /// Longest time a request's head, or a pause in its body, may take [default: 10s]
    #[arg(long, env = "ENCKE_REQUEST_TIMEOUT", value_name = "DURATION")]
    request_timeout: Option<SignedDuration>,

    /// Longest time a request's body may take in all [default: 5m]
    #[arg(long, env = "ENCKE_BODY_TIMEOUT", value_name = "DURATION")]
    body_timeout: Option<SignedDuration>,

    /// Requests that one connection may make before it is closed behind an answer, at most 65535. 0: no such limit [default: 0]
    #[arg(long, env = "ENCKE_REQUESTS_PER_CONNECTION", value_name = "N")]
    requests_per_connection: Option<u16>,

    /// How long a connection is kept without a request [default: 2m]
    #[arg(long, env = "ENCKE_IDLE_TIMEOUT", value_name = "DURATION")]
    idle_timeout: Option<SignedDuration>,

    /// How long a client may leave unread what was sent to it before it is closed [default: 1m]
    #[arg(long, env = "ENCKE_STALL_TIMEOUT", value_name = "DURATION")]
    stall_timeout: Option<SignedDuration>,

    /// How much more may be appended to a stream than a subscriber that is behind takes of it, before it is told and closed [default: 1GiB]
    #[arg(long, env = "ENCKE_LAG_MAX", value_name = "SIZE")]
    lag_max: Option<ByteSize>,

    /// How long a subscriber may be behind before it is told and closed; also, how long a part of a long answer may take [default: 1h]
    #[arg(long, env = "ENCKE_LAG_AGE_MAX", value_name = "DURATION")]
    lag_age_max: Option<SignedDuration>,

    /// What parts of requests and answers that wait for their client may take in memory, in all [default: 512MiB]
    #[arg(long, env = "ENCKE_BUFFERS_MAX", value_name = "SIZE")]
    buffers_max: Option<ByteSize>,

    /// How long a subscriber hears nothing before a heartbeat is sent [default: 30s]
    #[arg(long, env = "ENCKE_HEARTBEAT", value_name = "DURATION")]
    heartbeat: Option<SignedDuration>,

    /// How long a long poll waits for data [default: 20s]
    #[arg(long, env = "ENCKE_POLL_WAIT", value_name = "DURATION")]
    poll_wait: Option<SignedDuration>,

    /// About how much data one answer to a read holds [default: 256KiB]
    #[arg(long, env = "ENCKE_PAGE", value_name = "SIZE")]
    page: Option<ByteSize>,

    /// Recent records that each shard keeps in memory [default: 64MiB]
    #[arg(long, env = "ENCKE_RING", value_name = "SIZE")]
    ring: Option<ByteSize>,

    /// How far deliveries may be behind before publishers are slowed [default: 16MiB]
    #[arg(long, env = "ENCKE_ADMISSION", value_name = "SIZE")]
    admission: Option<ByteSize>,

    /// How long a record's delivery may be behind before publishers are slowed [default: 100ms]
    #[arg(long, env = "ENCKE_ADMISSION_DELAY", value_name = "DURATION")]
    admission_delay: Option<SignedDuration>,

    /// Commands that may wait to be committed; over it the answer is 503 [default: 65536]
    #[arg(long, env = "ENCKE_MAILBOX_ITEMS", value_name = "N")]
    mailbox_items: Option<usize>,

    /// What the commands that wait to be committed may weigh [default: 64MiB]
    #[arg(long, env = "ENCKE_MAILBOX_SIZE", value_name = "SIZE")]
    mailbox_size: Option<ByteSize>,

    /// Pools of workers that there may be [default: 1000]
    #[arg(long, env = "ENCKE_POOLS_MAX", value_name = "N")]
    pools_max: Option<usize>,

    /// Jobs that may wait in one pool, unless the pool says fewer [default: 1000000]
    #[arg(long, env = "ENCKE_POOL_WAITING_MAX", value_name = "N")]
    pool_waiting_max: Option<u32>,

    /// Largest job of a pool [default: 1MiB]
    #[arg(long, env = "ENCKE_POOL_JOB_MAX", value_name = "SIZE")]
    pool_job_max: Option<ByteSize>,

    /// What waiting jobs may take in memory; others are read from the log when they are due [default: 64MiB]
    #[arg(long, env = "ENCKE_POOL_CACHE", value_name = "SIZE")]
    pool_cache: Option<ByteSize>,

    /// Jobs that are over and that a pool remembers [default: 10000]
    #[arg(long, env = "ENCKE_POOL_FINISHED_MAX", value_name = "N")]
    pool_finished_max: Option<usize>,

    /// Requests to pools that may wait to be looked at; over it the answer is 503 [default: 65536]
    #[arg(long, env = "ENCKE_POOL_MAILBOX_ITEMS", value_name = "N")]
    pool_mailbox_items: Option<usize>,

    /// What the requests to pools that wait to be looked at may weigh [default: 64MiB]
    #[arg(long, env = "ENCKE_POOL_MAILBOX_SIZE", value_name = "SIZE")]
    pool_mailbox_size: Option<ByteSize>,

    /// The longest time that a request to a pool may wait for a job or a result [default: 5m]
    #[arg(long, env = "ENCKE_POOL_WAIT_MAX", value_name = "DURATION")]
    pool_wait_max: Option<SignedDuration>,

    /// The kernel's send buffer for each connection [default: 128KiB]
    #[arg(long, env = "ENCKE_SEND_BUFFER", value_name = "SIZE")]
    send_buffer: Option<ByteSize>,

    /// Size of a segment of the log [default: 64MiB]
    #[arg(long, env = "ENCKE_SEGMENT", value_name = "SIZE")]
    segment: Option<ByteSize>,

    /// How long records are kept [default: for ever]
    #[arg(long, env = "ENCKE_RETENTION_AGE", value_name = "DURATION")]
    retention_age: Option<SignedDuration>,

    /// How much of history is kept, in all, oldest records going first [default: as much as there is]
    #[arg(long, env = "ENCKE_RETENTION_SIZE", value_name = "SIZE")]
    retention_size: Option<ByteSize>,

    /// How much of the log is kept in the order of all streams, beside history [default: 1GiB]
    #[arg(long, env = "ENCKE_ORDER_SIZE", value_name = "SIZE")]
    order_size: Option<ByteSize>,

    /// For how long the order of all streams is kept [default: as --order-size allows]
    #[arg(long, env = "ENCKE_ORDER_AGE", value_name = "DURATION")]
    order_age: Option<SignedDuration>,

    /// Cache of history's blocks [default: 16MiB]
    #[arg(long, env = "ENCKE_HISTORY_CACHE", value_name = "SIZE")]
    history_cache: Option<ByteSize>,

    /// Producers that a stream remembers; over it the one idle longest is forgotten [default: 10000]
    #[arg(long, env = "ENCKE_PRODUCERS_MAX", value_name = "N")]
    producers_max: Option<usize>,

    /// A stream that nobody used for so long, or up to twice as long, leaves memory; it is loaded
    /// again when somebody names it [default: 1m]
    #[arg(long, env = "ENCKE_STREAMS_IDLE", value_name = "DURATION")]
    streams_idle: Option<SignedDuration>,

    /// Streams in memory, and names known to be free; over it those used longest ago leave sooner
    /// [default: 200000]
    #[arg(long, env = "ENCKE_STREAMS_HOT_MAX", value_name = "N")]
    streams_hot_max: Option<usize>,

    /// What to log: error, warn, info, debug, trace, or a filter like info,encke_net=debug [default: info]
    #[arg(long, env = "ENCKE_LOG", value_name = "FILTER")]
    log: Option<String>,

    /// How to log: human or json, to standard error [default: human]
    #[arg(long, env = "ENCKE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

/// Acknowledgement levels as settings name them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ack {
    /// When it is on the disk: nothing short of the disk's loss takes it
    #[default]
    Synced,
    /// When it is in the file: a crash of the process takes nothing, a power cut may take the last second
    Written,
    /// When it is ordered, in memory: a crash of the process may take what was not written yet
    Accepted,
}

impl From<Ack> for AckLevel {
    fn from(ack: Ack) -> Self {
        match ack {
            Ack::Synced => AckLevel::Synced,
            Ack::Written => AckLevel::Written,
            Ack::Accepted => AckLevel::Accepted,
        }
    }
}

/// The fields of requests in which trusted proxies tell of the client.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ForwardedBy {
    /// X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host
    XForwarded,
    /// Forwarded (RFC 7239)
    Forwarded,
}

impl From<ForwardedBy> for encke_net::ForwardedBy {
    fn from(by: ForwardedBy) -> Self {
        match by {
            ForwardedBy::XForwarded => encke_net::ForwardedBy::XForwarded,
            ForwardedBy::Forwarded => encke_net::ForwardedBy::Forwarded,
        }
    }
}

/// How to log.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Human,
    /// One JSON object a line
    Json,
}

/// Settings that hold: defaults filled in, limits of the system applied by whoever starts.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) open: bool,
    pub(crate) data: PathBuf,
    pub(crate) ack: Ack,
    pub(crate) net: encke_net::Settings,
    pub(crate) faces: encke_face::Settings,
    pub(crate) log_options: encke_log::Options,
    pub(crate) limits: encke_stream::Limits,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

impl ServeArgs {
    /// The settings that hold.
    pub(crate) fn resolve(&self) -> anyhow::Result<Config> {
        let file = match &self.config {
            None => Given::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| {
                    format!("the configuration {} can't be read", path.display())
                })?;
                toml::from_str(&text)
                    .with_context(|| format!("the configuration {} is wrong", path.display()))?
            }
        };
        Config::new(&self.given, &file)
    }
}

impl Config {
    fn new(given: &Given, file: &Given) -> anyhow::Result<Self> {
        // The first that is there holds.
        macro_rules! setting {
            ($name:ident) => {
                given.$name.clone().or_else(|| file.$name.clone())
            };
        }
        let mut net = encke_net::Settings::default();
        let mut faces = encke_face::Settings::default();
        let mut log_options = encke_log::Options::default();
        let mut limits = encke_stream::Limits::default();
        macro_rules! count {
            ($field:expr, $name:ident) => {
                if let Some(value) = setting!($name) {
                    anyhow::ensure!(value > 0, "{} must be at least 1", flag(stringify!($name)));
                    $field = value;
                }
            };
        }
        // 0 stands for no limit.
        macro_rules! limit {
            ($field:expr, $name:ident) => {
                if let Some(value) = setting!($name) {
                    $field = value;
                }
            };
        }
        macro_rules! networks {
            ($field:expr, $name:ident) => {
                if let Some(value) = setting!($name) {
                    $field = value
                        .parse()
                        .with_context(|| format!("{} is wrong", flag(stringify!($name))))?;
                }
            };
        }
        macro_rules! size {
            ($field:expr, $name:ident, $least:expr) => {
                if let Some(value) = setting!($name) {
                    let value = value.as_u64();
                    anyhow::ensure!(
                        value >= $least,
                        "{} must be at least {}",
                        flag(stringify!($name)),
                        ByteSize($least)
                    );
                    $field = value.try_into()?;
                }
            };
        }
        macro_rules! duration {
            ($field:expr, $name:ident) => {
                if let Some(value) = setting!($name) {
                    $field = Duration::try_from(value)
                        .ok()
                        .filter(|value| *value >= Duration::from_millis(1))
                        .with_context(|| {
                            format!("{} must be at least 1ms", flag(stringify!($name)))
                        })?;
                }
            };
        }
        if let Some(listen) = setting!(listen) {
            net.listen = listen;
        }
        count!(net.shards, shards);
        anyhow::ensure!(
            net.shards <= SHARDS_MAX,
            "--shards must be at most {SHARDS_MAX}"
        );
        count!(net.readers, readers);
        count!(net.connections_max, connections_max);
        count!(net.request_burst, request_burst);
        count!(net.addresses_max, addresses_max);
        limit!(net.connections_per_address, connections_per_address);
        limit!(net.accept_rate, accept_rate);
        limit!(net.requests_per_connection, requests_per_connection);
        limit!(net.request_rate, request_rate);
        networks!(net.exempt, exempt);
        networks!(net.trust, trust);
        if let Some(by) = setting!(forwarded_by) {
            net.forwarded_by = by.into();
        }
        net.proxy_protocol = setting!(proxy_protocol).unwrap_or(false);
        anyhow::ensure!(
            !net.proxy_protocol || !net.trust.is_empty(),
            "--proxy-protocol needs --trust: the proxies whose headers count"
        );
        count!(net.mailbox_items_max, mailbox_items);
        count!(limits.producers_max, producers_max);
        count!(net.keep.hot_max, streams_hot_max);
        count!(
            faces.events.streams_per_subscriber_max,
            streams_per_subscriber_max
        );
        anyhow::ensure!(
            faces.events.streams_per_subscriber_max <= encke_face::events::STREAMS_MAX,
            "--streams-per-subscriber-max must be at most {}",
            encke_face::events::STREAMS_MAX
        );
        count!(net.pools.pools_max, pools_max);
        count!(net.pools.waiting_max, pool_waiting_max);
        count!(net.pools.finished_max, pool_finished_max);
        count!(net.pool_mailbox_items_max, pool_mailbox_items);
        size!(net.pools.job_bytes_max, pool_job_max, 1 << 10);
        size!(net.pools.cache_bytes, pool_cache, 1);
        size!(net.pool_mailbox_bytes_max, pool_mailbox_size, 64 << 10);
        size!(net.head_bytes_max, head_max, 1 << 10);
        size!(net.body_bytes_max, body_max, 1 << 10);
        size!(net.ring_bytes, ring, 64 << 10);
        size!(net.buffers_bytes_max, buffers_max, 256 << 10);
        size!(net.lag_bytes_max, lag_max, 64 << 10);
        size!(net.admission_bytes, admission, 16 << 10);
        size!(net.mailbox_bytes_max, mailbox_size, 64 << 10);
        size!(net.send_buffer_bytes, send_buffer, 4 << 10);
        size!(faces.durable_streams.page_bytes, page, 1 << 10);
        size!(log_options.segment_bytes, segment, 1 << 20);
        size!(log_options.done_bytes_max, order_size, 1 << 20);
        size!(log_options.history_cache_bytes, history_cache, 1 << 20);
        duration!(net.request_timeout, request_timeout);
        duration!(net.idle_timeout, idle_timeout);
        duration!(net.stall_timeout, stall_timeout);
        duration!(net.body_timeout, body_timeout);
        duration!(net.lag_age_max, lag_age_max);
        duration!(net.heartbeat, heartbeat);
        duration!(net.admission_delay, admission_delay);
        duration!(net.sync_every, sync_every);
        duration!(net.keep.idle, streams_idle);
        let mut order_age = Duration::ZERO;
        duration!(order_age, order_age);
        log_options.done_age_max = Some(order_age).filter(|age| !age.is_zero());
        let (mut age, mut bytes) = (Duration::ZERO, 0_u64);
        duration!(age, retention_age);
        anyhow::ensure!(
            age.is_zero() || age >= RETENTION_AGE_MIN,
            "--retention-age must be at least 1s"
        );
        size!(bytes, retention_size, 1 << 20);
        // Every stream is in class 0.
        log_options.retention = vec![Retention {
            class: 0,
            age_max: Some(age).filter(|age| !age.is_zero()),
            bytes_max: Some(bytes).filter(|bytes| *bytes > 0),
        }];
        let mut poll_wait = Duration::from_millis(faces.durable_streams.poll_wait_ms);
        duration!(poll_wait, poll_wait);
        faces.durable_streams.poll_wait_ms = poll_wait.as_millis() as u64;
        anyhow::ensure!(
            (net.body_bytes_max as u64) < log_options.segment_bytes / 2,
            "--body-max must be less than half of --segment, because a record lies within one segment"
        );
        let body_bytes_max = u32::try_from(net.body_bytes_max).unwrap_or(u32::MAX);
        match setting!(pool_job_max) {
            None => net.pools.job_bytes_max = net.pools.job_bytes_max.min(body_bytes_max),
            Some(_) => anyhow::ensure!(
                net.pools.job_bytes_max <= body_bytes_max,
                "--pool-job-max must not be more than --body-max"
            ),
        }
        anyhow::ensure!(
            net.pool_mailbox_bytes_max >= 2 * net.body_bytes_max,
            "--pool-mailbox-size must be at least twice --body-max"
        );
        anyhow::ensure!(
            net.mailbox_bytes_max >= 2 * net.body_bytes_max,
            "--mailbox-size must be at least twice --body-max"
        );
        let mut pool_wait = Duration::from_secs(faces.pool.wait_s_max);
        duration!(pool_wait, pool_wait_max);
        anyhow::ensure!(
            pool_wait >= Duration::from_secs(1),
            "--pool-wait-max must be at least 1s"
        );
        faces.pool.wait_s_max = pool_wait.as_secs();
        net.pools.wait_ms_max = faces.pool.wait_s_max * 1_000;
        // What a pool writes at once must have room on its way to the log.
        let pools = &mut net.pools;
        pools.record_bytes = pools.record_bytes.min(net.mailbox_bytes_max / 4);
        pools.forgets = log_options.retention.iter().any(Retention::is_limited);
        let open = setting!(open).unwrap_or(false);
        anyhow::ensure!(
            open || net.listen.ip().is_loopback(),
            "--listen {} can be reached by others, and there is no access control yet: add --open if \
             that is meant",
            net.listen
        );
        Ok(Config {
            open,
            data: setting!(data).unwrap_or_else(|| "encke-data".into()),
            ack: setting!(ack).unwrap_or_default(),
            net,
            faces,
            log_options,
            limits,
            log: setting!(log).unwrap_or_else(|| LOG_FILTER.into()),
            log_format: setting!(log_format).unwrap_or_default(),
        })
    }
}

/// The flag of a field.
fn flag(field: &str) -> String {
    format!("--{}", field.replace('_', "-"))
}

/// History's own messages are for those who look for them.
const LOG_FILTER: &str = "info,fjall=warn,lsm_tree=warn";

/// Records that would be gone before anybody could read them are of no use.
const RETENTION_AGE_MIN: Duration = Duration::from_secs(1);

/// More threads than any machine has cores.
const SHARDS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn given(toml: &str) -> Given {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn the_file_gives_way() {
        let file = given("listen = '127.0.0.1:1'\nshards = 3\nring = '1MiB'\nheartbeat = '5s'");
        let flags = given("listen = '127.0.0.1:2'");
        let config = Config::new(&flags, &file).unwrap();
        assert_eq!(config.net.listen.port(), 2);
        assert_eq!(config.net.shards, 3);
        assert_eq!(config.net.ring_bytes, 1 << 20);
        assert_eq!(config.net.heartbeat, Duration::from_secs(5));
    }

    #[test]
    fn unknown_keys_are_errors() {
        let error = toml::from_str::<Given>("lisen = '127.0.0.1:1'").unwrap_err();
        assert!(error.to_string().contains("lisen"), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (toml, word) in [
            ("shards = 0", "--shards"),
            ("shards = 5000", "--shards"),
            (
                "streams-per-subscriber-max = 129",
                "--streams-per-subscriber-max",
            ),
            ("head-max = '1B'", "--head-max"),
            ("heartbeat = '-5s'", "--heartbeat"),
            ("streams-idle = '0s'", "--streams-idle"),
            ("streams-hot-max = 0", "--streams-hot-max"),
            ("body-max = '32MiB'", "--body-max"),
            ("exempt = '10.0.0.0/40'", "--exempt"),
            ("trust = '10.0.0.0/8, x'", "--trust"),
            ("proxy-protocol = true", "--trust"),
            ("request-burst = 0", "--request-burst"),
            ("listen = '0.0.0.0:1'", "--open"),
            ("retention-age = '10ms'", "--retention-age"),
            ("retention-size = '10kB'", "--retention-size"),
            ("history-cache = '10kB'", "--history-cache"),
            ("order-age = '-1s'", "--order-age"),
        ] {
            let error = Config::new(&given(toml), &Given::default()).unwrap_err();
            let shown = format!("{error:#}");
            assert!(shown.contains(word), "{toml}: {shown}");
        }
        let open = given("listen = '0.0.0.0:1'\nopen = true");
        assert!(Config::new(&open, &Given::default()).is_ok());
    }
}
