//! What nodes of a fleet do while brokers are stopped, killed or emptied.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::ephemeral::EPHEMERAL;
use crate::fleet::{append, command, have_the_same, node};
use crate::rig::{BrokerProxy, Brokers, Encke, Ended, JSON, data_dir, eventually, path};

#[test]
fn a_user_and_a_password_in_the_address_of_a_broker_are_used() {
    let Some(brokers) = Brokers::start_locked("me", "p@ss") else {
        return;
    };
    let at = brokers.address(0);
    let status = |login: &str| {
        let url = format!("nats://{login}{at}");
        Ended::of(&mut crate::rig::command(&[
            "fleet", "status", "--fleet", &url,
        ]))
    };
    for wrong in ["", "me:pass@"] {
        let refused = status(wrong);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert!(!refused.stderr.contains("me:"), "{refused:?}");
    }
    let dir = data_dir();
    let url = format!("nats://me:p%40ss@{at}");
    let a = Encke::start_in(
        dir.path(),
        &[
            "--fleet",
            &url,
            "--node",
            "a",
            "--tuning",
            "fleet-replicas=1",
        ],
    );
    a.create("s");
    let shown = status("me:p%40ss@");
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(!a.log().contains("p%40ss"), "{}", a.log());
}

#[test]
fn a_version_of_a_broker_that_may_lose_messages_is_named() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let flags = |url: &str| {
        let flags = [
            "--fleet",
            url,
            "--node",
            "a",
            "--tuning",
            "fleet-replicas=1",
        ];
        flags.map(str::to_owned)
    };
    for (version, is_named) in [("2.14.7", true), ("2.14.8", false)] {
        let proxy = BrokerProxy::with_version(brokers.address(0), version);
        let flags = flags(&proxy.url());
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let dir = data_dir();
        let a = Encke::start_in(dir.path(), &flags);
        assert_eq!(
            a.log().contains("a power cut can lose"),
            is_named,
            "{}",
            a.log()
        );
        drop(a);
        let data = dir.path().to_str().expect("UTF-8");
        let arguments = [&["doctor", "-n", "10", "--data", data], &*flags].concat();
        let doctor = Ended::of(&mut crate::rig::command(&arguments));
        assert!(
            doctor.stdout.contains(&format!("nats-server {version}")),
            "{doctor:?}"
        );
        assert_eq!(
            doctor.stdout.contains("a power cut can lose"),
            is_named,
            "{doctor:?}"
        );
    }
}

#[test]
fn without_a_broker_nothing_is_acknowledged_and_subscribers_are_sent_elsewhere() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let flags = ["--fleet-retry", "3s", "--fleet-silence-max", "5s"];
    let a = node(&brokers, "a", dirs[0].path(), &flags);
    let b = node(&brokers, "b", dirs[1].path(), &flags);
    a.create("s");
    let mut subscriber = b.subscribe("s", "-1");
    let mut connection = a.connect();
    for number in 0..5 {
        assert_eq!(append(&mut connection, number), 204);
    }
    assert_eq!(subscriber.numbers(5), [0, 1, 2, 3, 4]);
    brokers.freeze(0);
    let unknown = connection.ask("POST", &path("s"), &[JSON], b"5");
    assert_eq!(
        (unknown.status, &*unknown.error_code()),
        (503, "unconfirmed")
    );
    // Reads would not say what was acknowledged elsewhere.
    let read = a.ask("GET", &path("s"), &[], b"");
    assert_eq!(read.status, 503, "{read:?}");
    // What waits while the append is given up is not sent at all.
    let codes = ["unconfirmed", "log_stalled"];
    assert!(codes.contains(&&*read.error_code()), "{read:?}");
    eventually("the nodes are not ready", || {
        [&a, &b]
            .iter()
            .all(|node| node.ask("GET", "/readyz", &[], b"").status == 503)
    });
    let why = a.ask("GET", "/readyz", &[], b"");
    let why = String::from_utf8_lossy(&why.body).into_owned();
    assert!(
        why.contains("no broker has answered about the order"),
        "{why}"
    );
    assert_eq!(
        subscriber.rest(),
        Vec::<u64>::new(),
        "the subscriber is closed"
    );
    brokers.thaw(0);
    eventually("the nodes are ready again", || {
        [&a, &b]
            .iter()
            .all(|node| node.ask("GET", "/readyz", &[], b"").status == 200)
    });
    eventually("appends are acknowledged again", || {
        append(&mut connection, 6) == 204
    });
    let numbers = have_the_same(&[&a, &b], "s");
    // What was not confirmed may be there once.
    let unconfirmed = numbers.iter().filter(|number| **number == 5).count();
    assert!(unconfirmed <= 1, "{numbers:?}");
    assert_eq!(numbers[..5], [0, 1, 2, 3, 4]);
    assert!(a.metric("encke_fleet_given_up_total", "") >= 1.0);
}

