//! What a node of a fleet proposes by itself: the end of lifetimes, their renewal by reads, the closing of streams whose producers are
//! silent, and the removal of old records.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::Now;
use encke_log::StreamNo;

use super::chain::{BatchId, Chain};
use super::reads::Reads;
use crate::machine::NameHolder;
use crate::machine::command::{Command, FleetCommand, NamedStream};
use crate::machine::deadlines::VisitedDeadlines;
use crate::machine::journal::Journal;
use crate::machine::outcome::{Outcome, Refusal};
use crate::stream::Life;
use crate::{Machine, Stream};

impl Machine {
    /// How far a node of a fleet has followed the order; None for a server by itself.
    pub fn chain(&self) -> Option<&Chain> {
        self.replica.as_ref().map(|replica| &replica.chain)
    }

    /// Decides a command of the fleet.
    pub(crate) fn fleet(
        &mut self,
        command: FleetCommand,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let Some(named) = command.stream() else {
            return self.fleet_log(command);
        };
        // A stream whose lifetime is over ends here, whatever the command.
        let stream = match self.find(&named.name, now, journal)? {
            NameHolder::Live(stream) if stream.no == named.no => stream,
            _ => return Ok(Outcome::Done),
        };
        match command {
            FleetCommand::End { .. } => {}
            FleetCommand::Barrier { .. }
            | FleetCommand::Dispatch { .. }
            | FleetCommand::Leave { .. } => {}
            FleetCommand::Renew { .. } => self.renew(&stream, now, journal)?,
            FleetCommand::Abandon { .. } => self.abandon_stream(&stream, now, journal)?,
            FleetCommand::Trim { floor, due, .. } => {
                let facts = stream.state().next;
                // The clock of the node that proposes it may be ahead.
                if now.wall >= due && floor > facts.floor && floor <= facts.tail.sequence {
                    self.raise(&stream, floor, journal)?;
                }
            }
        }
        self.watch(&stream);
        Ok(Outcome::Done)
    }

    /// Decides a command of the fleet that is for the log as a whole.
    fn fleet_log(&mut self, command: FleetCommand) -> Result<Outcome, Refusal> {
        match (command, &mut self.replica) {
            (FleetCommand::Dispatch { next, .. }, Some(replica)) => {
                match replica.chain.begin_term(next) {
                    true => Ok(Outcome::Done),
                    false => Err(Refusal::NotDispatcher),
                }
            }
            _ => Ok(Outcome::Done),
        }
    }

    /// Whether the sender of a batch may give this command.
    pub(crate) fn may_change(&self, batch: &BatchId, command: &Command) -> bool {
        let chain = self.chain();
        chain.is_none_or(|chain| chain.may_change(&batch.node, command.name()))
    }

    /// What this node proposes now, by its own clock. Streams that are not in memory are proposed in a later call: `load`
    /// is called for some of them.
    pub(crate) fn proposals(
        &mut self,
        now: Now,
        load: &mut dyn FnMut(StreamNo),
    ) -> Vec<FleetCommand> {
        let mut proposals = Vec::new();
        for stream in self.view.reads().map_or_else(Vec::new, Reads::take) {
            if stream.facts().life == Life::Live {
                let stream = NamedStream::of(&stream);
                proposals.push(FleetCommand::Renew { stream });
            }
        }
        let mut loads = 0;
        proposals.extend(self.renewals(now, &mut |no| {
            load(no);
            loads += 1;
        }));
        let mut due = Vec::new();
        let mut visited = VisitedDeadlines::default();
        while due.len() < PROPOSALS_MAX
            && loads < PROPOSALS_MAX
            && let Some(no) = self.deadlines.next_due(&mut visited, now)
        {
            match self.view.timed(no) {
                Some(stream) => due.push(stream),
                None => {
                    load(no);
                    loads += 1;
                }
            }
        }
        for stream in due {
            let named = NamedStream::of(&stream);
            if stream.expired(now) && stream.state().next.life == Life::Live {
                proposals.push(FleetCommand::End { stream: named });
            } else if stream.is_abandoned(now) && !stream.state().next.closed {
                proposals.push(FleetCommand::Abandon { stream: named });
            } else if let Some((floor, due)) = stream.trim_due(now.wall) {
                let stream = named;
                proposals.push(FleetCommand::Trim { stream, floor, due });
            } else {
                self.watch(&stream);
            }
        }
        proposals
    }

    /// The renewals of streams that have live readers at this node.
    fn renewals(&mut self, now: Now, load: &mut dyn FnMut(StreamNo)) -> Vec<FleetCommand> {
        let Some(replica) = &mut self.replica else {
            return Vec::new();
        };
        if now.steady.since(replica.renewed_at) < RENEWALS_EVERY {
            return Vec::new();
        }
        replica.renewed_at = now.steady;
        let reads = self.view.reads();
        let mut due = reads.map_or_else(Vec::new, |reads| reads.unrenewed(now));
        if !self.view.patterns().is_empty() {
            due.extend(self.ending_soon(now, load));
        }
        let live = due
            .iter()
            .filter(|stream| stream.facts().life == Life::Live);
        live.map(|stream| FleetCommand::Renew {
            stream: NamedStream::of(stream),
        })
        .collect()
    }

    /// The streams that end soon and have live readers by a pattern. Those that are not in memory are loaded, as at their end.
    fn ending_soon(&self, now: Now, load: &mut dyn FnMut(StreamNo)) -> Vec<Arc<Stream>> {
        let soon = Now::at(now.wall.after(RENEWED_BEFORE));
        let mut found = Vec::new();
        let mut loads = 0;
        let mut visited = VisitedDeadlines::default();
        while loads < PROPOSALS_MAX
            && let Some(no) = self.deadlines.next_due(&mut visited, soon)
        {
            match self.view.timed(no) {
                Some(stream) => {
                    if stream.is_half_over(now) && self.view.has_live_readers(&stream) {
                        found.push(stream);
                    }
                }
                None => {
                    load(no);
                    loads += 1;
                }
            }
        }
        found
    }

    /// The removals that the last batches have made due. A node proposes those of its own batches.
    pub(crate) fn trims(&mut self, now: Now) -> Vec<FleetCommand> {
        let Some(replica) = &mut self.replica else {
            return Vec::new();
        };
        let mut counted = std::mem::take(&mut replica.counted);
        counted.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let trims = counted.iter().filter_map(|stream| {
            let (floor, due) = stream.trim_due(now.wall)?;
            let stream = NamedStream::of(stream);
            Some(FleetCommand::Trim { stream, floor, due })
        });
        trims.collect()
    }
}

/// A node looks this often for lifetimes that its live readers must renew. A lifetime of a second is renewed between
/// its half and its last quarter.
const RENEWALS_EVERY: Duration = Duration::from_millis(250);

/// A lifetime with live readers by a pattern is renewed this long before its end.
const RENEWED_BEFORE: Duration = Duration::from_secs(2);

/// The most streams that one call of [`Machine::proposals`] proposes to end or to trim.
const PROPOSALS_MAX: usize = 256;
