//! Names that shards have subscribers of and that no stream has yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use encke_log::StreamNo;
use parking_lot::Mutex;

use crate::stream::number::awaited_number;

/// The awaited names of one log. A name leaves the table when its last subscriber does, or when a stream of that name is created: then
/// its shards become watchers of the stream.
#[derive(Debug, Default)]
pub(crate) struct AwaitedNames {
    count: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Clients choose the names, so that their hashes must not be known.
    names: HashMap<Arc<str>, AwaitedName, foldhash::quality::RandomState>,
    numbers: HashMap<StreamNo, Arc<str>, foldhash::fast::FixedState>,
    /// How many names each group has.
    groups: HashMap<u64, usize, foldhash::quality::RandomState>,
    /// How many numbers were given.
    given: u64,
}

#[derive(Debug)]
struct AwaitedName {
    no: StreamNo,
    group: u64,
    shards: Vec<u16>,
}

impl AwaitedNames {
    /// Notes that a shard has subscribers of a name. Returns the number of the name, which it keeps for as long as it is in the table.
    pub(crate) fn add(&self, name: &Arc<str>, log: usize, group: u64, shard: u16) -> StreamNo {
        let mut table = self.table.lock();
        let Table {
            names,
            numbers,
            groups,
            given,
        } = &mut *table;
        let entry = names.entry(Arc::clone(name)).or_insert_with(|| {
            *given += 1;
            *groups.entry(group).or_default() += 1;
            let no = awaited_number(log, *given);
            numbers.insert(no, Arc::clone(name));
            AwaitedName {
                no,
                group,
                shards: Vec::with_capacity(1),
            }
        });
        if !entry.shards.contains(&shard) {
            entry.shards.push(shard);
        }
        let no = entry.no;
        self.count.store(table.names.len(), Ordering::SeqCst);
        no
    }

    /// Notes that a shard has no subscribers of a name any more. False: a stream was created, and the shard is its watcher.
    pub(crate) fn remove(&self, no: StreamNo, shard: u16) -> bool {
        let mut table = self.table.lock();
        let Some(name) = table.numbers.get(&no).cloned() else {
            return false;
        };
        let Some(entry) = table.names.get_mut(&name) else {
            return false;
        };
        entry.shards.retain(|other| *other != shard);
        if entry.shards.is_empty() {
            self.take_entry(&mut table, &name);
        }
        true
    }

    /// The number of a name and the shards that await it, when its stream is created: the name is awaited no more.
    pub(crate) fn take(&self, name: &str) -> Option<(StreamNo, Vec<u16>)> {
        let mut table = self.table.lock();
        let entry = self.take_entry(&mut table, name)?;
        Some((entry.no, entry.shards))
    }

    /// The number of a name that is awaited.
    pub(crate) fn number(&self, name: &str) -> Option<StreamNo> {
        if self.is_empty() {
            return None;
        }
        let table = self.table.lock();
        table.names.get(name).map(|entry| entry.no)
    }

    /// The shards that await a name.
    pub(crate) fn shards(&self, name: &str) -> Vec<u16> {
        let table = self.table.lock();
        let entry = table.names.get(name);
        entry.map_or_else(Vec::new, |entry| entry.shards.clone())
    }

    /// Whether no name is awaited.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many names are awaited.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// How many names of a group are awaited.
    pub(crate) fn of_group(&self, group: u64) -> usize {
        let table = self.table.lock();
        table.groups.get(&group).copied().unwrap_or_default()
    }

    fn take_entry(&self, table: &mut Table, name: &str) -> Option<AwaitedName> {
        let entry = table.names.remove(name)?;
        table.numbers.remove(&entry.no);
        if let Some(count) = table.groups.get_mut(&entry.group) {
            *count -= 1;
            if *count == 0 {
                table.groups.remove(&entry.group);
            }
        }
        self.count.store(table.names.len(), Ordering::SeqCst);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::number::{is_awaited, log_of};

    #[test]
    fn a_name_is_awaited_until_its_stream_is_created_or_its_last_shard_leaves() {
        let awaited = AwaitedNames::default();
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let no = awaited.add(&a, 3, 7, 1);
        assert!(is_awaited(no) && log_of(no) == 3);
        assert_eq!(awaited.add(&a, 3, 7, 2), no);
        assert_eq!(awaited.add(&a, 3, 7, 2), no);
        let other = awaited.add(&b, 3, 8, 1);
        assert_eq!((awaited.of_group(7), awaited.of_group(8)), (1, 1));
        assert_eq!(awaited.take("a"), Some((no, vec![1, 2])));
        assert_eq!((awaited.of_group(7), awaited.len()), (0, 1));
        assert!(!awaited.remove(no, 1), "the shard watches the stream");
        assert!(awaited.remove(other, 1));
        assert!(awaited.is_empty() && awaited.take("b").is_none());
        assert_ne!(awaited.add(&a, 3, 7, 1), no);
    }
}
