//! How a subscription begins: its stream is found or created, and read from its end, or from its last event.

use std::sync::Arc;

use encke_clock::{Now, WallTime};
use encke_stream::{Offset, Outcome, Stream};

use super::channel_stream::{check_created, check_type};
use super::context::PusherContext;
use super::server_message::{cache_miss, subscribed, subscription_error};
use crate::action::{Action, Feed, OnChange, Subscription};
use crate::last_messages::{LAST_BYTES_MAX, OnLastFound, WantedMessages, find_last};
use crate::problem;
use crate::response::{Body, Response};

/// A subscription to a channel, but for its beginning.
#[derive(Debug)]
pub(super) struct PusherSubscribe {
    pub(super) context: Arc<PusherContext>,
    pub(super) channel: Box<str>,
    /// The name of the channel's stream.
    pub(super) name: Box<str>,
    /// It begins with the last event.
    pub(super) is_cache: bool,
}

/// A subscription that begins with the last event, when that is found.
#[derive(Debug)]
struct CachedSubscribe {
    subscribe: PusherSubscribe,
    stream: Arc<Stream>,
    tail: Offset,
}

impl PusherSubscribe {
    /// Begins at the end of its stream.
    pub(super) fn begin(self, stream: Arc<Stream>, now: Now) -> Action {
        let facts = stream.facts();
        if facts.closed {
            let why = "the stream of the channel is closed: it gets no further events";
            return self.refuse(problem::error(409, "closed", why));
        }
        self.context.streams.touch(&stream, now);
        if !self.is_cache {
            let first = vec![subscribed(&self.channel)];
            return self.follow(stream, facts.tail, first);
        }
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
        find_last(&context.streams, wanted, Box::new(cached), now.wall)
    }

    fn follow(self, stream: Arc<Stream>, from: Offset, first: Vec<Vec<u8>>) -> Action {
        Action::Subscribe(Subscription {
            response: Response::new(200).body(Body::Messages(first)),
            feed: Feed::Single {
                stream,
                from,
                encoder: self.context.encoder,
                option: 0,
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
            .and_then(|stream| check_type(&stream).map(|()| stream));
        match found {
            Ok(stream) => self.begin(stream, now),
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
        let channel = &self.subscribe.channel;
        let mut first = vec![subscribed(channel)];
        if from >= self.tail {
            first.push(cache_miss(channel));
        }
        self.subscribe.follow(self.stream, from, first)
    }
}

/// What a client is told of a subscription that was refused as a request would be.
pub(super) fn refused_subscription(channel: &str, refused: &Response) -> Response {
    let why = problem::message(refused);
    let message = subscription_error(channel, "ServerError", refused.status, &why);
    Response::new(refused.status).body(message)
}
