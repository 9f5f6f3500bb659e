//! A node that the brokers cannot bring up to date copies the log of another one, which goes on meanwhile.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::fleet::{append, command, have_the_same, node};
use crate::rig::{
    BrokerProxy, Brokers, Encke, Ended, Incompressible, JSON, SetWhenDropped, data_dir, eventually,
    path, without_settings,
};

/// The brokers keep the order for longer than a copy takes on a busy machine.
const KEEP: [&str; 4] = [
    "--tuning",
    "fleet-keep=10s",
    "--log",
    "info,encke_fleet=debug",
];

/// Runs `encke fleet`. Returns the exit code, and what it prints.
fn fleet(brokers: &Brokers, arguments: &[&str]) -> (Option<i32>, String, String) {
    let urls = brokers.urls();
    let arguments = [&["fleet"], arguments, &["--fleet", &urls]].concat();
    let ended = Ended::of(&mut crate::rig::command(&arguments));
    (ended.code, ended.stdout, ended.stderr)
}

/// Waits until the brokers no longer have the beginning of the order.
fn wait_for_a_late_beginning(brokers: &Brokers) {
    eventually("the brokers have forgotten all messages", || {
        std::thread::sleep(Duration::from_millis(200));
        let (_, text, _) = fleet(brokers, &["status", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let logs = report["logs"].as_array().expect("orders");
        let is_late = |log: &serde_json::Value| log["first"].as_u64() > log["last"].as_u64();
        logs.iter().all(is_late)
    });
}

/// Waits until all nodes that run have the same order.
fn verify(brokers: &Brokers) {
    eventually("all nodes have the same order", || {
        let (code, text, why) = fleet(brokers, &["verify"]);
        assert!(!text.contains("different orders"), "{text}{why}");
        let mut problems = text.lines().filter(|line| line.starts_with("problem: "));
        let none_but_silence = problems.all(|problem| problem.contains("does not answer"));
        matches!(code, Some(0 | 5)) && none_but_silence
    });
}

/// Appends numbers to `s` from `from` on while `work` runs. Returns the number after the last one.
fn while_appending(node: &Encke, from: u64, work: impl FnOnce()) -> u64 {
    let (ends, next) = (AtomicBool::new(false), AtomicU64::new(from));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = node.connect();
            while !ends.load(Ordering::SeqCst) {
                let number = next.load(Ordering::SeqCst);
                assert_eq!(append(&mut connection, number), 204);
                next.store(number + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let _ends = SetWhenDropped(&ends);
        work();
    });
    next.into_inner()
}

/// Appends `count` records of 300 kB to the stream `large`.
pub(crate) fn append_much(node: &Encke, count: usize) {
    let made = node.ask(
        "PUT",
        &path("large"),
        &["Content-Type: application/octet-stream"],
        b"",
    );
    assert_eq!(made.status, 201, "{made:?}");
    let mut text = Incompressible::default();
    for _ in 0..count {
        let body = text.text(300_000);
        let fields = ["Content-Type: application/octet-stream"];
        let answer = node.ask("POST", &path("large"), &fields, body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
}

fn large(node: &Encke) -> Vec<u8> {
    let read = node.ask("GET", &format!("{}?offset=-1", path("large")), &[], b"");
    assert_eq!(read.status, 200);
    read.body
}

#[test]
#[ignore = "long: make test-all"]
fn a_node_that_lacks_what_the_brokers_have_forgotten_copies_it_while_appends_go_on() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir(), data_dir(), data_dir()];
    // Small segments, so that most of the log is in history.
    let flags = [&KEEP[..], &["--segment", "1MiB", "--body-max", "400KiB"]].concat();
    let start = |name, dir: &Path| node(&brokers, name, dir, &flags);
    let a = start("a", dirs[0].path());
    let b = start("b", dirs[1].path());
    a.create("s");
    append_much(&a, 20);
    let mut next = 0;
    let mut connection = b.connect();
    for _ in 0..20 {
        assert_eq!(append(&mut connection, next), 204);
        next += 1;
    }
    assert_eq!(b.terminate().code, Some(0));
    let mut connection = a.connect();
    for _ in 0..20 {
        assert_eq!(append(&mut connection, next), 204);
        next += 1;
    }
    wait_for_a_late_beginning(&brokers);
    // A new node, one that was away for too long, and one whose data was copied before.
    let joined = dirs[3].path().join("data");
    let next = while_appending(&a, next, || {
        let c = start("c", dirs[2].path());
        let b = start("b", dirs[1].path());
        assert!(c.log().contains("copying log 0 from another node"));
        let replaced = dirs[1].path().join("replaced");
        assert!(replaced.join("superblock-0").exists(), "{}", b.log());
        assert!(!dirs[2].path().join("replaced").exists(), "it was empty");
        let data = joined.to_str().expect("UTF-8");
        let (code, text, why) = fleet(&brokers, &["join", "--data", data, "--from", "a"]);
        assert_eq!(code, Some(0), "{text}{why}");
        assert!(why.contains("log 0 from node a: "), "{why}");
        let d = start("d", &joined);
        assert!(!d.log().contains("copying"), "{}", d.log());
        verify(&brokers);
        // Data that is there is not replaced by the command.
        let (code, _, why) = fleet(&brokers, &["join", "--data", data]);
        assert_eq!(code, Some(3), "{why}");
        for node in [b, c, d] {
            assert_eq!(node.terminate().code, Some(0));
        }
    });
    let b = start("b", dirs[1].path());
    let c = start("c", dirs[2].path());
    let d = start("d", &joined);
    let numbers = have_the_same(&[&a, &b, &c, &d], "s");
    assert_eq!(numbers, (0..next).collect::<Vec<_>>());
    let expected = large(&a);
    assert_eq!(expected.len(), 20 * 300_000);
    assert!([&b, &c, &d].iter().all(|node| large(node) == expected));
    verify(&brokers);
    // Each of them publishes, too.
    for (node, number) in [&b, &c, &d].into_iter().zip(next..) {
        assert_eq!(append(&mut node.connect(), number), 204);
    }
    assert_eq!(
        have_the_same(&[&a, &b, &c, &d], "s").last(),
        Some(&(next + 2))
    );
    // The fleet forgets a node that does not return, and only then.
    let (code, text, _) = fleet(&brokers, &["leave", "--node", "d"]);
    assert_eq!(
        (code, &*text),
        (Some(5), "node d: it runs; stop it before\n")
    );
    assert_eq!(d.terminate().code, Some(0));
    let (code, text, why) = fleet(&brokers, &["leave", "--node", "d"]);
    assert_eq!(code, Some(0), "{text}{why}");
    let (code, text, _) = fleet(&brokers, &["leave", "--node", "d"]);
    assert_eq!((code, &*text), (Some(5), "node d: no node knows it\n"));
    assert_eq!(b.terminate().code, Some(0));
    let b = start("b", dirs[1].path());
    assert_eq!(append(&mut b.connect(), next + 3), 204);
    verify(&brokers);
    // A node that does not exist gives nothing.
    let empty = data_dir();
    let data = empty.path().to_str().expect("UTF-8");
    let (code, _, why) = fleet(&brokers, &["join", "--data", data, "--from", "x"]);
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains("node x does not answer"), "{why}");
    // What it has left is no data, and the same command continues.
    let refused = Ended::of(&mut command(&brokers, "e", empty.path(), &KEEP));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("`encke fleet join` was interrupted"),
        "{refused:?}"
    );
    let (code, text, why) = fleet(&brokers, &["join", "--data", data, "--from", "a"]);
    assert_eq!(code, Some(0), "{text}{why}");
    let e = start("e", empty.path());
    assert!(!e.log().contains("copying"), "{}", e.log());
}

