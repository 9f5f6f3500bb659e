//! Loads in flight: between any two reads of a store anything else may happen, other loads included. What a look-up finds was so at
//! some moment between its beginning and its end, and what it leaves in memory is right.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use encke_log::simulated::SimulatedDisk;
use encke_log::{EachState, ReadError, Reader, StateRange};
use encke_stream::{Loader, Loaders, Store, StreamNo};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::rig::{LOGS, NAMES, Rig, append, create, list, remove};

#[derive(Clone, Debug)]
enum Step {
    Create(usize, Option<usize>),
    Append(usize),
    Delete(usize),
    Commit(usize, bool),
    Abandon(usize),
    /// Up to that many changes become part of the next checkpoint.
    Collect(usize, usize),
    Sweep(usize),
    Load(usize),
    /// A stream that was seen before, by its number.
    LoadNumber(prop::sample::Index),
    List,
    /// Nothing more happens before the next read of the innermost load.
    Read,
    Crash([bool; LOGS]),
}

fn step() -> impl Strategy<Value = Step> {
    // Few names, so that they are taken again and again.
    let name = 0..4_usize;
    prop_oneof![
        8 => (name.clone(), proptest::option::weighted(0.3, name.clone())).prop_map(|(name, source)| Step::Create(name, source)),
        2 => name.clone().prop_map(Step::Append),
        8 => name.clone().prop_map(Step::Delete),
        12 => (0..LOGS, any::<bool>()).prop_map(|(log, sync)| Step::Commit(log, sync)),
        1 => (0..LOGS).prop_map(Step::Abandon),
        12 => (0..LOGS, 1..4_usize).prop_map(|(log, count)| Step::Collect(log, count)),
        12 => (0..LOGS).prop_map(Step::Sweep),
        10 => name.prop_map(Step::Load),
        4 => any::<prop::sample::Index>().prop_map(Step::LoadNumber),
        2 => Just(Step::List),
        10 => Just(Step::Read),
        1 => any::<[bool; LOGS]>().prop_map(Step::Crash),
    ]
}

/// The stream of each name, and whether it exists for its forks only.
type Holders = BTreeMap<String, (StreamNo, bool)>;

struct World {
    rig: Option<Rig>,
    steps: std::vec::IntoIter<Step>,
    /// At each moment since the start.
    moments: Vec<Holders>,
    numbers: Vec<StreamNo>,
    /// Loads in flight, one inside of the other.
    depth: usize,
    met: Met,
}

/// What happened, so that a model that excludes nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    /// Look-ups whose name had another stream, or none, when they were over.
    overtaken: u32,
    deepest: usize,
}

type Shared = Rc<RefCell<World>>;

/// A store between whose reads other things happen.
#[derive(Clone)]
struct SlowStore {
    reader: Reader<SimulatedDisk>,
    world: Shared,
}

impl Store for SlowStore {
    fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        take_steps(&self.world, true);
        let state = self.reader.state(key);
        take_steps(&self.world, true);
        state
    }

    fn states(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), ReadError> {
        self.reader.states(prefix, each)
    }

    fn states_in(&self, range: StateRange<'_>, each: &mut EachState<'_>) -> Result<(), ReadError> {
        take_steps(&self.world, true);
        let states = self.reader.states_in(range, each);
        take_steps(&self.world, true);
        states
    }
}

/// Takes steps until the innermost load may read on, or until none is left.
fn take_steps(world: &Shared, in_flight: bool) {
    loop {
        let step = world.borrow_mut().steps.next();
        match step {
            None => return,
            Some(Step::Read) if in_flight => return,
            Some(step) => take(world, step),
        }
    }
}

fn take(world: &Shared, step: Step) {
    match step {
        Step::Load(name) => look_up(world, true, |loaders| {
            let known = loaders.load(NAMES[name]).unwrap();
            let found = known.stream().map(|stream| stream.no);
            vec![(NAMES[name], found)]
        }),
        Step::List => look_up(world, false, |loaders| {
            let page = loaders.list(&list()).unwrap();
            let no = |name| page.streams.iter().find(|one| &*one.name == name);
            let names = NAMES.iter().take(4);
            names
                .map(|name| (*name, no(*name).map(|one| one.no)))
                .collect()
        }),
        Step::LoadNumber(which) => {
            let numbers = world.borrow().numbers.clone();
            if !numbers.is_empty() {
                load_number(world, *which.get(&numbers));
            }
        }
        step => change(&mut world.borrow_mut(), step),
    }
}

fn loaders(world: &Shared) -> Loaders<SlowStore> {
    let held = world.borrow();
    let rig = held.rig.as_ref().unwrap();
    let views = std::sync::Arc::clone(&rig.views);
    let loader = |one: &crate::rig::One| -> Loader<SlowStore> {
        one.machine.loader(SlowStore {
            reader: one.log.reader(),
            world: Rc::clone(world),
        })
    };
    Loaders::new(views, rig.logs.iter().map(loader).collect())
}

