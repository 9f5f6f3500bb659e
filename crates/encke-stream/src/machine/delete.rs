//! Delete and expire: a stream ends, and with it the sources that existed for it alone (sections 4.2 and 5.4).

use std::sync::Arc;

use encke_log::StreamNo;

use crate::at_rest::stored::StreamEnds;
use crate::machine::Machine;
use crate::machine::command::Target;
use crate::machine::deadlines::{DueTimes, VisitedDeadlines};
use crate::machine::journal::Journal;
use crate::machine::outcome::{Outcome, Refusal};
use crate::stream::record::Change;
use crate::stream::{Life, Stream};
use crate::{Lifetime, Now};

impl Machine {
    /// Ends the streams whose lifetime is over, and removes records that are too old. Streams that are not in memory
    /// end in a later call: `load` is called for some of them.
    ///
    /// # Errors
    /// The journal refused. The remaining streams keep their deadlines.
    pub fn expire(
        &mut self,
        now: Now,
        journal: &mut dyn Journal,
        load: &mut dyn FnMut(StreamNo),
    ) -> Result<(), Refusal> {
        let mut loads = 0;
        let mut visited = VisitedDeadlines::default();
        while loads < LOADS_MAX
            && let Some(no) = self.deadlines.next_due(&mut visited, now)
        {
            let made = || self.timed.get(&no).map(Arc::clone);
            let Some(stream) = self.view.timed(no).or_else(made) else {
                load(no);
                loads += 1;
                continue;
            };
            if self.view.has_expired(&stream, now) && stream.state().next.life == Life::Live {
                self.end(&stream, journal)?;
            } else {
                if stream.expired(now) {
                    // It has live readers, who read until now.
                    stream.touch(now);
                }
                self.trim(&stream, now, journal)?;
                self.watch(&stream);
            }
        }
        Ok(())
    }

    /// How long until [`Machine::expire`] has something to do, in milliseconds, if the time of day does not step before.
    pub fn expires_in_ms(&self, now: Now) -> Option<u64> {
        self.deadlines.wait_ms(now)
    }

    pub(crate) fn delete(
        &mut self,
        target: &Target,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let stream = self.live(target, now, journal)?;
        self.end(&stream, journal)?;
        Ok(Outcome::Deleted)
    }

    /// Ends a stream, and the sources that existed for it alone.
    pub(crate) fn end(
        &mut self,
        stream: &Arc<Stream>,
        journal: &mut dyn Journal,
    ) -> Result<(), Refusal> {
        journal.record(stream, &Change::Delete, Vec::new())?;
        let facts = self.change(stream, |facts| {
            facts.closed = true;
            facts.life = if facts.forks == 0 {
                Life::Ended
            } else {
                Life::Kept
            };
        });
        // It has no deadline any more.
        self.watch(stream);
        if facts.life == Life::Ended {
            self.release(stream);
        }
        Ok(())
    }

    /// Sets the deadline of a stream to its current end, or to the moment at which a record is too old. Reads and
    /// writes move the end.
    pub(crate) fn watch(&mut self, stream: &Arc<Stream>) {
        let mut state = stream.state();
        let due = stream.due(&state);
        let before = std::mem::replace(&mut state.watched, due);
        drop(state);
        self.deadlines.replace(stream.no, before, due);
    }

    /// Sets the deadline of a stream that is in the store only.
    pub(crate) fn watch_stored(&mut self, no: StreamNo, ends: StreamEnds) {
        // A start counts as a read.
        let sliding = ends.ttl_s.map(|ttl_s| Lifetime::Sliding { ttl_s });
        let slid_ms = sliding.and_then(|lifetime| lifetime.ends_ms(self.started_ms));
        let ends_ms = ends.ends_ms.max(slid_ms);
        let due = match ends.ttl_s {
            Some(_) => DueTimes::new(ends_ms, ends.trims_ms),
            None => DueTimes::new(None, ends_ms.into_iter().chain(ends.trims_ms).min()),
        };
        self.deadlines.add(no, due);
    }

    /// Frees the name of an ended stream and releases its source.
    fn release(&mut self, ended: &Arc<Stream>) {
        let mut ended = Arc::clone(ended);
        loop {
            self.names.insert(ended.name.clone(), None);
            let Some(source) = &ended.source else { return };
            let source = Arc::clone(&source.stream);
            let facts = self.change(&source, |facts| {
                facts.forks -= 1;
                if facts.forks == 0 && facts.life == Life::Kept {
                    facts.life = Life::Ended;
                }
            });
            if facts.life != Life::Ended {
                return;
            }
            ended = source;
        }
    }
}

/// The most streams that one call of [`Machine::expire`] has loaded.
const LOADS_MAX: usize = 256;