#[test]
#[ignore = "long: make test-all"]
fn a_copy_survives_the_death_of_the_node_that_gives_it_and_a_damaged_piece() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir(), data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &KEEP);
    let b = node(&brokers, "b", dirs[1].path(), &KEEP);
    a.create("s");
    append_much(&a, 20);
    for number in 0..20 {
        assert_eq!(append(&mut a.connect(), number), 204);
    }
    wait_for_a_late_beginning(&brokers);
    let expected = large(&b);
    // A byte changes on the way: the piece is asked for again.
    let proxy = BrokerProxy::start(brokers.address(0));
    let behind_proxy = |name: &str, dir: &Path| {
        let direct = command(&brokers, name, dir, &KEEP);
        let arguments = direct.get_args().map(|argument| {
            let argument = argument.to_str().expect("UTF-8");
            argument.replace(&brokers.urls(), &proxy.url())
        });
        let mut command = std::process::Command::new(direct.get_program());
        command.args(arguments);
        without_settings(&mut command);
        command
    };
    // A record, because a node continues behind the last one of those that the order has.
    assert_eq!(append(&mut b.connect(), 20), 204);
    proxy.flip_after(2 << 20);
    let c = Encke::start_by(&mut behind_proxy("c", dirs[2].path()));
    assert!(proxy.has_flipped());
    assert!(c.log().contains("a piece arrived damaged"), "{}", c.log());
    assert!(large(&c) == expected);
    assert_eq!(c.terminate().code, Some(0));
    // The node that takes the copy dies in the middle of it: nothing of it counts.
    assert_eq!(append(&mut b.connect(), 21), 204);
    proxy.hold_after(2 << 20);
    let mut taking = behind_proxy("d", dirs[3].path());
    taking.stdout(Stdio::null()).stderr(Stdio::null());
    let mut taking = taking.spawn().expect("the binary exists");
    proxy.wait_until_held();
    taking.kill().expect("it is ours");
    taking.wait().expect("it is ours");
    proxy.release();
    assert!(dirs[3].path().join("copy.partial").exists());
    assert!(!dirs[3].path().join("replaced").exists());
    // The node that gives the copy dies in the middle of it.
    assert_eq!(append(&mut b.connect(), 22), 204);
    proxy.hold_after(2 << 20);
    let mut nodes = vec![a, b];
    let d = std::thread::scope(|scope| {
        let starting = scope.spawn(|| Encke::start_by(&mut behind_proxy("d", dirs[3].path())));
        proxy.wait_until_held();
        let gives = nodes
            .iter()
            .position(|node| node.log().contains("copier=\"d\""))
            .expect("one of them gives the copy");
        nodes.remove(gives).kill();
        proxy.release();
        starting.join().expect("it starts")
    });
    assert!(d.log().contains("a copy has failed"), "{}", d.log());
    assert!(large(&d) == expected);
    assert_eq!(append(&mut d.connect(), 23), 204);
    let numbers = have_the_same(&[&nodes[0], &d], "s");
    assert_eq!(numbers, (0..=23).collect::<Vec<u64>>());
    verify(&brokers);
}

