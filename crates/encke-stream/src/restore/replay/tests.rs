//! A replay restores the streams as they were applied live, wherever the checkpoint is and the replay begins.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::{EachState, ReadError, StateRange};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::machine::deadlines::Deadlines;
use crate::machine::journal::Journal;
use crate::{
    AccountId, Append, Command, Create, CreateExtras, Data, ForkOf, Lifetime, Payer, ProducerId,
    Refusal, Retention, StorageUse, Target,
};

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
    store: MemoryStore,
    store_upto: usize,
    /// Streams are evicted now and then.
    forgetful: bool,
    gathered: Vec<encke_log::StateEntry>,
    made: u64,
}

#[derive(Clone, Default)]
struct MemoryStore(Rc<RefCell<BTreeMap<Vec<u8>, Vec<u8>>>>);

impl Store for MemoryStore {
    fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        Ok(self.0.borrow().get(key).cloned())
    }

    fn states(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), ReadError> {
        let store = self.0.borrow();
        let found = store.iter().filter(|(key, _)| key.starts_with(prefix));
        found.for_each(|(key, value)| each(key, value));
        Ok(())
    }

    fn states_in(&self, range: StateRange<'_>, each: &mut EachState<'_>) -> Result<(), ReadError> {
        let store = self.0.borrow();
        let is_behind = |key: &[u8]| range.behind.is_none_or(|behind| key > behind);
        let mut found = store
            .iter()
            .filter(|(key, _)| key.starts_with(range.prefix) && is_behind(key));
        let _ = found.try_for_each(|(key, value)| each(key, value));
        Ok(())
    }
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
    fn new(forgetful: bool) -> Self {
        let view = Arc::new(View::default());
        Living {
            machine: Machine::new(Arc::clone(&view), LIMITS),
            view,
            log: MemoryLog::default(),
            committed: 0,
            store: MemoryStore::default(),
            forgetful,
            store_upto: 0,
            gathered: Vec::new(),
            made: 0,
        }
    }

    fn step(&mut self, (what, a, b, c): Step) {
        self.made += 1;
        match what % 20 {
            0..5 => self.apply(Command::Create(Create {
                lifetime: (c % 5 == 0).then_some(Lifetime::Sliding { ttl_s: 9 }),
                closed: c % 11 == 0,
                fork: (b % 3 != 0).then(|| ForkOf {
                    source: name(b),
                    at: (c % 4 == 0).then_some(Offset::START),
                }),
                data: data(c % 3),
                retention: (b % 4 == 1).then_some(Retention {
                    records: Some(2),
                    ..Retention::default()
                }),
                extras: CreateExtras {
                    payer: (a % 6 > 0).then(|| {
                        Box::new(Payer {
                            account: AccountId([u64::from(a % 2), 9]),
                            exceeded: None,
                        })
                    }),
                    metadata: (c % 7 == 0).then(|| "{}".into()),
                    ..CreateExtras::default()
                },
                ..Create::new(name(a))
            })),
            5..12 => self.apply(Command::Append(Append {
                // Always a new session: it is always accepted.
                producer: (b % 2 == 0).then(|| ProducerId {
                    id: format!("p{}", b % 5).into(),
                    epoch: self.made,
                    seq: 0,
                }),
                writer_seq: (b % 7 == 0).then(|| format!("{:06}", self.made).into()),
                closes: c % 13 == 0,
                data: data(c % 3),
                ..Append::to(Target::Named(name(a)))
            })),
            12..15 => self.apply(Command::Delete {
                target: Target::Named(name(a)),
                ack: None,
            }),
            15..17 => self.commit(),
            17 => {
                self.machine.abandon();
                self.log.0.truncate(self.committed);
            }
            _ => {
                self.checkpoint(usize::from(a % 4));
                if self.forgetful {
                    (0..Machine::sweeps()).for_each(|_| {
                        self.machine.sweep(b % 2 == 0);
                    });
                }
            }
        }
    }

    fn apply(&mut self, command: Command) {
        let loader = self.loader();
        let known: Vec<_> = (0..6)
            .map(|each| loader.load(&name(each)).unwrap())
            .collect();
        self.machine
            .apply(command, Now::from_ms(1000), &mut self.log);
        drop(known);
    }

    fn loader(&self) -> Loader<MemoryStore> {
        Loader::new(
            Arc::clone(&self.view),
            self.store.clone(),
            LIMITS,
            Some(SteadyTime::from_ms(1000)),
        )
    }

    fn commit(&mut self) {
        self.committed = self.log.0.len();
        self.machine.publish(self.committed as u64);
    }

    /// Takes some of what changed; a checkpoint is there when nothing more has.
    fn checkpoint(&mut self, count_max: usize) {
        self.commit();
        let (committed, gathered) = (self.committed as u64, &mut self.gathered);
        if self.machine.take_changed(committed, count_max, gathered) {
            let mut store = self.store.0.borrow_mut();
            for (key, value) in self.gathered.drain(..) {
                match value {
                    Some(value) => store.insert(key, value),
                    None => store.remove(&key),
                };
            }
            self.store_upto = self.committed;
            self.machine.stored();
        }
    }

    /// As it is after a start that replays the records after the first `skipped`.
    fn restart(&mut self, skipped: usize) {
        let mut restore = Restore::default();
        for (sequence, (no, payload)) in (1..).zip(&self.log.0).skip(skipped) {
            restore
                .apply(*no, sequence, WallTime::from_ms(0), payload)
                .unwrap();
        }
        assert!(restore.failed.is_none());
        self.gathered.clear();
        (self.machine, self.view) = build(restore, &self.store, 1000).unwrap();
    }

    /// All that is known of the streams that have a name, in memory or not.
    fn dump(&self) -> BTreeMap<StreamNo, String> {
        let loader = self.loader();
        let known: Vec<_> = (0..6)
            .map(|each| loader.load(&name(each)).unwrap())
            .collect();
        let dump = dump(&self.view);
        let taken = known.iter().filter(|known| known.stream().is_some());
        assert_eq!(
            (taken.count(), self.view.total()),
            (dump.len(), dump.len() as u64)
        );
        dump
    }

    /// What accounts use, which is the sum of what the streams cost that a dump has loaded.
    fn uses(&self) -> BTreeMap<AccountId, StorageUse> {
        let mut totals = BTreeMap::new();
        self.view.accounts.for_each(&mut |account, used| {
            totals.insert(account, used);
        });
        let loader = self.loader();
        let known = (0..6).map(|each| loader.load(&name(each)).unwrap());
        let known: Vec<_> = known.collect();
        let mut sums: BTreeMap<AccountId, StorageUse> = BTreeMap::new();
        self.view.for_each(&mut |stream| {
            if let Some(account) = stream.account() {
                let sum = sums.entry(account).or_default();
                *sum = sum.and(stream.storage());
            }
        });
        drop(known);
        sums.retain(|_, used| *used != StorageUse::default());
        assert_eq!(totals, sums);
        totals
    }

    /// When which streams end.
    fn deadlines(&self) -> Deadlines {
        self.machine.deadlines.clone()
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
        let mut producers: Vec<_> = writers.producers.iter().collect();
        producers.sort_by_key(|(_, state)| state.last);
        let said = format!(
            "{:?}",
            (
                (&stream.name, &stream.media, stream.lifetime),
                (source, stream.depth, state.committed),
                (producers, &writers.seq, &writers.closer),
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
    ) {
        let mut living = Living::new(false);
        let mut forgetful = Living::new(true);
        for step in steps {
            living.step(step);
            forgetful.step(step);
            prop_assert_eq!(living.log.0.len(), forgetful.log.0.len());
        }
        living.commit();
        forgetful.commit();
        let expected = living.dump();
        prop_assert_eq!(&forgetful.dump(), &expected);
        let uses = living.uses();
        prop_assert_eq!(&forgetful.uses(), &uses);
        let deadlines = living.deadlines();
        prop_assert_eq!(&forgetful.deadlines(), &deadlines);
        for living in [&mut living, &mut forgetful] {
            let skipped = living.store_upto.saturating_sub(earlier);
            living.restart(skipped);
            prop_assert_eq!(&living.dump(), &expected);
            prop_assert_eq!(&living.deadlines(), &deadlines);
            prop_assert_eq!(&living.uses(), &uses);

            // The next checkpoint makes up for all that the last one did not have.
            living.checkpoint(usize::MAX);
            living.restart(living.log.0.len());
            prop_assert_eq!(living.view.len(), 0, "a start loads what changed, and nothing else");
            prop_assert_eq!(&living.dump(), &expected);
            prop_assert_eq!(&living.deadlines(), &deadlines);
            prop_assert_eq!(&living.uses(), &uses);
            let streams = expected.len();
            let kept = living.store.0.borrow().len();
            let kept = kept - uses.len();
            prop_assert!(kept <= 3 * streams + 1, "{kept} entries for {streams} streams");
        }
    }
}

#[test]
fn an_invalid_payload_is_reported_with_its_record() {
    let mut restore = Restore::default();
    assert_eq!(
        restore.apply(1, 1, WallTime::from_ms(0), &[]),
        Err(BadRecord)
    );
    restore.entry(b"s", b"");
    restore.entry(b"s12345678", b"");
    match restore.failed {
        Some(RestoreError::Entry { key, .. }) => assert_eq!(key, b"s"),
        other => panic!("{other:?}"),
    }
}

fn build(
    restore: Restore,
    store: &MemoryStore,
    now_ms: u64,
) -> Result<(Machine, Arc<View>), RestoreError> {
    restore.build(
        store,
        meta(store)?,
        None,
        LIMITS,
        SteadyTime::from_ms(now_ms),
    )
}

#[test]
fn a_checkpoint_of_another_version_is_refused() {
    let store = MemoryStore::default();
    let restored = |store: &MemoryStore| build(Restore::default(), store, 0).err();
    assert!(restored(&store).is_none());
    // The first version said nothing of itself.
    store.0.borrow_mut().insert(stored::key(7), vec![0]);
    assert!(matches!(
        restored(&store),
        Some(RestoreError::Format { found: 1 })
    ));
    let meta = StoreMeta {
        format: FORMAT + 1,
        ..StoreMeta::default()
    };
    let (key, value) = meta.entry();
    store.0.borrow_mut().insert(key, value.unwrap());
    let found = FORMAT + 1;
    match restored(&store) {
        Some(RestoreError::Format { found: refused }) => assert_eq!(refused, found),
        other => panic!("{other:?}"),
    }
}
