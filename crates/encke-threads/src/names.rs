//! Look-ups of names that end in time, whatever the system does.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

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

/// The look-ups of the system. Each has a thread of its own, because it cannot be interrupted; their number is bounded. Clones share
/// the bound.
#[derive(Clone, Debug, Default)]
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
        let until = Instant::now() + timeout.min(TIMEOUT_MAX);
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
            .name("names".into())
            .spawn(move || {
                let found = catch_unwind(|| name.to_socket_addrs().map(Iterator::collect));
                let panicked = |_| Err(io::Error::other("the look-up has panicked"));
                *filled.lock() = Some(found.unwrap_or_else(panicked));
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

/// The most threads that look names up. One whose result is not wanted any more still counts.
const LOOK_UPS_MAX: usize = 128;

/// How long a look-up may take at most.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn the_system_knows_addresses_and_stops() {
        let names = SystemNames::default();
        let long = Duration::MAX;
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
