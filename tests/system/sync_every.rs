//! `--sync-every` bounds which records below level `synced` a power cut can take, and costs nothing when there is nothing to
//! sync. The tests observe writes and syncs with strace.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::rig::{
    Encke, JSON, PATIENCE, SetWhenDropped, data_dir, eventually, first_segment, path, serve,
    strace_works, traced,
};

/// Records are longer than this, marks that say all is durable are shorter.
const RECORD_BYTES_MIN: u64 = 300;

/// What the log asked of its file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Write { bytes: u64 },
    Sync,
}

/// The command under strace, which notes what is done to the first segment.
fn noted(notes: &Path, data: &Path, flags: &[&str]) -> Command {
    let data = data.canonicalize().expect("it is there");
    let segment = first_segment(&data);
    let how = ["-ttt", "-e", "trace=pwrite64,fdatasync", "-o"].map(OsStr::new);
    let files = [notes.as_os_str(), OsStr::new("-P"), segment.as_os_str()];
    traced(how.into_iter().chain(files), &serve(&data, flags))
}

/// What was noted: when each call began, in seconds.
fn calls(notes: &PathBuf) -> Vec<(f64, Call)> {
    let notes = std::fs::read_to_string(notes).expect("strace writes it");
    let call = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let at = words.next()?.parse().ok()?;
        let call = words.next()?;
        if call.starts_with("fdatasync(") {
            return Some((at, Call::Sync));
        }
        // Its length is the last argument but one.
        let arguments = call.starts_with("pwrite64(").then_some(line)?;
        let bytes = arguments.rsplit(", ").nth(1)?.parse().expect("a length");
        Some((at, Call::Write { bytes }))
    };
    notes.lines().filter_map(call).collect()
}

fn body() -> String {
    format!("\"{}\"", "x".repeat(2 * RECORD_BYTES_MIN as usize))
}

/// For each record that was written, how long it took until a sync of it began; none if none did.
fn ages(calls: &[(f64, Call)]) -> Vec<Option<f64>> {
    let mut ages = Vec::new();
    for (number, (at, call)) in calls.iter().enumerate() {
        if matches!(call, Call::Write { bytes } if *bytes > RECORD_BYTES_MIN) {
            let mut later = calls[number..].iter();
            let sync = later.find(|(_, call)| *call == Call::Sync);
            ages.push(sync.map(|(sync, _)| sync - at));
        }
    }
    ages
}

/// For each sync of records, the age of the oldest one.
fn oldest_ages(calls: &[(f64, Call)]) -> Vec<f64> {
    let mut oldest = Vec::new();
    let mut written = None;
    for (at, call) in calls {
        match call {
            Call::Write { bytes } if *bytes > RECORD_BYTES_MIN => {
                written.get_or_insert(*at);
            }
            Call::Write { .. } => {}
            Call::Sync => oldest.extend(written.take().map(|written| at - written)),
        }
    }
    oldest
}

/// No sync has nothing to sync.
fn syncs_have_something_to_do(calls: &[(f64, Call)]) {
    for pair in calls.windows(2) {
        let syncs = pair.iter().filter(|(_, call)| *call == Call::Sync);
        assert!(syncs.count() < 2, "{pair:?}");
    }
}

#[test]
fn what_is_acknowledged_early_is_synced_in_time_and_idleness_costs_nothing() {
    if !strace_works() {
        return;
    }
    for (server, stream) in [
        ("written", "written"),
        ("accepted", "accepted"),
        ("accepted", "written"),
        ("synced", "written"),
        ("synced", "accepted"),
    ] {
        let data = data_dir();
        let notes = data_dir();
        let notes = notes.path().join("notes");
        let flags = ["--ack", server, "--sync-every", "300ms"];
        let encke = Encke::start_by(&mut noted(&notes, data.path(), &flags));
        let level = format!("Encke-Ack: {stream}");
        let made = encke.ask("PUT", &path("s"), &[JSON, &level], b"");
        assert_eq!(made.status, 201, "{made:?}");
        let setting = format!("{stream} on {server}");
        // The load never rests, so that nothing is synced because it does. On a busy machine a sync may come late, so one in
        // time is enough; without the setting none would come within a second.
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut connection = encke.connect();
                while !over.load(Ordering::Relaxed) {
                    let answer = connection.ask("POST", &path("s"), &[JSON], body().as_bytes());
                    assert_eq!(answer.status, 204, "{answer:?}");
                }
            });
            let ends = SetWhenDropped(&over);
            let begun = Instant::now();
            let in_time = || oldest_ages(&calls(&notes)).iter().any(|age| *age < 0.9);
            // A busy machine takes its time for these.
            let are_enough = || ages(&calls(&notes)).len() > 10;
            let is_over = || in_time() && are_enough();
            while !is_over() && begun.elapsed() < PATIENCE && !load.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(ends);
            assert!(in_time(), "{setting}: never synced in time");
            assert!(are_enough(), "{setting}: too few writes");
        });
        eventually("all is synced", || {
            let ages = ages(&calls(&notes));
            !ages.is_empty() && ages.iter().all(Option::is_some)
        });
        // And then nothing happens any more.
        let mut at_rest = calls(&notes);
        eventually("it rests", || {
            std::thread::sleep(Duration::from_millis(500));
            let before = std::mem::replace(&mut at_rest, calls(&notes));
            before == at_rest
        });
        syncs_have_something_to_do(&at_rest);
        encke.kill();
    }
}

#[test]
fn a_short_interval_holds_when_nothing_follows() {
    if !strace_works() {
        return;
    }
    for level in ["written", "accepted"] {
        let data = data_dir();
        let notes = data_dir();
        let notes = notes.path().join("notes");
        let flags = ["--ack", level, "--sync-every", "1ms"];
        let encke = Encke::start_by(&mut noted(&notes, data.path(), &flags));
        encke.create("s");
        let mut connection = encke.connect();
        // If records were synced only when the log falls idle, none would be so soon.
        let mut records = 0;
        eventually("a record is synced within 10 ms", || {
            let answer = connection.ask("POST", &path("s"), &[JSON], body().as_bytes());
            assert_eq!(answer.status, 204, "{answer:?}");
            records += 1;
            eventually("the record is synced", || {
                let ages = ages(&calls(&notes));
                ages.len() == records && ages.iter().all(Option::is_some)
            });
            let last = ages(&calls(&notes)).pop().flatten();
            last.is_some_and(|seconds| seconds < 0.01)
        });
        syncs_have_something_to_do(&calls(&notes));
        encke.kill();
    }
}
