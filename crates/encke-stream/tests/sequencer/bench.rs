//! A running sequencer over a log on any disk. The test controls the batches.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use encke_clock::{Now, SteadyTime};
use encke_log::{CommitError, Disk, Log, ReadError, Reader};
use encke_mailbox::{Bounds, Lane, mailbox};
use encke_stream::{
    AckLevel, Append, Batch, Command, Committed, Create, Data, Eviction, ForkOf, Lifetime, Limits,
    Loader, Lookup, Machine, Offset, Outcome, Outlet, Piece, Reply, Retention, Sequencer, Stream,
    Submission, Submitter, Target, View,
};

pub struct Bench<D: Disk> {
    mailbox: Option<encke_mailbox::Sender<Submission>>,
    permits: Option<Sender<()>>,
    events: Receiver<Event>,
    figures: Receiver<Committed>,
    thread: Option<JoinHandle<Result<(), CommitError>>>,
    gated: bool,
    pub view: Arc<View>,
    pub reader: Reader<D>,
    pub loader: Loader<Reader<D>>,
    now: Arc<Mutex<Now>>,
}

enum Event {
    Delivery(Delivery),
    /// The sequencer is done with a batch and waits for a permit.
    Over,
}

/// What a shard has received, and what the probe returned at that moment.
pub struct Delivery {
    pub shard: usize,
    pub batch: Option<Arc<Batch>>,
    pub replies: Vec<Reply>,
    pub probed: u64,
}

struct Shard {
    number: usize,
    events: Mutex<Sender<Event>>,
    probe: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// With permits, each batch begins only when the test gives one.
    permits: Option<Mutex<Receiver<()>>>,
}

impl Outlet for Shard {
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        let delivery = Delivery {
            shard: self.number,
            batch,
            replies,
            probed: (self.probe)(),
        };
        // The test may be over.
        let _ = self.events.lock().unwrap().send(Event::Delivery(delivery));
    }

    fn admit(&self) {
        if let Some(permits) = &self.permits {
            let _ = self.events.lock().unwrap().send(Event::Over);
            let _ = permits.lock().unwrap().recv();
        }
    }
}

impl<D: Disk> Bench<D> {
    /// Two shards. `probe` is called for each delivery.
    pub fn start(
        opened: (Machine, Arc<View>, Log<D>),
        level: AckLevel,
        now_ms: u64,
        probe: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Bench::evicting(opened, level, now_ms, Eviction::NEVER, probe)
    }

    /// The same, with eviction.
    pub fn evicting(
        (machine, view, log): (Machine, Arc<View>, Log<D>),
        level: AckLevel,
        now_ms: u64,
        eviction: Eviction,
        probe: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let (mailbox_sender, receiver) = mailbox("sequencer", Bounds::default());
        let (permits, permits_receiver) = mpsc::channel();
        let (events_sender, events) = mpsc::channel();
        let (figures_sender, figures) = mpsc::channel();
        let probe: Arc<dyn Fn() -> u64 + Send + Sync> = Arc::new(probe);
        let mut gate = Some(Mutex::new(permits_receiver));
        let outlets = (0..2)
            .map(|number| {
                Box::new(Shard {
                    number,
                    events: Mutex::new(events_sender.clone()),
                    probe: Arc::clone(&probe),
                    permits: gate.take(),
                }) as Box<dyn Outlet>
            })
            .collect();
        let reader = log.reader();
        let watch = Box::new(move |committed: &Committed| {
            let _ = figures_sender.send(*committed);
        });
        let limits = Limits::default();
        let loader = Loader::new(
            Arc::clone(&view),
            log.reader(),
            limits,
            Some(SteadyTime::from_ms(now_ms)),
        );
        let sequencer = Sequencer::new(machine, log, receiver, outlets, level, watch);
        let expired = loader.clone();
        let load = Box::new(move |no| {
            expired.load_number(no).unwrap();
        });
        let sequencer = sequencer.evicting(eviction, load);
        let now = Arc::new(Mutex::new(Now::from_ms(now_ms)));
        let clock = Arc::clone(&now);
        let thread = std::thread::spawn(move || sequencer.run(|| *clock.lock().unwrap()));
        Bench {
            mailbox: Some(mailbox_sender),
            permits: Some(permits),
            events,
            figures,
            thread: Some(thread),
            gated: false,
            view,
            reader,
            loader,
            now,
        }
    }

    /// Sets both clocks.
    pub fn set_time(&self, now: Now) {
        *self.now.lock().unwrap() = now;
    }

    /// Commits the commands as one batch and returns their outcomes.
    pub fn round(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        self.deliveries(commands).0
    }

    /// The same, with the deliveries to the shards.
    pub fn deliveries(&mut self, commands: Vec<Command>) -> (Vec<Outcome>, Vec<Delivery>) {
        // Like a shard: a named stream stays in memory until the command is judged.
        let _held: Vec<Lookup> = commands
            .iter()
            .flat_map(|command| self.hold(command))
            .collect();
        if !self.gated {
            // The first batch needs no permit, so it may begin before all commands are in the mailbox.
            self.gated = true;
            self.send(vec![delete("nobody")]);
            self.collect(1);
        }
        let count = commands.len();
        self.send(commands);
        self.permit();
        self.collect(count)
    }

