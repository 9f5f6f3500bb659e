//! The life of streams: which stream has a name, how a lifetime begins again, and how a stream ends (sections 4.2 and 5.4).

use std::sync::Arc;

use encke_clock::Now;

use super::state::Machine;
use crate::machine::command::Target;
use crate::machine::journal::Journal;
use crate::machine::outcome::Refusal;
use crate::stream::number::log_of;
use crate::stream::record::Change;
use crate::stream::{Life, Stream};
use crate::view::lookup::Lookup;

impl Machine {
    /// The stream of a command, if clients may use it.
    pub(crate) fn live(
        &mut self,
        target: &mut Target,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Arc<Stream>, Refusal> {
        let found = match target.take_known() {
            // If the stream has ended, the command fails, even if another stream has the name now: the client did not
            // know that stream. Commands are sent to the log of their stream.
            Some(stream) if log_of(stream.no) != self.place.log => return Err(Refusal::NameBusy),
            Some(stream) => self.check_life(stream, now, journal)?,
            None => match self.find(target.name(), now, journal)? {
                NameHolder::Live(stream) | NameHolder::Kept(stream) if !target.admits(&stream) => {
                    NameHolder::Free
                }
                admitted => admitted,
            },
        };
        match found {
            NameHolder::Live(stream) => Ok(stream),
            NameHolder::Kept(_) => Err(Refusal::Gone),
            NameHolder::Free => Err(Refusal::NotFound),
        }
    }

    /// The stream that has the name now. A stream whose lifetime is over ends here.
    pub(crate) fn find(
        &mut self,
        name: &str,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<NameHolder, Refusal> {
        let stream = match self.names.get(name) {
            Some(given) => given.clone(),
            None => match self.view.look(name) {
                Some(Lookup::Stream(stream)) => Some(stream),
                Some(Lookup::Free(_)) => None,
                // The name's home is another log, and this log never had streams from other homes.
                None if self.place.is_stray(name) && !self.view.has_strays() => None,
                None => return Err(Refusal::Evicted),
            },
        };
        match stream {
            Some(stream) => self.check_life(stream, now, journal),
            None => Ok(NameHolder::Free),
        }
    }

    fn check_life(
        &mut self,
        stream: Arc<Stream>,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<NameHolder, Refusal> {
        if self.view.has_expired(&stream, now) && stream.state().next.life == Life::Live {
            self.end(&stream, journal)?;
        }
        let life = stream.state().next.life;
        Ok(match life {
            Life::Live => NameHolder::Live(stream),
            Life::Kept => NameHolder::Kept(stream),
            Life::Ended => NameHolder::Free,
        })
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

    /// Begins a sliding lifetime again after a command that made no record with the stream's data. On a node of a fleet that
    /// is a record of its own, at most one in a sixteenth of the lifetime.
    pub(crate) fn renew(
        &mut self,
        stream: &Arc<Stream>,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<(), Refusal> {
        if self.replica.is_none() {
            stream.touch(now);
        } else if stream.is_renewal_due(now) {
            journal.record(stream, &Change::Renew, Vec::new())?;
            self.change(stream, |_| {});
            stream.touch(now);
        }
        Ok(())
    }
}

/// The holder of a name.
pub(crate) enum NameHolder {
    /// A stream that clients may use.
    Live(Arc<Stream>),
    /// A deleted stream that forks still read.
    Kept(Arc<Stream>),
    /// No stream.
    Free,
}
