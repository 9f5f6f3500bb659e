//! Runs the pools and the subscriptions in the server: the threads of the dispatcher, or the relay of a node of a fleet.

use std::sync::Arc;
use std::thread::JoinHandle;

use encke_jobs::fleet::{PacketTo, RelayContext, RelayFigures};
use encke_jobs::{
    DispatcherContext, DispatcherMachines, DispatcherMessage, DispatcherOutlet, DispatcherReceiver,
    DispatcherSender, DispatcherThreads, JobMachine, PoolLimits, PublishedStats, RelayMessage,
    SendResponse, SubscriptionsContext,
};
use encke_mailbox::Gauge;
use encke_net::{Metrics, ShardSender, now, wall_time};
use encke_stream::{InlineCommit, Sequencers};
use encke_subscriptions::{KeySeed, PublishedSubscriptions, SubscriptionMachine};

use crate::archive::Archive;
use crate::errors::StartError;
use crate::fleet_links::FleetLinks;
use crate::metrics::{RelayMetrics, ServerMetrics};
use crate::settings::{ServerSettings, SubscriptionSettings};
use crate::subscribed_archive::SubscribedArchive;

/// The pools and the subscriptions before they serve requests.
pub(crate) struct DispatcherService {
    pub(crate) dispatcher: DispatcherSender,
    receiver: DispatcherReceiver,
    /// The bounds of its mailbox: messages, and their bytes.
    mailbox: (usize, usize),
    /// None on a node of a fleet, which restores them when it is to dispatch.
    machines: Option<DispatcherMachines>,
    tools: DispatcherTools,
}

/// What the pools and the subscriptions are restored and run with.
#[derive(Clone)]
struct DispatcherTools {
    pools: PoolLimits,
    subscriptions: SubscriptionSettings,
    published: PublishedStates,
    archive: Archive,
}

/// What other threads see of the pools and of the subscriptions.
#[derive(Clone, Default)]
pub(crate) struct PublishedStates {
    pub(crate) pools: Arc<PublishedStats>,
    pub(crate) subscriptions: Arc<PublishedSubscriptions>,
}

/// The threads that run the pools and the subscriptions.
pub(crate) enum DispatchThreads {
    Dispatcher(DispatcherThreads),
    Relay(JoinHandle<()>, RelayMetrics),
}

/// What the metrics show of the threads.
pub(crate) enum DispatchGauges {
    Dispatcher(Box<dyn Fn() -> Gauge + Send + Sync>),
    Relay(RelayMetrics),
}

impl DispatcherTools {
    fn restore(&self) -> Result<DispatcherMachines, StartError> {
        let archive = &self.archive;
        let find = |name: &str| archive.find(name);
        let read = |fetch: &_| archive.read(fetch).map_err(|error| error.to_string());
        let published = Arc::clone(&self.published.pools);
        let seed = KeySeed::random().map_err(StartError::Random)?;
        let jobs = JobMachine::replay(
            self.pools.clone(),
            published,
            seed.clone(),
            &find,
            &read,
            now(),
        )?;
        let subscriptions = SubscriptionMachine::replay(
            self.subscriptions.limits.clone(),
            &seed,
            self.published.subscriptions.begin(),
            &SubscribedArchive(archive.clone()),
            now(),
        )?;
        Ok(DispatcherMachines {
            jobs,
            subscriptions,
        })
    }

    /// What a dispatcher is connected to.
    fn context(
        &self,
        machines: DispatcherMachines,
        sequencers: Sequencers,
        number: u16,
        respond: SendResponse,
        term: u64,
    ) -> DispatcherContext {
        let settings = self.subscriptions.clone();
        let subscriptions = SubscriptionsContext {
            machine: machines.subscriptions,
            published: Arc::clone(&self.published.subscriptions),
            streams: Box::new(SubscribedArchive(self.archive.clone())),
            logs: sequencers.views().logs(),
            deliverer: Box::new(move |report| settings.deliverer(report)),
        };
        let loaders = self.archive.loaders.clone();
        let archive = self.archive.clone();
        DispatcherContext {
            machine: machines.jobs,
            look_up: Box::new(move |name| loaders.load(name).map_err(|error| error.to_string())),
            submit: Box::new(move |commands, now| sequencers.submit(commands, now)),
            number,
            read: Box::new(move |fetch| archive.read(fetch).map_err(|error| error.to_string())),
            respond,
            subscriptions,
            term,
            clock: now,
        }
    }
}

impl DispatcherService {
    /// Restores the pools and the subscriptions from their streams.
    pub(crate) fn restore(
        settings: &ServerSettings,
        archive: Archive,
    ) -> Result<DispatcherService, StartError> {
        let mut service = DispatcherService::in_fleet(settings, archive);
        service.machines = Some(service.tools.restore()?);
        Ok(service)
    }

    /// Those of a node of a fleet.
    pub(crate) fn in_fleet(settings: &ServerSettings, archive: Archive) -> DispatcherService {
        let (items_max, bytes_max) = (
            settings.pool_mailbox_items_max,
            settings.pool_mailbox_bytes_max,
        );
        let (dispatcher, receiver) = encke_jobs::dispatcher_mailbox(items_max, bytes_max);
        DispatcherService {
            dispatcher,
            receiver,
            mailbox: (items_max, bytes_max),
            machines: None,
            tools: DispatcherTools {
                pools: settings.pools.clone(),
                subscriptions: settings.subscriptions.clone(),
                published: PublishedStates {
                    subscriptions: Arc::clone(&settings.subscriptions.published),
                    ..PublishedStates::default()
                },
                archive,
            },
        }
    }

