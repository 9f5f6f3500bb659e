//! Several nodes on real brokers behave as one server, and none acknowledges what the others do not get.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::rig::{Brokers, Connection, Encke, Ended, JSON, data_dir, eventually, path, serve};
use crate::times;

/// Starts a node with data of its own or with that of `data`.
pub(crate) fn node(brokers: &Brokers, name: &str, data: &Path, flags: &[&str]) -> Encke {
    Encke::start_by(&mut command(brokers, name, data, flags))
}

pub(crate) fn command(
    brokers: &Brokers,
    name: &str,
    data: &Path,
    flags: &[&str],
) -> std::process::Command {
    let mut command = serve(data, &["--fleet", &brokers.urls(), "--node", name]);
    // A cluster is three brokers.
    if !brokers.urls().contains(',') {
        command.args(["--tuning", "fleet-replicas=1"]);
    }
    command.args(flags);
    command
}

/// The order is the same at all nodes, and each has applied all of it.
pub(crate) fn have_the_same(nodes: &[&Encke], stream: &str) -> Vec<u64> {
    let numbers: Vec<_> = nodes.iter().map(|node| node.numbers(stream)).collect();
    let tails: Vec<_> = nodes
        .iter()
        .map(|node| {
            let head = node.ask("HEAD", &path(stream), &[], b"");
            head.field("Stream-Next-Offset").map(str::to_owned)
        })
        .collect();
    for other in 1..nodes.len() {
        assert_eq!(numbers[0], numbers[other], "node {other}");
        assert_eq!(tails[0], tails[other], "node {other}");
    }
    numbers.into_iter().next().unwrap_or_default()
}

#[test]
fn what_one_node_acknowledges_is_at_every_node() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir(), data_dir()];
    let names = ["a", "b", "c"];
    let nodes: Vec<_> = names
        .iter()
        .zip(&dirs)
        .map(|(name, dir)| node(&brokers, name, dir.path(), &[]))
        .collect();
    nodes[0].create("s");
    let mut subscribers: Vec<_> = nodes.iter().map(|node| node.subscribe("s", "-1")).collect();
    let mut connections: Vec<_> = nodes.iter().map(Encke::connect).collect();
    for number in 0..60_u64 {
        let at = number as usize % 3;
        let answer =
            connections[at].ask("POST", &path("s"), &[JSON], number.to_string().as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
        let tail = answer
            .field("Stream-Next-Offset")
            .expect("it says where it is")
            .to_owned();
        // Another node knows it at once.
        let head = connections[(at + 1) % 3].ask("HEAD", &path("s"), &[], b"");
        assert_eq!(head.field("Stream-Next-Offset"), Some(&*tail));
    }
    let expected: Vec<u64> = (0..60).collect();
    for subscriber in &mut subscribers {
        assert_eq!(subscriber.numbers(60), expected);
    }
    let all: Vec<_> = nodes.iter().collect();
    assert_eq!(have_the_same(&all, "s"), expected);
    // A name that no node knows is missing only after the order has said so.
    for number in 0..20 {
        let name = format!("new-{number}");
        let missing = connections[1].ask("GET", &path(&name), &[], b"");
        assert_eq!(missing.status, 404, "{missing:?}");
        nodes[0].create(&name);
        let found = connections[1].ask("POST", &path(&name), &[JSON], b"1");
        assert_eq!(found.status, 204, "{found:?}");
        assert_eq!(
            connections[2].ask("DELETE", &path(&name), &[], b"").status,
            204
        );
        assert_eq!(
            connections[0].ask("GET", &path(&name), &[], b"").status,
            404
        );
    }
    // The content type of a stream that another node has made decides.
    assert_eq!(
        connections[2]
            .ask("PUT", &path("text"), &["Content-Type: text/plain"], b"")
            .status,
        201
    );
    let differs = connections[0].ask("POST", &path("text"), &[JSON], b"1");
    assert_eq!(
        (differs.status, &*differs.error_code()),
        (409, "type_differs")
    );
    for node in nodes {
        assert_eq!(node.terminate().code, Some(0));
    }
}

#[test]
fn a_body_that_is_larger_than_a_message_travels_in_parts() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &[]);
    let b = node(&brokers, "b", dirs[1].path(), &[]);
    let body: Vec<u8> = (0..5_000_000_u32).map(|byte| (byte % 251) as u8).collect();
    let made = a.ask(
        "PUT",
        &path("large"),
        &["Content-Type: application/octet-stream"],
        &body,
    );
    assert_eq!(made.status, 201, "{made:?}");
    let read = b.ask("GET", &format!("{}?offset=-1", path("large")), &[], b"");
    assert_eq!(read.status, 200);
    assert!(read.body == body, "{} bytes", read.body.len());
}

