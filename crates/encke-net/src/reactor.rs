//! The reactor as a whole: binds its listeners, starts the threads of its shards, handshakes and logs, and stops them.
//!
//! It starts in two steps. A [`BoundReactor`] listens, and other threads can send to its shards; the threads that its shards need
//! are started then. [`BoundReactor::start`] connects the shards with them and begins to accept.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_access::{Access, CallersOut};
use encke_jobs::DispatcherSender;
use encke_mailbox::Gauge;
use encke_protocol::Router;
use encke_stream::Sequencers;
use encke_threads::spawn_essential;
use parking_lot::Mutex;

use crate::access_log::{AccessLogQueue, AccessLogSender, AccessLogThread, RequestIds, access_log};
use crate::audit::{AuditQueue, AuditThread, RecentRefusals, audit_log};
use crate::broadcast::{BroadcastInlet, Broadcaster, FleetBroadcast};
use crate::buffers::Buffers;
use crate::clients::addresses::{AddressLimiter, Addresses};
use crate::compression::Compressors;
use crate::errors::{ReactorError, ThreadPanicked};
use crate::feed::congested_streams::CongestedStreams;
use crate::file_watcher::FileWatcher;
use crate::inspector::Inspector;
use crate::listen;
use crate::metrics::{Metrics, QUEUE_FULL, UNWRITABLE};
use crate::moved::{
    Arrivals, MoveCensus, MoveOut, MovedListeners, MovedOut, Readiness, ShardArrivals, ShardMoved,
};
use crate::probe_connector::ProbeConnector;
use crate::readers::Readers;
use crate::settings::{NetSettings, TlsSettings};
use crate::shard::{Admission, HandOver, Shard, ShardContext};
use crate::shard_channel::{ShardEvent, ShardReceiver, ShardSender, shard_channel};
use crate::surveyor::Surveyor;
use crate::transport::tls::{
    Certificates, HandshakeBounds, HandshakeGauges, HandshakeMetrics, Handshakes, tls_files,
};

/// A reactor that listens and accepts nothing yet.
pub struct BoundReactor {
    settings: Arc<NetSettings>,
    /// One for each shard, all on the same port.
    listeners: Vec<OwnedFd>,
    address: SocketAddr,
    operators: Option<OwnedFd>,
    operators_address: Option<SocketAddr>,
    senders: Vec<Arc<ShardSender>>,
    receivers: Vec<ShardReceiver>,
}

/// What the shards use of the rest of the server.
pub struct ReactorLinks {
    /// Decides what to do for a request.
    pub router: Router,
    /// Where commands go, and with them the streams in memory.
    pub sequencers: Sequencers,
    /// Where requests to the dispatcher go. Its responses come by [`ShardSender::dispatched`].
    pub dispatcher: DispatcherSender,
    /// Where reads of files go.
    pub readers: Readers,
    /// Where questions of operators go.
    pub inspector: Inspector,
    /// Where the shards count.
    pub metrics: Metrics,
    /// Where ephemeral messages go on a node of a fleet, beside its own shards.
    pub fleet_broadcast: Option<Arc<dyn FleetBroadcast>>,
}

/// A reactor that runs until [`Reactor::stop`].
pub struct Reactor {
    address: SocketAddr,
    operators_address: Option<SocketAddr>,
    senders: Vec<Arc<ShardSender>>,
    shards: Vec<JoinHandle<()>>,
    metrics: Metrics,
    broadcaster: Broadcaster,
    access_log: AccessLogState,
    /// `None` once a thread writes it.
    audit_queue: Option<AuditQueue>,
    audit_thread: Option<AuditThread>,
    refusals: RecentRefusals,
    tls: Option<ServedTls>,
    address_limiter: AddressLimiter,
    /// By the shards' numbers, if they await arrivals. A shard whose sender is dropped ends.
    arrivals: Vec<mpsc::Sender<ShardArrivals>>,
}

/// Sets the gauges of what shards share, when metrics are rendered.
pub struct ReactorGauges {
    metrics: Metrics,
    senders: Vec<Arc<ShardSender>>,
    addresses: Arc<Addresses>,
    buffers: Arc<Buffers>,
    compressors: Arc<Compressors>,
    congested: Arc<CongestedStreams>,
    handshakes: Option<HandshakeGauges>,
    access_log: Option<MailboxGauge>,
    audit: MailboxGauge,
}

type MailboxGauge = Box<dyn Fn() -> Gauge + Send>;

