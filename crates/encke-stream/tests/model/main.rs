//! Random commands against a naive model: outcomes, facts, data and look-ups are equal after any commits, undos, expiries and restores.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub)] // What the modules of a test show, they show to the test.

mod naive;
mod rig;
mod steps;
mod undone;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_stream::{
    AccountId, Append, AppendExtras, Command, Create, CreateExtras, Data, ForkOf,
    LastMessagesBounds, Life, Lifetime, Limits, Offset, Outcome, Payer, ProducerId, Refusal,
    StorageUse, Stream, Target, Viewer, Views,
};
use naive::{Naive, Unit, is_json};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rig::Rig;
use steps::{At, Ends, NAMES, OWNERS, Size, Step, TYPES, To, Turn, steps};

/// The machine and the model.
struct Pair {
    rig: Rig,
    /// The model as it will be, and as it was at the last commit.
    next: Naive,
    committed: Naive,
    /// Every tail that was returned, of any stream.
    tails: Vec<Offset>,
    /// So that no two units are equal.
    made: u32,
    /// What the test has covered, by name.
    met: BTreeSet<String>,
}

/// Data that fits is smaller, data that does not is larger.
const FRAME_MAX: usize = 3000;

impl Pair {
    fn new() -> Self {
        let limits = Limits {
            producers_max: 2,
            fork_depth_max: 2,
        };
        let now_ms = 1_000_000;
        let naive = Naive::new(Now::from_ms(now_ms), limits);
        Pair {
            rig: Rig::new(limits, now_ms),
            committed: naive.clone(),
            next: naive,
            tails: Vec::new(),
            made: 0,
            met: BTreeSet::new(),
        }
    }

    fn step(mut self, step: Step) -> Self {
        let now = self.next.now;
        match step {
            Step::Wait(ms) => {
                self.set_time(Now {
                    steady: now.steady.after(Duration::from_millis(ms)),
                    wall: now.wall.after(Duration::from_millis(ms)),
                });
            }
            Step::SetClock(ms) => {
                self.met.insert("a step of the time of day".into());
                self.set_time(Now {
                    wall: WallTime::from_ms(now.wall.as_ms().saturating_add_signed(ms)),
                    ..now
                });
            }
            Step::Expire => {
                self.rig.expire(now);
                self.next.expire();
            }
            Step::Commit => {
                self.rig.commit();
                self.committed = self.next.clone();
            }
            Step::Abandon => self.abandon(),
            Step::Store(count_max) => {
                self = self.step(Step::Commit);
                self.rig.checkpoint(count_max);
            }
            Step::Evicted => {
                if self.rig.evict() > 0 {
                    self.met.insert("streams let go of".into());
                }
            }
            Step::Restart => {
                self.abandon();
                // Both clocks begin with the time of day. If it was set back, it is right again: what the store has of reads
                // is compared with it.
                let now_ms = now.wall.as_ms().max(now.steady.as_ms());
                self.set_time(Now::from_ms(now_ms));
                self.rig = self.rig.reopen(now_ms);
                for stream in self.next.streams.values_mut() {
                    stream.touched = SteadyTime::from_ms(now_ms);
                    stream.last_append = stream.touched;
                    stream.is_read = false;
                }
                self.committed = self.next.clone();
                assert_eq!(self.rig.log.next_sequence(), self.next.next);
            }
            Step::Read(which) => {
                let committed: Vec<u64> = self.committed.streams.keys().copied().collect();
                if let Some(no) = pick(&which, &committed)
                    && self.rig.seen().contains(no)
                    && let Some(stream) = self.rig.stream(*no)
                    && stream.facts().life == Life::Live
                    && !self.rig.view.has_expired(&stream, now)
                {
                    self.rig.view.touch(&stream, now);
                    self.touch(*no);
                }
            }
            Step::Watch(which) => {
                let committed: Vec<u64> = self.committed.streams.keys().copied().collect();
                if let Some(no) = pick(&which, &committed)
                    && !self.next.streams[no].is_read
                    && self.rig.seen().contains(no)
                    && let Some(stream) = self.rig.stream(*no)
                    && stream.facts().life == Life::Live
                    && !self.rig.view.has_expired(&stream, now)
                {
                    self.rig.view.touch(&stream, now);
                    self.rig.view.watch(&stream, 0);
                    self.touch(*no);
                    self.set_read(*no, true);
                }
            }
            Step::Unwatch(which) => {
                let streams = self.committed.streams.iter();
                let read: Vec<u64> = streams
                    .filter_map(|(no, stream)| stream.is_read.then_some(*no))
                    .collect();
                if let Some(no) = pick(&which, &read) {
                    if let Some(stream) = self.rig.stream(*no) {
                        self.rig.view.touch(&stream, now);
                        self.touch(*no);
                    }
                    self.rig.view.unwatch(*no, 0);
                    self.set_read(*no, false);
                }
            }
            step => {
                if let Some(command) = self.command(step) {
                    self.run(command);
                }
            }
        }
        self
    }