#[test]
fn a_node_that_was_killed_continues_where_it_was() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &[]);
    let mut b = node(&brokers, "b", dirs[1].path(), &[]);
    a.create("s");
    let mut number = 0;
    for _ in 0..3 {
        let mut connection = b.connect();
        for _ in 0..20 {
            assert_eq!(append(&mut connection, number), 204);
            number += 1;
        }
        b.kill();
        let mut connection = a.connect();
        for _ in 0..20 {
            assert_eq!(append(&mut connection, number), 204);
            number += 1;
        }
        b = node(&brokers, "b", dirs[1].path(), &[]);
    }
    let expected: Vec<u64> = (0..number).collect();
    assert_eq!(have_the_same(&[&a, &b], "s"), expected);
    // A node that starts with nothing follows from the beginning.
    let empty = data_dir();
    let c = node(&brokers, "c", empty.path(), &[]);
    assert_eq!(have_the_same(&[&a, &b, &c], "s"), expected);
}

#[test]
fn a_record_has_the_time_of_the_order_at_every_node() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    const APPENDS: usize = 10;
    let dirs = [data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &[]);
    let b = node(&brokers, "b", dirs[1].path(), &[]);
    times::create(&a);
    let live = [times::Reader::all(&a), times::Reader::all(&b)];
    for number in 0..APPENDS {
        times::append([&a, &b][number % 2], number..number + 1, 1);
    }
    let [at_a, at_b] = live.map(|readers| times::read(readers, APPENDS));
    assert_eq!(at_a, at_b);
    // After a crash, from files, and at a node that gets the order anew.
    b.kill();
    let b = node(&brokers, "b", dirs[1].path(), &[]);
    let empty = data_dir();
    let c = node(&brokers, "c", empty.path(), &[]);
    for node in [&a, &b, &c] {
        assert_eq!(times::read(times::Reader::all(node), APPENDS), at_a);
    }
}

pub(crate) fn append(connection: &mut Connection, number: u64) -> u16 {
    let body = number.to_string();
    connection
        .ask("POST", &path("s"), &[JSON], body.as_bytes())
        .status
}

#[test]
fn a_stream_that_any_node_reads_stays_alive() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let a = node(&brokers, "a", dirs[0].path(), &[]);
    let b = node(&brokers, "b", dirs[1].path(), &[]);
    for name in ["read", "idle"] {
        let made = a.ask("PUT", &path(name), &[JSON, "Stream-TTL: 10"], b"");
        assert_eq!(made.status, 201, "{made:?}");
    }
    // Its lifetime began first.
    eventually("the stream that is not read has ended", || {
        assert_eq!(b.ask("GET", &path("read"), &[], b"").status, 200);
        std::thread::sleep(Duration::from_millis(400));
        [&a, &b].map(|node| node.ask("HEAD", &path("idle"), &[], b"").status) == [404, 404]
    });
    assert_eq!(a.ask("HEAD", &path("read"), &[], b"").status, 200);
}

#[test]
#[ignore = "long: make test-all"]
fn the_commands_say_how_a_fleet_is() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let urls = brokers.urls();
    let ask = |arguments: &[&str]| {
        let ended = Ended::of(&mut crate::rig::command(
            &[&["fleet"], arguments, &["--fleet", &urls]].concat(),
        ));
        (ended.code, ended.stdout, ended.stderr)
    };
    let (code, _, why) = ask(&["status"]);
    assert_eq!(code, Some(1));
    assert!(why.contains("have no fleet \"encke\""), "{why}");
    let dirs = [data_dir(), data_dir()];
    let flags = ["--fleet-silence-max", "5s"];
    let a = node(&brokers, "a", dirs[0].path(), &flags);
    let b = node(&brokers, "b", dirs[1].path(), &flags);
    a.create("s");
    for number in 0..5 {
        assert_eq!(append(&mut b.connect(), number), 204);
    }
    let (code, text, why) = ask(&["status"]);
    assert_eq!(code, Some(0), "{text}{why}");
    assert_eq!(text.matches(" ready").count(), 2, "{text}");
    let (code, text, _) = ask(&["verify", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(2));
    assert!(report["compared"][0].as_u64() >= Some(6), "{text}");
    let (code, text, _) = ask(&["verify"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("all 2 nodes and the brokers have the same order"),
        "{text}"
    );
    // What belongs to a node is gathered, too.
    let subscribers = [
        a.subscribe("s", "-1"),
        a.subscribe("s", "-1"),
        b.subscribe("s", "-1"),
    ];
    let mut last = String::new();
    eventually(
        "the report counts subscribers and finds one dispatcher",
        || {
            last = ask(&["status", "--json"]).1;
            let report: serde_json::Value = serde_json::from_str(&last).expect("JSON");
            let of = |node: usize, what: &str| report["nodes"][node]["activity"][what].clone();
            let dispatch = [of(0, "dispatches") == true, of(1, "dispatches") == true];
            let [a, b] = [of(0, "subscribers"), of(1, "subscribers")];
            dispatch[0] != dispatch[1] && a == 2 && b == 1
        },
    );
    let (_, text, _) = ask(&["status"]);
    let all = text.lines().find(|line| line.starts_with("all "));
    let all: Vec<_> = all.into_iter().flat_map(str::split_whitespace).collect();
    // Subscribers, and takeovers.
    assert_eq!((all.get(2), all.get(3)), (Some(&"3"), Some(&"1")), "{text}");
    drop(subscribers);
    // A name belongs to one process.
    let other = data_dir();
    let refused = Ended::of(&mut command(&brokers, "a", other.path(), &[]));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("a node a of the fleet encke runs already"),
        "{refused:?}"
    );
    // A node that is stopped does not answer; the report says so.
    b.freeze();
    let (code, text, _) = ask(&["status"]);
    assert_eq!(code, Some(5), "{text}");
    assert!(
        text.contains("problem: node b has taken part and does not answer"),
        "{text}"
    );
    a.freeze();
    let (code, text, _) = ask(&["status"]);
    assert_eq!(code, Some(5), "{text}");
    assert!(text.contains("problem: no node answers"), "{text}");
    b.signal(Signal::CONT);
    a.signal(Signal::CONT);
}

