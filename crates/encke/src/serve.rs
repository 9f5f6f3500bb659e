//! `encke serve`: from settings to a running server, and down again.

use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use encke_server::{MovedIn, MovedOut, StartGate};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::asks::{
    self, AskedServer, ServerAsk, ServerEnd, SignalRelays, StopReason, attend, catch,
    forget_failures, pass_on, watch_stop,
};
use crate::config::SettingsArgs;
use crate::failure::{Code, Failed, with_causes};
use crate::obstacles;
use crate::running::{Running, StartContext};
use crate::serve_check::{print_check, resolve};
use crate::service_manager::{Watchdog, Watched};
use crate::serving::Outputs;
use crate::terminal::Terminal;
use crate::upgrade::{
    HandedOver, Launcher, MovingIn, Parent, Successor, SuccessorArgs, UpgradeAnswer, UpgradeAsker,
    UpgradeReport, not_upgraded, reset_all,
};
use crate::zone::NamedZone;
use crate::{banner, exposure, program_log, service_manager, traces};

/// The arguments of `encke serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    settings: SettingsArgs,

    /// Print the effective configuration as TOML with the origin of each value, and what would keep the server from starting; exit
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    successor: SuccessorArgs,
}

/// Serves until a signal says to stop, or a successor serves.
pub(crate) fn serve(args: ServeArgs) -> Result<ExitCode, Failed> {
    if !args.successor.successor {
        return serve_until_asked(args, None);
    }
    let successor = Successor::of_this_process()?;
    let told = successor.try_clone().context("the socket of the server")?;
    let served = serve_until_asked(args, Some(successor));
    if let Err(failed) = &served {
        told.give_up(failed);
    }
    served
}

