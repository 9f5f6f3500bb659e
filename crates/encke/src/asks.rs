//! What a running server is asked for: signals, and upgrades.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use encke_threads::spawn_restarting;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use crate::config::Config;
use crate::failure::with_causes;
use crate::reload::Reloads;
use crate::serving::Serving;
use crate::stderr_queue;
use crate::terminal::Terminal;
use crate::upgrade::{
    Attendant, Launcher, Parent, PreparedSuccessor, ServerShape, SuccessorProcess, UpgradeAnswer,
    UpgradeAsker, UpgradeReport, UpgradeRequest, not_upgraded,
};

/// What the main thread is asked for.
pub(crate) enum ServerAsk {
    Signal(i32),
    /// A signal that another process of this server has received and passes on. This one may have received it, too.
    RelayedSignal(i32),
    /// The terminal has sent it to all processes of its foreground.
    TerminalSignal(i32),
    Upgrade(UpgradeAsker),
    /// A successor has been started, and can go on or not.
    Prepared(anyhow::Result<PreparedSuccessor>),
    /// A thread has failed without which the server can't continue.
    ThreadFailed(String),
}

/// The processes that pass signals on to this one.
#[derive(Debug, Default)]
pub(crate) struct SignalRelays {
    pub(crate) predecessor: Option<u32>,
    pub(crate) attendant: OnceLock<u32>,
}

impl SignalRelays {
    fn include(&self, sender: i32) -> bool {
        let relays = self.predecessor.iter().chain(self.attendant.get());
        relays
            .copied()
            .any(|relay| u32::try_from(sender) == Ok(relay))
    }
}

/// Asks for what signals ask for, as long as the receiver exists.
pub(crate) fn catch(
    mut signals: SignalsInfo<WithOrigin>,
    relays: Arc<SignalRelays>,
    asks: mpsc::Sender<ServerAsk>,
) -> std::io::Result<()> {
    spawn_restarting("signals", move || {
        for origin in signals.forever() {
            let signal = origin.signal;
            let asked = match (origin.cause, origin.process) {
                (Cause::Kernel, _) => ServerAsk::TerminalSignal(signal),
                (_, Some(sender)) if relays.include(sender.pid) => ServerAsk::RelayedSignal(signal),
                _ => ServerAsk::Signal(signal),
            };
            if asks.send(asked).is_err() {
                // The server has stopped.
                return;
            }
        }
    })?;
    Ok(())
}

/// A server that is asked for something.
pub(crate) struct AskedServer<'a> {
    pub(crate) serving: &'a Serving,
    pub(crate) reloads: &'a Reloads,
    pub(crate) launcher: &'a Launcher,
    /// Whose child a successor is to be.
    pub(crate) parent: Parent,
    pub(crate) config: &'a Config,
    pub(crate) terminal: &'a Terminal,
}

/// How a server ends.
pub(crate) enum ServerEnd {
    /// A successor takes over, for which this may have asked.
    HandOver(Box<PreparedSuccessor>, Option<UpgradeAsker>),
    Stop(StopReason),
}

/// Why a server stops.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    Signal {
        is_relayed: bool,
    },
    /// The name of the thread.
    FailedThread(String),
}

