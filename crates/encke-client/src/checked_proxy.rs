//! Connections through a proxy to addresses that the client has checked.

use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    ConnectProxyConnector, ConnectionDetails, Connector, Either, TcpConnector, Transport,
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
        let address = *found.first().ok_or(ureq::Error::HostNotFound)?;
        if address.ip().to_canonical().is_loopback() {
            // It would be the loopback of the proxy.
            let direct = TcpConnector::default().connect(&with(details, found), None::<In>)?;
            return Ok(direct.map(boxed));
        }
        let uri = Uri::builder()
            .scheme(details.uri.scheme_str().unwrap_or_default())
            .authority(address.to_string())
            .path_and_query("/")
            .build()?;
        let checked = ConnectionDetails {
            uri: &uri,
            resolver: &self.names,
            ..with(details, self.names.empty())
        };
        self.connector.connect(&checked, None)
    }
}

/// The details of a connection to these addresses.
fn with<'a>(
    details: &ConnectionDetails<'a>,
    addresses: ResolvedSocketAddrs,
) -> ConnectionDetails<'a> {
    ConnectionDetails {
        uri: details.uri,
        addrs: addresses,
        config: details.config,
        request_level: details.request_level,
        resolver: details.resolver,
        now: details.now,
        timeout: details.timeout,
        current_time: details.current_time.clone(),
        run_connector: details.run_connector.clone(),
        register_shutdown: details.register_shutdown.clone(),
    }
}

fn boxed<In, T: Transport + 'static>(transport: Either<In, T>) -> Either<In, Box<dyn Transport>> {
    match transport {
        Either::A(before) => Either::A(before),
        Either::B(own) => Either::B(Box::new(own)),
    }
}

impl std::fmt::Debug for CheckedProxyConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedProxyConnector")
            .finish_non_exhaustive()
    }
}
