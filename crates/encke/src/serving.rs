//! A server that runs, with everything that runs beside it: the node of a fleet, the socket for backups in the data
//! directory, the logs of requests.

use std::sync::Arc;

use anyhow::Context;
use encke_access::Access;
use encke_backup::{SnapshotMetrics, SnapshotServer};
use encke_log::Reader;
use encke_net::ReactorError;
use encke_presence::Presence;
use encke_protocol::{
    Admin, PRESENCE_LIMITS, PresenceStreams, Probes, ProtocolSettings, PusherSettings, ReadyState,
    Router,
};
use encke_server::{
    ClosingServer, DeliveryHealth, InspectionSources, MovedIn, MovedOut, ServedStreams, Server,
    ServerMetrics, StartError,
};
use encke_stream::{Logs, OrderKind};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::time::Duration;

use crate::config::{Config, Given, PresenceTable, effective_json};
use crate::doctor;
use crate::explanation::ServerExplainer;
use crate::failure::{Code, Failed};
use crate::log_output::{LogOutput, ReopenHandle};
use crate::node::{Node, Watch};
use crate::reload::ReloadMetrics;
use crate::upgrade::MovingIn;
use crate::{log_copies, obstacles, service_manager, stderr_queue};

/// A server that runs.
pub(crate) struct Serving {
    pub(crate) server: Server,
    pub(crate) access: Option<Arc<Access>>,
    pub(crate) router: Router,
    pub(crate) reload_metrics: ReloadMetrics,
    /// What the page of operators shows of the configuration.
    pub(crate) configuration: Arc<Mutex<Value>>,
    health: DeliveryHealth,
    node: Option<Node>,
    snapshots: std::io::Result<SnapshotServer>,
    watch: Option<Watch>,
    reopen_handles: [ReopenHandle; 2],
}

/// Where the logs of requests go.
pub(crate) struct Outputs {
    access: LogOutput,
    audit: LogOutput,
}

/// The rest of a server that has given its connections away.
pub(crate) struct Closing {
    server: ClosingServer,
    node: Option<Node>,
}

impl Outputs {
    /// Opens their files.
    pub(crate) fn open(config: &Config) -> anyhow::Result<Self> {
        Ok(Outputs {
            access: LogOutput::file_or_stdout("access log", config.access_log_file.clone())?,
            audit: LogOutput::file_or_stderr("audit log", config.audit_log_file.clone())?,
        })
    }
}

impl Serving {
    /// Opens the log and starts all threads. With `moved` it listens where the process before does. It serves after [`Serving::admit`].
    ///
    /// # Errors
    /// Nothing is left of the attempt, but for threads that still end.
    pub(crate) fn start(
        (config, given): (&Config, &Given),
        outputs: &Outputs,
        moved: Option<&mut MovingIn>,
    ) -> Result<Self, Failed> {
        let reopen_handles = [
            outputs.access.reopen_handle(),
            outputs.audit.reopen_handle(),
        ];
        let access = match &config.access {
            Some(table) => Some(Arc::new(
                table.access().map_err(|error| Code::Usage.with(error))?,
            )),
            None => None,
        };
        let Started {
            server,
            node,
            readers,
            router,
            reload_metrics,
            snapshot_metrics,
            configuration,
            health,
        } = start((config, given), access.clone(), moved)?;
        let snapshots = SnapshotServer::start(&config.data, readers, snapshot_metrics);
        if let Err(error) = &snapshots {
            tracing::warn!(%error, data = %config.data.display(), "there can be no backups of this server");
        }
        let mut serving = Serving {
            server,
            access,
            router,
            reload_metrics,
            configuration,
            health,
            node,
            snapshots,
            watch: None,
            reopen_handles,
        };
        let Some(node) = &serving.node else {
            return Ok(serving);
        };
        match Watch::start(node.status(), serving.server.dismissal()) {
            Ok(watch) => {
                serving.watch = Some(watch);
                Ok(serving)
            }
            Err(error) => {
                serving.abandon();
                Err(error)
                    .context("the thread that watches the fleet can't be started")
                    .map_err(Failed::from)
            }
        }
    }

    /// Takes over the connections of the process before, if there is one. Clients are served once the gate opens.
    ///
    /// # Errors
    /// The connections are lost, because a thread of this server has ended, or the system refuses the last thread.
    pub(crate) fn admit(&mut self, moved: Option<MovingIn>) -> Result<(), Failed> {
        let moved = match moved {
            Some(moved) => moved.all()?,
            None => {
                let nothing = MovedIn::default();
                nothing.gate.open();
                nothing
            }
        };
        let admitted = self.server.admit(moved);
        admitted.map_err(|error| Code::Running.with(error))
    }

