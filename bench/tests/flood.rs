//! Floods against a simulated server that is correct or faulty.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use encke_bench::load::{FloodArgs, FloodReport, To, flood};
use server::{Behaviour, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn args(server: &Server) -> FloodArgs {
    FloodArgs {
        url: server.url.clone(),
        prefix: "s".into(),
        subscribers: 12,
        publishers: 4,
        publish: Some(200.0),
        to: To::RoundRobin,
        duration: None,
        drain: Duration::from_secs(5),
        progress: Some(Duration::from_secs(60)),
        ..FloodArgs::default()
    }
}

/// Floods until the server has stored 120 messages, ten for each stream, however long that takes.
fn run(args: &FloodArgs, server: &Server) -> FloodReport {
    run_until(args, server, 120)
}

fn run_until(args: &FloodArgs, server: &Server, messages: usize) -> FloodReport {
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let before = server.stored();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while server.stored() < before + messages && !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        });
        let report = flood(args, &stop);
        over.store(true, Ordering::Relaxed);
        report.unwrap()
    })
}

/// What every clean run must show, whatever the server does with its connections.
fn assert_clean(report: &FloodReport, server: &Server) {
    assert!(report.faults.is_clean(), "{report}");
    assert_eq!(report.faults.strangers, 0, "{report}");
    assert_eq!(report.exit_code(), 0, "{report}");
    let publishing = report.publishing.as_ref().unwrap();
    assert!(publishing.acknowledged >= 120, "{report}");
    // The rate is not exceeded.
    let most = 200.0 * publishing.seconds + 1.0;
    assert!(publishing.acknowledged as f64 <= most, "{report}");
    assert_eq!(server.stored() as u64, publishing.acknowledged);
    assert_eq!(report.opening.opened, 12);
    assert_eq!(report.connections.active, 12, "{report}");
}

#[test]
fn every_message_arrives_once_and_in_order() {
    for chunked in [true, false] {
        let server = Server::start(Behaviour {
            chunked,
            ..Behaviour::default()
        });
        let report = run(&args(&server), &server);
        assert_clean(&report, &server);
        let published = report.publishing.as_ref().unwrap().acknowledged;
        assert_eq!(report.deliveries.messages, published);
        let latency = report.latency.live.unwrap();
        assert_eq!(latency.count, published);
        assert!(latency.p50_us > 1.0, "{latency:?}");
        assert!(report.latency.slow.is_none() && report.latency.missed_while_away.is_none());
    }
}

#[test]
fn one_stream_for_all_is_delivered_to_each() {
    let server = Server::start(Behaviour {
        chunked: true,
        ..Behaviour::default()
    });
    let report = run(
        &FloodArgs {
            one: Some("all".into()),
            ..args(&server)
        },
        &server,
    );
    assert_clean(&report, &server);
    let published = report.publishing.as_ref().unwrap().acknowledged;
    assert_eq!(report.deliveries.messages, published * 12);
}

#[test]
fn a_server_that_closes_connections_loses_no_subscriber() {
    for chunked in [true, false] {
        let behaviour = Behaviour {
            chunked,
            close_after: Some(2),
            ..Behaviour::default()
        };
        let server = Server::start(behaviour);
        let report = run(&args(&server), &server);
        assert_clean(&report, &server);
        assert!(report.connections.closed >= 12, "{report}");
        assert_eq!(
            report.connections.returned, report.connections.closed,
            "{report}"
        );
        assert_eq!(report.faults.repeats, 0);
    }
}

#[test]
fn repeats_after_a_cut_are_no_duplicates() {
    let behaviour = Behaviour {
        cut_after: Some(3),
        ..Behaviour::default()
    };
    let server = Server::start(behaviour);
    let report = run(&args(&server), &server);
    assert_clean(&report, &server);
    assert!(report.faults.repeats > 0, "{report}");
}

