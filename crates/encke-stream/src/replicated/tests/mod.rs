//! Nodes on simulated disks that follow one order.

mod determinism;
mod rules;

use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::simulated::{Faults, SimulatedDisk};
use encke_log::{Log, Options};
use encke_mailbox::{Bounds, Lane, Sender, mailbox};
use parking_lot::Mutex;

use super::*;
use crate::{
    AccountId, Append, AppendExtras, Batch, Command, Committed, Create, CreateExtras, Data,
    EndReason, Eviction, Fetch, FleetCommand, ForkOf, Lifetime, Limits, Loader, Logs, Lookup,
    Offset, OrderKind, Outcome, Outlet, Payer, Piece, ProducerId, Refusal, Reply, Retention,
    StorageExceeded, StorageLimit, Submitter, Target, Viewer, restore_all_on,
};

/// Parts of a few hundred bytes.
const MESSAGE_BYTES_MAX: usize = 900;

/// The order that the nodes share.
type Shared = Vec<(u64, Vec<u8>)>;

struct Node {
    name: &'static str,
    disk: SimulatedDisk,
    /// One node moves its records to history, so that it restarts from checkpoints.
    history: Option<tempfile::TempDir>,
    /// Added to the time that the other nodes see.
    clock_ms: u64,
    run: u64,
    running: Option<Running>,
}

struct Running {
    sequencer: ReplicaSequencer<SimulatedDisk>,
    views: Arc<crate::Views>,
    loader: Loader<encke_log::Reader<SimulatedDisk>>,
    log: encke_log::Reader<SimulatedDisk>,
    outgoing: OutgoingBatches,
    incoming: IncomingBatches,
    status: Arc<OrderStatus>,
    mailbox: Sender<Submission>,
    replies: Replies,
    /// Of each group of batches: whether it was synced.
    synced: Arc<Mutex<Vec<bool>>>,
}

impl Running {
    /// The batch of a command, whose client has this token.
    fn batch(&mut self, command: Command, token: u64) -> OutgoingBatch {
        match self.submit(command, token) {
            NextOutgoing::Batch(batch) => batch,
            refused @ NextOutgoing::Refused(..) => panic!("{refused:?}"),
        }
    }

    /// Submits a command of a client with this token.
    fn submit(&mut self, command: Command, token: u64) -> NextOutgoing {
        let from = Submitter { shard: 0, token };
        let submission = Submission::new(command, from);
        assert!(self.mailbox.try_send(Lane::Data, submission, 1).is_ok());
        self.outgoing.next_commands().unwrap()
    }

    /// A turn of the sequencer that does not wait.
    fn turn(&mut self) {
        self.sequencer
            .turn(Duration::ZERO, &|| Now::from_ms(NOW_MS));
    }

    /// Takes a message of the order.
    fn take(&mut self, position: u64, time_ms: u64, message: &[u8]) {
        let taken = self
            .incoming
            .take(position, WallTime::from_ms(time_ms), message);
        taken.unwrap().unwrap();
    }
}

#[derive(Clone, Default)]
struct Replies(Arc<Mutex<Vec<(u64, Outcome)>>>);

impl Outlet for Replies {
    fn deliver(&self, _: Option<Arc<Batch>>, replies: Vec<Reply>) {
        let replies = replies
            .into_iter()
            .map(|reply| (reply.token, reply.outcome));
        self.0.lock().extend(replies);
    }

    fn admit(&self) {}
}

