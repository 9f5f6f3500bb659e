//! Delivers commits to subscribers: rounds over a topic's list, one send per subscriber.

use std::sync::atomic::Ordering;

use encke_protocol::EncoderId;
use encke_stream::Offset;

use super::Shard;
use crate::connection::active::{FeedState, Task, UnsentOutput};
use crate::connection::close::CloseReason;
use crate::connection::slot::SlotState;
use crate::fanout::encoding::{Encoding, EncodingKey};
use crate::fanout::topics::Next;

impl Shard {
    /// Serves subscribers until the turn's sends are used up.
    pub(super) fn deliver(&mut self) {
        let now_us = self.clock.now_us();
        self.fan_out.wake(now_us);
        while let Some(topic) = self.fan_out.round(now_us) {
            while let Some(index) = self.fan_out.next_subscriber(topic, &self.connections.slots) {
                if self.flush(index) {
                    self.fan_out.spend_send();
                }
                self.see_in_round(index);
            }
            let over = self.fan_out.is_over(topic);
            self.note_round(topic, over);
            if !over {
                break;
            }
            self.counts.rests += u64::from(self.fan_out.end_round(topic, now_us));
        }
        let (bytes, us) = self.fan_out.lag(now_us);
        let lag = &self.context.receiver.lag;
        lag.bytes.store(bytes, Ordering::Relaxed);
        lag.us.store(us, Ordering::Relaxed);
    }

    /// Sends a subscriber its due records. True if this took a system call.
    pub(super) fn flush(&mut self, index: u32) -> bool {
        let index = self.connections.slots.subscriber(index);
        match self.connections.slots[index].state {
            SlotState::Subscribed(encoder) => {
                let slot = &self.connections.slots[index];
                match self.fan_out.topics.next(slot.topic, slot.cursor) {
                    Next::Nothing => false,
                    Next::Recent(at) => self.push(index, at, (encoder, 0)),
                    Next::Older => self.read_older(index),
                }
            }
            SlotState::Active => self.flush_active(index),
            _ => false,
        }
    }

    fn flush_active(&mut self, index: u32) -> bool {
        let Some(active) = self.connections.active(index) else {
            return false;
        };
        let blocked = active.pending.is_some();
        let slot = &self.connections.slots[index];
        let (topic, cursor) = (slot.topic, slot.cursor);
        match &active.task {
            Task::Subscribed(subscriber) => {
                if subscriber.behind.is_some() && self.is_passed(index) {
                    self.dismiss_now(index, CloseReason::NoLongerKept);
                    return true;
                }
                if blocked || subscriber.reading {
                    return false;
                }
                let feed = match &subscriber.feed {
                    FeedState::Merged(_) => return self.flush_merged(index),
                    FeedState::Single(feed) => *feed,
                };
                if let Some(position) = feed.position {
                    return match self.fan_out.topics.inside(topic, position) {
                        Some(at) => self.push(index, at, (feed.encoder, feed.option)),
                        None => self.read_older(index),
                    };
                }
                match self.fan_out.topics.next(topic, cursor) {
                    Next::Nothing => {
                        self.is_abreast(index);
                        false
                    }
                    Next::Recent(at) => self.push(index, at, (feed.encoder, feed.option)),
                    Next::Older => self.read_older(index),
                }
            }
            Task::AwaitingRecord {
                position, loading, ..
            } => {
                if blocked || *loading {
                    return false;
                }
                if position.is_some() {
                    return self.read_older(index);
                }
                match self.fan_out.topics.next(topic, cursor) {
                    Next::Nothing => false,
                    Next::Recent(at) => self.answer_poll(index, at),
                    Next::Older => self.read_older(index),
                }
            }
            _ => false,
        }
    }

