//! A repair that is killed can be run again, and then loses exactly what it would have lost without the kill.
//!
//! A first run under strace lists the system calls with which a repair changes the disk. Later runs are killed at a random one of
//! them. After it, `serve` is tried first with even seeds, and the next repair with odd ones. A failing round prints its seed, and
//! `ENCKE_CRASH_SEED=<seed> ENCKE_CRASH_ROUNDS=1` repeats it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::base::{Base, Ending};
use super::damage::{Case, Damage, Random};
use super::instances::keyspaces;
use super::judge::{Lost, is_whole_but_for, losses, shortened, text_of};
use super::number;
use crate::rig::{
    Call, Encke, Ended, Snapshot, command, copy_tree, data_dir, newest_segment, serve, strace_works,
};

#[test]
#[ignore = "long: make test-all"]
fn a_killed_repair_is_finished_by_the_next_one() {
    if !strace_works() {
        return;
    }
    let base = Base::make(1, Ending::Killed);
    let damages = damages(&base).into_iter().map(|case| vec![case]);
    killed_repairs(&base, damages.collect(), ROUNDS, REPAIRS_MIN);
}

/// The logs are repaired one after the other, so that a kill leaves some repaired and others not.
#[test]
#[ignore = "long: make test-all"]
fn a_killed_repair_of_several_logs_is_finished_by_the_next_one() {
    if !strace_works() {
        return;
    }
    let base = Base::make(3, Ending::Killed);
    let newest = |log: &str| {
        let segment = newest_segment(&base.data.path().join(log));
        let path = segment.strip_prefix(base.data.path());
        path.expect("it is in the directory").to_owned()
    };
    let case = |path, damage| Case { path, damage };
    let several = vec![
        vec![
            case(newest("log-0"), Damage::Removed),
            case(newest("log-1"), Damage::Zeroed(100)),
            case(newest("log-2"), Damage::Removed),
        ],
        vec![
            case(newest("log-0"), Damage::Zeroed(100)),
            case(PathBuf::from("log-1/history/version"), Damage::Removed),
            case(newest("log-2"), Damage::Zeroed(20_000)),
        ],
    ];
    killed_repairs(&base, several, ROUNDS_OF_SEVERAL, 2);
}

/// Kills repairs of these damages at random calls. Each entry is damaged at all of its places; at least `repairs_min` of them are
/// repaired, not refused.
fn killed_repairs(base: &Base, damages: Vec<Vec<Case>>, rounds: u64, repairs_min: usize) {
    let repairs: Vec<Repair> = damages
        .into_iter()
        .filter_map(|cases| Repair::observe(base, cases))
        .collect();
    assert!(repairs.len() >= repairs_min, "too few are repaired");
    let first = number("ENCKE_CRASH_SEED").unwrap_or(1);
    let rounds = number("ENCKE_CRASH_ROUNDS").map_or(rounds, |rounds| rounds.min(ROUNDS_MAX));
    let (mut killed, mut failures) = (0, Vec::new());
    for seed in first..first + rounds {
        let random = &mut Random::new(seed);
        let repair = &repairs[random.below(repairs.len())];
        let call = &repair.calls[random.below(repair.calls.len())];
        let serve_first = seed.is_multiple_of(2);
        let interrupted = AssertUnwindSafe(|| repair.interrupt(base, call, serve_first));
        match catch_unwind(interrupted) {
            Ok(was_killed) => killed += u64::from(was_killed),
            Err(panic) => failures.push(format!(
                "FAILED seed {seed}, {:?}, killed at {call:?}: {}",
                repair.cases,
                text_of(&*panic)
            )),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Threads share the work differently in each run, so that some calls have no counterpart.
    let enough = rounds < ROUNDS_OF_SEVERAL || killed * 2 > rounds;
    assert!(enough, "{killed} of {rounds} were killed");
}

/// Damages whose repair changes history, segments or both.
fn damages(base: &Base) -> Vec<Case> {
    let data = base.data.path();
    let relative = |path: PathBuf| {
        let path = path.strip_prefix(data);
        path.expect("it is in the directory").to_owned()
    };
    let mut segments: Vec<PathBuf> = entries(data)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "segment"))
        .collect();
    segments.sort();
    let newest = newest_segment(data);
    let half = newest.metadata().expect("it is there").len() / 2;
    let middle = segments[segments.len() / 2].clone();
    let tables = keyspaces(base).into_iter();
    let mut tables: Vec<PathBuf> = tables
        .flat_map(|keyspace| entries(&data.join(keyspace).join("tables")))
        .collect();
    tables.sort_by_key(|table| table.metadata().expect("it is there").len());
    let table = tables.pop().expect("history has tables");
    let table_bytes = table.metadata().expect("it is there").len();
    let mut all = vec![
        (relative(segments[0].clone()), Damage::Removed),
        (relative(middle.clone()), Damage::Removed),
        (relative(middle), Damage::Zeroed(half / 4)),
        (relative(newest.clone()), Damage::Removed),
        (relative(newest), Damage::Zeroed(100)),
        (relative(table.clone()), Damage::Zeroed(table_bytes / 2)),
        (relative(table), Damage::Removed),
        (PathBuf::from("history"), Damage::Removed),
    ];
    all.extend(
        keyspaces(base)
            .into_iter()
            .map(|path| (path, Damage::Removed)),
    );
    all.into_iter()
        .map(|(path, damage)| Case { path, damage })
        .collect()
}

