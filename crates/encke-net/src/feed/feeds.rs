//! The feeds of a shard, and what is said about them.

use std::sync::Arc;

use encke_log::StreamNo;
use encke_protocol::{EncoderId, Encoders, Variant};
use encke_stream::{Fetch, Offset, OrderFetch, Sequence, Stream, Views};

use super::congested_streams::CongestedStreams;
use super::encoding::Encoding;
use super::long_delivery::LongDelivery;
use super::merged_feed::{FeedMember, MergedFeed};
use super::queue::FanOut;
use super::seats::FeedSeats;
use super::slot::{Flags, SlotFeed, SlotState, Slots};
use super::state::{FeedKind, FeedState};
use crate::by_slot::BySlot;
use crate::clock::ShardClock;
use crate::connection::close::CloseReason;
use crate::http::framing::ResponseFraming;
use crate::metrics::ShardCounts;

/// The feeds of a shard.
pub(crate) struct Feeds {
    pub(crate) fan_out: FanOut,
    pub(super) states: BySlot<FeedState>,
    /// Long records on their way to subscribers.
    pub(super) long: BySlot<LongDelivery>,
    pub(crate) seats: FeedSeats,
    pub(super) encoders: Arc<Encoders>,
    pub(super) views: Arc<Views>,
    /// The congested streams of all shards.
    pub(super) congested: Arc<CongestedStreams>,
}

/// What feeds are served with.
pub(crate) struct FeedContext<'a> {
    pub(crate) slots: &'a mut Slots,
    pub(crate) clock: &'a ShardClock,
    pub(crate) counts: &'a mut ShardCounts,
}

/// What is due to a subscriber.
#[derive(Debug)]
pub(crate) enum DueDelivery {
    /// Nothing, or something is under way for it.
    Nothing,
    /// A piece of a long record, which waits for its turn.
    Later,
    /// [`Feeds::encoding`] is to be sent; what was sent of it goes to [`Feeds::sent`].
    Send(Purpose),
    /// A part of its stream is to be read. `begins`: nothing was read for it before, so that it can still wait.
    Read { fetch: Fetch, begins: bool },
    /// A part of the order of a log is to be read; `begins` as above.
    ReadOrder { fetch: OrderFetch, begins: bool },
    /// Its stream is to be loaded.
    Load(StreamNo),
    /// A long poll: the recent records from this position of the ring on answer it, unless they have no data.
    Answer(u64),
    /// A long poll: its records must be read.
    ReadForPoll(Fetch),
    /// A long poll: its stream has ended. With `Some` it was closed there.
    EndPoll(Option<Offset>),
    /// Nothing can follow any more: it is closed with the reason.
    Dismiss(CloseReason),
    /// What it read can't be used: it is closed.
    Close(CloseReason),
}

/// What an encoding is sent for, which says how the feed goes on behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Recent records of one stream, of which the last is this one.
    Recent(Sequence),
    /// Older records of one stream; `more` follow.
    Older { more: bool },
    /// A piece of a long record.
    Long { is_last: bool, is_fragment: bool },
    /// The end of a stream.
    End,
    /// Recent records of several streams of a log; perhaps more follow.
    Merged { more: bool },
    /// Older records of several streams of a log, up to this one.
    MergedOlder(Sequence),
    /// The ends of some of several streams.
    MembersEnded,
    /// Nothing: it keeps a quiet connection alive.
    Heartbeat,
    /// Nothing: ephemeral messages.
    Ephemeral,
}

/// How a feed goes on when an encoding was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The subscriber has all of it, and nothing more for now.
    All,
    /// The subscriber has all of it, and is looked at again in the next turn.
    More,
    /// The subscriber has all of it, and nothing follows.
    Ended,
    /// The subscriber is left inside the encoding. Its connection keeps these bytes of it; with them the subscriber is at
    /// `reached`, and `ended` says that nothing follows.
    Cut {
        from: usize,
        to: usize,
        reached: Offset,
        ended: bool,
    },
}

impl Feeds {
    /// No feeds.
    pub(crate) fn new(
        fan_out: FanOut,
        encoders: Arc<Encoders>,
        views: Arc<Views>,
        congested: Arc<CongestedStreams>,
    ) -> Self {
        Feeds {
            fan_out,
            states: BySlot::default(),
            long: BySlot::default(),
            seats: FeedSeats::default(),
            encoders,
            views,
            congested,
        }
    }

    /// The encoding that [`DueDelivery::Send`] is about.
    pub(crate) fn encoding(&self) -> &Encoding {
        self.fan_out.encodings.current()
    }

    /// The streams and patterns of a subscriber of several.
    pub(crate) fn members(&self, index: u32, slots: &Slots) -> Option<&[FeedMember]> {
        match slots[index].feed {
            SlotFeed::InTable => self.merged(index).map(|merged| &*merged.members),
            SlotFeed::None | SlotFeed::Plain(_) => None,
        }
    }

    /// Memory of the patterns of a feed, in bytes.
    pub(crate) fn pattern_bytes(&self, index: u32, slots: &Slots) -> usize {
        match slots[index].feed {
            SlotFeed::InTable => self.merged(index).map_or(0, MergedFeed::pattern_bytes),
            SlotFeed::None | SlotFeed::Plain(_) => 0,
        }
    }

    /// The position of a subscriber.
    pub(crate) fn position(&self, index: u32, slots: &Slots) -> Offset {
        let cursor = slots[index].cursor;
        match self.state(index, slots) {
            Some(state) => state.position(cursor),
            None => Offset::behind(cursor),
        }
    }

    /// Notes that a subscriber has every record up to there.
    pub(crate) fn reached(&mut self, index: u32, reached: Offset, slots: &mut Slots) {
        slots[index].cursor = reached.sequence;
        self.set_position(index, (reached.units > 0).then_some(reached), slots);
    }

