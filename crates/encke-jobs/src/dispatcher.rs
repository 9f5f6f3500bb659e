//! The thread that runs the pools: it drains its mailbox in batches and feeds the machine.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use encke_clock::Now;
use encke_mailbox::{Bounds, Gauge, GaugeReader, Lane, Receiver, SendErrorKind, Sender, mailbox};
use encke_stream::{
    Append, Batch, Command, Fetch, Handover, Life, Lookup, Offset, Outlet, Piece, Reply, Stream,
    Submission, Submitter, Target,
};

use crate::machine::{Effect, JobMachine};
use crate::message::{DispatcherMessage, RelayMessage};
use crate::record;
use crate::request::{DispatchClient, JobId, Payload};
use crate::response::DispatchResponse;

/// The sending end of the dispatcher's mailbox.
#[derive(Clone)]
pub struct DispatcherSender {
    messages: Sender<DispatcherMessage>,
    bytes_max: usize,
}

/// The receiving end of the dispatcher's mailbox.
pub struct DispatcherReceiver {
    pub(crate) messages: Receiver<DispatcherMessage>,
    pub(crate) sender: DispatcherSender,
}

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
    /// The time.
    pub clock: fn() -> Now,
}

/// The threads. They end after [`DispatcherMessage::Quit`].
pub struct DispatcherThreads {
    dispatcher: JoinHandle<()>,
    loader: JoinHandle<()>,
    loads: GaugeReader<JobLoad>,
}

impl DispatcherThreads {
    /// A function that reads the gauge of the mailbox of jobs to be read.
    pub fn loads(&self) -> impl Fn() -> Gauge + Send + Sync + use<> {
        let loads = self.loads.clone();
        move || loads.gauge()
    }

    /// Waits until both threads have ended. False: one of them panicked.
    pub fn join(self) -> bool {
        let dispatcher = self.dispatcher.join();
        let loader = self.loader.join();
        dispatcher.is_ok() && loader.is_ok()
    }
}

/// Creates the mailbox with these bounds on messages and their bytes.
pub fn dispatcher_mailbox(
    items_max: usize,
    bytes_max: usize,
) -> (DispatcherSender, DispatcherReceiver) {
    let bounds = Bounds {
        items_max,
        bytes_max,
    };
    let (sender, messages) = mailbox("dispatcher", bounds);
    let sender = DispatcherSender {
        messages: sender,
        bytes_max,
    };
    (sender.clone(), DispatcherReceiver { messages, sender })
}

impl DispatcherSender {
    /// Sends as many messages as there is room for, in order; the others stay in the list.
    pub fn put_many(&self, messages: &mut Vec<(DispatcherMessage, usize)>) {
        self.messages.try_send_many(Lane::Data, messages);
    }

    /// The weight of a message in the mailbox, in bytes.
    pub fn weight_bytes(&self, message: &DispatcherMessage) -> usize {
        let content = match message {
            DispatcherMessage::Request(_, request) => request.content_bytes(),
            DispatcherMessage::Loaded {
                payload: Ok(payload),
                ..
            } => payload.body.len(),
            DispatcherMessage::Relay(RelayMessage::Packet(packet)) => packet.len(),
            DispatcherMessage::Relay(RelayMessage::Response(_, response)) => {
                response.weight_bytes()
            }
            DispatcherMessage::Committed(replies) => replies.len() * size_of::<Reply>(),
            _ => 0,
        };
        (content + size_of::<DispatcherMessage>()).min(self.bytes_max)
    }

    /// Sends a message in the control lane. A dispatcher that is gone ignores it.
    pub fn control(&self, message: DispatcherMessage) {
        let _ = self
            .messages
            .send(Lane::Control, message, size_of::<DispatcherMessage>());
    }

    /// The state of the mailbox.
    pub fn gauge(&self) -> Gauge {
        self.messages.gauge()
    }