/// What a directory holds; nothing if it is none.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries
        .map(|entry| entry.expect("it can be read").path())
        .collect()
}

/// A repair that came to its end.
struct Repair {
    cases: Vec<Case>,
    lost: Vec<Lost>,
    calls: Vec<Call>,
}

impl Repair {
    /// Repairs a damaged copy under strace; nothing if the repair is refused.
    fn observe(base: &Base, cases: Vec<Case>) -> Option<Repair> {
        let copy = damaged_copy(base, &cases);
        let repair = repair_of(copy.path());
        let (calls, repaired) = Call::observe(&repair, |mut traced| Ended::of(&mut traced));
        if repaired.code == Some(3) {
            return None;
        }
        assert_eq!(repaired.code, Some(0), "{cases:?}: {}", repaired.stderr);
        let lost = losses(&repaired);
        whole_but_for(&lost, base, copy.path()).expect("it is served after the repair");
        Some(Repair { cases, lost, calls })
    }

    /// Kills the repair at a call, and runs it again. Whether it was killed; panics if more is lost or less is named.
    fn interrupt(&self, base: &Base, call: &Call, serve_first: bool) -> bool {
        let copy = damaged_copy(base, &self.cases);
        let killed = Ended::of(&mut call.kills(&repair_of(copy.path())));
        let before = Snapshot::of(copy.path());
        let check = Ended::of(command(&["log", "check", "--quiet"]).arg(copy.path()));
        assert!(matches!(check.code, Some(0 | 1 | 3)), "{check:?}");
        let changes = before.changes(&Snapshot::of(copy.path()));
        assert!(changes.is_empty(), "check changes {changes:?}");
        let served = if serve_first {
            // Killed before its first or after its last change, there is nothing to go on with.
            whole_but_for(&self.lost, base, copy.path()).or_else(|refused| {
                assert_eq!(refused.code, Some(3), "{refused:?}");
                self.finish(copy.path(), &refused.stderr);
                whole_but_for(&self.lost, base, copy.path())
            })
        } else {
            self.finish(copy.path(), "a kill");
            whole_but_for(&self.lost, base, copy.path())
        };
        served.unwrap_or_else(|refused| panic!("refused after repair: {}", refused.stderr));
        let code = killed.code;
        assert!(matches!(code, None | Some(0)), "{}", killed.stderr);
        code.is_none()
    }

    /// Runs the repair again. It names no loss that the first run did not name.
    fn finish(&self, data: &Path, after: &str) {
        let repaired = Ended::of(&mut repair_of(data));
        let stderr = shortened(&repaired.stderr);
        assert_eq!(repaired.code, Some(0), "{stderr} after {after}");
        for named in losses(&repaired) {
            let is_lost = |sequence: u64| {
                let mut lost = self.lost.iter().filter(|lost| lost.log == named.log);
                lost.any(|lost| (lost.from..=lost.upto).contains(&sequence))
            };
            let is_within = (named.from..=named.upto).all(is_lost);
            assert!(is_within, "{} to {} too", named.from, named.upto);
        }
    }
}

/// A copy of the data directory with all of these damages.
fn damaged_copy(base: &Base, cases: &[Case]) -> tempfile::TempDir {
    let copy = data_dir();
    copy_tree(base.data.path(), copy.path());
    for case in cases {
        case.damage(base, copy.path());
    }
    copy
}

/// Serves a directory, and compares it with what was acknowledged; how it was refused.
fn whole_but_for(lost: &[Lost], base: &Base, data: &Path) -> Result<(), Ended> {
    let flags = base.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Encke::try_start_by(&mut serve(data, &flags))?;
    is_whole_but_for(lost, &server, base);
    assert_eq!(server.terminate().code, Some(0));
    Ok(())
}

fn repair_of(data: &Path) -> std::process::Command {
    let mut repair = command(&["log", "repair", "--accept-loss", "--json"]);
    repair.arg(data);
    repair
}

/// Kills of a repair, unless `ENCKE_CRASH_ROUNDS` says how many.
const ROUNDS: u64 = 40;
/// The same for several logs.
const ROUNDS_OF_SEVERAL: u64 = 12;
/// The most of each, whatever `ENCKE_CRASH_ROUNDS` says: a round is a repair, its kill, and a complete check of what follows.
const ROUNDS_MAX: u64 = 300;
/// At least that many of the damages must be repaired, not refused.
const REPAIRS_MIN: usize = 8;
