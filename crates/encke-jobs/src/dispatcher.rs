//! The thread that runs the pools: a mailbox that is drained in batches, and the machine.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use encke_mailbox::{Bounds, Gauge, Lane, Options, Receiver, Sender, Watch, Why, mailbox};
use encke_stream::{
    Append, Batch, Caller, Command, Fetch, Handover, Known, Life, Offset, Outlet, Piece, Reply,
    Request, Stream, Target,
};

use crate::machine::{Effect, JobMachine};
use crate::record;
use crate::request::{
    AttemptAction, AttemptReport, JobId, NewJob, Payload, PoolClient, PoolRequest,
};
use crate::response::PoolResponse;

/// Everybody else's end of the dispatcher's mailbox.
#[derive(Clone)]
pub struct DispatcherSender {
    words: Sender<DispatcherMessage>,
    bytes_max: usize,
}

/// Something that the dispatcher is told.
#[derive(Debug)]
pub enum DispatcherMessage {
    /// Somebody asks for something.
    Request(PoolClient, PoolRequest),
    /// A client has hung up, or was gone when it was told something.
    Disconnected(PoolClient),
    /// What became of commands.
    Committed(Vec<Reply>),
    /// A job was read, or why it could not be.
    Loaded {
        /// Of which pool.
        pool: u64,
        /// Which job.
        id: JobId,
        /// What it holds.
        payload: Result<Payload, String>,
    },
    /// The server is going away: tell all who wait.
    Stop,
    /// Nobody will ask any more.
    Quit,
}

/// The dispatcher's own end.
pub struct DispatcherReceiver {
    words: Receiver<DispatcherMessage>,
    sender: DispatcherSender,
}

/// Says what is known of a stream's name, or why it can't.
pub type Look = Box<dyn Fn(&str) -> Result<Known, String> + Send>;

/// Takes commands with their weights, but those that there is no room for.
pub type Submit = Box<dyn Fn(&mut Vec<(Request, usize)>, u64) + Send>;

/// Reads a part of a stream, or says why it can't.
pub type ReadPiece = Box<dyn Fn(&Fetch) -> Result<Piece, String> + Send>;

/// What the dispatcher works with.
pub struct DispatcherContext {
    /// The pools.
    pub machine: JobMachine,
    /// What is known of a stream's name, from memory or from the store, or why that can't be said. As
    /// long as the answer is held it stays in memory.
    pub load: Look,
    /// Hands commands with their weights to the sequencer, and has them decided where it does not wake by itself; what
    /// it has no room for stays. The time is in milliseconds since 1970.
    pub submit: Submit,
    /// The dispatcher's number among the sequencer's outlets.
    pub number: u16,
    /// Reads a part of a stream, or says why it can't.
    pub read: ReadPiece,
    /// Tells a client; may wait for its shard, but must not fail.
    pub respond: Box<dyn Fn(PoolClient, PoolResponse) + Send>,
    /// Milliseconds since 1970.
    pub clock: fn() -> u64,
}

/// The threads, which end after [`DispatcherMessage::Quit`].
pub struct DispatcherThreads {
    dispatcher: JoinHandle<()>,
    loader: JoinHandle<()>,
    loads: Watch<Load>,
}

impl DispatcherThreads {
    /// What gives the gauge of the mailbox in which jobs wait to be read, for as long as anybody asks.
    pub fn loads(&self) -> impl Fn() -> Gauge + Send + Sync + use<> {
        let loads = self.loads.clone();
        move || loads.gauge()
    }

    /// Waits until both have ended. False: one of them panicked.
    pub fn join(self) -> bool {
        let dispatcher = self.dispatcher.join();
        let loader = self.loader.join();
        dispatcher.is_ok() && loader.is_ok()
    }
}

/// Makes the mailbox, which holds at most so many words and bytes.
pub fn dispatcher_mailbox(
    items_max: usize,
    bytes_max: usize,
) -> (DispatcherSender, DispatcherReceiver) {
    let options = Options::new(Bounds {
        items_max,
        bytes_max,
    });
    let (sender, words) = mailbox("dispatcher", options);
    let sender = DispatcherSender {
        words: sender,
        bytes_max,
    };
    (sender.clone(), DispatcherReceiver { words, sender })
}

impl DispatcherSender {
    /// Hands over all words that there is room for, in order; the others stay.
    pub fn put_many(&self, words: &mut Vec<(DispatcherMessage, usize)>) {
        self.words.try_send_many(Lane::Data, words);
    }

