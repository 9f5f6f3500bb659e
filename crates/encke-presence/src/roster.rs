//! Streams and their members, summed over all who hold them. Makes the events. Knows neither nodes nor times.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};

use crate::event::EventQueue;
use crate::holding::LocalHolding;
use crate::slots::{EntrySlots, NONE};
use crate::{Member, PresenceChange, PresenceCounts, PresenceEvent, PresenceSnapshot};

/// All streams and all members.
#[derive(Debug, Default)]
pub(crate) struct MemberRoster {
    names: HashMap<Arc<str>, u32, RandomState>,
    pub(crate) streams: EntrySlots<KnownStream>,
    pub(crate) members: EntrySlots<StreamEntry>,
    pub(crate) events: EventQueue,
    /// What the names of streams begin with whose connections are counted by events.
    pub(crate) counted_prefixes: Vec<Box<str>>,
    /// Such streams whose connections have changed since events were last taken. A slot may have another stream since.
    changed_counts: Vec<u32>,
    hasher: RandomState,
    /// Bytes of ids and data of all members.
    pub(crate) bytes: usize,
    /// Connections to all streams.
    pub(crate) connections: usize,
    pub(crate) joins: u64,
    pub(crate) leaves: u64,
}

/// A stream that has members, connections or followers.
#[derive(Debug)]
pub(crate) struct KnownStream {
    pub(crate) name: Arc<str>,
    pub(crate) number: u64,
    /// Its slots of members, by the hashes of their keys.
    table: HashTable<u32>,
    /// The member that joined first.
    first: u32,
    /// The member that joined last.
    last: u32,
    /// Bytes of ids and data of its members.
    pub(crate) bytes: usize,
    /// Connections, over all nodes.
    connections: usize,
    /// Connections of this node.
    pub(crate) local_connections: u32,
    /// How many of them the other nodes know.
    pub(crate) announced: u32,
    /// Something is to be announced to other nodes.
    pub(crate) is_dirty: bool,
    is_occupied: bool,
    counted: Counted,
    pub(crate) followers: usize,
    /// The grace by the rules of the latest connection.
    pub(crate) grace: Duration,
    last_event: u64,
}

/// Whether the connections of a stream are counted by events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    No,
    /// The last event had this number.
    At(usize),
    /// The same, and the stream is on the list of those that have changed.
    Changed(usize),
}

/// A member of a stream. Its slot stays the same while it has the entry.
#[derive(Debug)]
pub(crate) struct StreamEntry {
    pub(crate) stream: u32,
    /// None: the id is the key.
    key: Option<Box<str>>,
    /// What is shown: that of one of its holders.
    pub(crate) shown: Arc<Member>,
    /// The member that joined before it.
    previous: u32,
    /// The member that joined after it.
    next: u32,
    /// Other nodes that hold it.
    pub(crate) remote_holders: u32,
    /// What this node holds of it.
    pub(crate) local: LocalHolding,
}

