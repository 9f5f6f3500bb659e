//! `/readyz` goes the whole way of a record: it fails when a disk, a sequencer or a shard stalls, says which, and recovers.

use rustix::process::Signal;

use crate::multi_stream::MultiStream;
use crate::rig::{
    Connection, Encke, Fault, JSON, Slowed, data_dir, eventually, operators_address, path, request,
    strace_works,
};

/// Asks whether the server is ready, and returns the status and what it says.
fn readyz(encke: &Encke) -> (u16, String) {
    let answer = encke.ask("GET", "/readyz", &[], b"");
    (
        answer.status,
        String::from_utf8(answer.body).expect("it is text"),
    )
}

fn probes(encke: &Encke, outcome: &str) -> u64 {
    encke.metric("encke_probes_total", &format!("outcome=\"{outcome}\"")) as u64
}

/// The calls of a thread that is to hang.
const CALLS: &str =
    "futex,epoll_wait,epoll_pwait,epoll_pwait2,recvfrom,read,write,pwrite64,fdatasync";

const EVERY_SECOND: [&str; 4] = [
    "--tuning",
    "health-every=1s",
    "--tuning",
    "health-wait-max=1s",
];

#[test]
fn a_probe_is_made_when_health_is_asked_and_is_shared() {
    let flags = [
        "--shards",
        "3",
        "--logs",
        "2",
        "--tuning",
        "health-every=1h",
    ];
    for level in ["synced", "accepted"] {
        let encke = Encke::start(&[&flags[..], &["--ack", level]].concat());
        // No client sees it, not even one that follows all streams.
        encke.create("s");
        let mut all = MultiStream::open(&encke, "stream=**", None);
        assert_eq!(
            encke.metric("encke_probes_total", ""),
            0.0,
            "nothing was asked"
        );
        let mut asking: Vec<Connection> = (0..50).map(|_| encke.connect()).collect();
        for connection in &mut asking {
            connection.send(&request("GET", "/readyz", &[], b""));
        }
        for connection in &mut asking {
            assert_eq!(connection.answer().status, 200);
        }
        assert_eq!(probes(&encke, "delivered"), 1);
        assert_eq!(encke.metric("encke_probes_total", ""), 1.0);
        for shard in 0..3 {
            let label = format!("shard=\"{shard}\"");
            assert!(
                encke.metric("encke_probe_delivery_seconds", &label) > 0.0,
                "{label}"
            );
        }
        for log in 0..2 {
            let label = format!("log=\"{log}\"");
            assert!(
                encke.metric("encke_probe_commit_seconds", &label) > 0.0,
                "{label}"
            );
        }
        let list = encke.ask("GET", "/v1/stream", &[], b"");
        let list: serde_json::Value = serde_json::from_slice(&list.body).expect("JSON");
        assert_eq!(
            list["streams"].as_array().expect("a list").len(),
            1,
            "{list}"
        );
        let one = encke.ask("POST", &path("s"), &[JSON], b"1");
        assert_eq!(one.status, 204);
        assert_eq!(all.numbers(1), [("s".to_owned(), 1)]);
        // The subscribers of the probe are gone, and never were clients.
        eventually("nothing of the probe is left", || {
            encke.metric("encke_subscribers", "") == 1.0
        });
        for method in ["GET", "POST"] {
            let probe = encke.ask(method, "/v1/admin/probe", &[], b"");
            assert_eq!(probe.status, 404, "it is for the server itself");
        }
    }
}

