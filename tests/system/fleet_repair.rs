//! When the brokers have lost the order, the nodes continue with the longest history that one of them has.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::fleet::{append, command, have_the_same, node};
use crate::fleet_copy::{append_much, lose_messages_in_the_middle};
use crate::rig::{Brokers, Encke, Ended, data_dir, eventually};

/// Runs `encke fleet`. Returns the exit code, and what it prints.
fn fleet(brokers: &Brokers, arguments: &[&str]) -> (Option<i32>, String, String) {
    let urls = brokers.urls();
    let arguments = [&["fleet"], arguments, &["--fleet", &urls]].concat();
    let ended = Ended::of(&mut crate::rig::command(&arguments));
    (ended.code, ended.stdout, ended.stderr)
}

/// Runs `encke fleet repair --json` for a single broker. Returns the exit code and the report.
fn repair(brokers: &Brokers, arguments: &[&str]) -> (Option<i32>, Value) {
    let arguments = [&["repair", "--json", "--replicas", "1"], arguments].concat();
    let (code, text, why) = fleet(brokers, &arguments);
    let report = serde_json::from_str(&text);
    (
        code,
        report.unwrap_or_else(|error| panic!("{error}: {text}{why}")),
    )
}

fn problems(report: &Value) -> String {
    report["problems"].to_string()
}

fn wait_until_halted(brokers: &Brokers) {
    eventually("the nodes have stopped to follow", || {
        let (_, report) = repair(brokers, &["--without", "x"]);
        report["logs"][0]["needed"] == true && !problems(&report).contains("follows the order")
    });
}

fn lose_the_order(brokers: &mut Brokers) {
    brokers.kill(0);
    std::fs::remove_dir_all(brokers.store(0)).expect("it is ours");
    brokers.run(0);
}

fn start_all(brokers: &Brokers, nodes: &[(&str, &Path)]) -> Vec<Encke> {
    let nodes = nodes.iter();
    nodes
        .map(|(name, dir)| node(brokers, name, dir, &[]))
        .collect()
}

#[test]
#[ignore = "long: make test-all"]
fn nodes_continue_with_the_longest_history_when_the_brokers_have_lost_the_order() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &[]);
    let b = node(&brokers, "b", dirs[1].path(), &[]);
    let c = node(&brokers, "c", dirs[2].path(), &[]);
    a.create("s");
    for (number, node) in (0..30).zip([&a, &b, &c].into_iter().cycle()) {
        assert_eq!(append(&mut node.connect(), number), 204);
    }
    let (code, report) = repair(&brokers, &["--accept"]);
    assert_eq!(
        (code, &report["done"]),
        (Some(0), &Value::Bool(false)),
        "{report}"
    );
    assert_eq!(b.terminate().code, Some(0));
    for number in 30..40 {
        assert_eq!(append(&mut a.connect(), number), 204);
    }
    // Reads send messages that make no records: nodes that restart forget them.
    assert_eq!(have_the_same(&[&a, &c], "s").len(), 40);
    lose_the_order(&mut brokers);
    wait_until_halted(&brokers);
    // A node that has taken part could have more.
    let (code, report) = repair(&brokers, &["--accept"]);
    assert_eq!(code, Some(5), "{report}");
    assert!(problems(&report).contains("--stopped b=DIR"), "{report}");
    let stopped = format!("b={}", dirs[1].path().display());
    let (code, report) = repair(&brokers, &["--stopped", &stopped]);
    assert_eq!(
        (code, &report["done"]),
        (Some(5), &Value::Bool(false)),
        "{report}"
    );
    assert_eq!(report["problems"], serde_json::json!([]), "{report}");
    assert_eq!(
        report["logs"][0]["longest"],
        serde_json::json!(["a", "c"]),
        "{report}"
    );
    assert_eq!(
        report["logs"][0]["behind"],
        serde_json::json!(["b"]),
        "{report}"
    );
    let (code, text, why) = fleet(&brokers, &["status"]);
    assert_eq!(code, Some(5), "nothing was changed: {text}{why}");
    let lost =
        "problem: the brokers have lost the order of log 0: `encke fleet repair` makes it anew";
    assert!(text.contains(lost), "{text}");
    // What is given for another node, or for none, stands for nothing.
    let same = format!("c={}", dirs[1].path().display());
    let (code, _, why) = fleet(
        &brokers,
        &["repair", "--stopped", &stopped, "--stopped", &same],
    );
    assert_eq!(code, Some(2), "{why}");
    assert!(
        why.contains("each node has a directory of its own"),
        "{why}"
    );
    let (code, report) = repair(&brokers, &["--stopped", &stopped, "--without", "e"]);
    assert_eq!(code, Some(5), "{report}");
    let problem = "--without e: no node of that name has taken part; known are a, b, c";
    assert!(problems(&report).contains(problem), "{report}");
    // A node that has no processor for longer than an answer may take is asked again.
    c.freeze();
    let repaired = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1_200));
            c.signal(Signal::CONT);
        });
        repair(&brokers, &["--stopped", &stopped, "--accept"])
    });
    let (code, report) = repaired;
    assert_eq!(
        (code, &report["done"]),
        (Some(0), &Value::Bool(true)),
        "{report}"
    );
    // It is not done twice, and nodes that run go on only when they are started again.
    let (code, text, why) = fleet(&brokers, &["repair", "--stopped", &stopped, "--accept"]);
    assert_eq!(code, Some(0), "{text}{why}");
    assert!(text.contains("it needs no repair"), "{text}");
    assert_eq!(append(&mut a.connect(), 40), 503);
    a.terminate();
    c.terminate();
    let names = ["a", "c", "b"];
    let paths = [dirs[0].path(), dirs[2].path(), dirs[1].path()];
    let nodes: Vec<_> = names.into_iter().zip(paths).collect();
    let running = start_all(&brokers, &nodes);
    let all: Vec<&Encke> = running.iter().collect();
    assert_eq!(have_the_same(&all, "s"), (0..40).collect::<Vec<u64>>());
    for (number, node) in (40..60).zip(all.iter().cycle()) {
        assert_eq!(append(&mut node.connect(), number), 204);
    }
    assert_eq!(have_the_same(&all, "s"), (0..60).collect::<Vec<u64>>());
    eventually("all nodes have the same order", || {
        fleet(&brokers, &["verify"]).0 == Some(0)
    });
    // It stays so after another start, and for a new node, which copies.
    for node in running {
        assert_eq!(node.terminate().code, Some(0));
    }
    let new = data_dir();
    let nodes = [&nodes[..], &[("d", new.path())]].concat();
    let running = start_all(&brokers, &nodes);
    let all: Vec<&Encke> = running.iter().collect();
    assert_eq!(have_the_same(&all, "s"), (0..60).collect::<Vec<u64>>());
}

