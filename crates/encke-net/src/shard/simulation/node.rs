//! A server in one thread: a shard, a sequencer and its log on a simulated disk, a dispatcher, and a reader. Each does a turn when the
//! simulation says so.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, WallTime};
use encke_jobs::{
    DispatchClient, DispatchResponse, DispatcherContext, DispatcherOutlet, JobMachine, PoolLimits,
    SimulatedDispatcher, SubscriptionsContext,
};
use encke_log::simulated::SimulatedDisk;
use encke_log::{Options, Reader, SEGMENT_BYTES_MIN};
use encke_mailbox::{Bounds, Receiver, mailbox};
use encke_protocol::{Admin, Gate, Probes, ProtocolSettings, ReadyState, Router};
use encke_stream::{
    AckLevel, Batch, Fetch, Limits, Loader, Lookup, Outlet, Piece, Reply, RunCache, RunCacheBounds,
    Sequencer, Sequencers, Stream, Views, restore_on,
};
use encke_subscriptions::{KeySeed, SubscribedStreams, SubscriptionLimits, SubscriptionMachine};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::super::{Admission, HandOver, Shard, ShardContext, TurnBuffers};
use crate::audit::{AuditQueue, audit_log};
use crate::broadcast::Broadcaster;
use crate::buffers::Buffers;
use crate::clients::addresses::Addresses;
use crate::clock::ShardClock;
use crate::compression::Compressors;
use crate::feed::congested_streams::CongestedStreams;
use crate::inspector::Inspector;
use crate::metrics::Metrics;
use crate::readers::{ReadTask, Readers};
use crate::settings::NetSettings;
use crate::shard_channel::{ShardEvent, ShardSender, shard_channel};

/// A server that runs until it is dropped, which is a crash.
pub(super) struct Node {
    shard: Shard,
    buffers: TurnBuffers,
    sequencer: Sequencer<SimulatedDisk>,
    /// What the sequencer has for the shard.
    commits: Commits,
    dispatcher: SimulatedDispatcher,
    /// What the dispatcher has for the shard.
    responses: Responses,
    sender: Arc<ShardSender>,
    tasks: Receiver<ReadTask>,
    log: Reader<SimulatedDisk>,
    runs: Arc<RunCache<SimulatedDisk>>,
    loader: Loader<Reader<SimulatedDisk>>,
    metrics: Metrics,
    _audit: AuditQueue,
}

type Commits = Arc<Mutex<VecDeque<(Option<Arc<Batch>>, Vec<Reply>)>>>;

type Responses = Arc<Mutex<VecDeque<(DispatchClient, DispatchResponse)>>>;

/// What is left of the clients of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remains {
    connections: usize,
    buffered_bytes: usize,
    subscribers: i64,
    behind: i64,
    http2_connections: i64,
    http2_streams: i64,
    compressors: usize,
}

