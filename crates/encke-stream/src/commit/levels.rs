//! Groups the commands of a batch by the durability level of their streams.

use std::collections::HashMap;

use crate::order::Ordered;
use crate::order::submission::Submission;
use crate::{AckLevel, Command, Machine, Target};

/// The groups of a batch, the weakest level first. A group is committed or taken back as a whole before the next one is
/// decided. If `strict_together`, the groups of the levels `written` and `synced` are one.
pub(crate) fn by_level(
    batch: &mut Ordered,
    machine: &Machine,
    strict_together: bool,
) -> [Ordered; 3] {
    // All commands for one name stay together, in their order.
    let mut of_names: HashMap<Box<str>, AckLevel> = HashMap::new();
    for Submission { command, .. } in &batch.commands {
        let level = of_names
            .entry(command.name().into())
            .or_insert(AckLevel::Accepted);
        *level = level_of(command, machine).max(*level);
    }
    let mut groups = [0; 3].map(|_| Ordered {
        commands: Vec::new(),
        now: batch.now,
    });
    for submission in batch.commands.drain(..) {
        let group = match of_names.get(submission.command.name()) {
            Some(AckLevel::Accepted) => 0,
            Some(AckLevel::Written) if !strict_together => 1,
            _ => 2,
        };
        groups[group].commands.push(submission);
    }
    groups
}

/// Whether all commands are for streams of one level.
pub(crate) fn is_of_one_level(batch: &Ordered, machine: &Machine) -> bool {
    let commands = batch.commands.iter();
    let mut levels = commands.map(|submission| level_of(&submission.command, machine));
    let first = levels.next();
    levels.all(|level| Some(level) == first)
}

/// The level of the stream of a command, as far as it is known before the command is judged.
fn level_of(command: &Command, machine: &Machine) -> AckLevel {
    let stream = match command {
        Command::Create(create) => return create.ack.unwrap_or(machine.level),
        Command::Series(appends) => {
            let levels = appends
                .iter()
                .map(|append| level_at(&append.target, machine));
            return levels.max().unwrap_or(machine.level);
        }
        Command::Append(append) => &append.target,
        Command::Delete { .. } if machine.has_siblings() => return AckLevel::Synced,
        Command::Truncate { target, .. } | Command::Delete { target, .. } => target,
        Command::Fleet(_) => return machine.level,
    };
    level_at(stream, machine)
}

/// Whether a request asks for less than its stream, so that its reply may come before readers see the record. The level of a creation is
/// that of its stream.
pub(super) fn asks_for_less(command: &Command, machine: &Machine) -> bool {
    let target = match command {
        Command::Append(append) => &append.target,
        Command::Truncate { target, .. } | Command::Delete { target, .. } => target,
        Command::Create(_) | Command::Series(_) | Command::Fleet(_) => return false,
    };
    let asked = command.ack();
    asked.is_some_and(|asked| asked < level_at(target, machine))
}

fn level_at(target: &Target, machine: &Machine) -> AckLevel {
    match target {
        Target::Known(stream) => stream.ack,
        Target::Named(name) | Target::Read { name, .. } | Target::Owned { name, .. } => {
            let given = machine.names.get(name).cloned();
            let stream = given.unwrap_or_else(|| machine.view.find(name));
            stream.map_or(machine.level, |stream| stream.ack)
        }
    }
}
