//! Who is connected: asked of the shards, a few slots at a time.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use encke_access::{Access, CallerTag};
use encke_log::StreamNo;
use encke_net::{ConnectionFilter, ConnectionRow, SubscribedTo, Surveyor};
use encke_protocol::{
    ConnectionName, ConnectionQuery, GroupKind, GroupQuery, ListPosition, Response,
};
use serde_json::{Value, json};

use super::responses::{failure, json_response, silent};
use super::stream_names::StreamNames;
use crate::archive::Archive;

/// Asks the shards, and names what they know by number.
pub(super) struct Survey<'s> {
    pub(super) surveyor: &'s Surveyor,
    pub(super) access: Option<&'s Access>,
    pub(super) archive: &'s Archive,
    pub(super) names: &'s mut StreamNames,
}

/// How many subscribers streams have.
#[derive(Debug, Default)]
pub(super) struct SubscriberCounts(HashMap<StreamNo, Group>);

/// What connections with something in common come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) connections: u64,
    /// Those that are behind, and how far the last of them is.
    pub(super) behind: u64,
    pub(super) lag_bytes: u64,
    pub(super) lag_age: Duration,
}

/// What connections have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Text(Box<str>),
    Caller(Box<str>, Option<NonZeroU64>),
    Stream(StreamNo),
    Pattern(Box<str>),
}

/// The subjects of tokens, by their digests.
type Subjects = BTreeMap<NonZeroU64, Box<str>>;

