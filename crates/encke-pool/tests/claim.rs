//! The promises of claims, one per test.
#![allow(unexpected_cfgs)]
#![allow(clippy::unwrap_used)]
#![cfg(not(encke_model))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use encke_pool::{Connected, Pool, PoolError, PoolOptions, Size, Strategy};

const NEVER: Duration = Duration::from_secs(60);

/// A pool with so many workers, each connected with a count of who is using it.
fn pool_of(count: usize) -> (Pool<AtomicUsize>, Vec<Connected<AtomicUsize>>) {
    let pool = Pool::new(PoolOptions::new(Strategy::Claim));
    let connected = (0..count).map(|n| connect(&pool, n)).collect();
    (pool, connected)
}

fn connect(pool: &Pool<AtomicUsize>, n: usize) -> Connected<AtomicUsize> {
    let name = n.to_string();
    match pool.add(&name) {
        Ok(_) | Err(PoolError::NameTaken { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    pool.connect(&name, AtomicUsize::new(0)).unwrap()
}

/// Waits until `done` says so, and fails when it never does.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < NEVER, "{what} never happened");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_first_free_worker_is_claimed_and_released_on_drop() {
    let (pool, _connected) = pool_of(3);
    let claims: Vec<_> = (0..3).map(|_| pool.pick(0, None).unwrap()).collect();
    assert_eq!(
        claims.iter().map(|claim| claim.slot()).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    drop(claims);
    assert_eq!(pool.claim().unwrap().slot(), 0);
}

#[test]
fn a_claimant_that_dies_releases() {
    let (pool, _connected) = pool_of(1);
    let claimant = {
        let pool = pool.clone();
        thread::spawn(move || {
            let _claim = pool.claim().unwrap();
            panic!("on purpose");
        })
    };
    claimant.join().unwrap_err();
    pool.pick(0, None).unwrap();
}

#[test]
fn threads_that_wait_are_served_in_the_order_in_which_they_came() {
    let (pool, _connected) = pool_of(1);
    let claim = pool.claim().unwrap();
    let served = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut threads = Vec::new();
    for n in 0..5 {
        let (waits, served) = (pool.clone(), served.clone());
        threads.push(thread::spawn(move || {
            let claim = waits.claim().unwrap();
            served.lock().unwrap().push(n);
            drop(claim);
        }));
        eventually("waiting", || pool.info().waiting == n + 1);
    }
    drop(claim);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_worker_that_dies_while_claimed_is_gone_and_comes_back_as_a_new_one() {
    let (pool, mut connected) = pool_of(1);
    let old = pool.claim().unwrap();
    drop(connected.pop());
    assert_eq!(
        pool.pick(0, None).unwrap_err(),
        PoolError::NoWorkerConnected
    );
    let _again = connect(&pool, 0);
    let new = pool.pick(0, None).unwrap();
    // Releasing the old claim does not release the new one.
    drop(old);
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    drop(new);
    let only = pool.pick(0, None).unwrap();
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    drop(only);
}

#[test]
fn a_worker_that_dies_while_free_is_not_claimed() {
    let (pool, mut connected) = pool_of(2);
    drop(connected.remove(0));
    assert_eq!(pool.claim().unwrap().slot(), 1);
    let claim = pool.claim().unwrap();
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    drop(connected);
    drop(claim);
    assert_eq!(
        pool.pick(0, None).unwrap_err(),
        PoolError::NoWorkerConnected
    );
}

#[test]
fn a_waiting_claim_gets_a_worker_that_connects() {
    let (pool, _none) = pool_of(0);
    let waiting = {
        let pool = pool.clone();
        thread::spawn(move || pool.claim().map(|claim| claim.slot()))
    };
    eventually("waiting", || pool.info().waiting == 1);
    let _connected = connect(&pool, 0);
    assert_eq!(waiting.join().unwrap(), Ok(0));
    pool.pick(0, None).unwrap();
}

#[test]
fn connections_that_are_gone_but_claimed_have_a_bound_and_leave_when_released() {
    let pool = Pool::new(PoolOptions::new(Strategy::Claim).size(Size::Fixed(1)));
    pool.add("a").unwrap();
    let mut claims = Vec::new();
    let refused = loop {
        match pool.connect("a", ()) {
            Ok(connected) => {
                claims.push(pool.pick(0, None).unwrap());
                drop(connected);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused, PoolError::TooManyLeftClaimed);
    assert!(claims.len() >= 2);
    claims.pop();
    let connected = pool.connect("a", ()).unwrap();
    drop(claims);
    let claim = pool.pick(0, None).unwrap();
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    drop((claim, connected));
}

#[test]
fn workers_beyond_one_word_of_bits_are_claimed_each_once() {
    let (pool, connected) = pool_of(200);
    let mut slots: Vec<_> = (0..200)
        .map(|_| pool.pick(0, None).unwrap())
        .map(|claim| {
            let slot = claim.slot();
            std::mem::forget(claim);
            slot
        })
        .collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..200).collect::<Vec<_>>());
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    drop(connected);
}

#[test]
fn no_worker_ever_has_two_claimants_while_all_of_it_comes_and_goes() {
    let (pool, connected) = pool_of(3);
    let clients: Vec<_> = (0..8u64)
        .map(|client| {
            let pool = pool.clone();
            thread::spawn(move || {
                let mut done = 0;
                for round in 0..3_000u64 {
                    let claim = match (client + round) % 2 {
                        0 => pool.claim(),
                        _ => pool.pick(0, None),
                    };
                    let Ok(claim) = claim else { continue };
                    assert_eq!(claim.fetch_add(1, Ordering::SeqCst), 0, "claimed twice");
                    if round % 16 == 0 {
                        thread::yield_now();
                    }
                    claim.fetch_sub(1, Ordering::SeqCst);
                    done += 1;
                }
                done
            })
        })
        .collect();
    // One worker stays, so that nobody waits for ever; the others die all the time.
    let mut connected: Vec<_> = connected.into_iter().map(Some).collect();
    while !clients.iter().all(thread::JoinHandle::is_finished) {
        for (n, worker) in connected.iter_mut().enumerate().skip(1) {
            *worker = None;
            *worker = Some(connect(&pool, n));
        }
        thread::yield_now();
    }
    let done: u64 = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .sum();
    assert!(done >= 8 * 1_000, "every claim that waits was served");
    assert_eq!(pool.info().waiting, 0);
    let claims: Vec<_> = (0..3)
        .map(|_| pool.pick(0, None).expect("every worker is free again"))
        .collect();
    assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
    drop(claims);
    drop(connected);
}
