//! Every order in which threads can run, within loom's bounds, for claims: a worker never has two claimants and is never
//! lost, and no claim waits while a worker is free.
//!
//! ```sh
//! RUSTFLAGS="--cfg encke_model" cargo test --release -p encke-pool --test model --target-dir target/model
//! ```
#![allow(unexpected_cfgs)]
#![cfg(encke_model)]

use encke_pool::{Capacity, Connected, Picked, Pool, PoolError, PoolOptions, Size, Strategy};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Every schedule with at most three preemptions.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A pool with one slot, and its worker connected with a count of its claimants.
fn pool() -> (Pool<AtomicUsize>, Connected<AtomicUsize>) {
    let pool = Pool::new(PoolOptions::new(Strategy::Claim).size(Size::Fixed(1)));
    pool.add("a").unwrap();
    let connected = pool.connect("a", AtomicUsize::new(0)).unwrap();
    (pool, connected)
}

/// Has the worker to itself.
fn work(claim: &Picked<AtomicUsize>) {
    assert_eq!(claim.fetch_add(1, Ordering::AcqRel), 0, "claimed twice");
    claim.fetch_sub(1, Ordering::AcqRel);
}

fn assert_free(pool: &Pool<AtomicUsize>) {
    assert_eq!(pool.info().waiting, 0);
    let claim = pool.pick(0, None).expect("the worker is free");
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    work(&claim);
}

#[test]
fn claims_that_wait_are_all_served_and_never_two_at_once() {
    check(|| {
        let (pool, _connected) = pool();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                thread::spawn(move || work(&pool.claim().unwrap()))
            })
            .collect();
        work(&pool.claim().unwrap());
        for other in others {
            other.join().unwrap();
        }
        assert_free(&pool);
    });
}

#[test]
fn a_worker_that_dies_and_returns_while_it_is_released_is_free_once() {
    check(|| {
        let (pool, connected) = pool();
        let claim = pool.pick(0, None).unwrap();
        let releaser = thread::spawn(move || {
            work(&claim);
            drop(claim);
        });
        let claimant = {
            let pool = pool.clone();
            thread::spawn(move || {
                if let Ok(claim) = pool.pick(0, None) {
                    work(&claim);
                }
            })
        };
        drop(connected);
        let _again = pool.connect("a", AtomicUsize::new(0)).unwrap();
        releaser.join().unwrap();
        claimant.join().unwrap();
        assert_free(&pool);
    });
}

#[test]
fn a_waiting_claim_gets_a_worker_that_connects() {
    check(|| {
        let pool = Pool::new(PoolOptions::new(Strategy::Claim).size(Size::Fixed(1)));
        pool.add("a").unwrap();
        let waiting = {
            let pool = pool.clone();
            thread::spawn(move || work(&pool.claim().unwrap()))
        };
        let _connected = pool.connect("a", AtomicUsize::new(0)).unwrap();
        waiting.join().unwrap();
        assert_free(&pool);
    });
}

#[test]
fn a_worker_that_dies_while_it_is_claimed_is_never_claimed_again() {
    check(|| {
        let (pool, connected) = pool();
        let claimant = {
            let pool = pool.clone();
            thread::spawn(move || {
                if let Ok(claim) = pool.pick(0, None) {
                    work(&claim);
                }
            })
        };
        drop(connected);
        assert_eq!(
            pool.pick(0, None).unwrap_err(),
            PoolError::NoWorkerConnected
        );
        claimant.join().unwrap();
        assert_eq!(
            pool.pick(0, None).unwrap_err(),
            PoolError::NoWorkerConnected
        );
        let _again = pool.connect("a", AtomicUsize::new(0)).unwrap();
        assert_free(&pool);
    });
}

#[test]
fn a_pause_of_a_claimed_worker_loses_no_seat() {
    check(|| {
        let (pool, connected) = pool();
        let claimant = {
            let pool = pool.clone();
            thread::spawn(move || {
                if let Ok(claim) = pool.pick(0, None) {
                    work(&claim);
                }
            })
        };
        connected.pause();
        let _ = pool.pick(0, None).map(|claim| work(&claim));
        connected.resume();
        claimant.join().unwrap();
        assert_free(&pool);
    });
}

#[test]
fn a_paused_worker_that_disconnects_leaves_its_seat() {
    check(|| {
        let (pool, connected) = pool();
        connected.pause();
        let claimant = {
            let pool = pool.clone();
            thread::spawn(move || assert!(pool.pick(0, None).is_err()))
        };
        drop(connected);
        // Before the worker connects again, because then it may be claimed.
        claimant.join().unwrap();
        let _again = pool.connect("a", AtomicUsize::new(0)).unwrap();
        assert_free(&pool);
    });
}

#[test]
fn a_worker_with_room_is_open_whatever_the_order_of_picks_and_releases() {
    check(|| {
        let capacity = Capacity {
            jobs_max: 1,
            bytes_max: 1,
        };
        let options = PoolOptions::new(Strategy::RoundRobin)
            .size(Size::Fixed(1))
            .capacity(capacity);
        let pool = Pool::new(options);
        pool.add("a").unwrap();
        let connected = pool.connect("a", AtomicUsize::new(0)).unwrap();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                if let Ok(picked) = pool.pick(1, None) {
                    work(&picked);
                }
            })
        };
        if let Ok(picked) = pool.pick(1, None) {
            work(&picked);
        }
        connected.pause();
        connected.resume();
        other.join().unwrap();
        let picked = pool.pick(1, None).expect("the worker has room");
        assert_eq!(pool.pick(1, None).unwrap_err(), PoolError::NoRoom);
        drop(picked);
    });
}
