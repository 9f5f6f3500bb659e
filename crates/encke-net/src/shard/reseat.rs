//! The feeds of a channel count for its caller: when that changes, they count for the new one, or end.

use encke_access::CallerTag;
use encke_clock::SteadyTime;
use encke_presence::NewMember;
use encke_protocol::{Response, problem};

use super::connections::Connections;
use super::state::ShardContext;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::Feeds;
use crate::feed::seats::FeedSeat;
use crate::feed::slot::SlotFeed;

/// Counts the feeds of a channel for its new caller, which is this member of streams. A feed that exceeds a bound of the new caller ends.
pub(super) fn reseat(
    channel: ExchangeId,
    member: Option<&NewMember>,
    (feeds, connections): (&mut Feeds, &mut Connections),
    context: &ShardContext,
) {
    let tag = connections.clients.callers.tag(channel).cloned();
    for index in connections.feeds_of_channel(channel.slot()) {
        // A feed that begins after this has counted for the new caller.
        if connections.slots[index].feed == SlotFeed::None {
            continue;
        }
        let now = connections.clock.time().steady;
        let seat = feeds.seats.take(index);
        match seat_of(seat, (tag.as_ref(), member), context, now) {
            Ok(seat) => feeds.seats.set(index, seat),
            Err(refused) => {
                let connection = connections.slots.connection_of(index);
                let feed = ExchangeId::new(index);
                connections.handle(connection, |connection, cx| {
                    connection.refuse_feed((channel, feed), refused, cx);
                });
            }
        }
    }
}

/// The seat of a feed for another caller. A part that stays the same is not given up, so that other members see no change.
fn seat_of(
    seat: FeedSeat,
    (tag, member): (Option<&CallerTag>, Option<&NewMember>),
    context: &ShardContext,
    now: SteadyTime,
) -> Result<FeedSeat, Response> {
    let hold = match context.router.access().zip(tag) {
        None => None,
        Some((access, tag)) => {
            let moved = access.move_subscriber(seat.hold, tag, now);
            moved.map_err(|exceeded| problem::quota_exceeded(&exceeded))?
        }
    };
    let presence = match seat.presence {
        Some(seat) if seat.member.as_ref() != member => {
            let streams = context.router.presence();
            Some(Box::new(streams.enter_as(&seat, member.cloned(), now)?))
        }
        same => same,
    };
    Ok(FeedSeat { hold, presence })
}