    /// Sends a message. Blocks while the mailbox is full.
    pub(crate) fn put(&self, message: DispatcherMessage) {
        let bytes = self.weight_bytes(&message);
        let _ = self.messages.send(Lane::Data, message, bytes);
    }
}

impl Outlet for DispatcherSender {
    fn deliver(&self, _batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        // The dispatcher needs no records: it wrote those of the pools itself.
        self.put(DispatcherMessage::Committed(replies));
    }

    fn admit(&self) {}

    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        let message = DispatcherMessage::Committed(replies);
        let bytes = self.weight_bytes(&message);
        match self.messages.try_send(Lane::Data, message, bytes) {
            Ok(()) => Ok(()),
            Err(refused) => match (refused.kind, refused.item) {
                (SendErrorKind::Closed, _) => Ok(()),
                (_, DispatcherMessage::Committed(replies)) => Err(Handover { batch, replies }),
                // The refused item is the message that was sent.
                _ => Ok(()),
            },
        }
    }
}

impl DispatcherReceiver {
    /// Starts the dispatcher and the thread that reads jobs for it.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn start(self, context: DispatcherContext) -> std::io::Result<DispatcherThreads> {
        let clock = context.clock;
        let (dispatcher, loading, read) = Dispatcher::new(context);
        let watch = dispatcher.loads.watch();
        let sender = self.sender;
        let loader = std::thread::Builder::new()
            .name("loader".into())
            .spawn(move || load(loading, &sender, &*read))?;
        let messages = self.messages;
        let dispatcher = std::thread::Builder::new()
            .name("dispatcher".into())
            .spawn(move || dispatcher.run(messages, clock))?;
        Ok(DispatcherThreads {
            dispatcher,
            loader,
            loads: watch,
        })
    }

    /// A dispatcher that takes its turns when it is told to, for a simulation.
    #[doc(hidden)]
    #[cfg(feature = "simulation")]
    pub fn simulate(self, context: DispatcherContext) -> SimulatedDispatcher {
        let (dispatcher, loading, read) = Dispatcher::new(context);
        SimulatedDispatcher {
            dispatcher,
            messages: self.messages,
            sender: self.sender,
            loading,
            read,
        }
    }
}

/// A dispatcher and its loader without their threads.
#[doc(hidden)]
#[cfg(feature = "simulation")]
pub struct SimulatedDispatcher {
    dispatcher: Dispatcher,
    messages: Receiver<DispatcherMessage>,
    sender: DispatcherSender,
    loading: Receiver<JobLoad>,
    read: ReadPiece,
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

    /// The loader reads one job. False: none waits.
    pub fn load(&mut self) -> bool {
        let Some(job) = self.loading.try_recv() else {
            return false;
        };
        load_job(&job, &self.sender, &*self.read);
        self.loading.handled(1);
        true
    }
}

struct Dispatcher {
    machine: JobMachine,
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

struct JobLoad {
    pool: u64,
    id: JobId,
    fetch: Fetch,
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
    /// A dispatcher, with what its loader needs.
    fn new(context: DispatcherContext) -> (Dispatcher, Receiver<JobLoad>, ReadPiece) {
        let bounds = Bounds {
            items_max: LOADS_MAX,
            bytes_max: LOADS_MAX * size_of::<JobLoad>(),
        };
        let (loads, loading) = mailbox("loader", bounds);
        let dispatcher = Dispatcher {
            machine: context.machine,
            look_up: context.look_up,
            streams: HashMap::new(),
            submit: context.submit,
            number: context.number,
            loads,
            unread: VecDeque::new(),
            respond: context.respond,
        };
        (dispatcher, loading, context.read)
    }

