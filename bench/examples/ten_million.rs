//! What ten million subscribers, each on a stream of its own, cost one process beside their sockets.
//!
//! ```sh
//! cargo run --release --manifest-path bench/Cargo.toml --features synthetic --example ten_million [SUBSCRIBERS]
//! ```
//!
//! A shard's own tables are filled without sockets. Printed are the bytes for each subscriber as the system counts them
//! (resident memory, glibc's allocator), the longest that one subscription took while the tables grew, and the processor
//! time for a record to one of 10,000 subscribers and to one of all. Times are of the thread, so a busy machine makes no
//! pauses of its own. It exits with 1 when a bound does not hold.

use std::process::ExitCode;

use encke_net::synthetic::SyntheticShard;
use rustix::time::{ClockId, clock_gettime};

fn main() -> ExitCode {
    let count = std::env::args().nth(1);
    let count = count.map_or(Ok(10_000_000), |count| count.parse::<usize>());
    let Ok(count) = count else {
        eprintln!("usage: ten_million [SUBSCRIBERS]");
        return ExitCode::from(2);
    };
    let mut shard = SyntheticShard::new();
    grow(&mut shard, SMALL.min(count), "");
    let small_ns = cost(&mut shard);
    println!(
        "one of {:>10}: {small_ns:>6} ns of cpu a record",
        shard.subscribers()
    );
    let before = resident_bytes();
    let began = shard.subscribers();
    let mut longest_ns = 0;
    let mut size = SMALL;
    while shard.subscribers() < count {
        size = (size * 10).min(count);
        let label = format!("up to {size:>10}");
        longest_ns = longest_ns.max(grow(&mut shard, size, &label));
    }
    let added = shard.subscribers() - began;
    let bytes = resident_bytes().saturating_sub(before) as f64 / added.max(1) as f64;
    let large_ns = cost(&mut shard);
    println!(
        "one of {:>10}: {large_ns:>6} ns of cpu a record",
        shard.subscribers()
    );
    println!("memory: {bytes:.0} bytes a subscriber, of {BYTES_MAX} allowed");
    println!(
        "longest pause: {:.3} ms, of {PAUSE_MS_MAX} allowed",
        longest_ns as f64 / 1e6
    );
    let holds = bytes <= f64::from(BYTES_MAX) && longest_ns <= PAUSE_MS_MAX * 1_000_000;
    ExitCode::from(u8::from(!holds))
}

/// Subscribes until there are so many. Returns the longest that one took, in nanoseconds.
fn grow(shard: &mut SyntheticShard, count: usize, label: &str) -> u64 {
    let (mut longest_ns, mut spent_ns, began) = (0, 0, shard.subscribers());
    while shard.subscribers() < count {
        shard.make_streams(STREAMS_AT_ONCE.min(count - shard.subscribers()));
        loop {
            let start_ns = cpu_ns();
            let more = shard.subscribe();
            let took_ns = cpu_ns() - start_ns;
            if !more {
                break;
            }
            longest_ns = longest_ns.max(took_ns);
            spent_ns += took_ns;
        }
    }
    let added = (shard.subscribers() - began).max(1) as u64;
    if !label.is_empty() {
        println!(
            "{label}: {:>6} ns of cpu a subscription, the longest {:.3} ms, {:.0} MiB resident",
            spent_ns / added,
            longest_ns as f64 / 1e6,
            resident_bytes() as f64 / f64::from(1 << 20)
        );
    }
    longest_ns
}

/// Processor time for a record to one subscriber at random.
fn cost(shard: &mut SyntheticShard) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let data = [b'7'; 128];
    let mut publish = |count: u64| {
        for _ in 0..count {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let subscriber = (random % shard.subscribers() as u64) as usize;
            assert_eq!(shard.publish(subscriber, &data), 1);
        }
    };
    publish(RECORDS / 10);
    let start_ns = cpu_ns();
    publish(RECORDS);
    (cpu_ns() - start_ns) / RECORDS
}

/// The thread's processor time.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

const SMALL: usize = 10_000;
const RECORDS: u64 = 200_000;
const STREAMS_AT_ONCE: usize = 1_000;
const BYTES_MAX: u32 = 200;
const PAUSE_MS_MAX: u64 = 5;