impl Survey<'_> {
    /// A page of the connections that pass a filter.
    pub(super) fn list(&mut self, query: &ConnectionQuery) -> Response {
        let stream = match &query.stream {
            None => None,
            Some(name) => match self.archive.find(name) {
                Ok(Some(stream)) => Some((stream.no, name.clone())),
                Ok(None) => {
                    let why = format!("there is no stream {name:?}");
                    return failure(404, "not_found", &why);
                }
                Err(why) => return failure(500, "unreadable", &why),
            },
        };
        let filter = Arc::new(ConnectionFilter {
            client: query.address.clone(),
            caller: query.caller.clone(),
            slow: query.slow,
            stream,
        });
        let from = query.after.unwrap_or_default();
        let page = self
            .surveyor
            .connections(&filter, from, query.limit, SLOTS_OF_PAGE_MAX);
        let page = match page {
            Ok(page) => page,
            Err(shard) => return silent(&shard),
        };
        let subjects = self.subjects(page.rows.iter().filter_map(|row| row.caller.as_ref()));
        let rows = page.rows.iter().map(|row| self.described(row, &subjects));
        let mut list = json!({ "connections": rows.collect::<Vec<_>>() });
        if let Some(next) = page.next {
            list["next"] = json!(next.to_string());
        }
        json_response(&list)
    }

    /// The largest groups of connections.
    pub(super) fn groups(&mut self, query: GroupQuery) -> Result<Value, Response> {
        let mut groups = HashMap::new();
        let mut others = Group::default();
        let is_complete = self.walk(|row| {
            for key in keys(row, query.by) {
                let is_full = groups.len() >= GROUPS_KEPT_MAX;
                match groups.entry(key) {
                    Entry::Vacant(_) if is_full => others.add(row),
                    entry => entry.or_insert_with(Group::default).add(row),
                }
            }
        })?;
        let total = groups.len();
        let mut groups: Vec<(Key, Group)> = groups.into_iter().collect();
        groups.sort_by(|(a_key, a), (b_key, b)| {
            let by_size = b.connections.cmp(&a.connections);
            by_size.then_with(|| a_key.cmp(b_key))
        });
        groups.truncate(query.limit);
        let digests = groups.iter().filter_map(|(key, _)| match key {
            Key::Caller(_, digest) => *digest,
            _ => None,
        });
        let subjects = self.subjects_of(digests.collect());
        let shown = groups.iter().map(|(key, group)| {
            let mut shown = group.described();
            shown["name"] = self.name_of(key, &subjects);
            shown["kind"] = json!(match key {
                Key::Text(_) => "address",
                Key::Caller(..) => "caller",
                Key::Stream(_) => "stream",
                Key::Pattern(_) => "pattern",
            });
            if let Key::Caller(issuer, _) = key {
                shown["issuer"] = json!(issuer);
            }
            shown
        });
        Ok(json!({
            "groups": shown.collect::<Vec<_>>(),
            "total": total,
            "others": others.connections,
            "complete": is_complete,
        }))
    }

    /// How many subscribers each stream has.
    pub(super) fn subscribers(&self) -> Result<SubscriberCounts, Response> {
        let mut counts = SubscriberCounts::default();
        self.walk(|row| {
            for subscribed in &row.streams {
                if let SubscribedTo::Stream(no, _) = subscribed
                    && (counts.0.len() < GROUPS_KEPT_MAX || counts.0.contains_key(no))
                {
                    counts.0.entry(*no).or_default().add(row);
                }
            }
        })?;
        Ok(counts)
    }

    /// Closes a connection.
    pub(super) fn disconnect(&self, name: ConnectionName) -> Response {
        match self.surveyor.disconnect(name) {
            Ok(true) => Response::new(204).field("Cache-Control", "no-store"),
            Ok(false) => failure(
                404,
                "unknown_connection",
                "the connection is gone, or never was",
            ),
            Err(shard) => silent(&shard),
        }
    }

    /// Calls `each` for every connection. False: there are more than are looked at.
    fn walk(&self, mut each: impl FnMut(&ConnectionRow)) -> Result<bool, Response> {
        let all = Arc::new(ConnectionFilter::default());
        let mut at = ListPosition::default();
        let mut looked_at = 0;
        while looked_at < SLOTS_OF_WALK_MAX {
            let page = self
                .surveyor
                .connections(&all, at, usize::MAX, SLOTS_OF_STEP);
            let page = page.map_err(|shard| silent(&shard))?;
            page.rows.iter().for_each(&mut each);
            looked_at += page.looked_at;
            match page.next {
                Some(next) => at = next,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    fn described(&mut self, row: &ConnectionRow, subjects: &Subjects) -> Value {
        let streams: Vec<Value> = row
            .streams
            .iter()
            .map(|subscribed| match subscribed {
                SubscribedTo::Stream(_, Some(name)) | SubscribedTo::Pattern(name) => json!(name),
                SubscribedTo::Stream(no, None) => json!(self.names.of(*no, self.archive)),
            })
            .collect();
        let caller = row.caller.as_ref().map(|caller| {
            let key = Key::Caller(caller.issuer().into(), caller.subject_digest());
            let name = self.name_of(&key, subjects);
            json!({ "name": name, "issuer": caller.issuer() })
        });
        json!({
            "id": row.name.to_string(),
            "of": row.of.map(|of| of.to_string()),
            "client": row.client,
            "caller": caller,
            "speaks": row.speaks,
            "doing": row.doing,
            "streams": streams,
            "streamsTotal": row.streams_total,
            "lagBytes": row.lag.map(|lag| lag.bytes),
            "lagSeconds": row.lag.map(|lag| lag.age.as_secs_f64()),
            "quietSeconds": row.quiet_s,
            "requests": row.requests,
            "heldBytes": row.held_bytes,
            "tls": row.tls,
            "operator": row.operator,
        })
    }

    /// A name for people. A subject of whom no token is in the cache is known by its digest only.
    fn name_of(&mut self, key: &Key, subjects: &Subjects) -> Value {
        match key {
            Key::Text(name) | Key::Pattern(name) => json!(name),
            Key::Caller(issuer, None) => json!(issuer),
            Key::Caller(_, Some(digest)) => match subjects.get(digest) {
                Some(subject) => json!(subject),
                None => json!(format!("subject #{digest:016x}")),
            },
            Key::Stream(no) => match self.names.of(*no, self.archive) {
                Some(name) => json!(name),
                None => json!(format!("stream #{no:x}")),
            },
        }
    }

    fn subjects<'c>(&self, callers: impl Iterator<Item = &'c CallerTag>) -> Subjects {
        self.subjects_of(callers.filter_map(CallerTag::subject_digest).collect())
    }

    fn subjects_of(&self, digests: BTreeSet<NonZeroU64>) -> Subjects {
        let access = self.access;
        access.map_or_else(Subjects::new, |access| access.subjects(&digests))
    }
}

/// What a connection has in common with others.
fn keys(row: &ConnectionRow, by: GroupKind) -> Vec<Key> {
    match by {
        // An exchange has the address of its connection, which is counted.
        GroupKind::Address if row.of.is_some() => Vec::new(),
        GroupKind::Address => vec![Key::Text(row.client.clone())],
        GroupKind::Caller => {
            let caller = row.caller.iter();
            caller
                .map(|caller| Key::Caller(caller.issuer().into(), caller.subject_digest()))
                .collect()
        }
        GroupKind::Stream => {
            let streams = row.streams.iter();
            streams
                .map(|subscribed| match subscribed {
                    SubscribedTo::Stream(no, _) => Key::Stream(*no),
                    SubscribedTo::Pattern(pattern) => Key::Pattern(pattern.clone()),
                })
                .collect()
        }
    }
}

impl SubscriberCounts {
    pub(super) fn of(&self, no: StreamNo) -> Group {
        self.0.get(&no).copied().unwrap_or_default()
    }
}

impl Group {
    fn add(&mut self, row: &ConnectionRow) {
        self.connections += 1;
        if let Some(lag) = row.lag {
            self.behind += 1;
            self.lag_bytes = self.lag_bytes.max(lag.bytes);
            self.lag_age = self.lag_age.max(lag.age);
        }
    }

    pub(super) fn described(self) -> Value {
        json!({
            "connections": self.connections,
            "behind": self.behind,
            "lagBytes": self.lag_bytes,
            "lagSeconds": self.lag_age.as_secs_f64(),
        })
    }
}

/// Slots that are looked at for one page of the list: a page may be short although more follow.
const SLOTS_OF_PAGE_MAX: usize = 65_536;

/// Slots whose rows are in memory at once during a walk.
const SLOTS_OF_STEP: usize = 4_096;

/// Slots that a walk over all connections looks at.
const SLOTS_OF_WALK_MAX: usize = 4 << 20;

/// Groups that a walk tells apart: connections of others are counted together.
const GROUPS_KEPT_MAX: usize = 100_000;
