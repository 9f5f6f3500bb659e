//! A restore that is killed or finds the disk full, at any of its steps: nothing takes its directory for data, and a second one completes it.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::rig::{Call, Encke, Ended, JSON, command, data_dir, path, serve, strace_works};

const STREAMS: [&str; 4] = ["a", "b", "c", "d"];

/// A backup of a server with this number of logs.
fn backup(logs: &str) -> TempDir {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &["--logs", logs]);
    for stream in STREAMS {
        encke.create(stream);
        assert_eq!(encke.ask("POST", &path(stream), &[JSON], b"7").status, 204);
    }
    let made = Ended::of(command(&["log", "backup"]).args([data.path(), backups.path()]));
    assert_eq!(made.code, Some(0), "{made:?}");
    backups
}

fn restore(backups: &Path, into: &Path) -> Command {
    let mut restore = command(&["log", "restore", "--quiet"]);
    restore.args([backups, into]);
    restore
}

fn check_whole(data: &Path, logs: &str) {
    let encke = Encke::start_in(data, &["--logs", logs]);
    for stream in STREAMS {
        assert_eq!(encke.numbers(stream), [7], "{stream}");
    }
    assert_eq!(encke.terminate().code, Some(0));
}

/// Whether the directory is refused. Then every command refuses it and says why.
fn is_refused(data: &Path, logs: &str) -> bool {
    let mut commands: Vec<Command> = ["check", "dump", "repair", "compact"]
        .map(|name| command(&["log", name]))
        .into();
    for command in &mut commands {
        command.arg(data);
    }
    let mut backup = command(&["log", "backup"]);
    backup.args([data, &data.join("backups")]);
    commands.push(backup);
    for flags in [&["--logs", logs][..], &["--logs", logs, "--check"]] {
        commands.push(serve(data, flags));
    }
    let first = Ended::of(&mut commands[0]);
    if first.code == Some(0) {
        return false;
    }
    let says_why = |ended: &Ended| {
        let text = format!("{}{}", ended.stdout, ended.stderr);
        // The second text: the marker is still empty.
        text.contains("is not complete") || text.contains("does not say how many logs")
    };
    for command in &mut commands {
        let ended = Ended::of(command);
        assert_eq!(ended.code, Some(3), "{command:?}: {ended:?}");
        assert!(says_why(&ended), "{command:?}: {ended:?}");
    }
    true
}

#[test]
#[ignore = "long: make test-all"]
fn an_interrupted_restore_is_refused_and_can_be_repeated() {
    if !strace_works() {
        return;
    }
    let step = match std::env::var_os("ENCKE_CRASH_ROUNDS") {
        Some(_) => 1,
        None => 7,
    };
    for logs in ["1", "3"] {
        let backups = backup(logs);
        let observed = data_dir();
        let into = observed.path().join("data");
        let (calls, ended) = Call::observe(&restore(backups.path(), &into), |mut traced| {
            Ended::of(&mut traced)
        });
        assert_eq!(ended.code, Some(0), "{ended:?}");
        check_whole(&into, logs);
        let mut refused = 0;
        for (at, call) in calls.iter().enumerate().step_by(step) {
            let place = data_dir();
            let into = place.path().join("data");
            let restore = || restore(backups.path(), &into);
            let mut interrupted = match at / step % 2 {
                0 => call.kills(&restore()),
                _ => call.finds_no_room(&restore()),
            };
            let ended = Ended::of(&mut interrupted);
            let is_begun = into.exists() && into.read_dir().expect("it is ours").next().is_some();
            if is_begun && !is_refused(&into, logs) {
                check_whole(&into, logs);
                continue;
            }
            refused += u32::from(is_begun);
            assert_ne!(ended.code, Some(0), "{call:?}");
            let again = Ended::of(&mut restore());
            assert_eq!(again.code, Some(0), "{call:?}: {again:?}");
            check_whole(&into, logs);
        }
        assert!(refused > 10, "{refused} of {} calls", calls.len());
    }
}
