//! The figures of the experiment. The experiment itself is tested as a process, with its servers.

use super::*;

fn tiny() -> Plan {
    Plan {
        phase: Duration::from_millis(600),
    }
}

fn trial(disk: Disk, level: Level) -> Trial {
    let mut latencies = Latencies::new();
    latencies.record(1_000_000);
    let figures = latencies.percentiles().unwrap();
    let phase = |name| Phase {
        name,
        seconds: 0.6,
        ping: figures,
        delivery: figures,
        records_per_second: 100.0,
        records_per_batch: Some(2.0),
        syncs_per_second: 50.0,
        sync_us: Some(200.0),
        syncing_percent: 1.0,
    };
    let readings = vec![Reading {
        at_ns: 1,
        took_ns: 1_000_000,
    }];
    Trial {
        disk,
        level,
        load: LOAD,
        load_per_second: 10.0,
        phases: ["before", "during", "after"].map(phase),
        published: 100,
        delivered: 100,
        pings: readings.clone(),
        deliveries: readings,
    }
}

#[test]
fn every_trial_is_shown_and_a_lost_record_breaks_the_promise() {
    let mut report = FsyncReport {
        plan: tiny(),
        trials: [Level::Synced, Level::Accepted]
            .map(|level| trial(Disk::Own, level))
            .to_vec(),
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
    assert_eq!(plot::legends(&section.plot.unwrap()), 8);
    assert_eq!(section.figures["trials"][0]["phases"][1]["name"], "during");

    report.trials[1].delivered -= 1;
    let targets = report.section().targets;
    assert!(targets.iter().any(|t| t.promise && !t.met));
}

#[test]
fn neither_the_best_nor_the_worst_of_several_trials_decides() {
    let middle = trial(Disk::Own, Level::Accepted);
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