#[test]
fn a_broker_that_returns_with_a_smaller_limit_on_messages_gets_smaller_ones() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let flags = ["--fleet-retry", "60s"];
    let a = node(&brokers, "a", dirs[0].path(), &flags);
    let b = node(&brokers, "b", dirs[1].path(), &flags);
    a.create("s");
    brokers.kill(0);
    let body = |bytes: usize| format!("\"{}\"", "x".repeat(bytes));
    let ephemeral = |bytes| {
        a.ask(
            "POST",
            &path("s"),
            &[JSON, EPHEMERAL],
            body(bytes).as_bytes(),
        )
    };
    eventually("the node has no broker", || ephemeral(1).status == 503);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let a = &a;
        let clients: Vec<_> = (0..40)
            .map(|number| {
                let bytes = if number == 20 { 500_000 } else { 20_000 };
                let send = move || {
                    a.ask("POST", &path("s"), &[JSON], body(bytes).as_bytes())
                        .status
                };
                scope.spawn(send)
            })
            .collect();
        eventually("a batch waits", || {
            a.metric("encke_fleet_commands_in_flight", "") > 0.0
        });
        brokers.reconfigure(0, "max_payload: 8KB");
        clients
            .into_iter()
            .map(|client| client.join().expect("it does not panic"))
            .collect()
    });
    assert_eq!(statuses, [204; 40]);
    let tails = [&a, &b].map(|node| {
        let head = node.ask("HEAD", &path("s"), &[], b"");
        head.field("Stream-Next-Offset").map(str::to_owned)
    });
    assert_eq!(tails[0], tails[1]);
    assert_eq!(ephemeral(4_000).status, 204);
    let refused = ephemeral(12_000);
    assert_eq!((refused.status, &*refused.error_code()), (413, "too_large"));
    let why = String::from_utf8_lossy(&refused.body);
    assert!(why.contains("the brokers of the fleet take 8192"), "{why}");
}

#[test]
fn brokers_that_store_nothing_are_named_by_all_commands() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    brokers.reconfigure(0, "jetstream { max_file_store: 4MB }");
    let dir = data_dir();
    let a = node(&brokers, "a", dir.path(), &["--fleet-retry", "1s"]);
    a.create("s");
    let body = format!("\"{}\"", "x".repeat(500_000));
    eventually("the brokers are full", || {
        a.ask("POST", &path("s"), &[JSON], body.as_bytes()).status == 503
    });
    let urls = brokers.urls();
    let run = |arguments: &[&str]| {
        let arguments = [arguments, &["--fleet", &urls]].concat();
        Ended::of(&mut crate::rig::command(&arguments))
    };
    let cause = "insufficient resources";
    let doctor = run(&["doctor", "--node", "b", "--tuning", "fleet-replicas=1"]);
    assert!(doctor.stdout.contains(cause), "{doctor:?}");
    let mut why = String::new();
    eventually("the node says why it is not ready", || {
        let answer = a.ask("GET", "/readyz", &[], b"");
        why = String::from_utf8_lossy(&answer.body).into_owned();
        answer.status == 503 && why.contains(cause)
    });
    for command in ["status", "verify"] {
        let report = run(&["fleet", command]);
        assert_eq!(report.code, Some(5), "{report:?}");
        let problem = "problem: node a: the brokers do not store what this node sends";
        assert!(report.stdout.contains(problem), "{report:?}");
        assert!(report.stdout.contains(cause), "{report:?}");
    }
    brokers.reconfigure(0, "jetstream { max_file_store: 1GB }");
    eventually("the node is ready again", || {
        a.ask("GET", "/readyz", &[], b"").status == 200
    });
    assert_eq!(run(&["fleet", "status"]).code, Some(0));
}

