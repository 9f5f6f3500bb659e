//! How a subscription to one stream begins.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{Offset, Stream};

use super::reply::{MessageTag, write_ended, write_start};
use crate::action::{Action, Feed, Subscription};
use crate::encoder::{EncoderId, StreamEnd};
use crate::last_messages::OnLastFound;
use crate::response::{Body, Response};

/// A subscription to one stream, but for its beginning.
#[derive(Debug)]
pub(super) struct ChannelFollow {
    pub(super) tag: MessageTag,
    pub(super) stream: Arc<Stream>,
    pub(super) encoder: EncoderId,
}

impl ChannelFollow {
    /// Begins behind a position. A stream that has ended there needs no feed.
    pub(super) fn begin(self, from: Offset) -> Action {
        let facts = self.stream.facts();
        let is_at_tail = from == facts.tail;
        let is_over = is_at_tail && facts.closed;
        let response = self.tag.reply("subscribed", |message| {
            write_start(message, from, is_at_tail);
            let end = StreamEnd::Closed(self.stream.facts().end);
            let ended = is_over.then_some((&*self.stream.name, end));
            write_ended(message, ended.into_iter());
        });
        match is_over {
            true => Action::Respond(response),
            false => Action::Subscribe(Subscription {
                response: opening(response),
                feed: Feed::Single {
                    stream: self.stream,
                    from,
                    encoder: self.encoder,
                    option: 0,
                },
            }),
        }
    }
}

impl OnLastFound for ChannelFollow {
    fn found(self: Box<Self>, from: Result<Offset, Response>, _now: WallTime) -> Action {
        match from {
            Ok(from) => self.begin(from),
            Err(refused) => Action::Respond(self.tag.error(refused)),
        }
    }
}

/// The response to a subscription, behind which its feed delivers.
pub(super) fn opening(response: Response) -> Response {
    let first = response.body.as_ref().to_vec();
    response.body(Body::Open(first))
}