impl Node {
    /// Starts on what a disk holds. At most `commands_max` commands wait for the sequencer.
    pub(super) fn start(
        disk: &SimulatedDisk,
        settings: &NetSettings,
        commands_max: usize,
        now: Now,
    ) -> Self {
        let options = Options {
            segment_bytes: SEGMENT_BYTES_MIN,
            history: false,
            ..Options::default()
        };
        let limits = Limits::default();
        let settings = Arc::new(settings.clone());
        let (machine, view, log) = restore_on(disk.clone(), options, limits, now.steady).unwrap();
        let reader = log.reader();
        let loader = Loader::new(Arc::clone(&view), reader.clone(), limits, Some(now.steady));
        let views = Views::one(view);
        let (sender, receiver) = shard_channel(&settings).unwrap();
        let sender = Arc::new(sender);
        let bounds = Bounds {
            items_max: commands_max,
            ..Bounds::default()
        };
        let (submissions, mailbox) = mailbox("sequencer", bounds);
        let commits = Commits::default();
        let (dispatcher, dispatching) = encke_jobs::dispatcher_mailbox(100, 1 << 20);
        let outlets: Vec<Box<dyn Outlet>> = vec![
            Box::new(SimulatedOutlet(Arc::clone(&commits))),
            Box::new(DispatcherOutlet::new(dispatcher.clone(), Arc::default())),
        ];
        let watch = Box::new(|_: &_| {});
        let sequencer = Sequencer::new(machine, log, mailbox, outlets, AckLevel::Synced, watch);
        // Small, so that short streams are kept and removed again.
        let bounds = RunCacheBounds {
            bytes_max: 16 << 10,
            records_min: 2,
            data_min: 1 << 10,
        };
        let runs = Arc::new(RunCache::new([reader.clone()].into(), bounds));
        let kept = Arc::clone(&runs);
        let (readers, tasks) = Readers::new(1, Arc::new(move |fetch| kept.kept(fetch)));
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let (audit, audit_queue) = audit_log(metrics.audit_dropped.with_label_values(&["test"]));
        let buffers = Arc::new(Buffers::new(settings.buffers_bytes_max, []));
        let probes = Probes {
            readiness: Arc::new(|| ReadyState::Ready),
            metrics: Arc::new(Vec::new),
        };
        let router = Router::new(
            Arc::clone(&views),
            ProtocolSettings::default(),
            Gate::default(),
            Admin::new(probes),
        );
        let sequencers = Sequencers::new(Arc::clone(&views), vec![(submissions, None)]);
        let responses = Responses::default();
        let pools = restore_pools(&loader, &reader, now);
        let dispatching = dispatching.simulate(DispatcherContext {
            machine: pools,
            look_up: {
                let loader = loader.clone();
                Box::new(move |name| loader.load(name).map_err(|error| error.to_string()))
            },
            submit: {
                let sequencers = sequencers.clone();
                Box::new(move |commands, now| sequencers.submit(commands, now))
            },
            number: 1,
            read: {
                let reader = reader.clone();
                Box::new(move |fetch| {
                    Piece::read(&reader, fetch).map_err(|error| error.to_string())
                })
            },
            respond: {
                let responses = Arc::clone(&responses);
                Box::new(move |client, response| responses.lock().push_back((client, response)))
            },
            subscriptions: SubscriptionsContext {
                machine: SubscriptionMachine::new(
                    SubscriptionLimits::default(),
                    &KeySeed::of([7; 32]),
                    Arc::default(),
                ),
                published: Arc::default(),
                streams: Box::new(NoSubscribedStreams),
                logs: 1,
                deliverer: Box::new(|_| unreachable!("there are no webhooks")),
            },
            term: 0,
            // Turns are told the time.
            clock: Now::default,
        });
        let (inspector, _) = Inspector::new();
        let hand_over = HandOver::new(
            0,
            sequencers,
            dispatcher,
            readers,
            inspector,
            Arc::clone(&sender),
        );
        let admission = Admission::new(settings.connections_max, Arc::default(), Arc::default());
        let context = ShardContext {
            number: 0,
            router,
            receiver,
            sender: Arc::clone(&sender),
            metrics: metrics.clone(),
            addresses: Arc::new(Addresses::new(&settings)),
            compressors: Arc::new(Compressors::new(
                settings.compressions_max,
                Arc::clone(&buffers),
            )),
            buffers,
            congested: Arc::new(CongestedStreams::default()),
            broadcaster: Broadcaster::new(
                Arc::clone(&views),
                Arc::new([Arc::clone(&sender)]),
                None,
                metrics.ephemeral.clone(),
            ),
            views,
            handshakes: None,
            access_log: None,
            audit,
            request_id_key: 1,
            settings,
        };
        // Clients are handed over: nothing arrives at the listener.
        let listener = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let mut shard = Shard::new(context, hand_over, admission, listener, None).unwrap();
        shard.connections.clock = ShardClock::simulated(now);
        Node {
            shard,
            buffers: TurnBuffers::new(),
            sequencer,
            commits,
            dispatcher: dispatching,
            responses,
            sender,
            tasks: tasks.into_iter().next().unwrap(),
            log: reader,
            runs,
            loader,
            metrics,
            _audit: audit_queue,
        }
    }

    /// A client connects.
    pub(super) fn accept(&mut self, socket: OwnedFd) {
        self.shard.admit_connection(socket, None, false);
    }

    /// Time passes.
    pub(super) fn pass(&mut self, time: Duration) {
        self.shard.connections.clock.pass(time);
    }

    /// The time of day steps.
    pub(super) fn step(&mut self, ms: i64) {
        self.shard.connections.clock.step(ms);
    }

    pub(super) fn wall(&self) -> WallTime {
        self.shard.connections.clock.wall()
    }

    /// A turn of the shard.
    pub(super) fn turn_shard(&mut self) {
        self.shard.turn(Duration::ZERO, &mut self.buffers).unwrap();
    }

    /// A turn of the sequencer, and the hand-over of what it has committed.
    pub(super) fn turn_sequencer(&mut self) {
        self.sequencer.turn(self.shard.connections.clock.time());
        self.hand_over();
    }

    /// A turn of the dispatcher, of its loader, and the hand-over of its responses.
    pub(super) fn turn_dispatcher(&mut self) {
        self.dispatcher.turn(self.shard.connections.clock.time());
        self.dispatcher.load();
        loop {
            let next = self.responses.lock().pop_front();
            let Some((client, response)) = next else {
                return;
            };
            if self.sender.gauge().depth() > 0 {
                // The dispatcher would wait while the channel is full.
                self.turn_shard();
            }
            self.sender.dispatched(client, response);
        }
    }