    /// Notes whether a reader thread reads or loads for a subscriber. False: there is none.
    pub(crate) fn set_reading(&mut self, index: u32, on: bool, slots: &mut Slots) -> bool {
        match slots[index].feed {
            SlotFeed::None => return false,
            SlotFeed::Plain(_) if !on => return false,
            SlotFeed::Plain(_) | SlotFeed::InTable => {}
        }
        if let Some(state) = self.activate(index, slots) {
            state.reading = on;
        }
        true
    }

    /// Whether something is being read for it.
    pub(crate) fn is_reading(&self, index: u32) -> bool {
        let state = self.states.get(index);
        state.is_some_and(|state| state.reading)
    }

    /// Removes the entry of a feed beside its slot if nothing in it matters any more.
    pub(crate) fn settle(&mut self, index: u32, slots: &mut Slots) {
        if slots[index].feed == SlotFeed::InTable
            && let Some(rest) = self.states.get(index).and_then(FeedState::rest)
        {
            self.states.remove(index);
            slots[index].feed = rest;
        }
    }

    /// Whether it is a subscription: a feed that goes on behind a record.
    pub(crate) fn is_subscription(&self, index: u32, slots: &Slots) -> bool {
        match slots[index].feed {
            SlotFeed::None => false,
            SlotFeed::Plain(_) => true,
            SlotFeed::InTable => {
                let state = self.states.get(index);
                state.is_some_and(|state| !matches!(state.kind, FeedKind::Poll(_)))
            }
        }
    }

    /// In which form a subscriber of one stream gets its records.
    pub(super) fn form(&self, index: u32, slots: &Slots) -> Option<(EncoderId, Variant<'static>)> {
        let (encoder, option) = match slots[index].feed {
            SlotFeed::None => return None,
            SlotFeed::Plain(encoder) => (encoder, 0),
            SlotFeed::InTable => match &self.states.get(index)?.kind {
                FeedKind::Single(feed) => (feed.encoder, feed.option),
                FeedKind::Merged(_) | FeedKind::Poll(_) => return None,
            },
        };
        let kind = self.fan_out.topics[slots[index].topic].kind;
        let name = "";
        Some((encoder, Variant { name, kind, option }))
    }

    /// Bytes of records that a feed holds.
    pub(crate) fn bytes(&self, index: u32, slots: &Slots) -> usize {
        let long = self.long.get(index).map_or(0, LongDelivery::bytes);
        self.state(index, slots).map_or(0, FeedState::bytes) + long
    }

    /// The stream of a subscriber was loaded.
    pub(crate) fn bring(&mut self, index: u32, stream: &Arc<Stream>, slots: &Slots) {
        self.fan_out.topics.bring(slots[index].topic, stream);
    }

    pub(super) fn drop_member(&mut self, slot: u32, cx: &mut FeedContext<'_>) {
        let no = self.fan_out.topics.no(cx.slots[slot].topic);
        self.seats.leave(cx.slots.subscriber(slot), no);
        self.fan_out.topics.unlink(cx.slots, slot, cx.clock.time());
        cx.slots.remove_member(slot);
    }

    pub(super) fn state(&self, index: u32, slots: &Slots) -> Option<&FeedState> {
        // Most subscribers of a round have none, and their slot is at hand.
        match slots[index].feed {
            SlotFeed::InTable => self.states.get(index),
            SlotFeed::None | SlotFeed::Plain(_) => None,
        }
    }

    /// The entry of a feed beside its slot, which is made if there was none.
    pub(super) fn activate(&mut self, index: u32, slots: &mut Slots) -> Option<&mut FeedState> {
        match slots[index].feed {
            SlotFeed::None => return None,
            SlotFeed::Plain(encoder) => {
                self.states.insert(index, FeedState::plain(encoder));
                slots[index].feed = SlotFeed::InTable;
            }
            SlotFeed::InTable => {}
        }
        self.states.get_mut(index)
    }

    pub(super) fn set_position(&mut self, index: u32, to: Option<Offset>, slots: &mut Slots) {
        let state = match to {
            Some(_) => self.activate(index, slots),
            None => self.states.get_mut(index),
        };
        match state.map(|state| &mut state.kind) {
            Some(FeedKind::Single(feed)) => feed.position = to,
            Some(FeedKind::Poll(position)) => *position = to,
            Some(FeedKind::Merged(_)) | None => {}
        }
    }

    pub(super) fn set_eager(&mut self, index: u32, eager: bool) {
        if let Some(state) = self.states.get_mut(index) {
            state.eager = eager;
        }
    }

    pub(super) fn merged(&self, index: u32) -> Option<&MergedFeed> {
        match &self.states.get(index)?.kind {
            FeedKind::Merged(merged) => Some(merged),
            FeedKind::Single(_) | FeedKind::Poll(_) => None,
        }
    }

    pub(super) fn merged_mut(&mut self, index: u32) -> Option<&mut MergedFeed> {
        match &mut self.states.get_mut(index)?.kind {
            FeedKind::Merged(merged) => Some(merged),
            FeedKind::Single(_) | FeedKind::Poll(_) => None,
        }
    }
}

/// How the records of a subscriber are framed.
pub(crate) fn framing(index: u32, slots: &Slots) -> ResponseFraming {
    match slots[index].state {
        SlotState::Exchange if slots[index].flags.has(Flags::MESSAGES) => {
            let deflate = slots[index].flags.has(Flags::DEFLATE);
            ResponseFraming::Messages { deflate }
        }
        SlotState::Exchange => ResponseFraming::Frames,
        _ => slots[index].framing(),
    }
}
