//! The values of all settings, and their defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use encke_fleet::{BrokerAccess, BrokerUrls, FleetName, FleetSettings, Replicas};
use encke_protocol::{HostList, Origins};
use encke_stream::AckLevel;

use super::access::AccessTable;
use super::presence::PresenceTable;
use super::pusher::PusherTable;
use crate::traces::TraceConfig;

/// The effective settings.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) open: bool,
    /// `None`: as the rules say where operators connect.
    pub(crate) admin_listen: Option<Option<SocketAddr>>,
    /// `None`: as the rules say which origins are allowed.
    pub(crate) cors_origins: Option<Origins>,
    pub(crate) hosts: HostList,
    /// Networks whose addresses webhooks may have although they are not public.
    pub(crate) webhook_networks: encke_net::Networks,
    /// Where others reach the server, without a slash at its end.
    pub(crate) public_url: Option<String>,
    /// The table `[access]`; `None` for no access control.
    pub(crate) access: Option<AccessTable>,
    /// The table `[presence]`.
    pub(crate) presence: Option<PresenceTable>,
    /// The table `[pusher]`.
    pub(crate) pusher: Option<PusherTable>,
    pub(crate) data: PathBuf,
    pub(crate) logs: usize,
    pub(crate) ack: AckLevel,
    pub(crate) tls: encke_net::TlsSettings,
    /// The rules of the requests that the server makes.
    pub(crate) client: encke_client::ClientRules,
    pub(crate) net: encke_net::NetSettings,
    pub(crate) server: encke_server::ServerSettings,
    pub(crate) protocols: encke_protocol::ProtocolSettings,
    pub(crate) log_options: encke_log::Options,
    pub(crate) limits: encke_stream::Limits,
    pub(crate) fleet: FleetConfig,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    /// `None` for standard output.
    pub(crate) access_log_file: Option<PathBuf>,
    /// `None` for standard error.
    pub(crate) audit_log_file: Option<PathBuf>,
    pub(crate) upgrade: UpgradeConfig,
    /// How long the server still serves after a signal to stop.
    pub(crate) stop_delay: Duration,
    pub(crate) traces: TraceConfig,
    pub(crate) lowered_defaults: Option<LoweredDefaults>,
}

/// The defaults that a limit on memory has lowered.
#[derive(Clone, Debug)]
pub(crate) struct LoweredDefaults {
    /// The limit, in bytes.
    pub(crate) memory_max: u64,
    /// The settings, such as `--ring 8MiB`.
    pub(crate) settings: Vec<String>,
}

/// How long the parts of an upgrade may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpgradeConfig {
    /// Requests in work.
    pub(crate) drain: Duration,
    /// Each step of the successor.
    pub(crate) timeout: Duration,
}

impl Default for UpgradeConfig {
    fn default() -> Self {
        UpgradeConfig {
            drain: Duration::from_millis(250),
            timeout: Duration::from_secs(30),
        }
    }
}

/// The settings of a node of a fleet.
#[derive(Clone, Debug)]
pub(crate) struct FleetConfig {
    /// `None` for a server by itself.
    pub(crate) brokers: Option<BrokerUrls>,
    pub(crate) node: Option<FleetName>,
    pub(crate) name: FleetName,
    pub(crate) replicas: Replicas,
    pub(crate) retry: Duration,
    pub(crate) silence_max: Duration,
    pub(crate) keep: Duration,
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
}

impl Default for FleetConfig {
    fn default() -> Self {
        FleetConfig {
            brokers: None,
            node: None,
            name: FleetName::default(),
            replicas: Replicas::default(),
            retry: Duration::from_secs(5),
            silence_max: Duration::from_secs(10),
            keep: Duration::from_secs(24 * 3600),
            credentials: None,
            ca: None,
        }
    }
}

impl FleetConfig {
    /// The settings of the node, whose logs have these options. `None` for a server by itself.
    pub(crate) fn settings(&self, log: &encke_log::Options) -> Option<FleetSettings> {
        let (brokers, node) = self.brokers.clone().zip(self.node.clone())?;
        Some(FleetSettings {
            access: BrokerAccess {
                brokers,
                credentials: self.credentials.clone(),
                ca: self.ca.clone(),
            },
            name: self.name.clone(),
            node,
            replicas: self.replicas,
            retry: self.retry,
            silence_max: self.silence_max,
            keep: self.keep,
            segment_bytes: log.segment_bytes,
            retention: log.retention.into(),
        })
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            open: false,
            admin_listen: None,
            cors_origins: None,
            hosts: HostList::default(),
            webhook_networks: encke_net::Networks::default(),
            public_url: None,
            access: None,
            presence: None,
            pusher: None,
            data: "encke-data".into(),
            logs: 1,
            ack: AckLevel::default(),
            tls: encke_net::TlsSettings::default(),
            client: encke_client::ClientRules::default(),
            net: encke_net::NetSettings::default(),
            server: encke_server::ServerSettings::default(),
            protocols: encke_protocol::ProtocolSettings::default(),
            log_options: encke_log::Options::default(),
            limits: encke_stream::Limits::default(),
            fleet: FleetConfig::default(),
            log: "info".into(),
            log_format: LogFormat::default(),
            access_log_file: None,
            audit_log_file: None,
            upgrade: UpgradeConfig::default(),
            stop_delay: Duration::ZERO,
            traces: TraceConfig::default(),
            lowered_defaults: None,
        }
    }
}
