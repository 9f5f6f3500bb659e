//! What a subscriber needs beside its slot, while it matters.

use encke_log::Sequence;
use encke_protocol::EncoderId;
use encke_stream::Offset;

use super::merged_feed::MergedFeed;
use super::slot::SlotFeed;
use crate::clock::Monotonic;

/// A feed that needs more than its slot.
#[derive(Debug)]
pub(crate) struct FeedState {
    pub(crate) kind: FeedKind,
    /// Since when the subscriber is behind, if it is.
    pub(crate) behind: Option<Behind>,
    /// A reader thread reads or loads for it.
    pub(crate) reading: bool,
    /// The socket took the last piece of older records at once: the next piece may be larger.
    pub(crate) eager: bool,
    /// A long record is on its way to it.
    pub(crate) is_long: bool,
}

// What a lagging subscriber costs here.
const _: () = assert!(size_of::<FeedState>() <= 64);

/// The records that a feed delivers.
#[derive(Debug)]
pub(crate) enum FeedKind {
    /// Those of the stream of its topic.
    Single(SingleFeed),
    /// Those of several streams.
    Merged(Box<MergedFeed>),
    /// The next one of the stream of its topic: a long poll. Its position, if that lies inside a record.
    Poll(Option<Offset>),
}

/// A feed of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleFeed {
    pub(crate) encoder: EncoderId,
    /// The encoder's option.
    pub(crate) option: u64,
    /// The subscriber's position, if that lies inside a record.
    pub(crate) position: Option<Offset>,
}

/// A client's lag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    pub(crate) since: Monotonic,
    /// How much of its streams the subscriber has, in the unit of [`Topic::appended`].
    ///
    /// [`Topic::appended`]: super::topics::Topic::appended
    pub(crate) has: u32,
}

impl FeedState {
    pub(crate) fn new(kind: FeedKind) -> Self {
        FeedState {
            kind,
            behind: None,
            reading: false,
            eager: false,
            is_long: false,
        }
    }

    /// A feed of which the slot has said everything so far.
    pub(super) fn plain(encoder: EncoderId) -> Self {
        FeedState::new(FeedKind::Single(SingleFeed {
            encoder,
            option: 0,
            position: None,
        }))
    }

    /// What its slot says once this entry is removed; `None` while the entry matters.
    pub(super) fn rest(&self) -> Option<SlotFeed> {
        let quiet = self.behind.is_none() && !self.reading && !self.eager && !self.is_long;
        match self.kind {
            FeedKind::Single(SingleFeed {
                encoder,
                option: 0,
                position: None,
            }) if quiet => Some(SlotFeed::Plain(encoder)),
            _ => None,
        }
    }

    /// The position of a subscriber whose slot's cursor stands there.
    pub(super) fn position(&self, cursor: Sequence) -> Offset {
        match &self.kind {
            FeedKind::Single(feed) => feed.position.unwrap_or(Offset::behind(cursor)),
            FeedKind::Poll(position) => position.unwrap_or(Offset::behind(cursor)),
            FeedKind::Merged(_) => Offset::behind(cursor),
        }
    }

    /// Bytes of records that it holds.
    pub(super) fn bytes(&self) -> usize {
        match &self.kind {
            FeedKind::Merged(merged) => merged.bytes(),
            FeedKind::Single(_) | FeedKind::Poll(_) => 0,
        }
    }
}

impl Behind {
    /// How much of `appended` it lacks.
    pub(crate) fn lag(self, appended: u32) -> u32 {
        appended.wrapping_sub(self.has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_rests_once_nothing_of_it_matters() {
        let encoder = crate::synthetic::encoder();
        let mut state = FeedState::plain(encoder);
        assert_eq!(state.rest(), Some(SlotFeed::Plain(encoder)));
        state.reading = true;
        assert_eq!(state.rest(), None);
        state = FeedState::plain(encoder);
        state.eager = true;
        assert_eq!(state.rest(), None);
        let single = |option, position| {
            FeedState::new(FeedKind::Single(SingleFeed {
                encoder,
                option,
                position,
            }))
        };
        assert_eq!(single(7, None).rest(), None, "its option is kept here");
        let inside = Offset {
            sequence: 3,
            units: 1,
        };
        assert_eq!(single(0, Some(inside)).rest(), None);
        assert_eq!(single(0, Some(inside)).position(9), inside);
        assert_eq!(FeedState::new(FeedKind::Poll(None)).rest(), None);
    }
}
