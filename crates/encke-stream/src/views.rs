//! The streams of all logs by name: where a name's stream is, and where a new one would be made.
//!
//! Each log has a [`View`] and a [`Machine`](crate::Machine) of its own, which know nothing of the others but
//! this: a name belongs to one stream at most, wherever it lives. A stream is made in its name's home
//! ([`home`]), a fork in its source's log. So a name may have a stream away from home, and whoever looks for one
//! asks at home first and then wherever there ever was such a stray.
//!
//! A machine that makes a stream claims the name before it looks whether another log has it, and gives the claim back
//! when the stream is in its view. A stream's end is on the disk before its name is free, where there are several
//! logs. So no two logs have one name, after a crash neither.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use encke_log::{Sequence, StreamNo};
use parking_lot::Mutex;

use crate::Stream;
use crate::command::{Append, Command, Target};
use crate::lookup::Lookup;
use crate::number::{home, log_of};
use crate::outcome::Refusal;
use crate::view::View;

/// The views of all logs. Where there is one log, all is found there.
#[derive(Debug)]
pub struct Views {
    /// By the logs' indices; at least one.
    views: Vec<Arc<View>>,
    /// Names that are being given to streams, and in which log.
    claims: Mutex<HashMap<Box<str>, usize>>,
}

impl Views {
    /// The views of all logs, by their indices.
    ///
    /// # Panics
    /// There is none.
    pub(crate) fn new(views: Vec<Arc<View>>) -> Arc<Views> {
        assert!(!views.is_empty(), "there is at least one log");
        Arc::new(Views {
            views,
            claims: Mutex::default(),
        })
    }

    /// The view of the only log.
    pub fn one(view: Arc<View>) -> Arc<Views> {
        Views::new(vec![view])
    }

    /// How many logs there are.
    pub fn logs(&self) -> usize {
        self.views.len()
    }

    /// The view of the log in which a stream is.
    pub fn of(&self, stream: StreamNo) -> &Arc<View> {
        self.log(log_of(stream))
    }

    /// The view of a log; of the first one if there is none with that index.
    pub fn log(&self, log: usize) -> &Arc<View> {
        self.views.get(log).unwrap_or(&self.views[0])
    }

    /// What is known of a name; nothing if the stores must be asked ([`Loaders`]).
    pub fn look(&self, name: &str) -> Option<Lookup> {
        let home = home(name, self.logs());
        let known = self.views[home].look(name)?;
        if known.stream().is_some() {
            return Some(known);
        }
        for view in self.strayed(home) {
            let stray = view.look(name)?;
            if stray.stream().is_some() {
                return Some(stray);
            }
        }
        Some(known)
    }

    /// The stream of that name if it is in memory, expired or kept for its forks though it may be.
    pub fn find(&self, name: &str) -> Option<Arc<Stream>> {
        let home = home(name, self.logs());
        let found = self.views[home].find(name);
        found.or_else(|| self.strayed(home).find_map(|view| view.find(name)))
    }

    /// The log whose machine must judge a command: that of its stream, or in which it is to be made.
    pub fn log_for(&self, command: &Command) -> usize {
        if self.logs() == 1 {
            return 0;
        }
        match command {
            Command::Create(create) => {
                let source = || self.log_of_name(&create.fork.as_ref()?.source);
                let log = self.log_of_name(&create.name).or_else(source);
                log.unwrap_or_else(|| home(&create.name, self.logs()))
            }
            Command::Append(Append { target, .. })
            | Command::Truncate { target, .. }
            | Command::Delete { target, .. } => match target {
                Target::Known(stream) => log_of(stream.no),
                Target::Named(name) => {
                    let log = self.log_of_name(name);
                    log.unwrap_or_else(|| home(name, self.logs()))
                }
            },
        }
    }

    /// Every record of a log up to this one is visible in the facts of its stream.
    pub fn committed(&self, log: usize) -> Sequence {
        self.log(log).committed()
    }

    /// [`Views::committed`] of all logs, by their indices.
    pub fn all_committed(&self) -> Vec<Sequence> {
        self.views.iter().map(|view| view.committed()).collect()
    }

    /// How many streams there are, and what of them is in memory, in all logs together.
    pub fn totals(&self) -> Totals {
        self.views.iter().fold(Totals::default(), |totals, view| {
            let counts = view.counts();
            let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
            Totals {
                streams: totals.streams + view.total(),
                in_memory: totals.in_memory + view.len(),
                free_names: totals.free_names + view.free_len(),
                loads: totals.loads + count(&counts.loads),
                absences: totals.absences + count(&counts.absences),
                evictions: totals.evictions + count(&counts.evictions),
                producers_forgotten: totals.producers_forgotten
                    + count(&counts.producers_forgotten),
            }
        })
    }

    /// How many changes each log has acknowledged, by the level that they had reached then
    /// ([`AckLevel`](crate::AckLevel) as an index).
    pub fn acknowledged(&self) -> impl Iterator<Item = [u64; 3]> + '_ {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let of_view = move |view: &Arc<View>| view.counts().acknowledged.each_ref().map(count);
        self.views.iter().map(of_view)
    }

    /// Makes sure that no other log has the name, or gets it, until [`Views::unclaim`].
    /// True if the log has claimed it just now.
    pub(crate) fn claim(&self, name: &str, log: usize) -> Result<bool, Refusal> {
        match self.claims.lock().entry(name.into()) {
            Entry::Occupied(claim) if *claim.get() == log => return Ok(false),
            Entry::Occupied(_) => return Err(Refusal::NameBusy),
            Entry::Vacant(claim) => {
                claim.insert(log);
            }
        }
        // After the claim, because who had one before has put the stream into its view before giving it back.
        let taken = self.look_elsewhere(name, log);
        if taken.is_err() {
            self.unclaim(name);
        }
        taken.map(|()| true)
    }

    pub(crate) fn unclaim(&self, name: &str) {
        self.claims.lock().remove(name);
    }

    /// Refuses if another log has a stream of that name, or may have.
    pub(crate) fn look_elsewhere(&self, name: &str, log: usize) -> Result<(), Refusal> {
        let home = home(name, self.logs());
        for (other, view) in self.views.iter().enumerate() {
            if other == log || other != home && !view.has_strays() {
                continue;
            }
            match view.look(name) {
                Some(Lookup::Free(_)) => {}
                Some(Lookup::Stream(_)) => return Err(Refusal::NameBusy),
                None => return Err(Refusal::Evicted),
            }
        }
        Ok(())
    }

    fn log_of_name(&self, name: &str) -> Option<usize> {
        Some(log_of(self.find(name)?.no))
    }

    /// The views that may have streams that are not at home there, but this one.
    fn strayed(&self, but: usize) -> impl Iterator<Item = &Arc<View>> {
        let views = self.views.iter().enumerate();
        let others = views.filter(move |(log, view)| *log != but && view.has_strays());
        others.map(|(_, view)| view)
    }
}

/// How many streams there are in all logs, and how they come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Names that are taken, in memory or in the stores.
    pub streams: u64,
    /// Streams in memory.
    pub in_memory: usize,
    /// Names that are known to be free.
    pub free_names: usize,
    /// Names that were looked up in the stores and found.
    pub loads: u64,
    /// Names that were looked up in the stores and are free.
    pub absences: u64,
    /// Streams that were let go of.
    pub evictions: u64,
    /// Producers that streams had no room for any more.
    pub producers_forgotten: u64,
}