/// Begins a look-up. `look` returns the names that it has looked for, and the streams that it has found. `all`: those that exist for their
/// forks only, too.
fn look_up(
    world: &Shared,
    all: bool,
    look: impl Fn(&Loaders<SlowStore>) -> Vec<(&'static str, Option<StreamNo>)>,
) {
    let Some(begin) = enter(world) else { return };
    let found = look(&loaders(world));
    let mut world = world.borrow_mut();
    world.depth -= 1;
    for (name, found) in found {
        let moments = &world.moments[begin..];
        let was = |moment: &Holders| {
            let holder = moment.get(name).filter(|(_, kept)| all || !kept);
            holder.map(|(no, _)| *no) == found
        };
        assert!(
            moments.iter().any(was),
            "{name}: {found:?}, not {moments:?}"
        );
        let is_over = !was(moments.last().unwrap());
        world.met.overtaken += u32::from(is_over);
    }
    world.rig.as_ref().unwrap().check_in_memory();
}

fn load_number(world: &Shared, no: StreamNo) {
    let Some(begin) = enter(world) else { return };
    let loaders = loaders(world);
    let found = loaders.load_number(no).unwrap();
    drop(loaders);
    let mut world = world.borrow_mut();
    world.depth -= 1;
    let has = |moment: &Holders| moment.values().any(|(other, _)| *other == no);
    let found = found.map(|stream| stream.no);
    let mut moments = world.moments[begin..].iter();
    match found {
        Some(found) => assert!(found == no && moments.any(has), "{no} has ended"),
        None => assert!(!moments.all(has), "{no} was there all the time"),
    }
}

/// Notes that a look-up begins. Returns the moment, unless too many are in flight.
fn enter(world: &Shared) -> Option<usize> {
    let mut world = world.borrow_mut();
    if world.depth == 4 {
        return None;
    }
    world.depth += 1;
    world.met.deepest = world.met.deepest.max(world.depth);
    Some(world.moments.len() - 1)
}

fn change(world: &mut World, step: Step) {
    let World { rig, moments, .. } = world;
    let kept = rig.as_mut().unwrap();
    match step {
        Step::Create(name, source) => {
            kept.apply(create(NAMES[name], source.map(|source| NAMES[source])));
        }
        Step::Append(name) => {
            kept.apply(append(NAMES[name], b"x"));
        }
        Step::Delete(name) => {
            kept.apply(remove(NAMES[name]));
        }
        Step::Commit(log, sync) => kept.commit(log, sync),
        Step::Abandon(log) => kept.abandon(log),
        Step::Collect(log, count) => kept.collect(log, count),
        Step::Sweep(log) => kept.sweep(log),
        // Loads in flight end with the process, so there are none.
        Step::Crash(cut) if world.depth == 0 => {
            *rig = Some(rig.take().unwrap().crash(cut));
            moments.clear();
        }
        _ => return,
    }
    let rig = rig.as_ref().unwrap();
    let now = rig.holders();
    if moments.last() != Some(&now) {
        for (no, _) in now.values() {
            if !world.numbers.contains(no) {
                world.numbers.push(*no);
            }
        }
        moments.push(now);
    }
    rig.check_in_memory();
}

fn run(steps: Vec<Step>) -> Met {
    let world = Rc::new(RefCell::new(World {
        rig: Some(Rig::new()),
        steps: steps.into_iter(),
        moments: vec![BTreeMap::new()],
        numbers: Vec::new(),
        depth: 0,
        met: Met::default(),
    }));
    while world.borrow().steps.len() > 0 {
        take_steps(&world, false);
    }
    let world = world.borrow();
    world.rig.as_ref().unwrap().check();
    world.met
}

#[test]
fn a_list_has_a_name_that_gets_another_stream_meanwhile() {
    let stored = [Step::Create(2, None), Step::Collect(0, 1), Step::Sweep(0)];
    // The list has read the store's names, and has not read the stream.
    let begun = [Step::List, Step::Read, Step::Read];
    let replaced = [
        Step::Delete(2),
        Step::Create(2, None),
        Step::Collect(0, 2),
        Step::Read,
    ];
    run([&stored[..], &begun, &replaced].concat());
}

#[test]
fn the_steps_overtake_look_ups() {
    let mut runner = TestRunner::deterministic();
    let (mut overtaken, mut deepest) = (0, 0);
    for _ in 0..100 {
        let steps = prop::collection::vec(step(), 1..200);
        let met = run(steps.new_tree(&mut runner).unwrap().current());
        overtaken += met.overtaken;
        deepest = deepest.max(met.deepest);
    }
    assert!(overtaken > 10 && deepest > 2, "{overtaken}, {deepest}");
}

fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(200),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_look_up_in_flight_finds_what_was_there_and_leaves_what_is(steps in prop::collection::vec(step(), 1..200)) {
        run(steps);
    }
}
