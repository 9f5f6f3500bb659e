//! Waits until the dispatcher has got everything that was acknowledged before.
//!
//! A command that changes nothing goes to each log. Its reply comes behind the changes of all commands that the log had before it, on a
//! fleet those of the other nodes, too. One round of commands is on its way at a time, for all that have asked before it began.

use std::collections::BTreeMap;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_stream::{Command, FleetCommand, Outcome};

/// Rounds of commands that change nothing, and what waits for them.
#[derive(Debug)]
pub(crate) struct Barriers<T> {
    logs: usize,
    next_op: u64,
    /// The logs that have not answered yet, by the numbers of their commands.
    under_way: BTreeMap<u64, usize>,
    /// Logs that have refused their command, and when they get another one.
    refused: Vec<usize>,
    again_at: SteadyTime,
    /// What waits for the round under way.
    waiting: Vec<T>,
    /// What waits for the next one.
    next: Vec<T>,
}

impl<T> Barriers<T> {
    /// The commands have numbers from `first_op`.
    pub(crate) fn new(logs: usize, first_op: u64) -> Self {
        Barriers {
            logs,
            next_op: first_op,
            under_way: BTreeMap::new(),
            refused: Vec::new(),
            again_at: SteadyTime::default(),
            waiting: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Has it wait for what was acknowledged before now.
    pub(crate) fn wait(&mut self, item: T) {
        self.next.push(item);
    }

    /// The commands that are to be sent, with their numbers: those of the next round, if none is under way, and those of logs that have
    /// refused one.
    pub(crate) fn commands(&mut self, now: SteadyTime) -> Vec<(u64, Command)> {
        let mut logs = Vec::new();
        if self.waiting.is_empty() && !self.next.is_empty() {
            self.waiting = std::mem::take(&mut self.next);
            logs.extend(0..self.logs);
        } else if self.again_at <= now {
            logs.append(&mut self.refused);
        }
        let commands = logs.into_iter().map(|log| {
            let op = self.next_op;
            self.next_op += 1;
            self.under_way.insert(op, log);
            (op, Command::Fleet(FleetCommand::Barrier { log }))
        });
        commands.collect()
    }

    /// Handles the outcome of a command.
    pub(crate) fn committed(&mut self, now: SteadyTime, op: u64, outcome: &Outcome) {
        match outcome {
            Outcome::Refused(_) => self.unsent(now, op),
            _ => {
                self.under_way.remove(&op);
            }
        }
    }

    /// There was no room for a command.
    pub(crate) fn unsent(&mut self, now: SteadyTime, op: u64) {
        if let Some(log) = self.under_way.remove(&op) {
            self.refused.push(log);
            self.again_at = now.after(PAUSE);
        }
    }

    /// What need not wait any more, once all messages that came before the last outcome are handled.
    pub(crate) fn passed(&mut self) -> Vec<T> {
        match self.under_way.is_empty() && self.refused.is_empty() {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }

    /// When a command is due.
    pub(crate) fn next_due(&self) -> Option<SteadyTime> {
        (!self.refused.is_empty()).then_some(self.again_at)
    }

    /// Nothing waits any more.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.next.clear();
        self.refused.clear();
        self.under_way.clear();
    }
}

/// The pause before a log that has refused a command gets another one.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use encke_stream::Refusal;

    use super::*;

    fn at(ms: u64) -> SteadyTime {
        SteadyTime::default().after(Duration::from_millis(ms))
    }

    fn ops<T>(barriers: &mut Barriers<T>, ms: u64) -> Vec<u64> {
        let commands = barriers.commands(at(ms)).into_iter();
        commands.map(|(op, _)| op).collect()
    }

    #[test]
    fn a_round_is_for_what_waited_before_it() {
        let mut barriers = Barriers::new(2, 100);
        assert!(ops(&mut barriers, 0).is_empty());
        barriers.wait('a');
        barriers.wait('b');
        assert_eq!(ops(&mut barriers, 0), [100, 101]);
        barriers.wait('c');
        assert!(ops(&mut barriers, 0).is_empty(), "one at a time");
        barriers.committed(at(0), 101, &Outcome::Done);
        assert!(barriers.passed().is_empty());
        barriers.committed(at(0), 100, &Outcome::Done);
        assert_eq!(barriers.passed(), ['a', 'b']);
        assert_eq!(ops(&mut barriers, 0), [102, 103]);
        barriers.committed(at(0), 102, &Outcome::Done);
        barriers.committed(at(0), 103, &Outcome::Done);
        assert_eq!(barriers.passed(), ['c']);
        assert!(barriers.next_due().is_none() && ops(&mut barriers, 9_999).is_empty());
    }

    #[test]
    fn a_log_that_refuses_is_asked_again() {
        let mut barriers = Barriers::new(2, 0);
        barriers.wait('a');
        assert_eq!(ops(&mut barriers, 0), [0, 1]);
        let refused = Outcome::Refused(Refusal::Stalled("there is no room".into()));
        barriers.committed(at(10), 1, &refused);
        barriers.unsent(at(20), 0);
        assert!(barriers.passed().is_empty());
        assert_eq!(barriers.next_due(), Some(at(120)));
        assert!(ops(&mut barriers, 119).is_empty());
        assert_eq!(ops(&mut barriers, 120), [2, 3]);
        barriers.committed(at(121), 2, &Outcome::Done);
        // That of an earlier command.
        barriers.committed(at(121), 1, &Outcome::Done);
        assert!(barriers.passed().is_empty());
        barriers.committed(at(122), 3, &Outcome::Done);
        assert_eq!(barriers.passed(), ['a']);
    }
}
