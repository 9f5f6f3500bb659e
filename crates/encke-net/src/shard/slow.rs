//! Clients that read slower than they are sent to: how far behind they may be, and how they are told that it was too far.
//!
//! A subscriber is behind from when its socket takes no more until it has everything again. Meanwhile it costs one partly
//! sent event and is caught up from the recent records or the log; what is limited here is for how long that may go on.

use std::sync::Arc;
use std::time::Duration;

use encke_protocol::{Farewell, Variant};
use encke_stream::{MediaKind, Offset, Stream};
use rustix::net::sockopt;

use super::Shard;
use crate::close::CloseReason;
use crate::slot::{FeedEncoder, Flags, State};

/// Since when a client is behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    since_ms: u64,
    /// What the subscriber has of what was appended to its streams, counted as [`Topic::appended`] counts.
    ///
    /// [`Topic::appended`]: crate::topics::Topic::appended
    has: u32,
}

impl Behind {
    /// How much of what was appended it has not got.
    fn lag(self, appended: u32) -> u32 {
        appended.wrapping_sub(self.has)
    }
}

impl Shard {
    /// A client's socket takes no more: from now on it is behind, unless it was before.
    pub(super) fn falls_behind(&mut self, index: u32) {
        let slot = &self.slots[index];
        let has = match slot.state {
            State::Following | State::Several => self.appended(index),
            State::Streaming => 0,
            _ => return,
        };
        if slot.flags.has(Flags::BEHIND) {
            return;
        }
        let since_ms = self.clock.now_ms();
        self.slots[index].flags.set(Flags::BEHIND, true);
        self.counts.behind += 1;
        self.busy(index).behind = Some(Behind { since_ms, has });
    }

    /// A subscriber that was behind got so much more.
    pub(super) fn gains(&mut self, index: u32, weight: u32) {
        if !self.slots[index].flags.has(Flags::BEHIND) {
            return;
        }
        let appended = self.appended(index);
        if self.slots[index].state == State::Following {
            self.jam.gains(self.slots[index].topic, weight);
        }
        if let Some(behind) = self
            .busy
            .get_mut(index)
            .and_then(|busy| busy.behind.as_mut())
        {
            // Of older data it may get more than was appended meanwhile.
            let left = behind.lag(appended).saturating_sub(weight);
            behind.has = appended.wrapping_sub(left);
        }
    }

    /// How far a subscriber is behind, if it is, by [`weight`].
    pub(super) fn backlog(&self, index: u32) -> Option<u32> {
        let behind = self.busy.get(index)?.behind?;
        Some(behind.lag(self.appended(index)))
    }

    /// One of the streams of a subscriber that was behind is no longer its own; so much was appended to it.
    pub(super) fn loses(&mut self, index: u32, appended: u32) {
        let busy = self.busy.get_mut(index);
        if let Some(behind) = busy.and_then(|busy| busy.behind.as_mut()) {
            behind.has = behind.has.wrapping_sub(appended);
        }
    }

    /// What was appended to a subscriber's streams; only differences count.
    fn appended(&self, index: u32) -> u32 {
        let slot = &self.slots[index];
        match slot.state {
            State::Following => self.topics[slot.topic].appended,
            State::Several => self
                .topics_of(index)
                .map(|topic| self.topics[topic].appended)
                .fold(0, u32::wrapping_add),
            _ => 0,
        }
    }

    /// A client has everything that is due to it for now.
    pub(super) fn is_abreast(&mut self, index: u32) {
        if !self.slots[index].flags.has(Flags::BEHIND) {
            return;
        }
        self.slots[index].flags.set(Flags::BEHIND, false);
        self.counts.behind -= 1;
        self.leaves_jam(index);
        if let Some(busy) = self.busy.get_mut(index) {
            busy.behind = None;
        }
        self.settle(index);
    }

    /// Whether the client's socket is blocked and it is further behind than is allowed. Then it is on its way out.
    pub(super) fn is_too_far_behind(&mut self, index: u32) -> bool {
        let settings = &self.parts.settings;
        let slot = &self.slots[index];
        let Some(busy) = self.busy.get(index) else {
            return false;
        };
        let Some(behind) = busy.behind else {
            return false;
        };
        if !slot.flags.has(Flags::BLOCKED) || busy.reason.is_some() {
            return false;
        }
        let age_ms = self.clock.now_ms().saturating_sub(behind.since_ms);
        let lag_bytes = u64::from(behind.lag(self.appended(index))) * WEIGHT_BYTES;
        let reason = if lag_bytes > settings.lag_bytes_max {
            CloseReason::LagMax
        } else if u128::from(age_ms) > settings.lag_age_max.as_millis() {
            CloseReason::LagAgeMax
        } else {
            return false;
        };
        if matches!(slot.state, State::Following | State::Several) {
            self.dismiss(index, reason);
        } else {
            self.cut(index, reason);
        }
        true
    }