    fn hold(&self, command: &Command) -> Vec<Lookup> {
        let named = |target: &Target| match target {
            Target::Named(name) | Target::Read { name, .. } | Target::Owned { name, .. } => {
                vec![self.loader.load(name).unwrap()]
            }
            Target::Known(_) => Vec::new(),
        };
        match command {
            Command::Create(create) => {
                let source = create.fork.as_ref().map(|fork| &fork.source);
                let names = std::iter::once(&create.name).chain(source);
                names.map(|name| self.loader.load(name).unwrap()).collect()
            }
            Command::Append(append) => named(&append.target),
            Command::Truncate { target, .. } | Command::Delete { target, .. } => named(target),
            Command::Fleet(_) | Command::Series(_) => Vec::new(),
        }
    }

    fn send(&self, commands: Vec<Command>) {
        for (token, command) in (0..).zip(commands) {
            let bytes = command.weight_bytes();
            let shard = (token % 2) as u16;
            let from = Submitter { shard, token };
            let mailbox = self.mailbox.as_ref().unwrap();
            let request = Submission::new(command, from);
            mailbox.send(Lane::Data, request, bytes).unwrap();
        }
    }

    /// Waits for the end of the batch that answers all commands.
    fn collect(&mut self, count: usize) -> (Vec<Outcome>, Vec<Delivery>) {
        let mut outcomes = HashMap::new();
        let mut deliveries = Vec::new();
        loop {
            match self.events.recv_timeout(WAIT_MAX).unwrap() {
                Event::Delivery(delivery) => {
                    for reply in &delivery.replies {
                        outcomes.insert(reply.token, reply.outcome.clone());
                    }
                    deliveries.push(delivery);
                }
                Event::Over if outcomes.len() == count => break,
                // The end of a batch that a permit began and that no test waits for.
                Event::Over => self.permit(),
            }
        }
        let outcomes = (0..count as u64).map(|token| outcomes.remove(&token).unwrap());
        (outcomes.collect(), deliveries)
    }

    /// Lets the sequencer begin the next batch, whatever it has.
    pub fn permit(&self) {
        if let Some(permits) = &self.permits {
            let _ = permits.send(());
        }
    }

    /// The figures of all batches since the last call.
    pub fn figures(&self) -> Vec<Committed> {
        self.figures.try_iter().collect()
    }

    pub fn stream(&self, name: &str) -> Arc<Stream> {
        let known = self.loader.load(name).unwrap();
        Arc::clone(known.stream().unwrap())
    }

    /// The data of a stream as a reader gets it now, and whether that is everything.
    pub fn read(&self, name: &str) -> (Vec<u8>, bool) {
        let stream = self.stream(name);
        let fetch = encke_stream::Fetch::new(&stream, Offset::START, stream.facts().tail, 1 << 20);
        let piece = match Piece::read(&self.reader, &fetch) {
            // The log has failed before any of it was written.
            Err(ReadError::NeverWritten { .. }) => return (Vec::new(), false),
            piece => piece.unwrap(),
        };
        let data = piece.items().flat_map(|item| item.data.to_vec()).collect();
        (data, !piece.more)
    }

    /// Lets the sequencer finish, and closes the log.
    pub fn stop(mut self) -> Result<(), CommitError> {
        self.mailbox = None;
        self.permits = None;
        self.thread.take().unwrap().join().unwrap()
    }
}

pub fn create(name: &str, content_type: &str) -> Command {
    Command::Create(Create {
        content_type: Some(content_type.into()),
        ..Create::new(name)
    })
}

pub fn create_for(name: &str, lifetime: Lifetime) -> Command {
    Command::Create(Create {
        content_type: Some("text/plain".into()),
        lifetime: Some(lifetime),
        ..Create::new(name)
    })
}

pub fn fork(name: &str, source: &str) -> Command {
    Command::Create(Create {
        fork: Some(ForkOf {
            source: source.into(),
            at: None,
        }),
        ..Create::new(name)
    })
}

pub fn append(name: &str, bytes: &[u8]) -> Command {
    Command::Append(Append {
        data: Data {
            bytes: bytes.to_vec(),
            units: bytes.len() as u32,
        },
        ..Append::to(Target::Named(name.into()))
    })
}

pub fn create_retaining(name: &str, retention: Retention) -> Command {
    let Command::Create(create) = create(name, "text/plain") else {
        unreachable!("that is what it makes");
    };
    Command::Create(Create {
        retention: Some(retention),
        ..create
    })
}

pub fn truncate(name: &str, before: Option<Offset>) -> Command {
    Command::Truncate {
        target: Target::Named(name.into()),
        before,
        ack: None,
    }
}

pub fn delete(name: &str) -> Command {
    Command::Delete {
        target: Target::Named(name.into()),
        ack: None,
    }
}

/// Longer than any batch takes, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);
