//! The process that takes a server over. The socket to the server is its standard input.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use encke_access::MovedAuthority;
use encke_log::DataFormat;
use encke_server::{MovedIn, MovedListeners, Moving, StartGate};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use super::wire::{FORM, FORM_READ_FROM, FromSuccessor, Prepared, ServerShape, ToSuccessor, Wire};
use crate::config::Config;
use crate::failure::{Failed, with_causes};

/// A process that is to take a server over.
pub(crate) struct Successor {
    wire: Wire,
}

/// What was taken over, and the server that still can take it back.
pub(crate) struct TakenOver {
    wire: Wire,
    gate: StartGate,
}

impl Successor {
    /// The end of the socket that the server has made this process with.
    ///
    /// # Errors
    /// Standard input is no socket, because no server has made this process.
    pub(crate) fn of_this_process() -> anyhow::Result<Self> {
        Ok(Successor {
            wire: Wire::of_standard_input()?,
        })
    }

    /// The process of the server.
    pub(crate) fn predecessor(&self) -> io::Result<u32> {
        self.wire.peer()
    }

    /// Says that the configuration is good, and waits until the server has closed its log. Connections may still be on their way.
    ///
    /// # Errors
    /// The server has changed its mind.
    pub(crate) fn take_over(mut self, config: &Config) -> anyhow::Result<(MovingIn, TakenOver)> {
        self.wire.set_patience(None)?;
        // Before the server pauses: the first random number of a process takes 30 ms, in which AWS-LC measures its source.
        aws_lc_rs::rand::fill(&mut [0]).context("there are no random numbers")?;
        self.wire.send(&FromSuccessor::Prepared(Prepared {
            version: env!("BUILD_OF_ENCKE").to_owned(),
            forms: [FORM_READ_FROM, FORM],
            data: own_formats(),
            shape: ServerShape::of(config),
            takes_locks: true,
        }))?;
        let gate = StartGate::default();
        let wire = self.wire.try_clone()?;
        let (closes, closed) = mpsc::channel();
        let opens = gate.clone();
        let thread = std::thread::Builder::new().name("connections-in".to_owned());
        let thread = thread.spawn(move || Arriving { wire, closes }.receive(opens))?;
        // The end of the thread without a word is an error that joining it brings.
        if closed.recv().is_err() {
            let moved = MovingIn::Arriving(thread).all()?;
            drop(moved);
            anyhow::bail!("the server has not closed its log");
        }
        Ok((
            MovingIn::Arriving(thread),
            TakenOver {
                wire: self.wire,
                gate,
            },
        ))
    }

    /// Says why this process gives up.
    pub(crate) fn give_up(mut self, failed: &Failed) {
        let _ = (self.wire).send(&FromSuccessor::Failed(with_causes(&failed.error)));
    }

    /// Another end of the same socket.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Successor {
            wire: self.wire.try_clone()?,
        })
    }
}

/// The connections that a server begins with.
pub(crate) enum MovingIn {
    /// They come from another process.
    Arriving(JoinHandle<anyhow::Result<MovedIn>>),
    /// They are here.
    Here(MovedIn),
}

impl MovingIn {
    /// Where the server before listens. Waits until all connections are here.
    pub(crate) fn listeners(&mut self) -> anyhow::Result<&MovedListeners> {
        let nothing = MovingIn::Here(MovedIn::default());
        *self = MovingIn::Here(std::mem::replace(self, nothing).all()?);
        match self {
            MovingIn::Here(moved) => Ok(&moved.listeners),
            MovingIn::Arriving(_) => anyhow::bail!("the connections are still on their way"),
        }
    }

    /// Waits until all are here.
    pub(crate) fn all(self) -> anyhow::Result<MovedIn> {
        match self {
            MovingIn::Here(moved) => Ok(moved),
            MovingIn::Arriving(thread) => match thread.join() {
                Ok(moved) => moved.context("the server was not handed over"),
                Err(_) => anyhow::bail!("the thread that receives connections panicked"),
            },
        }
    }
}

/// Receives what a server gives away.
struct Arriving {
    wire: Wire,
    /// Is told when the server has closed its log.
    closes: mpsc::Sender<()>,
}