fn serve_until_asked(
    mut args: ServeArgs,
    successor: Option<Successor>,
) -> Result<ExitCode, Failed> {
    let mut begin = args.successor;
    let inherited = match successor {
        // The listeners are those of the server before, wherever it has them from.
        Some(_) => None,
        None => service_manager::listener().map_err(|error| Code::Listen.with(error))?,
    };
    if let Some(listener) = &inherited {
        let address = listener
            .local_addr()
            .context("the listener of the service manager has no address")?;
        begin.given_listener = Some(address);
    }
    if let Some(address) = begin.given_listener {
        args.settings.listen_on(address);
    }
    if args.check {
        return print_check(&args.settings);
    }
    // Signals are caught before there is anything that they could interrupt: one that comes during the start ends it cleanly.
    let terminal = match begin.outlive_terminal {
        true => Terminal::Outlived,
        false => Terminal::of_this_process(),
    };
    begin.outlive_terminal = terminal == Terminal::Outlived;
    let launcher = Launcher::of_this_process(&begin)?;
    let signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2])
        .context("signals can't be caught")?;
    let settings = Arc::new(args.settings);
    let (mut config, given, files) = resolve(&settings)?;
    config.net.inherited = inherited.map(Arc::new);
    let filter = program_log::start(&config)?;
    let exporter = match config.traces.start(&config.client)? {
        Some((tracer, exporter)) => {
            config.net.tracer = Some(tracer);
            Some(exporter)
        }
        None => None,
    };
    for warning in exposure::warnings(&config) {
        tracing::warn!("{warning}");
    }
    tracing::info!(
        open_files_max = files,
        connections_max = config.net.connections_max,
        "the limit on open files bounds the connections"
    );
    if let Some(lowered) = &config.lowered_defaults {
        tracing::info!(
            memory_max = lowered.memory_max,
            settings = lowered.settings.join(", "),
            "the memory limit of the control group lowers these defaults"
        );
    }
    // Before the log is opened, which can take long.
    if let Some(obstacle) = config.net.tls.as_ref().and_then(obstacles::of_tls) {
        return Err(obstacle.code.with(anyhow::anyhow!(obstacle.text)));
    }
    let (asks, asked) = mpsc::channel();
    let failures = asks.clone();
    encke_threads::on_failure(move |thread| {
        // It fails only if the server has ended.
        let _ = failures.send(ServerAsk::ThreadFailed(thread.to_owned()));
    });
    let mut relays = SignalRelays::default();
    let (mut moved, mut taken_over) = match successor {
        None => (None, None),
        Some(successor) => {
            relays.predecessor = successor.predecessor().ok();
            // What a start checks first, while the server still serves.
            let outputs = Outputs::open(&config).map_err(|error| Code::Usage.with(error))?;
            drop(outputs);
            let (moved, taken_over) = successor.take_over(&config)?;
            (Some(moved), Some(taken_over))
        }
    };
    let relays = Arc::new(relays);
    let watchdog = Watchdog::start().context("the watchdog's thread can't be started")?;
    // The process that waits for the end of this one.
    let mut attendant = None;
    // Who has asked for an upgrade that was not done, and why it was not.
    let mut not_done: Option<(UpgradeAsker, String)> = None;
    let mut signals = Some(signals);
    // After a failed upgrade.
    let mut retry: Option<Retry> = None;
    loop {
        if retry.is_some() {
            forget_failures(&asked, &asks);
        }
        let context = StartContext {
            settings: &settings,
            config: &config,
            given: &given,
            filter: &filter,
            asks: &asks,
        };
        let mut running = match (Running::start(&context, moved.as_mut()), &mut retry) {
            (Ok(running), _) => running,
            (Err(failed), None) => return Err(failed),
            (Err(failed), Some(retry)) if retry.is_in_vain(&failed) => return Err(failed),
            (Err(failed), Some(retry)) => {
                let (error, pause) = (with_causes(&failed.error), retry.next_pause());
                tracing::error!(
                    error,
                    ?pause,
                    "the server can't serve again yet, and retries"
                );
                if !asks::pause(&asked, &asks, pause) {
                    watchdog.watch(Watched::hand_over());
                    continue;
                }
                if let Some((asker, why)) = not_done {
                    asker.answer(&UpgradeAnswer::Kept { why });
                }
                if let Some(moved) = moved {
                    reset_all(&moved.all()?.connections);
                }
                traces::stop(exporter);
                tracing::info!("stopped");
                return Ok(ExitCode::SUCCESS);
            }
        };
        // The last threads. Clients are served when all of them exist.
        let begun = match signals.take() {
            Some(signals) => catch(signals, Arc::clone(&relays), asks.clone())
                .context("the thread that waits for signals can't be started"),
            None => Ok(()),
        };
        // The first line on standard output says where the server listens, before any of the access log.
        let announced = begun.and_then(|()| match &moved {
            None => banner::announce(&running.serving.server, &config)
                .context("the thread that prints the addresses of the server can't be started"),
            Some(_) => Ok(()),
        });
        if let Err(error) = announced {
            running.abandon();
            return Err(error.into());
        }
        running.serving.admit(moved.take())?;
        if let Some(taken_over) = taken_over.take() {
            attendant = taken_over.serve()?;
        }
        if let Some(attendant) = attendant {
            relays.attendant.get_or_init(|| attendant);
        }
        let server = &running.serving.server;
        service_manager::ready(&format!("serving on {}", NamedZone(server.address())));
        watchdog.watch(Watched::Shards(server.liveness()));
        if let Some((asker, why)) = not_done.take() {
            asker.answer(&UpgradeAnswer::Kept { why });
        }
        let parent = match attendant.is_none() && service_manager::follows() {
            true => Parent::ServiceManager,
            false => Parent::Server,
        };
        let end = AskedServer {
            serving: &running.serving,
            reloads: &running.reloads,
            launcher: &launcher,
            parent,
            config: &config,
            terminal: &terminal,
        }
        .until_it_ends(&asked, &asks)?;
        let (successor, asker) = match end {
            ServerEnd::HandOver(successor, asker) => (successor, asker),
            ServerEnd::Stop(reason) => {
                watch_stop(&reason, asked);
                if let StopReason::Signal { .. } = reason {
                    running.serving.drain(config.stop_delay);
                }
                let (serving, _) = running.end_asking();
                watchdog.watch(Watched::Nothing);
                serving.stop()?;
                traces::stop(exporter);
                tracing::info!("stopped");
                return match reason {
                    StopReason::Signal { .. } => Ok(ExitCode::SUCCESS),
                    StopReason::FailedThread(thread) => Err(Code::Running.with(anyhow::anyhow!(
                        "the thread {thread} has failed; the log says why"
                    ))),
                };
            }
        };
        watchdog.watch(Watched::hand_over());
        let (serving, in_force) = running.end_asking();
        // What it runs with now: it may have to serve again.
        config.take_current(&in_force);
        let mut report = UpgradeReport {
            version: successor.version().to_owned(),
            ..UpgradeReport::default()
        };
        tracing::info!(
            version = report.version,
            "a successor takes the server over"
        );
        let begun = Instant::now();
        let (given, closing) = match serving.move_out(config.upgrade.drain) {
            Ok(moved) => moved,
            Err(failed) => {
                successor.dismiss();
                if let Some(asker) = asker {
                    let why = with_causes(&failed.error);
                    asker.answer(&UpgradeAnswer::Kept { why });
                }
                return Err(failed);
            }
        };
        let is_one_way = asker.as_ref().is_some_and(|asker| asker.request.one_way);
        (report.moved, report.closed) = (given.connections.len(), given.closed);
        let stays = attendant.is_none() && parent == Parent::Server;
        let attendant_then = attendant.or(stays.then(std::process::id));
        let close = || closing.close();
        match successor.hand_over(given, close, attendant_then, config.upgrade.timeout) {
            HandedOver::Done(successor) => {
                let paused_ms = begun.elapsed().as_millis() as u64;
                let process = successor.process.clone();
                tracing::info!(
                    successor = process.number(),
                    moved = report.moved,
                    closed = report.closed,
                    paused_ms,
                    "the successor serves"
                );
                (report.process, report.paused_ms) = (Some(process.number()), Some(paused_ms));
                if parent == Parent::ServiceManager {
                    service_manager::main_process(process.number());
                }
                drop(successor);
                watchdog.watch(Watched::Nothing);
                if let Some(asker) = asker {
                    asker.answer(&UpgradeAnswer::Done(report));
                }
                traces::stop(exporter);
                if stays {
                    return Ok(attend(process.number(), asked));
                }
                // An attendant sends them again itself.
                if attendant.is_none() && pass_on(&asked, &process) {
                    // A service manager that was stopping this process has not changed over to the successor.
                    process.wait();
                }
                return Ok(ExitCode::SUCCESS);
            }
            HandedOver::Kept { moved: kept, why } => {
                tracing::error!("{}", not_upgraded(&why));
                not_done = asker.map(|asker| (asker, with_causes(&why)));
                moved = Some(MovingIn::Here(take_back(kept)));
                retry = Some(Retry::new(is_one_way));
            }
        }
    }
}

/// The attempts to serve again after a failed upgrade.
struct Retry {
    /// Doubles with each attempt.
    pause: Duration,
    /// The successor may have written data that this program can't read.
    is_one_way: bool,
}

impl Retry {
    fn new(is_one_way: bool) -> Self {
        Retry {
            pause: RETRY_PAUSE_MIN,
            is_one_way,
        }
    }

    fn next_pause(&mut self) -> Duration {
        let doubled = (self.pause * 2).min(RETRY_PAUSE_MAX);
        std::mem::replace(&mut self.pause, doubled)
    }

    fn is_in_vain(&self, failed: &Failed) -> bool {
        self.is_one_way && matches!(failed.code, Code::Data)
    }
}

const RETRY_PAUSE_MIN: Duration = Duration::from_millis(20);

const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The connections of this process, which it serves again.
fn take_back(kept: MovedOut) -> MovedIn {
    let gate = StartGate::default();
    gate.open();
    MovedIn {
        listeners: kept.listeners,
        connections: kept.connections,
        authorities: kept.authorities,
        gate,
    }
}
