//! The state of the machine, and how the changes of a batch are published and undone.

use std::collections::HashMap;
use std::sync::Arc;

use encke_clock::SteadyTime;
use encke_log::{Sequence, StreamNo};

use crate::AckLevel;
use crate::at_rest::stored::StreamEnds;
use crate::at_rest::unstored::Unstored;
use crate::machine::deadlines::Deadlines;
use crate::replicated::Replica;
use crate::stream::number::LogPlace;
use crate::stream::own::is_own;
use crate::stream::retention::BucketsUndo;
use crate::stream::writers::Replaced;
use crate::stream::{Facts, Life, Stream};
use crate::view::View;
use crate::view::views::Views;

/// The streams and the rules by which they change: commands and the time in, records out.
///
/// A command is judged by the state of the streams after all commands before it, committed or not. Its changes go to a
/// [`Journal`](crate::Journal) first. [`Machine::publish`] shows readers the changes since its last call; [`Machine::abandon`] undoes
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
    /// When the streams were restored, by the steady clock. Counts as a read. None on a node of a fleet.
    pub(crate) started: Option<SteadyTime>,
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
            started: None,
            replica: None,
            view: Arc::clone(&view),
        };
        view.for_each(&mut |stream| {
            machine.watch(stream);
            if let Some(writers) = &mut stream.state().writers {
                writers.count_in(&view.producers);
            }
        });
        machine
    }

    /// Shows readers the changes since the last call: all records up to `committed`.
    pub fn publish(&mut self, committed: Sequence) {
        for undo in self.undo.drain(..) {
            if let Undo::Facts(stream, _) = undo {
                let mut state = stream.state();
                let before = state.commit();
                self.changed.accounts.extend(stream.charge(&state));
                let facts = state.committed;
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

    /// The server's own streams that the batch has created.
    pub(crate) fn created_own(&self) -> impl Iterator<Item = StreamNo> {
        let created = self.names.values().flatten();
        created
            .filter(|stream| is_own(&stream.name))
            .map(|stream| stream.no)
    }

    /// Undoes the changes since the last [`Machine::publish`].
    pub fn abandon(&mut self) {
        let undone: Vec<Undo> = self.undo.drain(..).collect();
        for undo in undone.into_iter().rev() {
            match undo {
                Undo::Facts(stream, before) => {
                    let after = std::mem::replace(&mut stream.state().next, before);
                    let has_ended = before.life == Life::Live && after.life != Life::Live;
                    if has_ended || after.closed && !before.closed {
                        // Its deadline was removed as met.
                        self.watch(&stream);
                    }
                }
                Undo::Writers(stream, replaced) => {
                    stream.state().writers_mut().put_back(replaced);
                }
                Undo::LastAppend(stream, before) => {
                    stream.set_last_append(before);
                    // Its deadline may have moved since.
                    self.watch(&stream);
                }
                Undo::Metadata(stream, before) => stream.state().metadata_mut().next = before,
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
        self.deadlines.add(no, ends.due(self.started));
    }
}

/// A value before the batch has changed it.
#[derive(Debug)]
pub(crate) enum Undo {
    Facts(Arc<Stream>, Facts),
    Writers(Arc<Stream>, Replaced),
    Buckets(Arc<Stream>, BucketsUndo),
    Metadata(Arc<Stream>, Option<Arc<str>>),
    LastAppend(Arc<Stream>, SteadyTime),
}

/// How many changes fit the memory that is kept after a batch.
const CHANGES_KEPT: usize = 256;
