//! Every setting, in one place: its name, its help text, its kind of value, and the field that it sets.
//!
//! To add a setting, write one entry here. The group decides where it is set: an entry of the group `Tuning` is a key of the table
//! `[tuning]`; any other entry is a flag, an `ENCKE_` variable and a key of the configuration file, all of the same name.
//! A reload of the configuration applies those that are marked `@reload`; the others need a restart. `Config::settle` checks rules between
//! settings.

use std::path::Path;
use std::time::Duration;

use encke_net::{AccessLogFormat, ForwardedBy, TlsClients};
use encke_protocol::events::STREAMS_MAX;
use encke_stream::{AckLevel, LOGS_MAX};
use toml::Value;

use super::kinds::{
    Address, COUNT, Choice, FilePath, FilePaths, Kind, LIMIT, LogFilter, Milliseconds, Optional,
    OrNone, PERIOD, Period, Seconds, Share, Size, Switch, Text, WebUrl, count_to,
};
use super::{Config, LogFormat};

/// One setting.
#[derive(Debug)]
pub(super) struct Setting {
    /// What it is about: the heading of a flag in the help.
    pub(super) group: &'static str,
    /// Its name in the configuration file and, with two dashes, as a flag.
    pub(super) name: &'static str,
    /// What the help shows in place of a flag's value.
    pub(super) value_name: &'static str,
    pub(super) help: &'static str,
    /// Whether a reload applies it.
    pub(super) is_reloaded: bool,
    /// What the help shows as default, for settings whose default is not a constant value.
    pub(super) default: &'static str,
    /// Reads the value and sets it. Paths in it begin in this folder.
    pub(super) set: fn(&mut Config, &str, &Path) -> anyhow::Result<()>,
    /// The effective value; nothing if it is not set.
    pub(super) get: fn(&Config) -> Option<Value>,
}

impl Setting {
    /// Whether it is a key of the table `[tuning]`, and no flag.
    pub(super) fn is_tuning(&self) -> bool {
        self.group == TUNING
    }

    /// The name by which messages refer to it.
    pub(super) fn label(&self) -> String {
        match self.is_tuning() {
            true => format!("tuning.{}", self.name),
            false => format!("--{}", self.name),
        }
    }

    /// The environment variable of a flag.
    pub(super) fn variable(&self) -> String {
        format!("ENCKE_{}", self.name.replace('-', "_").to_uppercase())
    }

    /// What it does, and how a change of it takes effect if that takes no restart.
    pub(super) fn help(&self) -> String {
        let help = self.help.trim();
        match self.is_reloaded {
            true => format!("{help} [reloaded]"),
            false => help.to_owned(),
        }
    }

    /// Its default, for people.
    pub(super) fn default_text(&self) -> String {
        match (self.default, (self.get)(&Config::default())) {
            ("", Some(Value::String(text))) => text,
            ("", Some(value)) => value.to_string(),
            (text, _) => text.to_owned(),
        }
    }
}

