//! Standard error that cannot be written to, for example on a full disk: commands work and exit as usual.

use std::path::Path;
use std::process::Command;

use crate::rig::{Encke, Ended, command, data_dir, newest_segment, serve};

/// The command with a standard error that refuses every byte.
fn with_full_stderr(of: &Command) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" 2> /dev/full"])
        .arg(of.get_program())
        .args(of.get_args());
    for (name, value) in of.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("ENCKE_LOG", "debug");
    command
}

fn log(arguments: &[&str], data: &Path) -> Ended {
    let mut log = command(&["log"]);
    Ended::of(&mut with_full_stderr(log.args(arguments).arg(data)))
}

fn serving(data: &Path) -> Ended {
    Ended::of(&mut with_full_stderr(&serve(data, &[])))
}

#[test]
fn a_server_serves() {
    let data = data_dir();
    let encke = Encke::start_by(&mut with_full_stderr(&serve(data.path(), &[])));
    encke.create("s");
    encke.connect().append("s", 1);
    assert_eq!(encke.numbers("s"), [1]);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_directory_that_is_in_use_is_refused_with_its_code() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    assert_eq!(serving(data.path()).code, Some(3));
    for arguments in [&["check"][..], &["dump"], &["repair", "--accept-loss"]] {
        assert_eq!(log(arguments, data.path()).code, Some(3), "{arguments:?}");
    }
}

#[test]
fn a_damaged_directory_is_refused_with_its_code() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    assert_eq!(encke.terminate().code, Some(0));
    let segment = newest_segment(data.path());
    let mut bytes = std::fs::read(&segment).expect("it can be read");
    bytes[..16].fill(0xff);
    std::fs::write(&segment, bytes).expect("it can be written");
    assert_eq!(serving(data.path()).code, Some(3));
    let checked = log(&["check"], data.path());
    assert_eq!(checked.code, Some(1));
    assert!(checked.stdout.contains("damaged"), "{checked:?}");
    assert_eq!(log(&["check"], &data.path().join("nowhere")).code, Some(3));
    let usage = Ended::of(&mut with_full_stderr(&command(&[
        "serve",
        "--no-such-flag",
    ])));
    assert_eq!(usage.code, Some(2));
}
