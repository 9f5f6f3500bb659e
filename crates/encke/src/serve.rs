//! `encke serve`: from settings to a running server, and down again.

use std::process::ExitCode;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use encke_server::{MovedIn, MovedOut, StartGate};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::asks::{AskedServer, ServerAsk, attend, catch, end_at_a_second_signal, pass_on};
use crate::config::SettingsArgs;
use crate::failure::{Code, Failed, with_causes};
use crate::obstacles;
use crate::reload::{Reloads, RunningServer};
use crate::serve_check::{print_check, resolve};
use crate::serving::{Outputs, Serving};
use crate::terminal::Terminal;
use crate::upgrade::{
    HandedOver, Launcher, MovingIn, Successor, SuccessorArgs, UpgradeAnswer, UpgradeAsker,
    UpgradeReport, UpgradeSocket, not_upgraded,
};
use crate::{exposure, program_log, service_manager, traces};

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
    let filter = program_log::start(&config).map_err(|error| Code::Usage.with(error))?;
    let exporter = match config.traces.start()? {
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
    // Before the log is opened, which can take long.
    if let Some(obstacle) = config.net.tls.as_ref().and_then(obstacles::of_tls) {
        return Err(obstacle.code.with(anyhow::anyhow!(obstacle.text)));
    }
    let (asks, mut asked) = mpsc::channel();
    let (failures, failed_thread) = (asks.clone(), OnceLock::new());
    encke_threads::on_failure(move |thread| {
        // It fails only if the server has ended.
        let _ = failures.send(ServerAsk::ThreadFailed(thread.to_owned()));
    });
    let (mut moved, mut taken_over) = match successor {
        None => (None, None),
        Some(successor) => {
            // What a start checks first, while the server still serves.
            let outputs = Outputs::open(&config).map_err(|error| Code::Usage.with(error))?;
            drop(outputs);
            let (moved, taken_over) = successor.take_over(&config)?;
            (Some(moved), Some(taken_over))
        }
    };
    // The process that waits for the end of this one.
    let mut attendant = None;
    // Who has asked for an upgrade that was not done, and why it was not.
    let mut not_done: Option<(UpgradeAsker, String)> = None;
    let mut signals = Some(signals);
    loop {
        let is_first = moved.is_none();
        let outputs = Outputs::open(&config).map_err(|error| Code::Usage.with(error))?;
        let mut serving = Serving::start((&config, &given), &outputs, moved.take())?;
        // Before the one who has asked for the upgrade is told that it is done: the next request finds it.
        let upgrades = UpgradeSocket::start(&config.data, asks.clone(), ServerAsk::Upgrade);
        if let Err(error) = &upgrades {
            tracing::warn!(%error, data = %config.data.display(), "the server can't be asked to upgrade");
        }
        if let Some(taken_over) = taken_over.take() {
            attendant = taken_over.serve()?;
        }
        serving.announce(&config, outputs, is_first)?;
        if let Some((asker, why)) = not_done.take() {
            asker.answer(&UpgradeAnswer::Kept { why });
        }
        let reloads = Reloads::start(RunningServer {
            settings: Arc::clone(&settings),
            config: config.clone(),
            access: serving.access.clone(),
            router: serving.router.clone(),
            address_limiter: serving.server.address_limiter(),
            filter: Arc::clone(&filter),
            metrics: serving.reload_metrics.clone(),
            configuration: Arc::clone(&serving.configuration),
        })?;
        if let Some(signals) = signals.take() {
            catch(signals, asks.clone())
                .context("the thread that waits for signals can't be started")?;
        }
        let upgrade = AskedServer {
            serving: &serving,
            reloads: &reloads,
            launcher: &launcher,
            config: &config,
            terminal: &terminal,
            failed_thread: &failed_thread,
        }
        .until_it_ends(&asked, &asks)?;
        let upgrade = match upgrade {
            Some(upgrade) => Some((upgrade, asked)),
            None => {
                end_at_a_second_signal(asked, failed_thread.get().is_some());
                None
            }
        };
        if let Ok(upgrades) = upgrades {
            upgrades.stop();
        }
        // What it runs with now: it may have to serve again.
        config.take_current(&reloads.stop());
        let Some(((successor, asker), still_asked)) = upgrade else {
            serving.stop()?;
            traces::stop(exporter);
            tracing::info!("stopped");
            return match failed_thread.into_inner() {
                None => Ok(ExitCode::SUCCESS),
                Some(thread) => Err(Code::Running.with(anyhow::anyhow!(
                    "the thread {thread} has failed; the log says why"
                ))),
            };
        };
        let mut report = UpgradeReport {
            version: successor.version().to_owned(),
            ..UpgradeReport::default()
        };
        tracing::info!(
            version = report.version,
            "a successor takes the server over"
        );
        let begun = Instant::now();
        let (given, closing) = serving.move_out(config.upgrade.drain)?;
        (report.moved, report.closed) = (given.connections.len(), given.closed);
        let stays = attendant.is_none() && !service_manager::follows();
        let attendant_then = attendant.or(stays.then(std::process::id));
        let close = || closing.close();
        match successor.hand_over(given, close, attendant_then, config.upgrade.timeout) {
            HandedOver::Done { successor } => {
                let paused_ms = begun.elapsed().as_millis() as u64;
                tracing::info!(
                    successor,
                    moved = report.moved,
                    closed = report.closed,
                    paused_ms,
                    "the successor serves"
                );
                (report.process, report.paused_ms) = (Some(successor), Some(paused_ms));
                service_manager::main_process(successor);
                if let Some(asker) = asker {
                    asker.answer(&UpgradeAnswer::Done(report));
                }
                traces::stop(exporter);
                if stays {
                    return Ok(attend(successor, still_asked));
                }
                // An attendant sends them again itself.
                if attendant.is_none() {
                    pass_on(&still_asked, successor);
                }
                return Ok(ExitCode::SUCCESS);
            }
            HandedOver::Kept { moved: kept, why } => {
                tracing::error!("{}", not_upgraded(&why));
                not_done = asker.map(|asker| (asker, with_causes(&why)));
                asked = still_asked;
                moved = Some(MovingIn::Here(take_back(kept)));
            }
        }
    }
}

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
