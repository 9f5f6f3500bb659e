//! The rules that requests pass before they reach a protocol, as they follow from the settings.

use std::sync::Arc;

use encke_access::Access;
use encke_protocol::{Gate, Hosts, Origins, Policy};

use super::Config;

impl Config {
    /// The rules that requests pass before they reach a protocol.
    pub(crate) fn gate(&self, access: Option<Arc<Access>>) -> Gate {
        Gate {
            origins: match (&self.cors_origins, &access) {
                (Some(origins), _) => origins.clone(),
                (None, None) => Origins::Loopback,
                (None, Some(_)) => Origins::None,
            },
            hosts: match &access {
                Some(_) if self.hosts.is_empty() => Hosts::Any,
                None if self.open => Hosts::InternalAnd(self.hosts.clone()),
                _ => Hosts::LoopbackAnd(self.hosts.clone()),
            },
            operator_hosts: Hosts::InternalAnd(self.hosts.clone()),
            operators_are_remote: self
                .net
                .operators_listen
                .is_some_and(|address| !address.ip().is_loopback()),
            access: match access {
                Some(access) => Policy::Controlled(access),
                None if self.open => Policy::Open,
                None => Policy::Local,
            },
        }
    }
}
