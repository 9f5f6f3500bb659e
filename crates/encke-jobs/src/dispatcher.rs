//! The thread that runs the pools and the subscriptions: it drains its mailbox in batches and feeds their machines.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use encke_clock::Now;
use encke_mailbox::{Bounds, Gauge, GaugeReader, Lane, Receiver, Sender, mailbox};
use encke_stream::{
    Append, Command, Fetch, Life, Lookup, Offset, Piece, Reply, Stream, Submission, Submitter,
    Target,
};
use encke_subscriptions::SubscribedStreams;
use encke_threads::spawn_essential;

use crate::dispatcher_mailbox::{DispatcherReceiver, DispatcherSender};
#[cfg(feature = "simulation")]
use crate::loader::load_job;
use crate::loader::{JobLoad, load};
use crate::machine::{Effect, JobMachine};
use crate::message::DispatcherMessage;
use crate::op_number::{OpKind, first_op};
use crate::request::{DispatchClient, DispatchRequest, JobId};
use crate::response::DispatchResponse;
use crate::subscriptions::{
    DriverWork, LookUp, SubscriptionDriver, SubscriptionsContext, look_up_all,
};

/// Looks up a stream by its name, in memory and in the store. The stream stays in memory while the result is held.
pub type LookUpStream = Box<dyn Fn(&str) -> Result<Lookup, String> + Send>;

/// Submits commands with their weights to the sequencer. Commands that the sequencer has no room for stay in the list. The
/// time is that of the commands.
pub type SubmitCommands = Box<dyn Fn(&mut Vec<(Submission, usize)>, Now) + Send>;

/// Reads a part of a stream.
pub type ReadPiece = Box<dyn Fn(&Fetch) -> Result<Piece, String> + Send>;

/// Sends a response to a client. It may wait for the client's shard, and it does not fail.
pub type SendResponse = Box<dyn Fn(DispatchClient, DispatchResponse) + Send>;

/// The dispatcher's state and its connections to the rest of the server.
pub struct DispatcherContext {
    /// The pools.
    pub machine: JobMachine,
    /// See [`LookUpStream`].
    pub look_up: LookUpStream,
    /// See [`SubmitCommands`].
    pub submit: SubmitCommands,
    /// The dispatcher's number among the sequencer's outlets.
    pub number: u16,
    /// See [`ReadPiece`].
    pub read: ReadPiece,
    /// See [`SendResponse`].
    pub respond: SendResponse,
    /// The subscriptions.
    pub subscriptions: SubscriptionsContext,
    /// The number of the dispatcher's term in this run; 0 on a server that is no node of a fleet.
    pub term: u64,
    /// The time.
    pub clock: fn() -> Now,
}

/// The threads. They end after [`DispatcherMessage::Quit`].
pub struct DispatcherThreads {
    dispatcher: JoinHandle<()>,
    loader: JoinHandle<()>,
    look_ups: JoinHandle<()>,
    loads: GaugeReader<JobLoad>,
}

/// What the other threads of a dispatcher have.
struct DispatcherAides {
    loading: Receiver<JobLoad>,
    read: ReadPiece,
    looking_up: Receiver<LookUp>,
    streams: Box<dyn SubscribedStreams + Send>,
    sender: DispatcherSender,
}

impl DispatcherThreads {
    /// A function that reads the gauge of the mailbox of jobs to be read.
    pub fn loads(&self) -> impl Fn() -> Gauge + Send + Sync + use<> {
        let loads = self.loads.clone();
        move || loads.gauge()
    }

    /// Waits until the threads have ended. False: one of them panicked.
    pub fn join(self) -> bool {
        let threads = [self.dispatcher, self.loader, self.look_ups];
        let ended = threads.map(JoinHandle::join);
        ended.iter().all(Result::is_ok)
    }
}

