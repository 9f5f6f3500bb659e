//! Begins and ends feeds.

use std::sync::Arc;

use encke_protocol::{EncoderId, Feed, MergeSource, SourceKind};
use encke_stream::{Offset, Stream};

use super::awaited::AwaitedName;
use super::feeds::{FeedContext, Feeds};
use super::merged_feed::{FeedMember, MergedFeed};
use super::seats::FeedSeat;
use super::slot::{SlotFeed, Slots};
use super::state::{FeedKind, FeedState, SingleFeed};

impl Feeds {
    /// Begins a feed, which counts for `seat` until it ends.
    pub(crate) fn subscribe(
        &mut self,
        index: u32,
        feed: Feed,
        seat: FeedSeat,
        cx: &mut FeedContext<'_>,
    ) {
        cx.counts.subscribers += 1;
        self.seats.set(index, seat);
        match feed {
            Feed::Single {
                stream,
                from,
                encoder,
                option,
            } => self.follow(index, &stream, from, (encoder, option), cx.slots),
            Feed::Awaited {
                name,
                group,
                at,
                encoder,
                option,
            } => {
                let name = AwaitedName { name, group };
                let topic = self.fan_out.topics.intern_awaited(&name, at);
                self.begin_single(index, Offset::behind(at), None, (encoder, option), cx.slots);
                self.fan_out.topics.link(cx.slots, topic, index);
            }
            Feed::Merged {
                sources,
                after,
                generations,
                names,
                encoder,
                label,
                ended,
            } => {
                let log = sources.first().map_or(0, |source| source.kind.log());
                cx.slots[index].cursor = after[log];
                let members = self.link_members(index, sources, cx.slots);
                let scope = (generations, names);
                let merged = MergedFeed::new(encoder, label, members, after, scope, ended);
                cx.counts.pattern_bytes += merged.pattern_bytes() as i64;
                self.enter(index, FeedKind::Merged(Box::new(merged)), cx.slots);
            }
        }
    }

    /// Begins a long poll.
    pub(crate) fn poll(
        &mut self,
        index: u32,
        stream: &Arc<Stream>,
        from: Offset,
        cx: &mut FeedContext<'_>,
    ) {
        cx.counts.subscribers += 1;
        cx.slots[index].cursor = from.sequence;
        // The protocol has seen that nothing lies behind it.
        let position = (from.units > 0).then_some(from);
        self.enter(index, FeedKind::Poll(position), cx.slots);
        self.link(index, stream, cx.slots);
    }

    /// Ends a feed, if there is one.
    pub(crate) fn unsubscribe(&mut self, index: u32, cx: &mut FeedContext<'_>) {
        if cx.slots[index].feed == SlotFeed::None {
            return;
        }
        drop(self.seats.take(index));
        cx.counts.pattern_bytes -= self.pattern_bytes(index, cx.slots) as i64;
        self.end_lag(index, cx);
        let state = self.states.remove(index);
        self.long.remove(index);
        cx.slots[index].feed = SlotFeed::None;
        cx.counts.subscribers -= 1;
        if let Some(FeedKind::Merged(merged)) = state.map(|state| state.kind) {
            for member in merged.members {
                self.drop_member(member.slot, cx);
            }
        }
        self.fan_out.topics.unlink(cx.slots, index, cx.clock.time());
    }

    fn follow(
        &mut self,
        index: u32,
        stream: &Arc<Stream>,
        from: Offset,
        (encoder, option): (EncoderId, u64),
        slots: &mut Slots,
    ) {
        let tail = stream.facts().tail;
        // Only the log knows positions inside a record.
        let position = (from.units > 0 || tail.units > 0).then_some(from);
        self.begin_single(index, from, position, (encoder, option), slots);
        self.link(index, stream, slots);
    }

    fn begin_single(
        &mut self,
        index: u32,
        from: Offset,
        position: Option<Offset>,
        (encoder, option): (EncoderId, u64),
        slots: &mut Slots,
    ) {
        slots[index].cursor = from.sequence;
        if option == 0 && position.is_none() {
            slots[index].feed = SlotFeed::Plain(encoder);
        } else {
            let single = SingleFeed {
                encoder,
                option,
                position,
            };
            self.enter(index, FeedKind::Single(single), slots);
        }
    }

    fn link_members(
        &mut self,
        index: u32,
        sources: Vec<MergeSource>,
        slots: &mut Slots,
    ) -> Vec<FeedMember> {
        let mut members = Vec::with_capacity(sources.len());
        for source in sources {
            let topics = &mut self.fan_out.topics;
            let topic = match &source.kind {
                SourceKind::Stream(stream) => topics.intern(stream),
                SourceKind::Pattern { pattern, log } => {
                    topics.intern_pattern(&pattern.names, usize::from(*log))
                }
            };
            let slot = slots.add_member(index);
            self.fan_out.topics.link(slots, topic, slot);
            members.push(FeedMember::new(slot, source));
        }
        members
    }

    /// Puts a feed on the list of a stream's topic.
    fn link(&mut self, index: u32, stream: &Arc<Stream>, slots: &mut Slots) {
        let topic = self.fan_out.topics.intern(stream);
        self.fan_out.topics.link(slots, topic, index);
    }

    fn enter(&mut self, index: u32, kind: FeedKind, slots: &mut Slots) {
        self.states.insert(index, FeedState::new(kind));
        slots[index].feed = SlotFeed::InTable;
    }
}
