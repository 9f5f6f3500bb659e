//! Data of 0.1.0, which stated nothing about its directory, opens and gets a superblock.
//!
//! `data-0.1.0.tar.gz` holds two directories that 0.1.0 wrote with `--segment 1MiB --body-max 256KiB --order-size 2MiB`: one of a server that
//! was stopped, one of a server that was killed. Each has the streams `a` and `b` with 80 messages of 40,000 bytes, `closed` with one
//! message, and the deleted stream `gone`.

use std::path::Path;
use std::process::Command;

use crate::rig::{Encke, Ended, JSON, command, data_dir, path, serve};

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

fn check(data: &Path) -> Ended {
    Ended::of(command(&["log", "check"]).arg(data))
}

#[test]
fn data_of_0_1_0_opens_and_is_stated_from_then_on() {
    let root = data_dir();
    unpack(root.path());
    for name in ["clean", "killed"] {
        let data = root.path().join(name);
        let checked = check(&data);
        assert_eq!(checked.code, Some(0), "{name}: {checked:?}");
        assert!(!data.join("superblock-0").exists(), "a check made a file");
        for round in 0..2 {
            let encke = Encke::start_in(&data, &FLAGS);
            is_whole(&encke, "a");
            is_whole(&encke, "b");
            assert_eq!(encke.messages("closed"), ["last"]);
            assert_eq!(encke.ask("HEAD", &path("gone"), &[], b"").status, 404);
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
