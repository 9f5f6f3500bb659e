//! The keyspaces of records: one for each class that is kept for ever, and for each other class one for each stretch of the
//! global order, oldest first.
//!
//! A generation holds the records of its class from its first sequence to the one before the next generation's first.
//! What it has beyond that counts for nothing: a segment may have been ingested, then a crash, and then it was ingested again
//! into a new generation.

use crate::retention::{Class, ClassRetention, class_of};
use crate::{Sequence, StreamNo};
use fjall::Keyspace;
use std::collections::BTreeMap;

/// All keyspaces of records.
#[derive(Clone, Default)]
pub(crate) struct Generations(BTreeMap<Class, Vec<Generation>>);

#[derive(Clone)]
pub(crate) struct Generation {
    /// Records before this one are in an older generation, or gone.
    pub(crate) first: Sequence,
    pub(crate) keyspace: Keyspace,
    /// The times of the first and of the newest record in it; `None` while it is empty.
    pub(crate) times_ms: Option<(u64, u64)>,
}

impl Generations {
    pub(crate) fn add(&mut self, class: Class, generation: Generation) {
        let generations = self.0.entry(class).or_default();
        generations.push(generation);
        generations.sort_by_key(|generation| generation.first);
    }

    /// The generations of a class, oldest first.
    pub(crate) fn of(&self, class: Class) -> &[Generation] {
        self.0.get(&class).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Generation> {
        self.0.values().flatten()
    }

    /// The newest generation of a class, if it can take more records.
    pub(crate) fn newest(&self, class: Class) -> Option<&Generation> {
        self.of(class).last()
    }

    /// Notes that the newest generation of a class has records of these times.
    pub(crate) fn note_times(&mut self, class: Class, (from, upto): (u64, u64)) {
        if let Some(newest) = self.0.get_mut(&class).and_then(|all| all.last_mut()) {
            let known = newest.times_ms.get_or_insert((from, upto));
            known.1 = known.1.max(upto);
        }
    }

    /// Takes out the generations of a class whose records are all up to `floor`. There is none beyond `history_upto`.
    pub(crate) fn take_below(
        &mut self,
        class: Class,
        floor: Sequence,
        history_upto: Sequence,
    ) -> Vec<Generation> {
        let Some(generations) = self.0.get_mut(&class) else {
            return Vec::new();
        };
        let nexts = generations.iter().skip(1).map(|next| next.first - 1);
        let gone = nexts
            .chain([history_upto])
            .take_while(|last| *last <= floor)
            .count();
        generations.drain(..gone.min(generations.len())).collect()
    }

    /// The keyspaces in which records of a stream with `from` <= sequence <= `upto` lie, oldest first, each with what part of
    /// them is there.
    pub(crate) fn holding(
        &self,
        stream: StreamNo,
        from: Sequence,
        upto: Sequence,
    ) -> Vec<(Keyspace, Sequence, Sequence)> {
        let generations = self.of(class_of(stream));
        let mut holding = Vec::new();
        for (i, generation) in generations.iter().enumerate() {
            let next = generations.get(i + 1).map(|next| next.first);
            let last = next.map_or(upto, |next| upto.min(next - 1));
            let from = from.max(generation.first);
            if from <= last {
                holding.push((generation.keyspace.clone(), from, last));
            }
        }
        holding
    }
}

impl Generation {
    /// Whether records of these times should begin a new generation behind this one.
    pub(crate) fn is_full(&self, retention: &ClassRetention, (from_ms, _): (u64, u64)) -> bool {
        let Some((first_ms, _)) = self.times_ms else {
            return false;
        };
        let old = retention
            .age_ms_max()
            .is_some_and(|age_ms| from_ms.saturating_sub(first_ms) >= age_ms / PARTS);
        let large = retention
            .bytes_max
            .is_some_and(|bytes| self.keyspace.disk_space() >= bytes / PARTS);
        old || large
    }
}

/// The name of a generation's keyspace.
pub(crate) fn name(class: Class, first: Sequence) -> String {
    match (class, first) {
        (0, 0) => RECORDS.to_owned(),
        _ => format!("{RECORDS}-{class}-{first}"),
    }
}

/// The class and the first sequence that the name of a keyspace tells, if it is that of a generation.
pub(crate) fn of_name(keyspace: &str) -> Option<(Class, Sequence)> {
    let rest = keyspace.strip_prefix(RECORDS)?;
    if rest.is_empty() {
        return Some((0, 0));
    }
    let (class, first) = rest.strip_prefix('-')?.split_once('-')?;
    Some((class.parse().ok()?, first.parse().ok()?))
}

const RECORDS: &str = "records";
/// About how many generations a class with limits has.
const PARTS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_they_are_of() {
        for (class, first) in [(0, 0), (0, 7), (200, 0), (1, u64::MAX)] {
            assert_eq!(of_name(&name(class, first)), Some((class, first)));
        }
        for other in [
            "states",
            "marks",
            "records-",
            "records-1",
            "records-x-1",
            "records-256-1",
        ] {
            assert_eq!(of_name(other), None, "{other}");
        }
    }
}
