//! What replaying makes of the streams is what live application made of them, wherever the
//! checkpoint is and wherever the replay begins.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::machine::Journal;
use crate::{Append, Command, Create, Data, ForkOf, ProducerId, Refusal, Target};

const LIMITS: Limits = Limits {
    producers_max: 3,
    fork_depth_max: 5,
};

/// A machine with a log and a state store in memory.
struct Living {
    machine: Machine,
    view: Arc<View>,
    log: MemoryLog,
    /// How many of the log's records are committed.
    committed: usize,
    /// The state store, and up to which record it goes.
    store: BTreeMap<Vec<u8>, Vec<u8>>,
    store_upto: usize,
    gathered: Vec<encke_log::StateEntry>,
    made: u64,
}

/// Of each record its stream and its payload; the first has sequence 1.
#[derive(Default)]
struct MemoryLog(Vec<(StreamNo, Vec<u8>)>);

impl Journal for MemoryLog {
    fn next_sequence(&self) -> Sequence {
        self.0.len() as u64 + 1
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        let sequence = self.next_sequence();
        let payload = [change.encode(), data].concat();
        self.0.push((stream.no, payload));
        Ok(sequence)
    }
}

/// What a step does is in its numbers.
type Step = (u8, u8, u8, u8);

impl Living {
    fn new() -> Self {
        let view = Arc::new(View::default());
        Living {
            machine: Machine::new(Arc::clone(&view), LIMITS),
            view,
            log: MemoryLog::default(),
            committed: 0,
            store: BTreeMap::new(),
            store_upto: 0,
            gathered: Vec::new(),
            made: 0,
        }
    }

    fn step(&mut self, (what, a, b, c): Step) {
        self.made += 1;
        match what % 20 {
            0..5 => self.apply(Command::Create(Create {
                name: name(a),
                content_type: None,
                lifetime: (c % 5 == 0).then_some(Lifetime::Sliding { ttl_s: 9 }),
                closed: c % 11 == 0,
                fork: (b % 3 != 0).then(|| ForkOf {
                    source: name(b),
                    at: (c % 4 == 0).then_some(Offset::START),
                }),
                data: data(c % 3),
            })),
            5..12 => self.apply(Command::Append(Append {
                target: Target::Named(name(a)),
                content_type: None,
                // Always a new session: it is always accepted.
                producer: (b % 2 == 0).then(|| ProducerId {
                    id: format!("p{}", b % 5).into(),
                    epoch: self.made,
                    seq: 0,
                }),
                writer_seq: (b % 7 == 0).then(|| format!("{:06}", self.made).into()),
                closes: c % 13 == 0,
                data: data(c % 3),
            })),
            12..15 => self.apply(Command::Delete {
                target: Target::Named(name(a)),
            }),
            15..17 => self.commit(),
            17 => {
                self.machine.abandon();
                self.log.0.truncate(self.committed);
            }
            _ => self.checkpoint(usize::from(a % 4)),
        }
    }

    fn apply(&mut self, command: Command) {
        self.machine.apply(command, 1000, &mut self.log);
    }

    fn commit(&mut self) {
        self.committed = self.log.0.len();
        self.machine.publish(self.committed as u64);
    }

    /// Takes some of what changed; a checkpoint is there when nothing more has.
    fn checkpoint(&mut self, count_max: usize) {
        self.commit();
        if self.machine.take_changed(count_max, &mut self.gathered) {
            for (key, value) in self.gathered.drain(..) {
                match value {
                    Some(value) => self.store.insert(key, value),
                    None => self.store.remove(&key),
                };
            }
            self.store_upto = self.committed;
        }
    }

    /// Restores from the store and the records after the first `skipped`.
    fn restore(&self, skipped: usize, store_first: bool) -> (Machine, Arc<View>) {
        let mut restore = Restore::default();
        let fill = |restore: &mut Restore| {
            for (key, value) in &self.store {
                restore.entry(key, value);
            }
        };
        if store_first {
            fill(&mut restore);
        }
        for (sequence, (no, payload)) in (1..).zip(&self.log.0).skip(skipped) {
            restore.apply(*no, sequence, payload).unwrap();
        }
        if !store_first {
            fill(&mut restore);
        }
        assert!(restore.failed.is_none());
        restore.build(LIMITS, 1000)
    }
}

fn name(number: u8) -> Box<str> {
    ["a", "b", "c", "d", "e", "f"][usize::from(number % 6)].into()
}

fn data(units: u8) -> Data {
    Data {
        bytes: vec![b'x'; usize::from(units)],
        units: units.into(),
    }
}

/// All that is known of the streams that have a name.
fn dump(view: &View) -> BTreeMap<StreamNo, String> {
    let mut dump = BTreeMap::new();
    view.for_each(&mut |stream| {
        let source = stream.source.as_ref().map(|at| (at.stream.no, at.at));
        let state = stream.state();
        assert_eq!(state.committed, state.next);
        let writers = state.writers.as_deref().cloned().unwrap_or_default();
        let mut producers: Vec<_> = writers.producers.into_iter().collect();
        producers.sort_by_key(|(_, state)| state.last);
        let said = format!(
            "{:?}",
            (
                (&stream.name, &stream.media, stream.lifetime),
                (source, stream.depth, state.committed),
                (producers, writers.seq, writers.closer),
            )
        );
        dump.insert(stream.no, said);
    });
    dump
}

proptest! {
    #[test]
    fn replaying_makes_the_same_streams(
        steps in vec(any::<Step>(), 0..150),
        earlier in 0..20_usize,
        store_first: bool,
    ) {
        let mut living = Living::new();
        steps.into_iter().for_each(|step| living.step(step));
        living.commit();
        let expected = dump(&living.view);
        let skipped = living.store_upto.saturating_sub(earlier);
        let (mut machine, view) = living.restore(skipped, store_first);
        prop_assert_eq!(&dump(&view), &expected);

        // The next checkpoint makes up for all that the last one did not have.
        living.gathered.clear();
        let done = machine.take_changed(usize::MAX, &mut living.gathered);
        prop_assert!(done);
        living.machine = machine;
        living.checkpoint(0);
        let (_, view) = living.restore(living.log.0.len(), store_first);
        prop_assert_eq!(&dump(&view), &expected);
        prop_assert_eq!(living.store.len(), expected.len());
    }
}

#[test]
fn a_payload_that_is_none_is_told_with_its_record() {
    let mut restore = Restore::default();
    assert_eq!(restore.apply(1, 1, &[]), Err(BadRecord));
    restore.entry(b"s", b"");
    restore.entry(b"s12345678", b"");
    match restore.failed {
        Some(RestoreError::Entry { key, .. }) => assert_eq!(key, b"s"),
        other => panic!("{other:?}"),
    }
}
