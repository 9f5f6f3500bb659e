//! Settings that are one of a few words.

use clap::ValueEnum;
use encke_stream::AckLevel;
use serde::{Deserialize, Serialize};

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
