//! The machine: how changes to streams are decided, published and undone.
//!
//! The rules are in `create.rs`, `append.rs`, `truncate.rs` and `delete.rs`; those for producers in `stream/writers.rs`. They use
//! `life.rs`, which finds the stream of a name and ends streams, and `state.rs`, which publishes and undoes changes.
//!
//! `command.rs` goes in, `outcome.rs` comes out, `journal.rs` takes the records, `deadlines.rs` knows what is due.

pub(crate) mod append;
pub(crate) mod command;
pub(crate) mod create;
pub(crate) mod deadlines;
pub(crate) mod delete;
pub(crate) mod journal;
mod life;
pub(crate) mod outcome;
mod state;
pub(crate) mod truncate;

use crate::machine::command::Command;
use crate::machine::journal::Journal;
use crate::machine::outcome::Outcome;
use encke_clock::Now;
pub(crate) use life::NameHolder;
pub(crate) use state::Undo;
pub use state::{Limits, Machine};

impl Machine {
    /// Judges a command and, if it changes something, records and applies it.
    pub fn apply(&mut self, command: Command, now: Now, journal: &mut dyn Journal) -> Outcome {
        let outcome = match command {
            Command::Create(create) => self.create(create, now, journal),
            Command::Append(append) => self.append(append, now, journal),
            Command::Truncate {
                mut target, before, ..
            } => self.truncate(&mut target, before, now, journal),
            Command::Delete { mut target, .. } => self.delete(&mut target, now, journal),
            Command::Fleet(command) => self.fleet(command, now, journal),
            Command::Series(appends) => self.append_series(appends, now, journal),
        };
        outcome.unwrap_or_else(Outcome::Refused)
    }
}
