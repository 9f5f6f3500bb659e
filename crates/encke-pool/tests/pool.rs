//! The promises of a pool, one per test, including the faults of earlier pools.
#![allow(unexpected_cfgs)]
#![allow(clippy::unwrap_used)]
#![cfg(not(encke_model))]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use encke_pool::{Connected, Picked, Pool, PoolError, PoolOptions, Size, Strategy};

/// A pool with these workers, connected with their own names.
fn pool_of(strategy: Strategy, names: &[&str]) -> (Pool<String>, Vec<Connected<String>>) {
    let pool = Pool::new(PoolOptions::new(strategy));
    let connected = names
        .iter()
        .map(|name| {
            pool.add(name).unwrap();
            pool.connect(name, (*name).to_owned()).unwrap()
        })
        .collect();
    (pool, connected)
}

const SIX: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn names(pool: &Pool<String>) -> Vec<(String, usize, bool)> {
    let workers = pool.info().workers;
    workers
        .into_iter()
        .map(|w| (w.name.to_string(), w.slot, w.connected))
        .collect()
}

#[test]
fn strategies_have_the_names_of_the_reports() {
    for strategy in Strategy::ALL {
        assert_eq!(strategy.name().parse(), Ok(strategy));
    }
    assert_eq!(Strategy::RoundRobin.to_string(), "round_robin");
    assert!(
        "Random"
            .parse::<Strategy>()
            .unwrap_err()
            .to_string()
            .contains("\"Random\"")
    );
}

#[test]
fn workers_get_the_next_free_slot_or_the_one_they_ask_for() {
    let pool = Pool::<String>::new(PoolOptions::new(Strategy::RoundRobin));
    assert_eq!(pool.add("a"), Ok(0));
    assert_eq!(pool.add_at("d", 3), Ok(()));
    assert_eq!(pool.add("b"), Ok(1));
    assert_eq!(pool.add("c"), Ok(2));
    assert_eq!(pool.add("e"), Ok(4));
    pool.remove("b").unwrap();
    assert_eq!(pool.add("b again"), Ok(1));
    assert_eq!(pool.add("f"), Ok(5));
}

#[test]
fn a_name_that_is_added_twice_leaves_no_phantom_behind() {
    let pool = Pool::<String>::new(PoolOptions::new(Strategy::RoundRobin).size(Size::Fixed(2)));
    pool.add("a").unwrap();
    let taken = PoolError::NameTaken {
        name: "a".into(),
        slot: 0,
    };
    assert_eq!(pool.add("a"), Err(taken.clone()));
    assert_eq!(pool.add_at("a", 1), Err(taken));
    assert_eq!(names(&pool), [("a".to_owned(), 0, false)]);
    // The second slot is still there for somebody else, and both can go.
    assert_eq!(pool.add("b"), Ok(1));
    assert_eq!(pool.add("c"), Err(PoolError::Full { size: 2 }));
    pool.remove("a").unwrap();
    pool.remove("b").unwrap();
    assert_eq!(names(&pool), []);
}

#[test]
fn what_is_refused_changes_nothing() {
    let pool =
        Pool::<String>::new(PoolOptions::new(Strategy::Direct).size(Size::Growing { size_max: 3 }));
    pool.add_at("b", 1).unwrap();
    let before = pool.info();
    assert_eq!(
        pool.add_at("c", 1),
        Err(PoolError::SlotTaken {
            slot: 1,
            by: "b".into()
        })
    );
    assert_eq!(
        pool.add_at("c", 3),
        Err(PoolError::OutOfRange { slot: 3, size: 3 })
    );
    let unknown = |name: &str| PoolError::UnknownWorker { name: name.into() };
    assert_eq!(pool.remove("c"), Err(unknown("c")));
    assert_eq!(pool.connect("c", String::new()).unwrap_err(), unknown("c"));
    assert_eq!(pool.info(), before);
    pool.add("a").unwrap();
    pool.add("c").unwrap();
    assert_eq!(pool.add("d"), Err(PoolError::Full { size: 3 }));
}

#[test]
fn no_pool_has_more_slots_than_the_bound() {
    let slots = Size::SLOTS_MAX;
    for size in [
        Size::Fixed(usize::MAX),
        Size::Growing {
            size_max: usize::MAX,
        },
    ] {
        let pool = Pool::<()>::new(PoolOptions::new(Strategy::Direct).size(size));
        let refused = PoolError::OutOfRange {
            slot: slots,
            size: slots,
        };
        assert_eq!(pool.add_at("beyond", slots), Err(refused));
        pool.add_at("last", slots - 1).unwrap();
    }
}

