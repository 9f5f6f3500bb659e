//! The experiment against a server in this process. That with a process of its own, and a slow disk, is tested with the
//! binary.

use super::*;
use crate::lab::MEMORY;
use crate::lab::tests::lab;
use encke_net::{Metrics, NetSettings, ServedStreams, Server};
use encke_protocol::{Admin, Probes, Router};
use encke_stream::{AckLevel, Limits, Logs};
use std::path::Path;
use std::sync::Arc;

fn serve(data: &Path, level: AckLevel) -> Server {
    let options = encke_log::Options::default();
    let restored =
        encke_stream::restore(data, options, Limits::default(), encke_net::now_ms()).unwrap();
    let logs = Logs::one(restored);
    let metrics = Metrics::new().unwrap();
    let rendered = metrics.clone();
    let probes = Probes {
        unready: Arc::new(|| None),
        metrics: Arc::new(move || rendered.render()),
    };
    let settings = encke_protocol::ProtocolSettings::default();
    let router = Router::new(Arc::clone(&logs.views), settings, Admin::new(probes));
    let streams = ServedStreams { logs, level };
    let settings = NetSettings {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..NetSettings::default()
    };
    Server::start(settings, &router, streams, &metrics).unwrap()
}

fn tiny() -> Plan {
    Plan {
        phase: Duration::from_millis(600),
    }
}

fn trial(level: Level, rate: Option<f64>) -> Trial {
    // In memory, if there is such a place: a busy disk may not get through a single sync in so short a phase.
    let data = tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir());
    let data = data.unwrap();
    let ack = match level {
        Level::Synced => AckLevel::Synced,
        Level::Accepted => AckLevel::Accepted,
    };
    let server = serve(&data.path().join("log"), ack);
    let lab = lab(0.01, data.path());
    let address = server.address();
    let load = Load {
        publishers: 2,
        rate,
    };
    let trial = Trial::make(&lab, tiny(), address, (Disk::Own, level), load).unwrap();
    server.stop().unwrap();
    trial
}

#[test]
fn phases_have_their_figures_and_nothing_is_lost() {
    let synced = trial(Level::Synced, None);
    assert_eq!(
        synced.phases.each_ref().map(|p| p.name),
        ["before", "during", "after"]
    );
    assert!(synced.published > 0);
    assert_eq!(synced.published, synced.delivered);
    for phase in &synced.phases {
        assert!(phase.seconds >= 0.6, "{phase:?}");
        assert!(phase.ping.count > 0 && phase.delivery.count > 0);
        assert!(phase.syncs_per_second > 0.0, "the probes' own records");
        assert!(phase.records_per_batch.unwrap() >= 1.0);
        assert!(phase.sync_us.unwrap() > 0.0);
    }
    assert!(synced.load_per_second > 0.0);
    let (before, during) = (synced.before(), synced.during());
    assert!(during.records_per_second > before.records_per_second);
    // Readings stand in the phase that they were made in, which may have lasted longer than was planned.
    let first_ns = (before.seconds * 1e9) as u64;
    let in_first = synced.pings().iter().filter(|r| r.at_ns <= first_ns);
    assert!(in_first.count() as u64 >= before.ping.count);

    let accepted = trial(Level::Accepted, Some(50.0));
    assert_eq!(accepted.published, accepted.delivered);
    assert!(
        accepted.during().sync_us.is_none(),
        "no batch waits for a sync"
    );

    let report = FsyncReport {
        plan: tiny(),
        trials: vec![synced, accepted],
        no_slow_disk: Some("none was wanted".into()),
        no_memory_disk: None,
    };
    let section = report.section();
    let text = section.to_string();
    assert!(text.contains("There was no slow disk: none was wanted."));
    assert!(text.contains("level synced") && text.contains("level accepted"));
    assert!(
        section.targets.iter().all(|t| t.met || !t.promise),
        "{text}"
    );
    let plot = section.plot.unwrap();
    assert_eq!(plot.matches("<polyline").count(), 8);
    assert_eq!(section.figures["trials"][0]["phases"][1]["name"], "during");
}

#[test]
fn neither_the_best_nor_the_worst_of_several_trials_decides() {
    let middle = trial(Level::Accepted, Some(50.0));
    let with = |ping_us, delivery_us| {
        let mut trial = middle.clone();
        trial.phases[1].ping.p99_us = ping_us;
        trial.phases[1].delivery.p99_us = delivery_us;
        trial
    };
    let report = FsyncReport {
        plan: tiny(),
        trials: vec![with(9.0, 10.0), with(90.0, 70.0), with(50.0, 80.0)],
        no_slow_disk: None,
        no_memory_disk: None,
    };
    let (disk, level) = (Disk::Own, Level::Accepted);
    let delivery = report.middle(disk, level, |trial| trial.during().delivery.p99_us);
    assert_eq!(delivery, Some(70.0));
    let shown = report.trial(disk, level).unwrap();
    assert_eq!(shown.during().ping.p99_us, 50.0);
    assert_eq!(report.shown().len(), 1);
    assert_eq!(report.middle(Disk::Slow, level, |_| 1.0), None);
}

#[test]
fn a_little_more_is_within_but_not_much() {
    assert!(within(String::new(), 119.0, 100.0).met);
    assert!(within(String::new(), 60.0, 20.0).met, "40 µs");
    assert!(!within(String::new(), 200.0, 100.0).met);
    assert!(!within(String::new(), 1_300.0, 1_000.0).met);
}

#[test]
fn stretches_without_readings_are_left_out() {
    let report = FsyncReport {
        plan: tiny(),
        trials: Vec::new(),
        no_slow_disk: None,
        no_memory_disk: None,
    };
    let stretch_ns = plan_ns(tiny()) / STRETCHES;
    let reading = |n: u64| Reading {
        at_ns: n * stretch_ns + 1,
        took_ns: (n + 1) * 1_000,
    };
    let points = report.over_time(&[reading(0), reading(3)], |p| p.p50_us);
    assert_eq!(points.len(), 2);
    assert!((points[0].1 - 1.0).abs() < 0.01 && (points[1].1 - 4.0).abs() < 0.01);
}