impl Arriving {
    fn receive(mut self, gate: StartGate) -> anyhow::Result<MovedIn> {
        let mut listeners = MovedListeners::default();
        let mut connections = Vec::new();
        let mut authorities: Option<Vec<MovedAuthority>> = None;
        let mut is_closed = false;
        loop {
            match self.wire.receive()? {
                ToSuccessor::Listeners { clients, operators } => {
                    listeners.clients = self
                        .wire
                        .receive_descriptors(clients + usize::from(operators))?;
                    listeners.operators = operators.then(|| listeners.clients.pop()).flatten();
                }
                ToSuccessor::Connections(some) => {
                    let sockets = self.wire.receive_descriptors(some.len())?;
                    let pairs = sockets.into_iter().zip(some);
                    connections
                        .extend(pairs.map(|(socket, connection)| Moving { socket, connection }));
                }
                ToSuccessor::Callers(all) => authorities = Some(all),
                ToSuccessor::Directories { count } => {
                    let directories = self.wire.receive_descriptors(count)?;
                    encke_log::hold_given_directories(directories)?;
                }
                ToSuccessor::LogClosed => {
                    is_closed = true;
                    // Nobody waits any more if the process ends.
                    let _ = self.closes.send(());
                }
                ToSuccessor::Serve { .. } => anyhow::bail!("the server let go too early"),
            }
            if let (true, Some(authorities)) = (is_closed, &mut authorities) {
                return Ok(MovedIn {
                    listeners,
                    connections,
                    authorities: std::mem::take(authorities),
                    gate,
                });
            }
        }
    }
}

impl TakenOver {
    /// Says that everything is here, and serves once the server has let go. Returns the process that waits for the end of this one, if there
    /// is one; this one then ends with it.
    ///
    /// # Errors
    /// The server takes everything back.
    pub(crate) fn serve(mut self) -> anyhow::Result<Option<u32>> {
        let attendant = self.let_go();
        match &attendant {
            Ok(_) => self.gate.open(),
            Err(_) => self.gate.give_up(),
        }
        let attendant = attendant?;
        let first = parent();
        // The server has gone if it could not wait.
        let _ = self.wire.send(&FromSuccessor::Serving);
        // The server closes the socket when it is done. Before, a service manager takes that one for the server and listens to no other.
        let _ = self.wire.set_patience(Some(GONE_MAX));
        let _ = self.wire.receive::<ToSuccessor>();
        if let Some(attendant) = attendant {
            end_with(attendant, first);
        }
        Ok(attendant)
    }

    fn let_go(&mut self) -> anyhow::Result<Option<u32>> {
        self.wire.send(&FromSuccessor::Ready)?;
        match self.wire.receive() {
            Ok(ToSuccessor::Serve { attendant }) => Ok(attendant),
            Ok(_) => anyhow::bail!("the server said something else than to serve"),
            Err(error) => Err(error).context("the server has not let go"),
        }
    }
}