#[test]
fn no_error_adds_a_worker_twice() {
    let pool = Pool::new(PoolOptions::new(Strategy::RoundRobin));
    pool.add("a").unwrap();
    let connected = pool.connect("a", ()).unwrap();
    for _ in 0..3 {
        pool.add("a").unwrap_err();
        pool.connect("a", ()).unwrap_err();
        pool.remove("a").unwrap_err();
    }
    for _ in 0..10 {
        assert_eq!(pool.pick(0, None).unwrap().slot(), 0);
    }
    let info = pool.info();
    assert_eq!(info.workers.len(), 1);
    drop(connected);
    assert_eq!(
        pool.pick(0, None).unwrap_err(),
        PoolError::NoWorkerConnected
    );
}

#[test]
fn a_worker_is_gone_when_it_dies_and_may_come_back() {
    let (pool, mut connected) = pool_of(Strategy::RoundRobin, &["a"]);
    assert_eq!(&**pool.pick(0, None).unwrap(), "a");
    assert_eq!(
        pool.connect("a", "twice".to_owned()).unwrap_err(),
        PoolError::WorkerConnected { name: "a".into() }
    );
    assert_eq!(
        pool.remove("a"),
        Err(PoolError::WorkerConnected { name: "a".into() })
    );
    let held = pool.pick(0, None).unwrap();
    // A worker's thread panics.
    let worker = connected.pop().unwrap();
    let died = std::thread::spawn(move || {
        let _worker = worker;
        panic!("on purpose");
    });
    died.join().unwrap_err();
    assert_eq!(
        pool.pick(0, None).unwrap_err(),
        PoolError::NoWorkerConnected
    );
    assert_eq!(&**held, "a", "what was picked before can still be used");
    let again = pool.connect("a", "again".to_owned()).unwrap();
    assert_eq!(pool.pick(0, None).unwrap().as_str(), "again");
    drop(again);
    pool.remove("a").unwrap();
}

#[test]
fn a_pool_chooses_in_its_own_way_only() {
    for strategy in Strategy::ALL {
        let (pool, _connected) = pool_of(strategy, &["a"]);
        let wrong = Err(PoolError::WrongStrategy { strategy });
        let answers = [
            (
                vec![Strategy::RoundRobin, Strategy::Random, Strategy::Claim],
                pool.pick(0, None).map(drop),
            ),
            (vec![Strategy::Hash], pool.pick_for("key", 0).map(drop)),
            (vec![Strategy::Hash], pool.slot_for("key").map(drop)),
            (
                vec![Strategy::Hash, Strategy::Direct],
                pool.pick_at(0, 0).map(drop),
            ),
            (vec![Strategy::Claim], pool.claim().map(drop)),
        ];
        for (of, answer) in answers {
            assert_eq!(
                answer,
                if of.contains(&strategy) {
                    Ok(())
                } else {
                    wrong.clone()
                }
            );
        }
    }
}

#[test]
fn no_connected_worker_is_an_error() {
    for strategy in Strategy::ALL {
        let (pool, connected) = pool_of(strategy, &["a"]);
        drop(connected);
        let answer = match strategy {
            Strategy::RoundRobin | Strategy::Random | Strategy::Claim => {
                pool.pick(0, None).map(drop)
            }
            Strategy::Hash => pool.pick_for("key", 0).map(drop),
            Strategy::Direct => pool.pick_at(0, 0).map(drop),
        };
        assert_eq!(answer, Err(PoolError::NoWorkerConnected), "{strategy}");
    }
}

#[test]
fn direct_picks_the_slot_or_says_why_not() {
    let pool = Pool::new(PoolOptions::new(Strategy::Direct).size(Size::Fixed(3)));
    pool.add_at("b", 1).unwrap();
    let _b = pool.connect("b", ()).unwrap();
    assert_eq!(pool.pick_at(1, 0).unwrap().name(), "b");
    assert_eq!(
        pool.pick_at(0, 0).unwrap_err(),
        PoolError::NoWorkerConnected
    );
    assert_eq!(
        pool.pick_at(2, 0).unwrap_err(),
        PoolError::NoWorkerConnected
    );
    assert_eq!(
        pool.pick_at(3, 0).unwrap_err(),
        PoolError::OutOfRange { slot: 3, size: 3 }
    );
}

/// Picks 100,000 times and returns how often each worker was picked.
fn spread(
    strategy: Strategy,
    pick: impl Fn(&Pool<String>, usize) -> Result<Picked<String>, PoolError>,
) -> Vec<u64> {
    let (pool, _connected) = pool_of(strategy, &SIX);
    let mut picks = vec![0; SIX.len()];
    for n in 0..100_000 {
        picks[pick(&pool, n).unwrap().slot()] += 1;
    }
    picks
}

fn assert_within_two_percent(picks: &[u64]) {
    let fair = 100_000.0 / picks.len() as f64;
    for &n in picks {
        assert!((n as f64 / fair - 1.0).abs() < 0.02, "{picks:?}");
    }
}