#[test]
fn clients_that_come_and_go_miss_nothing() {
    let server = Server::start(Behaviour {
        chunked: true,
        ..Behaviour::default()
    });
    let away = Duration::from_millis(50);
    let report = run_until(
        &FloodArgs {
            churn: 50.0,
            away,
            ..args(&server)
        },
        &server,
        400,
    );
    assert_clean(&report, &server);
    let (hung_up, returned) = (report.connections.hung_up, report.connections.returned);
    assert!(hung_up > 10 && returned == hung_up, "{report}");
    let hang_ups = &report.endurance.hang_ups;
    assert_eq!(
        (hang_ups.made, hang_ups.noticed, hang_ups.unnoticed),
        (hung_up, hung_up, 0),
        "{report}"
    );
    assert_eq!(hang_ups.after.unwrap().count, hung_up);
    let missed = report.latency.missed_while_away.unwrap();
    // A subscriber that is away for 50 ms misses messages for some part of that.
    assert!(missed.max_us > 5_000.0, "{report}");
    assert!(
        report.latency.live.unwrap().count > missed.count,
        "{report}"
    );
}

#[test]
fn hang_ups_that_the_server_does_not_notice_are_counted_and_no_endurance() {
    let server = Server::start(Behaviour {
        deaf: true,
        ..Behaviour::default()
    });
    let report = run_until(
        &FloodArgs {
            churn: 50.0,
            server_pid: Some(std::process::id()),
            endure: true,
            ..args(&server)
        },
        &server,
        400,
    );
    assert!(report.faults.is_clean(), "{report}");
    let hang_ups = &report.endurance.hang_ups;
    // The server's last write to a client that is gone can fail, which counts as noticed.
    assert!(
        hang_ups.made > 10 && hang_ups.unnoticed > hang_ups.made / 2,
        "{report}"
    );
    assert_eq!(hang_ups.noticed + hang_ups.unnoticed, hang_ups.made);
    let complaints = report.endurance.complaints();
    assert!(
        complaints.iter().any(|c| c.contains("hang-ups")),
        "{report}"
    );
    assert_eq!(report.exit_code(), 1, "{report}");
    assert!(report.to_string().contains("not endured"), "{report}");

    let unjudged = FloodArgs {
        endure: true,
        ..args(&server)
    };
    let error = flood(&unjudged, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("--server-pid"), "{error}");
}

#[test]
fn the_slow_get_everything_and_are_counted_apart() {
    let server = Server::start(Behaviour {
        chunked: true,
        ..Behaviour::default()
    });
    let report = run_until(
        &FloodArgs {
            one: Some("all".into()),
            // More than sockets hold: the server has to wait for the slow.
            size: 100_000,
            slow: 2,
            pause: Duration::from_secs(1),
            pause_after: Duration::from_millis(100),
            ..args(&server)
        },
        &server,
        300,
    );
    assert_clean(&report, &server);
    let published = report.publishing.as_ref().unwrap().acknowledged;
    let slow = report.latency.slow.unwrap();
    assert_eq!(
        (slow.count, report.latency.live.unwrap().count),
        (published * 2, published * 10)
    );
    // A subscriber that pauses for a second waits for some messages for a good part of that.
    assert!(slow.max_us > 250_000.0, "{report}");
    assert!(report.latency.while_slow_pause.unwrap().count > 0);
}