    /// What a word weighs in the mailbox, in bytes.
    pub fn weight_bytes(&self, word: &DispatcherMessage) -> usize {
        let content = match word {
            DispatcherMessage::Request(_, PoolRequest::Post(NewJob { payload, .. }))
            | DispatcherMessage::Request(
                _,
                PoolRequest::Report(AttemptReport {
                    action: AttemptAction::Ack { result: payload },
                    ..
                }),
            )
            | DispatcherMessage::Loaded {
                payload: Ok(payload),
                ..
            } => payload.body.len(),
            DispatcherMessage::Committed(replies) => replies.len() * size_of::<Reply>(),
            _ => 0,
        };
        (content + size_of::<DispatcherMessage>()).min(self.bytes_max)
    }

    /// Tells the dispatcher something that comes before all else.
    pub fn control(&self, word: DispatcherMessage) {
        // One that is gone needs to be told nothing.
        let _ = self
            .words
            .send(Lane::Control, word, size_of::<DispatcherMessage>());
    }

    /// How many words wait, and how old the oldest is.
    pub fn gauge(&self) -> Gauge {
        self.words.gauge()
    }

    /// Waits for room.
    fn put(&self, word: DispatcherMessage) {
        let bytes = self.weight_bytes(&word);
        let _ = self.words.send(Lane::Data, word, bytes);
    }
}

impl Outlet for DispatcherSender {
    fn deliver(&self, _batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        // What the records hold is known here: nobody else writes them.
        self.put(DispatcherMessage::Committed(replies));
    }

    fn admit(&self) {}

    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        let word = DispatcherMessage::Committed(replies);
        let bytes = self.weight_bytes(&word);
        match self.words.try_send(Lane::Data, word, bytes) {
            Ok(()) => Ok(()),
            Err(refused) => match (refused.why, refused.item) {
                (Why::Closed, _) => Ok(()),
                (_, DispatcherMessage::Committed(replies)) => Err(Handover { batch, replies }),
                // What comes back is what was sent.
                _ => Ok(()),
            },
        }
    }
}

impl DispatcherReceiver {
    /// Starts the dispatcher, and the thread that reads jobs for it.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start(self, tools: DispatcherContext) -> std::io::Result<DispatcherThreads> {
        let DispatcherContext {
            machine,
            load: find,
            submit,
            number,
            read,
            respond,
            clock,
        } = tools;
        let bounds = Bounds {
            items_max: LOADS_MAX,
            bytes_max: LOADS_MAX * size_of::<Load>(),
        };
        let (loads, loading) = mailbox("loader", Options::new(bounds));
        let watch = loads.watch();
        let sender = self.sender;
        let loader = std::thread::Builder::new()
            .name("loader".into())
            .spawn(move || load(loading, &sender, &*read))?;
        let dispatcher = Dispatcher {
            machine,
            find,
            held: HashMap::new(),
            submit,
            number,
            loads,
            unread: VecDeque::new(),
            respond,
        };
        let words = self.words;
        let dispatcher = std::thread::Builder::new()
            .name("dispatcher".into())
            .spawn(move || dispatcher.run(words, clock))?;
        Ok(DispatcherThreads {
            dispatcher,
            loader,
            loads: watch,
        })
    }
}

struct Dispatcher {
    machine: JobMachine,
    find: Look,
    /// The streams of the pools, so that they stay in memory.
    held: HashMap<Box<str>, Arc<Stream>>,
    submit: Submit,
    number: u16,
    loads: Sender<Load>,
    /// Jobs to be read that the loader has no room for yet: at most those that workers are to get.
    unread: VecDeque<Load>,
    respond: Box<dyn Fn(PoolClient, PoolResponse) + Send>,
}

struct Load {
    pool: u64,
    id: JobId,
    fetch: Fetch,
}

impl Dispatcher {
    fn run(mut self, mut words: Receiver<DispatcherMessage>, clock: fn() -> u64) {
        let mut batch = Vec::new();
        let mut quits = false;
        self.machine.flush(clock());
        self.work(clock());
        while !(quits && self.machine.is_idle()) {
            let open = match self.patience(clock()) {
                None => words.recv_batch(&mut batch).is_ok(),
                Some(patience) => words.recv_batch_timeout(&mut batch, patience).is_ok(),
            };
            if !open {
                return;
            }
            let taken = batch.len();
            let now_ms = clock();
            for word in batch.drain(..) {
                match word {
                    DispatcherMessage::Request(client, request) => {
                        self.machine.request(now_ms, client, request)
                    }
                    DispatcherMessage::Disconnected(client) => {
                        self.machine.disconnected(now_ms, client)
                    }
                    DispatcherMessage::Committed(replies) => {
                        for reply in replies {
                            self.machine.committed(now_ms, reply.token, reply.outcome);
                        }
                    }
                    DispatcherMessage::Loaded { pool, id, payload } => {
                        self.machine.loaded(now_ms, pool, id, payload);
                    }
                    DispatcherMessage::Stop => self.machine.stop(),
                    DispatcherMessage::Quit => {
                        self.machine.stop();
                        quits = true;
                    }
                }
            }
            self.machine.tick(now_ms);
            self.machine.flush(now_ms);
            self.work(now_ms);
            words.handled(taken);
        }
    }

