//! What webhooks are told of a channel, and what is to be told where the channel and the log differ.

use std::collections::HashSet;

use super::event::WebhookEvent;
use super::kind::WebhookKind;

/// A channel as it is, or as the log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChannelState {
    pub(super) is_occupied: bool,
    pub(super) members: HashSet<Box<str>>,
    pub(super) subscriptions: usize,
}

/// What can differ between a channel and what the log says of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChannelSubject {
    pub(super) channel: Box<str>,
    pub(super) part: ChannelPart,
}

/// A part of a channel whose changes are told separately.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ChannelPart {
    Occupancy,
    Member(Box<str>),
    Subscriptions,
}

impl ChannelState {
    /// The events that lead to it.
    pub(super) fn events<'a>(&'a self, channel: &'a str) -> Vec<(ChannelPart, WebhookEvent<'a>)> {
        let occupied = || WebhookEvent::of_channel(WebhookKind::ChannelOccupied, channel);
        let added = |user| WebhookEvent::of_member(WebhookKind::MemberAdded, channel, user);
        let counted = || WebhookEvent::of_count(channel, self.subscriptions);
        let members = self.members.iter();
        let members = members.map(|user| (ChannelPart::Member(user.clone()), added(user)));
        let is_counted = self.subscriptions > 0;
        let first = self
            .is_occupied
            .then(|| (ChannelPart::Occupancy, occupied()));
        let last = is_counted.then(|| (ChannelPart::Subscriptions, counted()));
        first.into_iter().chain(members).chain(last).collect()
    }
}

/// What is to be told where a channel and what the log says of it differ.
pub(super) fn difference(
    actual: Option<&ChannelState>,
    told: Option<&ChannelState>,
    part: &ChannelPart,
) -> Option<WebhookKind> {
    let kind = |is, was, come, gone| match (is, was) {
        (true, false) => Some(come),
        (false, true) => Some(gone),
        _ => None,
    };
    match part {
        ChannelPart::Occupancy => {
            let is = |state: Option<&ChannelState>| state.is_some_and(|state| state.is_occupied);
            let (come, gone) = (WebhookKind::ChannelOccupied, WebhookKind::ChannelVacated);
            kind(is(actual), is(told), come, gone)
        }
        ChannelPart::Member(id) => {
            let is = |state: Option<&ChannelState>| {
                state.is_some_and(|state| state.members.contains(id))
            };
            let (come, gone) = (WebhookKind::MemberAdded, WebhookKind::MemberRemoved);
            kind(is(actual), is(told), come, gone)
        }
        ChannelPart::Subscriptions => {
            let of = |state: Option<&ChannelState>| state.map_or(0, |state| state.subscriptions);
            (of(actual) != of(told)).then_some(WebhookKind::SubscriptionCount)
        }
    }
}
