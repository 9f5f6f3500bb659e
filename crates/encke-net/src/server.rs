//! The server: starts and stops shards, readers, sequencers and the dispatcher.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use encke_jobs::DispatcherMessage;
use encke_log::CommitError;
use encke_mailbox::{Bounds, mailbox};
use encke_protocol::Router;
use encke_stream::{
    AckLevel, Committed, InlineCommit, Logs, Outlet, ReplicaSequencer, Sequencer, Sequencers, Views,
};
use prometheus::IntGauge;

use crate::access_log::{AccessLogQueue, AccessLogThread, RequestIds, access_log};
use crate::archive::Archive;
use crate::audit::{AuditQueue, AuditThread, audit_log};
use crate::buffers::Buffers;
use crate::clients::addresses::Addresses;
use crate::clock::now;
use crate::compression::Compressors;
use crate::errors::{StartError, StopError};
use crate::feed::congested_streams::CongestedStreams;
use crate::fleet_links::FleetLinks;
use crate::listen;
use crate::metrics::{Metrics, QUEUE_FULL, UNWRITABLE};
use crate::pools::{PoolService, PoolThreads};
use crate::readers::{ReaderTools, Readers};
use crate::redirect::Redirect;
use crate::revocations::{self, RevocationFollower};
use crate::settings::{NetSettings, TlsSettings};
use crate::shard::{Shard, ShardContext};
use crate::shard_channel::{ShardEvent, ShardSender, shard_channel};
use crate::steady::Ticker;
use crate::transport::tls::{Certificates, FileWatcher, HandshakeBounds, Handshakes};

/// A server that runs until [`Server::stop`].
pub struct Server {
    address: SocketAddr,
    operators_address: Option<SocketAddr>,
    shards: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    dispatcher: encke_jobs::DispatcherSender,
    pools: PoolThreads,
    /// One for each log.
    sequencer_threads: Vec<JoinHandle<Result<(), CommitError>>>,
    senders: Vec<Arc<ShardSender>>,
    /// One for each log, or none.
    inline_commits: Arc<[Arc<InlineCommit>]>,
    metrics: Metrics,
    access_log: AccessLogState,
    /// `None` once a thread writes it.
    audit_queue: Option<AuditQueue>,
    audit_thread: Option<AuditThread>,
    tls: Option<ServedTls>,
    redirect: Option<Redirect>,
    /// On a node of a fleet with access control.
    revocation_follower: Option<RevocationFollower>,
    stop_timeout: Duration,
    /// Lets the steady clock notice stops of the process.
    _ticker: Ticker,
}

/// What TLS runs beside the shards.
struct ServedTls {
    watcher: FileWatcher,
    threads: Vec<JoinHandle<()>>,
}

/// The access log of a server.
enum AccessLogState {
    Off,
    /// Entries wait for an output.
    Waiting(Box<AccessLogQueue>),
    Writing(AccessLogThread),
}

/// What a server serves: restored streams and their logs.
pub struct ServedStreams {
    /// The streams, and what decides about them.
    pub logs: Logs,
    /// When an append is acknowledged to a stream that was made without a word about it.
    pub level: AckLevel,
    /// On a node of a fleet: what connects it with the others.
    pub fleet: Option<FleetLinks>,
}

/// Ends the subscriptions of a node that does not follow its fleet. It must be gone before the server is stopped.
#[derive(Clone)]
pub struct Dismissal {
    senders: Vec<Arc<ShardSender>>,
}

/// What a server does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that are subscribed.
    pub subscribers: u64,
    /// Whether it dispatches jobs. A server by itself always does.
    pub dispatches: bool,
    /// How often it has become the dispatcher of a fleet.
    pub takeovers: u64,
}

impl Dismissal {
    /// Ends all subscriptions, in the way of their protocols.
    pub fn dismiss_all(&self) {
        for sender in &self.senders {
            sender.put(ShardEvent::DismissAll);
        }
    }
}

