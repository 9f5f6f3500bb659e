//! The server: starts and stops the reactor, readers, sequencers and the dispatcher.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use encke_jobs::{DispatcherMessage, DispatcherSender};
use encke_mailbox::Receiver;
use encke_net::{
    AddressLimiter, BoundReactor, Dismissal, InspectTask, Inspector, Liveness, MoveCensus,
    MovedListeners, MovedOut, NetSettings, Reactor, ReactorLinks, Readers, ShardSender,
    ThreadPanicked, Ticker,
};
use encke_protocol::{AppReporter, Router};
use encke_stream::{AckLevel, Logs, MemoryPublisher, Outlet, Sequencers};

use crate::archive::Archive;
use crate::dispatcher::{DispatchThreads, DispatcherService};
use crate::errors::{StartError, StopError};
use crate::fleet_links::{ConnectNodes, FleetLinks, ReceiveBroadcasts};
use crate::gauges::{self, ServerGauges};
use crate::health::{DeliveryHealth, Prober};
use crate::inspect::{InspectionContext, InspectionSources, InspectorThread};
use crate::metrics::ServerMetrics;
use crate::moved::{ClosingServer, MovedIn, arrivals};
use crate::presence::PresenceThread;
use crate::pusher::{PusherThreads, PusherTools};
use crate::readers::{self, ReaderTools};
use crate::redirect::Redirect;
use crate::revocations::{self, RevocationFollower};
use crate::sequencer_threads::{SequencerLinks, SequencerThreads};
use crate::settings::ServerSettings;

/// A server that runs until [`Server::stop`].
pub struct Server {
    reactor: Reactor,
    archive: Archive,
    dispatcher: DispatcherSender,
    dispatching: DispatchThreads,
    sequencers: SequencerThreads,
    readers: Vec<JoinHandle<()>>,
    redirect: Option<Redirect>,
    companions: Companions,
    metrics: ServerMetrics,
    /// Lets the steady clock notice stops of the process.
    _ticker: Ticker,
}

/// The threads that are started beside the running reactor.
#[derive(Default)]
struct Companions {
    inspector: Option<InspectorThread>,
    prober: Option<Prober>,
    presence: Option<PresenceThread>,
    /// With apps that are told what happens to their channels.
    pusher: Option<PusherThreads>,
    /// On a node of a fleet with access control.
    revocation_follower: Option<RevocationFollower>,
}

/// What a server serves: restored streams and their logs.
pub struct ServedStreams {
    /// The streams, and what decides about them.
    pub logs: Logs,
    /// When an append is acknowledged to a stream that was created without a level.
    pub level: AckLevel,
    /// On a node of a fleet: what connects it with the others.
    pub fleet: Option<FleetLinks>,
    /// Where a probe of deliveries is asked for.
    pub health: DeliveryHealth,
}

/// Parameters of [`Server::start_companions`].
struct CompanionTools<'a> {
    router: &'a Router,
    settings: &'a ServerSettings,
    sequencers: &'a Sequencers,
    shards: &'a [Arc<ShardSender>],
    reporters: Vec<AppReporter>,
    presence_link: Option<ConnectNodes>,
    receive_broadcasts: Option<ReceiveBroadcasts>,
    follows_revocations: bool,
    health: DeliveryHealth,
    inspections: Receiver<InspectTask>,
    sources: InspectionSources,
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

