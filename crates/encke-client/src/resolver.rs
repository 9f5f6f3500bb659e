//! Look-ups of names for clients. Those of the library itself panic when the system refuses a thread.

use encke_threads::{ResolveNames, SystemNames};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// The look-ups of the system.
#[derive(Debug, Default)]
pub(crate) struct SystemResolver(SystemNames);

impl Resolver for SystemResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(&name_of(uri)?, *timeout.after);
        let found = found.map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
            _ => error.into(),
        })?;
        let mut addresses = self.empty();
        let family = config.ip_family();
        let wanted = family.keep_wanted(found.into_iter());
        for address in wanted.take(ADDRESSES_MAX) {
            addresses.push(address);
        }
        match addresses.is_empty() {
            true => Err(ureq::Error::HostNotFound),
            false => Ok(addresses),
        }
    }
}

/// The name and the port of a URL, such as `push.example:443`, as [`ResolveNames`] takes them.
///
/// # Errors
/// The URL has no host.
pub fn name_of(uri: &Uri) -> Result<String, ureq::Error> {
    let parts = uri.scheme().zip(uri.authority());
    parts
        .and_then(|(scheme, authority)| DefaultResolver::host_and_port(scheme, authority))
        .ok_or(ureq::Error::HostNotFound)
}

/// Addresses of a name that are tried, at most: the type of the library has room for as many.
const ADDRESSES_MAX: usize = 16;