impl Server {
    /// Starts all threads. When it returns, connections are accepted.
    pub fn start(
        settings: NetSettings,
        router: &Router,
        streams: ServedStreams,
        metrics: &Metrics,
    ) -> Result<Server, StartError> {
        let settings = Arc::new(settings);
        let ServedStreams {
            logs,
            level,
            mut fleet,
        } = streams;
        let in_fleet = fleet.is_some();
        let ticker = Ticker::start()?;
        let listeners = listeners(&settings)?;
        let address = match listeners.first() {
            Some(first) => listen::address(first)?,
            None => settings.listen,
        };
        let mut operators = operators_listener(&settings)?;
        let operators_address = operators.as_ref().map(listen::address).transpose()?;
        let bounds = Bounds {
            items_max: settings.mailbox_items_max,
            bytes_max: settings.mailbox_bytes_max,
        };
        let (senders, receivers) = ends(&settings, listeners.len())?;
        let archive = Archive::of(&logs);
        let background: Vec<_> = logs.logs.iter().map(|(_, log)| log.background()).collect();
        let (readers, jobs) = Readers::new(settings.readers);
        let pools = match in_fleet {
            false => PoolService::restore(&settings, archive.clone())?,
            true => PoolService::in_fleet(&settings, archive.clone()),
        };
        if let Some(access) = router.access() {
            revocations::restore(&archive, access)?;
        }
        let dispatcher = pools.dispatcher.clone();
        let Logs { logs, views } = logs;
        let mut ways = Vec::with_capacity(logs.len());
        let mut inline_commits = Vec::new();
        let mut sequencer_threads = Vec::with_capacity(logs.len());
        for (number, (machine, log)) in logs.into_iter().enumerate() {
            let name = numbered("sequencer", number, views.logs());
            let (sender, receiver) = mailbox("sequencer", bounds);
            let (watched, expired) = (metrics.clone(), readers.clone());
            let counters = metrics.log.counters(number);
            let outlets = outlets(&senders, &dispatcher);
            let watch = Box::new(move |committed: &Committed| {
                watched.committed(committed);
                counters.committed(committed);
            });
            let end = Box::new(move |no| expired.end(no));
            let thread = std::thread::Builder::new().name(name);
            if let Some(fleet) = &mut fleet {
                let following =
                    (fleet.follow)(number, &machine, receiver).map_err(StartError::Fleet)?;
                let sequencer = ReplicaSequencer::new(machine, log, following, outlets, watch)
                    .evicting(settings.eviction, end);
                sequencer_threads.push(thread.spawn(move || sequencer.run(now))?);
                ways.push((sender, None));
                continue;
            }
            let sequencer = Sequencer::new(machine, log, receiver, outlets, level, watch)
                .evicting(settings.eviction, end)
                .syncing_every(settings.sync_every);
            let (inline_commit, sequencer) = match level {
                AckLevel::Accepted => {
                    let inline_commit = Arc::new(InlineCommit::new(sequencer));
                    let shared = Arc::clone(&inline_commit);
                    (Some(inline_commit), thread.spawn(move || shared.run(now))?)
                }
                AckLevel::Written | AckLevel::Synced => {
                    (None, thread.spawn(move || sequencer.run(now))?)
                }
            };
            inline_commits.extend(inline_commit.clone());
            sequencer_threads.push(sequencer);
            ways.push((sender, inline_commit));
        }
        let inline_commits: Arc<[Arc<InlineCommit>]> = inline_commits.into();
        let sequencers = Sequencers::new(Arc::clone(&views), ways);
        let mut revocation_follower = None;
        if let Some(access) = router.access() {
            revocations::create(&sequencers);
            if in_fleet {
                let access = Arc::clone(access);
                revocation_follower = Some(RevocationFollower::start(archive.clone(), access)?);
            }
        }
        let watched_logs = archive.readers().to_vec();
        let reader_threads = jobs.start(&ReaderTools {
            archive: archive.with_inline_commits(Arc::clone(&inline_commits)),
            took: metrics.look_up_seconds.clone(),
        })?;
        let (board, pools) = match fleet {
            None => pools.start(sequencers.clone(), Arc::clone(&inline_commits), &senders)?,
            Some(fleet) => pools.start_relay(fleet, sequencers.clone(), &senders, metrics)?,
        };
        let connections = Arc::new(AtomicUsize::new(0));
        let turned_away = Arc::new(AtomicUsize::new(0));
        let addresses = Arc::new(Addresses::new(&settings));
        let buffers = Arc::new(Buffers::new(
            settings.buffers_bytes_max,
            receivers.iter().map(|receiver| Arc::clone(&receiver.wake)),
        ));
        let compressors = Compressors::new(settings.compressions_max, Arc::clone(&buffers));
        let compressors = Arc::new(compressors);
        let congested = Arc::new(CongestedStreams::default());
        let request_id_key = RequestIds::new_key();
        let bytes_max = settings.access_log_bytes_max;
        let (log_sender, access_log) = match settings.access_log {
            None => (None, AccessLogState::Off),
            Some(format) => {
                let (sender, queue) = access_log(format, bytes_max);
                (Some(sender), AccessLogState::Waiting(Box::new(queue)))
            }
        };
        let dropped = &metrics.audit_dropped;
        let (audit, audit_queue) = audit_log(dropped.with_label_values(&[QUEUE_FULL]));
        let audit_gauge = audit.watch();
        let (handshakes, tls) = match &settings.tls {
            None => (None, None),
            Some(files) => {
                let (handshakes, tls) = start_tls(files, &settings, metrics)?;
                (Some(handshakes), Some(tls))
            }
        };
        let redirect = match settings.redirect_http {
            Some(from) => Some(Redirect::start(&settings, from, address.port())?),
            None => None,
        };
        let mut shards = Vec::new();
        for (number, (listener, receiver)) in listeners.into_iter().zip(receivers).enumerate() {
            let context = ShardContext {
                number: number as u16,
                settings: Arc::clone(&settings),
                router: router.clone(),
                receiver,
                sender: Arc::clone(&senders[number]),
                sequencers: sequencers.clone(),
                dispatcher: dispatcher.clone(),
                readers: readers.clone(),
                metrics: metrics.clone(),
                connections: Arc::clone(&connections),
                turned_away: Arc::clone(&turned_away),
                addresses: Arc::clone(&addresses),
                buffers: Arc::clone(&buffers),
                compressors: Arc::clone(&compressors),
                congested: Arc::clone(&congested),
                views: Arc::clone(&views),
                handshakes: handshakes.clone(),
                access_log: log_sender.clone(),
                audit: audit.clone(),
                request_id_key,
            };
            let shard = Shard::new(context, listener, operators.take())?;
            shards.push(
                std::thread::Builder::new()
                    .name(format!("shard-{number}"))
                    .spawn(move || shard.run())?,
            );
        }
        if let Some(access) = router.access() {
            let senders = senders.clone();
            access.when_keys_arrive(move |_, _| {
                for sender in &senders {
                    sender.put(ShardEvent::KeysFetched);
                }
            });
        }
        watch(metrics, &views, sequencers, &senders);
        let gauged = dispatcher.clone();
        let background_count = background.len();
        let pool_gauges = pools.gauges();
        let handshaking = handshakes.map(|handshakes| handshakes.watch());
        let log_queue = log_sender.as_ref().map(|sender| sender.watch());
        let access = router.access().cloned();
        metrics.on_render(move |metrics| {
            if let Some(access) = &access {
                metrics.access.show(&access.counts());
            }
            for (number, gauge) in readers.gauges().enumerate() {
                metrics.mailbox(&format!("reader-{number}"), &gauge);
            }
            metrics.mailbox("dispatcher", &gauged.gauge());
            pool_gauges.show(metrics);
            if let Some(handshaking) = &handshaking {
                handshaking.show(metrics);
            }
            if let Some(log_queue) = &log_queue {
                metrics.mailbox("access-log", &log_queue());
            }
            metrics.mailbox("audit-log", &audit_gauge());
            for (number, background) in background.iter().enumerate() {
                let name = numbered("seal", number, background_count);
                metrics.mailbox(&name, &background());
            }
            metrics.pools.show(&board);
            metrics.addresses.set(addresses.known() as i64);
            metrics.compressing.set(compressors.used() as i64);
            metrics.buffered_bytes.set(buffers.bytes() as i64);
            metrics.streams_congested.set(congested.count() as i64);
            for (number, log) in watched_logs.iter().enumerate() {
                metrics
                    .log
                    .show(number, &log.health(), log.retention_floor());
            }
        });
        Ok(Server {
            address,
            operators_address,
            shards,
            readers: reader_threads,
            dispatcher,
            pools,
            sequencer_threads,
            senders,
            inline_commits,
            metrics: metrics.clone(),
            access_log,
            audit_queue: Some(audit_queue),
            audit_thread: None,
            tls,
            redirect,
            revocation_follower,
            stop_timeout: settings.stop_timeout,
            _ticker: ticker,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the subscriptions of a node that does not follow its fleet.
    pub fn dismissal(&self) -> Dismissal {
        Dismissal {
            senders: self.senders.clone(),
        }
    }

    /// What tells what the server does now. It does not block.
    pub fn activity(&self) -> impl Fn() -> Activity + Send + Sync + 'static {
        let metrics = self.metrics.clone();
        let dispatching = self.pools.dispatching();
        move || {
            let (dispatches, takeovers) = dispatching();
            // Shards add up what has changed, so that a sum can be below zero for a moment.
            let count = |gauge: &IntGauge| u64::try_from(gauge.get()).unwrap_or(0);
            Activity {
                connections: count(&metrics.connections),
                subscribers: count(&metrics.subscribers),
                dispatches,
                takeovers,
            }
        }
    }

    /// Where operators connect, if they have an address of their own.
    pub fn operators_address(&self) -> Option<SocketAddr> {
        self.operators_address
    }

    /// Where plain requests are redirected to https, if they are.
    pub fn redirect_address(&self) -> Option<SocketAddr> {
        self.redirect.as_ref().map(Redirect::address)
    }

    /// Reads the certificates and keys of TLS again, which also happens when their files change. The log says how it went.
    /// Connections go on.
    pub fn reload_tls(&self) {
        if let Some(tls) = &self.tls {
            tls.watcher.reload();
        }
    }

    /// Starts to write the access log, if there is one. Requests before this wait for it. The output may block and fail: the
    /// shards don't wait for it, and lines are dropped and counted.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn write_access_log(&mut self, out: Box<dyn Write + Send>) -> std::io::Result<()> {
        self.access_log = match std::mem::replace(&mut self.access_log, AccessLogState::Off) {
            AccessLogState::Waiting(queue) => {
                AccessLogState::Writing(queue.start(out, &self.metrics)?)
            }
            state => state,
        };
        Ok(())
    }

    /// Starts to write the audit log. Requests before this wait for it. The shards don't wait for the output.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn write_audit_log(&mut self, out: Box<dyn Write + Send>) -> std::io::Result<()> {
        let lost = self.metrics.audit_dropped.with_label_values(&[UNWRITABLE]);
        if let Some(queue) = self.audit_queue.take() {
            self.audit_thread = Some(queue.start(out, lost)?);
        }
        Ok(())
    }

