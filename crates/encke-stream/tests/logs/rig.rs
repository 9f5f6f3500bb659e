//! Machines over several logs on simulated disks, driven by hand, and the expected content of each log.

use std::collections::BTreeMap;
use std::sync::Arc;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::simulated::SimulatedDisk;
use encke_log::{Log, Options, Reader, StateEntry};
use encke_stream::{
    AckLevel, Append, Command, Create, Data, Fetch, ForkOf, Lifetime, Limits, ListFetch, Loaders,
    LogJournal, Logs, Lookup, Machine, Offset, OrderKind, Outcome, Piece, Refusal, Stream,
    StreamNo, Target, Viewer, Views, restore_all_on,
};

pub(crate) const LOGS: usize = 3;

const NOW_MS: u64 = 1_000;

/// The expected state of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) content: Vec<u8>,
    /// The source of a fork.
    source: Option<String>,
    forks: u32,
    /// Deleted, and existing for its forks.
    kept: bool,
    no: StreamNo,
}

pub(crate) type State = BTreeMap<String, Expected>;

/// A log, its machine, and all states that it may have after a crash.
pub(crate) struct One {
    pub(crate) machine: Machine,
    pub(crate) log: Log<SimulatedDisk>,
    /// The state at the last sync, and after each record since.
    states: Vec<State>,
    /// How many of them are visible; all are written.
    committed: usize,
    /// The batch deletes something.
    deletes: bool,
    /// What the next checkpoint has so far.
    collected: Vec<StateEntry>,
}

impl One {
    fn now(&self) -> &State {
        self.states.last().expect("the first one stays")
    }

    fn visible(&self) -> &State {
        &self.states[self.committed - 1]
    }
}

