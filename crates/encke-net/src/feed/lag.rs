//! How far subscribers are behind.
//!
//! A subscriber is behind from when its connection takes no more until it has everything again. Meanwhile it costs one partly
//! sent event, and catches up from the recent records or from the log. The shard limits how long that may go on.

use std::time::Duration;

use encke_log::Sequence;
use encke_protocol::{Farewell, Variant};
use encke_stream::Offset;

use super::feeds::{FeedContext, Feeds};
use super::slot::{SlotFeed, Slots};
use super::state::{Behind, FeedKind};
use super::weight::{WEIGHT_BYTES, lacks};
use crate::clock::Monotonic;
use crate::connection::close::CloseReason;

/// A subscriber's lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubscriberLag {
    /// What it lacks, approximately.
    pub(crate) bytes: u64,
    /// For how long it has been behind.
    pub(crate) age: Duration,
}

impl Feeds {
    /// A subscriber's connection takes no more: from now on it is behind, unless it was before.
    pub(crate) fn falls_behind(&mut self, index: u32, cx: &mut FeedContext<'_>) {
        if !self.is_subscription(index, cx.slots) {
            return;
        }
        let behind = Behind {
            since: cx.clock.monotonic(),
            has: self.appended(index, cx.slots),
        };
        let Some(state) = self.activate(index, cx.slots) else {
            return;
        };
        if state.behind.is_some() {
            return;
        }
        state.behind = Some(behind);
        cx.counts.behind += 1;
        if matches!(state.kind, FeedKind::Single(_)) {
            let topic = cx.slots[index].topic;
            self.fan_out.topics.lags(topic, cx.clock.now_s());
        }
    }

    /// A subscriber has everything that is due to it for now.
    pub(super) fn is_up_to_date(&mut self, index: u32, cx: &mut FeedContext<'_>) {
        if cx.slots[index].feed != SlotFeed::InTable {
            return;
        }
        self.end_lag(index, cx);
        self.set_eager(index, false);
        self.settle(index, cx.slots);
    }

    /// A subscriber is no longer behind, if it was.
    pub(super) fn end_lag(&mut self, index: u32, cx: &mut FeedContext<'_>) {
        let state = self.states.get_mut(index);
        let Some(state) = state.filter(|_| cx.slots[index].feed == SlotFeed::InTable) else {
            return;
        };
        if state.behind.take().is_none() {
            return;
        }
        cx.counts.behind -= 1;
        if matches!(state.kind, FeedKind::Single(_)) {
            let topic = cx.slots[index].topic;
            let backpressure = &mut self.fan_out.backpressure;
            backpressure.leaves(topic, &self.congested);
        }
    }

    /// A subscriber that was behind got this much more.
    pub(super) fn gains(&mut self, index: u32, weight: u32, cx: &FeedContext<'_>) {
        let Some(behind) = self.behind(index, cx.slots) else {
            return;
        };
        let appended = self.appended(index, cx.slots);
        if self.is_single(index, cx.slots) {
            let topic = cx.slots[index].topic;
            self.fan_out.backpressure.gains(topic, weight);
        }
        // Of older data it may get more than was appended meanwhile.
        let left = behind.lag(appended).saturating_sub(weight);
        self.set_has(index, appended.wrapping_sub(left));
    }

    /// A subscriber has taken a piece of a long record: it has as much time for the next one.
    pub(super) fn makes_progress(&mut self, index: u32, cx: &FeedContext<'_>) {
        let state = self.states.get_mut(index);
        if let Some(behind) = state.and_then(|state| state.behind.as_mut()) {
            behind.since = cx.clock.monotonic();
        }
    }

    /// A subscriber that was behind has one stream less, to which this much was appended.
    pub(super) fn loses(&mut self, index: u32, appended: u32, slots: &Slots) {
        if let Some(behind) = self.behind(index, slots) {
            self.set_has(index, behind.has.wrapping_sub(appended));
        }
    }

    /// How far a subscriber is behind, if it is.
    pub(crate) fn lag(&self, index: u32, cx: &FeedContext<'_>) -> Option<SubscriberLag> {
        let behind = self.behind(index, cx.slots)?;
        let lacks = behind.lag(self.appended(index, cx.slots));
        Some(SubscriberLag {
            bytes: u64::from(lacks) * WEIGHT_BYTES,
            age: cx.clock.monotonic().since(behind.since),
        })
    }

    /// A round has come to a subscriber.
    pub(crate) fn see_in_round(&mut self, index: u32, slots: &Slots) {
        match slots[index].feed {
            SlotFeed::Plain(_) => self.fan_out.backpressure.see(None),
            SlotFeed::InTable if self.is_single(index, slots) => {
                let behind = self.behind(index, slots);
                let backlog = behind.map(|behind| behind.lag(self.appended(index, slots)));
                self.fan_out.backpressure.see(backlog);
            }
            SlotFeed::InTable | SlotFeed::None => {}
        }
    }

