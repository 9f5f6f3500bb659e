//! What feeds count for while they last: the quota of subscriptions of their callers, and places among the members of streams.

use encke_access::SubscriberHold;
use encke_log::StreamNo;
use encke_presence::NewMember;
use encke_protocol::PresenceSeat;

use super::feeds::Feeds;
use super::slot::Slots;
use crate::chunked_vec::ChunkedVec;

/// What one feed counts for, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct FeedSeat {
    pub(crate) hold: Option<SubscriberHold>,
    pub(crate) presence: Option<Box<PresenceSeat>>,
}

/// The seats of feeds, by their slots. Each part takes memory only where there are quotas, or streams with members.
#[derive(Debug, Default)]
pub(super) struct FeedSeats {
    holds: ChunkedVec<Option<SubscriberHold>>,
    presence: ChunkedVec<Option<Box<PresenceSeat>>>,
}

impl FeedSeats {
    fn set(&mut self, index: u32, seat: FeedSeat) {
        put(&mut self.holds, index, seat.hold);
        put(&mut self.presence, index, seat.presence);
    }

    fn take(&mut self, index: u32) -> FeedSeat {
        let hold = self.holds.get_mut(index).and_then(Option::take);
        let presence = self.presence.get_mut(index).and_then(Option::take);
        FeedSeat { hold, presence }
    }
}

impl Feeds {
    /// Sets what a feed counts for.
    pub(crate) fn set_seat(&mut self, index: u32, seat: FeedSeat) {
        self.seats.set(index, seat);
    }

    /// Takes what a feed counts for. A feed that is over counts for nothing, whatever its connection has still to send.
    pub(crate) fn take_seat(&mut self, index: u32) -> FeedSeat {
        self.seats.take(index)
    }

    /// Who the subscriber of a feed is among the members of its streams.
    pub(crate) fn member(&self, index: u32) -> Option<&NewMember> {
        let seat = self.seats.presence.get(index)?.as_ref()?;
        seat.member.as_ref()
    }

    /// A round has come to a subscriber of a topic. If the stream was deleted, the subscriber leaves its members, although it may have
    /// records to receive still: the name may have a successor.
    pub(crate) fn leave_deleted(&mut self, topic: u32, index: u32, slots: &Slots) {
        if self.fan_out.topics.is_deleted(topic) {
            let no = self.fan_out.topics.no(topic);
            self.leave_stream(slots.subscriber(index), no);
        }
    }

    /// A subscriber leaves the members of a stream.
    pub(super) fn leave_stream(&mut self, index: u32, no: StreamNo) {
        if let Some(Some(seat)) = self.seats.presence.get_mut(index) {
            seat.leave(no);
        }
    }
}

fn put<T>(table: &mut ChunkedVec<Option<T>>, index: u32, entry: Option<T>) {
    if entry.is_none() && table.len() <= index as usize {
        return;
    }
    while table.len() <= index as usize {
        table.push(None);
    }
    table[index] = entry;
}