pub(crate) struct Rig {
    disks: Vec<SimulatedDisk>,
    pub(crate) logs: Vec<One>,
    pub(crate) views: Arc<Views>,
    loaders: Loaders<Reader<SimulatedDisk>>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        let disks: Vec<_> = (0..LOGS as u64).map(SimulatedDisk::new).collect();
        let states = vec![vec![State::new()]; LOGS];
        Rig::open(disks, states)
    }

    /// The process is killed; the disks in `cut` lose power too.
    pub(crate) fn crash(self, cut: [bool; LOGS]) -> Rig {
        let Rig { disks, logs, .. } = self;
        let states = logs.into_iter().zip(cut).map(|(one, cut)| {
            let mut states = one.states;
            states.truncate(one.committed);
            // Written records survive the process.
            states.split_off(if cut { 0 } else { one.committed - 1 })
        });
        let states = states.collect();
        for (disk, cut) in disks.iter().zip(cut) {
            if cut {
                disk.cut_power();
            }
        }
        Rig::open(disks, states)
    }

    /// Opens the logs, each of which must be in one of its states.
    fn open(disks: Vec<SimulatedDisk>, states: Vec<Vec<State>>) -> Rig {
        let options = Options {
            segment_bytes: 1 << 16,
            history: false,
            ..Options::default()
        };
        let limits = Limits::default();
        let Logs { logs, views } = restore_all_on(
            disks.clone(),
            OrderKind::Local,
            &options,
            limits,
            SteadyTime::from_ms(NOW_MS),
        )
        .unwrap();
        let loaders = logs
            .iter()
            .map(|(machine, log)| machine.loader(log.reader()));
        let loaders = Loaders::new(Arc::clone(&views), loaders.collect());
        let logs = logs.into_iter().enumerate().zip(states);
        let logs = logs.map(|((index, (machine, log)), states)| {
            let found = contents(&views, index, &log);
            let state = states.iter().rev().find(|state| readable(state) == found);
            let state = state.unwrap_or_else(|| panic!("log {index}: {found:?}, not {states:?}"));
            One {
                machine,
                log,
                states: vec![state.clone()],
                committed: 1,
                deletes: false,
                collected: Vec::new(),
            }
        });
        let rig = Rig {
            logs: logs.collect(),
            disks,
            views,
            loaders,
        };
        rig.check();
        rig
    }

    /// Each name is in one log, and is found there.
    pub(crate) fn check(&self) {
        let mut all = BTreeMap::new();
        for (index, one) in self.logs.iter().enumerate() {
            for (name, expected) in one.visible() {
                let other = all.insert(name.clone(), index);
                assert_eq!(other, None, "{name} is in two logs, {index} among them");
                let found = self.look(name);
                let stream = found.stream().expect("a stream that was committed");
                assert_eq!(encke_stream::log_of(stream.no), index, "{name}");
                if !expected.kept {
                    assert_eq!(read(&one.log, stream), expected.content, "{name}");
                }
            }
        }
        for name in NAMES {
            if !all.contains_key(*name) {
                assert!(self.look(name).stream().is_none(), "{name} is nowhere");
            }
        }
        assert_eq!(self.views.totals().streams, all.len() as u64);
    }

    fn look(&self, name: &str) -> Lookup {
        let known = self.views.look(name);
        known.unwrap_or_else(|| self.loaders.load(name).unwrap())
    }

    /// Like a shard: the stream is loaded, then the command goes to one of the logs.
    pub(crate) fn apply(&mut self, mut command: Command) -> Outcome {
        let held: Vec<Lookup> = names(&command).map(|name| self.look(name)).collect();
        let index = self.views.log_for(&command);
        if let Command::Create(create) = &mut command {
            create.known = held.clone();
        }
        let asked = Asked::of(&command);
        let one = &mut self.logs[index];
        let mut journal = LogJournal {
            log: &mut one.log,
            now: WallTime::from_ms(NOW_MS),
        };
        let outcome = one
            .machine
            .apply(command, Now::from_ms(NOW_MS), &mut journal);
        drop(held);
        self.judge(index, &asked, &outcome);
        outcome
    }

    /// Checks an outcome against the states, and adds the next state.
    fn judge(&mut self, index: usize, asked: &Asked, outcome: &Outcome) {
        let name = asked.name.as_str();
        // Even if the batch has deleted it: that may be undone.
        let has = |name: &str, one: &One| {
            let mut since = one.states[one.committed - 1..].iter();
            since.any(|state| state.contains_key(name))
        };
        let elsewhere = |name: &str| {
            let mut others = self
                .logs
                .iter()
                .enumerate()
                .filter(|(log, _)| *log != index);
            others.any(|(_, one)| has(name, one))
        };
        let now = self.logs[index].now();
        let mut next = now.clone();
        match (outcome, &asked.what) {
            (Outcome::Created { existed: true, .. }, What::Create(_)) => {
                assert!(
                    now.get(name).is_some_and(|stream| !stream.kept),
                    "{asked:?}"
                );
                return;
            }
            (Outcome::Created { no, .. }, What::Create(source)) => {
                assert!(!now.contains_key(name) && !elsewhere(name), "{asked:?}");
                let mut made = Expected {
                    no: *no,
                    ..Expected::default()
                };
                if let Some(source) = source {
                    let origin = next.get_mut(source).expect("its source");
                    assert!(!origin.kept);
                    origin.forks += 1;
                    made.content = origin.content.clone();
                    made.source = Some(source.clone());
                }
                next.insert(name.into(), made);
            }
            (Outcome::Appended { .. }, What::Append(data)) => {
                let stream = next.get_mut(name).expect("a stream");
                stream.content.extend_from_slice(data);
            }
            (Outcome::Deleted, What::Delete) => {
                delete(&mut next, name);
                self.logs[index].deletes = true;
            }
            (Outcome::Refused(refusal), what) => {
                let source = match what {
                    What::Create(source) => source.as_deref(),
                    _ => None,
                };
                let fits = match refusal {
                    Refusal::NameBusy => elsewhere(name) || source.is_some_and(elsewhere),
                    // The name ended in the batch, so no look-up has asked the other stores for it.
                    Refusal::Evicted => self.is_unknown([Some(name), source]),
                    Refusal::NotFound => !now.contains_key(name),
                    // What another log has not committed yet is unknown.
                    Refusal::SourceNotFound => source.is_some_and(|source| {
                        let logs = self.logs.iter().enumerate();
                        let mut others = logs.filter(|(log, _)| *log != index);
                        !now.contains_key(source)
                            && !others.any(|(_, one)| one.visible().contains_key(source))
                    }),
                    Refusal::Gone | Refusal::NameKept => now[name].kept,
                    Refusal::SourceGone => source.is_some_and(|source| now[source].kept),
                    Refusal::Differs { .. } => now[name].source.as_deref() != source,
                    _ => false,
                };
                assert!(fits, "{asked:?} is refused with {refusal:?}");
                return;
            }
            (outcome, _) => panic!("{asked:?}: {outcome:?}"),
        }
        self.logs[index].states.push(next);
    }

    /// Whether one of the names can only be found in the store of a log.
    fn is_unknown(&self, names: [Option<&str>; 2]) -> bool {
        let mut names = names.into_iter().flatten();
        names.any(|name| (0..LOGS).any(|log| self.views.log(log).look(name).is_none()))
    }

    /// Writes and publishes a log's batch. Syncs it if asked, or if it must be synced.
    pub(crate) fn commit(&mut self, index: usize, sync: bool) {
        let one = &mut self.logs[index];
        one.log.write().unwrap();
        one.committed = one.states.len();
        if sync || std::mem::take(&mut one.deletes) {
            one.log.sync().unwrap();
            one.states.drain(..one.committed - 1);
            one.committed = 1;
        }
        one.log.publish();
        one.machine.publish(one.log.next_sequence() - 1);
    }

    pub(crate) fn abandon(&mut self, index: usize) {
        let one = &mut self.logs[index];
        one.machine.abandon();
        one.log.abandon();
        one.states.truncate(one.committed);
        one.deletes = false;
    }

    /// Checkpoints a log and evicts all streams that are not in use.
    pub(crate) fn evict(&mut self, index: usize) {
        self.collect(index, 1_000);
        self.sweep(index);
    }

    /// Takes up to that many changes for a checkpoint of a log, which is made when it has all.
    pub(crate) fn collect(&mut self, index: usize, count_max: usize) {
        self.commit(index, true);
        let one = &mut self.logs[index];
        let committed = one.log.next_sequence() - 1;
        let entries = &mut one.collected;
        if one.machine.take_changed(committed, count_max, entries) {
            for ended in one.machine.take_over() {
                one.log.forget(ended);
            }
            one.log.checkpoint(std::mem::take(entries));
            one.machine.stored();
        }
    }

    /// Evicts all streams of a log that may leave memory.
    pub(crate) fn sweep(&mut self, index: usize) {
        let machine = &mut self.logs[index].machine;
        for _ in 0..Machine::sweeps() {
            machine.sweep(true);
        }
    }

    /// The stream of each name, as readers see it: its number, and whether it exists for its forks only.
    pub(crate) fn holders(&self) -> BTreeMap<String, (StreamNo, bool)> {
        let all = self.logs.iter().flat_map(|one| one.visible());
        all.map(|(name, stream)| (name.clone(), (stream.no, stream.kept)))
            .collect()
    }

    /// What is in memory of a name is right: its stream, or that it has none. Nothing is loaded for this.
    pub(crate) fn check_in_memory(&self) {
        let holders = self.holders();
        for name in NAMES {
            let expected = holders.get(*name).map(|(no, _)| *no);
            if let Some(found) = self.views.look(name) {
                assert_eq!(found.stream().map(|stream| stream.no), expected, "{name}");
            }
            if let Some(found) = self.views.find(name) {
                assert_eq!(Some(found.no), expected, "{name}");
            }
        }
        assert_eq!(self.views.totals().streams, holders.len() as u64);
    }
}