impl Replies {
    fn take(&self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Node {
    fn new(index: usize, clock_ms: u64, history: bool) -> Node {
        let disk = SimulatedDisk::new(index as u64);
        let history = history.then(|| tempfile::tempdir().unwrap());
        if let Some(history) = &history {
            disk.set_history(history.path().join("history"));
        }
        let mut node = Node {
            name: ["a", "b", "c"][index],
            disk,
            history,
            clock_ms,
            run: 0,
            running: None,
        };
        node.start();
        node
    }

    fn start(&mut self) {
        self.run += 1;
        let limits = Limits {
            producers_max: 2,
            fork_depth_max: 2,
        };
        let disks = vec![self.disk.clone()];
        let restored = restore_all_on(
            disks,
            OrderKind::Replicated,
            &self.options(),
            limits,
            SteadyTime::from_ms(77),
        );
        let Logs { mut logs, views } = restored.unwrap();
        let (machine, log) = logs.remove(0);
        let (mailbox, receiver) = mailbox("test", Bounds::default());
        let bytes_max = Box::new(|| MESSAGE_BYTES_MAX);
        let order = replicated_order(&machine, receiver, self.name, self.run, bytes_max);
        let replies = Replies::default();
        let outlets: Vec<Box<dyn Outlet>> = vec![Box::new(replies.clone())];
        let loader = machine.loader(log.reader());
        let reader = log.reader();
        let load = loader.clone();
        let synced = Arc::new(Mutex::new(Vec::new()));
        let groups = Arc::clone(&synced);
        let watch = Box::new(move |committed: &Committed| {
            groups.lock().push(committed.sync.is_some());
        });
        let sequencer = ReplicaSequencer::new(machine, log, order.following, outlets, watch);
        let eviction = Eviction {
            idle: Duration::from_millis(1),
            hot_max: 1,
            ..Eviction::default()
        };
        let sequencer = sequencer.evicting(
            eviction,
            Box::new(move |no| {
                load.load_number(no).unwrap();
            }),
        );
        self.running = Some(Running {
            sequencer,
            views,
            loader,
            log: reader,
            outgoing: order.outgoing,
            incoming: order.incoming,
            status: order.status,
            mailbox,
            replies,
            synced,
        });
    }

    fn options(&self) -> Options {
        Options {
            history: self.history.is_some(),
            ..options()
        }
    }

    fn run(&mut self) -> &mut Running {
        self.running.as_mut().unwrap()
    }

    /// The batch of a command, sent by a node that is up to date.
    fn batch(&mut self, command: Command, now_ms: u64, shared: &Shared) -> OutgoingBatch {
        self.follow(shared, usize::MAX, now_ms);
        self.run().batch(command, 1)
    }

    /// Sends a command, as all messages of a batch. The order may store some of them twice.
    fn send(&mut self, command: Command, now_ms: u64, twice: bool, shared: &mut Shared) {
        for message in self
            .batch(command, now_ms, shared)
            .messages(MESSAGE_BYTES_MAX)
        {
            if twice {
                shared.push((now_ms, message.clone()));
            }
            shared.push((now_ms, message));
        }
    }

    /// The messages of a batch that this node gives up.
    fn give_up(&mut self, command: Command, now_ms: u64, shared: &Shared) -> Shared {
        let batch = self.batch(command, now_ms, shared);
        let handle = self.run().incoming.handle();
        handle.give_up(batch.batch.at.number, "no broker".into());
        let messages = batch.messages(MESSAGE_BYTES_MAX).into_iter();
        messages.map(|message| (now_ms, message)).collect()
    }

    /// Follows at most `count` further messages.
    fn follow(&mut self, shared: &Shared, count: usize, now_ms: u64) {
        let now_ms = now_ms + self.clock_ms;
        let running = self.run();
        let behind = running.incoming.position() as usize;
        for (index, (time_ms, message)) in shared.iter().enumerate().skip(behind).take(count) {
            running.take(index as u64 + 1, *time_ms, message);
            running
                .sequencer
                .turn(Duration::ZERO, &|| Now::from_ms(now_ms));
        }
        running
            .sequencer
            .turn(Duration::ZERO, &|| Now::from_ms(now_ms));
        assert_eq!(running.status.trouble(), None);
    }

    /// The process ends in the middle of a batch, or the power is cut then.
    fn crash(&mut self, shared: &Shared, now_ms: u64, cut: bool) {
        let behind = self.run().incoming.position() as usize;
        if let Some((time_ms, message)) = shared.get(behind) {
            // The sync of the batch fails, so that its records are in the file and no one has seen them.
            let faults = Faults {
                failing_operation: Some(2),
                ..Faults::default()
            };
            self.disk.set_faults(faults);
            let running = self.run();
            running.take(behind as u64 + 1, *time_ms, message);
            running
                .sequencer
                .turn(Duration::ZERO, &|| Now::from_ms(now_ms));
            self.disk.set_faults(Faults::default());
        }
        self.running = None;
        // History is on a real disk, which keeps its power.
        if cut && self.history.is_none() {
            self.disk.cut_power();
        }
        self.start();
    }

    fn restart(&mut self) {
        self.running = None;
        self.start();
    }

    /// What readers of each name get.
    fn contents(&mut self) -> Vec<(String, Option<String>)> {
        let running = self.run();
        let contents = NAMES.iter().map(|name| {
            let known = match running.views.look(name) {
                Some(known) => known,
                None => running.loader.load(name).unwrap(),
            };
            let Lookup::Stream(stream) = known else {
                return ((*name).to_string(), None);
            };
            let facts = stream.facts();
            let fetch = Fetch::new(&stream, Offset::START, facts.tail, 1 << 20);
            let piece = Piece::read(&running.log, &fetch).unwrap();
            let data: Vec<_> = piece
                .items()
                .map(|item| (item.data.to_vec(), item.end))
                .collect();
            let times = (
                stream.lifetime,
                stream.lifetime.slides_until(stream.touched()),
                (stream.abandoned_at(), stream.owner(), stream.metadata()),
            );
            (
                (*name).to_string(),
                Some(format!("{} {facts:?} {times:?} {data:?}", stream.no)),
            )
        });
        contents.collect()
    }

    /// The records of the log, without those that only a checkpoint has.
    fn records(&mut self) -> Vec<(u64, u64, u8, WallTime, Vec<u8>)> {
        self.running = None;
        let mut records = Vec::new();
        let log = Log::open_on(self.disk.clone(), self.options(), &mut |frame| {
            records.push((
                frame.sequence,
                frame.stream,
                frame.kind,
                frame.time,
                frame.payload.to_vec(),
            ));
        });
        drop(log.unwrap());
        records
    }
}

fn options() -> Options {
    Options {
        segment_bytes: 4096,
        history: false,
        ..Options::default()
    }
}

/// The last one is the journal of a pool, which only the dispatcher changes.
const NAMES: [&str; 5] = ["p", "q", "r", "s", JOURNAL];

const JOURNAL: &str = "\u{1}pool/j";

#[derive(Clone, Debug)]
enum Do {
    Create(usize, Option<Lifetime>, Option<u64>, Option<usize>, usize),
    Append(usize, Option<(u64, u64)>, bool, usize),
    Truncate(usize),
    Delete(usize),
    Barrier,
    Leave(usize),
    /// The node that sends it wants to dispatch.
    Dispatch(u64),
    /// Appends to both, or to the first only.
    Series(usize, usize),
}

const NOW_MS: u64 = 1_000_000;

fn command(what: Do, made: usize) -> Command {
    command_of("a", what, made)
}

fn command_of(node: &str, what: Do, made: usize) -> Command {
    let target = |name: usize| Target::Named(NAMES[name].into());
    let data = |size: usize| Data {
        bytes: vec![b'a' + (made % 26) as u8; size],
        units: size as u32,
    };
    match what {
        Do::Create(name, lifetime, records, source, size) => Command::Create(Create {
            lifetime,
            fork: source.map(|source| ForkOf {
                source: NAMES[source].into(),
                at: None,
            }),
            data: data(size),
            retention: records.map(|records| Retention {
                records: Some(records),
                ..Retention::default()
            }),
            ..Create::new(NAMES[name])
        }),
        Do::Append(name, producer, closes, size) => Command::Append(Append {
            producer: producer.map(|(epoch, seq)| ProducerId {
                id: format!("writer {}", made % 3).into(),
                epoch,
                seq,
            }),
            closes,
            data: data(size.max(1)),
            ..Append::to(target(name))
        }),
        Do::Series(first, last) => {
            let append = |name| match command_of(node, Do::Append(name, None, false, 3), made) {
                Command::Append(append) => append,
                other => panic!("{other:?}"),
            };
            Command::Series(vec![append(first), append(last)])
        }
        Do::Truncate(name) => Command::Truncate {
            target: target(name),
            before: None,
            ack: None,
        },
        Do::Delete(name) => Command::Delete {
            target: target(name),
            ack: None,
        },
        Do::Barrier => Command::Fleet(FleetCommand::Barrier { log: 0 }),
        Do::Leave(node) => Command::Fleet(FleetCommand::Leave {
            node: ["a", "b", "c", "d"][node].into(),
        }),
        Do::Dispatch(term) => Command::Fleet(FleetCommand::Dispatch {
            log: 0,
            next: DispatcherTerm {
                node: node.into(),
                term,
            },
        }),
    }
}

fn viewer(made: usize) -> Viewer {
    match made % 4 {
        0 => Viewer::Of(None),
        1 => Viewer::Of(Some("o".into())),
        _ => Viewer::All,
    }
}

/// The same command with what few have, now and then.
fn with_extras(mut command: Command, made: usize) -> Command {
    match &mut command {
        Command::Create(create) => {
            create.extras = CreateExtras {
                owner: made.is_multiple_of(11).then(|| "o".into()),
                producer_timeout_s: made.is_multiple_of(3).then_some(made as u32 % 4),
                metadata: made.is_multiple_of(7).then(|| made.to_string().into()),
                viewer: viewer(made),
                source_viewer: viewer(made / 4),
                acks_synced: made.is_multiple_of(13),
                payer: made.is_multiple_of(2).then(|| {
                    Box::new(Payer {
                        account: AccountId([1, made as u64 % 3]),
                        exceeded: made.is_multiple_of(34).then_some(StorageExceeded {
                            limit: StorageLimit::Streams,
                            max: 1,
                        }),
                    })
                }),
            };
        }
        Command::Append(append) => {
            append.extras = AppendExtras {
                end: made.is_multiple_of(2).then_some(EndReason::Failed),
                asks_stop: made.is_multiple_of(9),
                metadata: made.is_multiple_of(8).then(|| made.to_string().into()),
                if_tail: None,
            };
        }
        _ => {}
    }
    command
}
