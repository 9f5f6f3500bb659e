//! Several logs: after any creations, forks, deletions and crashes, a name has one stream in one log, and each log has
//! what its disk has.

#![allow(clippy::unwrap_used, reason = "a test that fails should say so")]

mod in_flight;
mod rig;

use encke_stream::{Outcome, Refusal, home, log_of};
use proptest::prelude::*;

use rig::{LOGS, NAMES, Rig, append, create, remove};

#[derive(Clone, Debug)]
enum Step {
    Create(usize, Option<usize>),
    Append(usize, u8),
    Delete(usize),
    Commit(usize, bool),
    Abandon(usize),
    Evicted(usize),
    Crash([bool; LOGS]),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        6 => (name.clone(), proptest::option::of(name.clone())).prop_map(|(name, source)| Step::Create(name, source)),
        6 => (name.clone(), any::<u8>()).prop_map(|(name, byte)| Step::Append(name, byte)),
        4 => name.prop_map(Step::Delete),
        5 => (0..LOGS, any::<bool>()).prop_map(|(log, sync)| Step::Commit(log, sync)),
        1 => (0..LOGS).prop_map(Step::Abandon),
        1 => (0..LOGS).prop_map(Step::Evicted),
        1 => any::<[bool; LOGS]>().prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_name_has_one_stream_in_one_log(steps in prop::collection::vec(step(), 1..100)) {
        let mut rig = Rig::new();
        for step in steps {
            match step {
                Step::Create(name, source) => {
                    rig.apply(create(NAMES[name], source.map(|source| NAMES[source])));
                }
                Step::Append(name, byte) => {
                    rig.apply(append(NAMES[name], &[byte]));
                }
                Step::Delete(name) => {
                    rig.apply(remove(NAMES[name]));
                }
                Step::Commit(log, sync) => {
                    rig.commit(log, sync);
                    rig.check();
                }
                Step::Abandon(log) => rig.abandon(log),
                Step::Evicted(log) => {
                    rig.evict(log);
                    rig.check();
                }
                Step::Crash(cut) => rig = rig.crash(cut),
            }
        }
    }
}

/// A name whose home is that log.
fn name_in(log: usize) -> String {
    let mut names = (0..).map(|number| format!("n{number}"));
    names.find(|name| home(name, LOGS) == log).unwrap()
}

#[test]
fn a_fork_lives_in_its_sources_log_and_is_found_there() {
    let mut rig = Rig::new();
    let (source, fork) = (name_in(1), name_in(2));
    rig.apply(create(&source, None));
    rig.apply(append(&source, b"one"));
    rig.commit(1, true);
    rig.apply(create(&fork, Some(&source)));
    rig.commit(1, true);
    rig.apply(append(&fork, b"two"));
    rig.commit(1, true);
    // A stray, evicted and found again, also after a restart.
    rig.evict(1);
    rig.check();
    let rig = rig.crash([true; LOGS]);
    let found = rig.views.find(&fork).unwrap();
    assert_eq!((log_of(found.no), found.name.as_ref()), (1, &*fork));
    assert_eq!(
        rig.views
            .look(&source)
            .unwrap()
            .stream()
            .map(|s| log_of(s.no)),
        Some(1)
    );
}

#[test]
fn two_logs_never_give_one_name_at_once() {
    let mut rig = Rig::new();
    let (source, name) = (name_in(1), name_in(2));
    rig.apply(create(&source, None));
    rig.commit(1, true);
    // The fork is decided and not committed: no reader sees it yet, and no other stream gets its name.
    let forked = rig.apply(create(&name, Some(&source)));
    assert!(matches!(forked, Outcome::Created { existed: false, .. }));
    let refused = rig.apply(create(&name, None));
    assert_eq!(refused, Outcome::Refused(Refusal::NameBusy));
    // After an undo, other logs can give the name.
    rig.abandon(1);
    let created = rig.apply(create(&name, None));
    assert!(
        matches!(created, Outcome::Created { existed: false, .. }),
        "{created:?}"
    );
    let refused = rig.apply(create(&name, Some(&source)));
    assert_eq!(refused, Outcome::Refused(Refusal::NameBusy));
    rig.commit(2, false);
    rig.check();
}

#[test]
fn what_is_refused_claims_no_name() {
    let mut rig = Rig::new();
    let name = name_in(2);
    // The source does not exist, so the fork is not created. Its name's home has judged it.
    let refused = rig.apply(create(&name, Some("none")));
    assert_eq!(refused, Outcome::Refused(Refusal::SourceNotFound));
    let source = name_in(0);
    rig.apply(create(&source, None));
    rig.commit(0, true);
    let forked = rig.apply(create(&name, Some(&source)));
    assert!(
        matches!(forked, Outcome::Created { existed: false, .. }),
        "{forked:?}"
    );
}