#[test]
#[ignore = "long: make test-all"]
fn what_one_of_three_brokers_says_does_not_count() {
    let Some(mut brokers) = Brokers::start(3) else {
        return;
    };
    let dir = data_dir();
    // It waits until the brokers have found each other, and the next start waits for 5 s only.
    drop(node(&brokers, "a", dir.path(), &[]));
    let a = node(&brokers, "a", dir.path(), &["--fleet-silence-max", "5s"]);
    a.create("s");
    let mut connection = a.connect();
    assert_eq!(append(&mut connection, 1), 204);
    brokers.kill(1);
    brokers.kill(2);
    let unready = || {
        let answer = a.ask("GET", "/readyz", &[], b"");
        (answer.status == 503).then(|| String::from_utf8_lossy(&answer.body).into_owned())
    };
    eventually("the node is not ready", || unready().is_some());
    // Ten seconds after the last leader is gone, a broker begins to answer with what it has.
    let begin = Instant::now();
    let mut why = String::new();
    while begin.elapsed() < Duration::from_secs(14) {
        why = unready().expect("one broker is no majority");
        std::thread::sleep(Duration::from_millis(50));
    }
    let expected = "no leader of the order is in touch with a majority of the brokers";
    assert!(why.contains(expected), "{why}");
    brokers.run(1);
    eventually("the node is ready again", || unready().is_none());
    eventually("appends are acknowledged again", || {
        append(&mut connection, 2) == 204
    });
}

#[test]
#[ignore = "long: make test-all"]
fn brokers_that_have_lost_the_order_are_not_followed() {
    let Some(mut brokers) = Brokers::start(1) else {
        return;
    };
    let dir = data_dir();
    let a = node(&brokers, "a", dir.path(), &["--fleet-retry", "1s"]);
    a.create("s");
    let mut connection = a.connect();
    for number in 0..5 {
        assert_eq!(append(&mut connection, number), 204);
    }
    brokers.kill(0);
    std::fs::remove_dir_all(brokers.store(0)).expect("it is ours");
    brokers.run(0);
    // The running node finds out, acknowledges nothing more, and says why.
    // Before, it may be unready because a batch was not confirmed.
    eventually("the node says that the order is lost", || {
        let answer = a.ask("GET", "/readyz", &[], b"");
        let why = "the brokers have lost the order";
        answer.status == 503 && String::from_utf8_lossy(&answer.body).contains(why)
    });
    // Nothing is sent any more, so it is known that nothing is stored.
    let refused = connection.ask("POST", &path("s"), &[JSON], b"5");
    assert_eq!(
        (refused.status, &*refused.error_code()),
        (503, "log_failed")
    );
    // A node without data does not begin another order beside it.
    let other = data_dir();
    let refused = Ended::of(&mut command(&brokers, "b", other.path(), &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let why = "the brokers have lost the order of log 0, which the node a followed";
    assert!(refused.stderr.contains(why), "{refused:?}");
    a.terminate();
    let refused = Ended::of(&mut command(&brokers, "a", dir.path(), &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("the brokers have lost a part of the order of log 0"),
        "{refused:?}"
    );
    // Another order of at least the same length is another one, too.
    let b = node(&brokers, "b", other.path(), &[]);
    b.create("s");
    let mut connection = b.connect();
    for number in 0..20 {
        assert_eq!(append(&mut connection, number), 204);
    }
    let refused = Ended::of(&mut command(&brokers, "a", dir.path(), &[]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("is another one than this node has followed"),
        "{refused:?}"
    );
}

#[test]
#[ignore = "long: make test-all"]
fn a_cluster_of_brokers_survives_the_loss_of_any_of_them() {
    let Some(mut brokers) = Brokers::start(3) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let start = |name, dir: &Path| {
        // A cluster needs a moment until it has a leader.
        let begin = Instant::now();
        loop {
            match Encke::try_start_by(&mut command(
                &brokers,
                name,
                dir,
                &[
                    "--fleet-retry",
                    "20s",
                    "--log",
                    "info,encke_fleet=debug,async_nats=debug",
                ],
            )) {
                Ok(node) => return node,
                Err(ended) => assert!(begin.elapsed() < Duration::from_secs(60), "{ended:?}"),
            }
        }
    };
    let a = start("a", dirs[0].path());
    let b = start("b", dirs[1].path());
    a.create("s");
    let mut connections = [a.connect(), b.connect()];
    let mut number = 0;
    for lost in 0..3 {
        for _ in 0..10 {
            assert_eq!(append(&mut connections[number as usize % 2], number), 204);
            number += 1;
        }
        brokers.kill(lost);
        for _ in 0..10 {
            assert_eq!(
                append(&mut connections[number as usize % 2], number),
                204,
                "without broker {lost}"
            );
            number += 1;
        }
        brokers.run(lost);
        eventually("the broker has caught up", || {
            // The next loss must not be one of two.
            std::thread::sleep(Duration::from_secs(2));
            a.ask("GET", "/readyz", &[], b"").status == 200
        });
    }
    let expected: Vec<u64> = (0..number).collect();
    assert_eq!(have_the_same(&[&a, &b], "s"), expected);
}
