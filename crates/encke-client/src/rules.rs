//! The rules of all requests, and the clients that keep them.

use std::sync::Arc;

use ureq::Agent;
use ureq::config::{Config, ConfigBuilder};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;
use ureq::unversioned::resolver::Resolver;
use ureq::unversioned::transport::{Connector, DefaultConnector, RustlsConnector, TcpConnector};

use crate::checked_proxy::CheckedProxyConnector;
use crate::http_proxy::HttpProxy;
use crate::resolver::SystemResolver;

/// The rules of all requests.
#[derive(Clone, Debug, Default)]
pub struct ClientRules {
    /// The proxy for all servers but those on loopback.
    pub proxy: Option<HttpProxy>,
    /// Whom to trust, and the cryptography of TLS; `None`: the roots of the system.
    pub tls: Option<TlsConfig>,
}

impl ClientRules {
    /// A configuration that keeps the rules, to which the caller adds its time limits and fields.
    pub fn config(&self) -> ConfigBuilder<AgentScope> {
        let proxy = self.proxy.as_ref().and_then(HttpProxy::proxy);
        #[expect(clippy::disallowed_methods, reason = "it is the one place that may")]
        Agent::config_builder()
            .tls_config(self.tls.clone().unwrap_or_else(system_tls))
            .proxy(proxy)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent("encke")
    }
}

/// A client with a configuration of [`ClientRules::config`].
#[expect(clippy::disallowed_methods, reason = "it is the one place that may")]
pub fn client(config: Config) -> Agent {
    Agent::with_parts(
        config,
        DefaultConnector::default(),
        SystemResolver::default(),
    )
}

/// A client that connects only to addresses that come out of this resolver, also through a proxy.
#[expect(clippy::disallowed_methods, reason = "it is the one place that may")]
pub fn checked_client(config: Config, resolver: impl Resolver) -> Agent {
    let connector =
        ().chain(CheckedProxyConnector::default())
            .chain(TcpConnector::default())
            .chain(RustlsConnector::default());
    Agent::with_parts(config, connector, resolver)
}

/// The root certificates of the system, with the cryptography of the server.
fn system_tls() -> TlsConfig {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some root certificates of the system can't be read");
    }
    let roots: Vec<_> = found
        .certs
        .iter()
        .map(|certificate| Certificate::from_der(certificate).to_owned())
        .collect();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .unversioned_rustls_crypto_provider(provider)
        .build()
}
