//! A fleet under faults, checked by the definitions of Jepsen's set and log tests.
//!
//! Clients append unique numbers and follow streams at random nodes while nodes and brokers are killed, stopped, cut off from each
//! other and damaged, and nodes lose their directories. In the end
//!
//! - every acknowledged number is in its stream exactly once, and no number is there twice, at every node;
//! - all nodes have the same order;
//! - what each follower got is the beginning of that order, without a gap or a repetition, wherever it reconnected.
//!
//! Every span in which no append was acknowledged is reported with its length.
//!
//! `make test-all` runs it for a few seconds, `make fleet-torture` for ten minutes (`FLEET_SECONDS=600`). `FLEET_SEED` repeats the choice of
//! faults, not their timing.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub)]

mod client;
mod faults;
mod fleet;
mod network;
#[path = "../ports.rs"]
mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::{Appended, Follower, append, create, read_all};
use fleet::{Fleet, Random};

const STREAMS: [&str; 3] = ["s0", "s1", "s2"];
const APPENDERS: usize = 6;
const FOLLOWERS: usize = 4;
const NODES: usize = 3;
const BROKERS: usize = 3;

/// A span without an acknowledged append that is longer than this is reported.
const SPAN: Duration = Duration::from_secs(1);

/// What the clients saw.
#[derive(Default)]
struct History {
    /// Acknowledged numbers, by stream.
    acknowledged: BTreeMap<usize, BTreeSet<u64>>,
    /// Numbers that may be stored.
    unknown: BTreeSet<u64>,
    /// When appends were acknowledged, since the begin.
    times: Vec<Duration>,
}

#[test]
#[ignore = "long: make test-all"]
fn nothing_acknowledged_is_lost_and_all_nodes_agree() {
    let seconds = std::env::var("FLEET_SECONDS").map_or(12, |text| text.parse().unwrap());
    let seed =
        std::env::var("FLEET_SEED").map_or_else(|_| fleet::seed(), |text| text.parse().unwrap());
    println!("FLEET_SECONDS={seconds} FLEET_SEED={seed}");
    let Some(mut fleet) = Fleet::start(BROKERS, NODES) else {
        println!("SKIPPED: there is no nats-server here");
        assert!(
            std::env::var_os("CI").is_none(),
            "nats-server does not work here, and CI is set"
        );
        return;
    };
    let addresses = fleet.addresses();
    for stream in STREAMS {
        create(addresses[0], stream);
    }
    let ends = Arc::new(AtomicBool::new(false));
    let history = Arc::new(Mutex::new(History::default()));
    let numbers = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let appenders: Vec<_> = (0..APPENDERS as u64)
        .map(|appender| {
            let (ends, history, numbers) = (
                Arc::clone(&ends),
                Arc::clone(&history),
                Arc::clone(&numbers),
            );
            let addresses = addresses.clone();
            std::thread::spawn(move || {
                let mut random = Random::new(seed ^ (appender + 1));
                while !ends.load(Ordering::Relaxed) {
                    let number = numbers.fetch_add(1, Ordering::Relaxed);
                    let stream = random.below(STREAMS.len());
                    let outcome = append(addresses[random.below(NODES)], STREAMS[stream], number);
                    let mut history = history.lock().unwrap();
                    match outcome {
                        Appended::Yes => {
                            history
                                .acknowledged
                                .entry(stream)
                                .or_default()
                                .insert(number);
                            history.times.push(begin.elapsed());
                        }
                        Appended::Unknown => {
                            history.unknown.insert(number);
                        }
                        Appended::No => {
                            drop(history);
                            std::thread::sleep(Duration::from_millis(20));
                        }
                    }
                }
            })
        })
        .collect();
    let followers: Vec<_> = (0..FOLLOWERS)
        .map(|follower| {
            let ends = Arc::clone(&ends);
            let addresses = addresses.clone();
            std::thread::spawn(move || {
                let mut random = Random::new(seed ^ (100 + follower as u64));
                let stream = follower % STREAMS.len();
                let mut follower = Follower::new(STREAMS[stream]);
                while !ends.load(Ordering::Relaxed) {
                    follower.follow(addresses[random.below(NODES)], &ends);
                }
                (stream, follower.numbers)
            })
        })
        .collect();
    fleet.suffer(Duration::from_secs(seconds), &mut Random::new(seed));
    fleet.heal();
    // Appends go on for a moment, so that the fleet has to work after the last fault.
    std::thread::sleep(Duration::from_secs(2));
    ends.store(true, Ordering::Relaxed);
    for appender in appenders {
        appender.join().unwrap();
    }
    let followed: Vec<_> = followers
        .into_iter()
        .map(|follower| follower.join().unwrap())
        .collect();
    let history = history.lock().unwrap();
    report(&history, begin.elapsed());
    let mut orders: Vec<Vec<u64>> = Vec::new();
    for (index, stream) in STREAMS.iter().enumerate() {
        let copies: Vec<_> = addresses
            .iter()
            .map(|address| read_all(*address, stream))
            .collect();
        for (node, copy) in copies.iter().enumerate() {
            assert!(
                copy == &copies[0],
                "node {node} has another order of {stream} than node 0"
            );
        }
        let order = copies.into_iter().next().unwrap();
        let set: BTreeSet<u64> = order.iter().copied().collect();
        assert_eq!(set.len(), order.len(), "{stream} has a number twice");
        let acknowledged = history
            .acknowledged
            .get(&index)
            .cloned()
            .unwrap_or_default();
        let lost: Vec<_> = acknowledged.difference(&set).collect();
        assert!(
            lost.is_empty(),
            "{stream} has lost acknowledged numbers: {lost:?}"
        );
        let invented: Vec<_> = set
            .difference(&acknowledged)
            .filter(|number| !history.unknown.contains(number))
            .collect();
        assert!(
            invented.is_empty(),
            "{stream} has numbers that were refused: {invented:?}"
        );
        println!(
            "{stream}: {} records, {} acknowledged",
            order.len(),
            acknowledged.len()
        );
        orders.push(order);
    }
    for (index, (stream, numbers)) in followed.iter().enumerate() {
        let order = &orders[*stream];
        let prefix = order.get(..numbers.len());
        let differs = numbers.iter().zip(order).position(|(got, is)| got != is);
        assert!(
            prefix == Some(&numbers[..]),
            "follower {index} did not get the beginning of the order; the first difference is at {differs:?}"
        );
        println!("follower {index}: {} records in order", numbers.len());
    }
    assert!(fleet.verify(), "encke fleet verify has found a difference");
}

/// Prints what was possible, and for how long nothing was.
fn report(history: &History, took: Duration) {
    let acknowledged = history.times.len();
    println!(
        "{acknowledged} appends acknowledged in {:.0} s, {} unknown",
        took.as_secs_f64(),
        history.unknown.len()
    );
    let mut times = history.times.clone();
    times.sort_unstable();
    let mut longest = Duration::ZERO;
    for pair in times.windows(2) {
        let span = pair[1] - pair[0];
        longest = longest.max(span);
        if span > SPAN {
            println!(
                "no append was acknowledged for {:.1} s, from {:.1} s on",
                span.as_secs_f64(),
                pair[0].as_secs_f64()
            );
        }
    }
    println!(
        "the longest span without an acknowledged append: {:.1} s",
        longest.as_secs_f64()
    );
    assert!(acknowledged > 0, "nothing was acknowledged");
}