impl DispatcherReceiver {
    /// Starts the dispatcher, the thread that reads jobs for it, and the one that looks streams up.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn start(self, context: DispatcherContext) -> std::io::Result<DispatcherThreads> {
        let clock = context.clock;
        let (dispatcher, aides) = Dispatcher::new(context, self.sender);
        let watch = dispatcher.loads.watch();
        let (loading, read, sender) = (aides.loading, aides.read, aides.sender.clone());
        let loader = spawn_essential("loader", move || load(loading, &sender, &*read))?;
        let (looking_up, streams, sender) = (aides.looking_up, aides.streams, aides.sender);
        let look_ups = spawn_essential("look-ups", move || {
            look_up_all(looking_up, &sender, &*streams);
        })?;
        let messages = self.messages;
        let dispatcher = spawn_essential("dispatcher", move || dispatcher.run(messages, clock))?;
        Ok(DispatcherThreads {
            dispatcher,
            loader,
            look_ups,
            loads: watch,
        })
    }

    /// A dispatcher that takes its turns when it is told to, for a simulation.
    #[doc(hidden)]
    #[cfg(feature = "simulation")]
    pub fn simulate(self, context: DispatcherContext) -> SimulatedDispatcher {
        let (dispatcher, aides) = Dispatcher::new(context, self.sender);
        SimulatedDispatcher {
            dispatcher,
            messages: self.messages,
            aides,
        }
    }
}

/// A dispatcher and its aides without their threads.
#[doc(hidden)]
#[cfg(feature = "simulation")]
pub struct SimulatedDispatcher {
    dispatcher: Dispatcher,
    messages: Receiver<DispatcherMessage>,
    aides: DispatcherAides,
}

#[cfg(feature = "simulation")]
impl SimulatedDispatcher {
    /// A turn of the dispatcher, which waits for nothing.
    pub fn turn(&mut self, now: Now) {
        let mut batch = Vec::new();
        while let Some(message) = self.messages.try_recv() {
            batch.push(message);
        }
        let taken = batch.len();
        self.dispatcher.turn(&mut batch, now);
        self.messages.handled(taken);
    }

    /// The loader reads one job, or one look-up is carried out. False: neither waits.
    pub fn load(&mut self) -> bool {
        let aides = &mut self.aides;
        if let Some(job) = aides.loading.try_recv() {
            load_job(&job, &aides.sender, &*aides.read);
            aides.loading.handled(1);
        } else if let Some(look_up) = aides.looking_up.try_recv() {
            look_up.carry_out(&aides.sender, &*aides.streams);
            aides.looking_up.handled(1);
        } else {
            return false;
        }
        true
    }
}

struct Dispatcher {
    machine: JobMachine,
    subscriptions: SubscriptionDriver,
    look_up: LookUpStream,
    /// The streams of the pools. Holding them keeps them in memory.
    streams: HashMap<Box<str>, Arc<Stream>>,
    submit: SubmitCommands,
    number: u16,
    loads: Sender<JobLoad>,
    /// Jobs to read for which the loader has no room yet: at most those that workers are about to get.
    unread: VecDeque<JobLoad>,
    respond: SendResponse,
}

/// What becomes of the dispatcher behind a batch of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterTurn {
    GoOn,
    /// It ends when nothing is under way.
    Quit,
    /// It ends now.
    Abandon,
}

impl Dispatcher {
    /// A dispatcher, with what its aides need.
    fn new(context: DispatcherContext, sender: DispatcherSender) -> (Dispatcher, DispatcherAides) {
        let bounds = Bounds {
            items_max: LOADS_MAX,
            bytes_max: LOADS_MAX * size_of::<JobLoad>(),
        };
        let (loads, loading) = mailbox("loader", bounds);
        let mut machine = context.machine;
        machine.number_from(first_op(context.term, OpKind::Jobs));
        let (subscriptions, looking_up, streams) =
            SubscriptionDriver::new(context.subscriptions, sender.clone(), context.term);
        let dispatcher = Dispatcher {
            machine,
            subscriptions,
            look_up: context.look_up,
            streams: HashMap::new(),
            submit: context.submit,
            number: context.number,
            loads,
            unread: VecDeque::new(),
            respond: context.respond,
        };
        let aides = DispatcherAides {
            loading,
            read: context.read,
            looking_up,
            streams,
            sender,
        };
        (dispatcher, aides)
    }