    /// The dispatcher as the sequencers see it.
    pub(crate) fn outlet(&self) -> DispatcherOutlet {
        let subscriptions = Arc::clone(&self.tools.published.subscriptions);
        DispatcherOutlet::new(self.dispatcher.clone(), subscriptions)
    }

    /// Starts the dispatcher, which sends its responses through these senders.
    pub(crate) fn start(
        self,
        sequencers: Sequencers,
        inline_commits: Arc<[Arc<InlineCommit>]>,
        senders: &[Arc<ShardSender>],
    ) -> Result<(PublishedStates, DispatchThreads), StartError> {
        let tools = DispatcherTools {
            archive: self.tools.archive.with_inline_commits(inline_commits),
            ..self.tools
        };
        let machines = match self.machines {
            Some(machines) => machines,
            None => tools.restore()?,
        };
        let number = senders.len() as u16;
        let context = tools.context(machines, sequencers, number, responder(senders), 0);
        let threads = self.receiver.start(context)?;
        Ok((tools.published, DispatchThreads::Dispatcher(threads)))
    }

    /// Starts the relay of a node of a fleet.
    pub(crate) fn start_relay(
        self,
        fleet: FleetLinks,
        sequencers: Sequencers,
        senders: &[Arc<ShardSender>],
        metrics: &ServerMetrics,
    ) -> Result<(PublishedStates, DispatchThreads), StartError> {
        let number = senders.len() as u16;
        let figures = Arc::new(RelayFigures::default());
        let metrics = RelayMetrics::new(metrics.registry(), Arc::clone(&figures));
        let metrics = metrics.map_err(|error| StartError::Fleet(error.into()))?;
        let received = self.dispatcher.clone();
        let send = (fleet.connect)(Arc::new(move |packet| {
            let packet = DispatcherMessage::Relay(RelayMessage::Packet(packet));
            let bytes = received.weight_bytes(&packet);
            // What it has no room for is lost; the session with the other node notices it.
            received.put_many(&mut vec![(packet, bytes)]);
        }));
        let send = send.map_err(StartError::Fleet)?;
        let views = Arc::clone(sequencers.views());
        let (restored, built) = (self.tools.clone(), self.tools.clone());
        let commands = sequencers.clone();
        let context = RelayContext {
            node: fleet.node.into(),
            run: wall_time().as_ms(),
            logs: views.logs(),
            hold: fleet.retry,
            known: Box::new(move || views.log(0).dispatcher()),
            silence: fleet.silence,
            send: Box::new(move |to, packet| match to {
                PacketTo::All => send(None, packet),
                PacketTo::Node(node) => send(Some(&node), packet),
            }),
            restore: Arc::new(move || restored.restore().map_err(|error| error.to_string())),
            dispatcher: Box::new(move |machines, respond, term| {
                built.context(machines, sequencers.clone(), number, respond, term)
            }),
            submit: Box::new(move |submissions, now| commands.submit(submissions, now)),
            number,
            respond: responder(senders),
            published: Arc::clone(&self.tools.published.pools),
            subscriptions: Arc::clone(&self.tools.published.subscriptions),
            figures,
            mailbox: self.mailbox,
            clock: now,
        };
        let thread = self.receiver.start_relay(context)?;
        Ok((
            self.tools.published,
            DispatchThreads::Relay(thread, metrics),
        ))
    }
}

/// Sends responses to the shards of their clients.
fn responder(senders: &[Arc<ShardSender>]) -> SendResponse {
    let senders = senders.to_vec();
    Box::new(move |client, event| {
        if let Some(sender) = senders.get(usize::from(client.shard)) {
            sender.dispatched(client, event);
        }
    })
}

impl DispatchThreads {
    pub(crate) fn gauges(&self) -> DispatchGauges {
        match self {
            DispatchThreads::Dispatcher(threads) => {
                DispatchGauges::Dispatcher(Box::new(threads.loads()))
            }
            DispatchThreads::Relay(_, metrics) => DispatchGauges::Relay(metrics.clone()),
        }
    }

    /// Whether this server dispatches jobs, and how often it has become the dispatcher of a fleet.
    pub(crate) fn dispatching(&self) -> impl Fn() -> (bool, u64) + Send + Sync + 'static {
        let relay = match self {
            DispatchThreads::Dispatcher(_) => None,
            DispatchThreads::Relay(_, metrics) => Some(metrics.clone()),
        };
        move || relay.as_ref().map_or((true, 0), RelayMetrics::dispatching)
    }

    /// Waits for their end. False: one of them panicked.
    pub(crate) fn join(self) -> bool {
        match self {
            DispatchThreads::Dispatcher(threads) => threads.join(),
            DispatchThreads::Relay(thread, _) => thread.join().is_ok(),
        }
    }
}

impl DispatchGauges {
    pub(crate) fn show(&self, metrics: &Metrics) {
        match self {
            DispatchGauges::Dispatcher(loads) => metrics.mailbox("loader", &loads()),
            DispatchGauges::Relay(relay) => relay.show(),
        }
    }
}
