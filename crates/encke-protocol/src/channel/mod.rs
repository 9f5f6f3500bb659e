//! Channels: many subscriptions and appends over one connection, in messages of JSON in both directions (docs/websocket.md).
//!
//! A channel is opened at `/v1/events`, or at a stream with `live=websocket`. `conversation` is the channel: it decides about each message as
//! the protocols decide about requests, with the same rules for rights, positions and appends. `message` reads the client's messages,
//! `reply` writes responses to them, `follow` begins subscriptions to one stream, `records` and `merged` write what subscriptions
//! deliver. An error belongs to the message or the subscription that it names, and closes nothing else.

mod append;
mod context;
mod conversation;
mod follow;
mod merged;
mod message;
mod moved;
mod object;
mod records;
mod reply;
mod subscriptions;

#[cfg(test)]
pub(crate) use self::records::ChannelRecords;

use std::sync::Arc;

use encke_access::{Access, CallersIn};

use self::context::ChannelContext;
use self::conversation::Conversation;
use crate::action::{Action, ChannelOpening};
use crate::encoder::{EncoderForms, Encoders};
use crate::events::MergePlanner;
use crate::gate::Admitted;
use crate::moved_channel::MovedConversation;
use crate::protocol::ChannelMovedIn;
use crate::request::Headers;
use crate::response::Response;
use crate::subprotocol::{CHANNEL_PROTOCOL, SUBPROTOCOL_FIELD, SubprotocolOffer};

pub(crate) use self::message::{several, single};

/// Opens channels for the protocols at whose paths they are.
#[derive(Clone, Debug)]
pub(crate) struct Channels(Arc<ChannelContext>);

impl Channels {
    /// Channels over the streams of a planner. `access`: the access control, if there is one.
    pub(crate) fn new(
        planner: MergePlanner,
        access: Option<Arc<Access>>,
        encoders: &mut Encoders,
    ) -> Self {
        Channels(Arc::new(ChannelContext {
            planner,
            access,
            encoders: EncoderForms {
                plain: encoders.add("channel", records::ChannelRecords { has_times: false }),
                timed: encoders.add("channel-timed", records::ChannelRecords { has_times: true }),
            },
            merge_encoders: EncoderForms {
                plain: encoders.add_merge("channel", merged::MergedMessages { has_times: false }),
                timed: encoders
                    .add_merge("channel-timed", merged::MergedMessages { has_times: true }),
            },
        }))
    }

    /// Takes a channel over from another process.
    pub(crate) fn move_in(&self, moved: MovedConversation, callers: &CallersIn) -> ChannelMovedIn {
        let channel = Conversation::arrive(Arc::clone(&self.0), moved, callers)?;
        Ok(Box::new(channel))
    }

    /// Opens a channel for the caller of a request. `first`: the message that stands for the subscription of its URL, if that names one.
    pub(crate) fn open(
        &self,
        headers: Headers<'_>,
        admitted: &Admitted<'_>,
        first: Option<String>,
    ) -> Action {
        let offer = SubprotocolOffer::parse(headers).unwrap_or_default();
        let chosen = offer.has_channels.then_some(CHANNEL_PROTOCOL);
        let response = Response::new(101).field_if(SUBPROTOCOL_FIELD, chosen);
        let channel = Conversation::new(Arc::clone(&self.0), admitted, first.as_deref());
        Action::Open(ChannelOpening {
            response,
            channel: Box::new(channel),
            first: first.map(String::into_bytes).into_iter().collect(),
        })
    }
}