/// Ends the subscriptions of a node that does not follow its fleet. It must be gone before the reactor is stopped.
#[derive(Clone)]
pub struct Dismissal {
    senders: Vec<Arc<ShardSender>>,
}

/// Asks the shards whether they take turns.
#[derive(Clone)]
pub struct Liveness {
    senders: Vec<Arc<ShardSender>>,
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

impl Dismissal {
    /// Ends all subscriptions, in the way of their protocols.
    pub fn dismiss_all(&self) {
        for sender in &self.senders {
            sender.put(ShardEvent::DismissAll);
        }
    }
}

impl Liveness {
    /// Whether all shards take a turn within that time.
    pub fn all_respond(&self, wait_max: Duration) -> bool {
        let until = Instant::now() + wait_max;
        let (asked, answers) = mpsc::channel();
        let all_asked = self
            .senders
            .iter()
            .all(|sender| sender.probe(asked.clone()));
        drop(asked);
        all_asked
            && self.senders.iter().all(|_| {
                let left = until.saturating_duration_since(Instant::now());
                answers.recv_timeout(left).is_ok()
            })
    }
}

impl BoundReactor {
    /// Listens for clients, and for operators if they have an address of their own. Connections wait in the kernel's queue. `moved`: copies
    /// of the listeners of another process are used.
    ///
    /// # Errors
    /// An address can't be listened on, or the system refuses a descriptor.
    pub fn bind(
        settings: Arc<NetSettings>,
        moved: Option<&MovedListeners>,
    ) -> Result<Self, ReactorError> {
        let (listeners, operators) = match moved {
            Some(moved) => moved.copies()?,
            None => (listeners(&settings)?, operators_listener(&settings)?),
        };
        let address = match listeners.first() {
            Some(first) => listen::address(first)?,
            None => settings.listen,
        };
        let operators_address = operators.as_ref().map(listen::address).transpose()?;
        let channels = listeners.iter().map(|_| shard_channel(&settings));
        let channels = channels.collect::<rustix::io::Result<Vec<_>>>()?;
        let channels = channels.into_iter();
        let (senders, receivers) = channels
            .map(|(sender, receiver)| (Arc::new(sender), receiver))
            .unzip();
        Ok(BoundReactor {
            settings,
            listeners,
            address,
            operators,
            operators_address,
            senders,
            receivers,
        })
    }

    /// Where it listens for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The channel to each shard, by the shard's number.
    pub fn senders(&self) -> &[Arc<ShardSender>] {
        &self.senders
    }

