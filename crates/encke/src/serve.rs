//! `encke serve`: from settings to a running server, and down again.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use encke_access::Access;
use encke_backup::SnapshotServer;
use encke_log::Reader;
use encke_net::ReactorError;
use encke_protocol::{Admin, Policy, Probes, ProtocolSettings, Router};
use encke_server::{InspectionSources, ServedStreams, Server, ServerMetrics, StartError};
use encke_stream::{Logs, OrderKind};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, Given, LogFormat, SettingsArgs, effective, effective_json};
use crate::doctor;
use crate::explanation::RunningServer;
use crate::failure::{Code, Failed, with_causes};
use crate::keys::KeyFetcher;
use crate::log_output::{LogOutput, ReopenHandle};
use crate::node::{Node, Watch};
use crate::obstacles::{self, Obstacle};
use crate::service_manager::Watchdog;
use crate::terminal::Terminal;
use crate::{banner, descriptors, exposure, log_copies, log_filter, service_manager};

/// The arguments of `encke serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    settings: SettingsArgs,

    /// Print the effective configuration as TOML with the origin of each value, and what would keep the server from starting; exit
    #[arg(long)]
    check: bool,
}

/// Serves until a signal says to stop.
pub(crate) fn serve(mut args: ServeArgs) -> Result<ExitCode, Failed> {
    let inherited = service_manager::listener().map_err(|error| Code::Listen.with(error))?;
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
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
        .context("signals can't be caught")?;
    let settings = &args.settings;
    let (mut config, given, files) = resolve(settings)?;
    config.net.inherited = inherited.map(Arc::new);
    let filter = start_log(&config).map_err(|error| Code::Usage.with(error))?;
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
    let access_log = LogOutput::file_or_stdout("access log", config.access_log_file.clone())
        .map_err(|error| Code::Usage.with(error))?;
    let audit_log = LogOutput::file_or_stderr("audit log", config.audit_log_file.clone())
        .map_err(|error| Code::Usage.with(error))?;
    let reopen_handles = [access_log.reopen_handle(), audit_log.reopen_handle()];
    let access = match &config.access {
        Some(table) => Some(Arc::new(
            table.access().map_err(|error| Code::Usage.with(error))?,
        )),
        None => None,
    };
    let (mut server, node, readers) = start(&config, &given, access.clone())?;
    let snapshots = SnapshotServer::start(&config.data, readers);
    if let Err(error) = &snapshots {
        tracing::warn!(%error, data = %config.data.display(), "there can be no backups of this server");
    }
    let watch = match &node {
        Some(node) => Some(
            Watch::start(node.status(), server.dismissal())
                .context("the thread that watches the fleet can't be started")?,
        ),
        None => None,
    };
    let key_fetcher = match (&config.access, access) {
        (Some(table), Some(access)) => KeyFetcher::start(access, &table.config)
            .context("the thread that fetches keys can't be started")?,
        _ => None,
    };
    banner::announce(&server, &config);
    service_manager::ready(&format!("serving on {}", server.address()));
    let watchdog = Watchdog::start(server.liveness())
        .context("the thread that watches the shards can't be started")?;
    // Only now, so that the first line says where the server listens.
    let begun = server.write_access_log(Box::new(access_log));
    begun.context("the access log can't be started")?;
    let begun = server.write_audit_log(Box::new(audit_log));
    begun.context("the audit log can't be started")?;
    let signal = loop {
        match signals.forever().next() {
            Some(SIGHUP) if !terminal.is_closed() => {
                reopen_handles.iter().for_each(ReopenHandle::reopen);
                reload(settings, &filter);
                server.reload_tls();
            }
            signal => break signal,
        }
    };
    tracing::info!(?signal, "stopping; a second signal stops at once");
    service_manager::stopping();
    std::thread::spawn(move || {
        // A terminal that closes may send several SIGHUP: the kernel's, and one of the shell.
        if let Some(signal) = signals.forever().find(|signal| *signal != SIGHUP) {
            std::process::exit(128 + signal);
        }
    });
    if let Some(key_fetcher) = key_fetcher {
        key_fetcher.stop();
    }
    if let Some(watch) = watch {
        watch.stop();
    }
    if let Some(watchdog) = watchdog {
        watchdog.stop();
    }
    if let Ok(snapshots) = snapshots {
        snapshots.stop();
    }
    server.stop().context("the stop was not clean")?;
    if let Some(node) = node {
        node.leave();
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// The settings, and the limit on open files, which bounds the connections.
fn resolve(settings: &SettingsArgs) -> Result<(Config, Given, u64), Failed> {
    let (mut config, given) = settings
        .resolve()
        .map_err(|error| Code::Usage.with(error))?;
    let files = descriptors::raise();
    let room = descriptors::connections(files);
    config.net.connections_max = config.net.connections_max.min(room);
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

/// Starts the server. Also returns the readers of its logs.
fn start(
    config: &Config,
    given: &Given,
    access: Option<Arc<Access>>,
) -> Result<(Server, Option<Node>, Vec<Reader>), Failed> {
    if config.server.pools.evicts_records {
        refuse_to_forget_pools(config)?;
    }
    let began = std::time::Instant::now();
    let metrics = ServerMetrics::new().context("the metrics can't be set up")?;
    let (logs, node) = match config.fleet.settings(config.log_options.segment_bytes) {
        None => (restore(config, &config.log_options)?, None),
        Some(settings) => {
            let directories = directories(config)?;
            let registry = metrics.registry();
            let restore = &mut || restore(config, &config.log_options);
            log_copies::restore_and_join(&settings, &directories, registry, restore)
                .map(|(logs, node)| (logs, Some(node)))?
        }
    };
    let totals = logs.views.totals();
    tracing::info!(
        logs = logs.logs.len(),
        streams = totals.streams,
        changed = totals.in_memory,
        records = logs.logs.iter().map(|(_, log)| log.next_sequence() - 1).sum::<u64>(),
        took_ms = began.elapsed().as_millis() as u64,
        data = %config.data.display(),
        "the log is open"
    );
    let readers: Vec<_> = logs.logs.iter().map(|(_, log)| log.reader()).collect();
    let status = node.as_ref().map(Node::status).unwrap_or_default();
    let (rendered, shown, watched) = (metrics.clone(), status.clone(), readers.clone());
    let looked_at = status.clone();
    let is_ready = Arc::new(move || unready(&watched).or_else(|| looked_at.unready()));
    let probes = Probes {
        unready: Arc::clone(&is_ready) as Arc<_>,
        metrics: Arc::new(move || {
            shown.show();
            rendered.render()
        }),
    };
    let protocols = ProtocolSettings {
        in_fleet: node.is_some(),
        ..config.protocols.clone()
    };
    let configuration = effective_json(config, given);
    let (of_doctor, of_fleet) = (config.clone(), config.fleet.clone());
    let sources = InspectionSources {
        unready: Box::new(move || is_ready()),
        configuration: Box::new(move || configuration.clone()),
        doctor: Box::new(move || {
            doctor::of_running_server(&of_doctor).map_err(|error| error.to_string())
        }),
        fleet: Box::new(move || match &of_fleet.node {
            None => json!({ "node": null, "logs": [] }),
            Some(node) => json!({ "node": node.to_string(), "logs": status.to_json() }),
        }),
        explain: Box::new(RunningServer {
            access: access.clone(),
            settings: protocols.clone(),
        }),
    };
    let router = Router::new(
        Arc::clone(&logs.views),
        protocols,
        config.gate(access),
        Admin::new(probes, config.server.pools.evicts_records),
    );
    let streams = ServedStreams {
        logs,
        level: config.ack,
        fleet: node.as_ref().map(Node::links),
    };
    let (net, settings) = (config.net.clone(), &config.server);
    let server = Server::start(net, settings, &router, streams, &metrics, sources);
    let server = server.map_err(|error| match error {
        StartError::Reactor(ReactorError::Listen {
            address,
            ref source,
        }) => Code::Listen.with(anyhow::anyhow!(
            "{}",
            obstacles::cannot_listen(config, address, *source)
        )),
        StartError::Pools(_) | StartError::Revocations(_) => Code::Data.with(error),
        StartError::Reactor(ReactorError::Tls(_)) => Code::Usage.with(error),
        error => Code::Running.with(error),
    })?;
    if let Some(node) = &node {
        node.show_activity(&server);
    }
    Ok((server, node, readers))
}

/// Opens all logs.
fn restore(config: &Config, options: &encke_log::Options) -> Result<Logs, Failed> {
    let now = encke_net::now().steady;
    let directories = directories(config)?;
    let opened = || -> anyhow::Result<Logs> {
        for directory in &directories {
            if encke_log::finish_copy(directory)? {
                tracing::warn!(log = %directory.display(), "the copy of another node's log is in its place");
            }
        }
        if directories.len() > 1 {
            directories
                .iter()
                .try_for_each(|directory| encke_log::preflight(directory))?;
        }
        let order = match config.fleet.brokers {
            Some(_) => OrderKind::Replicated,
            None => OrderKind::Local,
        };
        let logs = encke_stream::restore_all(&directories, order, options, config.limits, now)?;
        Ok(logs)
    };
    opened()
        .with_context(|| format!("the data in {} can't be used", config.data.display()))
        .map_err(|error| Code::Data.with(error))
}

/// The directories of all logs, by index.
fn directories(config: &Config) -> Result<Vec<std::path::PathBuf>, Failed> {
    let obstacle = obstacles::of_path(&config.data).or_else(|| obstacles::of_file_size(config));
    if let Some(obstacle) = obstacle {
        return Err(obstacle.code.with(anyhow::anyhow!(obstacle.text)));
    }
    encke_log::arrange(&config.data, config.logs)
        .with_context(|| format!("the data in {} can't be used", config.data.display()))
        .map_err(|error| Code::Data.with(error))
}

/// Why the server does not do all that it is there for: of several logs one may have failed.
fn unready(logs: &[Reader]) -> Option<String> {
    let reason = |(log, reader): (usize, &Reader)| {
        let health = reader.health();
        // A full disk refuses what it has no room for, and takes and gives everything else.
        let history_failed = health.history_failed.filter(|_| !health.history_lacks_room);
        let failed = health.poisoned.or(history_failed);
        let reason = failed.or(health.reads_failing)?;
        Some(match logs.len() {
            1 => reason.to_string(),
            _ => format!("log {log}: {reason}"),
        })
    };
    let reasons: Vec<String> = logs.iter().enumerate().filter_map(reason).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Looks for pools before the log removes records, because these would include waiting jobs.
fn refuse_to_forget_pools(config: &Config) -> Result<(), Failed> {
    let options = encke_log::Options {
        retention: encke_log::LogRetention::default(),
        ..config.log_options.clone()
    };
    let pools = encke_server::pools(&restore(config, &options)?)
        .with_context(|| format!("the data in {} can't be used", config.data.display()))
        .map_err(|error| Code::Data.with(error))?;
    match obstacles::of_forgotten_pools(&pools) {
        None => Ok(()),
        Some(obstacle) => Err(obstacle.code.with(anyhow::anyhow!(obstacle.text))),
    }
}

/// Replaces the filter of the log.
type FilterHandle = Box<dyn Fn(EnvFilter) -> anyhow::Result<()>>;

/// Reads the configuration anew and applies what can change while the server runs: the filter of the log. A wrong
/// configuration changes nothing.
fn reload(settings: &SettingsArgs, replace_filter: &FilterHandle) {
    let reloaded = settings.resolve().and_then(|(config, _)| {
        replace_filter(filter(&config)?)?;
        Ok(config.log)
    });
    match reloaded {
        Ok(log) => tracing::info!(
            log,
            "reloaded the filter of the log; other settings need a restart"
        ),
        Err(error) => tracing::error!(error = with_causes(&error), "nothing was reloaded"),
    }
}

fn filter(config: &Config) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(log_filter::without_internals(&config.log))
        .with_context(|| format!("--log {:?} is no filter", config.log))
}

fn start_log(config: &Config) -> anyhow::Result<FilterHandle> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(config)?)
        .with_ansi(std::io::stderr().is_terminal())
        // It would say on standard error that standard error can't be written to, and panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    Ok(match config.log_format {
        LogFormat::Human => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Box::new(move |filter| Ok(handle.reload(filter)?))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Box::new(move |filter| Ok(handle.reload(filter)?))
        }
    })
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
