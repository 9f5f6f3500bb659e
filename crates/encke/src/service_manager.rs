//! A service manager such as systemd: it may hand a listener over, and is told when the server is ready, alive, and about to stop.
//! Without one nothing happens.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use encke_server::Liveness;
use encke_threads::spawn_restarting;
use listenfd::ListenFd;
use parking_lot::Mutex;
use sd_notify::NotifyState;

/// The listener that the service manager has made (socket activation), if it has.
///
/// # Errors
/// It is no TCP listener, or there are several.
pub(crate) fn listener() -> anyhow::Result<Option<TcpListener>> {
    let mut given = ListenFd::from_env();
    anyhow::ensure!(
        given.len() < 2,
        "{} sockets were handed over by the service manager, and one is expected: the TCP listener for clients",
        given.len()
    );
    match given.len() {
        0 => Ok(None),
        _ => given
            .take_tcp_listener(0)
            .context("the socket that the service manager has handed over is no TCP listener"),
    }
}

/// Says that the server is ready, and what it does.
pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Whether systemd runs this process: it follows the process that `MAINPID=` names. Other managers that set `NOTIFY_SOCKET` follow the process
/// that they have started, and a container ends with its process 1.
pub(crate) fn follows() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    is_set("NOTIFY_SOCKET") && is_set("INVOCATION_ID") && std::process::id() != 1
}

/// Says that another process is the server now.
pub(crate) fn main_process(process: u32) {
    notify(&[NotifyState::MainPid(process)]);
}

/// Says that the server reads its configuration again.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager can't be told of a reload"),
    }
}

/// Says that the server is about to stop.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = notify_at(&socket, states)
    {
        tracing::warn!(%error, "the service manager can't be told how the server is");
    }
}

/// Sends states to the socket of that name, which is abstract if it begins with `@` (sd_notify(3)). `sd_notify` knows paths only.
fn notify_at(socket: &OsStr, states: &[NotifyState<'_>]) -> std::io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let lines: String = states.iter().map(|state| format!("{state}\n")).collect();
    let sent = UnixDatagram::unbound()?.send_to_addr(lines.as_bytes(), &address);
    sent.map(drop)
}

/// Tells the service manager that the process is alive.
pub(crate) struct Watchdog {
    watched: Arc<Mutex<Watched>>,
    /// The thread ends when this is dropped. `None`: the service manager has no watchdog.
    _ends: Option<mpsc::Sender<()>>,
}

/// The sign of life that the watchdog reports.
#[derive(Clone)]
pub(crate) enum Watched {
    /// None: it sends nothing.
    Nothing,
    /// The server is handed over, or started again, which may take until then.
    HandOver(Instant),
    /// All shards take turns.
    Shards(Liveness),
}

impl Watched {
    /// A hand-over or another start that begins now.
    pub(crate) fn hand_over() -> Self {
        Watched::HandOver(Instant::now() + HAND_OVER_MAX)
    }
}

impl Watchdog {
    /// Starts the thread, if the service manager has a watchdog. Nothing is watched yet.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start() -> std::io::Result<Watchdog> {
        let watched = Arc::new(Mutex::new(Watched::Nothing));
        let Some(patience) = sd_notify::watchdog_enabled() else {
            return Ok(Watchdog {
                watched,
                _ends: None,
            });
        };
        let (ends, ended) = mpsc::channel();
        let watching = Arc::clone(&watched);
        let tell = move || tell(&watching, patience / 4, &ended);
        spawn_restarting("watchdog", tell)?;
        Ok(Watchdog {
            watched,
            _ends: Some(ends),
        })
    }

    /// From now on the process is alive by this.
    pub(crate) fn watch(&self, watched: Watched) {
        *self.watched.lock() = watched;
    }
}

fn tell(watched: &Mutex<Watched>, every: Duration, ended: &mpsc::Receiver<()>) {
    loop {
        let now = watched.lock().clone();
        match now {
            Watched::Nothing => {}
            Watched::HandOver(until) if Instant::now() < until => notify(&[NotifyState::Watchdog]),
            Watched::HandOver(_) => tracing::error!(
                "the server is not handed over in time; the service manager is not told that it is alive"
            ),
            Watched::Shards(liveness) => match liveness.all_respond(every) {
                true => notify(&[NotifyState::Watchdog]),
                // The shards of a server that has ended take no turns.
                false if !matches!(*watched.lock(), Watched::Shards(_)) => continue,
                false => tracing::error!(
                    waited_ms = every.as_millis() as u64,
                    "a shard takes no turns; the service manager is not told that the server is alive"
                ),
            },
        }
        if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// How long a server that is handed over or started again is taken for alive.
const HAND_OVER_MAX: Duration = Duration::from_secs(600);
