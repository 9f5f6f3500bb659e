//! What a webhook can be told of.

use std::fmt;
use std::str::FromStr;

/// What a webhook can be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookKind {
    /// A channel has its first subscription.
    ChannelOccupied,
    /// A channel has lost its last subscription.
    ChannelVacated,
    /// A member of a presence channel is there that was not.
    MemberAdded,
    /// A member of a presence channel is not there any more.
    MemberRemoved,
    /// A client has sent an event.
    ClientEvent,
    /// A client has subscribed to a cache channel without an event.
    CacheMiss,
    /// A channel has another number of subscriptions.
    SubscriptionCount,
}

/// A text is none of the names of [`WebhookKind`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is none of channel_occupied, channel_vacated, member_added, member_removed, client_event, cache_miss and subscription_count"
)]
pub struct BadWebhookKind(String);

impl WebhookKind {
    /// All of them.
    pub const ALL: [WebhookKind; 7] = [
        WebhookKind::ChannelOccupied,
        WebhookKind::ChannelVacated,
        WebhookKind::MemberAdded,
        WebhookKind::MemberRemoved,
        WebhookKind::ClientEvent,
        WebhookKind::CacheMiss,
        WebhookKind::SubscriptionCount,
    ];

    /// Whether it tells of a state, which lasts.
    pub(super) fn is_of_state(self) -> bool {
        !matches!(self, WebhookKind::ClientEvent | WebhookKind::CacheMiss)
    }

    /// What tells of the opposite; itself if there is none.
    pub(super) fn opposite(self) -> WebhookKind {
        match self {
            WebhookKind::ChannelOccupied => WebhookKind::ChannelVacated,
            WebhookKind::ChannelVacated => WebhookKind::ChannelOccupied,
            WebhookKind::MemberAdded => WebhookKind::MemberRemoved,
            WebhookKind::MemberRemoved => WebhookKind::MemberAdded,
            other => other,
        }
    }

    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            WebhookKind::ChannelOccupied => "channel_occupied",
            WebhookKind::ChannelVacated => "channel_vacated",
            WebhookKind::MemberAdded => "member_added",
            WebhookKind::MemberRemoved => "member_removed",
            WebhookKind::ClientEvent => "client_event",
            WebhookKind::CacheMiss => "cache_miss",
            WebhookKind::SubscriptionCount => "subscription_count",
        }
    }
}

impl FromStr for WebhookKind {
    type Err = BadWebhookKind;

    fn from_str(text: &str) -> Result<Self, BadWebhookKind> {
        let mut all = WebhookKind::ALL.into_iter();
        all.find(|kind| kind.name() == text)
            .ok_or_else(|| BadWebhookKind(text.to_owned()))
    }
}

impl fmt::Display for WebhookKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
