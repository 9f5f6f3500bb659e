//! Names that shards await: from its creation on they get the records of the stream.

use std::sync::Arc;

use encke_log::simulated::SimulatedDisk;
use encke_stream::{AckLevel, Batch, is_awaited};

use crate::bench::{Bench, append, create, delete};
use crate::{TEXT, start};

/// What each shard gets of a round, by the sequences of the records.
fn handed(bench: &mut Bench<SimulatedDisk>, name: &str) -> Vec<(usize, Arc<Batch>)> {
    let commands = vec![append(name, b"x")];
    batches(bench, commands)
}

fn batches(
    bench: &mut Bench<SimulatedDisk>,
    commands: Vec<encke_stream::Command>,
) -> Vec<(usize, Arc<Batch>)> {
    let (_, deliveries) = bench.deliveries(commands);
    let deliveries = deliveries.into_iter();
    let mut found: Vec<_> = deliveries
        .filter_map(|delivery| Some((delivery.shard, delivery.batch?)))
        .collect();
    found.sort_by_key(|(shard, _)| *shard);
    found
}

#[test]
fn a_shard_that_awaits_a_name_watches_its_stream_from_the_creation_on() {
    let disk = SimulatedDisk::new(5);
    let mut bench = start(&disk, AckLevel::Synced);
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    let no = bench.view.await_name(&a, 0, 7, 1);
    let other = bench.view.await_name(&b, 0, 7, 0);
    assert!(is_awaited(no) && no != other);
    assert!(batches(&mut bench, vec![create("c", TEXT)]).is_empty());
    let created = batches(&mut bench, vec![create("a", TEXT)]);
    let [(1, batch)] = &created[..] else {
        panic!("{created:?}")
    };
    let [awaited] = batch.awaited() else {
        panic!("{batch:?}")
    };
    let stream = bench.stream("a");
    assert_eq!((awaited.awaited, awaited.no), (no, stream.no));
    assert_eq!(awaited.shards[..], [1]);
    assert!(awaited.stream.upgrade().is_some());
    let further = handed(&mut bench, "a");
    assert!(matches!(&further[..], [(1, batch)] if batch.awaited().is_empty()));
    // A shard that leaves before the creation gets nothing.
    assert!(bench.view.leave_name(other, 0));
    assert!(!bench.view.leave_name(no, 1), "it is a watcher");
    assert!(batches(&mut bench, vec![create("b", TEXT)]).is_empty());
    bench.view.unwatch(stream.no, 1);
    assert!(handed(&mut bench, "a").is_empty());
    bench.stop().unwrap();
}

#[test]
fn only_a_creation_ends_the_wait() {
    let disk = SimulatedDisk::new(5);
    let mut bench = start(&disk, AckLevel::Synced);
    batches(&mut bench, vec![create("a", TEXT)]);
    // A stream of the name that ends is not the one that is awaited.
    let no = bench.view.await_name(&"a".into(), 0, 7, 0);
    assert!(batches(&mut bench, vec![delete("a")]).is_empty());
    let created = batches(&mut bench, vec![create("a", TEXT)]);
    assert!(matches!(&created[..], [(0, batch)] if batch.awaited()[0].awaited == no));
    bench.stop().unwrap();
}
