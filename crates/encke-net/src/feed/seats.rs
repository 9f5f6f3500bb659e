//! Seats: while a feed lasts, it counts for the quota of its caller, and its subscriber is among the members of its streams.

use encke_access::SubscriberHold;
use encke_log::StreamNo;
use encke_presence::NewMember;
use encke_protocol::PresenceSeat;

use crate::chunked_vec::ChunkedVec;

/// The seat of one feed, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct FeedSeat {
    pub(crate) hold: Option<SubscriberHold>,
    pub(crate) presence: Option<Box<PresenceSeat>>,
}

/// The seats of feeds, by their slots. Each part takes memory only where there are quotas, or streams with members.
#[derive(Debug, Default)]
pub(crate) struct FeedSeats {
    holds: ChunkedVec<Option<SubscriberHold>>,
    presence: ChunkedVec<Option<Box<PresenceSeat>>>,
}

impl FeedSeats {
    /// Sets the seat of a feed.
    pub(crate) fn set(&mut self, index: u32, seat: FeedSeat) {
        put(&mut self.holds, index, seat.hold);
        put(&mut self.presence, index, seat.presence);
    }

    /// Takes the seat of a feed. A feed that is over has none, even if its connection has bytes to send.
    pub(crate) fn take(&mut self, index: u32) -> FeedSeat {
        let hold = self.holds.get_mut(index).and_then(Option::take);
        let presence = self.presence.get_mut(index).and_then(Option::take);
        FeedSeat { hold, presence }
    }

    /// Who the subscriber of a feed is among the members of its streams.
    pub(crate) fn member(&self, index: u32) -> Option<&NewMember> {
        let seat = self.presence.get(index)?.as_ref()?;
        seat.member.as_ref()
    }

    /// A subscriber leaves the members of a stream.
    pub(crate) fn leave(&mut self, index: u32, no: StreamNo) {
        if let Some(Some(seat)) = self.presence.get_mut(index) {
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
