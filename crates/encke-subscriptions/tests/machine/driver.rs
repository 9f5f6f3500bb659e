//! The driver of the machine in a world: it carries out effects, and reports what has come of them when the test says so.

use encke_stream::{Command, Outcome, Refusal, StreamChange};
use encke_subscriptions::{LookUpError, SubscriptionEffect};

use crate::world::{LookUp, Report, World};

impl World {
    pub(crate) fn observe(&mut self, changes: Vec<StreamChange>) {
        let index = &self.index;
        let changes = changes.into_iter();
        let concerning = changes.filter(|change| index.concerns(change.name()));
        self.reports.extend(concerning.map(Report::Changed));
    }

    /// Commits the first of the machine's commands on their way, and reports their outcomes.
    pub(crate) fn commit(&mut self, count: usize) {
        for _ in 0..count {
            let Some((op, command)) = self.queue.pop_front() else {
                break;
            };
            // What was committed before is reported before.
            self.report_changes(usize::MAX);
            let (outcome, changes) = self.streams.commit(command, self.now());
            self.machine.committed(self.now(), op, outcome);
            self.observe(changes);
        }
        self.flush();
    }

    /// Commits all of the machine's commands on their way in one batch: the outcomes are reported before the changes.
    pub(crate) fn commit_batch(&mut self) {
        self.report_changes(usize::MAX);
        for (op, command) in std::mem::take(&mut self.queue) {
            let (outcome, changes) = self.streams.commit(command, self.now());
            self.machine.committed(self.now(), op, outcome);
            self.observe(changes);
        }
        self.report_changes(usize::MAX);
    }

    /// The log refuses all commands on their way.
    pub(crate) fn refuse(&mut self) {
        for (op, _) in std::mem::take(&mut self.queue) {
            let outcome = Outcome::Refused(Refusal::NoSpace);
            self.machine.committed(self.now(), op, outcome);
        }
        self.flush();
    }

    /// The mailbox has no room for the commands on their way.
    pub(crate) fn overload(&mut self) {
        for (op, _) in std::mem::take(&mut self.queue) {
            self.machine.unsent(self.now(), op);
        }
        self.flush();
    }

    /// Reports the first changes and results of look-ups.
    pub(crate) fn report_changes(&mut self, count: usize) {
        for _ in 0..count {
            let Some(report) = self.reports.pop_front() else {
                break;
            };
            self.report_one(report);
        }
        self.flush();
    }

    pub(crate) fn report_one(&mut self, report: Report) {
        let now = self.now();
        match report {
            Report::Changed(change) => self.machine.changed(now, &change),
            Report::Found(look_up, found) => self.machine.found(now, look_up, found),
        }
    }

    /// Carries out the first look-up. Its result is reported behind the changes before it.
    pub(crate) fn look_up(&mut self) {
        let Some(look_up) = self.look_ups.pop_front() else {
            return;
        };
        let matches = |name: &String| {
            look_up
                .pattern
                .as_ref()
                .is_some_and(|glob| glob.matches(name))
        };
        let names = self.streams.names();
        let matching: Vec<&String> = names.iter().filter(|name| matches(name)).collect();
        let found = if matching.len() > look_up.matches_max {
            Err(LookUpError::TooMany)
        } else {
            let named = look_up.streams.iter().map(|name| &**name);
            let all = named.chain(matching.iter().map(|name| name.as_str()));
            let mut all: Vec<&str> = all.collect();
            all.sort_unstable();
            all.dedup();
            let found = all.into_iter().filter_map(|name| self.streams.state(name));
            Ok(found.collect())
        };
        self.reports.push_back(Report::Found(look_up.number, found));
    }

    pub(crate) fn flush(&mut self) {
        loop {
            self.machine.flush(self.now());
            let effects = self.machine.take_effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.execute(effect);
            }
        }
    }

    pub(crate) fn execute(&mut self, effect: SubscriptionEffect) {
        match effect {
            SubscriptionEffect::Commit { op, command } => {
                for (name, bytes) in written(&command) {
                    assert!(
                        !name.starts_with('\u{1}') || bytes <= self.limits.record_bytes,
                        "a record of {name:?} has {bytes} bytes"
                    );
                }
                self.queue.push_back((op, *command));
            }
            SubscriptionEffect::LookUp {
                look_up,
                streams,
                pattern,
                matches_max,
            } => self.look_ups.push_back(LookUp {
                number: look_up,
                streams,
                pattern,
                matches_max,
            }),
            SubscriptionEffect::CatchUp { catch_up } => {
                while let Some(report) = self.reports.pop_front() {
                    self.report_one(report);
                }
                self.machine.caught_up(self.now(), catch_up);
            }
            SubscriptionEffect::Deliver(call) => {
                let id = call.notice.subscription.to_string();
                // Tokens of one subscription begin with its number.
                let token = &call.notice.callback_token[..11];
                let mut others = self.calls.iter().map(|call| &call.notice);
                let is_called = others.any(|other| other.callback_token.starts_with(token));
                assert!(!is_called, "{id} is called twice at a time");
                let notice = call.notice.clone();
                self.note_wake(&id, &notice.wake_id, notice.generation);
                self.calls.push(*call);
                assert!(self.calls.len() <= self.limits.deliveries_max);
            }
            SubscriptionEffect::Respond { to, response } => {
                let before = self.responses.insert(to, response);
                assert!(before.is_none(), "{to} has two responses: {before:?}");
            }
        }
    }
}

/// The streams that a command writes to, and the number of bytes of each.
fn written(command: &Command) -> Vec<(&str, usize)> {
    match command {
        Command::Create(create) => vec![(&create.name, create.data.bytes.len())],
        Command::Append(append) => vec![(append.target.name(), append.data.bytes.len())],
        Command::Series(appends) => appends
            .iter()
            .map(|append| (append.target.name(), append.data.bytes.len()))
            .collect(),
        Command::Truncate { .. } | Command::Delete { .. } | Command::Fleet(_) => Vec::new(),
    }
}
