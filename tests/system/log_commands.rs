//! `encke log`: checks, prints and repairs a log, which a server then opens.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::disk::SmallDisk;
use crate::rig::{
    Encke, Ended, JSON, command, copy_tree, data_dir, eventually, newest_segment, path, serve,
};

fn log(arguments: &[&str], data: &Path) -> Ended {
    Ended::of(command(&["log"]).args(arguments).arg(data))
}

/// A directory in which a server stored the numbers below `count`, and which it closed.
fn filled(count: u64) -> tempfile::TempDir {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    let mut connection = encke.connect();
    for number in 0..count {
        let answer = connection.ask("POST", &path("s"), &[JSON], number.to_string().as_bytes());
        assert_eq!(answer.status, 204);
    }
    assert_eq!(encke.terminate().code, Some(0));
    data
}

fn lines(ended: &Ended) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).expect("each line is JSON");
    ended.stdout.lines().map(line).collect()
}

/// Flips a bit in the middle of the data of a record, of which nothing else than that data has the text.
fn flip(segment: &Path, share: f64) -> u64 {
    let bytes = std::fs::read(segment).expect("it can be read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("a head");
    let position = (end as f64 * share) as u64;
    let file = OpenOptions::new().write(true).open(segment);
    file.and_then(|file| file.write_all_at(&[bytes[position as usize] ^ 0x10], position))
        .expect("it can be written");
    position
}

#[test]
fn a_sound_log_is_checked_and_printed() {
    let data = filled(10);
    let checked = log(&["check"], data.path());
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(
        checked.stdout.contains("11 records in 1 segments, 1 to 11"),
        "{checked:?}"
    );
    assert!(checked.stdout.contains("all is sound"), "{checked:?}");
    let checked = log(&["check", "--json"], data.path());
    let report: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    assert_eq!(report["sound"], true);
    assert_eq!(report["logs"][0]["records"], 11);

    let printed = lines(&log(&["dump"], data.path()));
    assert_eq!(printed.len(), 11);
    assert_eq!(printed[0]["change"], "create");
    assert_eq!(printed[0]["fields"]["name"], "s");
    let stream = printed[0]["streams"][0].as_u64().expect("a number");
    for (number, line) in printed[1..].iter().enumerate() {
        assert_eq!(line["sequence"], number as u64 + 2);
        assert_eq!(
            (&line["change"], &line["streams"][0]),
            (&"append".into(), &stream.into())
        );
        assert!(
            line["text"]
                .as_str()
                .expect("text")
                .contains(&number.to_string()),
            "{line}"
        );
        assert!(
            line["time"].as_str().expect("a time").starts_with("20"),
            "{line}"
        );
    }
    let of_stream = lines(&log(
        &["dump", "--stream", &stream.to_string()],
        data.path(),
    ));
    assert_eq!(of_stream, printed);
    let nothing = log(&["dump", "--stream", "999"], data.path());
    assert_eq!((nothing.code, &*nothing.stdout), (Some(0), ""));
    let end = lines(&log(&["dump", "--from", "10"], data.path()));
    assert_eq!(end, printed[9..]);

    let repaired = log(&["repair", "--accept-loss"], data.path());
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert!(
        repaired.stdout.contains("nothing to repair"),
        "{repaired:?}"
    );
    assert_eq!(Encke::start_in(data.path(), &[]).numbers("s").len(), 10);
}

#[test]
fn a_flipped_byte_is_found_and_repaired_with_the_loss_named() {
    let data = filled(100);
    let segment = newest_segment(data.path());
    let position = flip(&segment, 0.6);
    let checked = log(&["check"], data.path());
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.stdout.contains(&segment.display().to_string()),
        "{checked:?}"
    );
    let report = log(&["check", "--json"], data.path());
    assert_eq!(report.code, Some(1));
    let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
    let problem = &report["logs"][0]["problems"][0];
    let lost_from = problem["sequence"].as_u64().expect("a number");
    assert!(lost_from > 30 && lost_from < 80, "{problem}");
    let at = problem["position"].as_u64().expect("a number");
    assert!(at <= position && position - at < 200, "{at} {position}");

    // What is sound is printed, and then what is wrong.
    let printed = log(&["dump"], data.path());
    assert_eq!(
        (printed.code, lines(&printed).len() as u64),
        (Some(1), lost_from - 1)
    );
    assert!(printed.stderr.contains("damaged"), "{}", printed.stderr);

    // Without leave nothing is changed.
    let before = std::fs::read(&segment).expect("it can be read");
    let planned = log(&["repair"], data.path());
    assert_eq!(planned.code, Some(1), "{planned:?}");
    let loss = format!("records {lost_from} to 101 would be dropped");
    assert!(planned.stdout.contains(&loss), "{planned:?}");
    assert!(
        planned.stdout.contains("nothing was changed"),
        "{planned:?}"
    );
    assert_eq!(std::fs::read(&segment).expect("it can be read"), before);

    let repaired = log(&["repair", "--accept-loss"], data.path());
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    let said = repaired
        .stdout
        .find(&format!("records {lost_from} to 101 dropped"));
    let done = repaired.stdout.find("repaired");
    assert!(said.is_some() && said < done, "{repaired:?}");
    assert_eq!(log(&["check"], data.path()).code, Some(0));

    // The first record makes the stream, so the numbers are two behind.
    let encke = Encke::start_in(data.path(), &[]);
    let kept: Vec<u64> = (0..lost_from - 2).collect();
    assert_eq!(encke.numbers("s"), kept);
    assert_eq!(encke.ask("POST", &path("s"), &[JSON], b"7777").status, 204);
    assert_eq!(encke.terminate().code, Some(0));
    assert_eq!(log(&["check"], data.path()).code, Some(0));
}