impl Server {
    /// Starts all threads but the one of the redirect. Clients are served after [`Server::admit`].
    ///
    /// # Errors
    /// Nothing is served: an address, the files of TLS or the streams of pools and revocations can't be used, the node can't
    /// follow its fleet, or the system refuses a thread or a descriptor. Threads that run already end, and close the logs.
    pub fn start(
        net: NetSettings,
        settings: &ServerSettings,
        router: &Router,
        streams: ServedStreams,
        metrics: &ServerMetrics,
        listeners: Option<&MovedListeners>,
        sources: InspectionSources,
    ) -> Result<Server, StartError> {
        let ServedStreams {
            logs,
            level,
            mut fleet,
            health,
        } = streams;
        let net = Arc::new(net);
        let ticker = Ticker::start()?;
        // Before the pools are restored, which can take long: an address that is in use is the likeliest mistake.
        let reactor = BoundReactor::bind(Arc::clone(&net), listeners)?;
        let archive = Archive::of(&logs);
        let seals = gauges::seals(&logs);
        let runs = Arc::clone(&archive.runs);
        let kept = {
            let runs = Arc::clone(&runs);
            Arc::new(move |fetch: &_| runs.kept(fetch))
        };
        let (readers, read_tasks) = Readers::new(settings.readers, kept);
        let (inspector, inspections) = Inspector::new();
        let service = match fleet.is_some() {
            false => DispatcherService::restore(settings, archive.clone())?,
            true => DispatcherService::in_fleet(settings, archive.clone()),
        };
        if let Some(access) = router.access() {
            revocations::restore(&archive, access)?;
        }
        let dispatcher = service.dispatcher.clone();
        let links = SequencerLinks {
            settings,
            level,
            shards: reactor.senders(),
            dispatcher: &service,
            readers: &readers,
            metrics,
        };
        let (sequencers, sequencer_threads) =
            SequencerThreads::start(logs, &links, fleet.as_mut())?;
        let follows_revocations = fleet.is_some();
        let presence_link = fleet.as_mut().and_then(|fleet| fleet.presence.take());
        let (fleet_broadcast, receive_broadcasts) = fleet
            .as_mut()
            .and_then(|fleet| fleet.broadcast.take())
            .map(|link| (link.outlet, link.receive))
            .unzip();
        let inline_commits = sequencer_threads.inline_commits();
        let archive = archive.with_inline_commits(Arc::clone(&inline_commits));
        let tools = ReaderTools {
            archive: archive.clone(),
            took: metrics.streams.look_up_seconds.clone(),
            presence: Arc::clone(router.presence()),
        };
        let reader_threads = readers::start(read_tasks, &tools)?;
        let redirect = match settings.redirect_http {
            Some(from) => {
                let port = reactor.address().port();
                Some(Redirect::bind(&net, from, port, router.clone())?)
            }
            None => None,
        };
        let shards = reactor.senders().to_vec();
        let (published, dispatching) = match fleet {
            None => service.start(sequencers.clone(), inline_commits, &shards)?,
            Some(fleet) => service.start_relay(fleet, sequencers.clone(), &shards, metrics)?,
        };
        // Before anybody is subscribed.
        let reporters = router.pusher().reporters(router.presence().registry());
        let started = reactor.start(ReactorLinks {
            router: router.clone(),
            sequencers: sequencers.clone(),
            dispatcher: dispatcher.clone(),
            readers: readers.clone(),
            inspector: inspector.clone(),
            metrics: metrics.reactor.clone(),
            fleet_broadcast,
        });
        let (reactor, reactor_gauges) = started.inspect_err(|_| {
            dispatcher.control(DispatcherMessage::Quit);
        })?;
        let dispatch_gauges = dispatching.gauges();
        let mut server = Server {
            reactor,
            archive,
            dispatcher: dispatcher.clone(),
            dispatching,
            sequencers: sequencer_threads,
            readers: reader_threads,
            redirect,
            companions: Companions::default(),
            metrics: metrics.clone(),
            _ticker: ticker,
        };
        let tools = CompanionTools {
            router,
            settings,
            sequencers: &sequencers,
            shards: &shards,
            reporters,
            presence_link,
            receive_broadcasts,
            follows_revocations,
            health,
            inspections,
            sources,
        };
        if let Err(error) = server.start_companions(tools) {
            // The queue of the inspector ends with its last sender.
            drop((inspector, readers, sequencers));
            server.abandon();
            return Err(error);
        }
        let gauges = ServerGauges {
            reactor: reactor_gauges,
            access: router.access().cloned(),
            logs: server.archive.readers().to_vec(),
            sequencers,
            seals,
            readers,
            runs,
            inspector,
            dispatcher,
            published,
            dispatching: dispatch_gauges,
            presence: Arc::clone(router.presence().registry()),
            tracer: net.tracer.clone(),
        };
        metrics.on_render(move |metrics| gauges.show(metrics));
        Ok(server)
    }

