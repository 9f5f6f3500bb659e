//! Picks of workers with a capacity: each strategy keeps its promise among the workers with room.
#![allow(unexpected_cfgs)]
#![allow(clippy::unwrap_used)]
#![cfg(not(encke_model))]

use std::sync::atomic::{AtomicU64, Ordering};

use encke_pool::{Capacity, Connected, Picked, Pool, PoolError, PoolOptions, Strategy};

const CAPACITY: Capacity = Capacity {
    jobs_max: 2,
    bytes_max: 100,
};

fn pool_of(strategy: Strategy, count: usize) -> (Pool<usize>, Vec<Connected<usize>>) {
    let pool = Pool::new(PoolOptions::new(strategy).capacity(CAPACITY));
    let connected = (0..count)
        .map(|n| {
            let name = n.to_string();
            pool.add(&name).unwrap();
            pool.connect(&name, n).unwrap()
        })
        .collect();
    (pool, connected)
}

fn pick(pool: &Pool<usize>, strategy: Strategy, bytes: u32) -> Result<Picked<usize>, PoolError> {
    match strategy {
        Strategy::Hash => pool.pick_for("key", bytes),
        Strategy::Direct => pool.pick_at(0, bytes),
        Strategy::RoundRobin | Strategy::Random | Strategy::Claim => pool.pick(bytes, None),
    }
}

#[test]
fn no_worker_gets_more_than_its_capacity_by_any_strategy() {
    for strategy in Strategy::ALL {
        let (pool, _connected) = pool_of(strategy, 3);
        let workers = match strategy {
            Strategy::Hash | Strategy::Direct => 1,
            _ => 3,
        };
        let jobs = match strategy {
            Strategy::Claim => workers,
            _ => workers * 2,
        };
        let mut held: Vec<_> = (0..jobs)
            .map(|_| pick(&pool, strategy, 1).unwrap())
            .collect();
        let full = pick(&pool, strategy, 1).unwrap_err();
        assert_eq!(full, PoolError::NoRoom, "{strategy}");
        // The place of a job that is over is picked next.
        let slot = held.pop().unwrap().slot();
        held.push(pick(&pool, strategy, 1).unwrap());
        assert_eq!(held.last().unwrap().slot(), slot, "{strategy}");
        held.clear();
        pick(&pool, strategy, 1).unwrap();
    }
}

#[test]
fn bytes_are_a_bound_unless_the_worker_has_no_jobs() {
    for strategy in [Strategy::RoundRobin, Strategy::Random, Strategy::Direct] {
        let (pool, _connected) = pool_of(strategy, 1);
        let large = pick(&pool, strategy, 1_000).unwrap();
        assert_eq!(
            pick(&pool, strategy, 0).unwrap_err(),
            PoolError::NoRoom,
            "{strategy}"
        );
        drop(large);
        let _most = pick(&pool, strategy, 90).unwrap();
        let too_much = pick(&pool, strategy, 11).unwrap_err();
        assert_eq!(too_much, PoolError::NoRoom, "{strategy}");
        pick(&pool, strategy, 10).unwrap();
    }
}

#[test]
fn turns_go_on_behind_the_worker_that_was_picked_also_past_full_ones() {
    let (pool, _connected) = pool_of(Strategy::RoundRobin, 4);
    let slots = |count: usize| -> Vec<Picked<usize>> {
        (0..count).map(|_| pool.pick(1, None).unwrap()).collect()
    };
    let mut held = slots(6);
    let order: Vec<_> = held.iter().map(|picked| picked.slot()).collect();
    assert_eq!(order, [0, 1, 2, 3, 0, 1]);
    // Only 2 and 3 have room.
    held.extend(slots(2));
    let order: Vec<_> = held[6..].iter().map(|picked| picked.slot()).collect();
    assert_eq!(order, [2, 3]);
    // Now only 0 and 2 have.
    held.retain(|picked| picked.slot() % 2 == 1);
    let more = slots(4);
    let order: Vec<_> = more.iter().map(|picked| picked.slot()).collect();
    assert_eq!(order, [0, 2, 0, 2]);
}

#[test]
fn chance_is_even_among_the_workers_with_room() {
    let (pool, _connected) = pool_of(Strategy::Random, 5);
    // The workers 1 and 2 are full.
    let mut full = Vec::new();
    while full.len() < 4 {
        let picked = pool.pick(1, None).unwrap();
        if matches!(picked.slot(), 1 | 2) {
            full.push(picked);
        }
    }
    let mut counts = [0u32; 5];
    for _ in 0..30_000 {
        counts[pool.pick(1, None).unwrap().slot()] += 1;
    }
    assert_eq!((counts[1], counts[2]), (0, 0));
    for slot in [0, 3, 4] {
        assert!((9_500..10_500).contains(&counts[slot]), "{counts:?}");
    }
    let mut counts = [0u32; 5];
    for _ in 0..30_000 {
        counts[pool.pick(1, Some(3)).unwrap().slot()] += 1;
    }
    for slot in [0, 4] {
        assert!((14_500..15_500).contains(&counts[slot]), "{counts:?}");
    }
}