impl AskedServer<'_> {
    /// Does what is asked for until the server is to end.
    pub(crate) fn until_it_ends(
        &self,
        asked: &mpsc::Receiver<ServerAsk>,
        asks: &mpsc::Sender<ServerAsk>,
    ) -> anyhow::Result<ServerEnd> {
        // A successor reads its configuration, for this one.
        let mut preparing: Option<Preparation> = None;
        loop {
            match asked.recv().context("nothing asks any more")? {
                ServerAsk::Signal(SIGHUP)
                | ServerAsk::RelayedSignal(SIGHUP)
                | ServerAsk::TerminalSignal(SIGHUP)
                    if !self.terminal.is_closed() =>
                {
                    self.serving.reopen_logs();
                    self.reloads.ask();
                    self.serving.server.reload_tls();
                }
                ServerAsk::Signal(SIGUSR2) | ServerAsk::RelayedSignal(SIGUSR2)
                    if preparing.is_some() => {}
                ServerAsk::Signal(SIGUSR2) | ServerAsk::RelayedSignal(SIGUSR2) => {
                    preparing = self.prepare(Preparation::default(), asks);
                }
                ask @ (ServerAsk::Signal(signal)
                | ServerAsk::RelayedSignal(signal)
                | ServerAsk::TerminalSignal(signal)) => {
                    tracing::info!(signal, "stopping; a second signal stops at once");
                    if let Some(preparing) = preparing {
                        preparing.cancel();
                    }
                    let is_relayed = matches!(ask, ServerAsk::RelayedSignal(_));
                    return Ok(ServerEnd::Stop(StopReason::Signal { is_relayed }));
                }
                ServerAsk::ThreadFailed(thread) => {
                    tracing::error!(thread, "stopping, because a thread has failed");
                    if let Some(preparing) = preparing {
                        preparing.cancel();
                    }
                    return Ok(ServerEnd::Stop(StopReason::FailedThread(thread)));
                }
                ServerAsk::Upgrade(asker) if preparing.is_some() => {
                    let why = "another successor is being prepared".to_owned();
                    asker.answer(&UpgradeAnswer::Kept { why });
                }
                ServerAsk::Upgrade(asker) => {
                    let preparation = Preparation::of(asker);
                    preparing = self.prepare(preparation, asks);
                }
                ServerAsk::Prepared(prepared) => {
                    let Preparation { request, asker, .. } = preparing.take().unwrap_or_default();
                    match prepared {
                        Err(why) => refuse(asker, &why),
                        Ok(successor) if request.check => {
                            let answer = could_upgrade(self.serving, successor);
                            if let Some(asker) = asker {
                                asker.answer(&answer);
                            }
                        }
                        Ok(successor) => {
                            return Ok(ServerEnd::HandOver(Box::new(successor), asker));
                        }
                    }
                }
            }
        }
    }

    /// Starts a successor, beside which the server goes on until it is prepared. A thread waits for it. `None`: there is none, and the one who
    /// has asked knows.
    fn prepare(
        &self,
        mut asked: Preparation,
        asks: &mpsc::Sender<ServerAsk>,
    ) -> Option<Preparation> {
        let (shape, timeout) = (ServerShape::of(self.config), self.config.upgrade.timeout);
        let is_one_way = asked.request.one_way;
        let asks = asks.clone();
        let program = asked.request.program.as_deref();
        let started = self.launcher.start(program, self.parent);
        let waits = started.and_then(|successor| {
            let process = successor.process().clone();
            let thread = std::thread::Builder::new().name("successor".to_owned());
            let waiting = thread.spawn(move || {
                let prepare = || successor.prepared(&shape, is_one_way, timeout);
                let prepared = catch_unwind(AssertUnwindSafe(prepare));
                let panicked = |_| Err(anyhow::anyhow!("preparing the successor has panicked"));
                let prepared = prepared.unwrap_or_else(panicked);
                // The server stops, and so does the successor.
                if let Err(mpsc::SendError(ServerAsk::Prepared(Ok(successor)))) =
                    asks.send(ServerAsk::Prepared(prepared))
                {
                    successor.dismiss();
                }
            });
            if let Err(error) = waiting {
                process.end();
                return Err(error).context("the thread that waits for it can't be started");
            }
            Ok(process)
        });
        match waits {
            Ok(process) => {
                asked.process = Some(process);
                Some(asked)
            }
            Err(why) => {
                refuse(asked.asker, &why);
                None
            }
        }
    }
}

/// An upgrade that was asked for, and by whom.
#[derive(Default)]
struct Preparation {
    request: UpgradeRequest,
    asker: Option<UpgradeAsker>,
    process: Option<SuccessorProcess>,
}

impl Preparation {
    fn of(asker: UpgradeAsker) -> Self {
        Preparation {
            request: asker.request.clone(),
            asker: Some(asker),
            process: None,
        }
    }

    /// Ends the successor before the server: an attendant would take it for the one that serves.
    fn cancel(self) {
        if let Some(process) = self.process {
            process.end();
        }
        if let Some(asker) = self.asker {
            too_late(ServerAsk::Upgrade(asker));
        }
    }
}

/// Says that there is no upgrade.
fn refuse(asker: Option<UpgradeAsker>, why: &anyhow::Error) {
    tracing::error!("{}", not_upgraded(why));
    if let Some(asker) = asker {
        let why = with_causes(why);
        asker.answer(&UpgradeAnswer::Kept { why });
    }
}

/// What an upgrade would close.
fn could_upgrade(serving: &Serving, successor: PreparedSuccessor) -> UpgradeAnswer {
    let version = successor.version().to_owned();
    successor.dismiss();
    let census = serving.server.count_movable();
    let reasons = census.immovable.into_iter();
    let reasons: Vec<_> = reasons
        .map(|(why, count)| (why.to_owned(), count))
        .collect();
    UpgradeAnswer::Done(UpgradeReport {
        version,
        moved: census.movable,
        closed: reasons.iter().map(|(_, count)| count).sum(),
        reasons,
        ..UpgradeReport::default()
    })
}

