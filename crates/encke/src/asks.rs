//! What a running server is asked for: signals, and upgrades.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use encke_threads::spawn_restarting;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGUSR2};
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
    Attendant, Launcher, PreparedSuccessor, ServerShape, UpgradeAnswer, UpgradeAsker,
    UpgradeReport, UpgradeRequest, not_upgraded,
};

/// What the main thread is asked for.
pub(crate) enum ServerAsk {
    Signal(i32),
    /// The terminal has sent it to all processes of its foreground.
    TerminalSignal(i32),
    Upgrade(UpgradeAsker),
    /// A successor has been started, and can go on or not.
    Prepared(anyhow::Result<PreparedSuccessor>),
    /// A thread has failed without which the server can't continue.
    ThreadFailed(String),
}

/// Asks for what signals ask for, until nobody is asked any more.
pub(crate) fn catch(
    mut signals: SignalsInfo<WithOrigin>,
    asks: mpsc::Sender<ServerAsk>,
) -> std::io::Result<()> {
    spawn_restarting("signals", move || {
        for origin in signals.forever() {
            let signal = origin.signal;
            let asked = match origin.cause {
                Cause::Kernel => ServerAsk::TerminalSignal(signal),
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
    pub(crate) config: &'a Config,
    pub(crate) terminal: &'a Terminal,
    /// Gets the name of the thread because of which the server stops.
    pub(crate) failed_thread: &'a OnceLock<String>,
}

impl AskedServer<'_> {
    /// Does what is asked for until the server is to end. Returns the successor that goes on, and who has asked for it; `None`: the server
    /// is to stop.
    pub(crate) fn until_it_ends(
        &self,
        asked: &mpsc::Receiver<ServerAsk>,
        asks: &mpsc::Sender<ServerAsk>,
    ) -> anyhow::Result<Option<(PreparedSuccessor, Option<UpgradeAsker>)>> {
        // A successor reads its configuration, for this one.
        let mut preparing: Option<Preparation> = None;
        loop {
            match asked.recv().context("nothing asks any more")? {
                ServerAsk::Signal(SIGHUP) | ServerAsk::TerminalSignal(SIGHUP)
                    if !self.terminal.is_closed() =>
                {
                    self.serving.reopen_logs();
                    self.reloads.ask();
                    self.serving.server.reload_tls();
                }
                ServerAsk::Signal(SIGUSR2) if preparing.is_some() => {}
                ServerAsk::Signal(SIGUSR2) => {
                    preparing = self.prepare(Preparation::default(), asks);
                }
                ServerAsk::Signal(signal) | ServerAsk::TerminalSignal(signal) => {
                    tracing::info!(signal, "stopping; a second signal stops at once");
                    return Ok(None);
                }
                ServerAsk::ThreadFailed(thread) => {
                    tracing::error!(thread, "stopping, because a thread has failed");
                    // The first one is the reason.
                    let _ = self.failed_thread.set(thread);
                    return Ok(None);
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
                    let Preparation { request, asker } = preparing.take().unwrap_or_default();
                    match prepared {
                        Err(why) => refuse(asker, &why),
                        Ok(successor) if request.check => {
                            let answer = could_upgrade(self.serving, successor);
                            if let Some(asker) = asker {
                                asker.answer(&answer);
                            }
                        }
                        Ok(successor) => return Ok(Some((successor, asker))),
                    }
                }
            }
        }
    }

    /// Starts a successor, beside which the server goes on until it is prepared. A thread waits for it. `None`: there is none, and the one who
    /// has asked knows.
    fn prepare(&self, asked: Preparation, asks: &mpsc::Sender<ServerAsk>) -> Option<Preparation> {
        let (shape, timeout) = (ServerShape::of(self.config), self.config.upgrade.timeout);
        let is_one_way = asked.request.one_way;
        let asks = asks.clone();
        let started = self.launcher.start(asked.request.program.as_deref());
        let waits = started.and_then(|successor| {
            let thread = std::thread::Builder::new().name("successor".to_owned());
            thread.spawn(move || {
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
            })?;
            Ok(())
        });
        match waits {
            Ok(()) => Some(asked),
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
}

impl Preparation {
    fn of(asker: UpgradeAsker) -> Self {
        Preparation {
            request: asker.request.clone(),
            asker: Some(asker),
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

/// The server stops, and has been told so once: a further signal ends it at once. A terminal that closes may send several SIGHUP, the
/// kernel's and one of the shell. If a thread has failed, or fails meanwhile, others may wait for it: the stop has a time limit then.
pub(crate) fn end_at_a_second_signal(asked: mpsc::Receiver<ServerAsk>, has_failed: bool) {
    let mut until = has_failed.then(|| Instant::now() + STOP_AFTER_FAILURE);
    let thread = std::thread::Builder::new().name("signals-again".to_owned());
    let started = thread.spawn(move || {
        loop {
            let ask = match until {
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => asked.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            match ask {
                Ok(ServerAsk::Signal(SIGHUP | SIGUSR2) | ServerAsk::TerminalSignal(SIGHUP)) => {}
                Ok(ServerAsk::Signal(signal) | ServerAsk::TerminalSignal(signal)) => {
                    stderr_queue::flush();
                    std::process::exit(128 + signal);
                }
                Ok(ServerAsk::ThreadFailed(_)) => {
                    until.get_or_insert_with(|| Instant::now() + STOP_AFTER_FAILURE);
                }
                Ok(ask) => too_late(ask),
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!(
                        "the server has not stopped in time, because a thread has failed"
                    );
                    stderr_queue::flush();
                    std::process::exit(1);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "a second signal does not stop the server at once");
    }
}

/// Signals that came meanwhile are for the successor. What a terminal sends, it gets as well.
pub(crate) fn pass_on(asked: &mpsc::Receiver<ServerAsk>, successor: u32) {
    let successor = i32::try_from(successor).ok().and_then(Pid::from_raw);
    while let Ok(ask) = asked.try_recv() {
        match ask {
            ServerAsk::Signal(signal) => {
                if let (Some(successor), Some(signal)) = (successor, Signal::from_named_raw(signal))
                {
                    let _ = kill_process(successor, signal);
                }
            }
            ask => too_late(ask),
        }
    }
}

/// Stays for the successor, to which it passes signals on.
pub(crate) fn attend(successor: u32, asked: mpsc::Receiver<ServerAsk>) -> ExitCode {
    let attendant = Arc::new(Attendant::of(successor));
    let passing = Arc::clone(&attendant);
    let thread = std::thread::Builder::new().name("signals-on".to_owned());
    let passes = thread.spawn(move || {
        for ask in asked {
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

/// Answers what another process is to be asked now.
fn too_late(ask: ServerAsk) {
    match ask {
        ServerAsk::Upgrade(asker) => {
            let why = "the server stops, or is being upgraded already".to_owned();
            asker.answer(&UpgradeAnswer::Kept { why });
        }
        ServerAsk::Prepared(Ok(successor)) => successor.dismiss(),
        ServerAsk::Prepared(Err(_))
        | ServerAsk::Signal(_)
        | ServerAsk::TerminalSignal(_)
        | ServerAsk::ThreadFailed(_) => {}
    }
}

/// How long a stop may take after a thread has failed.
const STOP_AFTER_FAILURE: Duration = Duration::from_secs(30);