pub(crate) const NAMES: &[&str] = &[
    "a",
    "b",
    "c",
    "d",
    "e",
    "users/1",
    "users/2",
    "pool/x/results",
];

pub(crate) fn create(name: &str, source: Option<&str>) -> Command {
    Command::Create(Create {
        lifetime: Some(Lifetime::Unbounded),
        fork: source.map(|source| ForkOf {
            source: source.into(),
            at: None,
        }),
        ack: Some(AckLevel::Written),
        ..Create::new(name)
    })
}

pub(crate) fn append(name: &str, data: &[u8]) -> Command {
    Command::Append(Append {
        data: Data {
            bytes: data.into(),
            units: data.len() as u32,
        },
        ..Append::to(Target::Named(name.into()))
    })
}

pub(crate) fn remove(name: &str) -> Command {
    Command::Delete {
        target: Target::Named(name.into()),
        ack: None,
    }
}

/// The first streams of all logs by name.
pub(crate) fn list() -> ListFetch {
    ListFetch {
        prefix: "".into(),
        behind: None,
        count_max: 100,
        viewer: Viewer::All,
        now: Now::from_ms(NOW_MS),
    }
}

/// What the test needs of a command after it is applied.
#[derive(Debug)]
struct Asked {
    name: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Create(Option<String>),
    Append(Vec<u8>),
    Delete,
}

impl Asked {
    fn of(command: &Command) -> Asked {
        let what = match command {
            Command::Create(create) => {
                What::Create(create.fork.as_ref().map(|fork| fork.source.to_string()))
            }
            Command::Append(append) => What::Append(append.data.bytes.clone()),
            Command::Truncate { .. }
            | Command::Delete { .. }
            | Command::Fleet(_)
            | Command::Series(_) => What::Delete,
        };
        let name = names(command).next().expect("a name").to_owned();
        Asked { name, what }
    }
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    let source = match command {
        Command::Create(create) => create.fork.as_ref().map(|fork| &*fork.source),
        _ => None,
    };
    std::iter::once(command.name()).chain(source)
}

fn delete(state: &mut State, name: &str) {
    let mut next = Some(name.to_owned());
    while let Some(name) = next.take() {
        let stream = state.get_mut(&name).expect("a stream");
        if stream.forks > 0 {
            stream.kept = true;
            return;
        }
        let gone = state.remove(&name).expect("it was there");
        if let Some(source) = gone.source {
            let origin = state.get_mut(&source).expect("its source");
            origin.forks -= 1;
            next = (origin.forks == 0 && origin.kept).then_some(source);
        }
    }
}

/// The names in a log, and their readable content.
fn contents(
    views: &Views,
    index: usize,
    log: &Log<SimulatedDisk>,
) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    views.log(index).for_each(&mut |stream| {
        let live = stream.facts().life == encke_stream::Life::Live;
        found.insert(stream.name.to_string(), live.then(|| read(log, stream)));
    });
    found
}

fn readable(state: &State) -> BTreeMap<String, Option<Vec<u8>>> {
    let streams = state.iter();
    streams
        .map(|(name, stream)| {
            let content = (!stream.kept).then(|| stream.content.clone());
            (name.clone(), content)
        })
        .collect()
}

fn read(log: &Log<SimulatedDisk>, stream: &Stream) -> Vec<u8> {
    let fetch = Fetch::new(stream, Offset::START, stream.facts().tail, 1 << 20);
    let piece = Piece::read(&log.reader(), &fetch).unwrap();
    assert!(!piece.more);
    let items = piece.items();
    items
        .flat_map(|item| item.data[item.skip as usize..item.take as usize].to_vec())
        .collect()
}
