//! The streams of all logs by name.
//!
//! Each log has its own [`View`] and [`Machine`](crate::Machine). They share one rule: a name belongs to at most one
//! stream, in whichever log. A stream is created in the home of its name ([`home`]), a fork in the log of its source.
//! So a stream can be a stray: its log is not the home of its name. A look-up asks the home first, then every log that
//! ever had strays.
//!
//! A machine that creates a stream claims the name before it checks the other logs, and releases the claim once the
//! stream is in its view. With several logs, the end of a stream is synced before its name is free. So no two logs have
//! the same name, not even after a crash.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use encke_log::{Sequence, StreamNo};
use parking_lot::Mutex;

use crate::Stream;
use crate::machine::command::{Append, Command, FleetCommand, Target};
use crate::machine::outcome::Refusal;
use crate::stream::account::{AccountId, StorageUse};
use crate::stream::number::{MEMORY_LOG, home, log_of};
use crate::stream::pending_storage::{PendingStorage, StorageHold};
use crate::view::View;
use crate::view::lookup::Lookup;

/// The views of all logs.
#[derive(Debug)]
pub struct Views {
    /// By the logs' indices; at least one.
    views: Vec<Arc<View>>,
    /// Names that are about to be given, and the log that gives them.
    claims: Mutex<HashMap<Box<str>, usize>>,
    /// Of the streams that are in memory only. It knows no names.
    memory: Arc<View>,
    pending_storage: Arc<PendingStorage>,
}

impl Views {
    /// The views of all logs, by their indices.
    ///
    /// # Panics
    /// `views` is empty.
    pub(crate) fn new(views: Vec<Arc<View>>) -> Arc<Views> {
        assert!(!views.is_empty(), "there is at least one log");
        Arc::new(Views {
            views,
            claims: Mutex::default(),
            memory: View::of_memory(),
            pending_storage: Arc::default(),
        })
    }

    /// A single view.
    pub fn one(view: Arc<View>) -> Arc<Views> {
        Views::new(vec![view])
    }

    /// The number of logs.
    pub fn logs(&self) -> usize {
        self.views.len()
    }

    /// The view of the streams that are in memory only.
    pub(crate) fn memory(&self) -> &Arc<View> {
        &self.memory
    }

    /// The view of the log that has a stream.
    pub fn of(&self, stream: StreamNo) -> &Arc<View> {
        self.log(log_of(stream))
    }

    /// The view of a log; the first one if there is none with that index.
    pub fn log(&self, log: usize) -> &Arc<View> {
        if log == MEMORY_LOG {
            return &self.memory;
        }
        self.views.get(log).unwrap_or(&self.views[0])
    }

    /// Looks a name up. None if the stores must be read ([`Loaders`](crate::Loaders)).
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

    /// How many names of a group are awaited that no stream has yet ([`View::await_name`]).
    pub fn awaited(&self, group: u64) -> usize {
        let logs = self.views.iter();
        logs.map(|view| view.awaited().of_group(group)).sum()
    }

    /// What the streams of an account use.
    pub fn storage_used(&self, account: AccountId) -> StorageUse {
        let logs = self.views.iter().map(|view| view.accounts.used(account));
        logs.fold(StorageUse::default(), StorageUse::and)
    }

    /// Counts what a command will store until it is visible, unless `exceeded` has an objection to what the account uses by then. A
    /// fleet's other nodes do not know of it.
    ///
    /// # Errors
    /// The objection.
    pub fn hold_storage<E>(
        &self,
        account: AccountId,
        wanted: StorageUse,
        exceeded: impl FnOnce(StorageUse) -> Option<E>,
    ) -> Result<StorageHold, E> {
        let used = || self.storage_used(account);
        self.pending_storage.hold(account, wanted, used, exceeded)
    }

    /// What all accounts use that use something, in no order.
    pub fn storage_uses(&self) -> HashMap<AccountId, StorageUse> {
        let mut all = HashMap::new();
        for view in &self.views {
            view.accounts.for_each(&mut |account, used| {
                let sum: &mut StorageUse = all.entry(account).or_default();
                *sum = sum.and(used);
            });
        }
        all
    }