    fn touch(&mut self, no: u64) {
        self.next.touch(no);
        self.committed.touch(no);
    }

    fn set_read(&mut self, no: u64, is_read: bool) {
        for naive in [&mut self.next, &mut self.committed] {
            if let Some(stream) = naive.streams.get_mut(&no) {
                stream.is_read = is_read;
            }
        }
    }

    fn set_time(&mut self, now: Now) {
        self.next.now = now;
        self.committed.now = now;
    }

    fn abandon(&mut self) {
        self.rig.abandon();
        let abandoned = std::mem::replace(&mut self.next, self.committed.clone());
        // Reads and writes touch a stream even if they are not committed.
        for (no, stream) in &mut self.next.streams {
            stream.touched = abandoned.streams[no].touched;
        }
        self.committed = self.next.clone();
    }

    fn command(&mut self, step: Step) -> Option<Command> {
        Some(match step {
            Step::Create {
                name,
                content_type,
                lifetime,
                closed,
                fork,
                size,
                extras: (owner, producer_timeout_s, metadata),
                viewers: (viewer, source_viewer),
            } => {
                let content_type = content_type.map(|which| TYPES[which]);
                let source = fork.as_ref().map(|(source, _)| NAMES[*source]);
                let json = match (source, content_type) {
                    // Like a protocol: the content type of the source determines that of the data.
                    (Some(source), _) => self.is_json(source),
                    (None, asked) => asked.is_some_and(is_json),
                };
                let fork = fork.map(|(source, at)| ForkOf {
                    source: NAMES[source].into(),
                    at: at.map(|at| self.offset(&at)),
                });
                Command::Create(Create {
                    content_type: content_type.map(Into::into),
                    lifetime: lifetime.map(|lifetime| match lifetime {
                        Ends::Unbounded => Lifetime::Unbounded,
                        Ends::Sliding(ttl_s) => Lifetime::Sliding { ttl_s },
                        Ends::Until(ms) => Lifetime::Until {
                            at: self.next.now.wall.after(Duration::from_millis(ms)),
                        },
                    }),
                    closed,
                    fork,
                    data: self.data(json, size),
                    extras: CreateExtras {
                        owner: owner.map(|which| OWNERS[which].into()),
                        producer_timeout_s,
                        metadata: metadata.then(|| self.made.to_string().into()),
                        viewer,
                        source_viewer,
                        acks_synced: false,
                        payer: (name > 0).then(|| {
                            Box::new(Payer {
                                account: AccountId([1, name as u64 % 2]),
                                exceeded: None,
                            })
                        }),
                    },
                    ..Create::new(NAMES[name])
                })
            }
            Step::Append {
                target,
                content_type,
                producer,
                writer_seq,
                closes,
                size,
                extras,
            } => {
                let (target, json) = self.target(&target)?;
                let producer = producer.map(|(id, turn)| self.producer(&target, id, turn));
                Command::Append(Append {
                    content_type: content_type.map(|which| TYPES[which].into()),
                    producer,
                    writer_seq: writer_seq.map(|seq| format!("{seq}").into()),
                    closes,
                    data: self.data(json, size),
                    extras: AppendExtras {
                        end: extras.end,
                        asks_stop: extras.asks_stop,
                        metadata: extras.metadata.then(|| self.made.to_string().into()),
                        if_tail: extras.if_tail.map(|at| self.offset(&at)),
                    },
                    ..Append::to(target)
                })
            }
            Step::Truncate(target, before) => Command::Truncate {
                target: self.target(&target)?.0,
                before: before.map(|at| self.offset(&at)),
                ack: None,
            },
            Step::Delete(target) => Command::Delete {
                target: self.target(&target)?.0,
                ack: None,
            },
            _ => return None,
        })
    }

