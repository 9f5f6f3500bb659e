//! The machine: how changes to streams are decided, published and undone.
//!
//! The rules are in `create.rs`, `append.rs`, `truncate.rs` and `delete.rs`; those for producers in `stream/writers.rs`.
//!
//! `command.rs` goes in, `outcome.rs` comes out, `journal.rs` takes the records, `deadlines.rs` knows what is due.

pub(crate) mod append;
pub(crate) mod command;
pub(crate) mod create;
pub(crate) mod deadlines;
pub(crate) mod delete;
pub(crate) mod journal;
pub(crate) mod outcome;
pub(crate) mod truncate;

use std::collections::HashMap;
use std::sync::Arc;

use encke_log::{Sequence, StreamNo};

use crate::at_rest::unstored::Unstored;
use crate::machine::command::{Command, Target};
use crate::machine::deadlines::Deadlines;
use crate::machine::journal::Journal;
use crate::machine::outcome::{Outcome, Refusal};
use crate::replicated::Replica;
use crate::stream::number::{LogPlace, log_of};
use crate::stream::retention::BucketsUndo;
use crate::stream::writers::Replaced;
use crate::stream::{Facts, Life, Stream};
use crate::view::View;
use crate::view::lookup::Lookup;
use crate::view::views::Views;
use crate::{AckLevel, Now};

/// The streams and the rules by which they change: commands and the time in, records out.
///
/// A command is judged by the state of the streams after all commands before it, committed or not. Its changes go to a
/// [`Journal`] first. [`Machine::publish`] shows readers the changes since its last call; [`Machine::abandon`] undoes
/// them.
#[derive(Debug)]
pub struct Machine {
    pub(crate) view: Arc<View>,
    pub(crate) limits: Limits,
    /// The level of streams whose creators name none.
    pub(crate) level: AckLevel,
    /// Names that the batch has given (`Some`) or freed (`None`).
    pub(crate) names: HashMap<Box<str>, Option<Arc<Stream>>>,
    /// The state before each change of the batch, in order.
    pub(crate) undo: Vec<Undo>,
    /// The streams that end by themselves or remove records, in memory or not.
    pub(crate) deadlines: Deadlines,
    /// Streams that the batch has created and that end by themselves.
    pub(crate) timed: HashMap<StreamNo, Arc<Stream>>,
    pub(crate) changed: Unstored,
    /// Streams with removed records, up to a sequence, since the last [`Machine::take_floors`].
    pub(crate) floors: Vec<(StreamNo, Sequence)>,
    /// The index of the log, and the number of logs.
    pub(crate) place: LogPlace,
    /// The streams of all logs, where there are several.
    pub(crate) siblings: Option<Arc<Views>>,
    /// Names that the batch has given and that no other log may give.
    pub(crate) claimed: Vec<Box<str>>,
    /// The part of the view that the next sweep visits.
    pub(crate) swept_next: usize,
    /// When the streams were restored, by the steady clock. Counts as a read.
    pub(crate) started_ms: u64,
    /// What a node of a fleet has beside; None for a server by itself.
    pub(crate) replica: Option<Replica>,
}

/// Bounds on the state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Producers that a stream remembers, at least 1. Above it, the stream forgets the one that was idle for longest.
    pub producers_max: usize,
    /// The longest chain of sources: the fork of a stream that is not a fork has one. A read at the beginning of a fork
    /// visits all of them.
    pub fork_depth_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            producers_max: 10_000,
            fork_depth_max: 1_000,
        }
    }
}

impl Machine {
    /// A machine over the streams that `view` holds.
    pub fn new(view: Arc<View>, limits: Limits) -> Self {
        let mut machine = Machine {
            limits,
            level: AckLevel::default(),
            names: HashMap::new(),
            undo: Vec::new(),
            deadlines: Deadlines::default(),
            timed: HashMap::new(),
            changed: Unstored::default(),
            floors: Vec::new(),
            place: LogPlace::default(),
            siblings: None,
            claimed: Vec::new(),
            swept_next: 0,
            started_ms: 0,
            replica: None,
            view: Arc::clone(&view),
        };
        view.for_each(&mut |stream| machine.watch(stream));
        machine
    }

    /// Judges a command and, if it changes something, records and applies it.
    pub fn apply(&mut self, command: Command, now: Now, journal: &mut dyn Journal) -> Outcome {
        let outcome = match command {
            Command::Create(create) => self.create(create, now, journal),
            Command::Append(append) => self.append(append, now, journal),
            Command::Truncate { target, before, .. } => {
                self.truncate(&target, before, now, journal)
            }
            Command::Delete { target, .. } => self.delete(&target, now, journal),
            Command::Fleet(command) => self.fleet(command, now, journal),
            Command::Series(appends) => self.append_series(appends, now, journal),
        };
        outcome.unwrap_or_else(Outcome::Refused)
    }

