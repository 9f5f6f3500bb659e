//! An import that follows copies what the source gets meanwhile, and ends when it is told to or when the streams end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use encke_import::{CopyOutcome, Import, ImportReport};

use crate::faulty_server::Manners;
use crate::rig::{FLAWLESS, Rig, eventually};

struct Following {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<ImportReport>,
}

fn follow(rig: &Rig, names: &[&str]) -> Following {
    let mut settings = rig.settings(names);
    settings.follow = true;
    let import = Import::new(settings).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || import.run(&stopped));
    Following { stop, thread }
}

impl Following {
    fn stop(self) -> ImportReport {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn number(number: u32) -> Vec<Vec<u8>> {
    vec![number.to_string().into_bytes()]
}

#[test]
fn what_the_source_had_when_it_is_stopped_is_copied() {
    let rig = Rig::flawless();
    for name in ["a", "b"] {
        rig.source.create(name, "application/json");
        (0..20).for_each(|at| rig.source.append(name, number(at)));
    }
    let following = follow(&rig, &["a", "b"]);
    for at in 20..40 {
        rig.source.append("a", number(at));
        let wanted = rig.source.held("a").unwrap().contents();
        eventually("what the source gets is copied", || {
            rig.destination
                .held("a")
                .is_some_and(|held| held.contents() == wanted)
        });
    }
    // Nothing waits for these: they are there when it ends all the same.
    (20..60).for_each(|at| rig.source.append("b", number(at)));
    let report = following.stop();
    assert!(report.complete, "{report:?}");
    rig.check("a");
    rig.check("b");
    // Each append while it was followed is a position of the map.
    let map = crate::rig::map(rig.state.path(), "a");
    let given = rig.source.held("a").unwrap().offsets();
    assert!(
        given[21..]
            .iter()
            .all(|offset| map.iter().any(|(source, _)| source == offset)),
        "{map:?}"
    );
}

#[test]
fn it_ends_by_itself_when_all_streams_are_closed() {
    let rig = Rig::flawless();
    rig.source.create("a", "text/plain");
    rig.source.create("b", "text/plain");
    rig.source.change("b", |held| held.closed = true);
    let following = follow(&rig, &["a", "b"]);
    rig.source.append("a", vec![b"last".to_vec()]);
    rig.source.change("a", |held| held.closed = true);
    let report = following.thread.join().unwrap();
    assert!(report.complete, "{report:?}");
    assert!(
        report
            .of_streams
            .iter()
            .all(|stream| stream.outcome == CopyOutcome::Closed)
    );
    rig.check("a");
    rig.check("b");
}

#[test]
fn faults_while_it_follows_cost_nothing() {
    let faulty = |seed| Manners {
        seed,
        faults_of_100: 15,
        ..FLAWLESS
    };
    let rig = Rig::start(faulty(7), faulty(8));
    rig.source.create("a", "application/json");
    let following = follow(&rig, &["a"]);
    for at in 0..60 {
        rig.source.append("a", number(at));
        if at % 4 == 0 {
            let tail = rig.source.held("a").unwrap().contents();
            eventually("it is copied", || {
                rig.destination
                    .held("a")
                    .is_some_and(|held| held.contents() == tail)
            });
        }
    }
    let report = following.stop();
    assert!(report.complete, "{report:?}");
    rig.check("a");
}

#[test]
fn a_stream_that_is_deleted_is_a_failure_and_others_go_on() {
    let rig = Rig::flawless();
    for name in ["a", "b"] {
        rig.source.create(name, "text/plain");
        rig.source.append(name, vec![b"x".to_vec()]);
    }
    let following = follow(&rig, &["a", "b"]);
    eventually("both are copied", || {
        let has = |name: &str| {
            rig.destination
                .held(name)
                .is_some_and(|held| !held.records.is_empty())
        };
        has("a") && has("b")
    });
    rig.source.delete("a");
    rig.source.append("b", vec![b"y".to_vec()]);
    eventually("the other goes on", || {
        rig.destination
            .held("b")
            .is_some_and(|held| held.contents() == b"xy")
    });
    let report = following.stop();
    let failure = report.of_streams[0].failure().unwrap();
    assert!(
        failure.contains("404") || failure.contains("no such stream"),
        "{failure}"
    );
    assert_eq!((report.failed, report.complete), (1, false));
    rig.check("b");
}