    fn target(&self, target: &To) -> Option<(Target, bool)> {
        match target {
            To::Name(name) => {
                let name = NAMES[*name];
                Some((Target::Named(name.into()), self.is_json(name)))
            }
            To::Found(which) => {
                let seen = self.rig.seen();
                let no = pick(which, &seen)?;
                let json = is_json(&self.next.streams[no].content_type);
                Some((Target::Known(self.rig.stream(*no)?), json))
            }
        }
    }

    fn producer(&self, target: &Target, id: u8, turn: Turn) -> ProducerId {
        let id = format!("p{id}");
        let no = match target {
            Target::Known(stream) => Some(&stream.no),
            Target::Named(name) | Target::Read { name, .. } | Target::Owned { name, .. } => {
                self.next.names.get(&**name)
            }
        };
        let known = no.and_then(|no| self.next.producer(*no, &id));
        let (epoch, seq) = match (turn, known) {
            (Turn::Anything(epoch, seq), _) => (epoch, seq),
            (Turn::NewEpoch, known) => (known.map_or(1, |(epoch, _)| epoch + 1), 0),
            (_, None) => (0, 0),
            (Turn::Next, Some((epoch, seq))) => (epoch, seq + 1),
            (Turn::Repeated, Some(known)) => known,
        };
        let id = id.into();
        ProducerId { id, epoch, seq }
    }

    /// Whether the stream of that name is JSON, if there is one.
    fn is_json(&self, name: &str) -> bool {
        let stream = self.next.names.get(name).map(|no| &self.next.streams[no]);
        stream.is_some_and(|stream| is_json(&stream.content_type))
    }

    fn offset(&self, at: &At) -> Offset {
        match at {
            At::Start => Offset::START,
            At::Anything(sequence, units) => Offset {
                sequence: *sequence,
                units: *units,
            },
            At::Seen(which, units) => {
                let seen = pick(which, &self.tails).copied().unwrap_or_default();
                Offset {
                    units: *units,
                    ..seen
                }
            }
        }
    }

    fn data(&mut self, json: bool, size: Size) -> Data {
        let count = match size {
            Size::Units(count) => count,
            Size::Huge => 5000,
        };
        let mut bytes = Vec::new();
        for index in 0..count {
            self.made += 1;
            if json {
                let comma = if index > 0 { "," } else { "" };
                bytes.extend_from_slice(format!("{comma}{}", self.made).as_bytes());
            } else {
                bytes.push(self.made as u8);
            }
        }
        let units = count as u32;
        Data { bytes, units }
    }

    fn run(&mut self, command: Command) {
        let said = format!("{command:?}");
        let expected = self.next.apply(&command, FRAME_MAX);
        let outcome = self.rig.apply(command, self.next.now);
        assert_eq!(gist(&outcome), gist(&expected), "{said}");
        assert_eq!(self.rig.log.next_sequence(), self.next.next, "{said}");
        self.met.insert(kind(&outcome));
        if self.next.abandoned > 0 {
            self.met.insert("an abandoned stream".into());
        }
        if self.next.forgotten > 0 {
            self.met.insert("a forgotten producer".into());
        }
        match outcome {
            Outcome::Created { tail, .. } | Outcome::Appended { tail, .. } => self.tails.push(tail),
            _ => {}
        }
    }

