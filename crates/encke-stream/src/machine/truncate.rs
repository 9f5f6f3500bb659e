//! Truncation: the records of a stream up to a floor are removed, by a request or by the stream's retention.
//!
//! A record raises the floor, so that a replay raises it at the same place. Readers see the floor with the commit. Then
//! the log removes the records, unless forks share them: in that case it does so when the last fork ends.

use std::sync::Arc;

use encke_clock::{Now, WallTime};
use encke_log::{Sequence, StreamNo};

use crate::machine::command::Target;
use crate::machine::journal::Journal;
use crate::machine::outcome::{Outcome, Refusal};
use crate::machine::{Machine, Undo};
use crate::stream::record::Change;
use crate::stream::retention::Bucket;
use crate::stream::{Life, Stream};
use crate::{Offset, Retention};

impl Machine {
    /// Removes everything before a position, or everything.
    pub(crate) fn truncate(
        &mut self,
        target: &mut Target,
        before: Option<Offset>,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let stream = self.live(target, now, journal)?;
        let facts = stream.state().next;
        let asked = before.unwrap_or(facts.tail);
        if asked > facts.tail {
            return Err(Refusal::TruncateBeyondTail {
                tail: facts.tail,
                asked,
            });
        }
        // Nothing before its first record belongs to the stream, and the floor never moves back.
        if asked.sequence > facts.floor && asked.sequence >= stream.first() {
            self.raise(&stream, asked.sequence, journal)?;
        }
        self.renew(&stream, now, journal)?;
        let floor = stream.state().next.floor;
        Ok(Outcome::Truncated {
            floor: Offset::behind(floor),
            tail: facts.tail,
        })
    }

    /// Counts a record that was just decided, and removes records past the stream's limits. If the floor cannot be
    /// raised now, the next record raises it.
    pub(crate) fn count(
        &mut self,
        stream: &Arc<Stream>,
        sequence: Sequence,
        bytes: usize,
        now: Now,
        journal: &mut dyn Journal,
    ) {
        if !stream.keeps_part() {
            return;
        }
        let mut state = stream.state();
        let record = Bucket::record(sequence, now.wall, bytes);
        let buckets = state.buckets_mut();
        let undo = buckets.add(record, &stream.retention());
        let first = buckets.is_one();
        drop(state);
        self.undo.push(Undo::Buckets(Arc::clone(stream), undo));
        match &mut self.replica {
            None => {
                let _ = self.trim(stream, now, journal);
            }
            Some(replica) => replica.counted.push(Arc::clone(stream)),
        }
        if first {
            self.watch(stream);
        }
    }

    /// Removes the records that are past the stream's retention.
    pub(crate) fn trim(
        &mut self,
        stream: &Arc<Stream>,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<(), Refusal> {
        match stream.trim_due(now.wall).map(|(floor, _)| floor) {
            Some(floor) => self.raise(stream, floor, journal),
            None => Ok(()),
        }
    }

    pub(crate) fn raise(
        &mut self,
        stream: &Arc<Stream>,
        floor: Sequence,
        journal: &mut dyn Journal,
    ) -> Result<(), Refusal> {
        journal.record(stream, &Change::Truncate { floor }, Vec::new())?;
        self.change(stream, |facts| facts.floor = floor);
        if stream.keeps_part() {
            let undo = stream.state().buckets_mut().cut(floor);
            self.undo.push(Undo::Buckets(Arc::clone(stream), undo));
        }
        Ok(())
    }

    /// The streams whose records up to a sequence the log can remove, since the last call.
    pub fn take_floors(&mut self) -> Vec<(StreamNo, Sequence)> {
        std::mem::take(&mut self.floors)
    }

    /// Has the log remove the records below the floor of a restored stream.
    pub(crate) fn mark_floor(&mut self, stream: &Stream) {
        let facts = stream.facts();
        if facts.floor > 0 && facts.forks == 0 {
            self.floors.push((stream.no, facts.floor));
        }
    }
}

impl Stream {
    /// The last of its records that are past its retention, and since when: 1970 if by number or size.
    pub(crate) fn trim_due(&self, now: WallTime) -> Option<(Sequence, WallTime)> {
        let state = self.state();
        let live = state.next.life == Life::Live;
        let buckets = state.buckets.as_ref().filter(|_| live)?;
        let retention = self.retention();
        let floor = buckets.due(&retention, now)?;
        let ageless = Retention {
            age_s: None,
            ..retention
        };
        let by_age = buckets.due(&ageless, now).is_none_or(|other| other < floor);
        let due = by_age
            .then(|| buckets.too_old_at(floor, &retention))
            .flatten();
        Some((floor, due.unwrap_or_default()))
    }

    /// Counts the records that a stream has at its creation.
    pub(crate) fn count_first(&self, bytes: usize, now: WallTime) {
        if !self.keeps_part() {
            return;
        }
        let retention = self.retention();
        let mut state = self.state();
        let floor = state.next.floor;
        let buckets = state.buckets_mut();
        if let Some(source) = &self.source
            && source.at.sequence > floor
        {
            buckets.add(Bucket::inherited(source.at.sequence, now), &retention);
        }
        if bytes > 0 {
            buckets.add(Bucket::record(self.no, now, bytes), &retention);
        }
    }
}
