//! Delete and expire: a stream ends, and with it the sources that were kept for it alone
//! (sections 4.2 and 5.4).

use std::sync::{Arc, Weak};

use crate::command::{Outcome, Refusal, Target};
use crate::machine::{Journal, Machine};
use crate::record::Change;
use crate::stream::{Life, Stream};

impl Machine {
    /// Ends the streams whose lifetime is over.
    ///
    /// # Errors
    /// The journal refused; the streams that are left keep their deadlines.
    pub fn expire(&mut self, now_ms: u64, journal: &mut dyn Journal) -> Result<(), Refusal> {
        while let Some(deadline) = self.deadlines.peek()
            && deadline.at_ms <= now_ms
        {
            let stream = deadline
                .stream
                .upgrade()
                .filter(|stream| stream.state().next.life == Life::Live);
            if let Some(stream) = &stream
                && stream.expired(now_ms)
            {
                self.end(stream, journal)?;
                self.deadlines.pop();
                continue;
            }
            self.deadlines.pop();
            if let Some(touched) = &stream {
                self.watch(touched);
            }
        }
        Ok(())
    }

    /// When [`Machine::expire`] has something to do next, in milliseconds since 1970.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.peek().map(|deadline| deadline.at_ms)
    }

    pub(crate) fn delete(
        &mut self,
        target: &Target,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let stream = self.live(target, now_ms, journal)?;
        self.end(&stream, journal)?;
        Ok(Outcome::Deleted)
    }

    /// Ends a stream, and the sources that were kept for it alone.
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
        if facts.life == Life::Ended {
            self.release(stream);
        }
        Ok(())
    }

    /// Remembers when a stream's lifetime may be over.
    pub(crate) fn watch(&mut self, stream: &Arc<Stream>) {
        if let Some(at_ms) = stream.ends_ms() {
            self.deadlines.push(Deadline {
                at_ms,
                stream: Arc::downgrade(stream),
            });
        }
    }

    /// Frees an ended stream's name and lets go of its source.
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

/// When a stream's lifetime may be over: reads and writes since then may have moved its end. The
/// earliest is the greatest, so that a heap has it on top.
#[derive(Debug)]
pub(crate) struct Deadline {
    at_ms: u64,
    stream: Weak<Stream>,
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.at_ms == other.at_ms
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at_ms.cmp(&self.at_ms)
    }
}
