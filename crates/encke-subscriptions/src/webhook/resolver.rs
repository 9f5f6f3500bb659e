//! Look-ups of the names of webhooks: only allowed addresses come out, and exactly these are connected to.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::addresses::AllowedAddresses;

/// Looks up names.
pub trait ResolveNames: fmt::Debug + Send + Sync {
    /// The addresses of a name, or an address itself, with a port: `example.com:443`.
    ///
    /// # Errors
    /// The name has none, or they were not found in that time.
    fn resolve(&self, name: &str, timeout: Duration) -> io::Result<Vec<SocketAddr>>;

    /// Ends the look-ups that are under way. Later ones fail.
    fn stop(&self) {}
}

/// The look-ups of the system. Each has a thread of its own, because it cannot be interrupted; their number is bounded.
#[derive(Debug, Default)]
pub struct SystemNames {
    state: Arc<SharedLookUps>,
}

#[derive(Debug, Default)]
struct SharedLookUps {
    state: Mutex<LookUpsState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LookUpsState {
    /// Threads that look something up, wanted or not.
    running: usize,
    is_stopped: bool,
}

/// The result of a look-up that is under way.
type ResultPlace = Arc<Mutex<Option<io::Result<Vec<SocketAddr>>>>>;

impl ResolveNames for SystemNames {
    fn resolve(&self, name: &str, timeout: Duration) -> io::Result<Vec<SocketAddr>> {
        let until = Instant::now() + timeout;
        let place = ResultPlace::default();
        let mut state = self.state.state.lock();
        if state.is_stopped {
            return Err(stopped());
        }
        if state.running >= LOOK_UPS_MAX {
            return Err(io::Error::other("too many names are being looked up"));
        }
        state.running += 1;
        let (shared, filled) = (Arc::clone(&self.state), Arc::clone(&place));
        let name = name.to_owned();
        let spawned = std::thread::Builder::new()
            .name("webhook-names".into())
            .spawn(move || {
                let found = name.to_socket_addrs().map(Iterator::collect);
                *filled.lock() = Some(found);
                shared.state.lock().running -= 1;
                shared.changed.notify_all();
            });
        if let Err(error) = spawned {
            state.running -= 1;
            return Err(error);
        }
        loop {
            if let Some(found) = place.lock().take() {
                return found;
            }
            if state.is_stopped {
                return Err(stopped());
            }
            if self.state.changed.wait_until(&mut state, until).timed_out() {
                let late = place.lock().take();
                return late.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    fn stop(&self) {
        self.state.state.lock().is_stopped = true;
        self.state.changed.notify_all();
    }
}

fn stopped() -> io::Error {
    io::Error::other("the server is stopping")
}

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
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(ureq::Error::HostNotFound);
        };
        let name = DefaultResolver::host_and_port(scheme, authority);
        let name = name.ok_or(ureq::Error::HostNotFound)?;
        let found = self
            .names
            .resolve(&name, (*timeout.after).min(RESOLVE_TIMEOUT))?;
        let is_tls = scheme.as_str() == "https";
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

/// The most threads that look names up. One whose result is not wanted any more still counts.
const LOOK_UPS_MAX: usize = 128;

/// The most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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

    #[test]
    fn the_system_knows_addresses_and_stops() {
        let names = SystemNames::default();
        let long = Duration::from_secs(60);
        let found = names.resolve("127.0.0.1:7", long).unwrap();
        assert_eq!(found, [SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 7)]);
        assert!(names.resolve("no port", long).is_err());
        names.state.state.lock().running = LOOK_UPS_MAX;
        assert!(names.resolve("127.0.0.1:7", long).is_err(), "too many");
        names.state.state.lock().running = 0;
        names.stop();
        let error = names.resolve("127.0.0.1:7", long).unwrap_err();
        assert!(error.to_string().contains("stopping"));
    }
}