    /// Stops accepting, finishes pending requests, closes the log.
    ///
    /// # Errors
    /// The log could not be made durable, or a thread panicked; records acknowledged at level
    /// `synced` are safe nevertheless.
    pub fn stop(self) -> Result<(), StopError> {
        // Workers and clients that wait for a result get their last events before their shards stop.
        self.dispatcher.control(DispatcherMessage::Stop);
        for sender in &self.senders {
            sender.put(ShardEvent::Stop);
        }
        for shard in self.shards {
            shard.join().map_err(|_| StopError::Panicked("shard"))?;
        }
        if let Some(redirect) = self.redirect
            && !redirect.stop()
        {
            return Err(StopError::Panicked("redirect"));
        }
        // The shards had the last senders of their mailboxes.
        for thread in self.tls.map(|tls| tls.threads).unwrap_or_default() {
            thread
                .join()
                .map_err(|_| StopError::Panicked("handshake"))?;
        }
        if let Some(follower) = self.revocation_follower
            && !follower.stop()
        {
            return Err(StopError::Panicked("revocations"));
        }
        // Every shard has handed over its last entries.
        if let AccessLogState::Writing(thread) = self.access_log
            && !thread.join(self.stop_timeout)
        {
            return Err(StopError::Panicked("access log"));
        }
        if let Some(thread) = self.audit_thread
            && !thread.join(self.stop_timeout)
        {
            return Err(StopError::Panicked("audit log"));
        }
        drop(self.senders);
        self.metrics.forget();
        self.dispatcher.control(DispatcherMessage::Quit);
        if !self.pools.join() {
            return Err(StopError::Panicked("dispatcher"));
        }
        // That were the last senders of the sequencer's mailbox and of the readers'.
        for inline_commit in self.inline_commits.iter() {
            inline_commit.wake();
        }
        // All logs are closed, whatever becomes of one.
        let ends: Vec<_> = self
            .sequencer_threads
            .into_iter()
            .map(JoinHandle::join)
            .collect();
        for end in ends {
            end.map_err(|_| StopError::Panicked("sequencer"))??;
        }
        for reader in self.readers {
            reader.join().map_err(|_| StopError::Panicked("reader"))?;
        }
        Ok(())
    }
}