    /// Starts the threads that need the running reactor.
    fn start_companions(&mut self, tools: CompanionTools<'_>) -> Result<(), StartError> {
        let (router, reactor, archive) = (tools.router, &self.reactor, &self.archive);
        let companions = &mut self.companions;
        if let (Some(access), true) = (router.access(), tools.follows_revocations) {
            let follower = RevocationFollower::start(archive.clone(), Arc::clone(access))?;
            companions.revocation_follower = Some(follower);
        }
        if let Some(receive) = tools.receive_broadcasts {
            receive(reactor.broadcast_inlet()).map_err(StartError::Fleet)?;
        }
        companions.pusher = PusherThreads::start(
            tools.reporters,
            PusherTools {
                archive: archive.clone(),
                sequencers: tools.sequencers.clone(),
                registry: Arc::clone(router.presence().registry()),
                broadcast: reactor.broadcast_inlet(),
                caller: tools.settings.subscriptions.caller(),
                leads: Arc::new(self.dispatching.dispatching()),
                metrics: self.metrics.pusher.clone(),
            },
        )?;
        let memory_outlets = tools.shards.iter().map(|sender| ShardSender::clone(sender));
        let memory_outlets = memory_outlets
            .map(|sender| Box::new(sender) as Box<dyn Outlet>)
            .collect();
        companions.presence = Some(PresenceThread::start(
            Arc::clone(router.presence()),
            MemoryPublisher::new(router.views(), memory_outlets),
            tools.presence_link,
            companions.pusher.as_ref().map(PusherThreads::observer),
        )?);
        companions.prober = Some(Prober::start(
            tools.health,
            reactor.probe_connector(),
            archive.readers().len(),
            self.metrics.probes.clone(),
        )?);
        companions.inspector = Some(InspectorThread::start(
            tools.inspections,
            InspectionContext {
                sources: tools.sources,
                metrics: self.metrics.clone(),
                surveyor: reactor.surveyor(),
                refusals: reactor.refusals(),
                archive: archive.clone(),
                access: router.access().cloned(),
            },
        )?);
        Ok(())
    }

    /// Takes over the connections of the process whose listeners the server has, if there is one. Clients are served once the gate opens:
    /// every thread exists by then.
    ///
    /// # Errors
    /// A shard has ended, or the system refuses the last thread.
    pub fn admit(&mut self, moved: MovedIn) -> Result<(), StartError> {
        if let Some(redirect) = &mut self.redirect {
            redirect.serve()?;
        }
        let arrivals = arrivals(moved, &self.archive);
        Ok(self.reactor.admit(arrivals)?)
    }

    /// Ends a server that was not started completely.
    fn abandon(self) {
        let ended = self.leave(false, Reactor::stop);
        if let Err(error) = ended.and_then(|((), closing)| closing.close()) {
            tracing::warn!(%error, "a server that could not be started did not end cleanly");
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.reactor.address()
    }

    /// Where operators connect, if they have an address of their own.
    pub fn operators_address(&self) -> Option<SocketAddr> {
        self.reactor.operators_address()
    }

    /// Where plain requests are redirected to https, if they are.
    pub fn redirect_address(&self) -> Option<SocketAddr> {
        self.redirect.as_ref().map(Redirect::address)
    }

    /// Sets other limits per client address while the server runs.
    pub fn address_limiter(&self) -> AddressLimiter {
        self.reactor.address_limiter()
    }

    /// Ends the subscriptions of a node that does not follow its fleet.
    pub fn dismissal(&self) -> Dismissal {
        self.reactor.dismissal()
    }

    /// Asks the shards whether they take turns.
    pub fn liveness(&self) -> Liveness {
        self.reactor.liveness()
    }

    /// A function that says what the server does now. It does not block.
    pub fn activity(&self) -> impl Fn() -> Activity + Send + Sync + 'static {
        let metrics = self.metrics.reactor.clone();
        let dispatching = self.dispatching.dispatching();
        move || {
            let (dispatches, takeovers) = dispatching();
            Activity {
                connections: metrics.connections(),
                subscribers: metrics.subscribers(),
                dispatches,
                takeovers,
            }
        }
    }

