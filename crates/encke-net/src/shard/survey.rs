//! What a shard says of its connections to operators, and how it closes one for them.

use super::connections::Connections;
use super::state::Shard;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, SlotFeed, SlotState, Token};
use crate::feed::{FeedContext, Feeds};
use crate::survey::{
    ConnectionFilter, ConnectionRow, LagOfRow, StepAnswer, SubscribedTo, SurveyStep,
};

/// What is looked at for a survey.
struct Census<'s> {
    shard: u16,
    connections: &'s mut Connections,
    feeds: &'s Feeds,
}

/// Answers a part of a survey.
pub(super) fn answer(shard: &mut Shard, step: &SurveyStep) {
    let mut census = Census {
        shard: shard.context.number,
        connections: &mut shard.connections,
        feeds: &shard.feeds,
    };
    // It fails only if nothing waits for the result any more.
    let _ = step.answer.send(census.step(step));
}

/// Closes a connection for an operator. False: it is gone.
pub(super) fn disconnect(shard: &mut Shard, token: Token) -> bool {
    let Some(index) = shard.connections.slots.find(token) else {
        return false;
    };
    let index = shard.connections.slots.connection_of(index);
    match shard.connections.slots[index].state {
        SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => {
            return false;
        }
        SlotState::Idle => shard.close(index, CloseReason::Disconnected),
        SlotState::Subscribed => shard.dismiss(index, CloseReason::Disconnected),
        SlotState::Active | SlotState::Channel => shard.on(index, Event::Disconnect),
    }
    true
}

impl Census<'_> {
    fn step(&mut self, step: &SurveyStep) -> StepAnswer {
        let slots = self.connections.slots.len() as u32;
        let mut answer = StepAnswer::default();
        let mut index = step.from;
        while index < slots && answer.looked_at < SLOTS_AT_ONCE && answer.rows.len() < step.rows_max
        {
            answer.rows.extend(self.row(index, &step.filter));
            answer.looked_at += 1;
            index += 1;
        }
        answer.next = (index < slots).then_some(index);
        answer
    }

    /// What there is to say of a slot, if it is one of a connection that passes the filter, or of a subscription of one.
    fn row(&mut self, index: u32, filter: &ConnectionFilter) -> Option<ConnectionRow> {
        let slot = &self.connections.slots[index];
        let (state, flags, feed) = (slot.state, slot.flags, slot.feed);
        let (active_s, mut requests) = (slot.active_s, slot.requests);
        match state {
            SlotState::Free | SlotState::Member | SlotState::Closed => return None,
            // What an exchange does without a feed says its connection.
            SlotState::Exchange if feed == SlotFeed::None => return None,
            _ => {}
        }
        let (streams, streams_total) = self.subscribed_to(index);
        if let Some((no, name)) = &filter.stream
            && !self.is_subscribed(index, *no, name)
        {
            return None;
        }
        let id = ExchangeId::new(index);
        let owner = self.connections.slots.connection_of(index);
        let caller = self.connections.clients.callers.tag(id).cloned();
        if let Some(name) = &filter.caller
            && !caller.as_ref().is_some_and(|caller| caller.is_named(name))
        {
            return None;
        }
        let lag = self.lag_of(index);
        if filter.slow && lag.is_none() {
            return None;
        }
        let client: Box<str> = self.connections.client_name(index).into();
        if filter.client.as_ref().is_some_and(|only| *only != client) {
            return None;
        }
        let described = self.connections.get(owner).map(|one| {
            requests = one.requests_so_far();
            one.described(id)
        });
        let (speaks, doing) = match state {
            SlotState::Idle => ("HTTP/1.1", "idle"),
            SlotState::Subscribed => ("HTTP/1.1", "subscribed"),
            SlotState::Channel => ("WebSocket", "channel"),
            SlotState::Exchange if flags.has(Flags::MESSAGES) => ("WebSocket", "subscribed"),
            _ => described.unwrap_or(("HTTP/2", "subscribed")),
        };
        let owner_flags = self.connections.slots[owner].flags;
        Some(ConnectionRow {
            name: self.name_of(index),
            of: (owner != index).then(|| self.name_of(owner)),
            client,
            caller,
            speaks,
            doing,
            streams,
            streams_total,
            lag,
            quiet_s: self.connections.clock.now_s().saturating_sub(active_s),
            requests,
            held_bytes: self.connections.holdings.bytes(id),
            tls: owner_flags.has(Flags::TLS) || owner_flags.has(Flags::ENCRYPTED),
            operator: owner_flags.has(Flags::OPERATOR),
        })
    }

    fn name_of(&self, index: u32) -> encke_protocol::ConnectionName {
        encke_protocol::ConnectionName {
            shard: self.shard,
            token: self.connections.slots.token(index),
        }
    }

    /// How far a client is behind: a subscriber with its records, or another one with a body.
    fn lag_of(&mut self, index: u32) -> Option<LagOfRow> {
        let Connections {
            slots,
            clock,
            counts,
            ..
        } = &mut *self.connections;
        let cx = FeedContext {
            slots,
            clock,
            counts,
        };
        if let Some(lag) = self.feeds.lag(index, &cx) {
            return Some(LagOfRow {
                bytes: lag.bytes,
                age: lag.age,
            });
        }
        let connection = self.connections.of_exchange(index)?;
        let since = connection.blocked_since(ExchangeId::new(index))?;
        let age = self.connections.clock.monotonic().since(since);
        Some(LagOfRow { bytes: 0, age })
    }

    /// The first streams and patterns of a subscriber, and how many it has.
    fn subscribed_to(&self, index: u32) -> (Vec<SubscribedTo>, usize) {
        let slots = &self.connections.slots;
        if slots[index].feed == SlotFeed::None {
            return (Vec::new(), 0);
        }
        if let Some(members) = self.feeds.members(index, slots) {
            let shown = members.iter().take(STREAMS_SHOWN_MAX);
            return (
                shown.map(|member| member.subscribed_to()).collect(),
                members.len(),
            );
        }
        let topic = slots[index].topic;
        let topics = &self.feeds.fan_out.topics;
        let (no, name) = (topics.no(topic), topics.name(topic));
        let name = (!name.is_empty()).then(|| name.into());
        (vec![SubscribedTo::Stream(no, name)], 1)
    }

    /// Whether a subscriber gets the records of a stream.
    fn is_subscribed(&self, index: u32, no: encke_log::StreamNo, name: &str) -> bool {
        let slots = &self.connections.slots;
        if slots[index].feed == SlotFeed::None {
            return false;
        }
        match self.feeds.members(index, slots) {
            Some(members) => members.iter().any(|member| member.gets(no, name)),
            None => self.feeds.fan_out.topics.no(slots[index].topic) == no,
        }
    }
}

/// Slots that a shard looks at for one part of a survey, before it goes on with deliveries.
const SLOTS_AT_ONCE: usize = 256;

/// Streams of one subscriber that are named.
const STREAMS_SHOWN_MAX: usize = 8;