    /// A list of all streams has the live ones in the order of their names, whatever the size of its pages and whose they are.
    fn check_list(&self) {
        let naive = &self.committed;
        for (count_max, viewer) in [
            (1, Viewer::All),
            (2, Viewer::Of(Some(OWNERS[0].into()))),
            (10, Viewer::All),
        ] {
            for prefix in ["", "d", "d/e", "x"] {
                let expected = naive.names.iter().filter(|(name, no)| {
                    let stream = &naive.streams[*no];
                    let is_over = self.next.is_expired(**no) && !naive.is_kept(**no);
                    let is_seen = viewer.sees(stream.owner.as_deref());
                    name.starts_with(prefix) && stream.life == Life::Live && !is_over && is_seen
                });
                let expected: Vec<_> = expected
                    .map(|(name, no)| (name.clone(), naive.facts(*no)))
                    .collect();
                let listed = self.rig.list(prefix, count_max, &viewer, self.next.now);
                let names: Vec<_> = listed.iter().map(|one| one.name.to_string()).collect();
                let wanted: Vec<_> = expected.iter().map(|(name, _)| name.clone()).collect();
                assert_eq!(names, wanted, "{prefix} {count_max}");
                for (one, (_, facts)) in listed.iter().zip(&expected) {
                    let has = (
                        one.tail,
                        one.floor,
                        one.closed,
                        one.end,
                        one.messages,
                        one.appended_bytes,
                    );
                    let wanted = (
                        facts.tail,
                        facts.floor,
                        facts.closed,
                        facts.end,
                        facts.messages(),
                        facts.appended.known(),
                    );
                    assert_eq!(has, wanted, "{}", one.name);
                }
            }
        }
    }

    /// The totals of accounts are the sums of what their streams cost, whatever was checkpointed, evicted and restarted meanwhile.
    fn check_accounts(&mut self) {
        if self.next.next != self.committed.next {
            // What a batch has removed is gone from the buckets already.
            return;
        }
        let mut sums: HashMap<AccountId, StorageUse> = HashMap::new();
        for no in self.committed.streams.keys() {
            let Some(stream) = self.rig.load(*no) else {
                continue;
            };
            let (Some(account), used) = (stream.account(), stream.storage()) else {
                continue;
            };
            let (facts, metadata) = (stream.facts(), stream.metadata());
            let appended = facts.appended.known().expect("no older version had it");
            let all = StorageUse {
                streams: 1,
                bytes: appended + metadata.map_or(0, |metadata| metadata.len() as u64),
            };
            match (facts.life, stream.retention().is_limited()) {
                (Life::Live, false) => assert_eq!(used, all),
                (Life::Live, true) => assert!(used.bytes <= all.bytes && used.streams == 1),
                (Life::Kept, _) => assert!(used.bytes <= all.bytes && used.streams == 0),
                (Life::Ended, _) => assert_eq!(used, StorageUse::default()),
            }
            let sum = sums.entry(account).or_default();
            *sum = sum.and(used);
        }
        sums.retain(|_, used| *used != StorageUse::default());
        if !sums.is_empty() {
            self.met.insert("an account".into());
        }
        let totals = Views::one(Arc::clone(&self.rig.view)).storage_uses();
        assert_eq!(totals, sums);
    }

