//! How a subscription begins: its stream is read from its end, or from its last event. A stream that is missing is awaited.

use std::sync::Arc;

use encke_clock::{Now, WallTime};
use encke_stream::{Facts, Fetch, Offset, Outcome, Stream, born};

use super::app::App;
use super::channel_stream::{ChannelSource, check_created, check_stream};
use super::context::PusherContext;
use super::member::message;
use super::position::{SignedPosition, WantedPosition};
use super::records::WITH_OFFSETS;
use super::server_message::{
    PusherCode, cache_miss, error, online, position, subscribed, subscription_error,
};
use super::user::user_of_channel;
use super::watchlist::{WatchedUsers, is_online};
use super::webhook::{WebhookEvent, WebhookKind};
use crate::action::{Action, Failure, Feed, FeedBeside, OnChange, OnRead, Subscription};
use crate::last_messages::{LAST_BYTES_MAX, OnLastFound, WantedMessages, find_last};
use crate::problem;
use crate::response::{Body, Response};
use crate::run::Run;
use crate::streams::StartPosition;

/// A subscription to a channel, but for its beginning.
#[derive(Debug)]
pub(super) struct PusherSubscribe {
    pub(super) context: Arc<PusherContext>,
    pub(super) app: Arc<App>,
    pub(super) channel: Box<str>,
    /// The name of the channel's stream.
    pub(super) name: Box<str>,
    /// With which other channels it is counted while it has no event.
    pub(super) group: u64,
    /// It begins with the last event.
    pub(super) is_cache: bool,
    /// Where the client has got to, if it wants what it has missed.
    pub(super) after: Option<WantedPosition>,
    /// Of a presence channel: the key of the feed that tells of its members.
    pub(super) members_key: Option<u32>,
    /// Users whom the client watches.
    pub(super) watched: Box<[Box<str>]>,
    /// The first messages; if there are none, that it has begun.
    pub(super) first: Vec<Vec<u8>>,
    /// Where what is told of the members goes on.
    pub(super) beside: Option<Box<FeedBeside>>,
}

/// A subscription that begins with the last event, when that is found.
#[derive(Debug)]
struct CachedSubscribe {
    subscribe: PusherSubscribe,
    stream: Arc<Stream>,
    tail: Offset,
}

impl PusherSubscribe {
    /// Begins at the end of its stream, or before the first event.
    pub(super) fn begin(self, source: ChannelSource, now: Now) -> Action {
        if let ChannelSource::Stream(stream) = &source {
            if stream.facts().closed {
                let why = "the stream of the channel is closed: it gets no further events";
                return self.refuse(problem::error(409, "closed", why));
            }
            self.context.streams.touch(stream, now);
        }
        let Some(members_key) = self.members_key else {
            let this = match self.first.is_empty() {
                true => {
                    let first = subscribed(&self.channel);
                    self.with(first)
                }
                false => {
                    let users = self.online();
                    match users.online.is_empty() {
                        true => self,
                        false => self.with(online(&users)),
                    }
                }
            };
            return this.go_on(source, now.wall);
        };
        // The client gets the members first, and what happens to them from there on.
        let members = self.context.presence.stream(&self.name);
        let tail = members.facts().tail;
        let fetch = Fetch::new(&members, Offset::START, tail, usize::MAX);
        let begun = MembersSubscribe {
            subscribe: self,
            source,
            members,
            members_key,
        };
        Action::Read(fetch, Box::new(begun))
    }

    fn with(mut self, first: Vec<u8>) -> Self {
        self.first.push(first);
        self
    }

    /// Those of the watched users who are online now.
    fn online(&self) -> WatchedUsers {
        let (registry, prefix) = (self.context.registry(), &self.app.prefix);
        let online = self.watched.iter();
        let online = online.filter(|user| is_online(registry, prefix, user));
        WatchedUsers {
            online: online.cloned().collect(),
            offline: Vec::new(),
        }
    }

    /// The client has been told who is there.
    fn go_on(mut self, source: ChannelSource, now: WallTime) -> Action {
        let mut tail = source.tail();
        if let Some(after) = self.after {
            let (from, given, has_gap) = match &source {
                ChannelSource::Stream(stream) => {
                    let (from, has_gap) = self.resume(stream, &stream.facts(), after);
                    (from, from, has_gap)
                }
                // From here on it lacks nothing, whenever the first event comes.
                ChannelSource::Awaited(_) => {
                    let had_events =
                        matches!(after.start, StartPosition::At(at) if at != Offset::START);
                    (tail, Offset::START, after.is_unknown || had_events)
                }
            };
            let at = SignedPosition::new(&self.app, &self.channel, given);
            self.first.push(position(&self.channel, &at, has_gap));
            if after.start != StartPosition::Now {
                return self.follow(source, from);
            }
            tail = from;
        }
        if !self.is_cache {
            return self.follow(source, tail);
        }
        let ChannelSource::Stream(stream) = source else {
            return self.missed().follow(source, tail);
        };
        let facts = stream.facts();
        let wanted = WantedMessages {
            stream: Arc::clone(&stream),
            facts,
            count: 1,
            bytes_max: LAST_BYTES_MAX,
        };
        let context = Arc::clone(&self.context);
        let cached = CachedSubscribe {
            subscribe: self,
            stream,
            tail: facts.tail,
        };
        find_last(&context.streams, wanted, Box::new(cached), now)
    }