    /// Begins to write the logs of requests.
    pub(crate) fn write_logs(&mut self, outputs: Outputs) -> Result<(), Failed> {
        let begun = self.server.write_access_log(Box::new(outputs.access));
        begun.context("the access log can't be started")?;
        let begun = self.server.write_audit_log(Box::new(outputs.audit));
        begun.context("the audit log can't be started")?;
        Ok(())
    }

    /// Has the files of the logs of requests opened again.
    pub(crate) fn reopen_logs(&self) {
        self.reopen_handles.iter().for_each(ReopenHandle::reopen);
    }

    /// Serves as before for this long, but is not ready.
    pub(crate) fn drain(&self, delay: Duration) {
        if !delay.is_zero() {
            service_manager::stopping();
            self.health.end_readiness();
            tracing::info!(
                ?delay,
                "not ready from now on, and stopping later (tuning.stop-delay)"
            );
            std::thread::sleep(delay);
        }
    }

    /// Stops it.
    pub(crate) fn stop(self) -> Result<(), Failed> {
        service_manager::stopping();
        let (server, node) = self.stop_beside(SnapshotServer::stop);
        server.stop().context("the stop was not clean")?;
        if let Some(node) = node {
            node.leave();
        }
        Ok(())
    }

    /// Finishes requests and gives all connections away. What is still in work after `patience` is cut off.
    pub(crate) fn move_out(self, patience: Duration) -> Result<(MovedOut, Closing), Failed> {
        let (server, node) = self.stop_beside(SnapshotServer::hand_over);
        let (moved, server) = server
            .move_out(patience)
            .context("the server could not be handed over")?;
        Ok((moved, Closing { server, node }))
    }

    /// Ends a server that has not begun to serve.
    pub(crate) fn abandon(self) {
        let (server, node) = self.stop_beside(SnapshotServer::hand_over);
        if let Err(error) = server.stop() {
            tracing::warn!(%error, "a server that was not started completely did not end cleanly");
        }
        if let Some(node) = node {
            node.leave();
        }
    }

    /// Stops what runs beside the server.
    fn stop_beside(self, end_snapshots: fn(SnapshotServer)) -> (Server, Option<Node>) {
        if let Some(watch) = self.watch {
            watch.stop();
        }
        if let Ok(snapshots) = self.snapshots {
            end_snapshots(snapshots);
        }
        (self.server, self.node)
    }
}

impl Closing {
    /// Closes the log, which another process may then open.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        let closed = self.server.close();
        if let Some(node) = self.node {
            node.leave();
        }
        Ok(closed?)
    }
}

/// A server that runs, and what it was put together of.
struct Started {
    server: Server,
    node: Option<Node>,
    /// Of its logs.
    readers: Vec<Reader>,
    router: Router,
    reload_metrics: ReloadMetrics,
    snapshot_metrics: SnapshotMetrics,
    configuration: Arc<Mutex<Value>>,
    health: DeliveryHealth,
}

