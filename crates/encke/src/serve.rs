//! `encke serve`: from settings to a running server, and down again.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use encke_log::Reader;
use encke_net::{Metrics, ServedStreams, Server, StartError};
use encke_protocol::{Admin, Probes, Router};
use encke_stream::Logs;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, Given, LogFormat, ServeArgs, effective};
use crate::{Code, Failed, descriptors};

/// Serves until a signal says to stop.
pub(crate) fn serve(args: ServeArgs) -> Result<ExitCode, Failed> {
    let only_check = args.check();
    let (mut config, given) = args.resolve().map_err(|error| Code::Usage.with(error))?;
    let files = descriptors::raise();
    let room = descriptors::connections(files);
    config.net.connections_max = config.net.connections_max.min(room);
    if only_check {
        print!("{}", check(&config, &given, files));
        return Ok(ExitCode::SUCCESS);
    }
    start_log(&config).map_err(|error| Code::Usage.with(error))?;
    tracing::info!(
        open_files_max = files,
        connections_max = config.net.connections_max,
        "the limit on open files bounds the connections"
    );
    // Signals are caught before there is anything that they could interrupt.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])
        .context("signals can't be caught")?;
    let server = start(&config)?;
    announce(&server, &config);
    let signal = signals.forever().next();
    tracing::info!(?signal, "stopping; a second signal stops at once");
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(128 + signal);
        }
    });
    server.stop().context("the stop was not clean")?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn start(config: &Config) -> Result<Server, Failed> {
    if config.net.pools.forgets {
        refuse_to_forget_pools(config)?;
    }
    let began = std::time::Instant::now();
    let logs = restore(config, &config.log_options)?;
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
    let metrics = Metrics::new().context("the metrics can't be set up")?;
    let readers: Vec<_> = logs.logs.iter().map(|(_, log)| log.reader()).collect();
    let rendered = metrics.clone();
    let probes = Probes {
        unready: Arc::new(move || unready(&readers)),
        metrics: Arc::new(move || rendered.render()),
    };
    let router = Router::new(
        Arc::clone(&logs.views),
        config.protocols.clone(),
        Admin::new(probes),
    );
    let streams = ServedStreams {
        logs,
        level: config.ack,
    };
    Server::start(config.net.clone(), &router, streams, &metrics).map_err(|error| match error {
        StartError::Listen { .. } => Code::Listen.with(error),
        StartError::Pools(_) => Code::Data.with(error),
        error => Code::Running.with(error),
    })
}

/// Opens all logs.
fn restore(config: &Config, options: &encke_log::Options) -> Result<Logs, Failed> {
    let now_ms = encke_net::now_ms();
    encke_log::arrange(&config.data, config.logs)
        .map_err(anyhow::Error::from)
        .and_then(|dirs| {
            if dirs.len() > 1 {
                dirs.iter().try_for_each(|dir| encke_log::preflight(dir))?;
            }
            let logs = encke_stream::restore_all(&dirs, options, config.limits, now_ms)?;
            Ok(logs)
        })
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

/// Looks for pools before the log lets go of anything, because jobs that wait would be among it.
fn refuse_to_forget_pools(config: &Config) -> Result<(), Failed> {
    let options = encke_log::Options {
        retention: Vec::new(),
        ..config.log_options.clone()
    };
    let pools = encke_net::pools(&restore(config, &options)?)
        .with_context(|| format!("the data in {} can't be used", config.data.display()))
        .map_err(|error| Code::Data.with(error))?;
    match &pools[..] {
        [] => Ok(()),
        [first, ..] => Err(Code::Usage.with(anyhow::anyhow!(
            "--retention-age and --retention-size would let go of jobs that wait, and there are {} pools, {first:?} \
             among them: leave both out, or remove the pools first",
            pools.len(),
        ))),
    }
}

/// Says where it listens and what to try; the first line is for scripts.
fn announce(server: &Server, config: &Config) {
    let url = format!("http://{}", server.address());
    let text = format!(
        "listening on {url}\n\
         \n\
         Try it:\n\
         \n\
         \x20 curl -X PUT {url}/v1/stream/hello -H 'Content-Type: text/plain'\n\
         \x20 curl -N '{url}/v1/stream/hello?offset=-1&live=sse' &\n\
         \x20 curl {url}/v1/stream/hello -H 'Content-Type: text/plain' -d 'Hello, world'\n\
         \n\
         Health {url}/readyz, metrics {url}/metrics. Data in {}. Stop with Ctrl-C.\n",
        config.data.display(),
    );
    let mut out = std::io::stdout().lock();
    // Nobody has to read it.
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

fn start_log(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.log)
        .with_context(|| format!("--log {:?} is no filter", config.log))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        // It would say on standard error that standard error can't be written to, and panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Human => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// The output of `--check`: the effective configuration, below comments on this machine and the data directory.
fn check(config: &Config, given: &Given, files: u64) -> String {
    let data = match (
        std::fs::read_dir(&config.data).map(Iterator::count),
        logs_there(&config.data),
    ) {
        (_, Err(error)) => format!("the server would not start: {error}"),
        (_, Ok(Some(there))) if there != config.logs => format!(
            "the server would not start: the number of logs can't be changed, and there are {there}"
        ),
        (Ok(0), _) => "exists, empty".to_owned(),
        (Ok(_), _) => "exists".to_owned(),
        (Err(_), _) => "does not exist, will be created".to_owned(),
    };
    let access = match config.net.listen.ip().is_loopback() {
        true => "this machine only",
        false => "every machine that reaches the address; there is no access control",
    };
    let pools = match config.net.pools.forgets {
        true => {
            "none, because retention-age or retention-size is set; with pools in its data the server does not start"
        }
        false => "allowed",
    };
    let mut text = String::from(
        "# The effective configuration of encke serve, with the origin of each value.\n",
    );
    for (what, state) in [
        ("data directory", data.as_str()),
        ("access", access),
        ("pools", pools),
        (
            "open files",
            &format!("{files} at most, which bounds connections-max"),
        ),
    ] {
        // An error may have several lines.
        text.push_str(&format!("# {what}: {}\n", state.replace(['\n', '\r'], " ")));
    }
    text + &effective(config, given)
}

/// How many logs a directory holds, if it holds any.
fn logs_there(data: &std::path::Path) -> Result<Option<usize>, encke_log::LayoutError> {
    let there = encke_log::logs_in(data)?.len();
    let holds = there > 1 || encke_log::Files::holds_log(data).unwrap_or(false);
    Ok(holds.then_some(there))
}
