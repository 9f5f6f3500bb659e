//! Rounds over the subscribers of a topic: each gets its records, and then the ephemeral messages of the round.

use std::sync::atomic::Ordering;

use super::deliver::Served;
use super::state::Shard;
use crate::feed::Purpose;
use crate::feed::slot::SlotFeed;

impl Shard {
    /// Serves subscribers until the turn's sends are used up.
    pub(super) fn deliver(&mut self) {
        self.deliver_due();
        let now_us = self.connections.clock.now_us();
        let now = self.connections.clock.monotonic();
        self.feeds.fan_out.wake(now_us);
        while let Some(topic) = self.feeds.fan_out.round(now_us) {
            loop {
                let slots = &self.connections.slots;
                let Some(index) = self.feeds.fan_out.next_subscriber(topic, slots) else {
                    break;
                };
                // Before it is served, because a stream that ends takes its member off the list.
                let wanted = match self.feeds.fan_out.has_ephemeral() {
                    true => self.feeds.ephemeral_for(index, slots),
                    false => 0,
                };
                let subscriber = slots.subscriber(index);
                // Its last records may take long, and the name may have a successor.
                if self.feeds.fan_out.topics.is_deleted(topic) {
                    let no = self.feeds.fan_out.topics.no(topic);
                    self.feeds.seats.leave(subscriber, no);
                }
                let served = self.serve(index);
                if served == Served::Sent {
                    self.feeds.fan_out.spend_send();
                }
                if wanted != 0 {
                    deliver_ephemeral(self, subscriber, wanted, served);
                }
                self.feeds.see_in_round(index, &self.connections.slots);
            }
            let is_over = self.feeds.fan_out.is_over(topic);
            self.feeds.note_round(topic, is_over, now);
            if !is_over {
                break;
            }
            let rests = self.feeds.fan_out.end_round(topic, now_us);
            self.connections.counts.rests += u64::from(rests);
        }
        let (bytes, us) = self.feeds.fan_out.lag(now_us);
        let lag = &self.context.receiver.lag;
        lag.bytes.store(bytes, Ordering::Relaxed);
        lag.us.store(us, Ordering::Relaxed);
    }
}

/// Sends a subscriber these messages of the round if it has all records. `served`: how it was served its records.
fn deliver_ephemeral(shard: &mut Shard, index: u32, wanted: u64, mut served: Served) {
    // What it had due may take more than one send.
    let mut serves_left = SERVES_MAX;
    while served == Served::Sent && serves_left > 0 && is_subscribed(shard, index) {
        serves_left -= 1;
        served = shard.serve(index);
        if served == Served::Sent {
            shard.feeds.fan_out.spend_send();
        }
    }
    if !is_subscribed(shard, index) {
        return;
    }
    if served != Served::Nothing {
        shard.connections.counts.ephemeral_behind += u64::from(wanted.count_ones());
        return;
    }
    let (feeds, cx) = shard.feeds();
    feeds.encode_ephemeral(index, wanted, &cx);
    shard.send_encoding(index, Purpose::Ephemeral);
    shard.feeds.fan_out.spend_send();
}

fn is_subscribed(shard: &Shard, index: u32) -> bool {
    let connections = &shard.connections;
    connections.is_open(index) && connections.slots[index].feed != SlotFeed::None
}

/// Sends of records to a subscriber before the messages of a round, beside the first. A subscriber that lacks more does not get them.
const SERVES_MAX: usize = 4;
