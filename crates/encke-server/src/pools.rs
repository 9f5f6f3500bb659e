//! Runs the pools in the server: the threads of the dispatcher, or the relay of a node of a fleet.

use std::sync::Arc;
use std::thread::JoinHandle;

use encke_jobs::fleet::{PacketTo, RelayContext, RelayFigures};
use encke_jobs::{
    DispatcherContext, DispatcherMessage, DispatcherReceiver, DispatcherSender, DispatcherThreads,
    JobMachine, KeySeed, PoolLimits, PublishedStats, RelayMessage, ReplayError, SendResponse,
};
use encke_mailbox::Gauge;
use encke_net::{Metrics, ShardSender, now, wall_time};
use encke_stream::{InlineCommit, Logs, Lookup, Sequencers, Stream};

use crate::archive::Archive;
use crate::errors::StartError;
use crate::fleet_links::FleetLinks;
use crate::metrics::{RelayMetrics, ServerMetrics};
use crate::settings::ServerSettings;

/// The names of the pools that the logs hold.
///
/// # Errors
/// The stream that says which there are can't be read.
pub fn pools(logs: &Logs) -> Result<Vec<String>, ReplayError> {
    let archive = Archive::of(logs);
    encke_jobs::pools(&finder(&archive), &|fetch| {
        archive.read(fetch).map_err(|error| error.to_string())
    })
}