    /// Whether a subscriber is behind and what it has not got yet is no longer kept. Who keeps up gets everything in the
    /// order of the log, even what is let go of right behind it.
    pub(super) fn is_passed(&self, index: u32) -> bool {
        let slot = &self.slots[index];
        let busy = self.busy.get(index);
        let Some(busy) = busy.filter(|busy| busy.behind.is_some() && busy.reason.is_none()) else {
            return false;
        };
        let at = busy.reached.unwrap_or(self.position(index));
        match slot.state {
            State::Following => {
                let stream = self.topics[slot.topic].stream.as_ref();
                stream.is_some_and(|stream| lacks(stream, at))
            }
            State::Several => self.lacks_any(index, at.sequence),
            _ => false,
        }
    }

    /// Tells a subscriber that what follows is no longer kept.
    pub(super) fn pass(&mut self, index: u32) {
        if self.is_dismissed(index) {
            return;
        }
        self.dismiss(index, CloseReason::NoLongerKept);
        if !self.slots[index].flags.has(Flags::BLOCKED) && self.watch_output(index) {
            self.slots[index].flags.set(Flags::BLOCKED, true);
            self.writable(index);
        }
    }

    /// Whether a subscriber was told that it is closed.
    pub(super) fn is_dismissed(&self, index: u32) -> bool {
        let busy = self.busy.get(index);
        busy.is_some_and(|busy| busy.reason.is_some())
    }

    /// Tells a subscriber why it is closed and where to go on, behind what it is being sent.
    fn dismiss(&mut self, index: u32, reason: CloseReason) {
        tracing::debug!(client = %self.client_name(index), reason = reason.label(), "closing a subscriber that is too slow");
        let why = match reason {
            CloseReason::LagMax => "you read slower than is published and are too far behind",
            CloseReason::NoLongerKept => "what follows is no longer kept",
            _ => "you have been behind for too long",
        };
        let resumable = reason != CloseReason::NoLongerKept;
        let now_ms = self.clock.now_ms();
        let here = self.position(index);
        let kind = match self.slots[index].state {
            State::Following => self.topics[self.slots[index].topic].kind,
            _ => MediaKind::Binary,
        };
        let (feed, encoders) = (self.slots[index].encoder, Arc::clone(&self.encoders));
        let busy = self.busy(index);
        busy.output.drain(..busy.sent);
        busy.sent = 0;
        let at = busy.reached.unwrap_or(here);
        match feed {
            FeedEncoder::Single(encoder) => {
                let variant = Variant {
                    kind,
                    option: busy.option,
                };
                let farewell = Farewell { why, at, resumable };
                let encoder = encoders.encoder(encoder);
                encoder.farewell(variant, &farewell, now_ms, &mut busy.output);
            }
            FeedEncoder::Merged(encoder) => {
                let encoder = encoders.merge_encoder(encoder);
                encoder.farewell(why, resumable, &mut busy.output);
            }
            FeedEncoder::None => {}
        }
        busy.ended = true;
        busy.reason = Some(reason);
        self.weigh(index);
        // Time to read it, once.
        let stall_ms = self.parts.settings.stall_timeout.as_millis() as u64;
        self.deadline(index, now_ms + stall_ms);
    }

    /// Closes a connection in the middle of something, with a reset: the client must not take the beginning for the whole,
    /// and the kernel lets go of what was never read.
    pub(super) fn cut(&mut self, index: u32, reason: CloseReason) {
        if let Some(fd) = self.slots[index].fd() {
            // Where it fails the connection is gone already.
            let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        }
        self.close(index, reason);
    }

    /// Counts what a connection holds in memory now.
    pub(super) fn weigh(&mut self, index: u32) {
        if let Some(busy) = self.busy.get_mut(index) {
            let bytes = busy.bytes();
            busy.held.set(bytes, &self.parts.buffers);
        }
    }
}

/// Whether something follows that position in a stream that is no longer kept for its readers.
pub(super) fn lacks(stream: &Stream, at: Offset) -> bool {
    let facts = stream.facts();
    at != Offset::START && at.sequence < facts.floor && at < facts.tail
}

/// How much a record of so many bytes counts for the lag of those who have not got it.
pub(crate) fn weight(bytes: usize) -> u32 {
    // A record is at most half a segment.
    u32::try_from(bytes as u64 / WEIGHT_BYTES).map_or(u32::MAX, |weight| weight.saturating_add(1))
}

/// The lag is counted in pieces of so many bytes; 32 bits of them are 256 GiB.
const WEIGHT_BYTES: u64 = 64;

/// How often those who are behind are looked at.
pub(super) const LAG_CHECK_MS: u64 = 500;
