//! Any sequence of adding, removing, connecting and disconnecting, against two maps.
#![allow(unexpected_cfgs)]
#![cfg(not(encke_model))]

use std::collections::BTreeMap;

use encke_pool::{Connected, Pool, PoolError, PoolOptions, Size, Strategy};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;

const SIZE_MAX: usize = 4;

#[derive(Clone, Debug)]
enum Call {
    Add(u8),
    AddAt(u8, usize),
    Remove(u8),
    Connect(u8),
    Die(u8),
}

fn calls() -> impl Generator<Value = Vec<Call>> {
    let name = 0..6u8;
    let call = prop_oneof![
        name.clone().prop_map(Call::Add),
        (name.clone(), 0..SIZE_MAX + 1).prop_map(|(name, slot)| Call::AddAt(name, slot)),
        name.clone().prop_map(Call::Remove),
        name.clone().prop_map(Call::Connect),
        name.prop_map(Call::Die),
    ];
    prop::collection::vec(call, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn names_slots_and_connections_always_agree(fixed in any::<bool>(), calls in calls()) {
        let size = if fixed { Size::Fixed(SIZE_MAX) } else { Size::Growing { size_max: SIZE_MAX } };
        let pool = Pool::new(PoolOptions::new(Strategy::Direct).size(size));
        // The model: which slot each name has, and who is connected.
        let mut slots: BTreeMap<String, usize> = BTreeMap::new();
        let mut connected: BTreeMap<String, Connected<String>> = BTreeMap::new();
        for call in calls {
            let taken = |slot: usize| slots.values().any(|&s| s == slot);
            match call {
                Call::Add(name) => {
                    let name = name.to_string();
                    let free = (0..SIZE_MAX).find(|&slot| !taken(slot));
                    let expected = match (slots.get(&name), free) {
                        (Some(&slot), _) => Err(PoolError::NameTaken { name: name.as_str().into(), slot }),
                        (None, None) => Err(PoolError::Full { size: SIZE_MAX }),
                        (None, Some(slot)) => Ok(slot),
                    };
                    prop_assert_eq!(pool.add(&name), expected.clone());
                    if let Ok(slot) = expected {
                        slots.insert(name, slot);
                    }
                }
                Call::AddAt(name, slot) => {
                    let name = name.to_string();
                    let may = !slots.contains_key(&name) && slot < SIZE_MAX && !taken(slot);
                    prop_assert_eq!(pool.add_at(&name, slot).is_ok(), may);
                    if may {
                        slots.insert(name, slot);
                    }
                }
                Call::Remove(name) => {
                    let name = name.to_string();
                    let may = slots.contains_key(&name) && !connected.contains_key(&name);
                    prop_assert_eq!(pool.remove(&name).is_ok(), may);
                    if may {
                        slots.remove(&name);
                    }
                }
                Call::Connect(name) => {
                    let name = name.to_string();
                    let may = slots.contains_key(&name) && !connected.contains_key(&name);
                    let answer = pool.connect(&name, name.clone());
                    prop_assert_eq!(answer.is_ok(), may);
                    if let Ok(connection) = answer {
                        connected.insert(name, connection);
                    }
                }
                Call::Die(name) => drop(connected.remove(&name.to_string())),
            }
            let info = pool.info();
            let mut expected: Vec<_> = slots.iter().map(|(name, &slot)| (slot, name.clone())).collect();
            expected.sort_unstable();
            let workers: Vec<_> = info.workers.iter().map(|w| (w.slot, w.name.to_string())).collect();
            prop_assert_eq!(workers, expected);
            for worker in &info.workers {
                prop_assert_eq!(worker.connected, connected.contains_key(&*worker.name));
                match pool.pick_at(worker.slot, 0) {
                    Ok(picked) => prop_assert_eq!(picked.as_str(), &*worker.name),
                    Err(error) => {
                        prop_assert_eq!(error, PoolError::NoWorkerConnected);
                        prop_assert!(!worker.connected);
                    }
                }
            }
        }
    }
}