    /// Reads the certificates and keys of TLS again, which also happens when their files change. The log says how it went.
    /// Connections go on.
    pub fn reload_tls(&self) {
        self.reactor.reload_tls();
    }

    /// Starts to write the access log, see [`Reactor::write_access_log`].
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn write_access_log(&mut self, out: Box<dyn Write + Send>) -> std::io::Result<()> {
        self.reactor.write_access_log(out)
    }

    /// Starts to write the audit log, see [`Reactor::write_audit_log`].
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn write_audit_log(&mut self, out: Box<dyn Write + Send>) -> std::io::Result<()> {
        self.reactor.write_audit_log(out)
    }

    /// Which connections could move to another process now.
    pub fn count_movable(&self) -> MoveCensus {
        self.reactor.count_movable()
    }

    /// Finishes requests, and gives all connections away. What is still in work after `patience` is cut off. Workers get their last
    /// events, as at a stop.
    ///
    /// # Errors
    /// A thread panicked.
    pub fn move_out(self, patience: Duration) -> Result<(MovedOut, ClosingServer), StopError> {
        // Its successor holds the same members.
        self.leave(false, |reactor| reactor.move_out(patience))
    }

    /// Stops accepting, finishes pending requests, closes the log.
    ///
    /// # Errors
    /// The log could not be made durable, or a thread panicked; records acknowledged at level
    /// `synced` are safe nevertheless.
    pub fn stop(self) -> Result<(), StopError> {
        let ((), closing) = self.leave(true, Reactor::stop)?;
        closing.close()
    }

    /// Ends everything but the log. `end` ends the reactor. `says_goodbye`: other nodes learn that the members of this one leave. If a
    /// thread has panicked, the others end all the same, and the log is closed.
    fn leave<T>(
        self,
        says_goodbye: bool,
        end: impl FnOnce(Reactor) -> Result<T, ThreadPanicked>,
    ) -> Result<(T, ClosingServer), StopError> {
        // Workers and clients that wait for a result get their last events before their shards stop.
        self.dispatcher.control(DispatcherMessage::Stop);
        let Companions {
            inspector,
            prober,
            presence,
            pusher,
            revocation_follower,
        } = self.companions;
        let mut panicked = None;
        let mut ended = |thread, is_calm: bool| {
            if !is_calm {
                panicked.get_or_insert(ThreadPanicked(thread));
            }
        };
        // Before connections go: nobody is told of each of them.
        ended(
            "presence",
            presence.is_none_or(|presence| presence.stop(says_goodbye)),
        );
        let pusher = pusher.map(PusherThreads::stop);
        ended("pusher", !matches!(pusher, Some(None)));
        ended("health", prober.is_none_or(Prober::stop));
        let reactor = end(self.reactor);
        if let Some(pusher) = pusher.flatten() {
            pusher.write_rest();
        }
        ended("redirect", self.redirect.is_none_or(Redirect::stop));
        let is_calm = revocation_follower.is_none_or(RevocationFollower::stop);
        ended("revocations", is_calm);
        self.metrics.forget();
        // That was the last sender of its queue.
        ended("inspector", inspector.is_none_or(InspectorThread::join));
        let closing = ClosingServer {
            dispatcher: self.dispatcher,
            dispatching: self.dispatching,
            sequencers: self.sequencers,
            readers: self.readers,
        };
        match (reactor, panicked) {
            (Ok(ended), None) => Ok((ended, closing)),
            (Err(panicked), _) | (_, Some(panicked)) => {
                closing.close()?;
                Err(panicked.into())
            }
        }
    }
}