    fn patience(&self, now_ms: u64) -> Option<Duration> {
        if !self.unread.is_empty() {
            return Some(UNREAD_WAIT);
        }
        let due_ms = self.machine.next_due_ms()?;
        Some(Duration::from_millis(due_ms.saturating_sub(now_ms).max(1)))
    }

    /// Does what the machine wants done.
    fn work(&mut self, now_ms: u64) {
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
                            tracing::error!(%error, "a stream of the pools can't be found");
                            self.machine.unsent(now_ms, op);
                        }
                    },
                    Effect::Load { pool, id, stream } => self.load(now_ms, pool, id, &stream),
                    Effect::Respond { to, response } => responses.push((to, response)),
                }
            }
            if !commits.is_empty() {
                (self.submit)(&mut commits, now_ms);
            }
            for (request, _) in commits {
                self.machine.unsent(now_ms, request.from.token);
            }
            for (to, response) in responses {
                (self.respond)(to, response);
            }
        }
        while let Some(load) = self.unread.pop_front() {
            if let Err(refused) = self.loads.try_send(Lane::Data, load, size_of::<Load>()) {
                self.unread.push_front(refused.item);
                break;
            }
        }
    }

    /// The command with what it is judged by: the streams that it is about must be in memory then.
    fn request(&mut self, op: u64, mut command: Command) -> Result<(Request, usize), String> {
        match &mut command {
            Command::Create(create) => create.known.push((self.find)(&create.name)?),
            Command::Append(Append { target, .. }) => self.know(target, false)?,
            Command::Truncate { target, .. } => self.know(target, false)?,
            Command::Delete { target, .. } => self.know(target, true)?,
        }
        let bytes = command.weight_bytes();
        let from = Caller {
            shard: self.number,
            token: op,
        };
        Ok((Request { command, from }, bytes))
    }

    /// Finds the stream that has a target's name, if one has it by now.
    fn know(&mut self, target: &mut Target, last: bool) -> Result<(), String> {
        if let Target::Named(name) = target
            && let Some(stream) = self.stream(name)?
        {
            if last {
                self.held.remove(name);
            }
            *target = Target::Known(stream);
        }
        Ok(())
    }

    fn stream(&mut self, name: &str) -> Result<Option<Arc<Stream>>, String> {
        if let Some(stream) = self.held.get(name)
            && stream.facts().life == Life::Live
        {
            return Ok(Some(Arc::clone(stream)));
        }
        match (self.find)(name)? {
            Known::Stream(stream) => {
                if self.held.len() >= HELD_MAX {
                    // Those of pools that are gone among them; the others are found again.
                    self.held.clear();
                }
                self.held.insert(name.into(), Arc::clone(&stream));
                Ok(Some(stream))
            }
            Known::Free(_) => {
                self.held.remove(name);
                Ok(None)
            }
        }
    }

    fn load(&mut self, now_ms: u64, pool: u64, id: JobId, stream: &str) {
        let found = self
            .stream(stream)
            .and_then(|found| found.ok_or_else(|| format!("the stream {stream:?} is not there")));
        let stream = match found {
            Ok(stream) => stream,
            Err(error) => return self.machine.loaded(now_ms, pool, id, Err(error)),
        };
        let from = Offset::behind(id.saturating_sub(1));
        let fetch = Fetch::new(&stream, from, Offset::behind(id), 1);
        self.unread.push_back(Load { pool, id, fetch });
    }
}

/// Reads jobs until the dispatcher is gone.
fn load(
    mut loads: Receiver<Load>,
    sender: &DispatcherSender,
    read: &dyn Fn(&Fetch) -> Result<Piece, String>,
) {
    while let Ok(load) = loads.recv() {
        let payload = read_job(&load.fetch, read);
        sender.put(DispatcherMessage::Loaded {
            pool: load.pool,
            id: load.id,
            payload,
        });
        loads.handled(1);
    }
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
        // It was acknowledged before it was written, and will be in a moment.
        std::thread::sleep(UNWRITTEN_WAIT);
    }
    Err("its record is not there".into())
}

/// How often, and how long apart, a job is asked for that is not written yet.
const UNWRITTEN_TRIES: u32 = 500;
const UNWRITTEN_WAIT: Duration = Duration::from_millis(10);

/// Streams that are kept in memory for the pools.
const HELD_MAX: usize = 16_384;

/// Jobs that may wait to be read.
const LOADS_MAX: usize = 1_024;

/// How long it takes until the loader is asked again.
const UNREAD_WAIT: Duration = Duration::from_millis(5);