    /// Readers see what is committed, no more and no less.
    fn check(&mut self, bytes_max: usize) {
        let naive = &self.committed;
        assert_eq!(self.rig.view.total(), naive.names.len() as u64);
        self.check_list();
        self.check_accounts();
        let naive = &self.committed;
        for name in NAMES {
            let found = self.rig.look(name).map(|stream| stream.no);
            assert_eq!(found, naive.names.get(name).copied(), "{name}");
        }
        for no in &self.rig.seen() {
            let Some(stream) = &self.rig.stream(*no) else {
                // It was evicted before it ended.
                assert_eq!(naive.facts(*no).life, Life::Ended);
                continue;
            };
            let Some(expected) = naive.streams.get(no) else {
                // Not committed: it cannot be found.
                let found = self.rig.look(&stream.name);
                assert!(found.is_none_or(|found| found.no != *no));
                continue;
            };
            let facts = stream.facts();
            assert_eq!(facts, naive.facts(*no), "{}", stream.name);
            // A change that is not committed touches a stream too.
            assert_eq!(stream.expired(naive.now), self.next.is_expired(*no));
            assert_eq!(&*stream.name, expected.name);
            assert_eq!(&*stream.media.name, expected.content_type);
            assert_eq!(stream.owner(), expected.owner.as_deref());
            assert_eq!(stream.metadata().as_deref(), expected.metadata.as_deref());
            let named = [
                (stream.owner().is_some(), "a stream with an owner"),
                (stream.metadata().is_some(), "metadata"),
                (facts.messages().is_none(), "a stream of unknown length"),
                (facts.stop_asked, "a stop"),
                (facts.end.is_some(), "a reason for an end"),
            ];
            let met = named.iter().filter(|(is_so, _)| *is_so);
            self.met.extend(met.map(|(_, name)| (*name).to_owned()));
            if facts.life == Life::Ended {
                continue;
            }
            if stream.expired(naive.now) && facts.life == Life::Live && expected.is_read {
                self.met.insert("a stream that readers keep".into());
            }
            let depth = format!("a {:?} stream of depth {}", facts.life, expected.depth);
            self.met.insert(depth);
            let all = self.rig.read(stream, Offset::START, bytes_max);
            let all = all.expect("what is left can be read");
            assert_eq!(all, expected.units, "{} from the start", stream.name);
            self.met
                .extend(check_last(&self.rig, stream, &all, bytes_max));
            let stride = self.tails.len() / 5 + 1;
            let some = self.tails.iter().rev().step_by(stride);
            for from in some.filter(|from| **from <= facts.tail) {
                for units in [0, 1, 2] {
                    let from = Offset {
                        units: from.units + units,
                        ..*from
                    };
                    let rest: Vec<_> = expected
                        .units
                        .iter()
                        .filter(|unit| !unit.is_before(from))
                        .cloned()
                        .collect();
                    if from <= facts.tail {
                        let read = self.rig.read(stream, from, bytes_max);
                        // No reader passes a gap unnoticed.
                        let gone = from != Offset::START
                            && from < facts.tail
                            && from.sequence < facts.floor;
                        let rest = (!gone).then_some(rest);
                        self.met.extend(gone.then(|| "a read below a floor".into()));
                        self.met.extend(self.rig.met_kept());
                        assert_eq!(read, rest, "{} from {from}", stream.name);
                        let json = is_json(&stream.media.name);
                        if let Some(rest) = rest.filter(|_| !json || from.units == 0) {
                            let units: Vec<_> = rest.into_iter().map(|unit| unit.bytes).collect();
                            let body = match json {
                                true => units.join(&b','),
                                false => units.concat(),
                            };
                            let read = self.rig.read_body(stream, from, bytes_max);
                            assert_eq!(read, body, "{} from {from}", stream.name);
                        }
                    }
                }
            }
        }
    }
}

/// The last messages of a stream begin where the list of all of them says, which is what a read from the beginning returned.
/// Returns what this has covered.
fn check_last(rig: &Rig, stream: &Stream, all: &[Unit], piece_bytes: usize) -> BTreeSet<String> {
    let mut met = BTreeSet::new();
    let messages = messages(&stream.media.name, all);
    for count in [0, 1, 2, messages.len(), messages.len() + 1, 10_000] {
        let bounds = LastMessagesBounds {
            bytes_max: usize::MAX,
            piece_bytes,
        };
        let from = rig.last(stream, count, bounds);
        let before = messages.len().saturating_sub(count);
        let expected = messages[before..].concat();
        let read = rig.read(stream, from, piece_bytes);
        assert_eq!(read, Some(expected), "the last {count} of {}", stream.name);
        if messages.is_empty() {
            assert_eq!(from, stream.facts().tail);
        } else if count > messages.len() {
            assert_eq!(from, Offset::START);
            met.insert("more last messages than there are".into());
        }
        if from.units > 0 {
            met.insert("last messages inside a record".into());
        }
    }
    // Behind the record that reaches the bound on bytes no other is looked at.
    let bounds = LastMessagesBounds {
        bytes_max: 1,
        piece_bytes,
    };
    let from = rig.last(stream, 10_000, bounds);
    let read = rig.read(stream, from, piece_bytes);
    let last = messages.last().map_or(0, |units| units[0].record);
    let mut expected = messages.concat();
    expected.retain(|unit| unit.record == last);
    // A piece counts for some bytes, so that a search through records without data ends, too.
    let read = read.expect("it is there");
    if !read.is_empty() || expected.is_empty() {
        assert_eq!(read, expected, "the last record of {}", stream.name);
        met.insert("the last record".into());
    }
    met
}

