//! Delete and expire: a client or the time ends a stream (sections 4.2 and 5.4).

use std::sync::Arc;
use std::time::Duration;

use encke_clock::Now;
use encke_log::StreamNo;

use crate::machine::Machine;
use crate::machine::command::Target;
use crate::machine::deadlines::VisitedDeadlines;
use crate::machine::journal::Journal;
use crate::machine::outcome::{Outcome, Refusal};
use crate::stream::Life;

impl Machine {
    /// Ends the streams whose lifetime is over, closes those whose producers are silent, and removes records that are too old. Streams that are not in memory
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
                self.abandon_stream(&stream, now, journal)?;
                self.trim(&stream, now, journal)?;
                self.watch(&stream);
            }
        }
        Ok(())
    }

    /// How long until [`Machine::expire`] has something to do, in milliseconds, if the time of day does not step before.
    pub fn expires_in(&self, now: Now) -> Option<Duration> {
        self.deadlines.wait(now)
    }

    pub(crate) fn delete(
        &mut self,
        target: &mut Target,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let stream = self.live(target, now, journal)?;
        self.end(&stream, journal)?;
        Ok(Outcome::Deleted)
    }
}

/// The most streams that one call of [`Machine::expire`] has loaded.
const LOADS_MAX: usize = 256;
