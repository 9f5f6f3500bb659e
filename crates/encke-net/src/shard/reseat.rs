//! The feeds of a channel count for its caller: when that changes, they count for the new one, or end.

use encke_access::CallerTag;
use encke_presence::NewMember;
use encke_protocol::{Response, problem};

use super::state::Shard;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::seats::FeedSeat;
use crate::feed::slot::SlotFeed;

impl Shard {
    /// The caller of a channel has changed, who is this member of streams.
    pub(super) fn reseat(&mut self, channel: ExchangeId, member: Option<Box<NewMember>>) {
        let tag = self.connections.clients.callers.tag(channel).cloned();
        for index in self.connections.feeds_of_channel(channel.slot()) {
            // A feed that begins after this has counted for the new caller.
            if self.connections.slots[index].feed == SlotFeed::None {
                continue;
            }
            let seat = self.feeds.take_seat(index);
            match self.seat_again(seat, tag.as_ref(), member.as_deref()) {
                Ok(seat) => self.feeds.set_seat(index, seat),
                Err(refused) => {
                    let connection = self.connections.slots.connection_of(index);
                    let feed = ExchangeId::new(index);
                    self.act(connection, |connection, cx| {
                        connection.refuse_feed((channel, feed), refused, cx);
                    });
                }
            }
        }
    }

    /// The seat of another caller. What stays the same is not given up meanwhile, so that no other members see a change.
    fn seat_again(
        &self,
        seat: FeedSeat,
        tag: Option<&CallerTag>,
        member: Option<&NewMember>,
    ) -> Result<FeedSeat, Response> {
        let now = self.connections.clock.time().steady;
        let hold = match self.context.router.access().zip(tag) {
            None => None,
            Some((access, tag)) => {
                let moved = access.move_subscriber(seat.hold, tag, now);
                moved.map_err(|exceeded| problem::quota_exceeded(&exceeded))?
            }
        };
        let presence = match seat.presence {
            Some(seat) if seat.member.as_ref() != member => {
                let streams = self.context.router.presence();
                let other = streams.enter_as(&seat, member.cloned(), now)?;
                Some(Box::new(other))
            }
            same => same,
        };
        Ok(FeedSeat { hold, presence })
    }
}
