//! The mailbox beside the channels that others use, from 1, 10, 100 and 1,000 senders to one receiver.
//!
//! Every channel holds as many items and makes its senders wait; a figure is the time for all items to get through,
//! from the first sender's start to the last item's arrival. Senders are threads. Those of `tokio_tasks` are tasks of a
//! runtime with a worker for each processor, where that channel is at home: a task that waits costs no thread's sleep,
//! so it is the bound for what threads can be compared with.
//!
//! `encke_batch` takes all that waits at a time, as every stage of the server does, and `tokio_batch` does the same;
//! `encke_each` and the others take one item at a time.

use std::hint::black_box;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use encke_mailbox::{Bounds, Lane, mailbox};

const CAPACITY: usize = 8_192;

/// What travels: a reference, a length and a mark, as a command would have.
type Item = [u64; 4];

/// Runs `send` `each` times in every one of `senders` threads while `receive` takes all of it, `rounds` times.
fn run<S, R>(
    rounds: u64,
    senders: usize,
    each: usize,
    make: impl Fn() -> (S, R),
    send: impl Fn(&S, Item) + Copy + Send + 'static,
    receive: impl Fn(&mut R) -> usize,
) -> Duration
where
    S: Clone + Send + 'static,
{
    let mut all = Duration::ZERO;
    for _ in 0..rounds {
        let (sender, mut receiver) = make();
        let start = Arc::new(Barrier::new(senders + 1));
        let begun = Arc::new(OnceLock::new());
        let threads: Vec<_> = (0..senders)
            .map(|n| {
                let (sender, start, begun) = (sender.clone(), start.clone(), begun.clone());
                thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn(move || {
                        start.wait();
                        begun.get_or_init(Instant::now);
                        for i in 0..each {
                            send(&sender, [n as u64, i as u64, 0, 0]);
                        }
                    })
                    .expect("the machine has room for these threads")
            })
            .collect();
        drop(sender);
        start.wait();
        let mut left = senders * each;
        while left > 0 {
            left -= receive(&mut receiver);
        }
        all += begun.get().map_or(Duration::ZERO, Instant::elapsed);
        for thread in threads {
            thread.join().expect("no sender panics");
        }
    }
    all
}

fn channels(c: &mut Criterion) {
    for (senders, each) in [(1, 200_000), (10, 20_000), (100, 2_000), (1_000, 200)] {
        let mut group = c.benchmark_group(format!("{senders}_senders"));
        group.throughput(Throughput::Elements((senders * each) as u64));
        group.sample_size(10);
        group.bench_function("encke_batch", |b| {
            let mut batch = Vec::new();
            b.iter_custom(|rounds| {
                let receive = |rx: &mut encke_mailbox::Receiver<Item>| {
                    batch.clear();
                    let count = rx.recv_batch(&mut batch).expect("senders are there");
                    black_box(&batch);
                    count
                };
                let receive = std::cell::RefCell::new(receive);
                run(rounds, senders, each, encke, encke_send, |rx| {
                    receive.borrow_mut()(rx)
                })
            });
        });
        group.bench_function("encke_each", |b| {
            b.iter_custom(|rounds| {
                run(rounds, senders, each, encke, encke_send, |rx| {
                    black_box(rx.recv().expect("senders are there"));
                    1
                })
            });
        });
        group.bench_function("crossbeam", |b| {
            b.iter_custom(|rounds| {
                run(
                    rounds,
                    senders,
                    each,
                    || crossbeam_channel::bounded::<Item>(CAPACITY),
                    |tx, item| tx.send(item).expect("the receiver is there"),
                    |rx| {
                        black_box(rx.recv().expect("senders are there"));
                        1
                    },
                )
            });
        });
        group.bench_function("async_channel", |b| {
            b.iter_custom(|rounds| {
                run(
                    rounds,
                    senders,
                    each,
                    || async_channel::bounded::<Item>(CAPACITY),
                    |tx, item| tx.send_blocking(item).expect("the receiver is there"),
                    |rx| {
                        black_box(rx.recv_blocking().expect("senders are there"));
                        1
                    },
                )
            });
        });
        group.bench_function("tokio_batch", |b| {
            let batch = std::cell::RefCell::new(Vec::new());
            b.iter_custom(|rounds| {
                run(
                    rounds,
                    senders,
                    each,
                    || tokio::sync::mpsc::channel::<Item>(CAPACITY),
                    |tx, item| tx.blocking_send(item).expect("the receiver is there"),
                    |rx| {
                        let mut batch = batch.borrow_mut();
                        batch.clear();
                        rx.blocking_recv_many(&mut batch, CAPACITY)
                    },
                )
            });
        });
        group.bench_function("tokio_tasks", |b| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .build()
                .expect("the machine has room for these threads");
            b.iter_custom(|rounds| (0..rounds).map(|_| tasks(&runtime, senders, each)).sum());
        });
        group.finish();
    }
}

/// Lets as many tasks send, and takes all of it in batches in this thread.
fn tasks(runtime: &tokio::runtime::Runtime, senders: usize, each: usize) -> Duration {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Item>(CAPACITY);
    let begun = Instant::now();
    for n in 0..senders {
        let sender = sender.clone();
        runtime.spawn(async move {
            for i in 0..each {
                let item = [n as u64, i as u64, 0, 0];
                sender.send(item).await.expect("the receiver is there");
            }
        });
    }
    let mut batch = Vec::new();
    let mut left = senders * each;
    while left > 0 {
        batch.clear();
        left -= receiver.blocking_recv_many(&mut batch, CAPACITY);
        black_box(&batch);
    }
    begun.elapsed()
}

fn encke() -> (encke_mailbox::Sender<Item>, encke_mailbox::Receiver<Item>) {
    mailbox(
        "bench",
        Bounds {
            items_max: CAPACITY,
            bytes_max: usize::MAX,
        },
    )
}

fn encke_send(tx: &encke_mailbox::Sender<Item>, item: Item) {
    tx.send(Lane::Data, item, size_of::<Item>())
        .expect("the receiver is there");
}

criterion_group!(benches, channels);
criterion_main!(benches);
