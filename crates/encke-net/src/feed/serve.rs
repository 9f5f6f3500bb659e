//! What is due to subscribers, and how they go on when it was sent.

use std::sync::Arc;

use encke_log::ReadError;
use encke_stream::Piece;

use super::feeds::{DueDelivery, FeedContext, Feeds, Purpose, Sent, framing};
use super::slot::SlotFeed;
use super::state::FeedKind;
use super::topics::Next;
use crate::connection::close::CloseReason;

impl Feeds {
    /// What is due to a subscriber whose connection takes something, and for which nothing is read.
    pub(crate) fn next(&mut self, index: u32, cx: &mut FeedContext<'_>) -> DueDelivery {
        match cx.slots[index].feed {
            SlotFeed::None => DueDelivery::Nothing,
            SlotFeed::Plain(encoder) => self.next_single(index, (encoder, 0), cx),
            SlotFeed::InTable => self.next_in_table(index, cx),
        }
    }

    /// A connection has taken the first `sent` bytes of the encoding.
    pub(crate) fn sent(
        &mut self,
        index: u32,
        purpose: Purpose,
        sent: usize,
        cx: &mut FeedContext<'_>,
    ) -> Sent {
        if matches!(purpose, Purpose::Ephemeral) {
            return self.sent_ephemeral(index, sent, cx);
        }
        if let Purpose::Long { is_last, .. } = purpose {
            let then = self.sent_piece(index, is_last, sent, cx);
            if is_last && then == Sent::More {
                // Other logs have their turn.
                self.turn(index, cx.slots);
            }
            return then;
        }
        let encoding = self.fan_out.encodings.current();
        let bytes = encoding.run.bytes.len();
        if sent == bytes {
            let (records, weight, ended) = (encoding.records, encoding.weight, encoding.ended);
            if bytes > 0 {
                cx.counts.deliveries += records;
                self.gains(index, weight, cx);
            }
            return match ended {
                true => Sent::Ended,
                false => self.go_on(index, purpose, cx),
            };
        }
        cx.counts.blocked += 1;
        // The subscriber is left behind the last complete event. The rest of the one that is cut goes out before anything
        // else, and counts as delivered then.
        let marks = &encoding.run.marks;
        let whole = marks.partition_point(|mark| mark.end <= sent);
        let left = whole.checked_sub(1).map(|last| marks[last]);
        let start = left.map_or(0, |mark| mark.end);
        // The last mark is behind the last byte.
        let cut = marks.get(whole).copied();
        let ended = encoding.ended && whole + 1 == marks.len();
        let (gained, to, reached) = match cut {
            Some(cut) if sent > start => (encoding.share(cut.end), cut.end, Some(cut.at)),
            _ => (encoding.share(start), sent, None),
        };
        self.set_eager(index, false);
        if let Some(left) = left {
            self.reached(index, left.at, cx.slots);
        }
        let reached = reached.unwrap_or_else(|| self.position(index, cx.slots));
        self.gains(index, gained, cx);
        Sent::Cut {
            from: sent,
            to,
            reached,
            ended: ended && to > sent,
        }
    }

    fn next_in_table(&mut self, index: u32, cx: &mut FeedContext<'_>) -> DueDelivery {
        let Some(state) = self.states.get(index) else {
            return DueDelivery::Nothing;
        };
        match &state.kind {
            FeedKind::Merged(_) => self.next_merged(index, cx),
            FeedKind::Single(feed) => {
                let feed = *feed;
                let encoder = (feed.encoder, feed.option);
                match feed.position {
                    None => self.next_single(index, encoder, cx),
                    Some(position) => self.next_inside(index, position, encoder, cx),
                }
            }
            FeedKind::Poll(position) => {
                let slot = &cx.slots[index];
                match self.fan_out.topics.next(slot.topic, slot.cursor) {
                    _ if position.is_some() => self.next_older(index, cx),
                    Next::Nothing => DueDelivery::Nothing,
                    // It is sent from its file, in pages.
                    Next::Recent(at) if self.fan_out.is_large(slot.topic, at) => {
                        self.next_older(index, cx)
                    }
                    Next::Recent(at) => DueDelivery::Answer(at),
                    Next::Older => self.next_older(index, cx),
                }
            }
        }
    }

    /// A subscriber has all of an encoding, behind which more follows at some time.
    fn go_on(&mut self, index: u32, purpose: Purpose, cx: &mut FeedContext<'_>) -> Sent {
        let more = match purpose {
            Purpose::Recent(last) => self.has_recent(index, last, cx),
            Purpose::Older { more } => self.has_older(index, more, cx),
            Purpose::Merged { more } => self.has_merged(index, more, cx),
            Purpose::MergedOlder(upto) => self.has_merged_older(index, upto, cx),
            Purpose::MembersEnded | Purpose::End | Purpose::Long { .. } => true,
            Purpose::Heartbeat | Purpose::Ephemeral => return Sent::All,
        };
        match more {
            true => Sent::More,
            false => {
                self.is_up_to_date(index, cx);
                Sent::All
            }
        }
    }

    /// A subscriber has had nothing for a while: its stream may leave memory, if nothing has happened there.
    pub(crate) fn rest_stream(&mut self, index: u32, cx: &FeedContext<'_>) {
        let topic = cx.slots[index].topic;
        let now_s = cx.clock.now_s();
        let topics = &mut self.fan_out.topics;
        match self.states.get(index) {
            None => topics.rest(topic, now_s),
            Some(state) => match (&state.kind, state.behind) {
                (FeedKind::Single(_), Some(_)) => topics.lags(topic, now_s),
                (FeedKind::Single(_), None) if state.is_long => topics.lags(topic, now_s),
                (FeedKind::Single(_), None) => topics.rest(topic, now_s),
                (FeedKind::Merged(_) | FeedKind::Poll(_), _) => {}
            },
        }
    }

    /// Encodes what keeps a quiet subscriber's connection alive. False: it is no subscription.
    pub(crate) fn encode_heartbeat(&mut self, index: u32, cx: &mut FeedContext<'_>) -> bool {
        if !self.is_subscription(index, cx.slots) || self.is_long(index) {
            return false;
        }
        let beat = match self.form(index, cx.slots) {
            Some((encoder, _)) => self.encoders.encoder(encoder).heartbeat().to_vec(),
            None => self.merged_heartbeat(index, cx).unwrap_or_default(),
        };
        let at = self.position(index, cx.slots);
        let framing = framing(index, cx.slots);
        let encoding = self.fan_out.encodings.replace();
        encoding.begin();
        encoding.end = at.sequence;
        encoding.add_event(&beat, at);
        encoding.frame(framing);
        true
    }

    /// A reader thread has read for a subscriber.
    pub(crate) fn piece_read(
        &mut self,
        index: u32,
        piece: Result<&Arc<Piece>, &ReadError>,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        self.set_reading(index, false, cx.slots);
        let piece = match piece {
            Ok(piece) => piece,
            Err(ReadError::BelowFloor { .. } | ReadError::NoLongerKept { .. }) => {
                return DueDelivery::Dismiss(CloseReason::NoLongerKept);
            }
            Err(_) => return DueDelivery::Close(CloseReason::Unreadable),
        };
        match self.merged(index) {
            _ if self.is_long(index) => self.next_piece(index, Some(piece), cx),
            Some(_) => self.read_for_merged(index, piece, cx),
            None => self.read_for_single(index, piece, cx),
        }
    }
}