#[test]
fn the_doctor_says_what_the_brokers_are_like() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let dir = data_dir();
    let data = dir.path().to_str().expect("UTF-8").to_owned();
    // Nothing listens at the second address.
    let urls = format!("{},nats://127.0.0.1:1", brokers.urls());
    let doctor = |replicas: &str| {
        let replicas = format!("fleet-replicas={replicas}");
        let ended = Ended::of(&mut crate::rig::command(&[
            "doctor",
            "--json",
            "--fleet",
            &urls,
            "--node",
            "a",
            "--tuning",
            &replicas,
            "--listen",
            "127.0.0.1:0",
            "--data",
            &data,
            "-n",
            "10",
        ]));
        let report: serde_json::Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {ended:?}"));
        (ended.code, report)
    };
    let verdict = |report: &serde_json::Value, name: &str| {
        let checks = report["checks"].as_array().expect("checks").iter();
        let mut found = checks.filter(|check| check["name"].as_str() == Some(name));
        let found = found.next().unwrap_or_else(|| panic!("{name}: {report}"));
        let text = |what: &str| found[what].as_str().expect("text").to_owned();
        (text("verdict"), text("value"))
    };
    let first = format!("broker {}", brokers.urls());
    let (code, report) = doctor("1");
    assert_eq!(code, Some(0), "{report}");
    for (name, expected, value) in [
        (&*first, "fits", "answers in"),
        (&*format!("{first}, version"), "fits", "nats-server 2."),
        (&*format!("{first}, clock"), "fits", " ms "),
        ("broker nats://127.0.0.1:1", "advice", "refused"),
        ("brokers, JetStream", "fits", "enabled"),
        ("brokers, sync of messages", "unknown", "do not tell"),
        ("fleet, logs", "fits", "none yet"),
    ] {
        let (verdict, says) = verdict(&report, name);
        assert!(
            verdict == expected && says.contains(value),
            "{name}: {verdict}, {says}"
        );
    }
    let (_, stored) = verdict(&report, "brokers, time to store a message");
    assert!(stored.contains(" ms"), "{stored}");
    // One broker cannot store on three.
    let (code, report) = doctor("3");
    assert_eq!(code, Some(5), "{report}");
    let (failed, stored) = verdict(&report, "brokers, time to store a message");
    assert!(
        failed == "fails" && stored.contains("fewer than the replicas"),
        "{stored}"
    );
    // A fleet that is there is described, and is not changed.
    let other = data_dir();
    let a = node(&brokers, "a", other.path(), &[]);
    a.create("s");
    let (code, report) = doctor("3");
    assert_eq!(code, Some(0), "{report}");
    let (differs, order) = verdict(&report, "fleet, order of log 0");
    assert_eq!((&*differs, &*order), ("advice", "on 1 broker"));
    assert_eq!(append(&mut a.connect(), 0), 204);
    drop(a);
    brokers.kill(0);
    let (code, report) = doctor("1");
    assert_eq!(code, Some(5), "{report}");
    assert_eq!(verdict(&report, &first).0, "fails");
}

#[test]
fn a_directory_belongs_to_a_node_or_to_a_server_by_itself() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dir = data_dir();
    let alone = Encke::start_in(dir.path(), &[]);
    alone.create("s");
    alone.terminate();
    let refused = Ended::of(&mut command(&brokers, "a", dir.path(), &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("a node starts with an empty directory"),
        "{refused:?}"
    );
    let dir = data_dir();
    let a = node(&brokers, "a", dir.path(), &[]);
    a.create("s");
    a.terminate();
    let refused = Ended::of(&mut serve(dir.path(), &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("start it with --fleet"),
        "{refused:?}"
    );
    let two = Ended::of(&mut command(
        &brokers,
        "b",
        data_dir().path(),
        &["--logs", "2"],
    ));
    assert_eq!(two.code, Some(2), "{two:?}");
    assert!(two.stderr.contains("the fleet has 1 logs"), "{two:?}");
    let small = ["--segment", "4MiB", "--body-max", "1MiB"];
    let small = Ended::of(&mut command(&brokers, "b", data_dir().path(), &small));
    assert_eq!(small.code, Some(2), "{small:?}");
    let why = "start it with --segment 67108864";
    assert!(small.stderr.contains(why), "{small:?}");
    drop(node(
        &brokers,
        "b",
        data_dir().path(),
        &["--segment", "67108864"],
    ));
}
