//! Streams in memory that tell who is subscribed to other streams.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use encke_presence::{Presence, PresenceEvent, PresenceFollower};
use encke_stream::{MemoryRecord, MemorySource, Sequence, Stream, StreamNo, born};

use super::rules::PresenceRule;
use super::wire;

/// The members of streams, and the streams that tell of them.
pub struct PresenceStreams {
    registry: Arc<Presence>,
    /// Which streams have members, beside those of protocols that bring their own.
    pub(super) rules: Vec<PresenceRule>,
    /// What the names of streams begin with whose members a protocol brings: no rule concerns them.
    pub(super) reserved: Vec<Box<str>>,
    /// Those that somebody follows, by the numbers of their entries in the registry.
    followed: Mutex<HashMap<u64, FollowedStream>>,
}

struct FollowedStream {
    stream: Arc<Stream>,
    /// Keeps the number.
    _follower: PresenceFollower,
}

impl PresenceStreams {
    /// Streams that tell of the members that a registry knows.
    pub fn new(registry: Arc<Presence>) -> Arc<Self> {
        PresenceStreams::with_rules(registry, Vec::new(), Vec::new())
    }

    /// The same, for streams whose subscribers are members by these rules. `reserved`: what the names of streams begin with whose members
    /// a protocol brings.
    pub fn with_rules(
        registry: Arc<Presence>,
        rules: Vec<PresenceRule>,
        reserved: Vec<Box<str>>,
    ) -> Arc<Self> {
        Arc::new(PresenceStreams {
            registry,
            rules,
            reserved,
            followed: Mutex::default(),
        })
    }

    /// The registry.
    pub fn registry(&self) -> &Arc<Presence> {
        &self.registry
    }

    /// The stream that tells who is subscribed to the stream of that name, which it has as its own.
    pub fn stream(&self, name: &str) -> Arc<Stream> {
        let mut followed = self.followed();
        let follower = self.registry.follow(name);
        let number = follower.number();
        let entry = followed.entry(number).or_insert_with(|| FollowedStream {
            stream: Stream::in_memory(number, name, BEGIN),
            _follower: follower,
        });
        Arc::clone(&entry.stream)
    }

    /// The records of events for those who follow, or are about to. Others need none: they begin with the state.
    pub fn records(&self, events: &[PresenceEvent]) -> Vec<MemoryRecord> {
        let followed = self.followed();
        let record = |event: &PresenceEvent| {
            let stream = &followed.get(&event.number)?.stream;
            Some(MemoryRecord {
                stream: Arc::clone(stream),
                sequence: position(event.sequence),
                data: wire::event(event)?,
            })
        };
        events.iter().filter_map(record).collect()
    }

    /// Forgets the streams that nobody follows any more.
    pub fn sweep(&self) {
        let mut left = Vec::new();
        let mut followed = self.followed();
        followed.retain(|_, one| {
            let is_held = Arc::strong_count(&one.stream) > 1;
            if !is_held {
                left.push(Arc::clone(&one.stream));
            }
            is_held
        });
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<u64, FollowedStream>> {
        // No code that holds it can panic halfway through a change.
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemorySource for PresenceStreams {
    fn state(&self, stream: StreamNo) -> Option<(Sequence, Vec<u8>)> {
        let followed = self.followed();
        let stream = Arc::clone(&followed.get(&born(stream))?.stream);
        drop(followed);
        let snapshot = self.registry.snapshot(&stream.name);
        Some((position(snapshot.sequence), wire::members(&snapshot)))
    }
}

impl fmt::Debug for PresenceStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresenceStreams")
    }
}

/// The position of an event. Every stream has one before its first event, behind which nobody begins: so all begin with the state.
fn position(sequence: u64) -> Sequence {
    sequence + BEGIN
}

/// The first position.
const BEGIN: Sequence = 1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use encke_clock::SteadyTime;
    use encke_presence::{NewMember, PresenceLimits, PresencePlace, PresenceRules};

    use super::*;

    #[test]
    fn a_stream_is_told_while_somebody_follows_it() {
        let limits = PresenceLimits {
            members_max: 10,
            bytes_max: 1_000,
            remote_members_max: 10,
        };
        let streams = PresenceStreams::new(Presence::new(limits));
        let enter = |id: &str| {
            let rules = PresenceRules {
                grace: Duration::ZERO,
                members_max: 10,
                bytes_max: 1_000,
            };
            let member = NewMember {
                key: id.into(),
                id: id.into(),
                data: None,
            };
            let place = PresencePlace { stream: "s", rules };
            streams
                .registry()
                .enter(&place, member, SteadyTime::from_ms(1))
                .unwrap()
        };
        let ann = enter("ann");
        let stream = streams.stream("s");
        assert!(Arc::ptr_eq(&stream, &streams.stream("s")));
        let taken = || {
            let mut events = Vec::new();
            streams.registry().take_events(&mut events);
            events
        };
        let mut events = taken();
        let (first, state) = streams.state(stream.no).unwrap();
        assert!(state.starts_with(b"{\"type\":\"members\",\"count\":1,"));
        let bob = enter("bob");
        drop(ann);
        events.extend(taken());
        let records = streams.records(&events);
        // Ann was there before: a reader of the state is behind that.
        let news: Vec<_> = records
            .iter()
            .filter(|record| record.sequence > first)
            .map(|record| std::str::from_utf8(&record.data).unwrap())
            .collect();
        assert_eq!(
            news,
            [
                r#"{"type":"join","id":"bob","count":2}"#,
                r#"{"type":"leave","id":"ann","count":1}"#
            ]
        );
        drop((records, bob));
        let no = stream.no;
        streams.sweep();
        assert!(streams.state(no).is_some(), "it is followed");
        drop(stream);
        streams.sweep();
        assert!(streams.state(no).is_none());
        taken();
        assert_eq!(streams.registry().entries(), 0);
    }
}