/// Starts a thread that ends the process at a second signal while the server stops, and a while after a thread has failed, for which others
/// may wait for ever. A failed thread counts as the first signal. The same signal may come both directly and through another process of
/// this server, so each way is counted by itself. A terminal that closes may send several SIGHUP, the kernel's and one of the shell.
pub(crate) fn watch_stop(reason: &StopReason, asked: mpsc::Receiver<ServerAsk>) {
    // The number of signals that came directly, and of relayed ones.
    let (mut counts, mut deadline) = match reason {
        StopReason::Signal { is_relayed: false } => ([1, 0], None),
        StopReason::Signal { is_relayed: true } => ([0, 1], None),
        StopReason::FailedThread(_) => ([1, 1], Some(Instant::now() + STOP_AFTER_FAILURE)),
    };
    let thread = std::thread::Builder::new().name("stop-watch".to_owned());
    let spawned = thread.spawn(move || {
        loop {
            let ask = match deadline {
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => asked.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            let (signal, is_relayed) = match ask {
                Ok(
                    ServerAsk::Signal(SIGHUP | SIGUSR2)
                    | ServerAsk::RelayedSignal(SIGHUP | SIGUSR2)
                    | ServerAsk::TerminalSignal(SIGHUP),
                ) => continue,
                Ok(ServerAsk::Signal(signal) | ServerAsk::TerminalSignal(signal)) => {
                    (signal, false)
                }
                Ok(ServerAsk::RelayedSignal(signal)) => (signal, true),
                Ok(ServerAsk::ThreadFailed(_)) => {
                    deadline.get_or_insert_with(|| Instant::now() + STOP_AFTER_FAILURE);
                    continue;
                }
                Ok(ask) => {
                    too_late(ask);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!(
                        "a thread has failed, and the server has not stopped in time; it ends now"
                    );
                    stderr_queue::flush();
                    std::process::exit(1);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            counts[usize::from(is_relayed)] += 1;
            if counts.contains(&2) {
                stderr_queue::flush();
                std::process::exit(128 + signal);
            }
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "neither a second signal nor a time limit ends the server while it stops");
    }
}

/// Waits before the server is started again. Returns whether a signal asks it to stop instead.
pub(crate) fn pause(
    asked: &mpsc::Receiver<ServerAsk>,
    asks: &mpsc::Sender<ServerAsk>,
    pause: Duration,
) -> bool {
    let until = Instant::now() + pause;
    let mut hang_up = None;
    while let Ok(ask) = asked.recv_timeout(until.saturating_duration_since(Instant::now())) {
        match ask {
            ServerAsk::Signal(SIGTERM | SIGINT)
            | ServerAsk::RelayedSignal(SIGTERM | SIGINT)
            | ServerAsk::TerminalSignal(SIGINT) => return true,
            ServerAsk::Signal(SIGHUP)
            | ServerAsk::RelayedSignal(SIGHUP)
            | ServerAsk::TerminalSignal(SIGHUP) => hang_up = Some(ask),
            ask => too_late(ask),
        }
    }
    // The server that is started does what it asks for.
    if let Some(ask) = hang_up {
        let _ = asks.send(ask);
    }
    false
}

/// Forgets which threads of a server have failed that has ended. What else is asked for is kept.
pub(crate) fn forget_failures(asked: &mpsc::Receiver<ServerAsk>, asks: &mpsc::Sender<ServerAsk>) {
    let waiting: Vec<ServerAsk> = asked.try_iter().collect();
    for ask in waiting {
        if let ServerAsk::ThreadFailed(thread) = ask {
            tracing::warn!(
                thread,
                "a thread of the server that was to be upgraded has failed"
            );
        } else {
            // This thread has the receiver, so that it cannot fail.
            let _ = asks.send(ask);
        }
    }
}

/// Signals that came meanwhile are for the successor. What a terminal sends, it gets as well. Returns whether one asks it to stop.
pub(crate) fn pass_on(asked: &mpsc::Receiver<ServerAsk>, successor: &SuccessorProcess) -> bool {
    let number = i32::try_from(successor.number());
    let successor = number.ok().and_then(Pid::from_raw);
    let mut stops = false;
    while let Ok(ask) = asked.try_recv() {
        match ask {
            ServerAsk::Signal(signal) | ServerAsk::RelayedSignal(signal) => {
                stops |= matches!(signal, SIGTERM | SIGINT);
                if let (Some(successor), Some(signal)) = (successor, Signal::from_named_raw(signal))
                {
                    let _ = kill_process(successor, signal);
                }
            }
            ask => too_late(ask),
        }
    }
    stops
}

/// Stays for the successor, to which it passes signals on.
pub(crate) fn attend(successor: u32, asked: mpsc::Receiver<ServerAsk>) -> ExitCode {
    let attendant = Arc::new(Attendant::of(successor));
    let passing = Arc::clone(&attendant);
    let passes = spawn_restarting("signals-on", move || {
        for ask in &asked {
            match ask {
                ServerAsk::Signal(signal) => passing.pass_on(signal),
                ask => too_late(ask),
            }
        }
    });
    if let Err(error) = passes {
        tracing::error!(%error, successor, "signals are not passed on to the server");
    }
    attendant.attend()
}

/// Refuses what comes too late, because the server stops or hands over.
fn too_late(ask: ServerAsk) {
    match ask {
        ServerAsk::Upgrade(asker) => {
            let why = "the server stops, or is being upgraded already".to_owned();
            asker.answer(&UpgradeAnswer::Kept { why });
        }
        ServerAsk::Prepared(Ok(successor)) => successor.dismiss(),
        ServerAsk::Prepared(Err(_))
        | ServerAsk::Signal(_)
        | ServerAsk::RelayedSignal(_)
        | ServerAsk::TerminalSignal(_)
        | ServerAsk::ThreadFailed(_) => {}
    }
}

/// How long a stop may take after a thread has failed.
const STOP_AFTER_FAILURE: Duration = Duration::from_secs(30);