#[test]
fn limits_of_clients_do_not_reach_the_probe() {
    let limits = [
        "--exempt",
        "none",
        "--connections-max",
        "1",
        "--request-rate",
        "1",
        "--tuning",
        "request-burst=1",
        "--proxy-protocol",
        "--trust",
        "127.0.0.1",
    ];
    let flags = ["--shards", "2", "--admin-listen", "127.0.0.1:0"];
    let mut encke = Encke::start(&[&flags[..], &limits, &EVERY_SECOND].concat());
    let operators = operators_address(&mut encke.take_stdout());
    // The only place is taken.
    let _client = encke.connect();
    let ask = |target: &str| Connection::open(operators).ask("GET", target, &[], b"");
    let delivered = || {
        let metrics = ask("/metrics");
        let text = String::from_utf8(metrics.body).expect("metrics are text");
        let line = "encke_probes_total{outcome=\"delivered\"} ";
        let count = text.lines().find_map(|line_of| line_of.strip_prefix(line));
        count
            .expect("it is there")
            .parse::<u64>()
            .expect("a number")
    };
    eventually("there were several probes", || {
        ask("/readyz").status == 200 && delivered() > 2
    });
}

#[test]
fn a_restart_continues_with_the_stream_of_the_probe() {
    let data = data_dir();
    for _ in 0..2 {
        let encke = Encke::start_in(data.path(), &["--logs", "2"]);
        assert_eq!(readyz(&encke), (200, "ready\n".into()));
        assert_eq!(probes(&encke, "delivered"), 1);
        assert_eq!(encke.terminate().code, Some(0));
    }
}

#[test]
fn a_disk_that_does_not_sync_is_named_and_recovers() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("the parent is a directory of ours");
    // The first sync takes eight seconds.
    let fault = Fault::new(&data, dir.path(), "fdatasync:delay_enter=8000000:when=1");
    let encke = Encke::start_by(&mut fault.serve(&data, &EVERY_SECOND));
    eventually("it is ready", || readyz(&encke).0 == 200);
    fault.arm();
    eventually("the stall is noticed", || readyz(&encke).0 == 503);
    let why = readyz(&encke).1;
    let durable =
        "log 0 has made no record durable (its sequencer, or the write or sync of its disk)";
    assert_eq!(
        why,
        format!("not ready: deliveries stall: within 1 s {durable}\n")
    );
    assert!(probes(&encke, "stalled") > 0);
    // Nothing is wrong with what needs no disk.
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    let log = encke.log();
    assert!(log.contains(durable) || log.is_empty(), "{log}");
    eventually("it is ready again", || readyz(&encke).0 == 200);
}

#[test]
fn a_thread_that_hangs_is_named_and_recovers() {
    if !strace_works() {
        return;
    }
    for (thread, why) in [
        ("shard-1", "within 1 s shard 1 has answered no request"),
        ("sequencer", "within 1 s log 0 has made no record durable"),
    ] {
        let flags = ["--shards", "2", "--admin-listen", "127.0.0.1:0"];
        let mut encke = Encke::start(&[&flags[..], &EVERY_SECOND].concat());
        let address = operators_address(&mut encke.take_stdout());
        // The first shard serves operators.
        let ask = || {
            let answer = Connection::open(address).ask("GET", "/readyz", &[], b"");
            (
                answer.status,
                String::from_utf8(answer.body).expect("it is text"),
            )
        };
        eventually("it is ready", || ask() == (200, "ready\n".into()));
        let slowed = Slowed::new(&encke, thread, &format!("{CALLS}:delay_enter=5000000"));
        eventually("the stall is noticed", || ask().0 == 503);
        let said = ask().1;
        assert!(said.contains(why), "{thread}: {said}");
        drop(slowed);
        eventually("it is ready again", || ask().0 == 200);
    }
}

#[test]
fn a_server_that_stops_later_serves_and_is_not_ready() {
    let encke = Encke::start(&["--log", "info", "--tuning", "stop-delay=1h"]);
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "-1");
    assert_eq!(readyz(&encke).0, 200);
    encke.signal(Signal::TERM);
    let mut why = String::new();
    eventually("the server is not ready", || {
        let (status, text) = readyz(&encke);
        why = text;
        status == 503
    });
    assert!(why.contains("the server stops"), "{why}");
    let answer = encke.ask("POST", &path("s"), &[JSON], b"1");
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(subscriber.numbers(1), [1]);
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(encke.stop(Signal::TERM).code, Some(143));

    let encke = Encke::start(&["--tuning", "stop-delay=10ms"]);
    assert_eq!(encke.terminate().code, Some(0));
}