    /// Sends a subscriber the recent records from a position of the ring on.
    fn push(&mut self, index: u32, at: u64, (encoder, option): (EncoderId, u64)) -> bool {
        let from = self.position(index);
        let slot = &self.connections.slots[index];
        let last = self.fan_out.topics[slot.topic].last;
        let key = EncodingKey {
            topic: slot.topic,
            from,
            last,
            encoder,
            option,
            framing: slot.framing(),
        };
        let mut encoding = std::mem::take(&mut self.fan_out.encoding);
        if encoding.key != Some(key) {
            let now_ms = self.clock.now_ms();
            let encoders = &self.encoders;
            self.fan_out
                .encode_recent(&mut encoding, key, at, encoders, now_ms);
        }
        let complete = self.send_encoding(index, &encoding);
        let (end, reached) = (encoding.end, encoding.reached());
        self.fan_out.encoding = encoding;
        if complete {
            self.reached(index, reached);
            if end < last {
                self.queue(index);
            } else {
                self.is_abreast(index);
            }
        }
        true
    }

    /// Sends an encoded run. True when all of it is out and the subscriber is still there.
    pub(super) fn send_encoding(&mut self, index: u32, encoding: &Encoding) -> bool {
        let bytes = &encoding.run.bytes;
        if encoding.ended {
            self.complete_body(index, true);
        }
        if bytes.is_empty() {
            if encoding.ended {
                self.close(index, CloseReason::Ended);
                return false;
            }
            return true;
        }
        self.counts.sends += 1;
        let Some(sent) = self.send(index, bytes) else {
            return false;
        };
        if sent == bytes.len() {
            self.counts.deliveries += encoding.records;
            self.gains(index, encoding.weight);
            if encoding.ended {
                self.close(index, CloseReason::Ended);
                return false;
            }
            return true;
        }
        self.counts.blocked += 1;
        self.complete_body(index, false);
        // The subscriber is left behind the last complete event. The rest of the one that is cut goes out before anything
        // else, and counts as delivered then.
        let marks = &encoding.run.marks;
        let whole = marks.partition_point(|mark| mark.end <= sent);
        let start = match whole.checked_sub(1).map(|last| marks[last]) {
            Some(mark) => {
                self.reached(index, mark.at);
                mark.end
            }
            None => 0,
        };
        match marks.get(whole) {
            Some(_) if sent == start => {
                let here = self.position(index);
                self.gains(index, encoding.share(start));
                self.block(
                    index,
                    UnsentOutput {
                        reached: Some(here),
                        ..UnsentOutput::default()
                    },
                );
            }
            Some(cut) => {
                let ended = encoding.ended && whole + 1 == marks.len();
                self.gains(index, encoding.share(cut.end));
                self.complete_body(index, ended);
                let close = ended.then(|| self.last_reason(index));
                self.block(
                    index,
                    UnsentOutput {
                        bytes: bytes[sent..cut.end].to_vec(),
                        sent: 0,
                        reached: Some(cut.at),
                        close,
                    },
                );
            }
            // The last mark is behind the last byte.
            None => self.close(index, CloseReason::Internal),
        }
        false
    }

    /// Responds to a long poll with the recent records from a position of the ring on.
    fn answer_poll(&mut self, index: u32, at: u64) -> bool {
        let slot = &self.connections.slots[index];
        let (topic, from) = (slot.topic, Offset::behind(slot.cursor));
        let Some(active) = self.connections.active_mut(index) else {
            return false;
        };
        let Task::AwaitingRecord { .. } = active.task else {
            return false;
        };
        let mut items = Vec::new();
        let gathered = self.fan_out.gather(topic, from, at, &mut items);
        if items.is_empty() && !gathered.deleted && !gathered.closed {
            // A record without data, such as the renewal of a lifetime, answers nothing.
            self.connections.slots[index].cursor = gathered.last;
            return false;
        }
        let Task::AwaitingRecord { then, .. } = std::mem::take(&mut active.task) else {
            return false;
        };
        active.deadline = None;
        let response = if gathered.deleted && items.is_empty() {
            then.ended()
        } else {
            then.arrived(gathered.run(&items), self.clock.now_ms())
        };
        self.counts.deliveries += items.len() as u64;
        self.counts.sends += 1;
        self.counts.subscribers -= 1;
        let slots = &mut self.connections.slots;
        self.fan_out.topics.unlink(slots, index, self.clock.time());
        self.respond_later(index, &response);
        true
    }
}