/// Starts what TLS needs beside the shards.
fn start_tls(
    files: &TlsSettings,
    settings: &NetSettings,
    metrics: &Metrics,
) -> Result<(Handshakes, ServedTls), StartError> {
    let certificates = Arc::new(Certificates::load(files, HTTP2)?);
    let bounds = HandshakeBounds {
        threads: settings.handshake_threads,
        handshakes_max: settings.handshakes_max,
        per_address_max: settings.handshakes_per_address,
        timeout: settings.handshake_timeout,
    };
    let (handshakes, threads) = Handshakes::start(bounds, &certificates, &metrics.handshakes)?;
    let counted = metrics.handshakes.clone();
    let watcher = FileWatcher::start(files.clone(), certificates, HTTP2, counted)?;
    Ok((handshakes, ServedTls { watcher, threads }))
}

/// Whether HTTP/2 is offered to clients of TLS.
const HTTP2: bool = true;

/// One listener for each shard, all on the same port.
fn listeners(settings: &NetSettings) -> Result<Vec<OwnedFd>, StartError> {
    let mut address = settings.listen;
    let failed = |source| StartError::Listen {
        address: settings.listen,
        source,
    };
    listen::check_address(address).map_err(failed)?;
    let mut listeners = Vec::with_capacity(settings.shards);
    for _ in 0..settings.shards.max(1) {
        let listener = listen::listener(settings, address).map_err(failed)?;
        // The system chose the port for the first; the others share it.
        address = listen::address(&listener).map_err(failed)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// The listener for operators, if there is to be one.
fn operators_listener(settings: &NetSettings) -> Result<Option<OwnedFd>, StartError> {
    let Some(address) = settings.operators_listen else {
        return Ok(None);
    };
    let failed = |source| StartError::Listen { address, source };
    listen::check_address(address).map_err(failed)?;
    let listener = listen::listener(settings, address).map_err(failed)?;
    Ok(Some(listener))
}

/// Both ends of each shard's receiver.
fn ends(
    settings: &NetSettings,
    shards: usize,
) -> rustix::io::Result<(
    Vec<Arc<ShardSender>>,
    Vec<crate::shard_channel::ShardReceiver>,
)> {
    let ends = (0..shards).map(|_| shard_channel(settings));
    let ends = ends.map(|ends| ends.map(|(sender, receiver)| (Arc::new(sender), receiver)));
    ends.collect::<rustix::io::Result<Vec<_>>>()
        .map(|ends| ends.into_iter().unzip())
}

/// The shards as the sequencer sees them, and behind them the dispatcher.
fn outlets(
    senders: &[Arc<ShardSender>],
    dispatcher: &encke_jobs::DispatcherSender,
) -> Vec<Box<dyn Outlet>> {
    let senders = senders.iter().map(|sender| ShardSender::clone(sender));
    let senders = senders.map(|sender| Box::new(sender) as Box<dyn Outlet>);
    let dispatcher: Box<dyn Outlet> = Box::new(dispatcher.clone());
    senders.chain([dispatcher]).collect()
}

/// The name of what there is one of for each log.
fn numbered(name: &str, log: usize, logs: usize) -> String {
    match logs {
        1 => name.to_owned(),
        _ => format!("{name}-{log}"),
    }
}

/// Updates the gauges when metrics are rendered.
fn watch(
    metrics: &Metrics,
    views: &Arc<Views>,
    sequencers: Sequencers,
    senders: &[Arc<ShardSender>],
) {
    let views = Arc::clone(views);
    let senders = senders.to_vec();
    metrics.on_render(move |metrics| {
        metrics.streams(views.totals());
        metrics.log.show_acknowledged(&views);
        for (number, gauge) in sequencers.gauges().enumerate() {
            metrics.mailbox(&numbered("sequencer", number, views.logs()), &gauge);
        }
        for (number, sender) in senders.iter().enumerate() {
            let shard = number.to_string();
            metrics.mailbox(&format!("shard-{number}"), &sender.gauge());
            metrics.ring_lag(&shard, sender.lag());
        }
    });
}