/// Makes [`SETTINGS`] of a list of entries: the help text, the name, the name of the value in the help (flags only), the kind of
/// value and the field of the configuration; last, where it is needed, the text of the default.
macro_rules! settings {
    (
        |$config:ident|
        $($group:ident {
            $($(#[doc = $help:literal])+
            $name:literal $($value_name:literal)? $(@$reload:ident)?: $kind:expr => $place:expr $(, $default:literal)?;)+
        })+
    ) => {
        /// All settings, by group.
        pub(super) const SETTINGS: &[Setting] = &[$($(Setting {
            group: stringify!($group),
            name: $name,
            value_name: concat!($($value_name)?),
            help: concat!($($help),+),
            is_reloaded: !str::is_empty(concat!($(stringify!($reload))?)),
            default: concat!($($default)?),
            set: |$config, text, folder| {
                $place = $kind.within($kind.parse(text)?, folder);
                Ok(())
            },
            get: |$config| $kind.show(&$place),
        },)+)+];
    };
}

settings! {
    |config|

    Listen {
        /// Address and port to listen on, such as [::1]:5238, or only a port of 127.0.0.1; port 0 lets the system choose
        "listen" "ADDR": Address => config.net.listen;
        /// Allow an address that other machines can reach without access control
        "open" "BOOL": Switch => config.open;
        /// Address for operators (/metrics, /v1/admin/), or none
        "admin-listen" "ADDR": Optional(OrNone(Address)) => config.admin_listen, "127.0.0.1:4438 if others may connect, otherwise none";
        /// Origins whose pages may use the server, such as https://app.example.com or https://*.example.com; or none, loopback, *
        "cors-origins" "ORIGINS" @reload: Optional(Text) => config.cors_origins, "loopback, and none with access control";
        /// Trusted proxies, whose headers name the client: networks such as 10.0.0.0/8,::1, or none
        "trust" "NETWORKS": Text => config.net.trust;
        /// Header fields in which trusted proxies name the client: x-forwarded or forwarded
        "forwarded-by" "FIELDS": Choice(FORWARDED_BY) => config.net.forwarded_by;
        /// Expect a PROXY protocol header (version 1 or 2) from a trusted proxy on every connection
        "proxy-protocol" "BOOL": Switch => config.net.proxy_protocol;
        /// Reactor threads
        "shards" "N": count_to(SHARDS_MAX) => config.net.shards, "one per core";
    }

    TLS {
        /// Certificate in PEM format, with its chain. Several, separated by commas, are chosen by the name that a client asks for
        "tls-cert" "FILES": FilePaths => config.tls.certificates, "none: connections are plain";
        /// The key of the certificate in PEM format, or those of all certificates in the same order
        "tls-key" "FILES": FilePaths => config.tls.keys, "none";
        /// Certificates of the authorities for client certificates, which clients must then present
        "tls-client-ca" "FILE": Optional(FilePath) => config.tls.client_ca, "none";
        /// Address and port of a plain listener that redirects to https, such as 0.0.0.0:80
        "redirect-http" "ADDR": Optional(Address) => config.server.redirect_http, "none";
    }

    Durability {
        /// Directory of the logs; created if missing
        "data" "DIR": FilePath => config.data;
        /// Logs that streams are distributed over, at most 63; fixed at the first start
        "logs" "N": count_to(LOGS_MAX) => config.logs;
        /// Durability at which appends are acknowledged and delivered, unless Encke-Ack names another: synced, written or accepted
        "ack" "LEVEL": Choice(LEVELS) => config.ack;
        /// Longest time until records below level synced are synced
        "sync-every" "DURATION": PERIOD => config.server.sync_every;
        /// Size of a segment of the log
        "segment" "SIZE": Size(1 << 20) => config.log_options.segment_bytes;
    }

    Fleet {
        /// Brokers (NATS with JetStream) of the fleet that this node belongs to, such as nats://10.0.0.1:4222,nats://10.0.0.2:4222
        "fleet" "URLS": Optional(Text) => config.fleet.brokers, "none: a server by itself";
        /// Name of this node, which no other node of the fleet has
        "node" "NAME": Optional(Text) => config.fleet.node, "none";
        /// Longest time that a request is tried again while no broker confirms it
        "fleet-retry" "DURATION": PERIOD => config.fleet.retry;
        /// Time without a broker, or behind the fleet, after which the node is not ready and closes its subscribers
        "fleet-silence-max" "DURATION": PERIOD => config.fleet.silence_max;
    }

    Limits {
        /// Connections in total; further ones get 503
        "connections-max" "N": COUNT => config.net.connections_max, "1000000, or fewer by the limit on open files";
        /// Connections per client address (IPv6: per /64); further ones get 429. 0: no limit
        "connections-per-address" "N" @reload: LIMIT => config.net.connections_per_address;
        /// Requests per second and client address; further ones get 429. 0: no limit
        "request-rate" "PER_SECOND" @reload: LIMIT => config.net.request_rate;
        /// Networks without limits per address, or none
        "exempt" "NETWORKS": Text => config.net.exempt;
        /// Largest request body
        "body-max" "SIZE": Size(1 << 10) => config.net.body_bytes_max;
        /// Memory for partly received requests, unsent output and patterns of subscriptions, in total
        "buffers-max" "SIZE": Size(256 << 10) => config.net.buffers_bytes_max;
        /// Memory for recent records, per shard
        "ring" "SIZE": Size(64 << 10) => config.net.ring_bytes;
    }

    Retention {
        /// Age at which records are removed
        "retention-age" "DURATION": Optional(Period(RETENTION_AGE_MIN)) => config.log_options.retention.age_max, "unlimited";
        /// Size of history above which the oldest records are removed
        "retention-size" "SIZE": Optional(Size(1 << 20)) => config.log_options.retention.bytes_max, "unlimited";
        /// Disk space for the global order: segments that are in history already
        "order-size" "SIZE": Size(1 << 20) => config.log_options.done_bytes_max;
    }

    Pools {
        /// Largest job
        "pool-job-max" "SIZE": Size(1 << 10) => config.server.pools.job_bytes_max;
    }

    Logging {
        /// Level (error, warn, info, debug, trace) or filter such as info,encke_net=debug
        "log" "FILTER" @reload: LogFilter => config.log;
        /// Format of log lines on standard error: human or json
        "log-format" "FORMAT": Choice(FORMATS) => config.log_format;
        /// Access log on standard output, a line for each request: off, json or combined
        "access-log" "FORMAT": Choice(ACCESS_LOGS) => config.net.access_log;
        /// OpenTelemetry collector that gets traces by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces
        "traces" "URL": Optional(WebUrl) => config.traces.url, "none: nothing is traced";
    }

    Tuning {
        /// How long requests in work may take when the server is upgraded, while others wait; then they are cut off
        "upgrade-drain": PERIOD => config.upgrade.drain;
        /// Time after a signal to stop in which everything is served as before, but `/readyz` is 503, so that load balancers choose other servers
        "stop-delay": Period(Duration::ZERO) => config.stop_delay;
        /// How long each step of an upgrade may take before the server goes on as before
        "upgrade-timeout": PERIOD => config.upgrade.timeout;
        /// HTTP proxy for requests of the server itself (keys, webhooks, traces), such as http://proxy.example:3128; servers on loopback are reached directly
        "http-proxy": Optional(Text) => config.client.proxy, "none";
        /// Share of requests that are traced, from 0 to 1, of those without a `traceparent`, which decides by its sampled flag
        "traces-ratio": Share => config.traces.ratio;
        /// File with header fields for the collector of traces, one `Name: value` per line
        "traces-headers": Optional(FilePath) => config.traces.headers, "none";
        /// Spans of traces that wait for the collector; further ones are dropped
        "traces-queue": COUNT => config.traces.spans_max;
        /// Name of this server in traces (`service.name`)
        "traces-service": Text => config.traces.service;
        /// Name of the fleet: several can use the same brokers
        "fleet-name": Text => config.fleet.name;
        /// Brokers that store the order of the fleet: 1, 3 or 5; fixed at the first start of its first node
        "fleet-replicas": Text => config.fleet.replicas;
        /// Time for which the brokers keep the order: a node that is away for less continues by itself; fixed at the first start of the first node
        "fleet-keep": PERIOD => config.fleet.keep;
        /// File of the credentials for the brokers
        "fleet-credentials": Optional(FilePath) => config.fleet.credentials, "none";
        /// Certificate authority of the brokers in PEM format
        "fleet-ca": Optional(FilePath) => config.fleet.ca, "that of the system";
        /// Number of pools
        "pools-max": COUNT => config.server.pools.pools_max;
        /// File of the audit log, instead of standard error; reopened on SIGHUP
        "audit-log-file": Optional(FilePath) => config.audit_log_file, "standard error";
        /// Hosts that requests may name without access control, beside localhost and loopback addresses; or none
        "hosts" @reload: Text => config.hosts;
        /// File of the access log, instead of standard output; reopened on SIGHUP
        "access-log-file": Optional(FilePath) => config.access_log_file, "standard output";
        /// Memory for access log entries that wait to be written; further ones are dropped
        "access-log-queue": Size(4 << 10) => config.net.access_log_bytes_max;
        /// Whether clients must present a certificate when tls-client-ca is set: required or optional
        "tls-clients": Choice(TLS_CLIENTS) => config.tls.clients;
        /// Time for which browsers use https only, once they have (`Strict-Transport-Security`); 0s makes them forget
        "hsts-max-age": Optional(Period(Duration::ZERO)) => config.net.hsts_max_age, "none: they are told nothing";
        /// Threads that make handshakes of TLS
        "handshake-threads": count_to(SHARDS_MAX) => config.net.handshake_threads, "one per four cores";
        /// Handshakes of TLS at a time; further connections wait in the kernel's queue
        "handshakes-max": COUNT => config.net.handshakes_max;
        /// Handshakes of TLS at a time per client address (IPv6: per /64), at most three quarters of handshakes-max; its further connections wait. 0: no limit
        "handshakes-per-address": LIMIT => config.net.handshakes_per_address;
        /// Longest time for a handshake of TLS; a tenth of it while others wait for its place
        "handshake-timeout": PERIOD => config.net.handshake_timeout;
        /// Connections accepted per second in total; further ones wait in the kernel's queue. 0: no limit
        "accept-rate": LIMIT => config.net.accept_rate;
        /// Requests that one client address may send at once after a pause
        "request-burst" @reload: COUNT => config.net.request_burst;
        /// Client addresses in the table of limits
        "addresses-max": COUNT => config.net.addresses_max;
        /// Largest request head
        "head-max": Size(1 << 10) => config.net.head_bytes_max;
        /// Longest time for a request head, and for a pause in a body
        "request-timeout": PERIOD => config.net.request_timeout;
        /// Longest time for a whole request body
        "body-timeout": PERIOD => config.net.body_timeout;
        /// Requests per connection, after which the connection is closed; at most 65535. 0: no limit
        "requests-per-connection": LIMIT => config.net.requests_per_connection;
        /// Streams that a client may have open at a time on an HTTP/2 connection; further ones are refused
        "http2-streams-max": COUNT => config.net.http2_streams_max;
        /// Time after which a connection without a request is closed
        "idle-timeout": PERIOD => config.net.idle_timeout;
        /// Time after which a client that does not read its output is closed
        "stall-timeout": PERIOD => config.net.stall_timeout;
        /// Growth of a stream, less what a lagging subscriber reads meanwhile, at which the subscriber is closed
        "lag-max": Size(64 << 10) => config.net.lag_bytes_max;
        /// Longest time that a subscriber may lag, and that a part of a long response may take
        "lag-age-max": PERIOD => config.net.lag_age_max;
        /// Responses compressed at a time; further ones are sent as they are. 0: no compression
        "compressions-max": LIMIT => config.net.compressions_max;
        /// Largest message of a WebSocket that a client may send compressed, inflated. 0: no compression
        "websocket-inflated-max": Size(0) => config.net.websocket_inflated_bytes_max;
        /// Time without output after which a subscriber gets a heartbeat
        "heartbeat": PERIOD => config.net.heartbeat;
        /// Streams per subscriber of /v1/events, at most 128
        "streams-per-subscriber-max": count_to(STREAMS_MAX) => config.protocols.events.streams_per_subscriber_max;
        /// Largest ephemeral message, at most 256K
        "ephemeral-bytes": Size(1) => config.protocols.ephemeral_bytes_max;
        /// Time that a long poll waits for data
        "poll-wait": Milliseconds => config.protocols.durable_streams.poll_wait_ms;
        /// Approximate size of a response to a read, and of the parts of a long response
        "page": Size(1 << 10) => config.protocols.durable_streams.page_bytes;
        /// Threads that read older records from files
        "readers": COUNT => config.server.readers;
        /// Delivery lag in bytes, per shard, at which publishers are slowed
        "admission": Size(16 << 10) => config.net.admission_bytes;
        /// Delivery lag in time at which publishers are slowed
        "admission-delay": PERIOD => config.net.admission_delay;
        /// Longest delay of an acknowledgement while most subscribers of its stream lag. 0s: no delay
        "admission-wait": Period(Duration::ZERO) => config.net.admission_wait;
        /// Longest delay of a round of sends behind one that took longer than a turn. 0s: no delay
        "rest-max": Period(Duration::ZERO) => config.net.rest_max;
        /// Longest time per turn of a shard for deferred work
        "deferred-time": Period(DEFERRED_TIME_MIN) => config.net.deferred_time;
        /// Memory for partly received requests and unsent output of one client, per shard. 0: no limit
        "buffers-per-client": Size(0) => config.net.buffers_per_client_max;
        /// The kernel's send buffer of a connection
        "send-buffer": Size(4 << 10) => config.net.send_buffer_bytes;
        /// Bytes that the kernel takes for a connection beyond what it has sent
        "unsent-max": Size(4 << 10) => config.net.unsent_bytes_max;
        /// Time for which the outcome of a health probe counts, at least 1s: `/readyz` makes no other probe meanwhile
        "health-every": Period(HEALTH_EVERY_MIN) => config.server.health.every;
        /// Longest time that a record may take through the log to a subscriber on each shard; after it `/readyz` says what stalls
        "health-wait-max": PERIOD => config.server.health.wait_max;
        /// Commands waiting to be committed, per log; further ones get 503
        "mailbox-items": COUNT => config.server.mailbox_items_max;
        /// Size of the commands waiting to be committed, per log
        "mailbox-size": Size(64 << 10) => config.server.mailbox_bytes_max;
        /// Sealed segments waiting to go into history, per log, at which writes wait
        "waiting-segments-max": COUNT => config.log_options.waiting_segments_max;
        /// Sealed segments and checkpoints waiting for background work, per log, at which writes wait
        "background-jobs-max": COUNT => config.log_options.background_jobs_max;
        /// Cache of history's blocks, per log
        "history-cache": Size(64 << 10) => config.log_options.history_cache_bytes;
        /// Age at which segments that are in history are removed from the global order
        "order-age": Optional(PERIOD) => config.log_options.done_age_max, "unlimited";
        /// Producers that a stream remembers; above it, the one idle longest is forgotten
        "producers-max": COUNT => config.limits.producers_max;
        /// Memory for the producers of streams, per log; above it, streams with producers leave memory sooner, and those with many take no further ones meanwhile
        "producer-memory": Size(64 << 10) => config.server.eviction.producer_bytes_max;
        /// Sources behind a fork; a fork of a fork has two
        "fork-depth-max": COUNT => config.limits.fork_depth_max;
        /// Time without use after which a stream leaves memory, at most twice as long
        "streams-idle": PERIOD => config.server.eviction.idle;
        /// Streams and free names in memory; above it, those idle longest leave sooner. A name counts once more for each 128 bytes
        "streams-hot-max": COUNT => config.server.eviction.hot_max;
        /// Jobs waiting in a pool, unless the pool allows fewer
        "pool-waiting-max": COUNT => config.server.pools.waiting_max;
        /// Memory for waiting jobs; others are read from the log when they are due
        "pool-cache": Size(1) => config.server.pools.cache_bytes;
        /// Finished jobs that a pool remembers
        "pool-finished-max": COUNT => config.server.pools.finished_max;
        /// Requests to pools waiting for the dispatcher; further ones get 503
        "pool-mailbox-items": COUNT => config.server.pool_mailbox_items_max;
        /// Size of the requests to pools waiting for the dispatcher
        "pool-mailbox-size": Size(64 << 10) => config.server.pool_mailbox_bytes_max;
        /// Longest time that a request may wait for a job or a result
        "pool-wait-max": Seconds => config.protocols.pool.wait_s_max;
        /// Subscriptions of workers to streams (__ds)
        "subscriptions-max": COUNT => config.server.subscriptions.limits.subscriptions_max;
        /// Streams that such a subscription follows. A name counts once for each 128 bytes begun
        "subscription-links-max": COUNT => config.server.subscriptions.limits.links_max;
        /// Streams that all of them together follow, a stream counted once for each
        "subscription-links-in-all-max": COUNT => config.server.subscriptions.limits.links_in_all_max;
        /// Calls of webhooks at a time. 0: no webhooks
        "webhooks-max": LIMIT => config.server.subscriptions.limits.deliveries_max;
        /// Calls of webhooks at a time to the same scheme, name and port
        "webhooks-per-receiver": COUNT => config.server.subscriptions.limits.deliveries_to_receiver_max;
        /// Longest time of a call of a webhook
        "webhook-timeout": PERIOD => config.server.subscriptions.limits.delivery_timeout;
        /// Networks whose addresses webhooks may have, without TLS too, although they are not public, such as 127.0.0.0/8; or none
        "webhook-networks": Text => config.webhook_networks;
        /// Where receivers of webhooks reach the server, such as https://push.example.com
        "public-url": Optional(WebUrl) => config.public_url, "as the creator of a subscription has reached it";
    }
}

/// The group of the table `[tuning]`.
const TUNING: &str = "Tuning";

const LEVELS: &[(&str, AckLevel)] = &[
    ("synced", AckLevel::Synced),
    ("written", AckLevel::Written),
    ("accepted", AckLevel::Accepted),
];

const FORWARDED_BY: &[(&str, ForwardedBy)] = &[
    ("x-forwarded", ForwardedBy::XForwarded),
    ("forwarded", ForwardedBy::Forwarded),
];

const TLS_CLIENTS: &[(&str, TlsClients)] = &[
    ("required", TlsClients::Required),
    ("optional", TlsClients::Optional),
];

const FORMATS: &[(&str, LogFormat)] = &[("human", LogFormat::Human), ("json", LogFormat::Json)];

const ACCESS_LOGS: &[(&str, Option<AccessLogFormat>)] = &[
    ("off", None),
    ("json", Some(AccessLogFormat::Json)),
    ("combined", Some(AccessLogFormat::Combined)),
];

/// More threads than any machine has cores.
const SHARDS_MAX: usize = 1024;

/// A shorter time could end before those who asked hear of the outcome.
const HEALTH_EVERY_MIN: Duration = Duration::from_secs(1);

/// Reading the clock takes longer than less than this.
const DEFERRED_TIME_MIN: Duration = Duration::from_micros(1);

/// Records with a shorter life could not be read.
const RETENTION_AGE_MIN: Duration = Duration::from_secs(1);