#[test]
fn damage_to_history_is_found_and_repaired() {
    let data = filled(3);
    let list = data.path().join("history/keyspaces/0");
    let current = std::fs::read(list.join("current")).expect("it is there");
    let number = u64::from_le_bytes(current[..8].try_into().expect("eight bytes"));
    flip(&list.join(format!("v{number}")), 0.3);
    let checked = log(&["check"], data.path());
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.stdout.contains(&format!("v{number} is damaged")),
        "{checked:?}"
    );
    assert!(
        checked.stdout.contains("4 records in 1 segments"),
        "{checked:?}"
    );
    let refused = Ended::of(&mut serve(data.path(), &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("is damaged"), "{refused:?}");
    // The segments still have everything, so history is rebuilt from them, and nothing is lost.
    let planned = log(&["repair"], data.path());
    assert_eq!(planned.code, Some(1), "{planned:?}");
    assert!(!planned.stdout.contains("dropped:"), "{planned:?}");
    let repaired = log(&["repair", "--accept-loss"], data.path());
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert_eq!(Encke::start_in(data.path(), &[]).numbers("s"), [0, 1, 2]);
    assert_eq!(log(&["check"], data.path()).code, Some(0));
}

#[test]
fn a_log_that_a_server_has_is_left_alone() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    for arguments in [&["check"][..], &["dump"], &["repair", "--accept-loss"]] {
        let refused = log(arguments, data.path());
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert_eq!(refused.stdout, "");
        assert!(refused.stderr.contains("stop it first"), "{refused:?}");
    }
    assert_eq!(encke.ask("POST", &path("s"), &[JSON], b"1").status, 204);
}

