//! How subscriptions begin.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{Offset, Stream};

use super::reply::{MessageTag, write_ended, write_start};
use crate::action::{Action, Feed, Subscription};
use crate::encoder::{EncoderId, MergeEncoderId, StreamEnd};
use crate::events::{MergePlan, OnPlanned, position_text};
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
                beside: None,
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

/// A subscription to several streams, or to a pattern, while its feed is planned.
#[derive(Debug)]
pub(super) struct ChannelFollowSeveral {
    pub(super) tag: MessageTag,
    /// The name of the subscription.
    pub(super) label: Box<str>,
    pub(super) encoder: MergeEncoderId,
}

impl OnPlanned for ChannelFollowSeveral {
    fn planned(self: Box<Self>, plan: Result<MergePlan, Response>) -> Action {
        let plan = match plan {
            Ok(plan) => plan,
            Err(refused) => return Action::Respond(self.tag.error(refused)),
        };
        let response = self.tag.reply("subscribed", |message| {
            message.plain("position", position_text(&plan.position()));
            let over = plan.over.iter();
            write_ended(message, over.map(|over| (&*over.name, over.end)));
        });
        match plan.sources.is_empty() {
            true => Action::Respond(response),
            false => Action::Subscribe(Subscription {
                beside: None,
                response: opening(response),
                feed: Feed::Merged {
                    sources: plan.sources,
                    after: plan.after,
                    generations: plan.generations.into(),
                    names: plan.names,
                    encoder: self.encoder,
                    label: self.label,
                    ended: plan.ended,
                },
            }),
        }
    }
}

/// The response to a subscription, behind which its feed delivers.
fn opening(response: Response) -> Response {
    let first = response.body.as_ref().to_vec();
    response.body(Body::Open(first))
}