    /// The reader does one task. False: there is none.
    pub(super) fn turn_reader(&mut self) -> bool {
        if self.sender.gauge().depth() > 0 {
            // A reader would wait while the channel is full.
            self.turn_shard();
        }
        let Some(task) = self.tasks.try_recv() else {
            return false;
        };
        match task {
            ReadTask::Read(fetch, reply) => reply.piece(self.runs.read(&fetch)),
            ReadTask::ReadOrder(fetch, reply) => {
                reply.piece(Piece::read_order(&self.log, &self.loader, &fetch));
            }
            ReadTask::LoadName(name, reply) => reply.name(self.loader.load(&name)),
            ReadTask::List(fetch, reply) => reply.page(self.loader.list(&fetch)),
            ReadTask::LoadStream(no, reply) => reply.stream(self.loader.load_number(no)),
            ReadTask::End(no) => drop(self.loader.load_number(no)),
            ReadTask::Compress(task) => task.run(),
        }
        self.tasks.handled(1);
        true
    }

    /// All parts take some turns.
    pub(super) fn settle(&mut self) {
        for _ in 0..SETTLED_TURNS {
            self.turn_shard();
            self.turn_sequencer();
            self.turn_dispatcher();
            while self.turn_reader() {
                self.turn_shard();
            }
            self.pass(Duration::from_millis(20));
        }
    }

    /// The server stops, as far as the shard is concerned.
    pub(super) fn stop(&mut self) {
        self.sender.put(ShardEvent::Stop);
    }

    pub(super) fn remains(&self) -> Remains {
        let Shard {
            connections,
            context,
            ..
        } = &self.shard;
        Remains {
            connections: connections.slots.used(),
            buffered_bytes: context.buffers.bytes(),
            subscribers: self.metrics.subscribers.get(),
            behind: self.metrics.behind.get(),
            http2_connections: self.metrics.http2_connections.get(),
            http2_streams: self.metrics.http2_streams.get(),
            compressors: context.compressors.used(),
        }
    }

    /// Pieces that were read from files.
    pub(super) fn pieces(&self) -> u64 {
        self.metrics.catch_ups.get()
    }

    /// Hands over what was committed before anything else sees that it was, as a sequencer does that waits for its outlets.
    fn hand_over(&mut self) {
        loop {
            let next = self.commits.lock().pop_front();
            let Some((batch, replies)) = next else {
                return;
            };
            if let Err(refused) = self.sender.offer(batch, replies) {
                let refused = (refused.batch, refused.replies);
                self.commits.lock().push_front(refused);
                self.turn_shard();
            }
        }
    }
}

impl Remains {
    pub(super) const NOTHING: Remains = Remains {
        connections: 0,
        buffered_bytes: 0,
        subscribers: 0,
        behind: 0,
        http2_connections: 0,
        http2_streams: 0,
        compressors: 0,
    };
}

/// The pools as the log has them.
fn restore_pools(
    loader: &Loader<Reader<SimulatedDisk>>,
    reader: &Reader<SimulatedDisk>,
    now: Now,
) -> JobMachine {
    let find = |name: &str| match loader.load(name) {
        Ok(Lookup::Stream(stream)) => Ok(Some(stream)),
        Ok(Lookup::Free(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    let read = |fetch: &_| Piece::read(reader, fetch).map_err(|error| error.to_string());
    let limits = PoolLimits {
        // Most jobs are read again from the log.
        cache_bytes: 10_000,
        segment_records: 20,
        ..PoolLimits::default()
    };
    let seed = KeySeed::of([7; 32]);
    JobMachine::replay(limits, Arc::default(), seed, &find, &read, now).unwrap()
}

/// No client of the simulation makes a subscription of workers.
struct NoSubscribedStreams;

impl SubscribedStreams for NoSubscribedStreams {
    fn find(&self, _: &str) -> Result<Option<Arc<Stream>>, String> {
        Ok(None)
    }

    fn read(&self, _: &Fetch) -> Result<Piece, String> {
        Ok(Piece::default())
    }

    fn each(
        &self,
        _: &str,
        _: &dyn Fn(&str) -> bool,
        _: &mut dyn FnMut(&Stream) -> ControlFlow<()>,
    ) -> Result<(), String> {
        Ok(())
    }
}

/// Keeps what the sequencer has for the shard: a thread that waits would wait for ever.
struct SimulatedOutlet(Commits);

impl Outlet for SimulatedOutlet {
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        self.0.lock().push_back((batch, replies));
    }

    fn admit(&self) {}
}

/// Turns in which most of what has begun ends.
const SETTLED_TURNS: u32 = 10;
