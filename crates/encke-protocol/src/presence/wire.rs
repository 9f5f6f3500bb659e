//! Records of the streams that tell of members: objects of JSON.
//!
//! ```text
//! {"type":"members","count":2,"connections":3,"members":[{"id":"ann","data":{"name":"Ann"}},{"id":"bob"}]}
//! {"type":"join","id":"cid","count":3}
//! {"type":"update","id":"ann","data":{"name":"Anna"},"count":3}
//! {"type":"leave","id":"bob","count":2}
//! ```

use encke_presence::{Member, PresenceChange, PresenceEvent, PresenceSnapshot};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A record.
#[derive(Debug, Deserialize)]
pub(crate) struct MembersRecord<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: RecordKind,
    /// Members of the stream behind it.
    pub(crate) count: usize,
    /// The member that it is about: a string in the form of JSON.
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) data: Option<&'a RawValue>,
    /// Everybody who is there.
    #[serde(borrow, default)]
    pub(crate) members: Vec<MemberEntry<'a>>,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordKind {
    /// Who is there. It stands for all records before it.
    Members,
    Join,
    Update,
    Leave,
}

/// A member of the list.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct MemberEntry<'a> {
    #[serde(borrow)]
    pub(crate) id: &'a RawValue,
    #[serde(borrow)]
    pub(crate) data: Option<&'a RawValue>,
}

impl<'a> MembersRecord<'a> {
    /// Reads a record. It was made here, so it has the form.
    pub(crate) fn parse(record: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(record).ok()
    }
}

/// The beginning of the list of all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MembersList {
    pub(crate) count: usize,
}

impl MembersList {
    /// Reads the beginning of a record. `None`: it is the beginning of another record.
    pub(crate) fn begins(record: &[u8]) -> Option<Self> {
        let count = record.strip_prefix(br#"{"type":"members","count":"#)?;
        let digits = count
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let count = std::str::from_utf8(&count[..digits]).ok()?;
        Some(MembersList {
            count: count.parse().ok()?,
        })
    }
}

impl RecordKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RecordKind::Members => "members",
            RecordKind::Join => "join",
            RecordKind::Update => "update",
            RecordKind::Leave => "leave",
        }
    }
}

/// The record of a list of all members.
pub(crate) fn members(snapshot: &PresenceSnapshot) -> Vec<u8> {
    #[derive(Serialize)]
    struct List<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        count: usize,
        connections: usize,
        members: Vec<Entry<'a>>,
    }
    encoded(&List {
        kind: RecordKind::Members.name(),
        count: snapshot.members.len(),
        connections: snapshot.connections,
        members: snapshot.members.iter().map(|one| Entry::of(one)).collect(),
    })
}

/// The record of an event. `None`: it is about no member.
pub(crate) fn event(event: &PresenceEvent) -> Option<Vec<u8>> {
    #[derive(Serialize)]
    struct Change<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        #[serde(flatten)]
        member: Entry<'a>,
        count: usize,
    }
    let (kind, member) = match &event.change {
        PresenceChange::Joined(member) => (RecordKind::Join, Entry::of(member)),
        PresenceChange::Updated(member) => (RecordKind::Update, Entry::of(member)),
        PresenceChange::Left(member) => {
            let gone = Entry {
                id: &member.id,
                data: None,
            };
            (RecordKind::Leave, gone)
        }
        PresenceChange::Occupied | PresenceChange::Vacated | PresenceChange::Counted => {
            return None;
        }
    };
    Some(encoded(&Change {
        kind: kind.name(),
        member,
        count: event.members,
    }))
}

/// A member as it is written.
#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<serde_json::Value>,
}

impl<'a> Entry<'a> {
    fn of(member: &'a Member) -> Self {
        Entry {
            id: &member.id,
            // It was checked when the member came.
            data: member
                .data
                .as_deref()
                .and_then(|data| serde_json::from_str(data).ok()),
        }
    }
}

fn encoded(record: &impl Serialize) -> Vec<u8> {
    // Text and JSON have a form in JSON.
    serde_json::to_vec(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn member(id: &str, data: Option<&str>) -> Arc<Member> {
        Arc::new(Member {
            id: id.into(),
            data: data.map(Into::into),
        })
    }

    #[test]
    fn a_record_reads_back() {
        let snapshot = PresenceSnapshot {
            sequence: 7,
            members: vec![member("a\"n", Some("{\"x\":1}")), member("bob", None)],
            connections: 3,
        };
        let text = r#"{"type":"members","count":2,"connections":3,"members":[{"id":"a\"n","data":{"x":1}},{"id":"bob"}]}"#;
        let record = members(&snapshot);
        assert_eq!(record, text.as_bytes());
        let read = MembersRecord::parse(&record).unwrap();
        assert_eq!(
            (read.kind, read.count, read.members.len()),
            (RecordKind::Members, 2, 2)
        );
        assert_eq!(read.members[0].id.get(), "\"a\\\"n\"");
        let of = |change| {
            event(&PresenceEvent {
                sequence: 8,
                stream: "s".into(),
                number: 1,
                change,
                members: 2,
                connections: 3,
            })
        };
        for (change, text) in [
            (
                PresenceChange::Joined(member("ann", Some("[1]"))),
                r#"{"type":"join","id":"ann","data":[1],"count":2}"#,
            ),
            (
                PresenceChange::Updated(member("ann", None)),
                r#"{"type":"update","id":"ann","count":2}"#,
            ),
            (
                PresenceChange::Left(member("ann", Some("[1]"))),
                r#"{"type":"leave","id":"ann","count":2}"#,
            ),
        ] {
            let record = of(change).unwrap();
            assert_eq!(record, text.as_bytes());
            let read = MembersRecord::parse(&record).unwrap();
            assert_eq!(read.id.unwrap().get(), "\"ann\"");
        }
        assert!(of(PresenceChange::Vacated).is_none());
    }
}