/// The messages among units: each of JSON, or all of a record.
fn messages(content_type: &str, units: &[Unit]) -> Vec<Vec<Unit>> {
    let is_apart = |a: &Unit, b: &Unit| is_json(content_type) || a.record != b.record;
    let messages = units.chunk_by(|a, b| !is_apart(a, b));
    messages.map(<[Unit]>::to_vec).collect()
}

fn pick<'a, T>(which: &Index, among: &'a [T]) -> Option<&'a T> {
    (!among.is_empty()).then(|| which.get(among))
}

/// An outcome without its texts.
fn gist(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Refused(Refusal::Differs { what, .. }) => Outcome::Refused(Refusal::Differs {
            what: what.clone(),
            has: String::new(),
            asked: String::new(),
        }),
        Outcome::Refused(Refusal::TooLarge { .. }) => Outcome::Refused(Refusal::TooLarge {
            bytes: 0,
            bytes_max: 0,
        }),
        other => other.clone(),
    }
}

/// The name of an outcome's variant; a duplicate has one of its own.
fn kind(outcome: &Outcome) -> String {
    let word = |text: String| {
        let end = text.find(|c: char| !c.is_alphanumeric());
        text[..end.unwrap_or(text.len())].to_owned()
    };
    match outcome {
        Outcome::Refused(refusal) => word(format!("{refusal:?}")),
        Outcome::Created { existed: true, .. } => "Existed".into(),
        Outcome::Appended {
            duplicate: true, ..
        } => "Duplicate".into(),
        other => word(format!("{other:?}")),
    }
}

fn run(steps: Vec<Step>, bytes_max: usize) -> Pair {
    let mut pair = Pair::new();
    for (turn, step) in steps.into_iter().enumerate() {
        let settles = matches!(
            step,
            Step::Commit | Step::Abandon | Step::Restart | Step::Evicted
        );
        pair = pair.step(step);
        if settles || turn % 32 == 0 {
            pair.check(bytes_max);
        }
    }
    pair = pair.step(Step::Commit);
    pair.check(bytes_max);
    pair
}

/// A property that is never tested always holds.
#[test]
fn the_random_steps_meet_everything_that_can_happen() {
    let mut runner = TestRunner::deterministic();
    let mut met = BTreeSet::new();
    for _ in 0..700 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        met.extend(run(steps, 100).met);
    }
    for expected in [
        "Created",
        "Existed",
        "Appended",
        "Duplicate",
        "Deleted",
        "NotFound",
        "Gone",
        "NameKept",
        "NotOwner",
        "Differs",
        "Closed",
        "TypeDiffers",
        "WriterSeq",
        "StaleEpoch",
        "EpochStart",
        "SeqGap",
        "SourceNotFound",
        "SourceGone",
        "BeyondTail",
        "Truncated",
        "TruncateBeyondTail",
        "a read below a floor",
        "BeforeStart",
        "NoLongerKept",
        "TooDeep",
        "TooLarge",
        "a forgotten producer",
        "streams let go of",
        "a step of the time of day",
        "a stream that readers keep",
        "TailDiffers",
        "a stream with an owner",
        "an account",
        "metadata",
        "a stop",
        "a stream of unknown length",
        "a reason for an end",
        "an abandoned stream",
        "last messages inside a record",
        "more last messages than there are",
        "the last record",
        "records from memory",
        "a Kept stream of depth 0",
        "a Kept stream of depth 1",
        "a Live stream of depth 2",
    ] {
        assert!(met.contains(expected), "no {expected} among {met:?}");
    }
}

/// Fewer cases than the default, unless the environment sets a number.
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(100),
    }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn the_machine_does_what_the_naive_model_does(
        steps in steps(),
        bytes_max in prop_oneof![Just(1_usize), Just(100), Just(1 << 20)],
    ) {
        run(steps, bytes_max);
    }
}
