//! Sprays, and the verification of what was acknowledged.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use encke_bench::BenchError;
use encke_bench::load::{
    SprayArgs, SprayReport, VerifyArgs, VerifyReport, spray, spray_beside, verify,
};
use server::{Behaviour, Server};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn args(server: &Server, log: &Path) -> SprayArgs {
    SprayArgs {
        url: server.url.clone(),
        prefix: "s".into(),
        producers: 4,
        streams: 10,
        messages: Some(500),
        ack_log: Some(log.to_owned()),
        progress: Some(Duration::from_secs(60)),
        ..SprayArgs::default()
    }
}

fn run(args: &SprayArgs) -> SprayReport {
    spray(args, &AtomicBool::new(false)).unwrap()
}

fn check(server: &Server, log: &Path, content_type: &str) -> VerifyReport {
    let args = VerifyArgs {
        url: server.url.clone(),
        ack_log: log.to_owned(),
        content_type: content_type.to_owned(),
        ..VerifyArgs::default()
    };
    verify(&args, &AtomicBool::new(false)).unwrap()
}

#[test]
fn two_servers_have_their_turns() {
    let dir = tempfile::tempdir().unwrap();
    let servers = [(); 2].map(|()| Server::start(Behaviour::default()));
    let args = SprayArgs {
        ack_log: None,
        messages: Some(50),
        beside: Some(servers[1].url.clone()),
        beside_pid: Some(std::process::id()),
        rounds: 3,
        ..args(&servers[0], dir.path())
    };
    let never = AtomicBool::new(false);
    let report = spray_beside(&args, &never).unwrap();
    assert_eq!((report.rounds.len(), report.exit_code()), (3, 0));
    for ([first, second], ratio) in report.rounds.iter().zip(report.ratios()) {
        assert_eq!(
            (first.url.as_str(), second.url.as_str()),
            (&*servers[0].url, &*servers[1].url)
        );
        assert_eq!((first.acknowledged, second.acknowledged), (50, 50));
        assert!(first.server_cpu_per_message_us.is_none());
        assert!(second.server_cpu_per_message_us.is_some());
        assert!(ratio > 0.0);
    }
    assert_eq!(servers.each_ref().map(Server::stored), [150, 150]);
    assert!(
        report.to_string().contains("in the middle round"),
        "{report}"
    );
    for wrong in [
        SprayArgs {
            beside: None,
            ..args.clone()
        },
        SprayArgs {
            messages: None,
            ..args.clone()
        },
        SprayArgs {
            ack_log: Some("acks".into()),
            ..args.clone()
        },
    ] {
        assert!(matches!(
            spray_beside(&wrong, &never),
            Err(BenchError::Option(_))
        ));
    }
}

#[test]
fn all_is_acknowledged_and_there() {
    for content_type in ["application/json", "text/plain", "application/octet-stream"] {
        for pipeline in [1, 8] {
            let dir = tempfile::tempdir().unwrap();
            let log = dir.path().join("acks");
            let server = Server::start(Behaviour::default());
            let content_type = content_type.to_owned();
            let args = SprayArgs {
                pipeline,
                content_type,
                ..args(&server, &log)
            };
            let report = run(&args);
            assert_eq!(
                (report.sent, report.acknowledged, report.exit_code()),
                (500, 500, 0)
            );
            assert_eq!(report.acknowledgement.unwrap().count, 500);
            assert_eq!(server.stored(), 500);
            let report = check(&server, &log, &args.content_type);
            assert_eq!(
                (report.acknowledged, report.findings.found),
                (500, 500),
                "{report}"
            );
            assert_eq!(
                (report.findings.unacknowledged, report.findings.strangers),
                (0, 0)
            );
            assert_eq!(report.exit_code(), 0, "{report}");
        }
    }
}

#[test]
fn one_log_covers_several_runs_on_one_stream() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("acks");
    let server = Server::start(Behaviour::default());
    for _ in 0..3 {
        run(&SprayArgs {
            one: Some("lonely".into()),
            ..args(&server, &log)
        });
    }
    let report = check(&server, &log, "application/json");
    assert_eq!(
        (report.streams, report.producers, report.acknowledged),
        (1, 12, 1_500)
    );
    assert!(report.is_success(), "{report}");
}

#[test]
fn a_rate_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Behaviour::default());
    let report = run(&SprayArgs {
        rate: Some(400.0),
        messages: Some(100),
        ..args(&server, &dir.path().join("acks"))
    });
    assert_eq!(report.acknowledged, 100, "{report}");
    // The last message is due a quarter of a second after the first.
    assert!(report.seconds >= 99.0 / 400.0, "{report}");
    assert_eq!(report.lateness.unwrap().count, report.sent);
}

#[test]
fn lost_answers_leave_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("acks");
    let server = Server::start(Behaviour {
        lose_answer_every: Some(20),
        refuse_every: Some(33),
        ..Behaviour::default()
    });
    let report = run(&SprayArgs {
        pipeline: 4,
        ..args(&server, &log)
    });
    assert!(report.refused.connections_lost > 10, "{report}");
    assert!(report.refused.by_status[&503] > 5, "{report}");
    let verified = check(&server, &log, "application/json");
    assert!(verified.is_success(), "{verified}");
    assert!(
        report.acknowledged < 500 && report.exit_code() == 1,
        "{report}"
    );
    // Some of what was not answered was kept all the same.
    assert!(verified.findings.unacknowledged > 0, "{verified}");
}

#[test]
fn broken_promises_are_found_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("acks");
    let server = Server::start(Behaviour {
        lost: vec![("s3", 5)],
        doubled: vec![("s4", 6), ("s5", 0)],
        swapped: vec![("s6", 2)],
        ..Behaviour::default()
    });
    run(&args(&server, &log));
    server.forget_last("s7");
    let report = check(&server, &log, "application/json");
    let findings = &report.findings;
    let found = [&findings.missing, &findings.duplicates, &findings.reordered].map(|found| {
        let mut all: Vec<_> = found
            .examples
            .iter()
            .map(|f| (f.stream.as_str(), f.sequence))
            .collect();
        all.sort_unstable();
        (found.count, all)
    });
    assert_eq!((found[0].0, found[0].1[0]), (2, ("s3", 5)), "{report}");
    assert_eq!(found[0].1[1].0, "s7", "{report}");
    assert_eq!(found[1], (2, vec![("s4", 6), ("s5", 0)]), "{report}");
    assert_eq!(found[2], (1, vec![("s6", 2)]), "{report}");
    assert_eq!(report.exit_code(), 1);
    assert_eq!(findings.found, 498);

    server.forget("s7");
    let report = check(&server, &log, "application/json");
    assert!(report.findings.missing.count > 20, "{report}");
    assert_eq!(report.streams_read, 10);
}

#[test]
fn a_server_that_is_gone_ends_the_spray_with_its_report() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Behaviour::default());
    let report = run(&SprayArgs {
        url: "http://127.0.0.1:1/v1/stream".into(),
        no_create: true,
        reconnect_timeout: Duration::from_millis(100),
        ..args(&server, &dir.path().join("acks"))
    });
    assert_eq!(
        (report.acknowledged, report.refused.producers_given_up),
        (0, 4)
    );
    assert_eq!(report.exit_code(), 1);
}
