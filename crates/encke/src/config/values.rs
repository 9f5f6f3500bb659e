//! The values of all settings, and their defaults.

use std::net::SocketAddr;
use std::path::PathBuf;

use encke_protocol::{HostList, Origins};
use encke_stream::AckLevel;

use super::access::AccessTable;

/// The effective settings.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) open: bool,
    /// `None`: as the rules say where operators connect.
    pub(crate) admin_listen: Option<Option<SocketAddr>>,
    /// `None`: as the rules say which origins are allowed.
    pub(crate) cors_origins: Option<Origins>,
    pub(crate) hosts: HostList,
    /// The table `[access]`; `None` for no access control.
    pub(crate) access: Option<AccessTable>,
    pub(crate) data: PathBuf,
    pub(crate) logs: usize,
    pub(crate) ack: AckLevel,
    pub(crate) tls: encke_net::TlsSettings,
    pub(crate) net: encke_net::NetSettings,
    pub(crate) protocols: encke_protocol::ProtocolSettings,
    pub(crate) log_options: encke_log::Options,
    pub(crate) limits: encke_stream::Limits,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    /// `None` for standard output.
    pub(crate) access_log_file: Option<PathBuf>,
    /// `None` for standard error.
    pub(crate) audit_log_file: Option<PathBuf>,
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
            access: None,
            data: "encke-data".into(),
            logs: 1,
            ack: AckLevel::default(),
            tls: encke_net::TlsSettings::default(),
            net: encke_net::NetSettings::default(),
            protocols: encke_protocol::ProtocolSettings::default(),
            log_options: encke_log::Options::default(),
            limits: encke_stream::Limits::default(),
            log: "info".into(),
            log_format: LogFormat::default(),
            access_log_file: None,
            audit_log_file: None,
        }
    }
}
