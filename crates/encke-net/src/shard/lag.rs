//! Limits how far clients may lag, and closes those that exceed a limit.
//!
//! A subscriber is behind from when its socket takes no more until it has everything again. Meanwhile it costs one partly sent
//! event, and catches up from the recent records or from the log. This file limits how long that may go on.

use std::time::Duration;

use encke_protocol::{Farewell, Variant};
use encke_stream::Offset;
use rustix::net::sockopt;

use super::Shard;
use crate::connection::active::{Behind, FeedState, Task, UnsentOutput};
use crate::connection::close::CloseReason;
use crate::connection::slot::SlotState;
use crate::fanout::weight::{WEIGHT_BYTES, lacks};

impl Shard {
    /// A client's socket takes no more: from now on it is behind, unless it was before.
    pub(super) fn falls_behind(&mut self, index: u32) {
        let has = self.appended(index);
        let since = self.clock.monotonic();
        let active = self.connections.active_mut(index);
        if let Some(behind @ None) = active.and_then(|active| active.behind_mut()) {
            *behind = Some(Behind { since, has });
            self.counts.behind += 1;
            if self.is_single(index) {
                let topic = self.connections.slots[index].topic;
                self.fan_out.topics.lags(topic, self.clock.now_s());
            }
        }
    }

    /// A subscriber that was behind got this much more.
    pub(super) fn gains(&mut self, index: u32, weight: u32) {
        let Some(behind) = self.behind(index) else {
            return;
        };
        let appended = self.appended(index);
        if self.is_single(index) {
            let topic = self.connections.slots[index].topic;
            self.fan_out.backpressure.gains(topic, weight);
        }
        // Of older data it may get more than was appended meanwhile.
        let left = behind.lag(appended).saturating_sub(weight);
        self.set_has(index, appended.wrapping_sub(left));
    }

    /// How far a subscriber is behind, if it is, by [`weight`](crate::fanout::weight::weight).
    pub(super) fn backlog(&self, index: u32) -> Option<u32> {
        let behind = self.behind(index)?;
        Some(behind.lag(self.appended(index)))
    }

    /// A subscriber that was behind has one stream less, to which this much was appended.
    pub(super) fn loses(&mut self, index: u32, appended: u32) {
        if let Some(behind) = self.behind(index) {
            self.set_has(index, behind.has.wrapping_sub(appended));
        }
    }

    /// A client has everything that is due to it for now.
    pub(super) fn is_abreast(&mut self, index: u32) {
        self.forget_lag(index);
        let active = self.connections.active_mut(index);
        if let Some(subscriber) = active.and_then(|active| active.subscriber_mut()) {
            subscriber.eager = false;
        }
        self.connections.settle(index);
    }

    /// A client is no longer behind, if it was.
    pub(super) fn forget_lag(&mut self, index: u32) {
        let active = self.connections.active_mut(index);
        let behind = active.and_then(|active| active.behind_mut()?.take());
        if behind.is_none() {
            return;
        }
        self.counts.behind -= 1;
        if self.is_single(index) {
            let topic = self.connections.slots[index].topic;
            let all = &self.context.congested;
            self.fan_out.backpressure.leaves(topic, all);
        }
    }

    /// Whether the client's socket is blocked and it is further behind than is allowed. Then it is being closed.
    pub(super) fn is_too_far_behind(&mut self, index: u32) -> bool {
        let settings = &self.context.settings;
        let Some(active) = self.connections.active(index) else {
            return false;
        };
        let Some(behind) = active.behind() else {
            return false;
        };
        if active.pending.is_none() || active.is_dismissed() {
            return false;
        }
        let subscribed = active.subscriber().is_some();
        let age = self.clock.monotonic().since(behind.since);
        let lag_bytes = u64::from(behind.lag(self.appended(index))) * WEIGHT_BYTES;
        let reason = if lag_bytes > settings.lag_bytes_max {
            CloseReason::LagMax
        } else if age > settings.lag_age_max {
            CloseReason::LagAgeMax
        } else {
            return false;
        };
        if subscribed {
            self.dismiss(index, reason);
        } else {
            self.cut(index, reason);
        }
        true
    }

    /// Whether a subscriber is behind and retention has removed what it has not got. A subscriber that keeps up gets everything
    /// in the order of the log, even what is removed right behind it.
    pub(super) fn is_passed(&self, index: u32) -> bool {
        let Some(active) = self.connections.active(index) else {
            return false;
        };
        let Some(subscriber) = active.subscriber() else {
            return false;
        };
        if subscriber.behind.is_none() || active.is_dismissed() {
            return false;
        }
        let at = self.position_behind_pending(index);
        match &subscriber.feed {
            FeedState::Single(_) => {
                let topic = self.connections.slots[index].topic;
                let stream = self.fan_out.topics[topic].stream.as_ref();
                stream.is_some_and(|stream| lacks(stream, at))
            }
            FeedState::Merged(merged) => {
                let after = merged.all_after(at.sequence);
                let mut members = merged.members.iter();
                // A subscriber of a pattern learns of removed records by an event.
                members.any(|member| {
                    let at = member.position(after[member.log()]);
                    member.stream().is_some_and(|stream| lacks(stream, at))
                })
            }
        }
    }