    /// The stream of that name if it is in memory. It may be expired, or exist for its forks only.
    pub fn find(&self, name: &str) -> Option<Arc<Stream>> {
        let home = home(name, self.logs());
        let found = self.views[home].find(name);
        found.or_else(|| self.strayed(home).find_map(|view| view.find(name)))
    }

    /// The log whose machine must judge a command: the log of its stream, or the log in which the stream is to be
    /// created.
    pub fn log_for(&self, command: &Command) -> usize {
        if self.logs() == 1 {
            return 0;
        }
        let target = match command {
            Command::Create(create) => {
                let source = || self.log_of_name(&create.fork.as_ref()?.source);
                let log = self.log_of_name(&create.name).or_else(source);
                return log.unwrap_or_else(|| home(&create.name, self.logs()));
            }
            Command::Fleet(FleetCommand::Barrier { log } | FleetCommand::Dispatch { log, .. }) => {
                return *log % self.logs();
            }
            Command::Fleet(command) => {
                return command.stream().map_or(0, |stream| log_of(stream.no));
            }
            Command::Series(appends) => match appends.last() {
                Some(append) => &append.target,
                None => return 0,
            },
            Command::Append(Append { target, .. })
            | Command::Truncate { target, .. }
            | Command::Delete { target, .. } => target,
        };
        match target {
            Target::Known(stream) => log_of(stream.no),
            Target::Named(name) | Target::Read { name, .. } | Target::Owned { name, .. } => {
                let log = self.log_of_name(name);
                log.unwrap_or_else(|| home(name, self.logs()))
            }
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

    /// The numbers of streams in all logs together.
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
                producer_bytes: totals.producer_bytes + view.producer_bytes(),
                // Subscribers watch a pattern in all logs.
                patterns: totals.patterns.max(view.pattern_len()),
                awaited: totals.awaited + view.awaited_len(),
            }
        })
    }

    /// The acknowledged changes of each log, by the durability level that they had reached
    /// ([`AckLevel`](crate::AckLevel) as an index).
    pub fn acknowledged(&self) -> impl Iterator<Item = [u64; 3]> + '_ {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let of_view = move |view: &Arc<View>| view.counts().acknowledged.each_ref().map(count);
        self.views.iter().map(of_view)
    }

    /// Claims a name: no other log has it or gets it until [`Views::unclaim`]. True if the claim is new.
    pub(crate) fn claim(&self, name: &str, log: usize) -> Result<bool, Refusal> {
        match self.claims.lock().entry(name.into()) {
            Entry::Occupied(claim) if *claim.get() == log => return Ok(false),
            Entry::Occupied(_) => return Err(Refusal::NameBusy),
            Entry::Vacant(claim) => {
                claim.insert(log);
            }
        }
        // After the claim, because an earlier claimant has added its stream to its view before it released the claim.
        let taken = self.look_elsewhere(name, log);
        if taken.is_err() {
            self.unclaim(name);
        }
        taken.map(|()| true)
    }

    pub(crate) fn unclaim(&self, name: &str) {
        self.claims.lock().remove(name);
    }

    /// Refuses if another log has a stream of that name, or may have one.
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

    /// The views that may have strays, except for one.
    fn strayed(&self, but: usize) -> impl Iterator<Item = &Arc<View>> {
        let views = self.views.iter().enumerate();
        let others = views.filter(move |(log, view)| *log != but && view.has_strays());
        others.map(|(_, view)| view)
    }
}

/// The numbers of streams in all logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Names that are taken, in memory or in the stores.
    pub streams: u64,
    /// Streams in memory.
    pub in_memory: usize,
    /// Names that are known to be free.
    pub free_names: usize,
    /// Look-ups in the stores that found a stream.
    pub loads: u64,
    /// Look-ups in the stores that found the name free.
    pub absences: u64,
    /// Streams that were evicted.
    pub evictions: u64,
    /// Producers that streams forgot because they had too many.
    pub producers_forgotten: u64,
    /// Bytes that the producers of streams in memory take.
    pub producer_bytes: usize,
    /// Patterns of names that have subscribers.
    pub patterns: usize,
    /// Names with subscribers that no stream has yet.
    pub awaited: usize,
}
