//! Questions about channels. What has subscribers is what has some on any node.

use std::sync::Arc;

use encke_clock::{Now, WallTime};
use encke_presence::PresenceCounts;
use encke_stream::{Fetch, Offset, Stream};
use serde_json::{Map, Value, json};

use super::answer::{bad_request, respond};
use super::info::WantedInfo;
use super::signed_query::SignedQuery;
use crate::action::{Action, Failure, OnRead};
use crate::json;
use crate::last_messages::{LAST_BYTES_MAX, OnLastFound, WantedMessages, find_last};
use crate::problem::failed;
use crate::pusher::app::App;
use crate::pusher::channel_name::ChannelName;
use crate::pusher::channel_stream::ChannelStream;
use crate::pusher::context::PusherContext;
use crate::pusher::event::StoredEvent;
use crate::pusher::stream_names::channel_of;
use crate::response::Response;
use crate::run::Run;
use crate::streams::load;

/// An answer that needs the last event of a channel.
#[derive(Debug)]
struct CachedAnswer {
    members: Map<String, Value>,
    stream: Arc<Stream>,
    tail: Offset,
}

/// The channels that have subscribers.
pub(super) fn list(
    context: &PusherContext,
    app: &App,
    query: &SignedQuery,
) -> Result<Action, Response> {
    let prefix = query.value("filter_by_prefix").unwrap_or_default();
    let info = WantedInfo::parse(query.value("info"))?;
    if info.user_count && !prefix.starts_with("presence-") {
        return Err(bad_request(
            "user_count needs filter_by_prefix, with a prefix of presence channels such as presence-",
        ));
    }
    let streams = context.registry().streams(&app.stream(prefix));
    let channels = streams.iter().filter_map(|(stream, counts)| {
        // Users are streams with subscribers, too, and no channels.
        let channel = ChannelName::parse(channel_of(stream)).ok()?;
        let mut members = Map::new();
        if info.subscription_count {
            members.insert("subscription_count".into(), counts.connections.into());
        }
        if info.user_count {
            members.insert("user_count".into(), counts.members.into());
        }
        Some((channel.as_str().to_owned(), members.into()))
    });
    let channels: Map<String, Value> = channels.collect();
    Ok(Action::Respond(respond(&json!({ "channels": channels }))))
}

/// One channel.
pub(super) fn describe(
    context: &PusherContext,
    app: &App,
    channel: ChannelName<'_>,
    query: &SignedQuery,
    now: Now,
) -> Result<Action, Response> {
    let info = WantedInfo::parse(query.value("info"))?;
    if info.user_count && !channel.is_presence() {
        return Err(bad_request("only presence channels have a user_count"));
    }
    let mut members = info.of((context, app), channel);
    let occupied = context.counts(app, channel.as_str()) != PresenceCounts::default();
    members.insert("occupied".into(), occupied.into());
    if !info.cache {
        return Ok(Action::Respond(respond(&members.into())));
    }
    if !channel.is_cache() {
        return Err(bad_request("only cache channels have a cache"));
    }
    let (streams, name) = (&context.streams, app.stream(channel.as_str()));
    streams.check_name(&name)?;
    let stream = match ChannelStream::find(streams, app, &name, now)? {
        ChannelStream::Unknown => return Ok(load(&name, Vec::new())),
        ChannelStream::Missing(_) => {
            members.insert("cache".into(), Value::Null);
            return Ok(Action::Respond(respond(&members.into())));
        }
        ChannelStream::Found(stream) => stream,
    };
    let facts = stream.facts();
    let wanted = WantedMessages {
        stream: Arc::clone(&stream),
        facts,
        count: 1,
        bytes_max: LAST_BYTES_MAX,
    };
    let answer = CachedAnswer {
        members,
        stream,
        tail: facts.tail,
    };
    Ok(find_last(streams, wanted, Box::new(answer), now.wall))
}

/// The members of a presence channel.
pub(super) fn users(
    context: &PusherContext,
    app: &App,
    channel: ChannelName<'_>,
) -> Result<Action, Response> {
    if !channel.is_presence() {
        return Err(bad_request("only presence channels have users"));
    }
    let registry = context.registry();
    let members = registry.snapshot(&app.stream(channel.as_str())).members;
    let users = members.iter().map(|member| json!({ "id": member.id }));
    let users: Value = users.collect();
    Ok(Action::Respond(respond(&json!({ "users": users }))))
}

impl CachedAnswer {
    fn respond(mut self, data: Option<String>) -> Action {
        let cache = data.map_or(Value::Null, |data| json!({ "data": data }));
        self.members.insert("cache".into(), cache);
        Action::Respond(respond(&self.members.into()))
    }
}

impl OnLastFound for CachedAnswer {
    fn found(self: Box<Self>, from: Result<Offset, Response>, _now: WallTime) -> Action {
        match from {
            Err(refused) => Action::Respond(refused),
            Ok(from) if from >= self.tail => self.respond(None),
            Ok(from) => Action::Read(
                Fetch::new(&self.stream, from, self.tail, LAST_BYTES_MAX),
                self,
            ),
        }
    }
}

impl OnRead for CachedAnswer {
    fn read(self: Box<Self>, run: Result<Run<'_>, Failure>, _now: WallTime) -> Action {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return Action::Respond(failed(failure)),
        };
        let mut last = None;
        for item in run.items {
            json::each(item.data, item.skip, item.take, |_, message| {
                let data = StoredEvent::parse(message).map(|event| event.data());
                let text = |data: &str| serde_json::from_str::<String>(data).ok();
                last = data.map(|data| data.as_deref().and_then(text).unwrap_or_default());
            });
        }
        self.respond(last)
    }
}
