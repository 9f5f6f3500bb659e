//! A repair that is killed can be run again, and then loses exactly what it would have lost without the kill.
//!
//! A first run under strace lists the system calls with which a repair changes the disk. Later runs are killed at a random one of
//! them. A failing round prints its seed, and `ENCKE_CRASH_SEED=<seed> ENCKE_CRASH_ROUNDS=1` repeats it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::base::{Base, Ending};
use super::damage::{Case, Damage, Random};
use super::instances::keyspaces;
use super::judge::{Lost, is_whole_but_for, losses, shortened, text_of};
use super::number;
use super::snapshot::Snapshot;
use crate::rig::{Encke, Ended, command, data_dir, newest_segment, serve, strace_works, traced};

#[test]
fn a_killed_repair_is_finished_by_the_next_one() {
    if !strace_works() {
        return;
    }
    let base = Base::make(1, Ending::Killed);
    let repairs: Vec<Repair> = cases(&base)
        .into_iter()
        .filter_map(|case| Repair::observe(&base, case))
        .collect();
    assert!(repairs.len() >= REPAIRS_MIN, "too few are repaired");
    let first = number("ENCKE_CRASH_SEED").unwrap_or(1);
    let rounds = number("ENCKE_CRASH_ROUNDS").unwrap_or(ROUNDS);
    let (mut killed, mut failures) = (0, Vec::new());
    for seed in first..first + rounds {
        let random = &mut Random::new(seed);
        let repair = &repairs[random.below(repairs.len())];
        let call = &repair.calls[random.below(repair.calls.len())];
        match catch_unwind(AssertUnwindSafe(|| repair.interrupt(&base, call))) {
            Ok(was_killed) => killed += u64::from(was_killed),
            Err(panic) => failures.push(format!(
                "FAILED seed {seed}, {:?}, killed at {call:?}: {}",
                repair.case,
                text_of(&*panic)
            )),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Threads share the work differently in each run, so that some calls have no counterpart.
    assert!(killed * 2 > rounds, "{killed} of {rounds} were killed");
}

/// Damages whose repair changes history, segments or both.
fn cases(base: &Base) -> Vec<Case> {
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
    case: Case,
    lost: Vec<Lost>,
    calls: Vec<Call>,
}

/// The `nth` call of this name by one of the threads; the first is 1.
#[derive(Debug)]
struct Call {
    name: String,
    nth: usize,
}

impl Repair {
    /// Repairs a damaged copy under strace; nothing if the repair is refused.
    fn observe(base: &Base, case: Case) -> Option<Repair> {
        let copy = case.damaged_copy(base);
        let aside = data_dir();
        let trace = aside.path().join("trace");
        let output = trace.to_str().expect("it is text");
        let traced = traced(
            ["-o", output, "-e", &format!("trace={CHANGES}")],
            &repair_of(copy.path()),
        );
        let repaired = Ended::of(&mut { traced });
        if repaired.code == Some(3) {
            return None;
        }
        assert_eq!(repaired.code, Some(0), "{case:?}: {}", repaired.stderr);
        let text = std::fs::read_to_string(&trace).expect("strace writes it");
        let lost = losses(&repaired);
        whole_but_for(&lost, base, copy.path()).expect("it is served after the repair");
        Some(Repair {
            case,
            lost,
            calls: calls(&text),
        })
    }

    /// Kills the repair at a call, and runs it again. Whether it was killed; panics if more is lost or less is named.
    fn interrupt(&self, base: &Base, call: &Call) -> bool {
        let copy = self.case.damaged_copy(base);
        let inject = format!("inject={}:signal=KILL:when={}", call.name, call.nth);
        let traced = traced(["-o", "/dev/null", "-e", &inject], &repair_of(copy.path()));
        let killed = Ended::of(&mut { traced });
        let before = Snapshot::of(copy.path());
        let check = Ended::of(command(&["log", "check", "--quiet"]).arg(copy.path()));
        assert!(matches!(check.code, Some(0 | 1 | 3)), "{check:?}");
        let changes = before.changes(&Snapshot::of(copy.path()));
        assert!(changes.is_empty(), "check changes {changes:?}");
        // Killed before its first or after its last change, there is nothing to go on with.
        if let Err(refused) = whole_but_for(&self.lost, base, copy.path()) {
            assert_eq!(refused.code, Some(3), "{refused:?}");
            let repaired = Ended::of(&mut repair_of(copy.path()));
            let stderr = shortened(&repaired.stderr);
            assert_eq!(repaired.code, Some(0), "{stderr} after {}", refused.stderr);
            for named in losses(&repaired) {
                let mut lost = self.lost.iter();
                let is_within = lost.any(|lost| lost.from <= named.from && named.upto <= lost.upto);
                assert!(is_within, "{} to {} too", named.from, named.upto);
            }
            let served = whole_but_for(&self.lost, base, copy.path());
            served.unwrap_or_else(|refused| panic!("refused after repair: {}", refused.stderr));
        }
        let code = killed.code;
        assert!(matches!(code, None | Some(0)), "{}", killed.stderr);
        code.is_none()
    }
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

/// The calls that a trace lists, each with its place among those of its thread.
fn calls(trace: &str) -> Vec<Call> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some((name, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            continue;
        }
        let nth = counts.entry((thread, name)).or_default();
        *nth += 1;
        calls.push(Call {
            name: name.to_owned(),
            nth: *nth,
        });
    }
    calls
}

/// The calls that change a directory or what is in it.
const CHANGES: &str = "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,link,symlink,fsync,fdatasync,pwrite64,write,\
    ftruncate,fallocate";
/// Kills of a repair, unless `ENCKE_CRASH_ROUNDS` says how many.
const ROUNDS: u64 = 40;
/// At least that many of the damages must be repaired, not refused.
const REPAIRS_MIN: usize = 8;
