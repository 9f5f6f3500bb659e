//! The keyspaces of records: a single one without limits on retention, otherwise one for each range of the global order,
//! oldest first.
//!
//! A generation holds the records from its first sequence to the one before the next generation's first. Records in it beyond
//! that range are ignored: after a crash, a segment that was ingested may be ingested again into a new generation.
//!
//! Before the first generation stands the keyspace of *kept* records, once there is one: the records that exempt streams had in
//! removed generations. Nothing ages in it.

use crate::ids::Sequence;
use crate::retention::LogRetention;
use encke_clock::WallTime;
use fjall::Keyspace;
use std::collections::BTreeMap;

/// All keyspaces of records, oldest first.
#[derive(Clone, Default)]
pub(crate) struct Generations {
    kept: Option<Keyspace>,
    all: Vec<Generation>,
}

#[derive(Clone)]
pub(crate) struct Generation {
    /// Records before this one are in an older generation, or removed.
    pub(crate) first: Sequence,
    pub(crate) keyspace: Keyspace,
    /// The times of the first and of the newest record in it; `None` while it is empty.
    pub(crate) times: Option<(WallTime, WallTime)>,
}

/// Times of the first and the newest record of each generation with records, by the name of its keyspace.
pub(crate) type Times = BTreeMap<String, (WallTime, WallTime)>;

impl Generations {
    pub(crate) fn add(&mut self, generation: Generation) {
        self.all.push(generation);
        self.all.sort_by_key(|generation| generation.first);
    }

    /// All generations, oldest first.
    pub(crate) fn all(&self) -> &[Generation] {
        &self.all
    }

    /// The keyspace of kept records.
    pub(crate) fn kept(&self) -> Option<&Keyspace> {
        self.kept.as_ref()
    }

    pub(crate) fn set_kept(&mut self, kept: Keyspace) {
        self.kept = Some(kept);
    }

    /// All keyspaces, oldest first.
    pub(crate) fn keyspaces(&self) -> impl Iterator<Item = &Keyspace> {
        let generations = self.all.iter().map(|generation| &generation.keyspace);
        self.kept.iter().chain(generations)
    }

    /// The generation that further records go to.
    pub(crate) fn newest(&self) -> Option<&Generation> {
        self.all.last()
    }

    /// Notes that the newest generation has records of these times.
    pub(crate) fn note_times(&mut self, (from, upto): (WallTime, WallTime)) {
        if let Some(newest) = self.all.last_mut() {
            let known = newest.times.get_or_insert((from, upto));
            known.1 = known.1.max(upto);
        }
    }

    /// Takes out the generations whose records are all at or below `floor`. History has all records up to
    /// `history_upto`.
    pub(crate) fn take_below(
        &mut self,
        floor: Sequence,
        history_upto: Sequence,
    ) -> Vec<Generation> {
        let nexts = self.all.iter().skip(1).map(|next| next.first - 1);
        let removed = nexts
            .chain([history_upto])
            .take_while(|last| *last <= floor)
            .count();
        self.all.drain(..removed.min(self.all.len())).collect()
    }

    /// The generations, each with the first and the last sequence of its range.
    pub(crate) fn parts(&self) -> Vec<(Keyspace, Sequence, Sequence)> {
        let mut parts = self.holding(0, Sequence::MAX - 1);
        parts.drain(..parts.len() - self.all.len());
        parts
    }

    /// The keyspaces of records with `from` <= sequence <= `upto`, oldest first, each with the part of the range that it holds.
    pub(crate) fn holding(
        &self,
        from: Sequence,
        upto: Sequence,
    ) -> Vec<(Keyspace, Sequence, Sequence)> {
        let mut holding = Vec::new();
        if let Some(kept) = &self.kept {
            let first = self.all.first().map_or(Sequence::MAX, |first| first.first);
            let last = upto.min(first.saturating_sub(1));
            if first > 0 && from <= last {
                holding.push((kept.clone(), from, last));
            }
        }
        for (i, generation) in self.all.iter().enumerate() {
            let next = self.all.get(i + 1).map(|next| next.first);
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
    pub(crate) fn is_full(
        &self,
        retention: &LogRetention,
        (from, _): (WallTime, WallTime),
    ) -> bool {
        let Some((first, _)) = self.times else {
            return false;
        };
        let old = retention
            .age_max
            .is_some_and(|age| from.since(first) >= age / PARTS as u32);
        let large = retention
            .bytes_max
            .is_some_and(|bytes| self.keyspace.disk_space() >= bytes / PARTS);
        old || large
    }
}

/// The name of a generation's keyspace.
pub(crate) fn name(first: Sequence) -> String {
    match first {
        0 => RECORDS.to_owned(),
        first => format!("{RECORDS}{LATER}{first}"),
    }
}

/// The first sequence of the generation whose keyspace has this name; `None` for other keyspaces.
pub(crate) fn of_name(keyspace: &str) -> Option<Sequence> {
    match keyspace.strip_prefix(RECORDS)? {
        "" => Some(0),
        rest => rest.strip_prefix(LATER)?.parse().ok(),
    }
}

/// Whether a keyspace with this name has records.
pub(crate) fn has_records(keyspace: &str) -> bool {
    keyspace == KEPT || of_name(keyspace).is_some()
}

/// The name of the keyspace of kept records. Versions without exempt streams refuse a log that has it.
pub(crate) const KEPT: &str = "records-kept";

const RECORDS: &str = "records";
/// The 0 is part of the format on disk; it was the number of a retention class.
const LATER: &str = "-0-";
/// About how many generations a log with limits has.
const PARTS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_holds_the_first_sequence() {
        for (first, expected) in [
            (0, "records"),
            (7, "records-0-7"),
            (u64::MAX, "records-0-18446744073709551615"),
        ] {
            assert_eq!(name(first), expected);
            assert_eq!(of_name(expected), Some(first));
        }
        for other in [
            "states",
            "marks",
            "records-",
            "records-1",
            "records-0",
            "records-x-1",
            "records-1-7",
            KEPT,
        ] {
            assert_eq!(of_name(other), None, "{other}");
        }
    }
}