/// Starts the server.
fn start(
    (config, given): (&Config, &Given),
    access: Option<Arc<Access>>,
    moved: Option<&mut MovingIn>,
) -> Result<Started, Failed> {
    let began = std::time::Instant::now();
    let metrics = ServerMetrics::new().context("the metrics can't be set up")?;
    let reload_metrics = ReloadMetrics::new(metrics.registry());
    let reload_metrics = reload_metrics.context("the metrics of reloads can't be set up")?;
    let snapshot_metrics = SnapshotMetrics::new(metrics.registry());
    let snapshot_metrics = snapshot_metrics.context("the metrics of backups can't be set up")?;
    if let Some(queue) = stderr_queue::started() {
        let registered = metrics.show_queue(queue.dropped(), queue.watch());
        registered.context("the metrics of the program log can't be set up")?;
    }
    let (logs, node) = match config.fleet.settings(&config.log_options) {
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
    let health = DeliveryHealth::new(config.server.health);
    let (probed, looked_back, kept) = (health.clone(), health.clone(), health.clone());
    let looked_at = status.clone();
    // What is known by itself, without a probe.
    let obstacle = Arc::new(move || unready(&watched).or_else(|| looked_at.unready()));
    let known = Arc::clone(&obstacle);
    let (brokers, shown_brokers) = (status.clone(), status.clone());
    let probes = Probes {
        // What is known by itself comes first, because a probe would only wait.
        readiness: Arc::new(move || match known() {
            Some(why) => ReadyState::NotReady(why),
            // The record of a probe shows whether the brokers store again.
            None => match (probed.readiness(), brokers.unstored()) {
                (ReadyState::Ready | ReadyState::NotReady(_), Some(why)) => {
                    ReadyState::NotReady(why)
                }
                (state, _) => state,
            },
        }),
        metrics: Arc::new(move || {
            shown.show();
            rendered.render()
        }),
    };
    let pusher = match &config.pusher {
        Some(table) => table.settings().map_err(|error| Code::Usage.with(error))?,
        None => PusherSettings::default(),
    };
    let protocols = ProtocolSettings {
        in_fleet: node.is_some(),
        presence: presence(config, node.as_ref(), pusher.prefixes())?,
        pusher,
        subscriptions: Arc::clone(&config.server.subscriptions.published),
        ..config.protocols.clone()
    };
    let configuration = Arc::new(Mutex::new(effective_json(config, given, &[])));
    let shown_configuration = Arc::clone(&configuration);
    let (of_doctor, of_fleet) = (config.clone(), config.fleet.clone());
    let sources = InspectionSources {
        unready: Box::new(move || {
            let unstored = || shown_brokers.unstored();
            obstacle()
                .or_else(unstored)
                .or_else(|| looked_back.stalled())
        }),
        configuration: Box::new(move || shown_configuration.lock().clone()),
        doctor: Box::new(move || {
            doctor::of_running_server(&of_doctor).map_err(|error| error.to_string())
        }),
        fleet: Box::new(move || match &of_fleet.node {
            None => json!({ "node": null, "logs": [] }),
            Some(node) => json!({ "node": node.to_string(), "logs": status.to_json() }),
        }),
        explain: Box::new(ServerExplainer {
            access: access.clone(),
            settings: protocols.clone(),
        }),
    };
    let router = Router::new(
        Arc::clone(&logs.views),
        protocols,
        config.gate(access),
        Admin::new(probes),
    );
    let streams = ServedStreams {
        logs,
        level: config.ack,
        fleet: node.as_ref().map(Node::links),
        health,
    };
    let listeners = moved.map(MovingIn::listeners).transpose()?;
    let (net, settings) = (config.net.clone(), &config.server);
    let server = Server::start(
        net, settings, &router, streams, &metrics, listeners, sources,
    );
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
    });
    let server = match server {
        Ok(server) => server,
        Err(failed) => {
            if let Some(node) = node {
                node.leave();
            }
            return Err(failed);
        }
    };
    if let Some(node) = &node {
        node.show_activity(&server);
    }
    Ok(Started {
        server,
        node,
        readers,
        router,
        reload_metrics,
        snapshot_metrics,
        configuration,
        health: kept,
    })
}

/// Who is subscribed to what: nobody yet. `reserved`: what the names of streams begin with whose members a protocol brings.
fn presence(
    config: &Config,
    node: Option<&Node>,
    reserved: Vec<Box<str>>,
) -> Result<Arc<PresenceStreams>, Failed> {
    let registry = match node {
        None => Presence::new(PRESENCE_LIMITS),
        Some(node) => Presence::in_fleet(PRESENCE_LIMITS, node.presence()?),
    };
    let rules = config.presence.as_ref().map(PresenceTable::rules);
    let rules = rules.transpose().map_err(|error| Code::Usage.with(error))?;
    Ok(PresenceStreams::with_rules(
        registry,
        rules.unwrap_or_default(),
        reserved,
    ))
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

/// The directories of all logs, by index. This process keeps them locked.
fn directories(config: &Config) -> Result<Vec<std::path::PathBuf>, Failed> {
    let obstacle = obstacles::of_path(&config.data).or_else(|| obstacles::of_file_size(config));
    if let Some(obstacle) = obstacle {
        return Err(obstacle.code.with(anyhow::anyhow!(obstacle.text)));
    }
    let arranged = || -> anyhow::Result<Vec<std::path::PathBuf>> {
        let directories = encke_log::arrange(&config.data, config.logs)?;
        for directory in &directories {
            encke_log::hold_directory(directory)?;
        }
        Ok(directories)
    };
    arranged()
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
