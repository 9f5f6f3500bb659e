//! The figures of the experiment. The experiment itself is tested as a process, with its servers.

use super::probe::Reading;
use super::run_queue::Times;
use super::trial::{Latency, Phase, Share};
use super::*;

/// Of a reading that waited a millisecond for a processor besides.
fn latency(took_us: u64) -> Latency {
    let reading = Reading {
        at_ns: 1,
        took_ns: took_us * 1_000 + WAIT_NS,
        threads: Times {
            run_ns: 0,
            wait_ns: WAIT_NS,
        },
    };
    Latency::of(vec![reading]).unwrap()
}

fn trial(p99_us: u64) -> Trial {
    let share = Share {
        run_percent: 10.0,
        wait_percent: 1.0,
    };
    let phase = Phase {
        seconds: 0.6,
        ping: latency(p99_us),
        delivery: latency(p99_us),
        records_per_second: 100.0,
        records_per_batch: Some(2.0),
        syncs_per_second: 50.0,
        sync_us: Some(200.0),
        shards: share,
        sequencer: share,
    };
    Trial {
        load_per_second: 10.0,
        before: phase.clone(),
        during: phase,
        published: 100,
        delivered: 100,
    }
}

/// A report of one comparison: the p99 on the disk in each round, and in memory.
fn report(disk_us: &[u64], memory_us: &[u64]) -> FsyncReport {
    let mut comparison = Comparison::new(COMPARISONS[0]);
    for (side, us) in comparison
        .sides
        .iter_mut()
        .zip([disk_us, memory_us, memory_us])
    {
        side.trials = us.iter().copied().map(trial).collect();
        side.figures = figures(&side.trials);
    }
    FsyncReport {
        rounds: disk_us.len() as u32,
        phase_ms: 600,
        comparisons: vec![comparison],
        no_slow_disk: Some("none was wanted".into()),
        no_memory_disk: None,
    }
}

#[test]
fn a_lost_record_breaks_the_promise() {
    let mut report = report(&[90], &[80]);
    let section = report.section();
    let text = section.to_string();
    assert!(text.contains("There was no slow disk: none was wanted."));
    assert!(section.targets.iter().all(|t| t.met), "{text}");
    assert_eq!(plot::legends(&section.plot.unwrap()), 3);

    report.comparisons[0].sides[1].trials[0].delivered -= 1;
    let targets = report.section().targets;
    assert!(targets.iter().any(|t| t.promise && !t.met));
}

#[test]
fn the_median_of_the_rounds_is_judged_without_waits() {
    let is_met = |disk_us: &[u64], memory_us: &[u64]| {
        let section = report(disk_us, memory_us).section();
        section.targets[0].met
    };
    assert!(is_met(&[119, 119, 9_000], &[1, 100, 100]));
    assert!(is_met(&[60], &[20]), "40 µs more");
    assert!(!is_met(&[9, 200, 201], &[100, 100, 300]));
    assert!(!is_met(&[1_300], &[1_000]));
}

#[test]
fn a_report_without_a_log_in_memory_compares_nothing() {
    let mut report = report(&[90], &[]);
    report.no_memory_disk = Some("too small".into());
    let section = report.section();
    assert_eq!(section.targets.len(), 1, "the records that were lost");
    assert!(section.to_string().contains("too small"));
}

#[test]
fn the_parts_of_the_slowest_add_up() {
    let reading = |took_ns, wait_ns, run_ns| Reading {
        at_ns: 0,
        took_ns,
        threads: Times { run_ns, wait_ns },
    };
    let mut readings = vec![reading(1_000, 0, 0); 198];
    readings.push(reading(10_000, 4_000, 3_000));
    // The wait began before the ping, and includes a run of another thread.
    readings.push(reading(20_000, 30_000, 5_000));
    let latency = Latency::of(readings).unwrap();
    let slow = latency.slow;
    assert_eq!(
        [slow.wait_us, slow.run_us, slow.rest_us],
        [12.0, 1.5, 1.5],
        "means of the slowest hundredth"
    );
    assert!(latency.on_processor.max_us < 7.0);
    assert!(latency.all.max_us >= 20.0);
}

#[test]
fn quartiles_of_few_rounds() {
    assert_eq!(Spread::of(Vec::new()), None);
    let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!((spread.low, spread.median, spread.high), (2.0, 3.0, 4.0));
}

const WAIT_NS: u64 = 1_000_000;