#[test]
fn round_robin_and_direct_spread_exactly() {
    let even = [16_667, 16_667, 16_667, 16_667, 16_666, 16_666];
    assert_eq!(
        spread(Strategy::RoundRobin, |pool, _| pool.pick(0, None)),
        even
    );
    assert_eq!(
        spread(Strategy::Direct, |pool, n| pool.pick_at(n % 6, 0)),
        even
    );
}

#[test]
fn round_robin_spreads_the_picks_of_many_threads_within_its_bound() {
    let (pool, _connected) = pool_of(Strategy::RoundRobin, &SIX);
    // Not a multiple of the workers, so that each cursor ends in the middle of a round.
    let pick = || -> Vec<_> {
        let picks = (0..1_001).map(|_| pool.pick(0, None).unwrap().slot());
        picks.collect()
    };
    let mut picks = [0; SIX.len()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(pick)).collect();
        for slot in threads.into_iter().flat_map(|one| one.join().unwrap()) {
            picks[slot] += 1;
        }
    });
    assert_eq!(picks.iter().sum::<usize>(), 20 * 1_001);
    let apart = picks.iter().max().unwrap() - picks.iter().min().unwrap();
    assert!(apart <= Strategy::UNEVEN_MAX, "{picks:?}");
}

#[test]
fn hash_and_random_spread_within_two_percent() {
    assert_within_two_percent(&spread(Strategy::Random, |pool, _| pool.pick(0, None)));
    assert_within_two_percent(&spread(Strategy::Hash, |pool, n| pool.pick_for(&n, 0)));
    assert_within_two_percent(&spread(Strategy::Hash, |pool, n| {
        pool.pick_for(&format!("user-{n}"), 0)
    }));
}

fn assignment(pool: &Pool<String>) -> HashMap<usize, String> {
    (0..60_000)
        .map(|key| (key, pool.pick_for(&key, 0).unwrap().name().to_owned()))
        .collect()
}

#[test]
fn a_dead_worker_s_share_is_spread_over_all_others_and_nothing_else_moves() {
    let (pool, mut connected) = pool_of(Strategy::Hash, &SIX);
    let before = assignment(&pool);
    let dead = connected.remove(2).name().to_owned();
    assert_eq!(dead, "c");
    let after = assignment(&pool);
    let mut heirs: HashMap<&str, u64> = HashMap::new();
    for (key, worker) in &before {
        if *worker == dead {
            *heirs.entry(&after[key]).or_default() += 1;
        } else {
            assert_eq!(after[key], *worker, "a key of another worker moved");
        }
    }
    let shares: Vec<_> = heirs.values().copied().collect();
    assert_eq!(shares.len(), 5, "{heirs:?}");
    let fair = shares.iter().sum::<u64>() as f64 / 5.0;
    assert!(
        shares.iter().all(|&n| (n as f64 / fair - 1.0).abs() < 0.1),
        "{heirs:?}"
    );
    // When it comes back, exactly its own keys come back to it.
    let _again = pool.connect("c", String::new()).unwrap();
    assert_eq!(assignment(&pool), before);
}

#[test]
fn the_same_names_get_the_same_keys_in_another_pool_whatever_the_order() {
    let (one, _connected) = pool_of(Strategy::Hash, &SIX);
    let mut reversed = SIX;
    reversed.reverse();
    let (other, _connected_too) = pool_of(Strategy::Hash, &reversed);
    assert_eq!(assignment(&one), assignment(&other));
}

#[test]
fn picks_go_on_while_workers_come_and_go() {
    let (pool, connected) = pool_of(Strategy::RoundRobin, &SIX);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let pickers: Vec<_> = (0..4)
        .map(|_| {
            let (pool, stop) = (pool.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut seen = HashSet::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // One worker always stays, so there is always someone.
                    seen.insert(pool.pick(0, None).unwrap().name().to_owned());
                }
                seen
            })
        })
        .collect();
    let mut connected: Vec<_> = connected.into_iter().map(Some).collect();
    for round in 0..3_000 {
        let n = 1 + round % 5;
        connected[n] = None;
        connected[n] = Some(pool.connect(SIX[n], String::new()).unwrap());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for picker in pickers {
        assert!(picker.join().unwrap().contains("a"));
    }
}

#[test]
fn a_value_lives_no_longer_than_its_worker_and_its_picks() {
    let value = Arc::new(());
    for strategy in Strategy::ALL {
        let pool = Pool::new(PoolOptions::new(strategy));
        pool.add("a").unwrap();
        let connected = pool.connect("a", value.clone()).unwrap();
        drop(pool.connect("a", value.clone()));
        assert_eq!(Arc::strong_count(&value), 2);
        drop(pool.clone());
        drop(pool);
        drop(connected);
        assert_eq!(Arc::strong_count(&value), 1, "{strategy}");
    }
}
