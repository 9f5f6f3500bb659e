//! Whatever the commands, the clocks, the crashes and the evictions: all nodes hold the same streams and the same records.

use encke_clock::WallTime;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Send(usize, Do, bool),
    /// A node gives a batch up after it has sent some of its messages. The brokers store the others later, or not at all.
    GiveUp(usize, Do, usize),
    Late(usize),
    Read(usize, usize),
    Wait(u64),
    Follow(usize, usize),
    Crash(usize, bool),
    Restart(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..NAMES.len();
    let lifetime = of(prop_oneof![
        (1..3_u64).prop_map(|ttl_s| Lifetime::Sliding { ttl_s }),
        (0..9_000_u64).prop_map(|at_ms| Lifetime::Until {
            at: WallTime::from_ms(at_ms + NOW_MS)
        }),
    ]);
    let size = prop_oneof![9 => 0..40_usize, 1 => 300..900_usize];
    let create = (
        name.clone(),
        lifetime,
        of(1..6_u64),
        of(name.clone()),
        size.clone(),
    );
    let create = create.prop_map(|(name, lifetime, records, source, size)| {
        Do::Create(name, lifetime, records, source, size)
    });
    let producer = of((0..2_u64, 0..3_u64));
    let append = (name.clone(), producer, proptest::bool::weighted(0.05), size);
    let append =
        append.prop_map(|(name, producer, closes, size)| Do::Append(name, producer, closes, size));
    let command = prop_oneof![
        4 => create,
        8 => append,
        1 => name.clone().prop_map(Do::Truncate),
        1 => name.clone().prop_map(Do::Delete),
        1 => Just(Do::Barrier),
        1 => (0..4_usize).prop_map(Do::Leave),
        2 => (1..9_u64).prop_map(Do::Dispatch),
        2 => (name.clone(), name.clone()).prop_map(|(first, last)| Do::Series(first, last)),
    ];
    let node = 0..3_usize;
    let given_up = (node.clone(), command.clone(), 0..3_usize);
    let step = prop_oneof![
        30 => (node.clone(), command, proptest::bool::weighted(0.1)).prop_map(|(node, what, twice)| Step::Send(node, what, twice)),
        4 => given_up.prop_map(|(node, what, sent)| Step::GiveUp(node, what, sent)),
        4 => any::<usize>().prop_map(Step::Late),
        4 => (node.clone(), name).prop_map(|(node, name)| Step::Read(node, name)),
        6 => (0..1_500_u64).prop_map(Step::Wait),
        10 => (node.clone(), 1..6_usize).prop_map(|(node, count)| Step::Follow(node, count)),
        3 => (node.clone(), any::<bool>()).prop_map(|(node, cut)| Step::Crash(node, cut)),
        2 => node.prop_map(Step::Restart),
    ];
    vec(step, 1..120)
}

proptest! {
    #[test]
    fn all_nodes_decide_the_same(steps in steps(), history in proptest::bool::weighted(0.1)) {
        let node = |index| Node::new(index, index as u64 * 700, history && index == 2);
        let mut nodes: Vec<_> = (0..3).map(node).collect();
        let mut shared = Shared::new();
        let mut late: Shared = Vec::new();
        let mut now_ms = NOW_MS;
        for (made, step) in steps.into_iter().enumerate() {
            match step {
                Step::Send(node, what, twice) => {
                    let command = with_extras(command_of(nodes[node].name, what, made), made);
                    nodes[node].send(command, now_ms, twice, &mut shared);
                }
                Step::GiveUp(node, what, sent) => {
                    let command = with_extras(command_of(nodes[node].name, what, made), made);
                    let mut messages = nodes[node].give_up(command, now_ms, &shared);
                    let held = messages.split_off(sent.min(messages.len()));
                    shared.extend(messages);
                    late.extend(held);
                }
                Step::Late(index) if !late.is_empty() => {
                    let (_, message) = late.swap_remove(index % late.len());
                    shared.push((now_ms, message));
                }
                Step::Late(_) => {}
                Step::Read(node, name) => {
                    let running = nodes[node].run();
                    if let Some(Lookup::Stream(stream)) = running.views.look(NAMES[name]) {
                        running.views.log(0).touch(&stream, Now::from_ms(now_ms));
                    }
                }
                Step::Wait(ms) => now_ms += ms,
                Step::Follow(node, count) => nodes[node].follow(&shared, count, now_ms),
                Step::Crash(node, cut) => nodes[node].crash(&shared, now_ms, cut),
                Step::Restart(node) => nodes[node].restart(),
            }
        }
        let mut first: Option<(Tip, _, Vec<_>)> = None;
        for node in &mut nodes {
            node.follow(&shared, usize::MAX, now_ms);
            let tip = node.run().status.applied();
            prop_assert_eq!(node.run().incoming.position(), shared.len() as u64);
            let contents = (
                node.contents(),
                node.run().views.log(0).dispatcher(),
                node.run().views.storage_uses(),
            );
            let records = node.records();
            match &first {
                None => first = Some((tip, contents, records)),
                Some((expected_tip, expected, expected_records)) => {
                    prop_assert_eq!(&tip, expected_tip);
                    prop_assert_eq!(&contents, expected);
                    // What is left of the log begins at the last checkpoint of each node.
                    let begin = records.first().map_or(u64::MAX, |record| record.0);
                    let other = expected_records.first().map_or(u64::MAX, |record| record.0);
                    let begin = begin.max(other);
                    let behind = |records: &[(u64, u64, u8, WallTime, Vec<u8>)]| -> Vec<_> {
                        records.iter().filter(|record| record.0 >= begin).cloned().collect()
                    };
                    prop_assert_eq!(behind(&records), behind(expected_records));
                }
            }
        }
    }
}