    fn run(mut self, mut messages: Receiver<DispatcherMessage>, clock: fn() -> Now) {
        let mut batch = Vec::new();
        let mut quits = false;
        self.machine.flush(clock());
        self.subscriptions.flush(clock());
        self.work(clock());
        while !(quits && self.machine.is_idle() && self.subscriptions.is_idle()) {
            let open = match self.time_to_wait(clock()) {
                None => messages.recv_batch(&mut batch).is_ok(),
                Some(time) => messages.recv_batch_timeout(&mut batch, time).is_ok(),
            };
            if !open {
                return;
            }
            let taken = batch.len();
            match self.turn(&mut batch, clock()) {
                AfterTurn::GoOn => {}
                AfterTurn::Quit => quits = true,
                AfterTurn::Abandon => return,
            }
            messages.handled(taken);
        }
    }

    /// Handles a batch of messages and what is due.
    fn turn(&mut self, batch: &mut Vec<DispatcherMessage>, now: Now) -> AfterTurn {
        let mut after = AfterTurn::GoOn;
        for message in batch.drain(..) {
            match message {
                DispatcherMessage::Request(client, request) => match request {
                    DispatchRequest::Pool(request) => self.machine.request(now, client, request),
                    DispatchRequest::Subscription(request) => {
                        self.subscriptions.request(now, client, *request);
                    }
                },
                DispatcherMessage::Disconnected(client) => {
                    self.machine.disconnected(now, client);
                }
                DispatcherMessage::CallerEnded(client) => {
                    self.machine.caller_ended(now, client);
                }
                DispatcherMessage::Committed(replies) => {
                    for reply in replies {
                        self.committed(now, reply);
                    }
                }
                DispatcherMessage::Changed(changes) => self.subscriptions.changed(now, &changes),
                DispatcherMessage::Found(look_up, found) => {
                    self.subscriptions.found(now, look_up, found);
                }
                DispatcherMessage::Delivered(number, result) => {
                    self.subscriptions.delivered(now, number, result);
                }
                DispatcherMessage::Loaded { pool, id, payload } => {
                    self.machine.loaded(now, pool, id, payload);
                }
                DispatcherMessage::NodeGone(node) => self.machine.node_gone(now, node),
                DispatcherMessage::Relay(_) => {}
                DispatcherMessage::Abandon => return AfterTurn::Abandon,
                DispatcherMessage::Stop => self.stop(now),
                DispatcherMessage::Quit => {
                    self.stop(now);
                    after = AfterTurn::Quit;
                }
            }
        }
        self.machine.tick(now);
        self.machine.flush(now);
        self.subscriptions.flush(now);
        self.work(now);
        self.subscriptions.publish(now);
        after
    }

    fn stop(&mut self, now: Now) {
        self.machine.stop(now);
        self.subscriptions.stop();
    }

    fn committed(&mut self, now: Now, reply: Reply) {
        let (op, outcome) = (reply.token, reply.outcome);
        match OpKind::of(op) {
            OpKind::Jobs => self.machine.committed(now, op, outcome),
            OpKind::Subscriptions => self.subscriptions.committed(now, op, outcome),
            OpKind::Barriers => self.subscriptions.barrier_committed(now, op, &outcome),
        }
    }

    fn unsent(&mut self, now: Now, op: u64) {
        match OpKind::of(op) {
            OpKind::Jobs => self.machine.unsent(now, op),
            _ => self.subscriptions.unsent(now, op),
        }
    }

    fn time_to_wait(&self, now: Now) -> Option<Duration> {
        if !self.unread.is_empty() {
            return Some(UNREAD_WAIT);
        }
        let due = [self.machine.next_due(), self.subscriptions.next_due(now)];
        let wait = due.into_iter().flatten().min()?.since(now.steady);
        Some(wait.max(Duration::from_millis(1)))
    }