    /// A topic's round is over, or goes on in the next turn.
    pub(crate) fn note_round(&mut self, topic: u32, is_over: bool, now: Monotonic) {
        if self.fan_out.backpressure.is_idle() {
            return;
        }
        let stream = self.fan_out.topics.no(topic);
        let (backpressure, all) = (&mut self.fan_out.backpressure, &self.congested);
        if is_over {
            backpressure.end_round(topic, stream, now, all);
        } else {
            backpressure.begin_if_most(topic, stream, now, all);
        }
    }

    /// Whether a subscriber is behind and retention has removed what it has not got. `pending` is its position behind what its
    /// connection still holds, if it holds something. A subscriber that keeps up gets everything in the order of the log, even what
    /// is removed right behind it.
    pub(crate) fn lacks_removed(&self, index: u32, pending: Option<Offset>, slots: &Slots) -> bool {
        let Some(state) = self.state(index, slots) else {
            return false;
        };
        if state.behind.is_none() {
            return false;
        }
        let at = pending.unwrap_or_else(|| self.position(index, slots));
        match &state.kind {
            FeedKind::Single(_) | FeedKind::Poll(_) => {
                let stream = self.fan_out.topics[slots[index].topic].stream.as_ref();
                stream.is_some_and(|stream| lacks(stream, at))
            }
            FeedKind::Merged(merged) => {
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

    /// The last event of a subscriber that is closed although more would follow. `pending` as above.
    pub(crate) fn farewell(
        &self,
        index: u32,
        reason: CloseReason,
        pending: Option<Offset>,
        cx: &FeedContext<'_>,
    ) -> Vec<u8> {
        let farewell = Farewell {
            why: reason.why(),
            at: None,
            resumable: reason != CloseReason::NoLongerKept,
            retry_ms: (reason == CloseReason::Stopping).then(|| retry_ms(index)),
        };
        let mut event = Vec::new();
        let Some((encoder, variant)) = self.form(index, cx.slots) else {
            let state = self.state(index, cx.slots);
            // The client knows its position by the last event.
            if let Some(FeedKind::Merged(merged)) = state.map(|state| &state.kind) {
                let encoder = self.encoders.merge_encoder(merged.encoder);
                encoder.farewell(&merged.label, &farewell, &mut event);
            }
            return event;
        };
        let topic = &self.fan_out.topics[cx.slots[index].topic];
        let variant = Variant {
            name: self.fan_out.topics.name(cx.slots[index].topic),
            ..variant
        };
        let at = pending.unwrap_or_else(|| self.position(index, cx.slots));
        // The cursor is a position in the log, which is none that a client may name.
        let at = topic.stream.as_ref().map(|stream| stream.position(at));
        let farewell = Farewell { at, ..farewell };
        let encoder = self.encoders.encoder(encoder);
        encoder.farewell(variant, &farewell, cx.clock.wall(), &mut event);
        event
    }

    pub(super) fn is_single(&self, index: u32, slots: &Slots) -> bool {
        match slots[index].feed {
            SlotFeed::None => false,
            SlotFeed::Plain(_) => true,
            SlotFeed::InTable => {
                let state = self.states.get(index);
                state.is_some_and(|state| matches!(state.kind, FeedKind::Single(_)))
            }
        }
    }

    fn behind(&self, index: u32, slots: &Slots) -> Option<Behind> {
        self.state(index, slots)?.behind
    }

    fn set_has(&mut self, index: u32, has: u32) {
        let behind = self.states.get_mut(index).map(|state| &mut state.behind);
        if let Some(Some(behind)) = behind {
            behind.has = has;
        }
    }

    /// What was appended to a subscriber's streams; only differences count.
    fn appended(&self, index: u32, slots: &Slots) -> u32 {
        let topics = &self.fan_out.topics;
        match self
            .merged(index)
            .filter(|_| slots[index].feed == SlotFeed::InTable)
        {
            None => topics[slots[index].topic].appended,
            Some(merged) => merged
                .members
                .iter()
                .map(|member| slots[member.slot].topic)
                .map(|topic| topics[topic].appended)
                .fold(0, u32::wrapping_add),
        }
    }

    /// The records of a log up to which all topics have everything; 0 if that is not known.
    pub(super) fn passed(&self, log: usize) -> Sequence {
        self.fan_out.passed(log)
    }
}
/// After which time an EventSource comes back behind a stop: another one for each, so that they do not come all at once.
fn retry_ms(index: u32) -> u32 {
    // Multiplicative hashing, by the golden ratio.
    let spread = index.wrapping_mul(0x9e37_79b9) >> 16;
    RETRY_MS_MIN + spread % RETRY_MS_SPREAD
}

/// An EventSource of a stopped server comes back between this and three times this.
const RETRY_MS_MIN: u32 = 1_000;
const RETRY_MS_SPREAD: u32 = 2_000;
