//! What claims promise, one promise a test.
#![allow(unexpected_cfgs)]
#![allow(clippy::unwrap_used)]
#![cfg(not(encke_model))]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use encke_pool::{Connected, Options, Pool, PoolError, Size, Strategy};

const SOON: Duration = Duration::from_millis(30);
const NEVER: Duration = Duration::from_secs(20);

/// A pool with so many workers, each connected with a count of who is using it.
fn pool_of(count: usize) -> (Pool<AtomicUsize>, Vec<Connected<AtomicUsize>>) {
    let pool = Pool::new("test", Options::new(Strategy::Claim));
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
    let claims: Vec<_> = (0..3).map(|_| pool.try_claim().unwrap()).collect();
    assert_eq!(
        claims.iter().map(|claim| claim.slot()).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    assert_eq!(pool.claim_timeout(SOON).unwrap_err(), PoolError::TimedOut);
    drop(claims);
    assert_eq!(pool.claim().unwrap().slot(), 0);
    let picks: Vec<_> = pool.info().workers.iter().map(|w| w.picks).collect();
    assert_eq!(picks, [2, 1, 1]);
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
    pool.try_claim().unwrap();
}

#[test]
fn who_comes_first_is_served_first_and_nobody_overtakes_the_line() {
    let (pool, _connected) = pool_of(1);
    let claim = pool.claim().unwrap();
    let line: Vec<_> = (0..3).map(|_| pool.line_up().unwrap()).collect();
    assert_eq!(pool.info().waiting, 3);
    drop(claim);
    // The worker is the first one's already, though it has not looked yet.
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    assert_eq!(pool.info().waiting, 2);
    for (left, place) in [2, 1, 0].into_iter().zip(line) {
        assert_eq!(pool.info().waiting, left);
        let claim = place.wait().unwrap();
        assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
        drop(claim);
    }
    pool.try_claim().unwrap();
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
            let claim = match n % 2 {
                0 => waits.claim(),
                _ => waits.claim_timeout(NEVER),
            };
            served.lock().unwrap().push(n);
            drop(claim.unwrap());
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
fn a_claim_that_times_out_leaks_no_worker_also_when_it_has_just_won() {
    let (pool, _connected) = pool_of(1);
    // Won, and then not wanted any more: the worker goes back.
    for _ in 0..100 {
        let claim = pool.claim().unwrap();
        let place = pool.line_up().unwrap();
        drop(claim);
        drop(place);
        pool.try_claim().unwrap();
    }
    // The same as a race, for threads whose time runs out just when the worker is released.
    let impatient: Vec<_> = (0..4)
        .map(|n| {
            let pool = pool.clone();
            thread::spawn(move || {
                let mut won = 0;
                for round in 0..2_000u64 {
                    let timeout = Duration::from_micros((round * 7 + n * 13) % 60);
                    match pool.claim_timeout(timeout) {
                        Ok(claim) => {
                            won += 1;
                            std::hint::black_box(&claim);
                        }
                        Err(error) => assert_eq!(error, PoolError::TimedOut),
                    }
                }
                won
            })
        })
        .collect();
    let won: u64 = impatient
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(pool.info().waiting, 0, "nobody is left in the line");
    assert!(won > 0, "some were in time");
    pool.try_claim().expect("the worker is free");
}

#[test]
fn a_worker_that_dies_while_claimed_is_gone_and_comes_back_as_a_new_one() {
    let (pool, mut connected) = pool_of(1);
    let old = pool.claim().unwrap();
    drop(connected.pop());
    assert!(!old.is_connected());
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::NobodyConnected);
    let _again = connect(&pool, 0);
    let new = pool.try_claim().unwrap();
    assert!(new.is_connected());
    // Releasing the old claim does not release the new one.
    drop(old);
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    drop(new);
    let only = pool.try_claim().unwrap();
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    drop(only);
}

#[test]
fn a_worker_that_dies_while_free_is_claimed_by_nobody() {
    let (pool, mut connected) = pool_of(2);
    drop(connected.remove(0));
    assert_eq!(pool.claim().unwrap().slot(), 1);
    let claim = pool.claim().unwrap();
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    drop(connected);
    drop(claim);
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::NobodyConnected);
}

#[test]
fn who_waits_gets_a_worker_that_connects() {
    let (pool, _none) = pool_of(0);
    let waiting = {
        let pool = pool.clone();
        thread::spawn(move || pool.claim().map(|claim| claim.slot()))
    };
    eventually("waiting", || pool.info().waiting == 1);
    let _connected = connect(&pool, 0);
    assert_eq!(waiting.join().unwrap(), Ok(0));
    pool.try_claim().unwrap();
}

#[test]
fn a_place_in_line_is_a_future_too() {
    let (pool, _connected) = pool_of(1);
    let claim = pool.claim().unwrap();
    let mut place = pin!(pool.line_up().unwrap());
    let mut context = Context::from_waker(Waker::noop());
    assert!(place.as_mut().poll(&mut context).is_pending());
    drop(claim);
    let Poll::Ready(Ok(claim)) = place.poll(&mut context) else {
        panic!("the worker is free");
    };
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    drop(claim);
}

#[test]
fn the_line_has_a_bound() {
    let pool = Pool::<()>::new("test", Options::new(Strategy::Claim).waiting_max(2));
    let _line = [pool.line_up().unwrap(), pool.line_up().unwrap()];
    let full = PoolError::TooManyWaiting { waiting_max: 2 };
    assert_eq!(pool.line_up().unwrap_err(), full);
    assert_eq!(pool.claim().unwrap_err(), full);
}

#[test]
fn connections_that_are_gone_but_claimed_have_a_bound_and_leave_when_released() {
    let pool = Pool::new("test", Options::new(Strategy::Claim).size(Size::Fixed(1)));
    pool.add("a").unwrap();
    let mut claims = Vec::new();
    let refused = loop {
        match pool.connect("a", ()) {
            Ok(connected) => {
                claims.push(pool.try_claim().unwrap());
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
    let claim = pool.try_claim().unwrap();
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    drop((claim, connected));
}

#[test]
fn workers_beyond_one_word_of_bits_are_claimed_each_once() {
    let (pool, connected) = pool_of(200);
    let mut slots: Vec<_> = (0..200)
        .map(|_| pool.try_claim().unwrap())
        .map(|claim| {
            let slot = claim.slot();
            std::mem::forget(claim);
            slot
        })
        .collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..200).collect::<Vec<_>>());
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
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
                    let claim = match (client + round) % 3 {
                        0 => pool.claim(),
                        1 => pool.claim_timeout(Duration::from_micros(round % 200)),
                        _ => pool.try_claim(),
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
    assert!(
        done >= 8 * 1_000,
        "every claim without a timeout was served"
    );
    assert_eq!(pool.info().waiting, 0);
    let claims: Vec<_> = (0..3)
        .map(|_| pool.try_claim().expect("every worker is free again"))
        .collect();
    assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
    drop(claims);
    drop(connected);
}
