//! A data directory that was damaged, restored in part or copied wrongly is served whole or not at all.
//!
//! Each case takes a copy of a sound directory, damages one file or directory of it, and tries everything that an operator
//! would: `log check`, a dry `log repair`, `serve`, and `log repair --accept-loss` if it is refused (`judge.rs`). The cases are
//! all paths with all kinds of damage, in a random order. A failing one says its seed, and
//! `ENCKE_CRASH_SEED=<seed> ENCKE_CRASH_ROUNDS=1` repeats it; `ENCKE_CRASH_ROUNDS` says how many cases there are for each of the
//! tables, at most all of them.

mod base;
mod damage;
mod instances;
mod interrupted;
mod judge;
mod live_copy;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Base, Ending};
use damage::{Case, Cases};
use judge::judge;

#[test]
#[ignore = "long: make test-all"]
fn one_log_after_a_clean_stop() {
    table(1, Ending::Clean);
}

#[test]
#[ignore = "long: make test-all"]
fn one_log_after_a_kill() {
    table(1, Ending::Killed);
}

#[test]
#[ignore = "long: make test-all"]
fn three_logs_after_a_clean_stop() {
    table(3, Ending::Clean);
}

#[test]
#[ignore = "long: make test-all"]
fn three_logs_after_a_kill() {
    table(3, Ending::Killed);
}

/// Judges cases of one base directory.
fn table(logs: usize, ending: Ending) {
    let base = Base::make(logs, ending);
    let first = number("ENCKE_CRASH_SEED").unwrap_or(1);
    let cases = Cases::of(&base);
    let rounds = number("ENCKE_CRASH_ROUNDS").unwrap_or(CASES);
    let end = first + rounds.min(cases.len());
    let kinds = Mutex::new(BTreeSet::new());
    let next = AtomicU64::new(first);
    let sound = Case::sound();
    let of_sound = judge(&base, &sound);
    let of_sound = of_sound
        .iter()
        .map(|what| description(&base, 0, &sound, what));
    let failures = Mutex::new(of_sound.collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let (kind, case) = cases.case(seed);
                    kinds.lock().expect("no thread panics with it").insert(kind);
                    let of_case = judge(&base, &case);
                    let mut failures = failures.lock().expect("no thread panics with it");
                    failures.extend(
                        of_case
                            .iter()
                            .map(|what| description(&base, seed, &case, what)),
                    );
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panics with it");
    let kinds = kinds.into_inner().expect("no thread panics with it");
    eprintln!("{}: {} cases of {}", base.name, end - first, cases.len());
    assert!(
        failures.is_empty(),
        "{} failures in {} cases:\n{}",
        failures.len(),
        end - first,
        failures.join("\n")
    );
    if end - first >= CASES {
        assert!(cases.kinds().eq(kinds), "not every kind of damage occurred");
    }
}

fn description(base: &Base, seed: u64, case: &Case, what: &str) -> String {
    let (path, damage) = (case.path.display(), &case.damage);
    format!(
        "FAILED seed {seed}, {}, {path} {damage:?}: {what}",
        base.name
    )
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Cases of each table, unless `ENCKE_CRASH_ROUNDS` says how many; `make crash` tries all.
const CASES: u64 = 30;
/// Cases that are tried at once.
const THREADS: usize = 2;