    /// Carries out the effects of the machines.
    fn work(&mut self, now: Now) {
        loop {
            let effects = self.machine.take_effects();
            let DriverWork {
                mut commands,
                mut responses,
            } = self.subscriptions.work(now);
            if effects.is_empty() && commands.is_empty() && responses.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    Effect::Commit { op, command } => commands.push((op, command)),
                    Effect::Load { pool, id, stream } => self.load(now, pool, id, &stream),
                    Effect::Respond { to, response } => responses.push((to, response)),
                }
            }
            let mut commits = Vec::with_capacity(commands.len());
            for (op, command) in commands {
                match self.request(op, command) {
                    Ok(request) => commits.push(request),
                    Err(error) => {
                        let of = OpKind::of(op);
                        tracing::error!(%error, ?of, "cannot look up the stream of a command");
                        self.unsent(now, op);
                    }
                }
            }
            if !commits.is_empty() {
                (self.submit)(&mut commits, now);
            }
            for (request, _) in commits {
                self.unsent(now, request.from.token);
            }
            for (to, response) in responses {
                (self.respond)(to, response);
            }
        }
        while let Some(load) = self.unread.pop_front() {
            if let Err(refused) = self.loads.try_send(Lane::Data, load, size_of::<JobLoad>()) {
                self.unread.push_front(refused.item);
                break;
            }
        }
    }

    /// The command with the streams that it refers to, so that they are in memory when the sequencer decides it.
    fn request(&mut self, op: u64, mut command: Command) -> Result<(Submission, usize), String> {
        match &mut command {
            Command::Create(create) => create.known.push((self.look_up)(&create.name)?),
            Command::Append(Append { target, .. }) => self.resolve(target, false)?,
            Command::Truncate { target, .. } => self.resolve(target, false)?,
            Command::Delete { target, .. } => self.resolve(target, true)?,
            Command::Fleet(_) => {}
            Command::Series(appends) => {
                for append in appends {
                    self.resolve(&mut append.target, false)?;
                }
            }
        }
        let bytes = command.weight_bytes();
        let from = Submitter {
            shard: self.number,
            token: op,
        };
        Ok((Submission::new(command, from), bytes))
    }

    /// Resolves a target's name to its stream, if the stream exists.
    fn resolve(&mut self, target: &mut Target, last: bool) -> Result<(), String> {
        if let Target::Named(name) = target
            && let Some(stream) = self.stream(name)?
        {
            if last {
                self.streams.remove(name);
            }
            *target = Target::Known(stream);
        }
        Ok(())
    }

    fn stream(&mut self, name: &str) -> Result<Option<Arc<Stream>>, String> {
        if let Some(stream) = self.streams.get(name)
            && stream.facts().life == Life::Live
        {
            return Ok(Some(Arc::clone(stream)));
        }
        match (self.look_up)(name)? {
            Lookup::Stream(stream) => {
                if self.streams.len() >= STREAMS_MAX {
                    // Some belong to removed pools; the others are looked up again.
                    self.streams.clear();
                }
                self.streams.insert(name.into(), Arc::clone(&stream));
                Ok(Some(stream))
            }
            Lookup::Free(_) => {
                self.streams.remove(name);
                Ok(None)
            }
        }
    }

    fn load(&mut self, now: Now, pool: u64, id: JobId, stream: &str) {
        let found = self
            .stream(stream)
            .and_then(|found| found.ok_or_else(|| format!("unknown stream {stream:?}")));
        let stream = match found {
            Ok(stream) => stream,
            Err(error) => return self.machine.loaded(now, pool, id, Err(error)),
        };
        let from = Offset::behind(id.saturating_sub(1));
        let fetch = Fetch::new(&stream, from, Offset::behind(id), 1);
        self.unread.push_back(JobLoad { pool, id, fetch });
    }
}

/// The maximum number of streams that the dispatcher keeps in memory.
const STREAMS_MAX: usize = 16_384;

/// The maximum number of jobs that wait to be read.
const LOADS_MAX: usize = 1_024;

/// The pause before the dispatcher offers refused jobs to the loader again.
const UNREAD_WAIT: Duration = Duration::from_millis(5);