#[test]
fn exactly_what_went_wrong_is_found() {
    let behaviour = Behaviour {
        chunked: true,
        lost: vec![("s0", 3), ("s0", 4), ("s7", 0)],
        doubled: vec![("s1", 2)],
        swapped: vec![("s2", 5), ("s11", 0)],
        ..Behaviour::default()
    };
    let server = Server::start(behaviour);
    let report = run(&args(&server), &server);
    let faults = &report.faults;
    let counts = [&faults.missing, &faults.duplicates, &faults.reordered].map(|fault| fault.count);
    assert_eq!(counts, [3, 1, 2], "{report}");
    assert_eq!(report.exit_code(), 1);
    let places = |fault: &encke_bench::load::Fault| {
        let mut all: Vec<_> = fault
            .examples
            .iter()
            .map(|e| (e.stream.clone(), e.subscriber, e.expected, e.received))
            .collect();
        all.sort();
        all
    };
    assert_eq!(
        places(&faults.missing),
        [("s0".into(), 0, 3, 5), ("s7".into(), 7, 0, 1)]
    );
    assert_eq!(places(&faults.duplicates), [("s1".into(), 1, 3, 2)]);
    assert_eq!(
        places(&faults.reordered),
        [("s11".into(), 11, 2, 0), ("s2".into(), 2, 7, 5)]
    );
    assert!(report.to_string().contains("FAILED"), "{report}");
}

#[test]
fn a_message_lost_at_the_very_end_is_missed() {
    // All messages from the sixth on, so that none that follows shows a gap.
    let lost = ["s0", "s1", "s2", "s3"]
        .into_iter()
        .flat_map(|name| (5..10_000).map(move |at| (name, at)));
    let server = Server::start(Behaviour {
        lost: lost.collect(),
        ..Behaviour::default()
    });
    let report = run(
        &FloodArgs {
            drain: Duration::from_millis(300),
            ..args(&server)
        },
        &server,
    );
    let published = report.publishing.as_ref().unwrap().acknowledged;
    assert_eq!(
        report.faults.missing.count,
        published - report.deliveries.messages,
        "{report}"
    );
    assert!(report.faults.missing.count >= 4, "{report}");
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn what_the_server_refused_is_not_missed() {
    let behaviour = Behaviour {
        refuse_every: Some(7),
        lose_answer_every: Some(11),
        ..Behaviour::default()
    };
    let server = Server::start(behaviour);
    let report = run(&args(&server), &server);
    assert!(report.faults.is_clean(), "{report}");
    let publishing = report.publishing.as_ref().unwrap();
    assert!(publishing.refused.by_status[&503] > 10, "{report}");
    assert!(publishing.refused.unanswered > 5, "{report}");
    assert!(publishing.acknowledged > 50, "{report}");
    // What was kept though its answer was lost arrives all the same.
    assert_eq!(report.deliveries.messages, server.stored() as u64);
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn a_stream_of_which_nothing_was_acknowledged_misses_nothing() {
    // Every second message is refused, and the others are kept though their answers are lost.
    let server = Server::start(Behaviour {
        refuse_every: Some(2),
        lose_answer_every: Some(1),
        ..Behaviour::default()
    });
    let report = run_until(&args(&server), &server, 20);
    assert!(report.faults.is_clean(), "{report}");
    let publishing = report.publishing.as_ref().unwrap();
    assert_eq!(publishing.acknowledged, 0, "{report}");
    assert!(server.stored() > 10, "{report}");
    assert_eq!(report.deliveries.messages, server.stored() as u64);
}

#[test]
fn a_run_without_a_server_fails() {
    let report = flood(
        &FloodArgs {
            url: "http://127.0.0.1:1/v1/stream".into(),
            no_create: true,
            publish: None,
            duration: Some(Duration::ZERO),
            ..FloodArgs::default()
        },
        &AtomicBool::new(false),
    )
    .unwrap();
    assert_eq!((report.opening.opened, report.opening.failed), (0, 1_000));
    assert_eq!(report.connections.failures["connection refused"], 1_000);
    assert_eq!(report.exit_code(), 1);

    let server = Server::start(Behaviour::default());
    let report = flood(
        &FloodArgs {
            no_create: true,
            publish: None,
            duration: Some(Duration::ZERO),
            ..args(&server)
        },
        &AtomicBool::new(false),
    )
    .unwrap();
    assert_eq!(report.connections.failures["status 404"], 12);
}