    /// Shows readers the changes since the last call: all records up to `committed`.
    pub fn publish(&mut self, committed: Sequence) {
        for undo in self.undo.drain(..) {
            if let Undo::Facts(stream, _) = undo {
                let mut state = stream.state();
                let (before, facts) = (state.committed, state.next);
                state.committed = facts;
                let dirty = std::mem::replace(&mut state.dirty, true);
                drop(state);
                // Records that forks share stay as long as the forks.
                let gone = facts.floor != before.floor || before.forks > 0;
                if gone && facts.floor > 0 && facts.forks == 0 {
                    self.floors.push((stream.no, facts.floor));
                }
                if !dirty {
                    self.changed.push(stream);
                }
            }
        }
        self.undo.shrink_to(CHANGES_KEPT);
        for (name, stream) in self.names.drain() {
            match stream {
                Some(stream) => {
                    if self.place.is_stray(&name) {
                        self.view.note_strays();
                    }
                    self.view.insert(stream);
                }
                None => self.view.remove(&name),
            }
        }
        self.unclaim();
        self.timed.clear();
        self.view.set_committed(committed);
    }

    /// Undoes the changes since the last [`Machine::publish`].
    pub fn abandon(&mut self) {
        let undone: Vec<Undo> = self.undo.drain(..).collect();
        for undo in undone.into_iter().rev() {
            match undo {
                Undo::Facts(stream, before) => {
                    let after = std::mem::replace(&mut stream.state().next, before);
                    if before.life == Life::Live && after.life != Life::Live {
                        // Its deadline was removed as met.
                        self.watch(&stream);
                    }
                }
                Undo::Writers(stream, replaced) => {
                    stream.state().writers_mut().put_back(replaced);
                }
                Undo::Buckets(stream, undo) => {
                    stream.state().buckets_mut().undo(undo);
                    self.watch(&stream);
                }
            }
        }
        for (no, stream) in self.timed.drain() {
            let watched = std::mem::take(&mut stream.state().watched);
            self.deadlines.remove(no, watched);
        }
        self.names.clear();
        self.unclaim();
    }

    /// Has the machine check the other logs' streams before it gives a name.
    pub(crate) fn join(&mut self, siblings: Arc<Views>) {
        self.siblings = Some(siblings).filter(|siblings| siblings.logs() > 1);
    }

    /// Whether there are other logs.
    pub(crate) fn has_siblings(&self) -> bool {
        self.siblings.is_some()
    }

    /// Allows other logs to give the names that the batch has claimed.
    fn unclaim(&mut self) {
        if let Some(siblings) = &self.siblings {
            for name in self.claimed.drain(..) {
                siblings.unclaim(&name);
            }
        }
    }

    /// The stream of a command, if clients may use it.
    pub(crate) fn live(
        &mut self,
        target: &Target,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Arc<Stream>, Refusal> {
        let found = match target {
            // If the stream has ended, the command fails, even if another stream has the name now: the client did not
            // know that stream. Commands are sent to the log of their stream.
            Target::Known(stream) if log_of(stream.no) != self.place.log => {
                return Err(Refusal::NameBusy);
            }
            Target::Known(stream) => self.check_life(Arc::clone(stream), now, journal)?,
            Target::Named(name) | Target::Read { name, .. } => self.find(name, now, journal)?,
        };
        match found {
            NameHolder::Live(stream) => Ok(stream),
            NameHolder::Kept => Err(Refusal::Gone),
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
            Life::Kept => NameHolder::Kept,
            Life::Ended => NameHolder::Free,
        })
    }

    /// Changes what the stream becomes when the batch is published.
    pub(crate) fn change(
        &mut self,
        stream: &Arc<Stream>,
        change: impl FnOnce(&mut Facts),
    ) -> Facts {
        let mut state = stream.state();
        // Only the state before the first of several changes in a row is needed.
        let again =
            matches!(self.undo.last(), Some(Undo::Facts(last, _)) if Arc::ptr_eq(last, stream));
        if !again {
            self.undo.push(Undo::Facts(Arc::clone(stream), state.next));
        }
        change(&mut state.next);
        state.next
    }
}

/// How many changes fit the memory that is kept after a batch.
const CHANGES_KEPT: usize = 256;

/// The holder of a name.
pub(crate) enum NameHolder {
    /// A stream that clients may use.
    Live(Arc<Stream>),
    /// A deleted stream that forks still read.
    Kept,
    /// No stream.
    Free,
}

/// A value before the batch has changed it.
#[derive(Debug)]
pub(crate) enum Undo {
    Facts(Arc<Stream>, Facts),
    Writers(Arc<Stream>, Replaced),
    Buckets(Arc<Stream>, BucketsUndo),
}
