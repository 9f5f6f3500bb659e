//! `encke serve`: from settings to a running server, and down again.

use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use encke_protocol::Policy;
use encke_server::{MovedIn, MovedOut, StartGate};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use crate::config::{Config, Given, SettingsArgs, effective};
use crate::failure::{Code, Failed, with_causes};
use crate::obstacles::{self, Obstacle};
use crate::reload::{Reloads, RunningServer};
use crate::serving::{Outputs, Serving};
use crate::terminal::Terminal;
use crate::upgrade::{
    Attendant, HandedOver, Launcher, MovingIn, PreparedSuccessor, ServerShape, Successor,
    UpgradeAnswer, UpgradeAsker, UpgradeReport, UpgradeRequest, UpgradeSocket, not_upgraded,
};
use crate::{descriptors, exposure, program_log, service_manager, traces};

/// The arguments of `encke serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    settings: SettingsArgs,

    /// Print the effective configuration as TOML with the origin of each value, and what would keep the server from starting; exit
    #[arg(long)]
    check: bool,

    /// Take over from the server that has started this process
    #[arg(long, hide = true)]
    successor: bool,
}

/// Serves until a signal says to stop, or a successor serves.
pub(crate) fn serve(args: ServeArgs) -> Result<ExitCode, Failed> {
    if !args.successor {
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
    let launcher = Launcher::of_this_process()?;
    let inherited = match successor {
        // The listeners are those of the server before, wherever it has them from.
        Some(_) => None,
        None => service_manager::listener().map_err(|error| Code::Listen.with(error))?,
    };
    if let Some(listener) = &inherited {
        let address = listener
            .local_addr()
            .context("the listener of the service manager has no address")?;
        args.settings.listen_on(address);
    }
    if args.check {
        return print_check(&args.settings);
    }
    // Signals are caught before there is anything that they could interrupt: one that comes during the start ends it cleanly.
    let terminal = Terminal::of_this_process();
    let mut signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2])
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
    let mut catching = Some(move |asks: mpsc::Sender<Ask>| {
        for origin in signals.forever() {
            let signal = origin.signal;
            let asked = match origin.cause {
                Cause::Kernel => Ask::TerminalSignal(signal),
                _ => Ask::Signal(signal),
            };
            if asks.send(asked).is_err() {
                // The server has stopped.
                return;
            }
        }
    });
    loop {
        let is_first = moved.is_none();
        let outputs = Outputs::open(&config).map_err(|error| Code::Usage.with(error))?;
        let mut serving = Serving::start((&config, &given), &outputs, moved.take())?;
        // Before the one who has asked for the upgrade is told that it is done: the next request finds it.
        let upgrades = UpgradeSocket::start(&config.data, asks.clone(), Ask::Upgrade);
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
        if let Some(mut catch) = catching.take() {
            let asks = asks.clone();
            std::thread::Builder::new()
                .name("signals".into())
                .spawn(move || catch(asks))
                .context("the thread that waits for signals can't be started")?;
        }
        // A successor reads its configuration, for this one.
        let mut preparing: Option<Preparation> = None;
        let upgrade = loop {
            match asked.recv().context("nothing asks any more")? {
                Ask::Signal(SIGHUP) | Ask::TerminalSignal(SIGHUP) if !terminal.is_closed() => {
                    serving.reopen_logs();
                    reloads.ask();
                    serving.server.reload_tls();
                }
                Ask::Signal(SIGUSR2) if preparing.is_some() => {}
                Ask::Signal(SIGUSR2) => {
                    preparing = prepare(&launcher, &config, Preparation::default(), &asks);
                }
                Ask::Signal(signal) | Ask::TerminalSignal(signal) => {
                    tracing::info!(signal, "stopping; a second signal stops at once");
                    break None;
                }
                Ask::Upgrade(asker) if preparing.is_some() => {
                    let why = "another successor is being prepared".to_owned();
                    asker.answer(&UpgradeAnswer::Kept { why });
                }
                Ask::Upgrade(asker) => {
                    let asked = Preparation::of(asker);
                    preparing = prepare(&launcher, &config, asked, &asks);
                }
                Ask::Prepared(prepared) => {
                    let Preparation { request, asker } = preparing.take().unwrap_or_default();
                    match prepared {
                        Err(why) => refuse(asker, &why),
                        Ok(successor) if request.check => {
                            let answer = could_upgrade(&serving, successor);
                            if let Some(asker) = asker {
                                asker.answer(&answer);
                            }
                        }
                        Ok(successor) => break Some((successor, asker)),
                    }
                }
            }
        };
        let upgrade = match upgrade {
            Some(upgrade) => Some((upgrade, asked)),
            None => {
                end_at_a_second_signal(asked);
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
            return Ok(ExitCode::SUCCESS);
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

/// What the main thread is asked for.
enum Ask {
    Signal(i32),
    /// The terminal has sent it to all processes of its foreground.
    TerminalSignal(i32),
    Upgrade(UpgradeAsker),
    /// A successor has been started, and can go on or not.
    Prepared(anyhow::Result<PreparedSuccessor>),
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

/// Starts a successor, beside which the server goes on until it is prepared. A thread waits for it. `None`: there is none, and the one who
/// has asked knows.
fn prepare(
    launcher: &Launcher,
    config: &Config,
    asked: Preparation,
    asks: &mpsc::Sender<Ask>,
) -> Option<Preparation> {
    let (shape, timeout) = (ServerShape::of(config), config.upgrade.timeout);
    let is_one_way = asked.request.one_way;
    let asks = asks.clone();
    let started = launcher.start(asked.request.program.as_deref());
    let waits = started.and_then(|successor| {
        let thread = std::thread::Builder::new().name("successor".to_owned());
        thread.spawn(move || {
            let prepared = successor.prepared(&shape, is_one_way, timeout);
            // The server stops, and so does the successor.
            if let Err(mpsc::SendError(Ask::Prepared(Ok(successor)))) =
                asks.send(Ask::Prepared(prepared))
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
/// kernel's and one of the shell.
fn end_at_a_second_signal(asked: mpsc::Receiver<Ask>) {
    std::thread::spawn(move || {
        for ask in asked {
            match ask {
                Ask::Signal(SIGHUP | SIGUSR2) | Ask::TerminalSignal(SIGHUP) => {}
                Ask::Signal(signal) | Ask::TerminalSignal(signal) => {
                    std::process::exit(128 + signal);
                }
                ask => too_late(ask),
            }
        }
    });
}

/// Signals that came meanwhile are for the successor. What a terminal sends, it gets as well.
fn pass_on(asked: &mpsc::Receiver<Ask>, successor: u32) {
    let successor = i32::try_from(successor).ok().and_then(Pid::from_raw);
    while let Ok(ask) = asked.try_recv() {
        match ask {
            Ask::Signal(signal) => {
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
fn attend(successor: u32, asked: mpsc::Receiver<Ask>) -> ExitCode {
    let attendant = Arc::new(Attendant::of(successor));
    let passing = Arc::clone(&attendant);
    let thread = std::thread::Builder::new().name("signals-on".to_owned());
    let passes = thread.spawn(move || {
        for ask in asked {
            match ask {
                Ask::Signal(signal) => passing.pass_on(signal),
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
fn too_late(ask: Ask) {
    match ask {
        Ask::Upgrade(asker) => {
            let why = "the server stops, or is being upgraded already".to_owned();
            asker.answer(&UpgradeAnswer::Kept { why });
        }
        Ask::Prepared(Ok(successor)) => successor.dismiss(),
        Ask::Prepared(Err(_)) | Ask::Signal(_) | Ask::TerminalSignal(_) => {}
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

/// The settings, and the limit on open files, which bounds the connections.
fn resolve(settings: &SettingsArgs) -> Result<(Config, Given, u64), Failed> {
    let (mut config, given) = settings
        .resolve()
        .map_err(|error| Code::Usage.with(error))?;
    let files = descriptors::bound(&mut config);
    Ok((config, given, files))
}

/// Prints what `--check` is for, and exits as a start would.
fn print_check(settings: &SettingsArgs) -> Result<ExitCode, Failed> {
    let (config, given, files) = resolve(settings)?;
    let obstacles = obstacles::all(&config);
    print!("{}", check(&config, &given, (files, &obstacles)));
    let code = obstacles.first().map(|first| first.code.into());
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}

/// The output of `--check`: the effective configuration, below comments on this machine and the data directory.
fn check(config: &Config, given: &Given, (files, obstacles): (u64, &[Obstacle])) -> String {
    let data = match std::fs::read_dir(&config.data).map(Iterator::count) {
        Ok(0) => "exists, empty",
        Ok(_) => "exists",
        Err(_) => "does not exist, will be created",
    };
    let access = access(config);
    let operators = match config.net.operators_listen {
        Some(address) => format!("http://{address}, without credentials"),
        None => "the address of clients".to_owned(),
    };
    let pools = match config.server.pools.evicts_records {
        true => {
            "none, because retention-age or retention-size is set; with pools in its data the server does not start"
        }
        false => "allowed",
    };
    let mut text = String::from(
        "# The effective configuration of encke serve, with the origin of each value.\n",
    );
    let warnings = config.net.tls.as_ref().map(encke_net::check_tls);
    for warning in warnings.and_then(Result::ok).unwrap_or_default() {
        let file = warning.path.display();
        text.push_str(&format!("# warning: {file}: {}\n", warning.why));
    }
    for warning in exposure::warnings(config) {
        text.push_str(&format!("# warning: {warning}\n"));
    }
    for obstacle in obstacles {
        text.push_str(&format!(
            "# The server would not start: {}\n",
            obstacle.text
        ));
    }
    for (what, state) in [
        ("data directory", data),
        ("access", &access),
        ("operators", &operators),
        ("pools", pools),
        (
            "open files",
            &format!(
                "{files} at most, {} of them for connections",
                descriptors::connections(files)
            ),
        ),
    ] {
        text.push_str(&format!("# {what}: {state}\n"));
    }
    text + &effective(config, given)
}

/// Who may do what: asks the gate of the server.
fn access(config: &Config) -> String {
    let table = config.access.as_ref();
    let reach = match config.net.listen.ip().is_loopback() {
        true => "this machine only",
        false => "every machine that reaches the address",
    };
    // The table was read before.
    let access = table.and_then(|table| table.access().ok()).map(Arc::new);
    match (config.gate(access).access, table) {
        (Policy::Controlled(_), Some(table)) => {
            format!("{reach}, as the table [access] says: {}", table.summary())
        }
        (Policy::Local, _) => reach.to_owned(),
        (Policy::Open | Policy::Controlled(_), _) => {
            format!("{reach}; there is no access control")
        }
    }
}