    /// Closes a subscriber, with the reason, as soon as its socket takes it.
    pub(super) fn dismiss_now(&mut self, index: u32, reason: CloseReason) {
        self.connections.activate(index);
        let active = self.connections.active(index);
        if active.is_some_and(|active| active.is_dismissed()) {
            return;
        }
        let blocked = self.connections.is_blocked(index);
        self.dismiss(index, reason);
        if !blocked && self.watch_output(index) {
            self.writable(index);
        }
    }

    /// Appends the reason and the offset to continue from to a subscriber's pending write, which ends its connection.
    fn dismiss(&mut self, index: u32, reason: CloseReason) {
        tracing::debug!(
            client = %self.client_name(index),
            reason = reason.label(),
            "closing a subscriber before the end of its stream"
        );
        let why = reason.why();
        let resumable = reason != CloseReason::NoLongerKept;
        let now_ms = self.clock.now_ms();
        let at = self.position_behind_pending(index);
        let topic = self.connections.slots[index].topic;
        let framing = self.connections.slots[index].framing();
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        let Task::Subscribed(subscriber) = &active.task else {
            return;
        };
        let mut farewell_event = Vec::new();
        match &subscriber.feed {
            FeedState::Single(feed) => {
                let variant = Variant {
                    kind: self.fan_out.topics[topic].kind,
                    option: feed.option,
                };
                // The cursor is a position in the log, which is none that a client may name.
                let stream = self.fan_out.topics[topic].stream.as_ref();
                let at = stream.map(|stream| stream.position(at));
                let farewell = Farewell { why, at, resumable };
                let encoder = self.encoders.encoder(feed.encoder);
                encoder.farewell(variant, &farewell, now_ms, &mut farewell_event);
            }
            // The client knows its position by the last event.
            FeedState::Merged(merged) => {
                let encoder = self.encoders.merge_encoder(merged.encoder);
                encoder.farewell(why, resumable, &mut farewell_event);
            }
        }
        let pending = active.pending.get_or_insert_default();
        pending.bytes.drain(..pending.sent);
        pending.sent = 0;
        // The body is cut: it has no end.
        framing.part(&farewell_event, &mut pending.bytes);
        pending.close = Some(reason);
        self.weigh(index);
        // The client has one stall timeout to read it.
        let stall_timeout = self.context.settings.stall_timeout;
        self.set_deadline(index, self.clock.monotonic().after(stall_timeout));
    }

    /// Closes a connection in the middle of something, with a reset: the client must not take the beginning for the whole, and
    /// the kernel discards what was never read.
    pub(super) fn cut(&mut self, index: u32, reason: CloseReason) {
        // An end of the session would say that nothing is missing.
        self.connections.transports.remove(index);
        if let Some(fd) = self.connections.slots[index].fd() {
            // Where it fails the connection is gone already.
            let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        }
        self.close(index, reason);
    }

    fn behind(&self, index: u32) -> Option<Behind> {
        self.connections.active(index)?.behind()
    }

    fn set_has(&mut self, index: u32, has: u32) {
        let active = self.connections.active_mut(index);
        if let Some(Some(behind)) = active.and_then(|active| active.behind_mut()) {
            behind.has = has;
        }
    }

    /// What was appended to a subscriber's streams; only differences count.
    fn appended(&self, index: u32) -> u32 {
        let slot = &self.connections.slots[index];
        let topics = &self.fan_out.topics;
        if let SlotState::Subscribed(_) = slot.state {
            return topics[slot.topic].appended;
        }
        match self.connections.active(index).map(|active| &active.task) {
            Some(Task::Subscribed(subscriber)) => match &subscriber.feed {
                FeedState::Single(_) => topics[slot.topic].appended,
                FeedState::Merged(merged) => merged
                    .members
                    .iter()
                    .map(|member| self.connections.slots[member.slot].topic)
                    .map(|topic| topics[topic].appended)
                    .fold(0, u32::wrapping_add),
            },
            _ => 0,
        }
    }

    /// A subscriber's position once its pending write is out.
    fn position_behind_pending(&self, index: u32) -> Offset {
        let active = self.connections.active(index);
        let pending = active.and_then(|active| active.pending.as_ref());
        let reached = pending.and_then(|pending: &UnsentOutput| pending.reached);
        reached.unwrap_or_else(|| self.position(index))
    }
}
