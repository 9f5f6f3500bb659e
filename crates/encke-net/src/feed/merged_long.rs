//! A long record on its way to a subscriber of several streams.

use encke_log::Sequence;
use encke_protocol::long_record::{LongRecord, RecordFacts, RecordForm};
use encke_protocol::{AheadStream, MergeEncoder, MergedHead, StreamEnd};
use encke_stream::{Item, MediaKind, Offset};

use super::encoding::{BehindLong, LongStart};
use super::merged_feed::MergedFeed;
use super::withheld::WithheldCharacter;
use crate::http::framing::ResponseFraming;

/// A long record of one of several streams.
#[derive(Debug)]
pub(crate) struct MergedLong {
    pub(super) start: LongStart,
    /// The index of the member that has the record.
    pub(super) member: usize,
    pub(super) name: Box<str>,
    pub(super) kind: MediaKind,
    /// The subscriber's position in the log before the record.
    pub(super) before: Sequence,
    /// Another member has the same record, and gets it later.
    pub(super) is_shared: bool,
    pub(super) also: AlsoSaid,
    /// The withheld character behind the record, if the record changes it.
    pub(super) change: Option<WithheldCharacter>,
    /// Events behind the record, once its form is known.
    pub(super) events: Vec<u8>,
}

/// Statements of a record besides its data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AlsoSaid {
    pub(crate) asks_stop: bool,
    /// The stream of a pattern ends; the feed continues.
    pub(crate) ends_within: Option<StreamEnd>,
    /// The member ends.
    pub(crate) ends: Option<StreamEnd>,
}

impl MergedLong {
    /// A record of a member, for a subscriber that has everything up to `before` of its log.
    pub(super) fn new(
        feed: &MergedFeed,
        (member, before): (usize, Sequence),
        (name, kind): (&str, MediaKind),
        item: &Item<'_>,
    ) -> Self {
        let mut start = LongStart::new(item, &[]);
        let place = feed.members[member].place;
        if let Some(withheld) = feed.withheld_of(place, before) {
            start.before = withheld;
        }
        MergedLong {
            start,
            member,
            name: name.into(),
            kind,
            before,
            is_shared: false,
            also: AlsoSaid::default(),
            change: None,
            events: Vec::new(),
        }
    }

    /// The record before it is examined. Of the streams of a pattern nothing is withheld.
    pub(super) fn record(&self, feed: &MergedFeed) -> LongRecord {
        let withholds = feed.members[self.member].stream().is_some();
        LongRecord::new(self.kind, &self.start.item(), self.start.before, withholds)
    }

    /// The record's form for its subscriber.
    pub(super) fn form(
        &mut self,
        feed: &MergedFeed,
        encoder: &dyn MergeEncoder,
        facts: &RecordFacts,
        framing: ResponseFraming,
    ) -> RecordForm {
        let sequence = self.start.sequence;
        let member = &feed.members[self.member];
        let is_text = self.kind == MediaKind::Text && member.stream().is_some();
        if is_text {
            let (before, place) = (self.start.before, member.place);
            self.change = WithheldCharacter::behind(facts, before, sequence, place);
        }
        let after = match self.is_shared {
            true => sequence - 1,
            false => sequence,
        };
        let mut ahead = feed.ahead(&feed.all_after(after));
        if self.is_shared {
            ahead.push(AheadStream {
                log: feed.log(),
                at: Offset::behind(sequence),
                place: member.place,
            });
        }
        let at = feed.position(feed.all_after(after), ahead, self.change.as_slice());
        let (label, name) = (&*feed.label, &*self.name);
        let at = at.merged();
        if self.also.asks_stop {
            encoder.stop_asked(label, name, at, &mut self.events);
            framing.separate(&mut self.events);
        }
        if let Some(end) = self.also.ends_within {
            encoder.ended(label, name, end, Some(at), &mut self.events);
            framing.separate(&mut self.events);
        }
        let facts = *facts;
        encoder.form(label, &MergedHead { name, facts, at })
    }

    /// The events behind the record in its last piece.
    pub(super) fn behind(&self) -> BehindLong {
        let reached = match self.is_shared {
            true => self.before,
            false => self.start.sequence,
        };
        BehindLong {
            events: self.events.clone(),
            ends: false,
            reached: Offset::behind(reached),
        }
    }

    /// The subscriber gets nothing more of the record.
    pub(super) fn end(&self, sequence: Sequence, feed: &mut MergedFeed) {
        feed.note_withheld(self.change.as_slice(), self.before);
        let member = &mut feed.members[self.member];
        member.from = member.from.max(Offset::behind(sequence));
        if let Some(end) = self.also.ends {
            member.end = Some((sequence, end));
        }
    }
}
