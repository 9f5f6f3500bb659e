//! Every order in which threads can run, within loom's bounds, for claims: a worker never has two claimants, is never
//! lost, and nobody waits for a worker that is free.
//!
//! ```sh
//! RUSTFLAGS="--cfg encke_model" cargo test --release -p encke-pool --test model --target-dir target/model
//! ```
#![allow(unexpected_cfgs)]
#![cfg(encke_model)]

use std::time::Duration;

use encke_pool::{Claim, Connected, Options, Pool, PoolError, Size, Strategy};
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
    let pool = Pool::new("model", Options::new(Strategy::Claim).size(Size::Fixed(1)));
    pool.add("a").unwrap();
    let connected = pool.connect("a", AtomicUsize::new(0)).unwrap();
    (pool, connected)
}

/// Has the worker to itself.
fn work(claim: &Claim<AtomicUsize>) {
    assert_eq!(claim.fetch_add(1, Ordering::AcqRel), 0, "claimed twice");
    claim.fetch_sub(1, Ordering::AcqRel);
}

fn assert_free(pool: &Pool<AtomicUsize>) {
    assert_eq!(pool.info().waiting, 0);
    let claim = pool.try_claim().expect("the worker is free");
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
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
fn a_claim_that_times_out_or_leaves_loses_no_worker() {
    check(|| {
        let (pool, _connected) = pool();
        let claim = pool.try_claim().unwrap();
        let impatient = {
            let pool = pool.clone();
            thread::spawn(move || match pool.claim_timeout(Duration::ZERO) {
                Ok(claim) => work(&claim),
                Err(error) => assert_eq!(error, PoolError::TimedOut),
            })
        };
        let fickle = {
            let pool = pool.clone();
            thread::spawn(move || drop(pool.line_up().unwrap()))
        };
        drop(claim);
        impatient.join().unwrap();
        fickle.join().unwrap();
        assert_free(&pool);
    });
}

#[test]
fn who_waits_behind_one_who_leaves_is_served() {
    check(|| {
        let (pool, _connected) = pool();
        let claim = pool.try_claim().unwrap();
        let first = pool.line_up().unwrap();
        let second = {
            let pool = pool.clone();
            thread::spawn(move || work(&pool.claim().unwrap()))
        };
        let leaver = thread::spawn(move || drop(first));
        drop(claim);
        leaver.join().unwrap();
        second.join().unwrap();
        assert_free(&pool);
    });
}

#[test]
fn a_worker_that_dies_and_returns_while_it_is_released_is_free_once() {
    check(|| {
        let (pool, connected) = pool();
        let claim = pool.try_claim().unwrap();
        let releaser = thread::spawn(move || {
            work(&claim);
            drop(claim);
        });
        let claimant = {
            let pool = pool.clone();
            thread::spawn(move || {
                if let Ok(claim) = pool.try_claim() {
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
fn who_waits_gets_a_worker_that_connects() {
    check(|| {
        let pool = Pool::new("model", Options::new(Strategy::Claim).size(Size::Fixed(1)));
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
fn a_worker_that_dies_while_it_is_claimed_is_claimed_by_nobody_afterwards() {
    check(|| {
        let (pool, connected) = pool();
        let claimant = {
            let pool = pool.clone();
            thread::spawn(move || {
                if let Ok(claim) = pool.try_claim() {
                    work(&claim);
                }
            })
        };
        drop(connected);
        assert_eq!(pool.try_claim().unwrap_err(), PoolError::NobodyConnected);
        claimant.join().unwrap();
        assert_eq!(pool.try_claim().unwrap_err(), PoolError::NobodyConnected);
        let _again = pool.connect("a", AtomicUsize::new(0)).unwrap();
        assert_free(&pool);
    });
}
