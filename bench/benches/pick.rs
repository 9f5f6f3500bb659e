//! What a pick costs, by strategy, alone and with 10, 100 and 1,000 clients at once.
//!
//! A figure is the time of one pick: that of the whole run, from the first client's start to the last one's end, divided
//! by its picks.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use encke_pool::{Connected, Pool, PoolOptions, Size, Strategy};

const WORKERS: usize = 6;

fn pool_of(strategy: Strategy) -> (Pool<usize>, Vec<Connected<usize>>) {
    let pool = Pool::new(PoolOptions::new(strategy).size(Size::Fixed(WORKERS)));
    let connected = (0..WORKERS)
        .map(|n| {
            let name = format!("worker-{n}");
            pool.add(&name).expect("there are as many slots");
            pool.connect(&name, n).expect("it has just been added")
        })
        .collect();
    (pool, connected)
}

/// Picks once, as a client would.
fn pick(pool: &Pool<usize>, strategy: Strategy, n: usize) -> usize {
    match strategy {
        Strategy::RoundRobin | Strategy::Random => *pool.pick(0, None).expect("all are connected"),
        Strategy::Hash => *pool.pick_for(&n, 0).expect("all are connected"),
        Strategy::Direct => *pool.pick_at(n % WORKERS, 0).expect("all are connected"),
        Strategy::Claim => *pool.claim().expect("the pool is there"),
    }
}

/// The time for `each` picks in each of `clients` threads that exist before the clock starts.
fn run(strategy: Strategy, clients: usize, each: usize) -> Duration {
    let (pool, _connected) = pool_of(strategy);
    let start = Arc::new(Barrier::new(clients + 1));
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let (pool, start) = (pool.clone(), start.clone());
            thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(move || {
                    start.wait();
                    let begun = Instant::now();
                    for n in 0..each {
                        black_box(pick(&pool, strategy, client + n));
                    }
                    (begun, Instant::now())
                })
                .expect("the machine has room for these threads")
        })
        .collect();
    start.wait();
    let (begun, ended): (Vec<_>, Vec<_>) = threads
        .into_iter()
        .map(|thread| thread.join().expect("no client panics"))
        .unzip();
    let (first, last) = (begun.into_iter().min(), ended.into_iter().max());
    last.zip(first)
        .map_or(Duration::ZERO, |(last, first)| last - first)
}

fn picks(c: &mut Criterion) {
    for strategy in Strategy::ALL {
        let mut group = c.benchmark_group(strategy.name());
        group.bench_function("alone", |b| {
            let (pool, _connected) = pool_of(strategy);
            let mut n = 0;
            b.iter(|| {
                n += 1;
                pick(&pool, strategy, n)
            });
        });
        for clients in [1, 10, 100, 1_000] {
            group.sample_size(10);
            group.bench_with_input(
                BenchmarkId::new("clients", clients),
                &clients,
                |b, &clients| {
                    b.iter_custom(|picks| {
                        // Every client has at least a thousand, as in the report, or the threads' own start is measured.
                        let each = (picks as usize / clients).max(1_000);
                        let all = run(strategy, clients, each);
                        all.mul_f64(picks as f64 / (each * clients) as f64)
                    });
                },
            );
        }
        group.finish();
    }
}

criterion_group!(benches, picks);
criterion_main!(benches);