/// The end of the attendant, however it comes, is a request to stop. Until the server has gone, if it is not the attendant, its end
/// would be one as well. `first`: the parent while the server was there.
fn end_with(attendant: u32, first: u32) {
    let until = Instant::now() + GONE_MAX;
    while first != attendant && parent() == first {
        if Instant::now() > until {
            tracing::warn!(
                attendant,
                "the server outlives the process that waits for its end"
            );
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        tracing::warn!(%error, "the server outlives the process that waits for its end");
    }
    if parent() != attendant {
        // It has ended before.
        let _ = kill_process(getpid(), Signal::TERM);
    }
}

fn parent() -> u32 {
    getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
}

impl ServerShape {
    pub(crate) fn of(config: &Config) -> Self {
        ServerShape {
            data: config
                .data
                .canonicalize()
                .unwrap_or_else(|_| config.data.clone()),
            listen: config.net.listen,
            admin_listen: config.net.operators_listen,
            shards: config.net.shards.max(1),
            tls: config.net.tls.is_some(),
            proxy_protocol: config.net.proxy_protocol,
        }
    }
}

impl Prepared {
    /// What it can't read of data in those formats.
    fn unreadable(&self, own: &BTreeMap<String, [u32; 2]>) -> Option<String> {
        own.iter().find_map(|(kind, [_, written])| {
            let [from, to] = self.data.get(kind).copied().unwrap_or_default();
            (!(from..=to).contains(written)).then(|| {
                format!("the successor reads the formats {from} to {to} of {kind}, and this server writes format {written}")
            })
        })
    }

    /// What it writes that a server with those formats could not read, if it had to go on.
    pub(super) fn one_way(&self, own: &BTreeMap<String, [u32; 2]>) -> Option<String> {
        self.data.iter().find_map(|(kind, [_, written])| {
            let [from, to] = own.get(kind).copied().unwrap_or_default();
            (!(from..=to).contains(written)).then(|| {
                format!("the successor writes format {written} of {kind}, and this server reads the formats {from} to {to}: it could not go on if the successor failed. Restart it, or take that risk with --one-way")
            })
        })
    }

    /// Why a server of that shape can't be handed over to this successor.
    pub(super) fn obstacle(&self, own: &ServerShape) -> Option<String> {
        if let Some(why) = self.unreadable(&own_formats()) {
            return Some(why);
        }
        let [from, to] = self.forms;
        if !(from..=to).contains(&FORM) {
            return Some(format!(
                "the successor reads the forms {from} to {to} of connections, and this server writes form {FORM}: it needs a restart"
            ));
        }
        let differ = |what: &str, is: &dyn std::fmt::Debug, was: &dyn std::fmt::Debug| {
            format!("{what} would change from {was:?} to {is:?}, which needs a restart")
        };
        let shape = &self.shape;
        if shape.data != own.data {
            Some(differ("data", &shape.data, &own.data))
        } else if shape.listen != own.listen {
            Some(differ("listen", &shape.listen, &own.listen))
        } else if shape.admin_listen != own.admin_listen {
            Some(differ(
                "admin-listen",
                &shape.admin_listen,
                &own.admin_listen,
            ))
        } else if shape.shards != own.shards {
            Some(differ("shards", &shape.shards, &own.shards))
        } else if shape.tls != own.tls {
            Some("TLS would be switched on or off, which needs a restart".to_owned())
        } else if shape.proxy_protocol != own.proxy_protocol {
            Some("proxy-protocol would change, which needs a restart".to_owned())
        } else {
            None
        }
    }
}

/// By the kind of data on the disk: the first format that this version reads, and the one that it writes.
pub(super) fn own_formats() -> BTreeMap<String, [u32; 2]> {
    let formats = encke_stream::data_formats().into_iter();
    let of = |format: DataFormat| (format.kind.to_owned(), [format.reads_from, format.writes]);
    formats.map(of).collect()
}

/// How long a server may take to end, or to become the attendant, once its successor serves.
const GONE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(states: [u32; 2]) -> BTreeMap<String, [u32; 2]> {
        BTreeMap::from([
            ("states".to_owned(), states),
            ("segments".to_owned(), [1, 1]),
        ])
    }

    fn prepared(states: [u32; 2]) -> Prepared {
        Prepared {
            version: "2".to_owned(),
            forms: [FORM_READ_FROM, FORM],
            data: formats(states),
            shape: ServerShape::of(&Config::default()),
            takes_locks: true,
        }
    }

    #[test]
    fn data_goes_to_what_reads_it_and_back_only_if_the_server_reads_it_too() {
        let own = formats([4, 7]);
        let obstacles = |successor: [u32; 2]| {
            let successor = prepared(successor);
            (
                successor.unreadable(&own).is_some(),
                successor.one_way(&own).is_some(),
            )
        };
        assert_eq!(obstacles([4, 7]), (false, false));
        assert_eq!(obstacles([5, 8]), (false, true), "a later version");
        assert_eq!(obstacles([4, 6]), (true, false), "an earlier version");
        assert_eq!(obstacles([8, 9]), (true, true), "a version too far");
        let mut unknown = prepared([4, 7]);
        unknown.data.clear();
        assert!(
            unknown.unreadable(&own).is_some(),
            "it does not say what it reads"
        );
    }

    #[test]
    fn what_can_not_change_is_named() {
        let mut successor = prepared([4, 7]);
        successor.data = own_formats();
        let own = successor.shape.clone();
        assert_eq!(successor.obstacle(&own), None);
        successor.shape.shards += 1;
        let why = successor.obstacle(&own).unwrap();
        assert!(why.starts_with("shards would change from"), "{why}");
        successor.forms = [FORM + 1, FORM + 1];
        let why = successor.obstacle(&own).unwrap();
        assert!(why.contains("this server writes form"), "{why}");
    }
}