    /// Starts all threads. When it returns, connections are accepted, unless the shards await arrivals.
    ///
    /// # Errors
    /// The files of TLS can't be used, or the system refuses a thread or a descriptor. Shards that await arrivals end.
    pub fn start(self, links: ReactorLinks) -> Result<(Reactor, ReactorGauges), ReactorError> {
        let BoundReactor {
            settings,
            senders,
            receivers,
            mut operators,
            ..
        } = self;
        let metrics = links.metrics;
        let buffers = Arc::new(Buffers::new(
            settings.buffers_bytes_max,
            receivers.iter().map(|receiver| Arc::clone(&receiver.wake)),
        ));
        let compressors = Compressors::new(settings.compressions_max, Arc::clone(&buffers));
        let compressors = Arc::new(compressors);
        let addresses = Arc::new(Addresses::new(&settings));
        let congested = Arc::new(CongestedStreams::default());
        let connections = Arc::new(AtomicUsize::new(0));
        let turned_away = Arc::new(AtomicUsize::new(0));
        let request_id_key = RequestIds::new_key();
        let (access_log, access_log_state) = open_access_log(&settings);
        let dropped = &metrics.audit_dropped;
        let (audit, audit_queue) = audit_log(dropped.with_label_values(&[QUEUE_FULL]));
        let (handshakes, tls) = match &settings.tls {
            None => (None, None),
            Some(files) => {
                let (handshakes, tls) = start_tls(files, &settings, &metrics)?;
                (Some(handshakes), Some(tls))
            }
        };
        let broadcaster = Broadcaster::new(
            Arc::clone(links.sequencers.views()),
            senders.as_slice().into(),
            links.fleet_broadcast,
            metrics.ephemeral.clone(),
        );
        let mut shards = Vec::new();
        let mut arrivals = Vec::new();
        for (number, (listener, receiver)) in self.listeners.into_iter().zip(receivers).enumerate()
        {
            let context = ShardContext {
                number: number as u16,
                settings: Arc::clone(&settings),
                router: links.router.clone(),
                receiver,
                sender: Arc::clone(&senders[number]),
                metrics: metrics.clone(),
                addresses: Arc::clone(&addresses),
                buffers: Arc::clone(&buffers),
                compressors: Arc::clone(&compressors),
                congested: Arc::clone(&congested),
                views: Arc::clone(links.sequencers.views()),
                broadcaster: broadcaster.clone(),
                handshakes: handshakes.clone(),
                access_log: access_log.clone(),
                audit: audit.clone(),
                request_id_key,
            };
            let hand_over = HandOver::new(
                number as u16,
                links.sequencers.clone(),
                links.dispatcher.clone(),
                links.readers.clone(),
                links.inspector.clone(),
                Arc::clone(&senders[number]),
            );
            let admission = Admission::new(
                settings.connections_max,
                Arc::clone(&connections),
                Arc::clone(&turned_away),
            );
            let shard = Shard::new(context, hand_over, admission, listener, operators.take())?;
            let (arrive, arriving) = mpsc::channel();
            arrivals.push(arrive);
            let name = format!("shard-{number}");
            shards.push(spawn_essential(name, move || shard.run(&arriving))?);
        }
        if let Some(access) = links.router.access() {
            notice_keys(access, senders.clone());
        }
        let addresses_limited = Arc::clone(&addresses);
        let gauges = ReactorGauges {
            metrics: metrics.clone(),
            senders: senders.clone(),
            addresses,
            buffers,
            compressors,
            congested,
            handshakes: handshakes.map(|handshakes| handshakes.watch()),
            access_log: access_log.map(|sender| Box::new(sender.watch()) as MailboxGauge),
            audit: Box::new(audit.watch()),
        };
        let reactor = Reactor {
            address_limiter: AddressLimiter(addresses_limited),
            address: self.address,
            operators_address: self.operators_address,
            senders,
            shards,
            metrics,
            broadcaster,
            access_log: access_log_state,
            refusals: audit_queue.recent(),
            audit_queue: Some(audit_queue),
            audit_thread: None,
            tls,
            arrivals,
        };
        Ok((reactor, gauges))
    }
}

impl Reactor {
    /// Gives the shards the connections that they begin with, if there are any. When it returns, they are taken over; clients are served once
    /// their gate opens.
    ///
    /// # Errors
    /// A shard has ended.
    pub fn admit(&mut self, arrivals: Arrivals) -> Result<(), ReactorError> {
        let (arrived, all_arrived) = mpsc::channel();
        let parts = spread(arrivals, self.arrivals.len(), &arrived);
        drop(arrived);
        let arriving = parts.len();
        for (shard, part) in self.arrivals.drain(..).zip(parts) {
            // It fails only if the shard has ended, which is noticed below.
            let _ = shard.send(part);
        }
        let lost: Vec<usize> = all_arrived.iter().collect();
        if lost.len() < arriving {
            return Err(ReactorError::NotTakenOver);
        }
        let lost: usize = lost.iter().sum();
        if lost > 0 {
            tracing::warn!(lost, "connections could not be taken over, and are closed");
        }
        Ok(())
    }

    /// Where it listens for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where operators connect, if they have an address of their own.
    pub fn operators_address(&self) -> Option<SocketAddr> {
        self.operators_address
    }

    /// Sets other limits per client address while the server runs.
    pub fn address_limiter(&self) -> AddressLimiter {
        self.address_limiter.clone()
    }

    /// Ends the subscriptions of a node that does not follow its fleet.
    pub fn dismissal(&self) -> Dismissal {
        Dismissal {
            senders: self.senders.clone(),
        }
    }

    /// Where ephemeral messages of other nodes of a fleet come in.
    pub fn broadcast_inlet(&self) -> BroadcastInlet {
        self.broadcaster.inlet()
    }

    /// Connects to the shards, for the health probe.
    pub fn probe_connector(&self) -> ProbeConnector {
        ProbeConnector::new(self.senders.clone())
    }

    /// Asks the shards whether they take turns.
    pub fn liveness(&self) -> Liveness {
        Liveness {
            senders: self.senders.clone(),
        }
    }

    /// Asks the shards about their connections. It must be gone before the reactor is stopped.
    pub fn surveyor(&self) -> Surveyor {
        Surveyor::new(self.senders.clone())
    }

    /// The last requests that were refused.
    pub fn refusals(&self) -> RecentRefusals {
        self.refusals.clone()
    }

