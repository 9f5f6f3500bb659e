//! Ephemeral messages of a round, for one subscriber: which are meant, their bytes, and what was sent of them.

use encke_stream::Offset;

use super::encoding::{EncodingKey, EphemeralForm};
use super::feeds::{FeedContext, Feeds, Sent, framing};
use super::queue::FanOut;
use super::slot::Slots;
use super::state::FeedKind;
use crate::broadcast_message::{BroadcastMessage, ChannelName};
use crate::connection::exchange_id::ExchangeId;

impl Feeds {
    /// The messages of the round that are for a subscriber, as bits. `entry` is the slot that stands on the topic's list for it.
    pub(crate) fn ephemeral_for(&self, entry: u32, slots: &Slots) -> u64 {
        let index = slots.subscriber(entry);
        let member = match self.members(index, slots) {
            Some(members) => match members.iter().find(|member| member.slot == entry) {
                Some(member) => Some(member),
                None => return 0,
            },
            None => match self.form(index, slots) {
                Some((encoder, _)) if self.encoders.encoder(encoder).has_ephemeral() => None,
                _ => return 0,
            },
        };
        let channel = slots.channel_of_message(ExchangeId::new(index));
        let channel = channel.map(|token| ChannelName {
            shard: self.fan_out.topics.shard(),
            token,
        });
        let is_for = |broadcast: &BroadcastMessage| {
            let owner = broadcast.message.label.owner.as_deref();
            let is_sender = broadcast.except.is_some() && broadcast.except == channel;
            !is_sender && member.is_none_or(|member| member.sees(owner))
        };
        let messages = (0..).zip(&self.fan_out.ephemeral.round.messages);
        messages.fold(0, |bits, (place, message)| {
            bits | u64::from(is_for(&message.broadcast)) << place
        })
    }

    /// Encodes these messages of the round for a subscriber, unless they are in its form already.
    pub(crate) fn encode_ephemeral(&mut self, index: u32, wanted: u64, cx: &FeedContext<'_>) {
        let framing = framing(index, cx.slots);
        let single = self.form(index, cx.slots).map(|(encoder, _)| encoder);
        let merged = match self.states.get(index).map(|state| &state.kind) {
            Some(FeedKind::Merged(merged)) if single.is_none() => Some(&**merged),
            _ => None,
        };
        let FanOut {
            ephemeral,
            encodings,
            ..
        } = &mut self.fan_out;
        let round = &mut ephemeral.round;
        let form = match (single, merged) {
            (Some(encoder), _) => Some(EphemeralForm::Single(encoder)),
            (None, Some(merged)) => {
                let label = round.label(&merged.label);
                label.map(|label| EphemeralForm::Merged(merged.encoder, label))
            }
            (None, None) => None,
        };
        let key = form.map(|form| EncodingKey::Ephemeral {
            round: round.number,
            wanted,
            form,
            framing,
        });
        if key.is_some_and(|key| encodings.select(key)) {
            return;
        }
        let encoding = encodings.replace();
        encoding.begin();
        let mut event = Vec::new();
        for broadcast in round.wanted(wanted) {
            event.clear();
            match (single, merged) {
                (Some(encoder), _) => {
                    let encoder = self.encoders.encoder(encoder);
                    encoder.ephemeral(&broadcast.message, &mut event);
                }
                (None, Some(merged)) => {
                    let encoder = self.encoders.merge_encoder(merged.encoder);
                    encoder.ephemeral(&merged.label, &broadcast.message, &mut event);
                }
                (None, None) => {}
            }
            // The subscribers that share it have other positions, and keep them.
            encoding.add_event(&event, Offset::START);
        }
        encoding.key = key;
        encoding.frame(framing);
    }

    /// A connection has taken the first `sent` bytes of encoded messages. The rest of the one that is cut goes out before anything else,
    /// and those behind it are lost to the subscriber.
    pub(super) fn sent_ephemeral(
        &mut self,
        index: u32,
        sent: usize,
        cx: &mut FeedContext<'_>,
    ) -> Sent {
        let marks = &self.encoding().run.marks;
        let whole = marks.partition_point(|mark| mark.end <= sent);
        let count = |messages: usize| messages as u64;
        if whole == marks.len() {
            cx.counts.ephemeral_deliveries += count(whole);
            return Sent::All;
        }
        let start = whole.checked_sub(1).map_or(0, |last| marks[last].end);
        let is_cut = sent > start;
        let to = if is_cut { marks[whole].end } else { sent };
        let gets = whole + usize::from(is_cut);
        cx.counts.blocked += 1;
        cx.counts.ephemeral_deliveries += count(gets);
        cx.counts.ephemeral_blocked += count(marks.len() - gets);
        Sent::Cut {
            from: sent,
            to,
            reached: self.position(index, cx.slots),
            ended: false,
        }
    }
}