impl MemberRoster {
    /// The slot of a stream.
    pub(crate) fn stream(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// The slot of a stream, which gets an entry if it has none.
    pub(crate) fn stream_or_add(&mut self, name: &str) -> u32 {
        if let Some(slot) = self.stream(name) {
            return slot;
        }
        let name: Arc<str> = name.into();
        let mut prefixes = self.counted_prefixes.iter();
        let is_counted = prefixes.any(|prefix| name.starts_with(&**prefix));
        let slot = self.streams.insert(KnownStream {
            name: Arc::clone(&name),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            table: HashTable::new(),
            first: NONE,
            last: NONE,
            bytes: 0,
            connections: 0,
            local_connections: 0,
            announced: 0,
            is_dirty: false,
            is_occupied: false,
            counted: if is_counted {
                Counted::At(0)
            } else {
                Counted::No
            },
            followers: 0,
            grace: Duration::ZERO,
            // Events of a former entry of this name may not have been taken yet. They are older than this one.
            last_event: self.events.sequence,
        });
        self.names.insert(name, slot);
        slot
    }

    /// Takes the entry of a stream out if nothing needs it.
    pub(crate) fn release(&mut self, stream: u32) -> Option<KnownStream> {
        let of = self.streams.get(stream)?;
        if of.is_occupied || of.followers > 0 {
            return None;
        }
        self.names.remove(&of.name);
        if self.names.is_empty() {
            self.names.shrink_to_fit();
        }
        self.streams.remove(stream)
    }

    /// The slot of a member.
    pub(crate) fn find(&self, stream: u32, key: &str) -> Option<u32> {
        let is_it = |slot: &u32| self.members[*slot].key() == key;
        let of = &self.streams[stream];
        of.table.find(self.hasher.hash_one(key), is_it).copied()
    }

    /// Adds a member that is not there.
    pub(crate) fn join(&mut self, stream: u32, key: Box<str>, shown: Arc<Member>) -> u32 {
        self.occupy(stream);
        let hash = self.hasher.hash_one(&*key);
        let of = &mut self.streams[stream];
        let slot = self.members.insert(StreamEntry {
            stream,
            key: Some(key).filter(|key| **key != *shown.id),
            shown: Arc::clone(&shown),
            previous: of.last,
            next: NONE,
            remote_holders: 0,
            local: LocalHolding::default(),
        });
        let (members, hasher) = (&mut self.members, &self.hasher);
        match members.get_mut(of.last) {
            Some(last) => last.next = slot,
            None => of.first = slot,
        }
        of.last = slot;
        of.table
            .insert_unique(hash, slot, |slot| hasher.hash_one(members[*slot].key()));
        of.bytes += shown.bytes();
        self.bytes += shown.bytes();
        self.joins += 1;
        self.push(stream, PresenceChange::Joined(shown));
        slot
    }

    /// Takes a member out.
    pub(crate) fn leave(&mut self, slot: u32) {
        let Some(entry) = self.members.get(slot) else {
            return;
        };
        let (stream, hash) = (entry.stream, self.hasher.hash_one(entry.key()));
        let of = &mut self.streams[stream];
        if let Ok(place) = of.table.find_entry(hash, |other| *other == slot) {
            place.remove();
        }
        let (members, hasher) = (&mut self.members, &self.hasher);
        if of.table.capacity() > TABLE_MIN && of.table.len() < of.table.capacity() / 8 {
            let rehash = |slot: &u32| hasher.hash_one(members[*slot].key());
            of.table.shrink_to(of.table.len() * 2, rehash);
        }
        let Some(entry) = members.remove(slot) else {
            return;
        };
        match members.get_mut(entry.previous) {
            Some(previous) => previous.next = entry.next,
            None => of.first = entry.next,
        }
        match members.get_mut(entry.next) {
            Some(next) => next.previous = entry.previous,
            None => of.last = entry.previous,
        }
        of.bytes -= entry.shown.bytes();
        self.bytes -= entry.shown.bytes();
        self.leaves += 1;
        self.push(stream, PresenceChange::Left(entry.shown));
        self.vacate(stream);
    }

    /// Shows a member as one of its holders does.
    pub(crate) fn show(&mut self, slot: u32, shown: &Arc<Member>) {
        let entry = &mut self.members[slot];
        if entry.shown == *shown {
            return;
        }
        let (stream, before) = (entry.stream, entry.shown.bytes());
        if entry.key.is_none() && entry.shown.id != shown.id {
            entry.key = Some(entry.shown.id.clone());
        }
        entry.shown = Arc::clone(shown);
        let of = &mut self.streams[stream];
        of.bytes = of.bytes - before + shown.bytes();
        self.bytes = self.bytes - before + shown.bytes();
        self.push(stream, PresenceChange::Updated(Arc::clone(shown)));
    }

    /// Changes the number of connections of one holder from `before` to `after`.
    pub(crate) fn set_connections(&mut self, stream: u32, before: u32, after: u32) {
        let (before, after) = (before as usize, after as usize);
        let of = &mut self.streams[stream];
        of.connections = of.connections - before + after;
        self.connections = self.connections - before + after;
        if let Counted::At(said) = of.counted {
            of.counted = Counted::Changed(said);
            self.changed_counts.push(stream);
        }
        if of.connections > 0 {
            self.occupy(stream);
        } else {
            self.vacate(stream);
        }
    }

    pub(crate) fn counts(&self, stream: &str) -> PresenceCounts {
        self.stream(stream)
            .map_or_else(PresenceCounts::default, |slot| self.streams[slot].counts())
    }

    pub(crate) fn local_connections(&self, stream: &str) -> u32 {
        self.stream(stream)
            .map_or(0, |slot| self.streams[slot].local_connections)
    }

    pub(crate) fn snapshot(&self, stream: &str) -> PresenceSnapshot {
        let Some(slot) = self.stream(stream) else {
            return PresenceSnapshot {
                sequence: self.events.sequence,
                ..PresenceSnapshot::default()
            };
        };
        let of = &self.streams[slot];
        let mut members = Vec::with_capacity(of.table.len());
        let mut next = of.first;
        while let Some(entry) = self.members.get(next) {
            members.push(Arc::clone(&entry.shown));
            next = entry.next;
        }
        PresenceSnapshot {
            sequence: of.last_event,
            members,
            connections: of.connections,
        }
    }

    /// Makes the events of connections that have changed.
    pub(crate) fn count(&mut self) {
        for stream in std::mem::take(&mut self.changed_counts) {
            let Some(of) = self.streams.get_mut(stream) else {
                continue;
            };
            if let Counted::Changed(said) = of.counted {
                of.counted = Counted::At(of.connections);
                if said != of.connections {
                    self.push(stream, PresenceChange::Counted);
                }
            }
        }
    }

    /// Whether something has happened that leads to events.
    pub(crate) fn has_news(&self) -> bool {
        !self.events.is_empty() || !self.changed_counts.is_empty()
    }

    fn occupy(&mut self, stream: u32) {
        if !std::mem::replace(&mut self.streams[stream].is_occupied, true) {
            self.push(stream, PresenceChange::Occupied);
        }
    }

    fn vacate(&mut self, stream: u32) {
        let of = &mut self.streams[stream];
        if of.is_occupied && of.connections == 0 && of.table.is_empty() {
            of.is_occupied = false;
            self.push(stream, PresenceChange::Vacated);
        }
    }

    fn push(&mut self, stream: u32, change: PresenceChange) {
        let of = &mut self.streams[stream];
        let PresenceCounts {
            members,
            connections,
        } = of.counts();
        of.last_event = self.events.push(|sequence| PresenceEvent {
            sequence,
            stream: Arc::clone(&of.name),
            number: of.number,
            change,
            members,
            connections,
        });
    }
}

impl KnownStream {
    /// Whether it has a connection or a member.
    pub(crate) fn is_occupied(&self) -> bool {
        self.is_occupied
    }

    pub(crate) fn counts(&self) -> PresenceCounts {
        PresenceCounts {
            members: self.table.len(),
            connections: self.connections,
        }
    }
}

impl StreamEntry {
    pub(crate) fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.shown.id)
    }
}

/// Numbers of entries, of all registries of the process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Tables of members do not shrink below this capacity.
const TABLE_MIN: usize = 64;