    /// Reads the certificates and keys of TLS again, which also happens when their files change. The log says how it went.
    /// Connections go on.
    pub fn reload_tls(&self) {
        if let Some(tls) = &self.tls {
            tls.watcher.ask();
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

    /// Which connections could move now.
    pub fn count_movable(&self) -> MoveCensus {
        let (answer, answers) = mpsc::channel();
        for sender in &self.senders {
            sender.put(ShardEvent::CountMovable(answer.clone()));
        }
        drop(answer);
        let mut census = MoveCensus::default();
        answers.iter().for_each(|of_shard| census.add(&of_shard));
        census
    }

    /// Finishes requests, and gives all connections away. What is still in work after `patience` is cut off.
    ///
    /// # Errors
    /// A thread panicked.
    pub fn move_out(self, patience: Duration) -> Result<MovedOut, ThreadPanicked> {
        let callers = Arc::new(Mutex::new(CallersOut::default()));
        let (to, from) = mpsc::channel();
        let readiness = Arc::new(Readiness::new(self.senders.len()));
        for sender in &self.senders {
            sender.put(ShardEvent::MoveOut(Box::new(MoveOut {
                until: Instant::now() + patience,
                readiness: Arc::clone(&readiness),
                connections: 0,
                ready_since: None,
                callers: Arc::clone(&callers),
                to: to.clone(),
            })));
        }
        drop(to);
        let mut moved = MovedOut::default();
        let mut shards: Vec<ShardMoved> = from.iter().collect();
        if shards.len() < self.senders.len() {
            return Err(ThreadPanicked("shard"));
        }
        shards.sort_by_key(|shard| shard.number);
        for shard in shards {
            moved.listeners.clients.extend(shard.listener);
            let operators = &mut moved.listeners.operators;
            *operators = operators.take().or(shard.operators);
            moved.connections.extend(shard.connections);
            moved.pollers.push(shard.poller);
            moved.closed += shard.closed;
        }
        moved.authorities = std::mem::take(&mut *callers.lock()).into_authorities();
        self.join()?;
        Ok(moved)
    }

    /// Stops accepting, finishes pending requests, and waits until the access log and the audit log are written. `stop_timeout` bounds
    /// the wait for requests, and two seconds that for both logs.
    ///
    /// # Errors
    /// A thread panicked.
    pub fn stop(self) -> Result<(), ThreadPanicked> {
        for sender in &self.senders {
            sender.put(ShardEvent::Stop);
        }
        self.join()
    }

    fn join(self) -> Result<(), ThreadPanicked> {
        drop(self.arrivals);
        // All are waited for, whatever becomes of one.
        let join = |panicked: bool, thread: JoinHandle<()>| panicked | thread.join().is_err();
        let shard_panicked = self.shards.into_iter().fold(false, join);
        // The shards had the last senders of their mailboxes.
        let handshakes = self.tls.map(|tls| tls.threads).unwrap_or_default();
        let handshake_panicked = handshakes.into_iter().fold(false, join);
        // Every shard has handed over its last entries. Both outputs may block for the same reason.
        let until = Instant::now() + LOG_WAIT;
        let left = || until.saturating_duration_since(Instant::now());
        if let AccessLogState::Writing(thread) = self.access_log
            && !thread.join(left())
        {
            return Err(ThreadPanicked("access log"));
        }
        if let Some(thread) = self.audit_thread
            && !thread.join(left())
        {
            return Err(ThreadPanicked("audit log"));
        }
        match (shard_panicked, handshake_panicked) {
            (true, _) => Err(ThreadPanicked("shard")),
            (_, true) => Err(ThreadPanicked("handshake")),
            (false, false) => Ok(()),
        }
    }
}

impl ReactorGauges {
    /// Sets the gauges.
    pub fn show(&self) {
        let metrics = &self.metrics;
        metrics.addresses.set(self.addresses.known() as i64);
        metrics.compressing.set(self.compressors.used() as i64);
        metrics.buffered_bytes.set(self.buffers.bytes() as i64);
        metrics.streams_congested.set(self.congested.count() as i64);
        for (number, sender) in self.senders.iter().enumerate() {
            metrics.mailbox(&format!("shard-{number}"), &sender.gauge());
            metrics.ring_lag(&number.to_string(), sender.lag());
        }
        if let Some(handshakes) = &self.handshakes {
            handshakes.show(metrics);
        }
        if let Some(access_log) = &self.access_log {
            metrics.mailbox("access-log", &access_log());
        }
        metrics.mailbox("audit-log", &(self.audit)());
    }
}

/// The queue of the access log, if there is to be one.
fn open_access_log(settings: &NetSettings) -> (Option<AccessLogSender>, AccessLogState) {
    let Some(format) = settings.access_log else {
        return (None, AccessLogState::Off);
    };
    let (sender, queue) = access_log(format, settings.access_log_bytes_max);
    (Some(sender), AccessLogState::Waiting(Box::new(queue)))
}

/// Gives each shard a part of the connections that were taken over.
fn spread(arrivals: Arrivals, shards: usize, arrived: &mpsc::Sender<usize>) -> Vec<ShardArrivals> {
    let together = Arc::new((arrivals.callers, arrivals.streams));
    let mut parts: Vec<_> = (0..shards).map(|_| Vec::new()).collect();
    for (number, moving) in arrivals.connections.into_iter().enumerate() {
        // The first shard has the operators' listener, and their places.
        let shard = match moving.connection.is_operators() {
            true => 0,
            false => number % shards,
        };
        parts[shard].push(moving);
    }
    let parts = parts.into_iter().map(|connections| ShardArrivals {
        connections,
        together: Arc::clone(&together),
        gate: arrivals.gate.clone(),
        arrived: arrived.clone(),
    });
    parts.collect()
}

/// Tells the shards when an attempt to fetch keys is over.
fn notice_keys(access: &Access, senders: Vec<Arc<ShardSender>>) {
    access.when_keys_arrive(move |_, _| {
        for sender in &senders {
            sender.put(ShardEvent::Unpark);
        }
    });
}

/// Reads certificates and keys again when their files change, or when it is asked to.
fn watch_tls(
    settings: TlsSettings,
    certificates: Arc<Certificates>,
    metrics: HandshakeMetrics,
) -> std::io::Result<FileWatcher> {
    let files = tls_files(&settings);
    let read_again = move || {
        let reloaded = certificates.reload(&settings, HTTP2);
        let result = if reloaded.is_ok() { "done" } else { "failed" };
        metrics.reloads.with_label_values(&[result]).inc();
        match reloaded {
            Ok(()) => tracing::info!("read the certificates and keys of TLS again"),
            Err(error) => {
                tracing::error!(%error, "the certificates and keys of TLS stay as they were");
            }
        }
    };
    FileWatcher::start("tls-files", move || files.clone(), read_again)
}

/// Starts what TLS needs beside the shards.
fn start_tls(
    files: &TlsSettings,
    settings: &NetSettings,
    metrics: &Metrics,
) -> Result<(Handshakes, ServedTls), ReactorError> {
    let certificates = Arc::new(Certificates::load(files, HTTP2)?);
    let bounds = HandshakeBounds {
        threads: settings.handshake_threads,
        handshakes_max: settings.handshakes_max,
        per_address_max: settings.handshakes_per_address,
        timeout: settings.handshake_timeout,
    };
    let (handshakes, threads) = Handshakes::start(bounds, &certificates, &metrics.handshakes)?;
    let counted = metrics.handshakes.clone();
    let watcher = watch_tls(files.clone(), certificates, counted)?;
    Ok((handshakes, ServedTls { watcher, threads }))
}

/// One listener for each shard, all on the same port.
fn listeners(settings: &NetSettings) -> Result<Vec<OwnedFd>, ReactorError> {
    let mut address = settings.listen;
    let failed = |source| ReactorError::Listen {
        address: settings.listen,
        source,
    };
    let shards = settings.shards.max(1);
    if let Some(inherited) = &settings.inherited {
        let listeners = (0..shards).map(|_| listen::inherited(settings, inherited));
        return listeners.collect::<Result<_, _>>().map_err(failed);
    }
    listen::check_address(address).map_err(failed)?;
    let mut listeners = Vec::with_capacity(shards);
    for _ in 0..shards {
        let listener = listen::listener(settings, address).map_err(failed)?;
        // The system chose the port for the first; the others share it.
        address = listen::address(&listener).map_err(failed)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// The listener for operators, if there is to be one.
fn operators_listener(settings: &NetSettings) -> Result<Option<OwnedFd>, ReactorError> {
    let Some(address) = settings.operators_listen else {
        return Ok(None);
    };
    let failed = |source| ReactorError::Listen { address, source };
    listen::check_address(address).map_err(failed)?;
    let listener = listen::listener(settings, address).map_err(failed)?;
    Ok(Some(listener))
}

/// Whether HTTP/2 is offered to clients of TLS.
const HTTP2: bool = true;

/// How long a stop waits for outputs of logs that block. With the requests and the program log it takes less than the 10 s after which many
/// service managers kill.
const LOG_WAIT: Duration = Duration::from_secs(2);