    /// Where a client goes on that has got to a position, and whether something behind that is lost to it.
    fn resume(&self, stream: &Stream, facts: &Facts, after: WantedPosition) -> (Offset, bool) {
        let view = self.context.streams.views.of(stream.no);
        let born = born(stream.no);
        let first = Offset::behind(view.kept_behind(stream).max(born)).min(facts.tail);
        match after.start {
            StartPosition::Now => (facts.tail, after.is_unknown),
            StartPosition::Start => (first, false),
            // The client knew the channel before its first event.
            StartPosition::At(Offset::START) => (first, view.kept_behind(stream) > born),
            // The stream that the client knew was deleted, and this is another one.
            StartPosition::At(at) if at.sequence < born => (first, true),
            // The log has lost what the client has seen last.
            StartPosition::At(at) if at > facts.tail => (facts.tail, true),
            StartPosition::At(at) if at < first => (first, true),
            StartPosition::At(at) => (at, false),
        }
    }

    /// The channel has no last event.
    fn missed(self) -> Self {
        let event = WebhookEvent::of_channel(WebhookKind::CacheMiss, &self.channel);
        self.app.report(&event);
        let miss = cache_miss(&self.channel);
        self.with(miss)
    }

    fn follow(self, source: ChannelSource, from: Offset) -> Action {
        let encoder = self.context.encoder;
        let option = match self.after {
            Some(_) => WITH_OFFSETS,
            None => 0,
        };
        Action::Subscribe(Subscription {
            beside: self.beside,
            response: Response::new(200).body(Body::Messages(self.first)),
            feed: match source {
                ChannelSource::Stream(stream) => Feed::Single {
                    stream,
                    from,
                    encoder,
                    option,
                },
                ChannelSource::Awaited(at) => Feed::Awaited {
                    name: self.name.into(),
                    group: self.group,
                    at,
                    encoder,
                    option,
                },
            },
        })
    }

    fn refuse(&self, refused: Response) -> Action {
        Action::Respond(refused_subscription(&self.channel, &refused))
    }
}

impl OnChange for PusherSubscribe {
    fn changed(self: Box<Self>, outcome: Outcome, now: Now) -> Action {
        let found = check_created(&outcome)
            .and_then(|()| self.context.streams.find(&self.name, now))
            .and_then(|stream| check_stream(&stream).map(|()| stream));
        match found {
            Ok(stream) => self.begin(ChannelSource::Stream(stream), now),
            Err(refused) => self.refuse(refused),
        }
    }

    fn not_submitted(self: Box<Self>, refused: Response) -> Response {
        refused_subscription(&self.channel, &refused)
    }
}

impl OnLastFound for CachedSubscribe {
    fn found(self: Box<Self>, from: Result<Offset, Response>, _now: WallTime) -> Action {
        let from = match from {
            Ok(from) => from,
            Err(refused) => return self.subscribe.refuse(refused),
        };
        let CachedSubscribe {
            mut subscribe,
            stream,
            tail,
        } = *self;
        if from >= tail {
            subscribe = subscribe.missed();
        }
        subscribe.follow(ChannelSource::Stream(stream), from)
    }
}

/// A subscription to a presence channel, when its members are read.
#[derive(Debug)]
struct MembersSubscribe {
    subscribe: PusherSubscribe,
    source: ChannelSource,
    /// The stream that tells of the members.
    members: Arc<Stream>,
    members_key: u32,
}

impl OnRead for MembersSubscribe {
    fn read(self: Box<Self>, run: Result<Run<'_>, Failure>, now: WallTime) -> Action {
        let MembersSubscribe {
            mut subscribe,
            source,
            members,
            members_key,
        } = *self;
        let run = match run {
            Ok(run) => run,
            Err(failure) => return subscribe.refuse(problem::failed(failure)),
        };
        for item in run.items {
            let told = message(&subscribe.channel, item.data);
            subscribe.first.extend(told);
        }
        subscribe.beside = Some(Box::new(FeedBeside {
            key: members_key,
            feed: Feed::Single {
                stream: members,
                from: run.end,
                encoder: subscribe.context.members_encoder,
                option: 0,
            },
        }));
        subscribe.go_on(source, now)
    }
}

/// Whether the same message may be served later: the server can't now, or the client has sent more than its rate. A quota that is used up is
/// no such reason: clients would come back again and again.
pub(super) fn may_succeed_later(refused: &Response) -> bool {
    refused.is_unavailable() || problem::code_and_message(refused).0 == "request_rate"
}

/// The response that closes the connection with [`PusherCode::OVER_CAPACITY`].
pub(super) fn unserved() -> Response {
    Response::new(503)
}

/// The response to a subscription that is refused. If the server can't serve it now there is no message: the connection is closed, and the
/// client subscribes again when it is back.
pub(super) fn refused_subscription(channel: &str, refused: &Response) -> Response {
    if may_succeed_later(refused) {
        return unserved();
    }
    let why = problem::message(refused);
    let message = match user_of_channel(channel) {
        // The client has signed in, and knows of no subscription.
        Some(_) => error(Some(PusherCode::NOT_SERVED), &why),
        None => subscription_error(channel, "ServerError", refused.status, &why),
    };
    Response::new(refused.status).body(message)
}