#[test]
fn an_avoided_worker_is_not_picked_although_it_is_the_only_one_with_room() {
    for strategy in [Strategy::RoundRobin, Strategy::Random, Strategy::Claim] {
        let (pool, _connected) = pool_of(strategy, 2);
        for _ in 0..20 {
            assert_eq!(pool.pick(1, Some(0)).unwrap().slot(), 1, "{strategy}");
        }
        let held: Vec<_> = (0..2).map_while(|_| pool.pick(1, Some(0)).ok()).collect();
        assert!(held.iter().all(|picked| picked.slot() == 1));
        assert_eq!(
            pool.pick(1, Some(0)).unwrap_err(),
            PoolError::NoRoom,
            "{strategy}"
        );
        assert_eq!(pool.pick(1, None).unwrap().slot(), 0, "{strategy}");
    }
}

#[test]
fn a_paused_worker_gets_no_jobs_and_keeps_its_values() {
    for strategy in Strategy::ALL {
        let (pool, connected) = pool_of(strategy, 1);
        let value = || pool.slot_for("key");
        let before = value();
        connected[0].pause();
        let refused = pick(&pool, strategy, 1).unwrap_err();
        assert_eq!(refused, PoolError::NoRoom, "{strategy}");
        assert_eq!(value(), before);
        connected[0].resume();
        // A pause during a job ends the job's place only with the job.
        let held = pick(&pool, strategy, 1).unwrap();
        connected[0].pause();
        drop(held);
        let refused = pick(&pool, strategy, 1).unwrap_err();
        assert_eq!(refused, PoolError::NoRoom, "{strategy}");
        connected[0].resume();
        pick(&pool, strategy, 1).unwrap();
    }
}

#[test]
fn the_places_of_a_disconnected_worker_count_until_they_are_released() {
    let (pool, mut connected) = pool_of(Strategy::RoundRobin, 1);
    let old = [pool.pick(1, None).unwrap(), pool.pick(1, None).unwrap()];
    drop(connected.pop());
    let _again = pool.connect("0", 0).unwrap();
    assert_eq!(pool.pick(1, None).unwrap_err(), PoolError::NoRoom);
    drop(old);
    pool.pick(1, None).unwrap();
}

#[test]
fn the_capacity_changes_for_workers_with_and_without_jobs() {
    for strategy in Strategy::ALL {
        if strategy == Strategy::Claim {
            continue;
        }
        let (pool, _connected) = pool_of(strategy, 1);
        let mut held: Vec<_> = (0..2).map(|_| pick(&pool, strategy, 1).unwrap()).collect();
        assert!(pick(&pool, strategy, 1).is_err(), "{strategy}");
        pool.set_jobs_max(3);
        held.push(pick(&pool, strategy, 1).unwrap());
        assert!(pick(&pool, strategy, 1).is_err(), "{strategy}");
        // It keeps what it has, and gets nothing until it has less.
        pool.set_jobs_max(1);
        for _ in 0..3 {
            assert!(pick(&pool, strategy, 1).is_err(), "{strategy}");
            held.pop();
        }
        held.push(pick(&pool, strategy, 1).unwrap());
        assert!(pick(&pool, strategy, 1).is_err(), "{strategy}");
    }
}

#[test]
fn concurrent_picks_never_exceed_the_capacity_and_lose_no_place() {
    for strategy in [Strategy::RoundRobin, Strategy::Random] {
        let pool = Pool::new(PoolOptions::new(strategy).capacity(CAPACITY));
        let connected: Vec<_> = (0..3)
            .map(|n: usize| {
                let name = n.to_string();
                pool.add(&name).unwrap();
                pool.connect(&name, AtomicU64::new(0)).unwrap()
            })
            .collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if let Ok(picked) = pool.pick(1, None) {
                            assert!(picked.fetch_add(1, Ordering::SeqCst) < 2, "{strategy}");
                            picked.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        let held: Vec<_> = (0..6).map(|_| pool.pick(1, None).unwrap()).collect();
        assert_eq!(pool.pick(1, None).unwrap_err(), PoolError::NoRoom);
        drop((held, connected));
    }
}
