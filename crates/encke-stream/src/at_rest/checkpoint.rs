//! Checkpoints and eviction: the state store gets what has changed, and streams that it has may leave memory.

use std::sync::Arc;

use encke_log::{Sequence, StateEntry, StreamNo};

use crate::Machine;
use crate::at_rest::stored::{self, FORMAT, StoreMeta};
use crate::stream::{Life, State, Stream};
use crate::view::PARTS;

impl Machine {
    /// How many streams have changed since the store last took them.
    pub fn changed(&self) -> usize {
        self.changed.streams.len() + self.changed.ended.len()
    }

    /// Takes up to `count_max` changed streams, as entries for the state store of the log. True when none is left: then
    /// all entries together are the state after `committed`. Call [`Machine::stored`] once all of them are in the
    /// store.
    ///
    /// Everything must be published, because an entry holds the state of the stream's producers after their last
    /// requests.
    pub fn take_changed(
        &mut self,
        committed: Sequence,
        count_max: usize,
        entries: &mut Vec<StateEntry>,
    ) -> bool {
        debug_assert!(self.undo.is_empty(), "something is not published");
        self.changed.taken = true;
        for (no, timed, name) in self.changed.ended.drain(..) {
            stored::forget(no, timed, entries);
            self.changed.over.push(no);
            if self.view.is_free_and_stored(&name) {
                entries.push((stored::name_key(&name), None));
            }
        }
        let rest = self.changed.streams.len().saturating_sub(count_max);
        for stream in self.changed.streams.drain(rest..) {
            stream.state().dirty = false;
            if stream.facts().life == Life::Ended {
                self.changed.over.push(stream.no);
            }
            // Only an ended stream's name can be free.
            let free = self.view.is_free_and_stored(&stream.name);
            if !stream.is_stored() {
                self.changed.new.push(Arc::clone(&stream));
            }
            self.changed
                .accounts
                .extend(stored::entries(&stream, free, entries));
        }
        let done = self.changed.streams.is_empty();
        if done {
            let meta = StoreMeta {
                format: FORMAT,
                upto: committed,
                total: self.view.total(),
            };
            entries.push(meta.entry());
            entries.extend(
                self.chain()
                    .map(|chain| stored::chain_entry(&chain.at_mark())),
            );
            let accounts = &mut self.changed.accounts;
            self.view.accounts.take(accounts, &mut |account, used| {
                entries.push(stored::account_entry(account, used));
            });
            if self.view.has_strays() {
                entries.push(stored::strays_entry());
            }
        }
        done
    }

    /// The ended streams among those that were taken since the last call. No fork reads them, so the log can forget
    /// their records with the checkpoint that has the entries.
    pub fn take_over(&mut self) -> Vec<StreamNo> {
        std::mem::take(&mut self.changed.over)
    }

    /// Notes that the store has everything that was taken.
    pub fn stored(&mut self) {
        self.changed.taken = false;
        for stream in self.changed.new.drain(..) {
            self.view.note_stored(&stream);
        }
    }

    /// Sweeps one of [`Machine::sweeps`] parts of the view. Evicts the streams that are not in use, that were not used
    /// since the last sweep, and that the store has in their current state; with `all`, even those that were used.
    /// Returns the number of evicted streams and free names.
    pub fn sweep(&mut self, all: bool) -> usize {
        self.sweep_those(all, |_| true)
    }

    /// The same for streams with producers, as if the others were in use.
    pub(crate) fn sweep_producers(&mut self) -> usize {
        self.sweep_those(false, |state| {
            let writers = state.writers.as_ref();
            writers.is_some_and(|writers| writers.producers.len() > 0)
        })
    }

    /// Whether the producers of streams take as much memory as they may.
    pub(crate) fn is_full_of_producers(&self) -> bool {
        self.view.producers.is_full()
    }

    fn sweep_those(&mut self, all: bool, is_swept: impl Fn(&State) -> bool) -> usize {
        let mut touched = Vec::new();
        let mut moved = Vec::new();
        let may_go = &mut |stream: &Arc<Stream>| {
            let mut state = stream.state();
            let touched_at = stream.touched();
            if state.dirty || state.committed != state.next || !is_swept(&state) {
                return false;
            }
            if state.stored != Some(touched_at) {
                // The store needs the new end of its lifetime first.
                touched.push(Arc::clone(stream));
                return false;
            }
            let due = stream.due(&state);
            if state.committed.life == Life::Live && state.watched != due {
                moved.push((stream.no, state.watched, due));
                state.watched = due;
            }
            true
        };
        // What was taken and is not stored yet exists only in memory.
        let streams_may_go = !self.changed.taken && self.undo.is_empty();
        let gone = self
            .view
            .sweep(self.swept_next, all, may_go, streams_may_go);
        self.swept_next = (self.swept_next + 1) % PARTS;
        for (no, before, after) in moved {
            self.deadlines.replace(no, before, after);
        }
        for stream in touched {
            self.mark_changed(stream);
        }
        gone
    }

    /// How many streams and free names are in memory; long names count as several.
    pub fn in_memory(&self) -> usize {
        self.view.len() + self.view.free_weight()
    }

    /// The number of sweeps that visit all streams in memory once.
    pub fn sweeps() -> usize {
        PARTS
    }

    /// Marks a stream as changed, so that the next checkpoint has it.
    pub(crate) fn mark_changed(&mut self, stream: Arc<Stream>) {
        let dirty = std::mem::replace(&mut stream.state().dirty, true);
        if !dirty {
            self.changed.push(stream);
        }
    }

    /// Marks streams that the store has forgotten, so that the log forgets their records.
    pub(crate) fn mark_over(&mut self, streams: Vec<StreamNo>) {
        self.changed.over.extend(streams);
    }

    /// Marks an ended stream, so that the store forgets it, and its name if that is free.
    pub(crate) fn mark_ended(&mut self, no: StreamNo, timed: bool, name: Box<str>) {
        self.changed.ended.push((no, timed, name));
    }
}
