//! Look-ups of the names of webhooks: only allowed addresses come out, and exactly these are connected to.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use encke_client::name_of;
use encke_threads::ResolveNames;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::addresses::AllowedAddresses;

/// Looks up the names of URLs, and lets only allowed addresses through.
#[derive(Debug)]
pub(crate) struct CheckedResolver {
    pub(crate) names: Arc<dyn ResolveNames>,
    pub(crate) allowed: AllowedAddresses,
}

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        _: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let timeout = (*timeout.after).min(RESOLVE_TIMEOUT);
        let found = self.names.resolve(&name_of(uri)?, timeout)?;
        let is_tls = uri.scheme_str() == Some("https");
        let mut addresses = self.empty();
        let allowed = found
            .iter()
            .filter(|address| self.allowed.allow(address.ip(), is_tls));
        for address in allowed.take(ADDRESSES_MAX) {
            addresses.push(*address);
        }
        match (addresses.is_empty(), found.is_empty()) {
            (false, _) => Ok(addresses),
            (true, true) => Err(ureq::Error::HostNotFound),
            (true, false) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "no address of the name may be called: they are not public, and in no network that the operator has listed, or without TLS",
            )
            .into()),
        }
    }
}

/// How long a look-up may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[derive(Debug)]
    struct FixedNames(Vec<&'static str>);

    impl ResolveNames for FixedNames {
        fn resolve(&self, name: &str, _: Duration) -> io::Result<Vec<SocketAddr>> {
            let port = name.rsplit(':').next().unwrap().parse().unwrap();
            let address = |text: &&str| SocketAddr::new(text.parse().unwrap(), port);
            Ok(self.0.iter().map(address).collect())
        }
    }

    fn resolve(addresses: &[&'static str], url: &str) -> Result<Vec<String>, String> {
        let resolver = CheckedResolver {
            names: Arc::new(FixedNames(addresses.to_vec())),
            allowed: AllowedAddresses {
                networks: vec!["127.0.0.0/8".parse().unwrap()],
            },
        };
        let found = resolver.resolve(
            &url.parse().unwrap(),
            &Config::default(),
            NextTimeout::default(),
        );
        found
            .map(|found| found.iter().map(SocketAddr::to_string).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_allowed_addresses_come_out() {
        let https = "https://hook.example/x";
        assert_eq!(resolve(&["1.1.1.1"], https).unwrap(), ["1.1.1.1:443"]);
        for private in [
            "10.0.0.1",
            "169.254.169.254",
            "::1",
            "::ffff:192.168.0.1",
            "fd00::1",
        ] {
            let error = resolve(&[private], https).unwrap_err();
            assert!(error.contains("not public"), "{private}: {error}");
            // What is connected to is what was checked.
            let mixed = resolve(&[private, "1.1.1.1"], https).unwrap();
            assert_eq!(mixed, ["1.1.1.1:443"]);
        }
        assert_eq!(
            resolve(&["127.0.0.1"], "https://a:8/").unwrap(),
            ["127.0.0.1:8"]
        );
        assert_eq!(
            resolve(&["127.0.0.1"], "http://a/").unwrap(),
            ["127.0.0.1:80"]
        );
        assert!(resolve(&["1.1.1.1"], "http://a/").is_err(), "without TLS");
        assert!(resolve(&[], https).is_err());
        let many = vec!["1.1.1.1"; 100];
        assert_eq!(resolve(&many, https).unwrap().len(), ADDRESSES_MAX);
    }
}
