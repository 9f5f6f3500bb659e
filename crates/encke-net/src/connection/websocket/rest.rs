//! A channel while it only delivers.

use encke_access::CallersOut;
use encke_protocol::{Channel, MovedChannel};

use super::state::{ChannelFeed, WebSocket};
use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::websocket::frame_meter::LightFrameMeter;
use crate::websocket::receive::MessageReceiver;

/// What is kept of a channel that only delivers, on a connection that it has to itself.
#[derive(Debug)]
pub(crate) struct RestingChannel {
    channel: Box<dyn Channel>,
    feeds: RestingFeeds,
    meter: LightFrameMeter,
    deflate: bool,
    awaits_pong: bool,
}

// What an idle subscriber over WebSocket costs beside its slots, its feed and the protocol's side of its channel.
const _: () = assert!(size_of::<Option<RestingChannel>>() <= 48);

/// The feeds of a channel at rest, of which most have one.
#[derive(Debug)]
enum RestingFeeds {
    One(ChannelFeed),
    Any(Box<[ChannelFeed]>),
}

impl WebSocket {
    /// What is left of a channel that is idle.
    pub(crate) fn into_rest(self) -> RestingChannel {
        RestingChannel {
            channel: self.channel,
            feeds: match self.feeds[..] {
                [one] => RestingFeeds::One(one),
                _ => RestingFeeds::Any(self.feeds.into()),
            },
            meter: self.meter,
            deflate: self.deflate,
            awaits_pong: self.awaits_pong,
        }
    }

    /// A channel that was at rest, of that connection.
    pub(crate) fn from_rest(id: ExchangeId, rest: RestingChannel) -> Self {
        WebSocket {
            place: ExchangePlace {
                exchange: id,
                connection: id,
            },
            channel: rest.channel,
            receiver: MessageReceiver::new(),
            meter: rest.meter,
            deflate: rest.deflate,
            feeds: match rest.feeds {
                RestingFeeds::One(one) => vec![one],
                RestingFeeds::Any(feeds) => feeds.into(),
            },
            work: None,
            awaits_pong: rest.awaits_pong,
            has_inflated: false,
            is_closing: false,
        }
    }
}

impl RestingChannel {
    /// A channel that another process has given away, with its feeds and their keys.
    pub(crate) fn arrive(
        channel: Box<dyn Channel>,
        feeds: &[(ExchangeId, u32)],
        deflate: bool,
        awaits_pong: bool,
    ) -> Self {
        let feeds = feeds
            .iter()
            .map(|(id, key)| ChannelFeed { id: *id, key: *key });
        let feeds: Box<[ChannelFeed]> = feeds.collect();
        RestingChannel {
            channel,
            feeds: match &*feeds {
                [one] => RestingFeeds::One(*one),
                _ => RestingFeeds::Any(feeds),
            },
            meter: LightFrameMeter::new(),
            deflate,
            awaits_pong,
        }
    }

    /// The protocol's side of it in a form in which another process takes it over.
    pub(crate) fn moved(&self, callers: &mut CallersOut) -> MovedChannel {
        self.channel.moved(callers)
    }

    /// Whether messages may be compressed.
    pub(crate) fn deflates(&self) -> bool {
        self.deflate
    }

    /// Whether a ping was sent, and nothing has arrived since.
    pub(crate) fn awaits_pong(&self) -> bool {
        self.awaits_pong
    }

    /// The number by which messages name it, see [`Channel::number`].
    pub(crate) fn number(&self) -> Option<u64> {
        self.channel.number()
    }

    /// Its feeds.
    pub(crate) fn feeds(&self) -> Vec<ExchangeId> {
        self.all_feeds().iter().map(|feed| feed.id).collect()
    }

    /// Its feeds, with their keys.
    pub(crate) fn keyed_feeds(&self) -> Vec<(ExchangeId, u32)> {
        let feeds = self.all_feeds().iter();
        feeds.map(|feed| (feed.id, feed.key)).collect()
    }

    fn all_feeds(&self) -> &[ChannelFeed] {
        match &self.feeds {
            RestingFeeds::One(one) => std::slice::from_ref(one),
            RestingFeeds::Any(feeds) => feeds,
        }
    }
}
