//! A reader that has a snapshot and applies events to it, and takes nothing for granted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_presence::{
    Member, NewMember, Presence, PresenceChange, PresenceEvent, PresenceLimits, PresencePlace,
    PresenceRules, PresenceSnapshot,
};

/// The state of one stream, from a snapshot and the events after it.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    stream: String,
    sequence: u64,
    members: BTreeMap<String, Option<String>>,
    /// Whether the stream is occupied, once an event or the snapshot has said so.
    is_occupied: bool,
}

impl Reader {
    pub(crate) fn new(stream: &str, snapshot: &PresenceSnapshot) -> Reader {
        Reader {
            stream: stream.to_owned(),
            sequence: snapshot.sequence,
            members: members_of(snapshot),
            is_occupied: snapshot.connections > 0 || !snapshot.members.is_empty(),
        }
    }

    /// Applies events of all streams. Fails if one says what cannot be.
    pub(crate) fn apply(&mut self, events: &[PresenceEvent]) {
        for event in events {
            if *event.stream != *self.stream || event.sequence <= self.sequence {
                continue;
            }
            self.sequence = event.sequence;
            let entry = |member: &Member| {
                let data = member.data.as_deref().map(str::to_owned);
                (member.id.to_string(), data)
            };
            match &event.change {
                PresenceChange::Occupied => {
                    assert!(!self.is_occupied, "occupied twice: {event:?}");
                    self.is_occupied = true;
                }
                PresenceChange::Joined(member) => {
                    let (id, data) = entry(member);
                    assert!(self.is_occupied, "a member of an empty stream: {event:?}");
                    let before = self.members.insert(id, data);
                    assert_eq!(before, None, "joined twice: {event:?}");
                }
                PresenceChange::Updated(member) => {
                    let (id, data) = entry(member);
                    let before = self.members.insert(id, data.clone());
                    assert!(
                        before.is_some_and(|before| before != data),
                        "no update: {event:?}"
                    );
                }
                PresenceChange::Left(member) => {
                    let (id, data) = entry(member);
                    let before = self.members.remove(&id);
                    assert_eq!(before, Some(data), "left as another one: {event:?}");
                }
                PresenceChange::Vacated => {
                    assert!(
                        self.is_occupied && self.members.is_empty(),
                        "not vacant: {event:?}"
                    );
                    assert_eq!(event.connections, 0);
                    self.is_occupied = false;
                }
                PresenceChange::Counted => {}
            }
            assert_eq!(event.members, self.members.len(), "{event:?}");
        }
    }

    /// Fails if the state is not that of a snapshot.
    pub(crate) fn check(&self, snapshot: &PresenceSnapshot) {
        assert_eq!(self.members, members_of(snapshot), "{}", self.stream);
        let is_occupied = snapshot.connections > 0 || !snapshot.members.is_empty();
        assert_eq!(self.is_occupied, is_occupied, "{}", self.stream);
    }
}

pub(crate) fn members_of(snapshot: &PresenceSnapshot) -> BTreeMap<String, Option<String>> {
    let all = snapshot.members.iter();
    let all: BTreeMap<_, _> = all
        .map(|member| {
            (
                member.id.to_string(),
                member.data.as_deref().map(str::to_owned),
            )
        })
        .collect();
    assert_eq!(all.len(), snapshot.members.len(), "a member is there twice");
    all
}

pub(crate) fn ids(presence: &Presence, stream: &str) -> Vec<String> {
    let members = presence.snapshot(stream).members;
    members.iter().map(|member| member.id.to_string()).collect()
}

/// What events say, in short.
pub(crate) fn said(presence: &Presence) -> Vec<String> {
    let mut events = Vec::new();
    presence.take_events(&mut events);
    let short = |member: &Arc<Member>| match &member.data {
        Some(data) => format!("{}={data}", member.id),
        None => member.id.to_string(),
    };
    let all = events.iter().map(|event| match &event.change {
        PresenceChange::Occupied => "occupied".to_owned(),
        PresenceChange::Joined(member) => format!("+{}", short(member)),
        PresenceChange::Updated(member) => format!("~{}", short(member)),
        PresenceChange::Left(member) => format!("-{}", short(member)),
        PresenceChange::Vacated => "vacated".to_owned(),
        PresenceChange::Counted => format!("{}", event.connections),
    });
    all.collect()
}

pub(crate) fn at(ms: u64) -> SteadyTime {
    SteadyTime::from_ms(ms)
}

pub(crate) fn member(id: &str, data: Option<&str>) -> NewMember {
    NewMember {
        key: id.into(),
        id: id.into(),
        data: data.map(Into::into),
    }
}

pub(crate) fn place(stream: &str, grace_ms: u64) -> PresencePlace<'_> {
    let rules = PresenceRules {
        grace: Duration::from_millis(grace_ms),
        members_max: 1_000_000,
        bytes_max: 1 << 30,
    };
    PresencePlace { stream, rules }
}

pub(crate) const LIMITS: PresenceLimits = PresenceLimits {
    members_max: 1_000_000,
    bytes_max: 1 << 30,
    remote_members_max: 1_000_000,
};
