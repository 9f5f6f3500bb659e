//! A whole server in one thread, by one seed: the shard as it is, with its connections, feeds and timers, over the router, the machine
//! and the sequencer with its log on a simulated disk, and the dispatcher with its pools. Clients of HTTP/1.1, HTTP/2 and WebSocket do anything: they send in pieces, read slowly,
//! half-close and hang up; clocks step, and the power is cut. Their sockets are pairs of the kernel's, which keep few bytes.
//!
//! The promise: each request has one response, each subscriber each record once and in order, nothing that was acknowledged is lost, each
//! job that was taken has one result, and nothing is left when all clients are gone.
//!
//! `ENCKE_CRASH_ROUNDS` is the number of rounds, `ENCKE_CRASH_SEED` the first seed. A failure prints its seed.

mod channel_client;
mod client;
mod node;
mod world;

use world::{Met, World};

#[test]
fn nothing_is_lost_sent_twice_or_left_behind() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|value: String| value.parse().unwrap())
    };
    let first: u64 = number("ENCKE_CRASH_SEED").unwrap_or(1);
    let rounds = number("ENCKE_CRASH_ROUNDS").unwrap_or(ROUNDS);
    let mut met = Met::default();
    for seed in first..first + rounds {
        let round = std::panic::AssertUnwindSafe(|| World::new(seed).run());
        match std::panic::catch_unwind(round) {
            Ok(more) => met.add(more),
            Err(panic) => {
                eprintln!("ENCKE_CRASH_SEED={seed} ENCKE_CRASH_ROUNDS=1 repeats the failure");
                std::panic::resume_unwind(panic);
            }
        }
    }
    if rounds >= ROUNDS {
        assert!(met.is_everything(), "the simulation has not led to {met:?}");
    }
}

const ROUNDS: u64 = 200;
