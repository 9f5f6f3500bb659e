//! Brokers that go back to an older store lose the end of the order: no node goes on without what another one has applied.

use std::path::Path;

use rustix::process::Signal;

use crate::fleet::{append, have_the_same, node};
use crate::rig::{Brokers, Encke, Ended, JSON, copy_tree, data_dir, eventually, path};

/// Runs `encke fleet`. Returns the exit code, and what it prints.
fn fleet(brokers: &Brokers, arguments: &[&str]) -> (Option<i32>, String) {
    let urls = brokers.urls();
    let arguments = [&["fleet"], arguments, &["--fleet", &urls]].concat();
    let ended = Ended::of(&mut crate::rig::command(&arguments));
    (ended.code, format!("{}{}", ended.stdout, ended.stderr))
}

/// Stops the broker, and lets it begin with an earlier copy of its store.
fn go_back(brokers: &mut Brokers, copy: &Path) {
    brokers.kill(0);
    std::fs::remove_dir_all(brokers.store(0)).expect("it is ours");
    copy_tree(copy, &brokers.store(0));
    brokers.run(0);
}

/// Why a node is not ready.
fn unready(node: &Encke) -> Option<String> {
    let answer = node.ask("GET", "/readyz", &[], b"");
    (answer.status == 503).then(|| String::from_utf8_lossy(&answer.body).into_owned())
}

/// Waits until a node follows the order no longer, and returns the reason.
fn wait_until_stopped(node: &Encke) -> String {
    let mut why = String::new();
    eventually("the node has stopped to follow", || {
        why = unready(node).unwrap_or_default();
        why.contains("this node does not follow its fleet")
    });
    why
}

fn append_all(node: &Encke, numbers: std::ops::Range<u64>) {
    let mut connection = node.connect();
    for number in numbers {
        assert_eq!(append(&mut connection, number), 204);
    }
}

/// Two nodes, the second of which stands still while the first one acknowledges what the brokers lose afterwards.
struct Behind {
    ahead: Encke,
    behind: Encke,
}

impl Behind {
    fn start(brokers: &mut Brokers, dirs: [&Path; 2], copy: &Path) -> Behind {
        let ahead = node(brokers, "ahead", dirs[0], &["--fleet-retry", "20s"]);
        let behind = node(brokers, "behind", dirs[1], &["--fleet-retry", "20s"]);
        ahead.create("s");
        append_all(&ahead, 0..5);
        assert_eq!(have_the_same(&[&ahead, &behind], "s").len(), 5);
        brokers.kill(0);
        copy_tree(&brokers.store(0), copy);
        // It has no connection, so that nothing arrives in its buffers.
        behind.freeze();
        brokers.run(0);
        append_all(&ahead, 5..30);
        Behind { ahead, behind }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_node_that_had_not_applied_what_the_brokers_lose_stops_with_the_others() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let (dirs, copy) = ([data_dir(), data_dir()], data_dir());
    let copy = copy.path().join("copy");
    let paths = [dirs[0].path(), dirs[1].path()];
    let Behind { ahead, behind } = Behind::start(&mut brokers, paths, &copy);
    go_back(&mut brokers, &copy);
    let why = wait_until_stopped(&ahead);
    assert!(why.contains("lost a part of the order"), "{why}");
    behind.signal(Signal::CONT);
    // Its own position is one that the brokers have.
    let why = wait_until_stopped(&behind);
    assert!(why.contains("node ahead has applied"), "{why}");
    let refused = behind.ask("POST", &path("s"), &[JSON], b"30");
    assert_eq!(
        (refused.status, &*refused.error_code()),
        (503, "log_failed")
    );
    assert_eq!(behind.ask("GET", &path("s"), &[], b"").status, 503);
    for command in ["status", "verify"] {
        // A node that has no processor for the moment is missing in a report.
        eventually("the report says what the brokers have lost", || {
            let (code, text) = fleet(&brokers, &[command]);
            assert_eq!(code, Some(5), "{text}");
            text.lines().any(|line| {
                line.contains("node ahead has applied position") && line.contains("ends at")
            })
        });
    }
    // Before it heard of the other node, it may have sent a message that is in no history, such as the probe of its health.
    let without = ["repair", "--without", "behind", "--drop-order", "--accept"];
    let (code, text) = fleet(&brokers, &without);
    assert_eq!(code, Some(0), "{text}");
    // What the node that still runs says is of the order before the repair.
    assert_eq!(ahead.terminate().code, Some(0));
    let ahead = node(&brokers, "ahead", paths[0], &[]);
    append_all(&ahead, 30..31);
    assert_eq!(behind.terminate().code, Some(0));
    let behind = node(&brokers, "behind", paths[1], &[]);
    append_all(&behind, 31..32);
    let expected: Vec<u64> = (0..32).collect();
    assert_eq!(have_the_same(&[&ahead, &behind], "s"), expected);
    eventually("both nodes have the same order", || {
        fleet(&brokers, &["verify"]).0 == Some(0)
    });
}

#[test]
fn a_node_stops_although_new_messages_have_taken_the_lost_positions() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let (dirs, copy) = ([data_dir(), data_dir()], data_dir());
    let copy = copy.path().join("copy");
    let paths = [dirs[0].path(), dirs[1].path()];
    let Behind { ahead, behind } = Behind::start(&mut brokers, paths, &copy);
    ahead.freeze();
    go_back(&mut brokers, &copy);
    behind.signal(Signal::CONT);
    // More messages than the brokers have lost: the order ends behind what the other node has.
    append_all(&behind, 100..160);
    ahead.signal(Signal::CONT);
    let why = wait_until_stopped(&behind);
    assert!(why.contains("node ahead has applied"), "{why}");
    wait_until_stopped(&ahead);
}
