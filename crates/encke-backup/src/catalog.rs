//! What backups have found out about the stored pieces: the object `catalog.json` beside the backups.
//!
//! It only saves reads. Without it, all pieces that a backup uses are read again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::manifest::{BackupName, Hash};

/// The pieces and the last backups that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Catalog {
    format: u32,
    /// When it was written, in seconds since 1970.
    written_s: i64,
    /// The names of the last backups, which a list that is late may lack.
    backups: Vec<String>,
    pub(crate) pieces: BTreeMap<Hash, Verification>,
}

/// The last time that a piece was read and compared with its hash, or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, i64, u64)", into = "(u64, i64, u64)")]
pub(crate) struct Verification {
    pub(crate) bytes: u64,
    /// Seconds since 1970.
    pub(crate) at_s: i64,
    /// The stamp of the object that was read.
    pub(crate) stamp: u64,
}

impl From<(u64, i64, u64)> for Verification {
    fn from((bytes, at_s, stamp): (u64, i64, u64)) -> Self {
        Verification { bytes, at_s, stamp }
    }
}

impl From<Verification> for (u64, i64, u64) {
    fn from(one: Verification) -> Self {
        (one.bytes, one.at_s, one.stamp)
    }
}

impl Catalog {
    /// An empty one for content that this version does not read.
    pub(crate) fn decode(text: &[u8]) -> Catalog {
        let decoded = serde_json::from_slice(text).unwrap_or_default();
        match decoded {
            Catalog { format: FORMAT, .. } => decoded,
            _ => Catalog::default(),
        }
    }

    pub(crate) fn encode(&mut self, now: Timestamp) -> serde_json::Result<Vec<u8>> {
        (self.format, self.written_s) = (FORMAT, now.as_second());
        serde_json::to_vec(self)
    }

    pub(crate) fn backups(&self) -> impl Iterator<Item = BackupName> {
        self.backups.iter().filter_map(|name| name.parse().ok())
    }

    pub(crate) fn set_backups(&mut self, names: &[BackupName]) {
        let last = names.len().saturating_sub(KNOWN_BACKUPS_MAX);
        self.backups = names[last..].iter().map(BackupName::to_string).collect();
    }

    /// The pieces to read again: those that were not read for `within_s`, and of the others the oldest, in proportion to the time since the catalog
    /// was written, so that no backup reads all.
    pub(crate) fn due(&self, now: Timestamp, within_s: i64) -> Vec<(Hash, u64)> {
        let now_s = now.as_second();
        let mut oldest: Vec<_> = self.pieces.iter().collect();
        oldest.sort_by_key(|(_, one)| one.at_s);
        let all: u64 = oldest.iter().map(|(_, one)| one.bytes).sum();
        let since_s = now_s.saturating_sub(self.written_s).clamp(0, within_s);
        let share = u128::from(all) * since_s as u128 / within_s.max(1) as u128;
        let mut due = Vec::new();
        let mut bytes = 0;
        for (hash, one) in oldest {
            // A clock that was ahead must not put it off.
            let is_old = !(now_s - within_s + 1..=now_s + AHEAD_S).contains(&one.at_s);
            if is_old || bytes + u128::from(one.bytes) <= share {
                bytes += u128::from(one.bytes);
                due.push((*hash, one.bytes));
            }
        }
        due
    }
}

const FORMAT: u32 = 1;
/// Names in the catalog. A list that is late by more backups than these is not helped.
const KNOWN_BACKUPS_MAX: usize = 100;
/// How far clocks of machines that make backups may differ.
const AHEAD_S: i64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pieces_are_due_once_in_the_time() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let mut catalog = Catalog::default();
        for piece in 0..100u8 {
            let of = Verification {
                bytes: 10,
                at_s: 1_000,
                stamp: u64::from(piece),
            };
            catalog.pieces.insert(Hash::of(&[piece]), of);
        }
        let text = catalog.encode(at(1_000)).expect("it is JSON");
        let mut catalog = Catalog::decode(&text);
        assert_eq!(catalog.pieces.len(), 100);
        // A backup every ten seconds reads a tenth, and the next one others.
        for round in 1..=10 {
            let now = at(1_000 + 10 * round);
            let due = catalog.due(now, 100);
            assert_eq!(due.len(), 10, "{round}");
            for (hash, _) in due {
                let one = catalog.pieces.get_mut(&hash).expect("it is known");
                assert_eq!(one.at_s, 1_000, "{round}");
                one.at_s = now.as_second();
            }
            catalog.encode(now).expect("it is JSON");
        }
        assert_eq!(catalog.due(at(1_100), 100).len(), 0);
        // After a long pause all are due, and so they are without a time, or with one that lies ahead.
        assert_eq!(catalog.due(at(9_000), 100).len(), 100);
        assert_eq!(catalog.due(at(1_100), 0).len(), 100);
        assert_eq!(catalog.due(at(500), 100).len(), 100);
    }

    #[test]
    fn a_catalog_of_another_format_is_empty() {
        let mut catalog = Catalog::default();
        let text = catalog.encode(Timestamp::UNIX_EPOCH).expect("it is JSON");
        let text = String::from_utf8(text).expect("text");
        for wrong in ["", "{}", &text.replace("\"format\":1", "\"format\":2")] {
            assert_eq!(Catalog::decode(wrong.as_bytes()), Catalog::default());
        }
        assert_eq!(Catalog::decode(text.as_bytes()), catalog);
    }
}