#[test]
#[ignore = "long: make test-all"]
fn a_node_that_finds_no_copy_says_why() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &KEEP);
    a.create("s");
    for number in 0..20 {
        let answer = a.ask("POST", &path("s"), &[JSON], number.to_string().as_bytes());
        assert_eq!(answer.status, 204);
    }
    wait_for_a_late_beginning(&brokers);
    assert_eq!(a.terminate().code, Some(0));
    let refused = Ended::of(&mut command(&brokers, "b", dirs[1].path(), &KEEP));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for expected in [
        "this node is too far behind in log 0: it has applied 0",
        "no node gives a copy of log 0: no other node answers",
    ] {
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
}

/// Cuts the oldest file with messages of the only broker in half, as damage does, and what the broker has noted about its files.
pub(crate) fn lose_messages_in_the_middle(brokers: &mut Brokers) {
    brokers.kill(0);
    let mut blocks = Vec::new();
    let mut directories = vec![brokers.store(0)];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("it is there") {
            let path = entry.expect("it is there").path();
            match path.extension().and_then(|end| end.to_str()) {
                _ if path.is_dir() => directories.push(path),
                Some("blk") => blocks.push(path),
                Some("db") => std::fs::remove_file(path).expect("it is ours"),
                _ => {}
            }
        }
    }
    blocks.sort_by_key(|path| {
        let number = path.file_stem().and_then(|name| name.to_str());
        number.and_then(|name| name.parse::<u64>().ok())
    });
    assert!(blocks.len() > 1, "{blocks:?}");
    let oldest = std::fs::File::options().write(true).open(&blocks[0]);
    let oldest = oldest.expect("it is ours");
    let length = oldest.metadata().expect("it is there").len();
    oldest.set_len(length / 2).expect("it is ours");
    brokers.run(0);
}

#[test]
fn a_new_node_copies_what_the_brokers_have_lost_in_the_middle() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let flags = ["--body-max", "400KiB"];
    let a = node(&brokers, "a", dirs[0].path(), &flags);
    a.create("s");
    append_much(&a, 40);
    assert_eq!(append(&mut a.connect(), 0), 204);
    lose_messages_in_the_middle(&mut brokers);
    eventually("the node goes on", || append(&mut a.connect(), 1) == 204);
    let b = node(&brokers, "b", dirs[1].path(), &flags);
    assert!(b.log().contains("copying log 0 from another node"));
    assert!(large(&b) == large(&a));
    let numbers = have_the_same(&[&a, &b], "s");
    assert!(
        numbers.starts_with(&[0]) && numbers.ends_with(&[1]),
        "{numbers:?}"
    );
    verify(&brokers);
}

#[test]
#[ignore = "long: make test-all"]
fn all_logs_of_a_node_are_copied() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir(), data_dir()];
    let flags = [&KEEP[..], &["--logs", "2"]].concat();
    let a = node(&brokers, "a", dirs[0].path(), &flags);
    let names: Vec<String> = (0..8).map(|number| format!("s{number}")).collect();
    names.iter().for_each(|name| a.create(name));
    wait_for_a_late_beginning(&brokers);
    for name in &names {
        let answer = a.ask("POST", &path(name), &[JSON], b"1");
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    // Both logs have something new, and lack the beginning.
    let b = node(&brokers, "b", dirs[1].path(), &flags);
    assert!(b.log().contains("copying log 0 from another node"));
    assert!(b.log().contains("copying log 1 from another node"));
    let joined = dirs[2].path().join("data");
    let data = joined.to_str().expect("UTF-8");
    let (code, text, why) = fleet(&brokers, &["join", "--data", data]);
    assert_eq!(code, Some(0), "{text}{why}");
    let command = format!(
        "encke serve --data {data} --logs 2 --fleet {} --node NAME\n",
        brokers.urls()
    );
    assert!(text.ends_with(&command), "{text}");
    let c = node(&brokers, "c", &joined, &flags);
    for name in &names {
        assert_eq!(have_the_same(&[&a, &b, &c], name), [1]);
    }
    verify(&brokers);
}
