//! Delivers ephemeral messages in the rounds of their topics.

use super::deliver::Served;
use super::state::Shard;
use crate::broadcast::ChannelName;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::Purpose;
use crate::feed::slot::{Flags, SlotFeed};
use encke_stream::EphemeralMessage;

/// The deliveries of ephemeral messages of a shard.
pub(super) struct EphemeralDelivery<'a>(pub(super) &'a mut Shard);

impl EphemeralDelivery<'_> {
    /// Hands a message of an exchange to the shards with subscribers.
    pub(super) fn broadcast(self, id: ExchangeId, message: EphemeralMessage, echoes: bool) {
        let shard = self.0;
        let slots = &shard.connections.slots;
        let is_message = slots[id.slot()].flags.has(Flags::MESSAGES);
        let except = (is_message && !echoes).then(|| ChannelName {
            shard: shard.context.number,
            token: slots.token_of(slots.carrier_of(id.slot())),
        });
        let handed_over = shard.context.broadcaster.send(message, except);
        shard.on_exchange(id.slot(), ExchangeEvent::Broadcast(handed_over));
    }

    /// Sends a subscriber these messages of the round if it has all records. `served`: how it was served its records.
    pub(super) fn deliver(self, index: u32, wanted: u64, mut served: Served) {
        let shard = self.0;
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
}

fn is_subscribed(shard: &Shard, index: u32) -> bool {
    let connections = &shard.connections;
    connections.is_open(index) && connections.slots[index].feed != SlotFeed::None
}

/// Sends of records to a subscriber before the messages of a round, beside the first. A subscriber that lacks more does not get them.
const SERVES_MAX: usize = 4;