/// A snapshot that can't be written to is looked at like any other directory.
#[test]
fn a_read_only_snapshot_is_checked_printed_and_planned() {
    let Some(disk) = SmallDisk::of("200m") else {
        return;
    };
    let data = filled(100);
    let damaged = data_dir();
    copy_tree(data.path(), damaged.path());
    flip(&newest_segment(damaged.path()), 0.6);
    copy_tree(data.path(), &disk.path("sound"));
    copy_tree(damaged.path(), &disk.path("damaged"));
    let mut mount = Command::new("mount");
    mount.args(["-o", "remount,ro"]).arg(disk.at.path());
    let mounted = Ended::of(&mut disk.enter(&mount));
    assert_eq!(mounted.code, Some(0), "{mounted:?}");
    let log = |arguments: &[&str], name: &str| {
        let mut command = command(&["log"]);
        command.args(arguments).arg(disk.at.path().join(name));
        Ended::of(&mut disk.enter(&command))
    };
    let checked = log(&["check"], "sound");
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.contains("all is sound"), "{checked:?}");
    let printed = log(&["dump"], "sound");
    assert_eq!((printed.code, lines(&printed).len()), (Some(0), 101));
    let planned = log(&["repair"], "sound");
    assert_eq!(planned.code, Some(0), "{planned:?}");
    let checked = log(&["check"], "damaged");
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let planned = log(&["repair"], "damaged");
    assert_eq!(planned.code, Some(1), "{planned:?}");
    assert!(
        planned.stdout.contains("nothing was changed"),
        "{planned:?}"
    );
    let refused = log(&["repair", "--accept-loss"], "damaged");
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("Read-only file system"),
        "{refused:?}"
    );
}

#[test]
fn where_there_is_no_log_nothing_is_made() {
    let data = data_dir();
    let nowhere = data.path().join("nowhere");
    for directory in [data.path(), &nowhere] {
        let refused = log(&["check"], directory);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(
            refused.stderr.contains(&directory.display().to_string()),
            "{refused:?}"
        );
    }
    assert!(!nowhere.exists());
    assert_eq!(
        std::fs::read_dir(data.path()).expect("it is there").count(),
        0
    );
}

#[test]
fn several_logs_in_one_directory_are_all_looked_at() {
    let data = data_dir();
    for name in ["log-0", "log-1"] {
        let encke = Encke::start_in(&data.path().join(name), &[]);
        encke.create("s");
        assert_eq!(encke.terminate().code, Some(0));
    }
    flip(&newest_segment(&data.path().join("log-1")), 0.5);
    let checked = log(&["check", "--json"], data.path());
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let report: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    assert_eq!(
        (&report["logs"][0]["sound"], &report["logs"][1]["sound"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn the_space_of_deleted_streams_is_freed_at_once() {
    let data = data_dir();
    let small = ["--segment", "1MiB", "--body-max", "400KiB"];
    let encke = Encke::start_in(data.path(), &small);
    let body = format!("[\"{}\"]", "x".repeat(100_000));
    for stream in ["kept", "gone", "other"] {
        encke.create(stream);
        for _ in 0..20 {
            let appended = encke.ask("POST", &path(stream), &[JSON], body.as_bytes());
            assert_eq!(appended.status, 204);
        }
    }
    assert_eq!(encke.ask("DELETE", &path("gone"), &[], b"").status, 204);
    let running = log(&["compact"], data.path());
    assert_eq!(running.code, Some(3), "{running:?}");
    assert!(running.stderr.contains("stop it first"), "{running:?}");
    eventually("segments are in history", || {
        encke.metric("encke_log_segments_waiting", "") == 0.0
    });
    assert_eq!(encke.terminate().code, Some(0));
    // The floor of a deleted stream is durable with the next checkpoint, which a stop makes.
    let compacted = log(&["compact", "--json"], data.path());
    assert_eq!(compacted.code, Some(0), "{compacted:?}");
    let report: Value = serde_json::from_str(&compacted.stdout).expect("JSON");
    let of = |name: &str| report["logs"][0][name].as_u64().expect("bytes");
    assert!(
        of("bytes_after") + 1_500_000 < of("bytes_before"),
        "{report}"
    );
    let checked = log(&["check"], data.path());
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let encke = Encke::start_in(data.path(), &small);
    assert_eq!(encke.messages("kept").len(), 20);
}