#[test]
#[ignore = "long: make test-all"]
fn stopped_nodes_are_repaired_and_messages_of_another_order_are_not_dropped_by_chance() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let nodes = [("a", dirs[0].path()), ("b", dirs[1].path())];
    let running = start_all(&brokers, &nodes);
    running[0].create("s");
    for (number, node) in (0..20).zip(running.iter().cycle()) {
        assert_eq!(append(&mut node.connect(), number), 204);
    }
    for node in running {
        assert_eq!(node.terminate().code, Some(0));
    }
    lose_the_order(&mut brokers);
    // Another node has begun an order with the empty brokers.
    let other = data_dir();
    let x = node(&brokers, "x", other.path(), &[]);
    x.create("s");
    for number in 0..30 {
        assert_eq!(append(&mut x.connect(), number), 204);
    }
    let stopped: Vec<String> = nodes
        .iter()
        .map(|(name, dir)| format!("{name}={}", dir.display()))
        .collect();
    let stopped = [
        "--stopped",
        &stopped[0],
        "--stopped",
        &stopped[1],
        "--accept",
    ];
    let (code, report) = repair(&brokers, &stopped);
    assert_eq!(code, Some(5), "{report}");
    x.terminate();
    let (code, report) = repair(&brokers, &stopped);
    assert_eq!(code, Some(5), "{report}");
    assert!(problems(&report).contains("--drop-order"), "{report}");
    let refused = Ended::of(&mut command(&brokers, "a", nodes[0].1, &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let (code, report) = repair(&brokers, &[&stopped[..], &["--drop-order"]].concat());
    assert_eq!(
        (code, &report["done"]),
        (Some(0), &Value::Bool(true)),
        "{report}"
    );
    let running = start_all(&brokers, &nodes);
    assert_eq!(append(&mut running[1].connect(), 20), 204);
    let all: Vec<&Encke> = running.iter().collect();
    assert_eq!(have_the_same(&all, "s"), (0..=20).collect::<Vec<u64>>());
    // The node of the other order does not go on with it.
    let refused = Ended::of(&mut command(&brokers, "x", other.path(), &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
}

#[test]
#[ignore = "long: make test-all"]
fn a_fleet_whose_nodes_all_need_what_the_brokers_have_lost_is_repaired() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &["--body-max", "400KiB"]);
    a.create("s");
    assert_eq!(append(&mut a.connect(), 0), 204);
    assert_eq!(a.terminate().code, Some(0));
    // What is left of the only node is older than the messages that the brokers lose.
    let old = dirs[1].path().join("data");
    let copied = std::process::Command::new("cp")
        .args([
            std::ffi::OsStr::new("-a"),
            dirs[0].path().as_os_str(),
            old.as_os_str(),
        ])
        .status();
    assert!(copied.is_ok_and(|status| status.success()));
    let a = node(&brokers, "a", dirs[0].path(), &["--body-max", "400KiB"]);
    append_much(&a, 40);
    assert_eq!(a.terminate().code, Some(0));
    lose_messages_in_the_middle(&mut brokers);
    let refused = Ended::of(&mut command(&brokers, "a", &old, &[]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("no node gives a copy"),
        "{refused:?}"
    );
    let stopped = format!("a={}", old.display());
    let (code, report) = repair(&brokers, &["--stopped", &stopped, "--accept"]);
    assert_eq!(code, Some(5), "{report}");
    assert!(problems(&report).contains("--drop-order"), "{report}");
    let dropped = ["--stopped", &stopped, "--accept", "--drop-order"];
    let (code, report) = repair(&brokers, &dropped);
    assert_eq!(
        (code, &report["done"]),
        (Some(0), &Value::Bool(true)),
        "{report}"
    );
    let a = node(&brokers, "a", &old, &[]);
    assert_eq!(append(&mut a.connect(), 1), 204);
    assert_eq!(a.numbers("s"), [0, 1]);
}
