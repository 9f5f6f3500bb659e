//! Connections through a proxy to addresses that the client has checked.

use ureq::http::Uri;
use ureq::unversioned::resolver::Resolver;
use ureq::unversioned::transport::{
    ConnectProxyConnector, ConnectionDetails, Connector, Either, Transport,
};

use crate::resolver::SystemResolver;

/// Names the checked address to the proxy instead of the host, which the proxy would look up again and perhaps find elsewhere.
#[derive(Default)]
pub(crate) struct CheckedProxyConnector {
    connector: ConnectProxyConnector,
    /// Look-ups of the proxy itself, which may have any address.
    names: SystemResolver,
}

impl<In: Transport> Connector<In> for CheckedProxyConnector {
    type Out = Either<In, Box<dyn Transport>>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let proxy = details.config.proxy();
        let is_proxied = proxy.is_some_and(|proxy| !proxy.is_no_proxy(details.uri));
        if chained.is_some() || !is_proxied {
            return Ok(chained.map(Either::A));
        }
        let found = details
            .resolver
            .resolve(details.uri, details.config, details.timeout)?;
        let address = found.first().ok_or(ureq::Error::HostNotFound)?;
        let uri = Uri::builder()
            .scheme(details.uri.scheme_str().unwrap_or_default())
            .authority(address.to_string())
            .path_and_query("/")
            .build()?;
        let checked = ConnectionDetails {
            uri: &uri,
            addrs: self.names.empty(),
            config: details.config,
            request_level: details.request_level,
            resolver: &self.names,
            now: details.now,
            timeout: details.timeout,
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        self.connector.connect(&checked, None)
    }
}

impl std::fmt::Debug for CheckedProxyConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedProxyConnector")
            .finish_non_exhaustive()
    }
}
