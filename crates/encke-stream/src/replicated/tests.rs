//! Several nodes follow one order: whatever the commands, the clocks, the crashes and the evictions, all of them hold the same
//! streams and the same records.

use std::sync::Arc;
use std::time::Duration;

use encke_log::simulated::{Faults, SimulatedDisk};
use encke_log::{Log, Options};
use encke_mailbox::{Bounds, Lane, Sender, mailbox};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;
use crate::{
    Append, Batch, Command, Committed, Create, Data, Eviction, Fetch, FleetCommand, ForkOf,
    Lifetime, Limits, Loader, Logs, Lookup, Offset, OrderKind, Outcome, Outlet, Piece, ProducerId,
    Refusal, Reply, Retention, Submitter, Target, restore_all_on,
};

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
        let restored = restore_all_on(disks, OrderKind::Replicated, &self.options(), limits, 77);
        let Logs { mut logs, views } = restored.unwrap();
        let (machine, log) = logs.remove(0);
        let (mailbox, receiver) = mailbox("test", Bounds::default());
        // Parts of a few hundred bytes.
        let order = replicated_order(&machine, receiver, self.name, self.run, 900);
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

    /// Sends a command, as all messages of a batch. The order may store some of them twice.
    fn send(&mut self, command: Command, now_ms: u64, twice: bool, shared: &mut Shared) {
        self.follow(shared, usize::MAX, now_ms);
        let running = self.run();
        let from = Submitter { shard: 0, token: 1 };
        let submission = Submission { command, from };
        assert!(running.mailbox.try_send(Lane::Data, submission, 1).is_ok());
        let batch = running.outgoing.next_batch().unwrap();
        for message in batch.messages {
            if twice {
                shared.push((now_ms, message.clone()));
            }
            shared.push((now_ms, message));
        }
    }

    /// Follows at most `count` further messages.
    fn follow(&mut self, shared: &Shared, count: usize, now_ms: u64) {
        let now_ms = now_ms + self.clock_ms;
        let running = self.run();
        let behind = running.incoming.position() as usize;
        for (index, (time_ms, message)) in shared.iter().enumerate().skip(behind).take(count) {
            let position = index as u64 + 1;
            running
                .incoming
                .take(position, *time_ms, message)
                .unwrap()
                .unwrap();
            running.sequencer.turn(Duration::ZERO, &|| now_ms);
        }
        running.sequencer.turn(Duration::ZERO, &|| now_ms);
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
            let position = behind as u64 + 1;
            running
                .incoming
                .take(position, *time_ms, message)
                .unwrap()
                .unwrap();
            running.sequencer.turn(Duration::ZERO, &|| now_ms);
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
            let times = (stream.lifetime, stream.ends_ms());
            (
                (*name).to_string(),
                Some(format!("{} {facts:?} {times:?} {data:?}", stream.no)),
            )
        });
        contents.collect()
    }

    /// The records of the log, without those that only a checkpoint has.
    fn records(&mut self) -> Vec<(u64, u64, u8, u64, Vec<u8>)> {
        self.running = None;
        let mut records = Vec::new();
        let log = Log::open_on(self.disk.clone(), self.options(), &mut |frame| {
            records.push((
                frame.sequence,
                frame.stream,
                frame.kind,
                frame.time_ms,
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
enum Step {
    Send(usize, Do, bool),
    Read(usize, usize),
    Wait(u64),
    Follow(usize, usize),
    Crash(usize, bool),
    Restart(usize),
}

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
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..NAMES.len();
    let lifetime = of(prop_oneof![
        (1..3_u64).prop_map(|ttl_s| Lifetime::Sliding { ttl_s }),
        (0..9_000_u64).prop_map(|at_ms| Lifetime::Until {
            at_ms: at_ms + NOW_MS
        }),
    ]);
    let size = prop_oneof![9 => 0..40_usize, 1 => 300..900_usize];
    let create = (
        name.clone(),
        lifetime,
        of(1..6_u64),
        of(name.clone()),
        size.clone(),
    );
    let create = create.prop_map(|(name, lifetime, records, source, size)| {
        Do::Create(name, lifetime, records, source, size)
    });
    let producer = of((0..2_u64, 0..3_u64));
    let append = (name.clone(), producer, proptest::bool::weighted(0.05), size);
    let append =
        append.prop_map(|(name, producer, closes, size)| Do::Append(name, producer, closes, size));
    let command = prop_oneof![
        4 => create,
        8 => append,
        1 => name.clone().prop_map(Do::Truncate),
        1 => name.clone().prop_map(Do::Delete),
        1 => Just(Do::Barrier),
        1 => (0..4_usize).prop_map(Do::Leave),
        2 => (1..9_u64).prop_map(Do::Dispatch),
    ];
    let node = 0..3_usize;
    let step = prop_oneof![
        30 => (node.clone(), command, proptest::bool::weighted(0.1)).prop_map(|(node, what, twice)| Step::Send(node, what, twice)),
        4 => (node.clone(), name).prop_map(|(node, name)| Step::Read(node, name)),
        6 => (0..1_500_u64).prop_map(Step::Wait),
        10 => (node.clone(), 1..6_usize).prop_map(|(node, count)| Step::Follow(node, count)),
        3 => (node.clone(), any::<bool>()).prop_map(|(node, cut)| Step::Crash(node, cut)),
        2 => node.prop_map(Step::Restart),
    ];
    vec(step, 1..120)
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
            name: NAMES[name].into(),
            content_type: None,
            lifetime,
            closed: false,
            fork: source.map(|source| ForkOf {
                source: NAMES[source].into(),
                at: None,
            }),
            data: data(size),
            ack: None,
            retention: records.map(|records| Retention {
                records: Some(records),
                ..Retention::default()
            }),
            known: Vec::new(),
        }),
        Do::Append(name, producer, closes, size) => Command::Append(Append {
            target: target(name),
            content_type: None,
            producer: producer.map(|(epoch, seq)| ProducerId {
                id: format!("writer {}", made % 3).into(),
                epoch,
                seq,
            }),
            writer_seq: None,
            closes,
            ack: None,
            data: data(size.max(1)),
        }),
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

proptest! {
    #[test]
    fn all_nodes_decide_the_same(steps in steps(), history in proptest::bool::weighted(0.1)) {
        let node = |index| Node::new(index, index as u64 * 700, history && index == 2);
        let mut nodes: Vec<_> = (0..3).map(node).collect();
        let mut shared = Shared::new();
        let mut now_ms = NOW_MS;
        for (made, step) in steps.into_iter().enumerate() {
            match step {
                Step::Send(node, what, twice) => {
                    let command = command_of(nodes[node].name, what, made);
                    nodes[node].send(command, now_ms, twice, &mut shared);
                }
                Step::Read(node, name) => {
                    let running = nodes[node].run();
                    if let Some(Lookup::Stream(stream)) = running.views.look(NAMES[name]) {
                        running.views.log(0).touch(&stream, now_ms);
                    }
                }
                Step::Wait(ms) => now_ms += ms,
                Step::Follow(node, count) => nodes[node].follow(&shared, count, now_ms),
                Step::Crash(node, cut) => nodes[node].crash(&shared, now_ms, cut),
                Step::Restart(node) => nodes[node].restart(),
            }
        }
        let mut first: Option<(Tip, _, Vec<_>)> = None;
        for node in &mut nodes {
            node.follow(&shared, usize::MAX, now_ms);
            let tip = node.run().status.applied();
            prop_assert_eq!(node.run().incoming.position(), shared.len() as u64);
            let contents = (node.contents(), node.run().views.log(0).dispatcher());
            let records = node.records();
            match &first {
                None => first = Some((tip, contents, records)),
                Some((expected_tip, expected, expected_records)) => {
                    prop_assert_eq!(&tip, expected_tip);
                    prop_assert_eq!(&contents, expected);
                    // What is left of the log begins at the last checkpoint of each node.
                    let begin = records.first().map_or(u64::MAX, |record| record.0);
                    let other = expected_records.first().map_or(u64::MAX, |record| record.0);
                    let begin = begin.max(other);
                    let behind = |records: &[(u64, u64, u8, u64, Vec<u8>)]| -> Vec<_> {
                        records.iter().filter(|record| record.0 >= begin).cloned().collect()
                    };
                    prop_assert_eq!(behind(&records), behind(expected_records));
                }
            }
        }
    }
}

/// Sends a command and returns its outcome.
fn outcome(node: &mut Node, what: Do, shared: &mut Shared) -> Outcome {
    let command = command_of(node.name, what, 0);
    node.send(command, NOW_MS, false, shared);
    node.follow(shared, usize::MAX, NOW_MS);
    let replies = std::mem::take(&mut *node.run().replies.0.lock());
    let (_, outcome) = replies.into_iter().last().expect("the batch has a reply");
    outcome
}

#[test]
fn only_the_dispatcher_of_the_last_term_changes_the_journals_of_pools() {
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let mut shared = Shared::new();
    let journal = NAMES.len() - 1;
    let create = || Do::Create(journal, None, None, None, 3);
    let append = || Do::Append(journal, None, false, 3);
    let refused = Outcome::Refused(Refusal::NotDispatcher);
    assert_eq!(outcome(&mut a, create(), &mut shared), refused);
    assert_eq!(outcome(&mut a, Do::Dispatch(1), &mut shared), Outcome::Done);
    assert!(outcome(&mut a, create(), &mut shared).changes());
    // A term is given once, and an earlier one never again.
    assert_eq!(outcome(&mut b, Do::Dispatch(1), &mut shared), refused);
    assert_eq!(outcome(&mut b, append(), &mut shared), refused);
    assert_eq!(outcome(&mut b, Do::Dispatch(2), &mut shared), Outcome::Done);
    assert!(outcome(&mut b, append(), &mut shared).changes());
    assert_eq!(outcome(&mut a, append(), &mut shared), refused);
    // All nodes may still change everything else.
    let other = Do::Create(0, None, None, None, 3);
    assert!(outcome(&mut a, other, &mut shared).changes());
    // A restart knows the term.
    for node in [&mut a, &mut b] {
        node.follow(&shared, usize::MAX, NOW_MS);
        node.restart();
        let known = node.run().views.log(0).dispatcher();
        assert_eq!(
            known.map(|known| (known.node, known.term)),
            Some(("b".into(), 2))
        );
    }
    assert_eq!(outcome(&mut a, append(), &mut shared), refused);
    assert!(outcome(&mut b, append(), &mut shared).changes());
}

#[test]
fn a_name_that_has_left_and_returns_with_a_lower_run_is_known_after_a_restart() {
    let run = |run| Applied { run, number: 1 };
    let mark = |position, nodes: Vec<(Box<str>, Applied)>| BatchMark {
        tip: Tip {
            position,
            ..Tip::default()
        },
        resume: position,
        nodes,
        dispatcher: None,
    };
    let checkpoint = || {
        let mut chain = Chain::default();
        chain.tip.position = 10;
        chain.nodes.insert("d".into(), run(9));
        chain
    };
    let mut earlier = Chain::default();
    earlier.follow(mark(5, vec![("d".into(), run(8))]), 1);
    earlier.follow(mark(12, vec![("e".into(), run(1))]), 1);
    let mut later = earlier.clone();
    later.follow(mark(13, vec![("d".into(), Applied::LEFT)]), 1);
    let mut back = later.clone();
    back.follow(mark(14, vec![("d".into(), run(3))]), 1);
    for (marks, expected) in [(earlier, Some(run(9))), (later, None), (back, Some(run(3)))] {
        let mut chain = checkpoint();
        chain.adopt(marks);
        assert_eq!(chain.nodes.get("d").copied(), expected);
        assert_eq!(chain.nodes.get("e").copied(), Some(run(1)));
    }
}

#[test]
fn data_that_was_read_for_another_type_is_refused() {
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let mut shared = Shared::new();
    let create = |content_type: &str| {
        let mut create = command(Do::Create(0, None, None, None, 0), 0);
        if let Command::Create(create) = &mut create {
            create.content_type = Some(content_type.into());
        }
        create
    };
    a.send(create("text/plain"), NOW_MS, false, &mut shared);
    a.follow(&shared, usize::MAX, NOW_MS);
    let Some(Lookup::Stream(text)) = a.run().views.look(NAMES[0]) else {
        panic!("the stream is in memory");
    };
    assert_eq!(
        outcome(&mut b, Do::Delete(0), &mut shared),
        Outcome::Deleted
    );
    b.send(create("application/json"), NOW_MS, false, &mut shared);
    // Node a knows neither, and has read the data as text for a client that sent JSON.
    let mut append = command(Do::Append(0, None, false, 3), 0);
    if let Command::Append(append) = &mut append {
        append.target = Target::Known(text);
        append.content_type = Some("application/json".into());
    }
    append.detach();
    a.send(append, NOW_MS, false, &mut shared);
    a.follow(&shared, usize::MAX, NOW_MS);
    let replies = std::mem::take(&mut *a.run().replies.0.lock());
    assert!(
        matches!(
            replies.last(),
            Some((1, Outcome::Refused(Refusal::TypeDiffers { .. })))
        ),
        "{replies:?}"
    );
}

#[test]
fn a_reply_comes_when_the_batch_is_applied_and_says_when_it_is_unknown() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    node.send(
        command(Do::Create(0, None, None, None, 3), 0),
        NOW_MS,
        false,
        &mut shared,
    );
    assert!(node.run().replies.0.lock().is_empty());
    node.follow(&shared, usize::MAX, NOW_MS);
    let replies = std::mem::take(&mut *node.run().replies.0.lock());
    assert!(
        matches!(&replies[..], [(1, Outcome::Created { existed: false, .. })]),
        "{replies:?}"
    );
    // The order does not confirm the next one.
    node.send(
        command(Do::Append(0, None, false, 3), 0),
        NOW_MS,
        false,
        &mut shared,
    );
    let running = node.run();
    running
        .incoming
        .handle()
        .give_up(2, "no broker answers".into());
    running.sequencer.turn(Duration::ZERO, &|| NOW_MS);
    let replies = std::mem::take(&mut *running.replies.0.lock());
    assert!(
        matches!(&replies[..], [(1, Outcome::Refused(Refusal::Unknown(_)))]),
        "{replies:?}"
    );
    // It was stored all the same: it is applied, and nothing is sent twice.
    node.follow(&shared, usize::MAX, NOW_MS);
    assert!(node.run().replies.0.lock().is_empty());
    assert!(
        node.contents()[0]
            .1
            .as_ref()
            .unwrap()
            .contains("[97, 97, 97]")
    );
}

#[test]
fn a_node_syncs_what_it_answers_at_once_and_what_others_answer_a_little_later() {
    let mut shared = Vec::new();
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let create = command(Do::Create(0, None, None, None, 0), 0);
    a.send(create, NOW_MS, false, &mut shared);
    let (time_ms, message) = shared[0].clone();
    for (node, syncs) in [(&mut a, true), (&mut b, false)] {
        let running = node.run();
        let taken = running.incoming.take(1, time_ms, &message);
        taken.unwrap().unwrap();
        running.sequencer.turn(Duration::ZERO, &|| NOW_MS);
        assert_eq!(*running.synced.lock(), [syncs]);
        assert_eq!(running.status.applied().position, 1);
        let marked = running.status.marked().position;
        assert_eq!(marked, u64::from(syncs), "a mark counts when it is durable");
    }
    // Readers see it already, at both.
    assert_eq!(a.contents(), b.contents());
    // The power is cut before the sync: what is lost comes again from the order.
    b.running = None;
    b.disk.cut_power();
    b.start();
    b.follow(&shared, usize::MAX, NOW_MS);
    assert_eq!(a.contents(), b.contents());
    // Nothing follows, so that it is synced.
    b.run().sequencer.turn(Duration::ZERO, &|| NOW_MS);
    assert_eq!(b.run().status.marked().position, 1);
    b.running = None;
    b.disk.cut_power();
    b.start();
    assert_eq!(b.run().incoming.position(), 1);
}

#[test]
fn the_repetition_of_an_append_is_answered_when_the_append_is_durable() {
    let mut shared = Vec::new();
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let append = Do::Append(0, Some((0, 0)), false, 3);
    for what in [Do::Create(0, None, None, None, 0), append.clone()] {
        a.send(command(what, 0), NOW_MS, false, &mut shared);
    }
    a.follow(&shared, usize::MAX, NOW_MS);
    // Without a turn that has nothing to do, in which it would sync.
    let deliver = |node: &mut Node, shared: &Shared| {
        let running = node.run();
        for (index, (time_ms, message)) in shared.iter().enumerate() {
            let position = index as u64 + 1;
            if position > running.incoming.position() {
                let taken = running.incoming.take(position, *time_ms, message);
                taken.unwrap().unwrap();
                running.sequencer.turn(Duration::ZERO, &|| NOW_MS);
            }
        }
    };
    let running = b.run();
    let command = command(append, 0);
    let from = Submitter { shard: 0, token: 1 };
    let submission = Submission { command, from };
    assert!(running.mailbox.try_send(Lane::Data, submission, 1).is_ok());
    let batch = running.outgoing.next_batch().unwrap();
    deliver(&mut b, &shared);
    assert_eq!(b.run().status.marked().position, 0, "it is only written");
    shared.extend(batch.messages.into_iter().map(|message| (NOW_MS, message)));
    deliver(&mut b, &shared);
    let replies = std::mem::take(&mut *b.run().replies.0.lock());
    assert!(
        matches!(
            &replies[..],
            [(
                1,
                Outcome::Appended {
                    duplicate: true,
                    ..
                }
            )]
        ),
        "{replies:?}"
    );
    assert_eq!(b.run().status.marked().position, 2);
}

#[test]
fn no_answer_is_waited_for_that_does_not_come() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    let send = |node: &mut Node| {
        let running = node.run();
        let command = command(Do::Create(0, None, None, None, 3), 0);
        let from = Submitter { shard: 0, token: 1 };
        let submission = Submission { command, from };
        assert!(running.mailbox.try_send(Lane::Data, submission, 1).is_ok());
        running.outgoing.next_batch().unwrap()
    };
    // The first batch is answered, so that the next ones are worth a wait.
    let first = send(&mut node);
    shared.extend(first.messages.into_iter().map(|message| (NOW_MS, message)));
    std::thread::sleep(Duration::from_millis(20));
    node.follow(&shared, usize::MAX, NOW_MS);
    for _ in 0..3 {
        let number = send(&mut node).batch.at.number;
        let running = node.run();
        running
            .incoming
            .handle()
            .give_up(number, "no broker".into());
        running.sequencer.turn(Duration::ZERO, &|| NOW_MS);
        assert_eq!(running.outgoing.unanswered(), 0, "it is forgotten");
    }
}

#[test]
fn directories_of_nodes_and_of_single_servers_are_told_apart() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    node.send(
        command(Do::Create(0, None, None, None, 3), 0),
        NOW_MS,
        false,
        &mut shared,
    );
    node.follow(&shared, usize::MAX, NOW_MS);
    node.running = None;
    let open = |disk: &SimulatedDisk, order| {
        let opened = restore_all_on(vec![disk.clone()], order, &options(), Limits::default(), 1);
        opened.map(drop).map_err(|error| error.to_string())
    };
    let error = open(&node.disk, OrderKind::Local).unwrap_err();
    assert!(error.contains("start it with --fleet"), "{error}");
    let disk = SimulatedDisk::new(9);
    let restored = crate::restore_on(disk.clone(), options(), Limits::default(), 1);
    let (mut machine, _, mut log) = restored.unwrap();
    let mut journal = crate::LogJournal {
        log: &mut log,
        now_ms: 1,
    };
    machine.apply(
        command(Do::Create(0, None, None, None, 3), 0),
        1,
        &mut journal,
    );
    log.write().unwrap();
    log.sync().unwrap();
    drop((machine, log));
    let error = open(&disk, OrderKind::Replicated).unwrap_err();
    assert!(error.contains("empty directory"), "{error}");
}
