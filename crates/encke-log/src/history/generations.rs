//! The keyspaces of records: a single one without limits on retention, otherwise one for each range of the global order,
//! oldest first.
//!
//! A generation holds the records from its first sequence to the one before the next generation's first. Records in it beyond
//! that range are ignored: after a crash, a segment that was ingested may be ingested again into a new generation.

use crate::ids::Sequence;
use crate::retention::LogRetention;
use encke_clock::WallTime;
use fjall::Keyspace;
use std::collections::BTreeMap;

/// All keyspaces of records, oldest first.
#[derive(Clone, Default)]
pub(crate) struct Generations(Vec<Generation>);

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
        self.0.push(generation);
        self.0.sort_by_key(|generation| generation.first);
    }

    /// All generations, oldest first.
    pub(crate) fn all(&self) -> &[Generation] {
        &self.0
    }

    /// The generation that further records go to.
    pub(crate) fn newest(&self) -> Option<&Generation> {
        self.0.last()
    }

    /// Notes that the newest generation has records of these times.
    pub(crate) fn note_times(&mut self, (from, upto): (WallTime, WallTime)) {
        if let Some(newest) = self.0.last_mut() {
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
        let nexts = self.0.iter().skip(1).map(|next| next.first - 1);
        let removed = nexts
            .chain([history_upto])
            .take_while(|last| *last <= floor)
            .count();
        self.0.drain(..removed.min(self.0.len())).collect()
    }

    /// The keyspaces of records with `from` <= sequence <= `upto`, oldest first, each with the part of the range that it holds.
    pub(crate) fn holding(
        &self,
        from: Sequence,
        upto: Sequence,
    ) -> Vec<(Keyspace, Sequence, Sequence)> {
        let mut holding = Vec::new();
        for (i, generation) in self.0.iter().enumerate() {
            let next = self.0.get(i + 1).map(|next| next.first);
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
        ] {
            assert_eq!(of_name(other), None, "{other}");
        }
    }
}