    fn run(mut self, mut messages: Receiver<DispatcherMessage>, clock: fn() -> Now) {
        let mut batch = Vec::new();
        let mut quits = false;
        self.machine.flush(clock());
        self.work(clock());
        while !(quits && self.machine.is_idle()) {
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
                DispatcherMessage::Request(client, request) => {
                    self.machine.request(now, client, request);
                }
                DispatcherMessage::Disconnected(client) => {
                    self.machine.disconnected(now, client);
                }
                DispatcherMessage::CallerEnded(client) => {
                    self.machine.caller_ended(now, client);
                }
                DispatcherMessage::Committed(replies) => {
                    for reply in replies {
                        self.machine.committed(now, reply.token, reply.outcome);
                    }
                }
                DispatcherMessage::Loaded { pool, id, payload } => {
                    self.machine.loaded(now, pool, id, payload);
                }
                DispatcherMessage::NodeGone(node) => self.machine.node_gone(now, node),
                DispatcherMessage::Relay(_) => {}
                DispatcherMessage::Abandon => return AfterTurn::Abandon,
                DispatcherMessage::Stop => self.machine.stop(now),
                DispatcherMessage::Quit => {
                    self.machine.stop(now);
                    after = AfterTurn::Quit;
                }
            }
        }
        self.machine.tick(now);
        self.machine.flush(now);
        self.work(now);
        after
    }

    fn time_to_wait(&self, now: Now) -> Option<Duration> {
        if !self.unread.is_empty() {
            return Some(UNREAD_WAIT);
        }
        let wait = self.machine.next_due()?.since(now.steady);
        Some(wait.max(Duration::from_millis(1)))
    }

    /// Carries out the effects of the machine.
    fn work(&mut self, now: Now) {
        loop {
            let effects = self.machine.take_effects();
            if effects.is_empty() {
                break;
            }
            let mut commits = Vec::new();
            let mut responses = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Commit { op, command } => match self.request(op, command) {
                        Ok(request) => commits.push(request),
                        Err(error) => {
                            tracing::error!(%error, "cannot look up a stream of the pools");
                            self.machine.unsent(now, op);
                        }
                    },
                    Effect::Load { pool, id, stream } => self.load(now, pool, id, &stream),
                    Effect::Respond { to, response } => responses.push((to, response)),
                }
            }
            if !commits.is_empty() {
                (self.submit)(&mut commits, now);
            }
            for (request, _) in commits {
                self.machine.unsent(now, request.from.token);
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
        Ok((Submission { command, from }, bytes))
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

/// Reads jobs until the dispatcher ends.
fn load(
    mut loads: Receiver<JobLoad>,
    sender: &DispatcherSender,
    read: &dyn Fn(&Fetch) -> Result<Piece, String>,
) {
    while let Ok(job) = loads.recv() {
        load_job(&job, sender, read);
        loads.handled(1);
    }
}

fn load_job(
    job: &JobLoad,
    sender: &DispatcherSender,
    read: &dyn Fn(&Fetch) -> Result<Piece, String>,
) {
    let payload = read_job(&job.fetch, read);
    sender.put(DispatcherMessage::Loaded {
        pool: job.pool,
        id: job.id,
        payload,
    });
}

fn read_job(
    fetch: &Fetch,
    read: &dyn Fn(&Fetch) -> Result<Piece, String>,
) -> Result<Payload, String> {
    for _ in 0..UNWRITTEN_TRIES {
        let piece = read(fetch)?;
        if let Some(item) = piece.items().next() {
            return record::payload(item.data).map_err(|error| error.to_string());
        }
        if !piece.more {
            break;
        }
        // The job was acknowledged before it was written.
        std::thread::sleep(UNWRITTEN_WAIT);
    }
    Err("the record is missing".into())
}

/// How often, and how long apart, the loader tries to read a job that is not written yet.
const UNWRITTEN_TRIES: u32 = 500;
const UNWRITTEN_WAIT: Duration = Duration::from_millis(10);

/// The maximum number of streams that the dispatcher keeps in memory.
const STREAMS_MAX: usize = 16_384;

/// The maximum number of jobs that wait to be read.
const LOADS_MAX: usize = 1_024;

/// The pause before the dispatcher offers refused jobs to the loader again.
const UNREAD_WAIT: Duration = Duration::from_millis(5);