fn finder(archive: &Archive) -> impl Fn(&str) -> Result<Option<Arc<Stream>>, String> + '_ {
    move |name| match archive.loaders.load(name) {
        Ok(Lookup::Stream(stream)) => Ok(Some(stream)),
        Ok(Lookup::Free(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The pools before they serve requests.
pub(crate) struct PoolService {
    pub(crate) dispatcher: DispatcherSender,
    receiver: DispatcherReceiver,
    /// The bounds of its mailbox: messages, and their bytes.
    mailbox: (usize, usize),
    /// None on a node of a fleet, which restores the pools when it is to dispatch.
    machine: Option<JobMachine>,
    tools: PoolTools,
}

/// What the pools are restored with.
#[derive(Clone)]
struct PoolTools {
    limits: PoolLimits,
    published: Arc<PublishedStats>,
    archive: Archive,
}

/// The threads that run the pools.
pub(crate) enum PoolThreads {
    Dispatcher(DispatcherThreads),
    Relay(JoinHandle<()>, RelayMetrics),
}

/// What the metrics show of the threads.
pub(crate) enum PoolGauges {
    Dispatcher(Box<dyn Fn() -> Gauge + Send + Sync>),
    Relay(RelayMetrics),
}

impl PoolTools {
    fn restore(&self) -> Result<JobMachine, ReplayError> {
        let archive = &self.archive;
        let read = |fetch: &_| archive.read(fetch).map_err(|error| error.to_string());
        let limits = self.limits.clone();
        let published = Arc::clone(&self.published);
        let seed = KeySeed::random()?;
        JobMachine::replay(limits, published, seed, &finder(archive), &read, now())
    }

    /// What a dispatcher is connected to.
    fn context(
        &self,
        machine: JobMachine,
        sequencers: Sequencers,
        number: u16,
        respond: SendResponse,
    ) -> DispatcherContext {
        let loaders = self.archive.loaders.clone();
        let archive = self.archive.clone();
        DispatcherContext {
            machine,
            look_up: Box::new(move |name| loaders.load(name).map_err(|error| error.to_string())),
            submit: Box::new(move |commands, now| sequencers.submit(commands, now)),
            number,
            read: Box::new(move |fetch| archive.read(fetch).map_err(|error| error.to_string())),
            respond,
            clock: now,
        }
    }
}

impl PoolService {
    /// Restores the pools from their streams.
    pub(crate) fn restore(
        settings: &ServerSettings,
        archive: Archive,
    ) -> Result<PoolService, StartError> {
        let mut service = PoolService::in_fleet(settings, archive);
        service.machine = Some(service.tools.restore()?);
        Ok(service)
    }

    /// The pools of a node of a fleet.
    pub(crate) fn in_fleet(settings: &ServerSettings, archive: Archive) -> PoolService {
        let (items_max, bytes_max) = (
            settings.pool_mailbox_items_max,
            settings.pool_mailbox_bytes_max,
        );
        let (dispatcher, receiver) = encke_jobs::dispatcher_mailbox(items_max, bytes_max);
        PoolService {
            dispatcher,
            receiver,
            mailbox: (items_max, bytes_max),
            machine: None,
            tools: PoolTools {
                limits: settings.pools.clone(),
                published: Arc::default(),
                archive,
            },
        }
    }

    /// Starts the dispatcher, which sends its responses through these senders.
    pub(crate) fn start(
        self,
        sequencers: Sequencers,
        inline_commits: Arc<[Arc<InlineCommit>]>,
        senders: &[Arc<ShardSender>],
    ) -> std::io::Result<(Arc<PublishedStats>, PoolThreads)> {
        let PoolTools {
            limits,
            published,
            archive,
        } = self.tools;
        let tools = PoolTools {
            limits,
            published: Arc::clone(&published),
            archive: archive.with_inline_commits(inline_commits),
        };
        let machine = match self.machine {
            Some(machine) => machine,
            None => {
                let limits = tools.limits.clone();
                JobMachine::new(limits, Arc::clone(&published), KeySeed::random()?)
            }
        };
        let number = senders.len() as u16;
        let context = tools.context(machine, sequencers, number, responder(senders));
        let threads = self.receiver.start(context)?;
        Ok((published, PoolThreads::Dispatcher(threads)))
    }

    /// Starts the relay of a node of a fleet.
    pub(crate) fn start_relay(
        self,
        fleet: FleetLinks,
        sequencers: Sequencers,
        senders: &[Arc<ShardSender>],
        metrics: &ServerMetrics,
    ) -> Result<(Arc<PublishedStats>, PoolThreads), StartError> {
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
            dispatcher: Box::new(move |machine, respond| {
                built.context(machine, sequencers.clone(), number, respond)
            }),
            submit: Box::new(move |submissions, now| commands.submit(submissions, now)),
            number,
            respond: responder(senders),
            published: Arc::clone(&self.tools.published),
            figures,
            mailbox: self.mailbox,
            clock: now,
        };
        let thread = self.receiver.start_relay(context)?;
        Ok((self.tools.published, PoolThreads::Relay(thread, metrics)))
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

impl PoolThreads {
    pub(crate) fn gauges(&self) -> PoolGauges {
        match self {
            PoolThreads::Dispatcher(threads) => PoolGauges::Dispatcher(Box::new(threads.loads())),
            PoolThreads::Relay(_, metrics) => PoolGauges::Relay(metrics.clone()),
        }
    }

    /// Whether this server dispatches jobs, and how often it has become the dispatcher of a fleet.
    pub(crate) fn dispatching(&self) -> impl Fn() -> (bool, u64) + Send + Sync + 'static {
        let relay = match self {
            PoolThreads::Dispatcher(_) => None,
            PoolThreads::Relay(_, metrics) => Some(metrics.clone()),
        };
        move || relay.as_ref().map_or((true, 0), RelayMetrics::dispatching)
    }

    /// Waits for their end. False: one of them panicked.
    pub(crate) fn join(self) -> bool {
        match self {
            PoolThreads::Dispatcher(threads) => threads.join(),
            PoolThreads::Relay(thread, _) => thread.join().is_ok(),
        }
    }
}

impl PoolGauges {
    pub(crate) fn show(&self, metrics: &Metrics) {
        match self {
            PoolGauges::Dispatcher(loads) => metrics.mailbox("loader", &loads()),
            PoolGauges::Relay(relay) => relay.show(),
        }
    }
}
