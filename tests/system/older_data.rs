//! Data of 0.1.0, which stated nothing about its directory, opens and gets a superblock.
//!
//! `data-0.1.0.tar.gz` holds two directories that 0.1.0 wrote with `--segment 1MiB --body-max 256KiB --order-size 2MiB`: one of a server that
//! was stopped, one of a server that was killed. Each has the streams `a` and `b` with 80 messages of 40,000 bytes, `closed` with one
//! message, and the deleted stream `gone`.

use std::path::Path;
use std::process::Command;

use crate::rig::{
    Call, Encke, Ended, JSON, Snapshot, command, copy_tree, data_dir, path, request, serve,
    strace_works,
};

const FLAGS: [&str; 6] = [
    "--segment",
    "1MiB",
    "--body-max",
    "256KiB",
    "--order-size",
    "2MiB",
];

fn unpack(into: &Path) {
    let archive = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/system/data-0.1.0.tar.gz"
    );
    let tar = Command::new("tar")
        .args(["-xzf", archive, "-C"])
        .arg(into)
        .status();
    assert!(tar.expect("tar runs").success());
}

fn is_whole(encke: &Encke, stream: &str) {
    let messages = encke.messages(stream);
    assert_eq!(messages.len(), 80, "{stream}");
    for (number, message) in messages.iter().enumerate() {
        let message = message.as_str().expect("text");
        assert!(message.starts_with(&format!("{stream} {number} x")));
        assert!(message.len() > 40_000);
    }
}

/// Everything that 0.1.0 had acknowledged.
fn is_all_whole(encke: &Encke) {
    is_whole(encke, "a");
    is_whole(encke, "b");
    assert_eq!(encke.messages("closed"), ["last"]);
    assert_eq!(encke.ask("HEAD", &path("gone"), &[], b"").status, 404);
}

fn check(data: &Path) -> Ended {
    Ended::of(command(&["log", "check"]).arg(data))
}

/// Check and a dry repair find nothing, and change nothing.
fn is_sound_and_stays(data: &Path) {
    let before = Snapshot::of(data);
    for name in ["check", "repair"] {
        let ended = Ended::of(command(&["log", name]).arg(data));
        assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
        let changes = before.changes(&Snapshot::of(data));
        assert!(changes.is_empty(), "{name} changes {changes:?}");
    }
}

#[test]
fn records_of_0_1_0_have_their_times() {
    let root = data_dir();
    unpack(root.path());
    for name in ["clean", "killed"] {
        let encke = Encke::start_in(&root.path().join(name), &FLAGS);
        let target = format!("{}?offset=-1&live=true&times=true", path("a"));
        let mut connection = encke.connect();
        let lines = "Accept: application/x-ndjson";
        connection.send(&request("GET", &target, &[lines], b""));
        assert_eq!(connection.head().status, 200);
        let times = (0..80).map(|_| connection.json_line()["timeMs"].as_u64());
        let times: Vec<u64> = times.map(|time| time.expect("a number")).collect();
        // The archive was made in one go, after 2020 and before now.
        assert!(times.is_sorted(), "{times:?}");
        assert!(times[0] > 1_577_836_800_000, "{times:?}");
        assert!(times[79] < times[0] + 3_600_000, "{times:?}");
    }
}

#[test]
fn data_of_0_1_0_opens_and_is_stated_from_then_on() {
    let root = data_dir();
    unpack(root.path());
    for name in ["clean", "killed"] {
        let data = root.path().join(name);
        is_sound_and_stays(&data);
        for round in 0..2 {
            let encke = Encke::start_in(&data, &FLAGS);
            is_all_whole(&encke);
            assert!(data.join("superblock-0").exists() && data.join("superblock-1").exists());
            if round == 0 {
                encke.create("new");
            }
            let append = encke.ask("POST", &path("new"), &[JSON], b"7");
            assert_eq!(append.status, 204, "{append:?}");
            assert_eq!(encke.numbers("new").len(), round + 1);
            assert_eq!(encke.terminate().code, Some(0));
            let checked = check(&data);
            assert_eq!(checked.code, Some(0), "{name}: {checked:?}");
        }
        // What 0.1.0 served short is refused now.
        std::fs::remove_file(data.join("history/keyspaces/4/current")).expect("it is there");
        let refused = Ended::of(&mut serve(&data, &FLAGS));
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(
            refused.stderr.contains("keyspaces/4/current"),
            "{refused:?}"
        );
    }
}

/// The first start identifies history before it states it. Killed in between, it is repeated.
#[test]
#[ignore = "long: make test-all"]
fn a_first_start_that_is_killed_is_repeated() {
    if !strace_works() {
        return;
    }
    let root = data_dir();
    unpack(root.path());
    let mut between = 0;
    for name in ["clean", "killed"] {
        let original = root.path().join(name);
        let fresh = || {
            let copy = data_dir();
            copy_tree(&original, copy.path());
            copy
        };
        let observed = fresh();
        let (mut calls, ()) = Call::observe(&serve(observed.path(), &FLAGS), |mut traced| {
            Encke::start_by(&mut traced).kill();
        });
        calls.retain(|call| call.name.starts_with("rename") || call.name.contains("sync"));
        calls.sort();
        calls.dedup();
        assert!(calls.len() > 20, "{calls:?}");
        // All of them take minutes.
        let step = match std::env::var_os("ENCKE_CRASH_ROUNDS") {
            Some(_) => 1,
            None => 4,
        };
        for call in calls.into_iter().step_by(step) {
            let copy = fresh();
            let data = copy.path();
            // Threads share the work differently in each run, so that some calls have no counterpart.
            if let Ok(served) = Encke::try_start_by(&mut call.kills(&serve(data, &FLAGS))) {
                served.kill();
            }
            let identified = data.join("history/identity").exists();
            between += u32::from(identified && !data.join("superblock-0").exists());
            is_sound_and_stays(data);
            let encke = Encke::try_start_by(&mut serve(data, &FLAGS));
            let encke = encke.unwrap_or_else(|ended| panic!("{name}, {call:?}: {ended:?}"));
            is_all_whole(&encke);
            assert_eq!(encke.terminate().code, Some(0));
        }
    }
    assert!(between > 4, "{between} kills before the superblock");
}
